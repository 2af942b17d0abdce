"""Calls to try a filter with, made from the rule table: a witness per rule, and all edges of each check."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from staddle.linux import syscalls
from staddle.linux.seccomp.language import Check, SyscallRule

HIGH = 1 << 32
Arguments = tuple[int, int, int, int, int, int]


def holds(check: Check, arguments: Arguments) -> bool:
    """Whether the check is true of these arguments."""
    masked = arguments[check.argument] & check.mask
    if check.kind in ("one of", "none of"):
        return (masked in check.numbers) == (check.kind == "one of")
    named = sum(check.numbers)
    return masked & (named if check.kind == "any bit" else ~named) != 0


def edges(check: Check) -> set[int]:
    """Values of the argument on every side of the check."""
    if not check.values:
        return {0, 1, 1 << 31, HIGH, 1 << 63}  # a pointer
    values = {0, 1, 2, *check.numbers}
    if check.kind in ("one of", "none of"):
        values |= {number + step for number in check.numbers for step in (-1, 1) if number + step >= 0}
        # Bits outside the mask change nothing, and existing things (AF_PACKET, SOCK_RAW) are tried.
        values |= {number | 0x80000 for number in check.numbers if check.mask != 0xFFFFFFFF} | {3, 17}
    else:
        values |= {1 << bit for bit in range(64 if check.mask >> 32 else 32)}
        values |= {sum(check.numbers), 0xFFFFFFFF}
    return values


def chain(rules: tuple[SyscallRule, ...], call: str) -> list[SyscallRule]:
    """The rules that speak of `call`, in order."""
    return [rule for rule in rules if call in rule.calls]


def inputs(rules: tuple[SyscallRule, ...], call: str) -> Iterator[Arguments]:
    """Every combination of edges of the arguments that the rules for `call` look at."""
    values: list[set[int]] = [{0} for _ in range(6)]
    for rule in chain(rules, call):
        for check in rule.checks:
            values[check.argument] |= edges(check)
    for count, arguments in enumerate(itertools.product(*map(sorted, values))):
        yield arguments
        # The same with something in the high halves, a different one each time.
        yield tuple(argument | (count % 5 + at) * HIGH for at, argument in enumerate(arguments))


def witnesses(rules: tuple[SyscallRule, ...], rule: SyscallRule, call: str) -> list[Arguments]:
    """Arguments with which `rule`, and no rule before it, answers `call`: one for each value it names."""
    relevant = chain(rules, call)
    earlier = relevant[: relevant.index(rule)]
    values: list[set[int]] = [{0} for _ in range(6)]
    for check in (check for other in [*earlier, rule] for check in other.checks):
        values[check.argument] |= edges(check)
    named = [
        (check.argument, number)
        for check in rule.checks
        if check.kind in ("one of", "any bit")
        for number in check.numbers
    ]
    found = []
    for at, number in named or [(0, None)]:
        choices = [sorted(choice, key=_plausible) for choice in values]
        if number is not None:
            choices[at] = [number]
        for arguments in itertools.product(*choices):
            if _answers(rule, arguments) and not any(_answers(other, arguments) for other in earlier):
                found.append(arguments)
                break
        else:
            raise AssertionError(f"no arguments reach the rule for {call}: {rule.why}")
    return found


def _answers(rule: SyscallRule, arguments: Arguments) -> bool:
    return all(holds(check, arguments) for check in rule.checks)


def _plausible(value: int) -> tuple[bool, bool, int]:
    # AF_PACKET and SOCK_RAW exist everywhere: without the filter the kernel would say yes.
    return value > 0xFFFF, value not in (17, 3), value


def calls_of(rules: tuple[SyscallRule, ...], machine: str) -> list[str]:
    """All calls the rules speak of that this machine has, once each."""
    names = dict.fromkeys(name for rule in rules for name in rule.calls)
    return [name for name in names if syscalls.number(name, machine) is not None]
