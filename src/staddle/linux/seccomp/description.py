"""The filter of a profile in words, for `staddle explain`."""

from __future__ import annotations

from .. import syscalls
from .language import KILL, RuleRow
from .rules import RULES, UNKNOWN

FOREIGN = RuleRow(
    ("any call of another architecture",), "", KILL.text, "its numbers mean other calls than the rules do"
)


def rows(profile: str, machine: str) -> tuple[RuleRow, ...]:
    """Every rule in the order in which they are tried, with the calls this machine has."""
    numbers = f"any unassigned number, and all above {syscalls.LAST_KNOWN}"
    listed = [FOREIGN, RuleRow((numbers,), "", UNKNOWN.answer.text, UNKNOWN.why)]
    for rule in RULES[profile]:
        calls = tuple(name for name in rule.calls if syscalls.number(name, machine) is not None)
        if calls:
            condition = " and ".join(check.text() for check in rule.checks)
            listed.append(RuleRow(calls, condition, rule.answer.text, rule.why))
    return tuple(listed)
