"""Every protection matters: take one away, and a check turns red.

Each run happens in a process, mount, network and IPC namespace of its own, or in a private
machine, so that what gets through reaches nothing but canaries there.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.private_systemd import SOURCE_INSIDE, PrivateSystemd

from . import checks, machines, namespaces
from .checks import BATCH, gaps_of, verdict
from .conftest import copy_in
from .mutated import edited
from .probes import ATTACKS, TERMINAL
from .switches import ALONE, SWITCHES, Edit, Switch

#: What tests the tests is for `make test-everything`.
pytestmark = pytest.mark.slow

WHO = "root" if os.geteuid() == 0 else "user"
#: In these, what is denied lies where the backend can hold it.
DENY_BELOW = {"landlock": "readable"}
Run = Callable[..., dict[str, Any] | None]


def cases(backends: tuple[str, ...], who: str) -> list[Any]:
    return [
        pytest.param(
            backend,
            name,
            id=f"{backend}: {name}",
            marks=[pytest.mark.same_for_everyone] if switch.same_for_everyone else [],
        )
        for backend in backends
        for name, switch in SWITCHES[backend].items()
        if switch.only in ("", who)
    ]


def parsed(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any] | None:
    """The session's report; None when staddle refused to start anything."""
    if done.stdout:
        made: dict[str, Any] = json.loads(done.stdout)
        return made
    assert b"\nstaddle.errors." in done.stderr, done.stderr.decode()[-3000:]
    return None


def noticed(switch: Switch, arguments: dict[str, Any], run: Run) -> list[str]:
    """Which of the checks that should notice do."""
    arguments = {**arguments, "twins": [], "network": switch.network}
    attacks = [check for check in switch.notices if check in ATTACKS]
    others = {
        "terminal": lambda: _reaches(run({**arguments, "attacks": sorted(TERMINAL)}, terminal=True)),
        "parent": lambda: (run({**arguments, "parent": True}) or {"survived": []})["survived"],
        "uids": lambda: 0 in (run({**arguments, "attacks": []}) or {"uids": []})["uids"],
        "start": lambda: "start" not in (run({**arguments, "attacks": []}) or {"answers": {}})["answers"],
    }
    found = [check for check in switch.notices if check in others and others[check]()]
    if attacks:
        made = run({**arguments, "attacks": attacks})
        found += [name for name in attacks if made and verdict(made, name) == "through"]
    return found


def _reaches(made: dict[str, Any] | None) -> bool:
    return made is not None and any(verdict(made, name) == "through" for name in TERMINAL)


# ------------------------------------------------------------------ here


@functools.cache
def untouched(backend: str) -> dict[str, Any]:
    arguments = {"backend": backend, "deny_below": DENY_BELOW.get(backend, "work")}
    return checks.in_a_process(arguments, around=namespaces.same_user())


#: Those that run in namespaces of the test's own; systemd has a machine.
HERE = ("namespaces", "session", "session as root", "bwrap", "landlock")


@pytest.mark.slow
@pytest.mark.parametrize("backend", [backend for backend in HERE if backend != "session as root"])
def test_nothing_is_red_with_every_protection_on(backend: str) -> None:
    made = untouched(backend)
    red = {name: verdict(made, name) for name in BATCH if ATTACKS[name].protection not in gaps_of(made)}
    assert {name: found for name, found in red.items() if found != "refused"} == {}


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("backend", [backend for backend in HERE if backend != "session as root"])
def test_control_a_copy_in_which_only_a_comment_is_another_starts(backend: str) -> None:
    arguments = {
        "backend": backend,
        "deny_below": DENY_BELOW.get(backend, "work"),
        "attacks": [],
        "twins": [],
    }
    said = "def main() -> None:\n"
    with edited([Edit("inside/__main__.py", said, f"{said}    # the same\n")]) as source:
        made = parsed(checks.start(arguments, around=namespaces.same_user(), source=source))
    assert made is not None
    assert "start" in made["answers"]


@pytest.mark.parametrize(("backend", "name"), cases(HERE, WHO))
def test_a_check_turns_red_without(backend: str, name: str) -> None:
    def run(arguments: dict[str, Any], *, terminal: bool = False) -> dict[str, Any] | None:
        if terminal:
            return checks.in_a_terminal(arguments, source=source)
        return parsed(checks.start(arguments, around=namespaces.same_user(), source=source))

    arguments = {
        "backend": backend,
        "switched_off": name,
        "deny_below": DENY_BELOW.get(backend, "work"),
    }
    with edited(SWITCHES[backend][name].edits) as source:
        found = noticed(SWITCHES[backend][name], arguments, run)
    assert found, "no check notices that this protection is gone"


# ------------------------------------------------------------------ in a private machine

_numbers = itertools.count()


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("who", "name"),
    [
        pytest.param(who, name, id=f"{who}: {name}")
        for who in ("user", "root")
        for name, switch in SWITCHES["systemd"].items()
        if switch.only in ("", who)
    ],
)
def test_a_check_turns_red_without_in_systemd(who: str, name: str, machine: PrivateSystemd) -> None:
    source = SOURCE_INSIDE
    if SWITCHES["systemd"][name].edits:
        with edited(SWITCHES["systemd"][name].edits) as made:
            source = copy_in(machine, made, f"mutated-{next(_numbers)}")

    def run(arguments: dict[str, Any], *, terminal: bool = False) -> dict[str, Any] | None:
        if terminal:
            return machines.in_a_terminal(machine, who == "user", arguments)
        return parsed(machines.run(machine, who == "user", arguments, source=source))

    arguments = {"backend": "systemd", "switched_off": name}
    assert noticed(SWITCHES["systemd"][name], arguments, run), "no check notices that this protection is gone"


@pytest.mark.parametrize("backend", SWITCHES)
def test_what_is_not_switched_off_has_a_reason(backend: str) -> None:
    assert all(ALONE[backend].values())
