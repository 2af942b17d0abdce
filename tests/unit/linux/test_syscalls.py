"""Call numbers are the kernel's on both architectures, and a failing call raises."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from pathlib import Path

import pytest
import seccompy
from seccompy.syscalls import AARCH64_SYSCALLS, X86_64_SYSCALLS

from staddle.linux import syscalls

HEADERS = {
    # aarch64 uses the generic numbers; some names there are chosen by word size (__NR3264_).
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
}
TABLES = {"aarch64": AARCH64_SYSCALLS, "x86_64": X86_64_SYSCALLS}
# Only the kernel itself makes these two (from its probe trampolines); tables leave them out at times.
KERNEL_MADE = {"uprobe", "uretprobe"}


@pytest.mark.parametrize("machine", syscalls.COLUMN)
def test_numbers_are_those_of_the_kernel_headers(machine: str) -> None:
    header = next((Path(name) for name in HEADERS[machine] if Path(name).exists()), None)
    if header is None:
        pytest.skip("the headers of the C library are not installed; seccompy's table is compared anyway")
    pairs = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", header.read_text(), re.MULTILINE)
    in_header = {name: int(number) for name, number in reversed(pairs)}
    assert len(in_header) > 300
    newest = max(in_header.values())
    for name, numbers in syscalls.NUMBERS.items():
        ours = numbers[syscalls.COLUMN[machine]]
        if (ours is None or ours < newest) and name not in KERNEL_MADE:
            assert in_header.get(name) == ours, name


@pytest.mark.parametrize("machine", syscalls.COLUMN)
def test_numbers_are_those_of_seccompy(machine: str) -> None:
    for name, numbers in syscalls.NUMBERS.items():
        if name not in KERNEL_MADE:
            assert TABLES[machine].get(name) == numbers[syscalls.COLUMN[machine]], name


def test_every_call_with_a_number_of_its_own_is_listed_once() -> None:
    assert list(syscalls.NUMBERS) == sorted(syscalls.NUMBERS)
    for column in syscalls.COLUMN.values():
        numbers = [pair[column] for pair in syscalls.NUMBERS.values() if pair[column] is not None]
        assert len(numbers) == len(set(numbers))
        assert max(numbers) <= syscalls.LAST_KNOWN


def test_architectures_are_reported_as_the_kernel_does() -> None:
    assert syscalls.AUDIT_ARCH == {
        "aarch64": seccompy.AUDIT_ARCH_AARCH64,
        "x86_64": seccompy.AUDIT_ARCH_X86_64,
    }


def test_a_call_is_made_by_name() -> None:
    assert syscalls.call("getpid") == os.getpid()
    assert syscalls.call("getppid") == os.getppid()


def test_a_failing_call_raises_with_its_name_and_error() -> None:
    with pytest.raises(FileNotFoundError, match="openat") as caught:
        syscalls.call("openat", -100, b"/nonexistent", os.O_RDONLY, 0)
    assert caught.value.errno == errno.ENOENT


def test_integers_bytes_and_null_arrive_as_they_are(tmp_path) -> None:
    path = os.fsencode(tmp_path / "caf\udce9")  # not UTF-8
    descriptor = syscalls.call("openat", -100, path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        assert os.fsencode(os.readlink(f"/proc/self/fd/{descriptor}")) == path
    finally:
        os.close(descriptor)
    # -1 and 2**64 - 1 are the same register; a structure is filled in through its address
    limit = (ctypes.c_uint64 * 2)()
    assert syscalls.call("prlimit64", 0, 7, None, ctypes.addressof(limit)) == 0
    assert limit[0] > 0
    for fd in (-1, 2**64 - 1):
        with pytest.raises(OSError, match="Bad file descriptor"):
            syscalls.call("ioctl", fd, 0x5401, 0)


def test_a_name_this_machine_lacks_is_enosys_and_a_wrong_name_is_a_bug(monkeypatch) -> None:
    monkeypatch.setattr(syscalls, "architecture", lambda: "aarch64")
    with pytest.raises(OSError, match="chmod does not exist on aarch64") as caught:
        syscalls.call("chmod", b"/", 0)
    assert caught.value.errno == errno.ENOSYS
    with pytest.raises(KeyError):
        syscalls.call("no_such_call")


def test_a_machine_without_a_table_is_an_error_that_says_so(monkeypatch) -> None:
    uname = os.uname_result(("Linux", "host", "6.1", "#1", "riscv64"))
    monkeypatch.setattr(os, "uname", lambda: uname)
    monkeypatch.setattr(syscalls, "_machine", "")  # as before the first call
    with pytest.raises(OSError, match="no system call table for riscv64; staddle runs on aarch64, x86_64"):
        syscalls.architecture()
