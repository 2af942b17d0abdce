"""Why a bwrap that is there does not confine."""

from __future__ import annotations

from ...linux.userns import Facts, observe, obstacle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .launching import Starter

_REINSTALL = "reinstall bubblewrap, and see what else has put a program of that name there"


def diagnose(found: Starter, problem: str, message: str) -> tuple[str, str]:
    """The true cause and its remedy: tried out again, step by step, without bwrap."""
    return judge(found.bwrap, problem, message, observe(found.stranger))


def judge(bwrap: str, problem: str, message: str, facts: Facts) -> tuple[str, str]:
    """The same from facts: what the self-test found wrong, bwrap's message, what the kernel allows us."""
    if problem != "the command did not run":
        return f"{bwrap} ran its self-test without confining it: {problem}", _REINSTALL
    in_the_way = obstacle(facts)
    if in_the_way is not None:
        return in_the_way.why, in_the_way.fix
    if not message:
        return f"{bwrap} ended without running the command, and without a word", _REINSTALL
    return f"its self-test failed: {message.splitlines()[-1]}", "see whether bwrap works by itself"
