"""Every attack works where nothing confines it: a probe that could not succeed would prove nothing.

Run as the same user ("plain"), as root where the kernel refuses others anyway ("root"), or
with all capabilities in namespaces of its own ("contained"), so that nothing real changes.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from . import namespaces, session
from .checks import ROOT, SOLO, SOURCE, in_a_terminal
from .probes import ATTACKS, TERMINAL, TWINS


@functools.cache
def report(control: str) -> dict[str, Any]:
    return session.run(control=control)


def controlled() -> list[str]:
    return [
        name
        for name, attack in ATTACKS.items()
        if attack.control and (attack.control != "root" or os.geteuid() == 0) and not attack.solo
    ]


@pytest.mark.parametrize("name", [name for name in controlled() if name not in TERMINAL])
def test_the_attack_works_unconfined(name: str) -> None:
    attack = ATTACKS[name]
    made = report(attack.control)
    answer = made["answers"].get(name)
    assert answer is not None, made["stderr"]
    if answer["why"] in attack.optional:
        return  # this kernel was built without it, and says so to everyone
    assert answer["outcome"] == "through", answer


@pytest.mark.parametrize("name", sorted(TERMINAL))
def test_the_attack_on_the_terminal_works_unconfined(name: str) -> None:
    made = in_a_terminal({"control": "plain", "attacks": [name], "twins": []})
    assert made["answers"][name]["outcome"] == "through", made["answers"][name]
    assert (made["typed"] == "typed\n") == (name == "type-into-the-terminal")


@pytest.mark.parametrize(
    "protection", ["write", "metadata", "deny", "guard", "tmp", "network", "sockets", "signals", "ipc"]
)
def test_damage_is_seen_unconfined(protection: str) -> None:
    """The oracle works, too: what attacks do without a sandbox is noticed from outside."""
    assert report("plain")["damage"].get(protection)


def test_leaks_are_seen_unconfined() -> None:
    assert "read-outside" in report("plain")["leaks"]


@pytest.mark.parametrize("name", TWINS)
def test_the_twin_works_unconfined(name: str) -> None:
    assert report("plain")["answers"][name]["outcome"] == "through"


def test_what_has_no_control_says_why() -> None:
    from .inside import kit

    silent = [
        name
        for name, (attack, function) in kit.ATTACKS.items()
        if not attack.control and not (function.__doc__ or "").count("No control") and name not in NO_CONTROL
    ]
    assert silent == []


#: Attacks without a control, and why, where the function does not say it itself.
NO_CONTROL = {
    "call-vhangup": "it would hang up the terminal of the tests",
    "trace-the-first-process": "unconfined this is the machine's own PID 1",
    "open-memory-of-the-first-process": "unconfined this is the machine's own PID 1",
    "read-environment-of-the-first-process": "unconfined this is the machine's own PID 1",
    "enter-the-root-of-the-first-process": "unconfined this is the machine's own PID 1",
}


@pytest.mark.parametrize("name", SOLO)
def test_the_attack_on_everything_works_unconfined(name: str) -> None:
    """In a process namespace of its own: there it ends everything, whoever waits for it included."""
    waits = (
        "import os; from tests.containment.inside import kit, processes\n"
        f"if os.fork(): os.wait(); print('alive')\nelse: kit.ATTACKS[{name!r}][1]({{}})\n"
    )
    done = subprocess.run(
        [*namespaces.same_user(), sys.executable, "-c", waits],
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (128 + signal.SIGKILL, b""), done
