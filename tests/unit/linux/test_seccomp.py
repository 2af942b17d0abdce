"""The rule table says what it means, and `describe` says all of it."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import staddle.linux.seccomp as seccomp
from staddle.linux import syscalls
from staddle.linux.seccomp import PROFILES, describe
from staddle.linux.seccomp.__main__ import main
from staddle.linux.seccomp.compiler import compile_filter
from staddle.linux.seccomp.language import ALLOW, ERRNO, PRETEND, Check, SyscallRule, one_of, refuse
from staddle.linux.seccomp.rules import HOLES, RULES, unknown_numbers
from tests.unit.linux.seccomp_inputs import calls_of, chain, inputs
from tests.unit.linux.seccomp_model import ARCHITECTURE, CALLS, NEWEST, expected
from tests.unit.linux.seccomp_simulator import Simulator

every_profile = pytest.mark.parametrize("profile", PROFILES)
EVERY_RULE = list(dict.fromkeys(rule for rules in RULES.values() for rule in rules))


def test_the_names_that_are_promised_are_those_of_the_table() -> None:
    assert set(PROFILES) == set(RULES)


def test_the_errors_are_linux_errors() -> None:
    assert {name: getattr(errno, name) for name in ERRNO} == ERRNO


@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_a_number_is_known_exactly_when_a_call_has_it(machine: str) -> None:
    assert NEWEST == syscalls.LAST_KNOWN
    unassigned = set(range(NEWEST + 1)) - set(CALLS[machine])
    assert unassigned == unknown_numbers(machine) - {NEWEST + 1}
    assert {number for hole in HOLES[machine] for number in hole} == unassigned


@pytest.mark.parametrize("rule", EVERY_RULE, ids=lambda rule: rule.calls[0])
def test_every_rule_names_calls_once_and_says_why(rule) -> None:
    assert len(set(rule.calls)) == len(rule.calls) > 0
    assert all(name in syscalls.NUMBERS for name in rule.calls)
    assert len(rule.why) > 20


@pytest.mark.parametrize("rule", EVERY_RULE, ids=lambda rule: rule.calls[0])
def test_checks_are_possible(rule) -> None:
    for check in rule.checks:
        assert 0 <= check.argument <= 5
        assert all(0 <= number <= check.mask for number in check.numbers)
        if check.kind in ("one of", "none of"):
            assert check.values
            assert all(number & check.mask == number for number in check.numbers)
        else:
            assert check.bits


@every_profile
def test_nothing_is_pretended_but_the_core_limit(profile: str) -> None:
    # Success that did not happen is a lie; the one we tell is listed here.
    pretended = {name for rule in RULES[profile] if rule.answer == PRETEND for name in rule.calls}
    assert pretended == {"setrlimit", "prlimit64"}


@every_profile
def test_nosuid_only_adds(profile: str) -> None:
    plain = RULES[profile.removesuffix("-nosuid")]
    assert RULES[profile][: len(plain)] == plain


@every_profile
@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_the_description_has_every_rule_with_the_calls_of_this_machine(profile: str, machine: str) -> None:
    rows = describe(profile, machine)
    present = {
        name for rule in RULES[profile] for name in rule.calls if syscalls.number(name, machine) is not None
    }
    assert {name for row in rows[2:] for name in row.calls} == present
    assert all(row.calls and row.answer and row.why for row in rows)
    assert "killed" in rows[0].answer
    assert rows[1].answer == "ENOSYS"
    assert str(NEWEST) in rows[1].calls[0]


def test_the_description_reads_as_sentences() -> None:
    said = {(row.calls, row.condition, row.answer) for row in describe("landlock-nosuid", "x86_64")}
    assert (("renameat2",), "flags has RENAME_WHITEOUT", "EPERM") in said
    assert (("connect",), "", "asked of the supervisor") in said
    assert (("socket",), "family is not AF_UNIX", "EAFNOSUPPORT") in said
    assert (
        ("prlimit64",),
        "resource is RLIMIT_CORE and a new limit is given",
        "success, but nothing is done",
    ) in said
    assert (
        ("personality",),
        "persona is not the query and persona has more than ADDR_NO_RANDOMIZE, UNAME26, PER_LINUX32",
        "EPERM",
    ) in said


def test_the_description_of_a_profile_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"no filter profile 'nothing'; there are namespaces, "):
        describe("nothing")


def test_bits_are_those_named_or_all_others() -> None:
    named = Check(0, "flags", "any bit", (("A", 1), ("B", 4)))
    assert named.bits == 5
    assert named.replace(kind="other bit").bits == 0xFFFFFFFA
    assert named.replace(kind="other bit", mask=2**64 - 1).bits == 0xFFFFFFFFFFFFFFFA


# The compiled filters answer as an independent model says, for all profiles and architectures.


MACHINES = ("aarch64", "x86_64")
NOTHING = (0, 0, 0, 0, 0, 0)
everywhere = pytest.mark.parametrize("machine", MACHINES)

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


# The filters that are shipped are the compiled table, and refused when they are not whole.


PREBUILT = Path(seccomp.__file__).parent / "prebuilt"
SOURCE = str(Path(seccomp.__file__).parents[3])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("profile", seccomp.PROFILES)
def test_the_shipped_bytes_are_what_the_table_compiles_to(profile: str, machine: str) -> None:
    assert seccomp.program(profile, machine) == compile_filter(RULES[profile], machine), (
        "the rule table changed: run `python -m staddle.linux.seccomp`"
    )


def test_nothing_else_is_shipped() -> None:
    expected = {f"{machine}-{profile}.bpf" for machine in MACHINES for profile in seccomp.PROFILES}
    assert {path.name for path in PREBUILT.iterdir()} == expected


def test_the_program_is_that_of_this_machine_unless_told_otherwise() -> None:
    machine = syscalls.architecture()
    assert seccomp.program("namespaces") == seccomp.program("namespaces", machine)
    assert seccomp.program("namespaces", "aarch64") != seccomp.program("namespaces", "x86_64")


@pytest.mark.parametrize("name", ["", "none", "../x86_64-namespaces", "namespaces\0", "Namespaces", "native"])
def test_an_unknown_profile_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="no filter profile"):
        seccomp.program(name)


@pytest.mark.parametrize("machine", ["riscv64", "../prebuilt/x86_64", "i686"])
def test_an_unknown_machine_is_an_error(machine: str) -> None:
    with pytest.raises(ValueError, match="no filter for"):
        seccomp.program("namespaces", machine)


@pytest.mark.parametrize("program", [b"", b"\x06", b"\x06\0\0\0\0\0\xff\x7f\0"])
def test_what_is_not_whole_instructions_is_not_loaded(program: bytes) -> None:
    with pytest.raises(ValueError, match="no filter"):
        seccomp.load(program)


def test_having_a_program_loads_neither_table_nor_compiler_nor_slow_modules() -> None:
    script = (
        f"import sys; sys.path.insert(0, {SOURCE!r})\n"
        "import os, ctypes, struct; before = set(sys.modules)\n"
        "import staddle.linux.seccomp as s; s.program('namespaces'); s.load\n"
        "print(' '.join(sorted(set(sys.modules) - before)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True
    )
    added = set(done.stdout.split())
    assert {name for name in added if not name.startswith("staddle")} <= {"__future__", "errno"}
    assert {name for name in added if name.startswith("staddle")} == {
        "staddle",
        "staddle.linux",
        "staddle.linux.syscalls",
        "staddle.linux.seccomp",
    }


def test_the_generator_writes_what_differs_and_leaves_the_rest(tmp_path, monkeypatch, capsys) -> None:
    def elsewhere(profile: str, machine: str) -> str:
        return str(tmp_path / "prebuilt" / f"{machine}-{profile}.bpf")

    monkeypatch.setattr("staddle.linux.seccomp.__main__.prebuilt_path", elsewhere)
    assert main() == 0
    assert capsys.readouterr().out.count("written") == len(MACHINES) * len(seccomp.PROFILES)
    for path in PREBUILT.iterdir():
        assert (tmp_path / "prebuilt" / path.name).read_bytes() == path.read_bytes()
    changed = Path(elsewhere("namespaces", "aarch64"))
    changed.write_bytes(b"something else")
    assert main() == 0
    output = capsys.readouterr().out
    assert [line.split(":")[0] for line in output.splitlines() if "written" in line] == [changed.name]
    assert changed.read_bytes() == seccomp.program("namespaces", "aarch64")
    assert sorted(os.listdir(changed.parent)) == sorted(os.listdir(PREBUILT))
