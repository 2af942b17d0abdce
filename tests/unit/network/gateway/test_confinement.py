"""The gateway's filter: what it needs, TCP and UDP sockets, and not one call more."""

from __future__ import annotations

import pytest

from staddle.linux import syscalls
from staddle.network.gateway.confinement import CALLS, CHECKED, program
from tests.unit.linux.seccomp_simulator import Simulator

ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050001, 0x80000000


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def answer(machine: str, number: int, *arguments: int) -> int:
    padded = (*arguments, *(0,) * (6 - len(arguments)))
    return Simulator(program(machine)).run(syscalls.AUDIT_ARCH[machine], number, padded)


def test_it_allows_what_is_listed_and_nothing_else(machine: str) -> None:
    listed = {syscalls.number(name, machine) for name in CALLS}
    checked = {syscalls.number(name, machine) for name in CHECKED}
    for number in range(syscalls.LAST_KNOWN + 50):
        if number not in checked:
            assert answer(machine, number) == (ALLOW if number in listed else REFUSE), number


@pytest.mark.parametrize(
    "name", ["openat", "execveat", "clone", "clone3", "ptrace", "kill", "mount", "socketpair", "pidfd_open"]
)
def test_files_programs_and_other_processes_are_out_of_reach(machine: str, name: str) -> None:
    number = syscalls.number(name, machine)
    assert number is not None
    assert answer(machine, number) == REFUSE


@pytest.mark.parametrize(
    ("family", "kind", "allowed"),
    [
        (2, 1, True),
        (10, 1 | 0o2004000, True),
        (2, 2, True),
        (1, 1, False),
        (16, 2, False),
        (17, 3, False),
        (40, 1, False),
        (2, 3, False),
        (2, 5, False),
        (2 | 1 << 32, 1, True),  # the kernel looks at the low half, so the filter does
        (1 | 2 << 32, 1, False),
    ],
)
def test_only_tcp_and_udp_sockets_can_be_made(machine: str, family: int, kind: int, allowed: bool) -> None:
    number = syscalls.number("socket", machine)
    assert number is not None
    assert answer(machine, number, family, kind) == (ALLOW if allowed else REFUSE)


def test_of_ioctl_only_what_setblocking_needs(machine: str) -> None:
    number = syscalls.number("ioctl", machine)
    assert number is not None
    assert answer(machine, number, 0, 0x5421) == ALLOW
    for request in (0x5412, 0x541B, 0):
        assert answer(machine, number, 0, request) == REFUSE


def test_another_architecture_is_killed(machine: str) -> None:
    assert Simulator(program(machine)).run(0x40000003, 1, (0,) * 6) == KILL
