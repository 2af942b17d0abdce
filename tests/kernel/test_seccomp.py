"""The kernel, under our filters, answers as the rules say; connect() is a question to a supervisor."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import signal
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from seccompy.notify import Listener, pidfd_getfd, pidfd_open

from staddle.linux import seccomp, syscalls
from staddle.linux.seccomp.language import NOTIFY
from staddle.linux.seccomp.rules import KERNEL_SURFACE, RULES
from tests.support.seccomp_child import (
    INSIDE,
    PROGRAMS,
    Killed,
    answers,
    become_ordinary,
    confine,
    in_child,
    in_namespaces,
    raw,
    said,
    under,
)
from tests.unit.linux.seccomp_inputs import witnesses

every_profile = pytest.mark.parametrize("profile", seccomp.PROFILES)
on_x86_64 = pytest.mark.skipif(syscalls.architecture() != "x86_64", reason="machine code of x86_64")

# Where the kernel says the same without the filter: it wants a capability of the machine's own
# namespace, or a sysctl is set, or (the last two) the argument that is tried is worth nothing.
SECOND_LINE = {*KERNEL_SURFACE[0].calls, "bpf", "perf_event_open", "userfaultfd", "fanotify_init"} | {
    "socket",
    "fchmod",
}


_controls: dict[tuple[str, tuple[int, ...]], int] = {}


def controls(calls: list[tuple[str, tuple[int, ...]]]) -> list[int]:
    """What the kernel says to each without a filter: the same for every profile, so that it is asked once."""
    new = [call for call in calls if call not in _controls]
    _controls.update(zip(new, answers(None, new), strict=True))
    return [_controls[call] for call in calls]


@pytest.mark.slow
@pytest.mark.same_for_everyone
@every_profile
def test_every_rule_is_what_the_kernel_answers(profile: str) -> None:
    tried = [
        (call, arguments, rule)
        for rule in RULES[profile]
        for call in rule.calls
        if syscalls.number(call) is not None
        for arguments in witnesses(RULES[profile], rule, call)
    ]
    calls = [(call, arguments) for call, arguments, _ in tried]
    answered, without = answers(profile, calls), controls(calls)
    differs: dict[tuple[str, str], bool] = {}
    for (call, arguments, rule), answer, control in zip(tried, answered, without, strict=True):
        # A request to a supervisor that is not there is ENOSYS: it fails closed.
        expected = -errno.ENOSYS if rule.answer == NOTIFY else -(rule.answer.code & 0xFFFF)
        shown = f"{call}{tuple(hex(argument) for argument in arguments)}"
        assert answer == expected, f"{shown} is {said(answer)}, not {said(expected)}"
        if control != -errno.ENOSYS:  # else this kernel does not have it
            differs[call, rule.why] = differs.get((call, rule.why), False) or answer != control
    indistinct = {call for (call, _), different in differs.items() if not different}
    assert indistinct <= SECOND_LINE, "these calls fail in this way without the filter as well"


# Things worth naming: they exist on the host, and namespaces or Landlock alone do not stop them.
NOTABLE = [
    ("a vsock, which leaves every network namespace", "socket", (40, 1, 0), errno.EAFNOSUPPORT),
    ("a packet socket", "socket", (17, 3, 0), errno.EAFNOSUPPORT),
    ("a packet socket by its old name", "socket", (2, 10, 0), errno.ESOCKTNOSUPPORT),
    ("a family hidden by high bits", "socket", (1 << 32 | 17, 3, 0), errno.EAFNOSUPPORT),
    ("kernel events by netlink", "socket", (16, 3, 15), errno.EPROTONOSUPPORT),
    ("multipath TCP", "socket", (2, 1, 262), errno.EPROTONOSUPPORT),
    ("multipath TCP with flags", "socket", (10, 1 | 0x80000 | 0x800, 262), errno.EPROTONOSUPPORT),
    ("a ping socket", "socket", (2, 2, 1), errno.EPROTONOSUPPORT),
    ("a raw socket", "socket", (10, 3, 58), errno.ESOCKTNOSUPPORT),
    ("TIOCSTI with high bits (CVE-2019-10063)", "ioctl", (0, 1 << 32 | 0x5412, 0), errno.EPERM),
    ("TIOCLINUX with all high bits", "ioctl", (0, 0xFFFFFFFF << 32 | 0x541C, 0), errno.EPERM),
    ("a time namespace", "unshare", (0x80,), errno.EPERM),
    ("a user namespace", "unshare", (0x10000000,), errno.EPERM),
    ("a namespace with CLONE_FS", "unshare", (0x20000200,), errno.EPERM),
    ("a flag nobody knows", "unshare", (1 << 40,), errno.EPERM),
    ("a signal to PID 1, with high bits", "kill", (1 << 32 | 1, 0), errno.EPERM),
]


@pytest.mark.same_for_everyone
@pytest.mark.parametrize(
    ("call", "arguments", "error"), [row[1:] for row in NOTABLE], ids=[r[0] for r in NOTABLE]
)
def test_what_is_worth_naming_is_refused(call: str, arguments: tuple[int, ...], error: int) -> None:
    tried = [(call, (*arguments, 0, 0, 0, 0, 0)[:6])]
    assert [said(answer) for answer in answers("namespaces", tried)] == [errno.errorcode[error]]
    assert answers(None, tried) != [-error], "the control fails in the same way"


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("number", [337, 400, 423, 470, 471, 600, 0x40000000 | 39, 0x7FFFFFFF, 0x80000027])
def test_numbers_that_are_no_call_do_not_exist(number: int) -> None:
    assert under("namespaces", lambda: raw(number, ())) == -errno.ENOSYS


@pytest.mark.same_for_everyone
@on_x86_64
@every_profile
def test_a_call_of_another_architecture_kills_the_process(profile: str) -> None:
    # mov eax, 20 (getpid of i386, writev of x86_64); int 0x80; ret
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\0\0\0\xcd\x80\xc3")
    i386_getpid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    with contextlib.suppress(Killed):  # a kernel without 32-bit programs
        assert under(None, lambda: i386_getpid() > 0)
    with pytest.raises(Killed) as caught:
        under(profile, i386_getpid)
    assert caught.value.signal == signal.SIGSYS


def whiteouts(directory: str) -> dict[str, str]:
    """Try to leave a character device 0:0 in the directory, in both ways there are."""
    found = {}
    path, other = os.fsencode(f"{directory}/file"), os.fsencode(f"{directory}/other")
    Path(directory, "file").touch()
    ways = {
        "mknodat": lambda: syscalls.call("mknodat", -100, os.fsencode(f"{directory}/made"), 0o020644, 0),
        "renameat2": lambda: syscalls.call("renameat2", -100, path, -100, other, 4),
    }
    for way, make in ways.items():
        try:
            make()
            found[way] = "made"
        except OSError as error:
            found[way] = errno.errorcode[error.errno or 0]
    return found


def test_an_overlay_whiteout_cannot_be_forged(tmp_path: Path) -> None:
    control, confined = tmp_path / "control", tmp_path / "confined"
    control.mkdir()
    confined.mkdir()
    assert under(None, lambda: whiteouts(str(control))) == {"mknodat": "made", "renameat2": "made"}
    assert all(stat.S_ISCHR((control / name).lstat().st_mode) for name in ("made", "file"))
    assert under("namespaces", lambda: whiteouts(str(confined))) == {"mknodat": "EPERM", "renameat2": "EPERM"}
    assert os.listdir(confined) == ["file"]


def setuid_files(directory: str) -> dict[str, str]:
    """Try to make a set-user-ID file in every way there is; remove what was made at once."""
    os.umask(0)
    kept = os.open(f"{directory}/kept", os.O_CREAT | os.O_RDWR, 0o755)
    at, kept_path, new = -100, os.fsencode(f"{directory}/kept"), os.fsencode(f"{directory}/new")
    mode = 0o4755
    how = struct.pack("QQQ", os.O_CREAT | os.O_RDWR, mode, 0)

    def temporary() -> None:
        unnamed = syscalls.call("openat", at, os.fsencode(directory), os.O_TMPFILE | os.O_RDWR, mode)
        name = os.fsencode(f"/proc/self/fd/{unnamed}")
        syscalls.call("linkat", at, name, at, new, 0x400)

    ways = {
        "chmod": lambda: syscalls.call("chmod", kept_path, mode),
        "fchmod": lambda: syscalls.call("fchmod", kept, mode),
        "fchmodat": lambda: syscalls.call("fchmodat", at, kept_path, mode),
        "fchmodat2": lambda: syscalls.call("fchmodat2", at, kept_path, mode, 0),
        "creat": lambda: syscalls.call("creat", new, mode),
        "open": lambda: syscalls.call("open", new, os.O_CREAT | os.O_RDWR, mode),
        "openat": lambda: syscalls.call("openat", at, new, os.O_CREAT | os.O_RDWR, mode),
        "openat2": lambda: syscalls.call("openat2", at, new, how, len(how)),
        "mknod": lambda: syscalls.call("mknod", new, stat.S_IFREG | mode, 0),
        "mknodat": lambda: syscalls.call("mknodat", at, new, stat.S_IFREG | mode, 0),
        "O_TMPFILE": temporary,
    }
    found = {}
    for way, make in ways.items():
        if way != "O_TMPFILE" and syscalls.number(way) is None:
            continue
        try:
            make()
        except OSError as error:
            found[way] = errno.errorcode[error.errno or 0]
            if found[way] == "ENOSYS" and way == "fchmodat2":
                del found[way]  # newer than this kernel
        for name in ("kept", "new"):
            path = f"{directory}/{name}"
            if os.path.exists(path) and os.stat(path).st_mode & stat.S_ISUID:
                found[way] = "made"
                os.chmod(path, 0o600)
        if os.path.exists(f"{directory}/new"):
            os.unlink(f"{directory}/new")
    return found


@pytest.mark.parametrize("profile", [name for name in seccomp.PROFILES if name.endswith("-nosuid")])
def test_no_way_makes_a_set_user_id_file(tmp_path: Path, profile: str) -> None:
    control, confined = tmp_path / "control", tmp_path / "confined"
    control.mkdir()
    confined.mkdir()
    without = under(None, lambda: setuid_files(str(control)))
    assert set(without.values()) == {"made"}
    refused = under(profile, lambda: setuid_files(str(confined)))
    assert refused == {way: "ENOSYS" if way == "openat2" else "EPERM" for way in without}


def limits_and_priorities(other: int) -> dict[str, str]:
    """Reach for a process of the same user that is not ours."""
    found = {}
    limit = struct.pack("QQ", 100, 100)
    ways = {
        "limit": lambda: syscalls.call("prlimit64", other, 0, limit, 0),
        "renice": lambda: syscalls.call("setpriority", 2, INSIDE, 1),
        "ionice": lambda: syscalls.call("ioprio_set", 3, INSIDE, 2 << 13 | 7),
    }
    for way, reach in ways.items():
        try:
            reach()
            found[way] = "reached"
        except OSError as error:
            found[way] = errno.errorcode[error.errno or 0]
    return found


@pytest.mark.parametrize("profile", [name for name in seccomp.PROFILES if not name.startswith("namespaces")])
def test_without_a_pid_namespace_no_other_process_of_the_user_is_limited_or_slowed(profile: str) -> None:
    def reach(chosen: str | None) -> dict[str, str]:
        """In a pid namespace made for the test, so that only its own processes can be hit."""

        def first() -> dict[str, str]:
            victim = os.fork()
            if victim == 0:
                signal.pause()
            try:
                return under(chosen, lambda: limits_and_priorities(victim))
            finally:
                os.kill(victim, signal.SIGKILL)
                os.waitpid(victim, 0)

        return in_namespaces(first)

    assert reach(None) == {"limit": "reached", "renice": "reached", "ionice": "reached"}
    assert reach(profile) == {"limit": "EPERM", "renice": "EPERM", "ionice": "EPERM"}


def test_a_filter_needs_no_new_privs() -> None:
    def load_only() -> None:
        become_ordinary()
        seccomp.load(PROGRAMS["namespaces"])

    with pytest.raises(OSError, match="was not loaded: no_new_privs is not set") as caught:
        in_child(load_only)
    assert caught.value.errno == errno.EACCES


@pytest.mark.parametrize(
    "program",
    [
        seccomp.program("namespaces")[:-8],  # cut off: the end is no return
        b"\x05\0\0\0\xff\0\0\0" * 2,  # jumps out of the program
        seccomp.program("namespaces", "aarch64")[:16] + b"\x20\0\0\0\x03\0\0\0",  # a load from an odd place
        b"\x06\0\0\0\0\0\xff\x7f" * 4097,  # too long
    ],
    ids=["cut", "jump", "load", "long"],
)
def test_a_damaged_filter_is_refused_whole(program: bytes) -> None:
    def load() -> None:
        confine(None)
        try:
            seccomp.load(program)
        finally:
            assert "Seccomp:\t0" in Path("/proc/self/status").read_text()

    with pytest.raises(OSError, match="was not loaded") as caught:
        in_child(load)
    assert caught.value.errno == errno.EINVAL


@every_profile
def test_a_loaded_filter_is_in_force_and_stays_across_exec(profile: str) -> None:
    def status() -> str:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(writing, 1)
            os.execv("/bin/cat", ["cat", "/proc/self/status"])  # noqa: S606
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return text

    assert "Seccomp:\t2" in under(profile, status)


def with_another_thread(start: bool, flags: int) -> str:
    """Load with `flags` while a second thread runs, which has a filter of its own if `start`."""
    go, done, tried = threading.Event(), threading.Event(), []

    def second() -> None:
        if start:
            confine("landlock-open")
        done.set()
        go.wait()
        try:
            syscalls.call("mount", 0, 0, 0, 0, 0)
        except OSError as error:
            tried.append(errno.errorcode[error.errno or 0])

    thread = threading.Thread(target=second)
    confine(None)
    thread.start()
    done.wait()
    try:
        seccomp.load(PROGRAMS["namespaces"], flags)
    except OSError as error:
        tried.append(f"{errno.errorcode[error.errno or 0]}: {error.strerror}")
    go.set()
    thread.join()
    return " ".join(tried)


def test_all_threads_get_the_filter_when_asked_or_none_and_an_error() -> None:
    def ordinary(start: bool, flags: int) -> str:
        become_ordinary()
        return with_another_thread(start, flags)

    # Without the filter the kernel wants to read the type's name at NULL; or has no right to.
    assert in_child(lambda: with_another_thread(False, 0)) in ("EFAULT", "EPERM")
    assert in_child(lambda: ordinary(False, seccomp.ALL_THREADS)) == "EPERM"
    answer = in_child(lambda: ordinary(True, seccomp.ALL_THREADS))
    assert answer.startswith("ESRCH: the system call filter was not loaded: thread ")


def test_a_datagram_pair_could_be_aimed_at_a_host_socket_which_is_why_it_is_refused(tmp_path: Path) -> None:
    """The reason for the socket rules of the Landlock profiles, tried with and without them."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server.bind(str(tmp_path / "log"))
    server.setblocking(False)
    address = str(tmp_path / "log")

    def send(kind: int, pair: bool) -> str:
        try:
            if pair:
                ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
                theirs.setblocking(False)
            else:
                ours = socket.socket(socket.AF_UNIX, kind)
            ours.sendto(b"x", address)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return "sent"

    def arrived() -> bool:
        try:
            return bool(server.recv(10))
        except BlockingIOError:
            return False

    with server:
        for pair in (True, False):
            assert under(None, lambda pair=pair: send(socket.SOCK_DGRAM, pair)) == "sent"
            assert arrived()
            assert under("landlock", lambda pair=pair: send(socket.SOCK_DGRAM, pair)) == "EPERM"
            assert under("landlock-open", lambda pair=pair: send(socket.SOCK_RAW, pair)) == "EPERM"
            assert not arrived()
        # What stays cannot be aimed: the kernel refuses the address, or ignores it.
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            for pair in (True, False):
                answer = under("landlock", lambda kind=kind, pair=pair: send(kind, pair))
                assert answer in ("EISCONN", "ENOTCONN", "ENOTSUP", "sent")
                assert not arrived()


# ---------------------------------------------------------------- the supervisor's listener


supervised = pytest.mark.parametrize(
    "profile", [name for name in seccomp.PROFILES if name.startswith("landlock")]
)


@contextmanager
def supervised_child(
    profile: str, function: Callable[[], int], flags: int = 0
) -> Iterator[tuple[int, Listener]]:
    """A child under the filter that runs `function` and exits with what it returns; and its listener."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(30)
            descriptor = confine(profile, seccomp.NEW_LISTENER | flags)
            socket.send_fds(theirs, [b"x"], [descriptor])
            os.close(descriptor)
            os._exit(function())
        finally:
            os._exit(99)
    theirs.close()
    _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
    ours.close()
    with Listener(descriptor) as listener:
        try:
            yield child, listener
        finally:
            if os.waitpid(child, os.WNOHANG) == (0, 0):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def connect_to(path: str) -> Callable[[], int]:
    """Connect, say which error it was; with none, send a word."""

    def connect() -> int:
        with socket.socket(socket.AF_UNIX) as client:
            failed = client.connect_ex(path)
            if not failed:
                client.sendall(b"hello")
            return failed

    return connect


def status_of(child: int) -> int:
    """Wait without reaping, so that the context above can still end it."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT).si_status


@supervised
def test_the_supervisor_sees_the_call_and_its_answer_is_the_callers(profile: str, tmp_path: Path) -> None:
    with supervised_child(profile, connect_to(str(tmp_path / "none"))) as (child, listener):
        request = listener.recv()
        assert (request.pid, request.nr) == (child, syscalls.number("connect"))
        assert request.arch == syscalls.AUDIT_ARCH[syscalls.architecture()]
        listener.respond(request.id, error=errno.EACCES)
        assert status_of(child) == errno.EACCES


@supervised
def test_the_supervisor_can_connect_in_the_callers_place(profile: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "server"))
        server.listen(1)
        with supervised_child(profile, connect_to(str(tmp_path / "server"))) as (child, listener):
            request = listener.recv()
            handle = pidfd_open(request.pid)
            with socket.socket(fileno=pidfd_getfd(handle, request.args[0])) as theirs:
                theirs.connect(str(tmp_path / "server"))
            os.close(handle)
            listener.respond(request.id)
            connection, _ = server.accept()
            with connection:
                assert connection.recv(10) == b"hello"
            assert status_of(child) == 0


@supervised
def test_without_a_supervisor_nothing_connects(profile: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "server"))
        server.listen(1)
        connect = connect_to(str(tmp_path / "server"))
        assert under(None, connect) == 0
        assert under(profile, connect) == errno.ENOSYS
        with supervised_child(profile, connect) as (child, listener):
            listener.recv()
            listener.close()  # it dies while it was being asked
            assert status_of(child) == errno.ENOSYS


@supervised
def test_nobody_inside_can_answer_in_the_supervisors_place(profile: str) -> None:
    def take_over() -> int:
        try:
            seccomp.load(PROGRAMS[profile], seccomp.NEW_LISTENER)
        except OSError as error:
            return error.errno or 0
        return 0

    with supervised_child(profile, take_over) as (child, _):
        assert status_of(child) == errno.EPERM


def test_network_connects_reach_the_supervisor_too() -> None:
    """Not by choice: a filter sees a descriptor's number, not its family."""

    def connect() -> int:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", 9))

    with supervised_child("landlock-open", connect) as (child, listener):
        request = listener.recv()
        assert request.nr == syscalls.number("connect")
        listener.respond(request.id, error=errno.ENETUNREACH)
        assert status_of(child) == errno.ENETUNREACH


def test_the_caller_can_be_held_against_signals_that_do_not_kill(tmp_path: Path) -> None:
    """Go interrupts its own threads all the time; a request must survive that (Linux 5.19)."""

    def connect() -> int:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        return connect_to(str(tmp_path / "none"))()

    with supervised_child("landlock", connect, seccomp.WAIT_KILLABLE) as (child, listener):
        request = listener.recv()
        os.kill(child, signal.SIGUSR1)
        assert listener.valid(request.id)
        listener.respond(request.id, error=errno.EACCES)
        assert status_of(child) == errno.EACCES


def test_the_listener_is_not_inherited_by_programs() -> None:
    def close_on_exec() -> int:
        return confine("landlock", seccomp.NEW_LISTENER)

    def inheritable() -> bool:
        return os.get_inheritable(close_on_exec())

    assert under(None, inheritable) is False
