"""connect() under the Landlock profiles is a question to a supervisor; seccompy's listener reads it."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from seccompy.notify import Listener, pidfd_getfd, pidfd_open

from staddle.linux import seccomp, syscalls
from tests.support.seccomp_child import PROGRAMS, confine, under

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
