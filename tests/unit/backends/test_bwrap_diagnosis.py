"""Why a bwrap that is there does not confine."""

from __future__ import annotations

import pytest

from staddle.backends.bwrap.executable import judge
from staddle.linux.userns import Facts


@pytest.mark.parametrize(
    ("problem", "message", "facts", "why"),
    [
        ("no system call filter", "", Facts("namespace", 1), "without confining it: no system call filter"),
        ("the command did not run", "bwrap: No permissions", Facts("namespace", 1, seccomp=True), "seccomp"),
        ("the command did not run", "", Facts(""), "without a word"),
        ("the command did not run", "warning\nbwrap: odd", Facts(""), "bwrap: odd"),
    ],
)
def test_the_cause_is_the_true_one(problem: str, message: str, facts: Facts, why: str) -> None:
    found, fix = judge("/usr/bin/bwrap", problem, message, facts)
    assert why in found
    assert fix
