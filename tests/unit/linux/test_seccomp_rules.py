"""The rule table says what it means, and `describe` says all of it."""

from __future__ import annotations

import errno

import pytest

from staddle.linux import syscalls
from staddle.linux.seccomp import PROFILES, describe
from staddle.linux.seccomp.language import ERRNO, PRETEND, Check
from staddle.linux.seccomp.rules import HOLES, RULES, unknown_numbers
from tests.unit.linux.seccomp_model import CALLS, NEWEST

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
