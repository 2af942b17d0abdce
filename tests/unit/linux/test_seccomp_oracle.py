"""seccompy, another compiler of such filters, held against ours where the two say the same things.

seccompy compares all 64 bits and has no "none of": rules with one are left out here (the model
in `seccomp_model.py` covers them), and low halves are compared by its masked equality.
"""

from __future__ import annotations

import itertools

import pytest
import seccompy
from seccompy import ArgCmp, CmpOp, Filter

from staddle.linux import syscalls
from staddle.linux.seccomp import PROFILES, program
from staddle.linux.seccomp.language import Check
from staddle.linux.seccomp.rules import RULES
from tests.unit.linux.seccomp_inputs import calls_of, chain, inputs
from tests.unit.linux.seccomp_simulator import Simulator

LOW = 0xFFFFFFFF


def alternatives(check: Check) -> list[ArgCmp]:
    """The check as a choice of seccompy's conditions."""
    if check.kind == "one of":
        mask = check.mask & LOW
        return [ArgCmp(check.argument, CmpOp.MASKED_EQ, number, mask) for number in check.numbers]
    if not check.values:  # a pointer, not NULL
        return [ArgCmp(check.argument, CmpOp.NE, 0)]
    bits = [1 << bit for bit in range(64) if check.bits >> bit & 1]
    return [ArgCmp(check.argument, CmpOp.MASKED_EQ, bit, bit) for bit in bits]


@pytest.mark.parametrize("profile", PROFILES)
def test_both_compilers_make_filters_that_answer_alike(profile: str) -> None:
    rules, machine = RULES[profile], syscalls.architecture()
    shared = [
        call
        for call in calls_of(rules, machine)
        if all(check.kind != "none of" for rule in chain(rules, call) for check in rule.checks)
    ]
    assert len(shared) > 85
    theirs = Filter()
    for call in shared:
        for rule in chain(rules, call):
            for conditions in itertools.product(*map(alternatives, rule.checks)):
                theirs._add(call, rule.answer.code, conditions)
    ours, other = Simulator(program(profile)), Simulator(theirs.program)
    native = seccompy.audit_arch()
    assert native == syscalls.AUDIT_ARCH[machine]
    for call in shared:
        number = seccompy.syscall_nr(call)
        for arguments in inputs(rules, call):
            assert ours.run(native, number, arguments) == other.run(native, number, arguments), call
    assert (
        ours.run(native ^ 1, 0, (0,) * 6)
        == other.run(native ^ 1, 0, (0,) * 6)
        == seccompy.Action.KILL_PROCESS
    )
