"""What ordinary programs do still works under the filters. Each is tried without one first."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import pty
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Callable
from multiprocessing import Pool
from pathlib import Path

import pytest

from staddle.linux import seccomp, syscalls
from tests.support.seccomp_child import LIBC, under

PTRACE_TRACEME, PTRACE_CONT, PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_DETACH, PTRACE_SYSCALL = (
    0,
    7,
    12,
    13,
    17,
    24,
)
Benign = Callable[[], object]
everywhere: list[Benign] = []
with_network: list[Benign] = []
with_namespaces: list[Benign] = []


def works(*lists: list[Benign]) -> Callable[[Benign], Benign]:
    def note(function: Benign) -> Benign:
        for chosen in lists or (everywhere,):
            chosen.append(function)
        return function

    return note


@works()
def threads_start() -> None:
    seen: list[int] = []
    started = [threading.Thread(target=seen.append, args=(number,)) for number in range(8)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(60)
    assert sorted(seen) == list(range(8))


@works()
def processes_start_in_every_way() -> None:
    assert subprocess.run(["/bin/echo", "a"], capture_output=True, check=True).stdout == b"a\n"
    assert subprocess.run(["/bin/sh", "-c", "exit 3"], preexec_fn=os.setsid, check=False).returncode == 3
    child = os.posix_spawn("/bin/true", ["true"], {})
    assert os.waitpid(child, 0)[1] == 0
    child = os.fork()
    if child == 0:
        program = os.open("/bin/true", os.O_RDONLY)
        os.execve(program, ["true"], {})  # noqa: S606 - execveat
    assert os.waitpid(child, 0)[1] == 0
    with Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]


@works()
def own_children_can_be_signalled_and_traced() -> None:
    child = os.fork()
    if child == 0:
        LIBC.ptrace(PTRACE_TRACEME, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(7)
    assert os.WIFSTOPPED(os.waitpid(child, 0)[1])
    assert LIBC.ptrace(PTRACE_CONT, child, 0, 0) == 0
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    child = os.fork()
    if child == 0:
        signal.pause()
    handle = os.pidfd_open(child)
    signal.pidfd_send_signal(handle, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    signal.raise_signal(signal.SIGCONT)
    os.kill(os.getpid(), 0)


@works()
def sanitizers_and_debuggers_read_memory() -> None:
    secret = ctypes.create_string_buffer(b"stack", 5)
    copy = ctypes.create_string_buffer(5)
    here = struct.pack("PN", ctypes.addressof(copy), 5)
    there = struct.pack("PN", ctypes.addressof(secret), 5)
    assert syscalls.call("process_vm_readv", os.getpid(), here, 1, there, 1, 0) == 5
    assert copy.raw == b"stack"


@works()
def a_persona_can_be_asked_and_randomisation_switched_off() -> None:
    persona = syscalls.call("personality", 0xFFFFFFFF)
    syscalls.call("personality", persona | 0x0040000)
    assert syscalls.call("personality", 0xFFFFFFFF) & 0x0040000


@works()
def the_core_limit_seems_to_change() -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    syscalls.call("setrlimit", resource.RLIMIT_CORE, struct.pack("QQ", 0, 0))
    resource.getrlimit(resource.RLIMIT_CORE)
    assert resource.prlimit(0, resource.RLIMIT_CORE)


@works()
def other_limits_really_change() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 64
    assert resource.prlimit(0, resource.RLIMIT_NOFILE)[0] == 64
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + 1)
    assert os.getpriority(os.PRIO_USER, os.getuid()) is not None


@works()
def files_of_all_harmless_kinds_can_be_made() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        os.mkfifo(directory / "fifo")
        os.mknod(directory / "file")
        os.mknod(directory / "socket", 0o140600)
        os.mkdir(directory / "shared", 0o2775)  # the kernel drops the bit, the call must work
        os.chmod(directory / "file", 0o755)
        os.chmod(directory / "shared", 0o1777)
        os.close(os.open(directory / "new", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        os.close(os.open(name, os.O_TMPFILE | os.O_RDWR, 0o600))
        # Without O_CREAT the mode is whatever the register held.
        os.close(syscalls.call("openat", -100, os.fsencode(directory / "new"), os.O_RDONLY, 0o6777))
        source, target = os.fsencode(directory / "new"), os.fsencode(directory / "renamed")
        syscalls.call("renameat2", -100, source, -100, target, 1)  # RENAME_NOREPLACE
        assert sorted(os.listdir(directory)) == ["fifo", "file", "renamed", "shared", "socket"]


@works()
def a_terminal_of_its_own_works() -> None:
    master, slave = pty.openpty()
    termios.tcgetattr(slave)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    os.write(master, b"line\n")
    assert os.read(slave, 100) == b"line\n"
    assert fcntl.ioctl(slave, termios.FIONREAD, b"\0" * 4) == b"\0" * 4
    if os.fork() == 0:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        os._exit(0 if os.tcgetpgrp(slave) == os.getpid() else 1)
    assert os.wait()[1] == 0


@works()
def it_can_confine_itself_further() -> None:
    allow_all = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
    assert seccomp.load(allow_all) == 0
    version = LIBC.syscall(syscalls.number("landlock_create_ruleset"), 0, 0, 1)
    assert version >= 1 or ctypes.get_errno() in (errno.ENOSYS, errno.EOPNOTSUPP)  # not in every kernel
    LIBC.prctl(15, b"renamed", 0, 0, 0)
    syscalls.call("unshare", 0x200 | 0x400 | 0x40000)  # CLONE_FS, CLONE_FILES, CLONE_SYSVSEM


@works()
def memory_and_watches_work() -> None:
    memory = os.memfd_create("x")
    os.truncate(memory, mmap.PAGESIZE)
    mmap.mmap(memory, mmap.PAGESIZE).write(b"x")
    assert LIBC.inotify_init1(0) >= 0
    assert LIBC.syscall(syscalls.number("gettid")) == os.getpid()


@works()
def stream_sockets_within_the_family_work() -> None:
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        ours.sendall(b"x")
        assert theirs.recv(1) == b"x"
        with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX, kind) as server:
            server.bind(f"{name}/s")


@works(with_network, with_namespaces)
def unix_sockets_listen() -> None:
    """Not with landlock and a list of hosts: there the supervisor has them listen."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX, kind) as server:
            server.bind(f"{name}/s")
            server.listen(1)


@works(with_network, with_namespaces)
def inet_and_route_sockets_work() -> None:
    for family in (socket.AF_INET, socket.AF_INET6):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            for flags in (0, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK):
                socket.socket(family, kind | flags).close()
    socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP).close()
    assert socket.if_nameindex()
    with socket.socket() as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        sender.sendto(b"x", ("127.0.0.1", 9))
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@works(with_namespaces)
def connecting_datagrams_and_system_v_work() -> None:
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{name}/s")
        server.listen(1)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{name}/s")
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        client.connect(server.getsockname())
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.send(b"x")
    assert theirs.recv(1) == b"x"
    segment = syscalls.call("shmget", 0, 4096, 0o600)
    syscalls.call("shmctl", segment, 0, 0)


def permitted(profile: str) -> list[Benign]:
    if profile.startswith("namespaces"):
        return everywhere + with_namespaces
    return everywhere + with_network if profile.startswith("landlock-open") else everywhere


CASES = [(profile, benign) for profile in seccomp.PROFILES for benign in permitted(profile)]


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("benign", everywhere + with_namespaces, ids=lambda benign: benign.__name__)
def test_it_works_without_a_filter(benign: Benign) -> None:
    under(None, benign)


@pytest.mark.same_for_everyone
@pytest.mark.parametrize(
    ("profile", "benign"), CASES, ids=[f"{case[0]}-{case[1].__name__}" for case in CASES]
)
def test_it_works_under_the_filter(profile: str, benign: Benign) -> None:
    under(profile, benign)


def test_the_core_limit_only_seemed_to_change() -> None:
    def set_and_see() -> tuple[int, int]:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        return resource.getrlimit(resource.RLIMIT_CORE)

    assert under(None, set_and_see) == (0, 0)
    assert under("namespaces", set_and_see) == resource.getrlimit(resource.RLIMIT_CORE)


def test_a_core_limit_whose_old_value_is_asked_for_is_an_honest_refusal() -> None:
    # Pretending would leave the caller's buffer as it was, and Python would return what lay in it.
    def set_and_ask() -> object:
        return resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))

    assert under(None, set_and_ask) == resource.getrlimit(resource.RLIMIT_CORE)
    with pytest.raises(PermissionError):
        under("namespaces", set_and_ask)


def test_debuggers_of_python_itself_see_threads() -> None:
    script = "import faulthandler, threading; threading.Thread(target=faulthandler.dump_traceback).start()"

    def run() -> int:
        return subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode

    assert under("landlock-nosuid", run) == 0


@pytest.mark.same_for_everyone
@pytest.mark.skipif(syscalls.architecture() != "x86_64", reason="the registers of x86_64")
@pytest.mark.parametrize("profile", [None, *seccomp.PROFILES])
def test_a_tracer_can_answer_a_call_in_the_kernels_place(profile: str | None) -> None:
    """strace's fault injection and others write -1 over the number, and their answer beside it."""
    orig_rax, rax, answer = 15, 10, 77

    def trace() -> int:
        child = os.fork()
        if child == 0:
            LIBC.ptrace(PTRACE_TRACEME, 0, 0, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(LIBC.syscall(syscalls.number("getppid")) & 0xFF)
        os.waitpid(child, 0)
        registers = (ctypes.c_ulonglong * 27)()
        address = ctypes.c_void_p(ctypes.addressof(registers))
        while registers[orig_rax] != syscalls.number("getppid"):
            LIBC.ptrace(PTRACE_SYSCALL, child, None, None)
            assert os.WIFSTOPPED(os.waitpid(child, 0)[1])
            LIBC.ptrace(PTRACE_GETREGS, child, None, address)
        registers[orig_rax], registers[rax] = 2**64 - 1, answer
        LIBC.ptrace(PTRACE_SETREGS, child, None, address)
        LIBC.ptrace(PTRACE_DETACH, child, None, None)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert under(profile, trace) == answer
