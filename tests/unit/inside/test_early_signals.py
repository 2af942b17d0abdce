"""A signal that comes when a command has started, and we have not yet heard of that, is the command's."""

from __future__ import annotations

import os
import signal
import socket
import time
import traceback
from collections.abc import Callable

import pytest

from staddle.inside import namespace_launcher, systemd_client, systemd_unit
from staddle.inside.child import HANDLED, Attendant
from staddle.inside.systemd_unit import SIGNAL, STARTED
from staddle.linux import process

pytestmark = pytest.mark.same_for_everyone


def in_a_child(work: Callable[[], int]) -> int:
    """Run `work` in a child with the signals blocked; its exit status."""
    pid = os.fork()
    if pid == 0:
        code, stderr = 99, open(os.dup(2), "w")  # noqa: SIM115 - what is tested may close its own
        try:
            process.block_signals(HANDLED)
            code = work()
        except BaseException:
            traceback.print_exc(file=stderr)
            stderr.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def sleeper() -> int:
    """A child that answers SIGTERM with the exit status 7."""
    pid = os.fork()
    if pid == 0:
        os._exit(7 if signal.sigtimedwait([signal.SIGTERM], 30) else 0)
    return pid


def test_what_is_there_to_read_is_read_at_once() -> None:
    def work() -> int:
        read, write = os.pipe()
        attendant, seen = Attendant(os.getpid()), list[bytes]()
        attendant.serve(read, lambda _: seen.append(os.read(read, 9)))
        attendant.serve_now(read)
        if seen:
            return 1
        os.write(write, b"x")
        attendant.serve_now(read)
        attendant.serve_now(write)  # it has no reader
        return 0 if seen == [b"x"] else 2

    assert in_a_child(work) == 0


def client(starter: int, control: socket.socket) -> systemd_client._Client:
    made = systemd_client._Client.__new__(systemd_client._Client)
    made._started, made._early, made._failure, made._code, made._output = False, 0, None, None, b""
    made._starter, made._control = starter, control  # type: ignore[assignment]
    made._words = os.open("/dev/null", os.O_RDONLY)
    return made


def test_the_client_leaves_it_to_the_unit_which_knows() -> None:
    def work() -> int:
        ours, unit = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine = client(sleeper(), ours)
        mine._pass_on(signal.SIGTERM)
        if unit.recv(99) != SIGNAL + b"%d" % signal.SIGTERM:
            return 1
        unit.send(STARTED)
        mine._receive_message()
        mine._pass_on(signal.SIGINT)  # not the second time that it is asked: the first was passed on
        os.kill(mine._starter, signal.SIGKILL)
        return 0 if unit.recv(99) == SIGNAL + b"%d" % signal.SIGINT else 2

    assert in_a_child(work) == 0


@pytest.mark.parametrize("again", [False, True])
def test_a_unit_that_says_nothing_is_not_waited_for(again: bool) -> None:
    def work() -> int:
        ours, unit = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine = client(sleeper(), ours)
        os.kill(os.getpid(), signal.SIGTERM)
        if again:
            mine._pass_on(signal.SIGTERM)
        try:
            mine.run()
        finally:
            unit.close()
        return 1

    began = time.monotonic()
    assert in_a_child(work) == 128 + signal.SIGTERM
    assert time.monotonic() - began < 25


@pytest.mark.parametrize("started", [True, False])
def test_the_unit_looks_before_it_takes_a_command_for_not_started(started: bool) -> None:
    def work() -> int:
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        first = sleeper()
        report, write = os.pipe()
        if started:
            os.close(write)  # as exec does
        ours.send(SIGNAL + b"%d" % signal.SIGTERM)
        signal.alarm(20)  # it must not wait for a report that does not come
        code = systemd_unit._attend(theirs, first, report)  # type: ignore[arg-type]
        if not started:
            os.kill(first, signal.SIGKILL)
        return code

    assert in_a_child(work) == (7 if started else 128 + signal.SIGTERM)


def _by_launcher(first: int, report: int) -> int:
    return namespace_launcher._attend(first, report)


def _by_unit(first: int, report: int) -> int:
    control, _host = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return systemd_unit._attend(control, first, report)  # type: ignore[arg-type]


@pytest.mark.parametrize("attend", [_by_launcher, _by_unit])
def test_a_command_that_started_after_the_last_look_gets_the_signal(
    attend: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_signals = process.read_signals

    def work() -> int:
        first = sleeper()
        report, write = os.pipe()

        def late(descriptor: int) -> list[int]:
            monkeypatch.setattr(process, "read_signals", read_signals)
            os.close(write)  # as exec does: between the poll, which saw only the signal, and this
            return read_signals(descriptor)

        monkeypatch.setattr(process, "read_signals", late)
        signal.alarm(20)
        os.kill(os.getpid(), signal.SIGTERM)
        return attend(first, report)

    assert in_a_child(work) == 7
