"""The language of the rules: checks on arguments, answers, rules.

    SyscallRule(("socket",), refuse("EAFNOSUPPORT"), "why", (none_of(0, "family", AF_UNIX=1),))

means: a `socket` call whose argument 0, the family, is not AF_UNIX fails with EAFNOSUPPORT. All checks of a
rule must hold. The first rule for a call that holds answers; a call that no rule answers is allowed.

A check reads the low 32 bits of the argument, because the kernel uses only these for an int. Comparing all 64
let TIOCSTI through with one high bit set (CVE-2019-10063). Pointers and longs are checked on both halves.
"""

from __future__ import annotations

from ..._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

LOW = 0xFFFF_FFFF
BOTH = 0xFFFF_FFFF_FFFF_FFFF

#: Linux's numbers, the same on every architecture of our tables. Python's `errno` would have those of the
#: machine that builds the filters.
ERRNO = {
    "EPERM": 1,
    "ENOSYS": 38,
    "ENOPROTOOPT": 92,
    "EPROTONOSUPPORT": 93,
    "ESOCKTNOSUPPORT": 94,
    "EOPNOTSUPP": 95,
    "EAFNOSUPPORT": 97,
}


class Action(Value):
    """The kernel's action for a call: a SECCOMP_RET_* code, and its name for people."""

    text: str
    code: int


ALLOW = Action("allowed", 0x7FFF_0000)
KILL = Action("the process is killed", 0x8000_0000)
NOTIFY = Action("asked of the supervisor", 0x7FC0_0000)
PRETEND = Action("success, but nothing is done", 0x0005_0000)


def refuse(name: str) -> Action:
    """Make the call fail with this error."""
    return Action(name, 0x0005_0000 | ERRNO[name])


class Check(Value):
    """One check on one argument. `mask` selects the checked bits."""

    argument: int
    label: str
    kind: Literal["one of", "none of", "any bit", "other bit"]
    values: tuple[tuple[str, int], ...]
    mask: int = LOW

    @property
    def numbers(self) -> tuple[int, ...]:
        """The values without their names."""
        return tuple(number for _, number in self.values)

    @property
    def bits(self) -> int:
        """The bits of which one must be set, for the two checks of bits."""
        named = 0
        for number in self.numbers:
            named |= number
        return self.mask & (named if self.kind == "any bit" else ~named)

    def text(self) -> str:
        """The check in words."""
        names = [name for name, _ in self.values]
        if self.kind == "one of":
            return f"{self.label} is {' or '.join(names)}"
        if self.kind == "none of":
            return f"{self.label} is not {' or '.join(names)}"
        if self.kind == "any bit":
            return f"{self.label} has {' or '.join(names)}"
        return f"{self.label} has more than {', '.join(names)}" if names else f"{self.label} is given"


def one_of(argument: int, label: str, *, mask: int = LOW, **values: int) -> Check:
    """The argument, masked, is one of these."""
    return Check(argument, label, "one of", tuple(values.items()), mask)


def none_of(argument: int, label: str, *, mask: int = LOW, **values: int) -> Check:
    """The argument, masked, is none of these."""
    return Check(argument, label, "none of", tuple(values.items()), mask)


def any_bit(argument: int, label: str, **values: int) -> Check:
    """At least one of these bits is set."""
    return Check(argument, label, "any bit", tuple(values.items()))


def other_bit(argument: int, label: str, *, mask: int = LOW, **values: int) -> Check:
    """A bit that is not among these is set."""
    return Check(argument, label, "other bit", tuple(values.items()), mask)


def given(argument: int, label: str) -> Check:
    """A pointer that is not NULL, in either half."""
    return Check(argument, label, "other bit", (), BOTH)


def names(text: str) -> tuple[str, ...]:
    """Return the calls in a long text of words."""
    return tuple(text.split())


class SyscallRule(Value):
    """An answer to these calls, if all checks hold."""

    calls: tuple[str, ...]
    answer: Action
    why: str
    checks: tuple[Check, ...] = ()


class RuleRow(Value):
    """One rule in words."""

    calls: tuple[str, ...]
    condition: str
    answer: str
    why: str
