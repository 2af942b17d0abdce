"""Rules to classic BPF: a binary tree over the call numbers, a short chain of checks in each leaf.

When the program is loaded, the kernel runs it once for every call number, to find the calls that are always
allowed. Later it runs it for every other call. A straight list of comparisons makes both slow; the tree needs
nine comparisons for any of 470 numbers.

Code is built from the end, so every jump is forward and its length is known: no labels.
"""

from __future__ import annotations

import struct

from .. import syscalls
from .language import ALLOW, KILL, LOW
from .rules import NOT_A_CALL, UNKNOWN, unknown_numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .language import Check, SyscallRule

    Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant
    Code = list[Instruction]
    Span = tuple[int, tuple[SyscallRule, ...]]  # the first number, and the rules up to the next span

# Instruction codes (linux/bpf_common.h) and offsets in `struct seccomp_data`.
LOAD, AND, RETURN, JUMP, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT = 0x20, 0x54, 0x06, 0x05, 0x15, 0x35, 0x45
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
FARTHEST = 255  # conditional jumps have one byte
LONGEST = 4096  # BPF_MAXINSNS


def compile_filter(rules: Iterable[SyscallRule], machine: str) -> bytes:
    """Return the filter for `rules` on `machine`, as the kernel expects it (struct sock_filter, packed)."""
    code: Code = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (JUMP_EQUAL, 1, 0, syscalls.AUDIT_ARCH[machine]),
        (RETURN, 0, 0, KILL.code),
        (LOAD, 0, 0, NUMBER_AT),
        *_tree(_spans(rules, machine)),
    ]
    if len(code) > LONGEST:
        raise ValueError(f"the filter has {len(code)} instructions, the kernel takes {LONGEST}")
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _spans(rules: Iterable[SyscallRule], machine: str) -> list[Span]:
    """Return all call numbers, split where the applicable rules change."""
    chains: dict[int, tuple[SyscallRule, ...]] = {}
    for rule in rules:
        for name in rule.calls:
            number = syscalls.number(name, machine)
            if number is None:
                continue
            chain = chains.get(number, ())
            if chain and not chain[-1].checks:
                raise ValueError(f"a rule for {name} can never apply: an earlier one always does")
            chains[number] = (*chain, rule)
    unknown = unknown_numbers(machine)
    spans: list[Span] = []
    for number in (*range(syscalls.LAST_KNOWN + 2), NOT_A_CALL):
        chain = (UNKNOWN,) if number in unknown else chains.get(number, ())
        if not spans or spans[-1][1] != chain:
            spans.append((number, chain))
    return spans


def _tree(spans: list[Span]) -> Code:
    if len(spans) == 1:
        return _chain(spans[0][1])
    middle = len(spans) // 2
    first_right = spans[middle][0]
    left, right = _tree(spans[:middle]), _tree(spans[middle:])
    if len(left) <= FARTHEST:
        return [(JUMP_AT_LEAST, len(left), 0, first_right), *left, *right]
    return [(JUMP_AT_LEAST, 0, 1, first_right), (JUMP, 0, 0, len(left)), *left, *right]


def _chain(rules: tuple[SyscallRule, ...]) -> Code:
    """Try the rules of one call in order; allow the call if none of them answers."""
    code: Code = [(RETURN, 0, 0, ALLOW.code)]
    for rule in reversed(rules):
        body: Code = [(RETURN, 0, 0, rule.answer.code)]
        for check in reversed(rule.checks):
            body = [*_check(check, len(body)), *body]
        code = [*body, *code] if rule.checks else body
    return code


def _check(check: Check, rest: int) -> Code:
    """Fall through if the check holds; otherwise skip the `rest` of the rule too."""
    low_at = ARGUMENTS_AT + 8 * check.argument
    if check.kind in ("any bit", "other bit"):
        low, high = check.bits & LOW, check.bits >> 32
        if not high:
            return [(LOAD, 0, 0, low_at), (JUMP_ANY_BIT, 0, rest, low)]
        return [
            (LOAD, 0, 0, low_at),
            (JUMP_ANY_BIT, 2, 0, low),
            (LOAD, 0, 0, low_at + 4),
            (JUMP_ANY_BIT, 0, rest, high),
        ]
    if check.mask > LOW:
        raise ValueError(f"{check.label}: values are compared on the low 32 bits only")
    code: Code = [(LOAD, 0, 0, low_at)]
    if check.mask != LOW:
        code.append((AND, 0, 0, check.mask))
    for left, number in zip(range(len(check.values) - 1, -1, -1), check.numbers, strict=True):
        if check.kind == "none of":
            code.append((JUMP_EQUAL, left + rest, 0, number))
        else:
            code.append((JUMP_EQUAL, left, 0 if left else rest, number))
    return code
