"""The last look finds what is missing, whatever said that it is there."""

from __future__ import annotations

import pytest

from staddle.inside import verify
from staddle.ipc.namespace_spec import NamespaceSpec

ASKED = NamespaceSpec(5, 1, (), 0, 1000, 1000, b"sandbox", -1, (), b"", (), (), ())
NONE = b"".join(b"Cap%s:\t%016x\n" % (name, 0) for name in (b"Inh", b"Prm", b"Eff", b"Bnd", b"Amb"))
GOOD = {
    "status": b"Name:\tx\nPid:\t1\nNSpid:\t1\nNoNewPrivs:\t1\n" + NONE,
    "uid_map": b"      1000       1001          1\n",
    "mountinfo": b"1 2 0:5 / / ro,nosuid - tmpfs tmpfs rw\n3 1 0:6 / /proc rw - proc proc rw\n",
}


def test_nothing_is_missing_in_a_sandbox_as_it_should_be() -> None:
    assert verify.wrong(ASKED, GOOD) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "what"),
    [
        ("status", b"NSpid:\t1\n", b"NSpid:\t17\n", "PID 1"),
        ("status", b"NSpid:\t1\n", b"NSpid:\t1\t17\n", "PID 1"),
        ("status", b"NSpid:\t1\n", b"", "PID 1"),
        ("mountinfo", b"/proc rw", b"/proc ro,nosuid", "/proc of its own"),
        ("status", b"NoNewPrivs:\t1", b"NoNewPrivs:\t0", "new privileges"),
        ("status", b"CapBnd:\t0", b"CapBnd:\t1", "capabilities"),
        ("status", b"CapAmb", b"Amb", "capabilities"),
        ("uid_map", b"1000 ", b"0 ", "user of its own"),
        ("uid_map", b"1001", b"0", "than root"),
        ("uid_map", b" 1\n", b" 4294967295\n", "user of its own"),
        ("uid_map", b"\n", b"\n1 2 3\n", "user of its own"),
        ("mountinfo", b"- tmpfs", b"- ext4", "root of its own"),
    ],
)
def test_what_is_missing_is_named(file: str, old: bytes, new: bytes, what: str) -> None:
    assert old in GOOD[file]
    missing = verify.wrong(ASKED, {**GOOD, file: GOOD[file].replace(old, new)})
    assert any(what in sentence for sentence in missing)


def test_the_proc_of_a_container_must_not_be_writable() -> None:
    asked = ASKED.replace(outer_processes=1)
    status = GOOD["status"].replace(b"Pid:\t1\nNSpid:\t1\n", b"Pid:\t40\nNSpid:\t40\t1\n")
    read_only = GOOD["mountinfo"].replace(b"/proc rw", b"/proc ro,nosuid")
    assert verify.wrong(asked, {**GOOD, "status": status, "mountinfo": read_only}) == []
    (missing,) = verify.wrong(asked, {**GOOD, "status": status})
    assert "cannot be written" in missing
