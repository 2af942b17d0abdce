"""Why a bwrap that is there does not confine."""

from __future__ import annotations

import pytest

from staddle.backends.bwrap import judge
from staddle.linux.userns import UsernsFacts


@pytest.mark.parametrize(
    ("problem", "message", "facts", "why"),
    [
        (
            "no system call filter",
            "",
            UsernsFacts("namespace", 1),
            "without confining it: no system call filter",
        ),
        (
            "the command did not run",
            "bwrap: No permissions",
            UsernsFacts("namespace", 1, seccomp=True),
            "seccomp",
        ),
        ("the command did not run", "", UsernsFacts(""), "without a word"),
        ("the command did not run", "warning\nbwrap: odd", UsernsFacts(""), "bwrap: odd"),
    ],
)
def test_the_cause_is_the_true_one(problem: str, message: str, facts: UsernsFacts, why: str) -> None:
    found, fix = judge("/usr/bin/bwrap", problem, message, facts)
    assert why in found
    assert fix
