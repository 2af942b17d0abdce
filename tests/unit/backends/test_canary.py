"""What the self-test must read of itself, and each thing that must not be so."""

from __future__ import annotations

import pytest

from staddle.backends.canary import plan, wrong

NONCE = "0123456789abcdef"
GOOD = (
    "canary-0123456789abcdef\n"
    "Name:\tcat\nPid:\t2\nNSpid:\t2\nUid:\t1000\t1000\t1000\t1000\n"
    "CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n"
    "CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
    "      1000          0          1\n"
    "Inter-|   Receive                 |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes ...\n"
    "    lo:       0       0    0    0    0     0          0         0        0 0 0 0 0 0 0 0\n"
    "150 125 0:58 / / ro,nosuid,nodev,relatime - tmpfs tmpfs rw,size=1304k\n"
    f"STADDLE_CANARY={NONCE}\0PWD=/\0"
)


def test_a_sandbox_of_ours() -> None:
    assert wrong(GOOD.encode(), NONCE) == ""


@pytest.mark.parametrize(
    ("old", "new", "noticed"),
    [
        ("NSpid:\t2\n", "NSpid:\t4711\n", "no process namespace"),
        ("Pid:\t2\nNSpid:\t2\n", "Pid:\t4711\n", "no process namespace"),
        ("NoNewPrivs:\t1", "NoNewPrivs:\t0", "new privileges"),
        ("Seccomp:\t2", "Seccomp:\t0", "no system call filter"),
        *(
            (f"Cap{s}:\t0000000000000000", f"Cap{s}:\t0000000000000400", "capabilities")
            for s in ("Inh", "Amb")
        ),
        ("CapBnd:\t0000000000000000", "CapBnd:\t000001ffffffffff", "capabilities"),
        ("      1000          0          1", "         0          0 4294967295", "no user namespace"),
        ("    lo:", "  eth0:", "a network"),
        ("canary-0123456789abcdef\n", "myhost\n", "no host name"),
        (" - tmpfs ", " - ext4 ", "the host's root"),
        ("PWD=/", "PWD=/\0SSH_AUTH_SOCK=/x", "more variables"),
        (NONCE + "\0", "else\0", "did not run"),
        ("Seccomp:\t2\n", "", "no system call filter"),
        ("CapEff:\t0000000000000000\n", "", "capabilities"),
    ],
)
def test_each_thing_that_is_missing_is_noticed(old: str, new: str, noticed: str) -> None:
    assert old in GOOD
    assert noticed in wrong(GOOD.replace(old, new).encode(), NONCE)


def test_nothing_said_is_not_run() -> None:
    assert wrong(b"", NONCE) == "the command did not run"
    assert wrong(b"\xff\0\n:\t\n", NONCE) == "the command did not run"


def test_the_self_test_is_an_ordinary_plan() -> None:
    made = plan(NONCE)
    assert made.access("/usr/bin/cat") == "read"
    assert made.access("/etc/passwd") == "none"
    assert made.environment() == {"STADDLE_CANARY": NONCE}
