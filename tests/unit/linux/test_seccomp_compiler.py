"""The compiled filters answer as an independent model says, for all profiles and architectures."""

from __future__ import annotations

import random

import pytest

from staddle.linux import syscalls
from staddle.linux.seccomp import PROFILES
from staddle.linux.seccomp.compiler import compile_filter
from staddle.linux.seccomp.language import ALLOW, Check, SyscallRule, one_of, refuse
from staddle.linux.seccomp.rules import RULES
from tests.unit.linux.seccomp_inputs import calls_of, chain, inputs, witnesses
from tests.unit.linux.seccomp_model import ARCHITECTURE, expected
from tests.unit.linux.seccomp_simulator import Simulator

MACHINES = ("aarch64", "x86_64")
NOTHING = (0, 0, 0, 0, 0, 0)
everywhere = pytest.mark.parametrize("machine", MACHINES)
every_profile = pytest.mark.parametrize("profile", PROFILES)

NUMBERS = (*range(520), *range(1020, 1030), 0x3FFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
X32 = tuple(0x40000000 | number for number in range(600))


def random_calls(seed: str, count: int) -> list[tuple[int, tuple[int, ...]]]:
    """Calls with small numbers, single bits and noise as arguments; the same for the same seed."""
    choose = random.Random(seed)  # noqa: S311 - not a secret

    def argument() -> int:
        kind = choose.randrange(3)
        return (choose.randrange(40), 1 << choose.randrange(64), choose.getrandbits(64))[kind]

    def number() -> int:
        return choose.randrange(480) if choose.random() < 0.95 else choose.getrandbits(32)

    return [(number(), tuple(argument() for _ in range(6))) for _ in range(count)]


@everywhere
@every_profile
def test_every_answer_is_the_models_and_every_branch_is_taken(machine: str, profile: str) -> None:
    rules, simulator, native = (
        RULES[profile],
        Simulator(compile_filter(RULES[profile], machine)),
        ARCHITECTURE[machine],
    )
    tried = [(number, NOTHING) for number in (*NUMBERS, *X32)]
    for call in calls_of(rules, machine):
        number = syscalls.number(call, machine)
        tried += [(number, arguments) for arguments in inputs(rules, call)]
    tried += random_calls(f"{machine} {profile}", 2000)
    for number, arguments in tried:
        answer = simulator.run(native, number, arguments)
        assert answer == expected(profile, machine, native, number, arguments), (
            f"call {number} with {[hex(a) for a in arguments]} is answered {answer:#x}"
        )
    foreign = [*ARCHITECTURE.values(), 0x40000003, 0x40000028, 0, 0xFFFFFFFF, native ^ 1]
    for architecture in set(foreign) - {native}:
        for number in (0, 20, 135, 0x40000000, 0xFFFFFFFF):
            assert simulator.run(architecture, number, NOTHING) == 0x80000000
    assert simulator.unseen() == []


def differs(
    rules: list[SyscallRule], original: tuple[SyscallRule, ...], call: str, machine: str, profile: str
) -> bool:
    """Whether the model notices that `rules` are used in place of `original` for `call`."""
    simulator, native = Simulator(compile_filter(rules, machine)), ARCHITECTURE[machine]
    number = syscalls.number(call, machine)
    return any(
        simulator.run(native, number, arguments) != expected(profile, machine, native, number, arguments)
        for arguments in inputs(original, call)
    )


@everywhere
@every_profile
def test_no_rule_can_be_taken_out_unnoticed(machine: str, profile: str) -> None:
    rules, native = RULES[profile], ARCHITECTURE[machine]
    for rule in rules:
        without = tuple(other for other in rules if other is not rule)
        calls = [name for name in rule.calls if syscalls.number(name, machine) is not None]
        if not calls:
            continue  # this architecture has none of them
        simulator = Simulator(compile_filter(without, machine))
        for call in calls:
            number = syscalls.number(call, machine)
            for arguments in witnesses(rules, rule, call):
                right = expected(profile, machine, native, number, arguments)
                assert right == rule.answer.code, f"{call}: the rule is not what the model expects"
                assert simulator.run(native, number, arguments) != right, (
                    f"nothing notices the loss of {call}"
                )


_UNCHANGEABLE: set[str] = set()


@everywhere
@every_profile
def test_no_call_value_test_or_answer_can_be_changed_unnoticed(machine: str, profile: str) -> None:
    rules, native = RULES[profile], ARCHITECTURE[machine]
    for call in calls_of(rules, machine):
        relevant = chain(rules, call)
        number = syscalls.number(call, machine)
        model = [expected(profile, machine, native, number, arguments) for arguments in inputs(rules, call)]
        known = repr((machine, call, relevant, model))
        if known in _UNCHANGEABLE:
            continue  # another profile has the same rules for it, and the model the same answers
        _UNCHANGEABLE.add(known)
        for at, rule in enumerate(relevant):
            for what, changed in mutants(rule):
                mutated = [*relevant[:at], *changed, *relevant[at + 1 :]]
                try:
                    noticed = differs(mutated, rules, call, machine, profile)
                except ValueError:
                    noticed = True  # the compiler itself refuses a rule that can never apply
                assert noticed, f"{call}: nothing notices {what}"


def mutants(rule: SyscallRule) -> list[tuple[str, list[SyscallRule]]]:
    """The rule gone, with another answer, without one of its checks, and with each check changed."""
    other = refuse("EPERM") if rule.answer != refuse("EPERM") else ALLOW
    found = [("its loss", []), ("another answer", [rule.replace(answer=other)])]
    for at, check in enumerate(rule.checks):
        before, after = rule.checks[:at], rule.checks[at + 1 :]
        found.append((f"the loss of: {check.text()}", [rule.replace(checks=before + after)]))
        for what, changed in changed_checks(check):
            found.append((f"{what} in: {check.text()}", [rule.replace(checks=(*before, changed, *after))]))
    return found


def changed_checks(check: Check) -> list[tuple[str, Check]]:
    opposite = {"one of": "none of", "none of": "one of", "any bit": "other bit", "other bit": "any bit"}
    found = [("the next argument", check.replace(argument=(check.argument + 1) % 6))]
    if check.values:
        found.append(("the opposite", check.replace(kind=opposite[check.kind])))
    if check.mask not in (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF):
        found.append(("the whole argument", check.replace(mask=0xFFFFFFFF)))
    if check.mask >> 32:
        found.append(("one half", check.replace(mask=0xFFFFFFFF)))
    for at, (name, number) in enumerate(check.values):
        rest = (*check.values[:at], *check.values[at + 1 :])
        if rest:
            found.append((f"no {name}", check.replace(values=rest)))
        found.append((f"another {name}", check.replace(values=((name, number ^ 1 << 5), *rest))))
    return found


def test_a_rule_behind_one_that_always_applies_is_an_error() -> None:
    always = SyscallRule(("mount",), refuse("EPERM"), "always")
    late = SyscallRule(("mount",), refuse("ENOSYS"), "never", (one_of(0, "source", nothing=0),))
    with pytest.raises(ValueError, match="can never apply"):
        compile_filter((always, late), "x86_64")


def test_values_of_64_bits_cannot_be_compared_by_mistake() -> None:
    rule = SyscallRule(
        ("ioctl",), refuse("EPERM"), "", (one_of(1, "request", mask=2**64 - 1, TIOCSTI=0x5412),)
    )
    with pytest.raises(ValueError, match="low 32 bits"):
        compile_filter((rule,), "x86_64")


def test_a_filter_longer_than_the_kernel_takes_is_an_error() -> None:
    rules = [
        SyscallRule(("ioctl",), refuse("EPERM"), "", (one_of(1, "request", it=number),))
        for number in range(1400)
    ]
    with pytest.raises(ValueError, match="4096"):
        compile_filter(rules, "x86_64")


@everywhere
def test_far_jumps_are_right(machine: str) -> None:
    # Many checks on an early call push the right half of the tree out of reach of a short jump.
    many = [
        SyscallRule(("ioctl",), refuse("ENOSYS"), "", (one_of(1, "request", it=number),))
        for number in range(200)
    ]
    simulator = Simulator(compile_filter([*many, SyscallRule(("clone3",), refuse("EPERM"), "")], machine))
    ioctl = syscalls.number("ioctl", machine)
    assert simulator.run(ARCHITECTURE[machine], ioctl, (0, 199, 0, 0, 0, 0)) == refuse("ENOSYS").code
    assert simulator.run(ARCHITECTURE[machine], ioctl, (0, 200, 0, 0, 0, 0)) == ALLOW.code
    assert simulator.run(ARCHITECTURE[machine], 435, NOTHING) == refuse("EPERM").code
    assert any(code == 0x05 for code, *_ in simulator.code)


@everywhere
@every_profile
def test_any_call_needs_few_instructions(machine: str, profile: str) -> None:
    simulator, longest = Simulator(compile_filter(RULES[profile], machine)), 0
    for number in range(470):
        simulator.seen.clear()
        simulator.run(ARCHITECTURE[machine], number, NOTHING)
        longest = max(longest, len(simulator.seen))
    assert len(simulator.code) < 500
    assert longest < 30
