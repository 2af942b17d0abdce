"""What is expected of a backend: refuse every attack whose protection it does not declare as a gap.

A backend's test file derives from `Containment`. One run of the whole catalogue is shared
by all its tests, so that each is a promise of its own and the whole takes a second or two.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import pty
import subprocess
import sys
import termios
import tty
from pathlib import Path
from typing import Any, ClassVar

import pytest

from . import namespaces, session
from .mutated import SOURCE, edited
from .probes import ATTACKS, TERMINAL, TWINS
from .switches import Edit

ROOT = Path(__file__).parents[2]
BATCH = [name for name, attack in ATTACKS.items() if not attack.solo and name not in TERMINAL]
LIMITS = " ".join((ROOT / "docs" / "backends.md").read_text().split())
SOLO = [name for name, attack in ATTACKS.items() if attack.solo]
#: Gaps that are declared where nothing holds a limit that the policy leaves to the host.
DEFAULT_LIMITS = {"limits.memory", "limits.processes", "limits.disk"}


@functools.cache
def report(
    backend: str, network: str = "deny", deny_below: str = "work", edits: tuple[Edit, ...] = ()
) -> dict[str, Any]:
    """The report of one run of the catalogue, made once; with `edits` in a process of a changed copy."""
    if not edits:
        return session.run(backend, network=network, deny_below=deny_below)
    arguments = {"backend": backend, "network": network, "deny_below": deny_below}
    with edited(edits) as source:
        return in_a_process(arguments, around=[], source=source)


def verdict(report: dict[str, Any], name: str) -> str:
    """`refused`, `through`, or a sentence about an answer that means neither."""
    attack = ATTACKS[name]
    answer = report["answers"].get(name)
    if attack.silent:
        return "through" if report["damage"].get(attack.protection) else "refused"
    if answer is None:
        return f"no answer; the command said {report['stderr']!r}"
    if answer["outcome"] in ("refused", "killed"):
        if answer["why"] in attack.refused:
            return "refused"
        return f"refused for another reason: {answer['why']} ({answer['detail']})"
    if attack.limit and attack.limit in LIMITS:
        return "refused"  # as far as anybody was promised
    return "through" if answer["outcome"] == "through" else f"{answer['outcome']}: {answer['detail']}"


def gaps_of(report: dict[str, Any]) -> set[str]:
    """The protections that the backend says it does not hold."""
    return {gap["protection"] for gap in report["gaps"]}


def in_a_process(
    arguments: dict[str, Any], *, around: list[str], stdin: int | None = None, source: Path = SOURCE
) -> dict[str, Any]:
    """Run a session in a process of its own, in what `around` makes for it."""
    done = start(arguments, around=around, stdin=stdin, source=source)
    assert done.stdout, f"the session ended with {done.returncode}: {done.stderr.decode()[-3000:]}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def start(
    arguments: dict[str, Any], *, around: list[str], stdin: int | None = None, source: Path = SOURCE
) -> subprocess.CompletedProcess[bytes]:
    """The same, as it ended."""

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    return subprocess.run(
        [*around, sys.executable, "-m", "tests.containment.session", json.dumps(arguments)],
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        capture_output=True,
        start_new_session=True,
        preexec_fn=None if stdin is None else take_terminal,  # with one, all of our memory is copied
        env={**os.environ, "PYTHONPATH": f"{source}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=session.SECONDS * 2,
        check=False,
    )


def in_a_terminal(arguments: dict[str, Any], *, source: Path = SOURCE) -> dict[str, Any]:
    """Run a session whose standard input is its controlling terminal."""
    main, other = pty.openpty()
    try:
        tty.setraw(other)
        return in_a_process({**arguments, "terminal": True}, around=[], stdin=other, source=source)
    finally:
        os.close(main)
        os.close(other)


class Containment:
    """The promises of one backend. Subclasses say which, and what it cannot do for benign programs."""

    backend: ClassVar[str]
    networks: ClassVar[tuple[str, ...]] = ("deny", "open", "loopback", "allow")
    #: In a copy of staddle with another text.
    edits: ClassVar[tuple[Edit, ...]] = ()
    #: In which zone denied paths lie.
    deny_below: ClassVar[str] = "work"
    #: Twins that this backend cannot offer, each with the reason in the subclass.
    cannot: ClassVar[frozenset[str]] = frozenset()
    #: Attacks that are none here, because they reach nothing but what is the sandbox's own.
    its_own: ClassVar[frozenset[str]] = frozenset()
    #: The attacks that get through where a gap is declared, and no other of the same protection.
    may_pass: ClassVar[frozenset[str]] = frozenset()

    def report(self, network: str = "deny") -> dict[str, Any]:
        return report(self.backend, network, self.deny_below, self.edits)

    def in_a_process(self, arguments: dict[str, Any]) -> dict[str, Any]:
        with edited(self.edits) as source:
            return in_a_process({**self.usual, **arguments}, around=namespaces.same_user(), source=source)

    def in_a_terminal(self, arguments: dict[str, Any]) -> dict[str, Any]:
        with edited(self.edits) as source:
            return in_a_terminal({**self.usual, **arguments}, source=source)

    @property
    def usual(self) -> dict[str, Any]:
        return {"backend": self.backend, "deny_below": self.deny_below}

    @pytest.mark.parametrize("name", BATCH)
    def test_attack_is_refused(self, name: str) -> None:
        if name not in self.its_own:
            self._judge(self.report(), name)

    @pytest.mark.parametrize("name", TWINS)
    def test_benign_twin_works(self, name: str) -> None:
        if name in self.cannot or name == "own-loopback":
            return
        answer = self.report()["answers"][name]
        assert answer["outcome"] == "through", answer

    def test_every_attack_has_a_twin_that_works_here(self) -> None:
        assert {attack.twin for attack in ATTACKS.values()} <= set(TWINS) - self.cannot

    def test_nothing_outside_changed(self) -> None:
        made = self.report()
        assert {k: v for k, v in made["damage"].items() if k not in {"granted", *gaps_of(made)}} == {}

    def test_no_secret_came_out(self) -> None:
        made = self.report()
        leaks = {
            name: ATTACKS[name].protection if name in ATTACKS else "read"
            for name in made["leaks"]
            if name not in ATTACKS or ATTACKS[name].protection not in gaps_of(made)
        }
        assert leaks == {}

    def test_it_ran_to_its_end_and_said_nothing(self) -> None:
        made = self.report()
        assert (made["status"], made["stderr"]) == (0, "")
        assert "end" in made["answers"]

    def test_the_command_is_not_root(self) -> None:
        uids = set(self.report()["uids"])
        assert len(uids) == 1
        assert 0 not in uids
        if os.geteuid() != 0:
            assert uids == {os.getuid()}

    @pytest.mark.slow
    @pytest.mark.parametrize("network", ["open", "loopback", "allow"])
    def test_the_rest_holds_with_another_network(self, network: str) -> None:
        if network not in self.networks:
            return
        made = self.report(network)
        wrong = {}
        for name in BATCH:
            if name in self.its_own or (network == "open" and ATTACKS[name].protection == "network"):
                continue
            found = verdict(made, name)
            if found == "through" and ATTACKS[name].protection in gaps_of(made):
                continue
            if found != "refused":
                wrong[name] = found
        assert wrong == {}

    def test_its_own_loopback_works_when_asked_for(self) -> None:
        if "loopback" in self.networks:
            assert self.report("loopback")["answers"]["own-loopback"]["outcome"] == "through"

    @pytest.mark.parametrize("name", SOLO)
    def test_attack_on_everything_is_refused(self, name: str) -> None:
        """In namespaces of its own: if it got through, it would end the test run."""
        self._judge(self.in_a_process({"attacks": [name], "twins": []}), name)

    @pytest.mark.parametrize("name", sorted(TERMINAL))
    def test_attack_on_the_terminal_is_refused(self, name: str) -> None:
        made = self.in_a_terminal({"attacks": [name], "twins": []})
        self._judge(made, name)
        if "terminal" not in gaps_of(made):
            assert made["typed"] == ""

    def test_everything_ends_with_whoever_started_it(self) -> None:
        made = self.report()
        left = self.in_a_process({"parent": True})["survived"]
        assert left == [] or "parent" in gaps_of(made)

    def _judge(self, made: dict[str, Any], name: str) -> None:
        found = verdict(made, name)
        if found == "through":
            declared = [gap for gap in made["gaps"] if gap["protection"] == ATTACKS[name].protection]
            assert declared, (
                f"{name} got through, and {self.backend} declares no such gap: {made['answers'].get(name)}"
            )
        else:
            assert found == "refused"
