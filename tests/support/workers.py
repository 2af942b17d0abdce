"""A pytest plugin: `--workers N` runs groups of tests in N forks of the process that has collected them.

Workers that are interpreters of their own, as those of pytest-xdist, each collect every test: twelve
thousand, which takes longer than to run most of them. Here tests are collected once. A worker asks for a
group of tests (`tests.conftest.group_of`: those of a file, mostly), runs them in order, and sends reports;
the process that has collected prints them. A worker that ends in the middle of a test is a failure of that
test; the rest of its group goes to another one.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO

import pytest

#: Seconds for a worker that was interrupted to end what its test has started.
_PATIENCE = 30.0
#: Bytes before each message of a worker: how long it is.
_LENGTH = 4
Group = list[int]


class Workers:
    """Forks workers, gives them groups, and has pytest see their reports."""

    def __init__(self, session: pytest.Session, count: int, group_of: Callable[[str], str]) -> None:
        self._session = session
        groups: dict[str, Group] = {}
        for index, item in enumerate(session.items):
            groups.setdefault(group_of(item.nodeid), []).append(index)
        self._groups = deque(groups.values())
        self._count = min(count, len(self._groups))
        self._workers: dict[socket.socket, _Worker] = {}

    def run(self) -> None:
        reporter: Any = self._session.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None and self._session.config.option.verbose == 0:
            reporter.showfspath = False  # several files are run at once
        # Made by us, so that its removal is nobody else's.
        self._session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        for number in (signal.SIGTERM, signal.SIGHUP):  # end as after Ctrl-C, and the workers with us
            signal.signal(number, signal.default_int_handler)
        try:
            for _ in range(self._count):
                self._fork()
            while self._workers:
                for channel in select.select(list(self._workers), [], [])[0]:
                    self._hear(channel)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)
        finally:
            self._end()

    def _fork(self) -> None:
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            for other in (ours, *self._workers):
                other.close()
            _be_worker(self._session, theirs)
        theirs.close()
        worker = self._workers[ours] = _Worker(ours, pid)
        self._give(worker)
        self._give(worker)  # it has to know which test comes after the last one of a group

    def _give(self, worker: _Worker) -> None:
        group = self._groups.popleft() if self._groups else []
        worker.todo.extend(group)
        with contextlib.suppress(OSError):  # it has ended: we hear of that
            worker.channel.sendall(pickle.dumps(group))

    def _hear(self, channel: socket.socket) -> None:
        worker = self._workers[channel]
        said = channel.recv(1 << 20)
        if not said:
            self._has_ended(worker)
            return
        worker.heard += said
        while len(worker.heard) >= _LENGTH and len(worker.heard) >= (end := _end_of_message(worker.heard)):
            kind, about = pickle.loads(memoryview(worker.heard)[_LENGTH:end])  # noqa: S301 - from our own fork
            worker.heard = worker.heard[end:]
            self._understand(worker, kind, about)

    def _understand(self, worker: _Worker, kind: str, about: Any) -> None:
        hook, config = self._session.config.hook, self._session.config
        if kind == "report":
            report = hook.pytest_report_from_serializable(config=config, data=about)
            hook.pytest_runtest_logreport(report=report)
        elif kind == "begins":
            item = self._session.items[about]
            worker.runs = about
            hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        elif kind == "ended":
            item = self._session.items[about]
            worker.runs = None
            worker.todo.remove(about)
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        elif kind == "wants":
            self._give(worker)
        elif kind == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=_warning(about))

    def _has_ended(self, worker: _Worker) -> None:
        del self._workers[worker.channel]
        worker.channel.close()
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if worker.todo:
            blamed = worker.todo[0] if worker.runs is None else worker.runs
            worker.todo.remove(blamed)
            item = self._session.items[blamed]
            report = pytest.TestReport(
                item.nodeid, item.location, {}, "failed", f"its worker has ended with {code}", "call"
            )
            self._session.config.hook.pytest_runtest_logreport(report=report)
        if worker.todo:
            self._groups.appendleft(list(worker.todo))
        if self._groups:
            self._fork()

    def _end(self) -> None:
        """Interrupt those that are still there, and wait for them."""
        for number, patience in ((signal.SIGINT, _PATIENCE), (signal.SIGKILL, _PATIENCE)):
            for worker in self._workers.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, number)
            until = time.monotonic() + patience
            while self._workers and time.monotonic() < until:
                for channel in select.select(list(self._workers), [], [], 1)[0]:
                    if not channel.recv(1 << 20):
                        os.waitpid(self._workers.pop(channel).pid, 0)


def _end_of_message(heard: bytes) -> int:
    return _LENGTH + int.from_bytes(heard[:_LENGTH], "big")


class _Worker:
    def __init__(self, channel: socket.socket, pid: int) -> None:
        self.channel, self.pid = channel, pid
        self.heard = b""
        self.todo: Group = []
        self.runs: int | None = None


# ------------------------------------------------------------------ in a worker


class _Sender:
    """The hooks of a worker: whatever it reports goes to the process that prints."""

    def __init__(self, config: pytest.Config, channel: socket.socket) -> None:
        self._config, self._channel = config, channel
        self._past = True

    def begin(self) -> None:
        """Whoever registers is told again of warnings that are known already: those were before."""
        self._config.pluginmanager.register(self)
        self._past = False

    def send(self, kind: str, about: Any) -> None:
        message = pickle.dumps((kind, about))
        self._channel.sendall(len(message).to_bytes(_LENGTH, "big") + message)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.send("report", data)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        if self._past:
            return
        about = {
            "message": str(warning_message.message),
            "category": warning_message.category.__name__,
            "filename": warning_message.filename,
            "lineno": warning_message.lineno,
            "when": when,
            "nodeid": nodeid,
            "location": location,
        }
        self.send("warning", about)


def _warning(about: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the hook, from what a worker has sent."""
    found = getattr(builtins, about["category"], Warning)
    where = about["location"]
    return {
        "warning_message": warnings.WarningMessage(
            about["message"], found, about["filename"], about["lineno"]
        ),
        "when": about["when"],
        "nodeid": about["nodeid"],
        "location": tuple(where) if where else None,
    }


def _be_worker(session: pytest.Session, channel: socket.socket) -> None:
    """Never returns."""
    code = 1
    try:
        plugins = session.config.pluginmanager
        plugins.unregister(name="terminalreporter")
        # Its files have one position for all who inherit them.
        capture: Any = plugins.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        sender = _Sender(session.config, channel)
        sender.begin()
        with channel.makefile("rb") as orders:
            _run(session, sender, orders)
        session.config._ensure_unconfigure()
        code = 0
    except KeyboardInterrupt:
        with contextlib.suppress(BaseException):
            session._setupstate.teardown_exact(None)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        os._exit(code)


def _run(session: pytest.Session, sender: _Sender, orders: BinaryIO) -> None:
    todo = deque[int](pickle.load(orders))  # noqa: S301 - from our own fork
    following = deque[int](pickle.load(orders))  # noqa: S301 - from our own fork
    while todo:
        index = todo.popleft()
        if not todo:
            todo, following = following, deque()
            begins_another = bool(todo)
        else:
            begins_another = False
        item = session.items[index]
        sender.send("begins", index)
        session.config.hook.pytest_runtest_protocol(
            item=item, nextitem=session.items[todo[0]] if todo else None
        )
        sender.send("ended", index)
        if begins_another:
            sender.send("wants", None)
            following.extend(pickle.load(orders))  # noqa: S301 - from our own fork
