"""A list of calls does the same in machine code and in Python, and the shipped code is its source's."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle.linux import call_list, syscalls
from staddle.linux.call_list import AT_FDCWD, Buffer, CallList, Slot
from staddle.linux.call_list.__main__ import _SOURCE, build, compiler

STATUS = b"/proc/self/status"


@pytest.fixture(params=["machine code", "Python"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    assert call_list.use_machine_code()
    if request.param == "Python":
        call_list._native.clear()
    yield request.param
    call_list._native.clear()


def carried_out(calls: CallList, **values: int) -> CallList:
    calls.prepare()
    calls.carry_out()
    return calls


def started(calls: CallList, *words: bytes) -> None:
    """Add the exec of a program."""
    pointers = [calls.address(word) for word in words]
    argv = calls.address(b"".join(each.to_bytes(8, sys.byteorder) for each in (*pointers, 0)))
    calls.call("execve", words[0], argv, 0, what=f"{words[0]!r} cannot be run")


def test_a_result_is_an_argument_of_later_calls(tmp_path: Path) -> None:
    calls = CallList()
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    file = calls.call("openat", AT_FDCWD, os.fsencode(tmp_path / "new"), flags, 0o600, what="open")
    calls.call("write", file, b"abc", 3, what="write")
    calls.call("close", file, what="close")
    carried_out(calls)
    assert (tmp_path / "new").read_text() == "abc"


def test_a_list_can_be_carried_out_again_with_other_values(tmp_path: Path) -> None:
    calls = CallList()
    file = calls.slot()
    calls.call("write", file, b"x", 1, what="write")
    calls.prepare()
    for name in "ab":
        with open(tmp_path / name, "wb") as opened:
            calls.carry_out({file: opened.fileno()})
    assert [(tmp_path / name).read_text() for name in "ab"] == ["x", "x"]


def test_the_first_failure_ends_the_list_and_is_described(tmp_path: Path) -> None:
    calls = CallList()
    calls.call("chdir", b"/nowhere", what="", may_fail=True)
    calls.call("chdir", b"/nowhere", what="the directory cannot be entered")
    calls.call("mkdirat", AT_FDCWD, os.fsencode(tmp_path / "never"), 0o700, what="")
    with pytest.raises(OSError, match=r"the directory cannot be entered: No such file") as caught:
        carried_out(calls)
    assert caught.value.errno == errno.ENOENT
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "how", "holds"),
    [
        (b"\nName", "within", False),
        (b"\nPPid:\t", "within", True),
        (b"\nPPid:\t", "absent", False),
        (b"\nPid:\t0\n", "absent", True),
        (b"Name:", "whole", False),
        (b"", "whole", False),
    ],
)
def test_a_check_stops_the_list_unless_it_holds(text: bytes, how: str, holds: bool) -> None:
    calls = CallList()
    room = Buffer(1 << 16)
    calls.check(room, calls.read(STATUS, room, what="read"), text, how, what="it would be without it")
    if holds:
        carried_out(calls)
        return
    with pytest.raises(OSError, match=r"it would be without it$"):
        carried_out(calls)


def test_the_whole_of_a_text_is_all_of_it_and_no_less(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0 1 2\n")
    for text, holds in ((b"0 1 2\n", True), (b"0 1 2", False), (b" 1 2\n", False), (b"0 1 2\n3", False)):
        calls, room = CallList(), Buffer(64)
        length = calls.read(os.fsencode(tmp_path / "file"), room, what="read")
        calls.check(room, length, text, "whole", what="another text")
        calls.prepare()
        if holds:
            calls.carry_out()
        else:
            with pytest.raises(OSError, match="another text"):
                calls.carry_out()


def test_a_file_that_does_not_fit_is_a_failure_and_not_a_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(64))
    calls = CallList()
    calls.read(os.fsencode(tmp_path / "file"), Buffer(64), what="too long")
    with pytest.raises(OSError, match="too long"):
        carried_out(calls)


def test_a_value_is_expected() -> None:
    calls = CallList()
    calls.expect(calls.call("getpid", what=""), os.getpid(), what="another")
    carried_out(calls)
    calls = CallList()
    calls.expect(calls.call("getpid", what=""), 1, what="another")
    with pytest.raises(OSError, match=r"another$"):
        carried_out(calls)


def test_a_child_makes_its_calls_and_the_rest_are_ours(tmp_path: Path) -> None:
    calls = CallList()
    ours = os.fsencode(tmp_path / "ours")
    pid, end = calls.fork(what="fork")
    calls.call("setsid", what="setsid")
    calls.call("chdir", os.fsencode(tmp_path), what="chdir")
    started(calls, b"/bin/mkdir", b"theirs")
    end()
    calls.call("mkdirat", AT_FDCWD, ours, 0o700, what="mkdir")
    before = os.getcwd()
    carried_out(calls)
    assert os.waitpid(calls[pid], 0)[1] == 0
    assert sorted(os.listdir(tmp_path)) == ["ours", "theirs"]
    assert (os.getcwd(), calls[pid] != os.getsid(0)) == (before, True)


@pytest.mark.parametrize("what", ["a step", "the exec"])
def test_a_child_that_fails_says_where_and_never_becomes_anything(what: str, tmp_path: Path) -> None:
    calls = CallList()
    pid, end = calls.fork(what="fork")
    if what == "a step":
        calls.call("chdir", b"/nowhere", what="a step")
        started(calls, b"/usr/bin/touch", os.fsencode(tmp_path / "never"))
    else:
        calls.call("chdir", b"/", what="a step")
        started(calls, b"/nowhere/program")
    end()
    with pytest.raises(OSError, match=f"{'a step' if what == 'a step' else 'cannot be run'}: No such file"):
        carried_out(calls)
    assert os.waitpid(calls[pid], 0)[0] == calls[pid]
    assert os.listdir(tmp_path) == []


def test_a_child_that_is_held_does_nothing_until_it_is_killed() -> None:
    calls = CallList()
    held = calls.hold(0, what="hold")
    carried_out(calls)
    try:
        assert os.waitpid(calls[held], os.WNOHANG) == (0, 0)
        assert Path(f"/proc/{calls[held]}/stat").read_text().split()[3] == str(os.getpid())
    finally:
        os.kill(calls[held], signal.SIGKILL)
    assert os.waitpid(calls[held], 0)[1] == signal.SIGKILL


def test_a_list_can_be_read() -> None:
    calls = CallList()
    file = calls.call("openat", AT_FDCWD, b"/x", 0, 0, what="")
    calls.call("close", file, what="")
    assert calls.text() == f"openat(-100, b'/x', 0, 0) -> ${file}\nclose(${file}) -> ${file + 1}"


def test_a_call_without_a_number_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(syscalls.NUMBERS, "nothing", (None, None))
    with pytest.raises(OSError, match="does not exist on"):
        CallList().call("nothing", what="")


def test_where_no_code_may_be_run_python_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_list, "code_path", lambda machine: f"/proc/self/nowhere/{machine}")
    call_list._native.clear()
    assert not call_list.use_machine_code()
    test_a_value_is_expected()


@pytest.mark.parametrize("machine", syscalls.COLUMN)
def test_the_shipped_code_is_what_the_source_compiles_to(machine: str) -> None:
    shipped = Path(call_list.code_path(machine)).read_bytes()
    assert 0 < len(shipped) <= 1024
    if compiler(machine) is None:
        return
    version = subprocess.run([compiler(machine) or "", "-dumpversion"], capture_output=True, check=True)
    if version.stdout.split(b".")[0] == BUILT_WITH:
        assert build(machine) == shipped, "make call-list"
    else:
        assert build(machine)  # another compiler makes other bytes of the same source


BUILT_WITH = b"12"


def test_source_and_python_agree_on_the_words() -> None:
    text = _SOURCE.read_text()
    words = {name: int(value) for name, value in re.findall(r"\b(FORK|HOLD|FIND|WHOLE) = (-\d)", text)}
    assert words == {name: getattr(call_list, f"_{name}") for name in ("FORK", "HOLD", "FIND", "WHOLE")}


def test_control_the_tools_of_this_machine_are_found() -> None:
    assert compiler(syscalls.architecture()) == shutil.which(f"{syscalls.architecture()}-linux-gnu-gcc")
    assert isinstance(CallList().slot(), Slot)
