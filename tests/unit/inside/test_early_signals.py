"""A signal that comes when a command has started, and we have not yet heard of that, is the command's."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

import pytest

from staddle.inside import namespace_launcher
from staddle.inside.child import HANDLED, Attendant
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


def test_a_command_that_started_after_the_last_look_gets_the_signal(monkeypatch: pytest.MonkeyPatch) -> None:
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
        return namespace_launcher._attend(first, report)

    assert in_a_child(work) == 7
