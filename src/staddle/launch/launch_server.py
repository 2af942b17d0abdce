"""The launch server of this program, which `WrappedCommand.run` uses from the second command on.

It is started by the main thread only: the kernel ends a child of a thread together with the thread.
See `inside/launch_server.py`.
"""

from __future__ import annotations

import _socket
import _thread
import os
import select
import subprocess
import time
from typing import IO, Any

from ..interrupts import uninterrupted
from ..ipc import wire
from ..linux.fileio import read_if_there
from ..linux.open_files import hand_down
from ..linux.process import pidfd_open, pidfd_send_signal
from ..linux.userns import reap
from .contract import ENVIRONMENT, Launch, give_pipes, helper_command
from .signals import SIGKILL, SIGPIPE, SIGXFSZ

#: Seconds for the server to clone a sandbox.
_PATIENCE = 10.0
#: What a command inherits from our thread, beside its session: lines of its status, and other files of /proc.
_STATUS = (b"Uid", b"Gid", b"Groups", b"Cap", b"NoNewPrivs", b"Seccomp", b"Cpus_allowed:", b"Mems_allowed:")
_FILES = ("cgroup", "limits", "oom_score_adj", "attr/current")


class LaunchServer:
    """A launch server, started with the rights and limits that the calling thread has now."""

    def __init__(self, inherited: tuple[object, ...]) -> None:
        self.inherited = inherited
        self._socket, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self._socket.settimeout(_PATIENCE)
        argv = helper_command("launch-server", str(os.getpid()))
        actions: list[Any] = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
        actions += [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
        try:
            self.pid = os.posix_spawn(
                argv[0], argv, ENVIRONMENT, file_actions=actions, setsigmask=(), setsigdef=(SIGPIPE, SIGXFSZ)
            )
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._handle = pidfd_open(self.pid)  # a program that reaps all children frees the number
        hand_down(self.pid)

    def serves(self, inherited: tuple[object, ...]) -> bool:
        """Whether it still runs, and a child of it inherits the same as a child of this thread."""
        try:
            # Refused if this thread has confined itself by Landlock since, which nothing else shows.
            os.readlink(f"/proc/{self.pid}/ns/mnt")
        except OSError:
            return False
        return self.inherited == inherited

    def clone(self, launch: Launch, streams: list[int]) -> int:
        """Have it start the sandbox of `launch` as our child, with these streams. OSError if it did not."""
        waiting, confirming = os.pipe2(os.O_CLOEXEC)
        try:
            numbers = " ".join(map(str, launch.pass_fds)).encode()
            wire.send(self._socket, numbers, [*streams, waiting, *launch.pass_fds])
            answer, _ = wire.receive(self._socket, 64)
            if not answer:
                raise ConnectionResetError("the launch server has ended")
            os.write(confirming, b"!")  # without it, the sandbox starts no command
            return int(answer)
        finally:
            os.close(waiting)
            os.close(confirming)

    def end(self) -> None:
        """End it. Commands that it has started go on."""
        self._socket.close()
        if self.inherited[0] == os.getpid():  # else it is our parent's
            try:
                pidfd_send_signal(self._handle, SIGKILL)
            except ProcessLookupError:
                pass  # it has been reaped
            else:
                reap(self.pid)
        os.close(self._handle)


_lock = _thread.allocate_lock()
_server: list[LaunchServer] = []
_runs = 0


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - a thread that is not in the child may have it
    _lock = _thread.allocate_lock()


os.register_at_fork(after_in_child=_after_fork)


def _inherited() -> tuple[object, ...]:
    own = "/proc/thread-self"
    lines = read_if_there(f"{own}/status").split(b"\n")
    names = sorted(os.listdir(f"{own}/ns"))
    return (
        *(os.getpid(), os.getpgrp(), os.getsid(0), os.stat("/")[:3]),
        *(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)),
        *(line for line in lines if line.startswith(_STATUS)),
        *(read_if_there(f"{own}/{name}") for name in _FILES),
        *(os.readlink(f"{own}/ns/{name}") for name in names),
    )


def start(launch: Launch, streams: dict[str, Any]) -> ServedProcess | None:
    """Start `launch` through the server; None if an ordinary start is needed. Takes Popen's streams."""
    global _runs  # noqa: PLW0603 - how often it was called
    if (
        launch.here is None
        or launch.gateway_log is not None
        or streams.keys() - {"stdin", "stdout", "stderr"}
    ):
        return None
    with _lock:
        _runs += 1
        if _runs == 1:
            return None  # most programs run one command
        try:
            found = _inherited()
            if _server and not _server[0].serves(found):
                _server.pop().end()
            if not _server:
                if _thread.get_native_id() != os.getpid():
                    return None
                _server.append(LaunchServer(found))
            return ServedProcess(launch, _server[0], **streams)
        except (OSError, ValueError):
            if _server:
                _server.pop().end()  # no command of it will begin that we do not know
            return None


class ServedProcess:
    """A command started by the launch server: of `subprocess.Popen`, what `running` needs."""

    def __init__(
        self, launch: Launch, server: LaunchServer, stdin: Any = None, stdout: Any = None, stderr: Any = None
    ) -> None:
        self.args, self.pid = list(launch.argv), 0
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        theirs: list[int] = []
        opened: list[int] = []
        try:
            for number, (name, given) in enumerate(
                (("stdin", stdin), ("stdout", stdout), ("stderr", stderr))
            ):
                if given == subprocess.PIPE:
                    ends = os.pipe2(os.O_CLOEXEC)
                    here, there = ends[::-1] if number == 0 else ends
                    setattr(self, name, os.fdopen(here, "wb" if number == 0 else "rb", 0))
                    opened.append(there)
                elif given == subprocess.DEVNULL:
                    opened.append(there := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
                elif given == subprocess.STDOUT and number == 2:
                    there = theirs[1]
                else:
                    there = number if given is None else given if isinstance(given, int) else given.fileno()
                theirs.append(there)
            give_pipes(launch.uid, theirs)
            uninterrupted(lambda: self._clone(server, launch, theirs))
        except BaseException:
            if self.pid:
                self.kill()
                self.wait()
            for stream in (self.stdin, self.stdout, self.stderr):
                if stream is not None:
                    stream.close()
            raise
        finally:
            wire.close_all(opened)

    def _clone(self, server: LaunchServer, launch: Launch, streams: list[int]) -> None:
        self.pid = server.clone(launch, streams)

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # as Popen does: the program around us has reaped it
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; TimeoutExpired if it takes longer than `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        if (status := self.poll()) is not None:
            return status
        handle = os.pidfd_open(self.pid)
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            while (status := self.poll()) is None:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                poll.poll(None if left is None else left * 1000)
        finally:
            os.close(handle)
        return status

    def kill(self) -> None:
        """End every process of the command."""
        self.send_signal(SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal to every process of the command."""
        if self.poll() is None:
            os.kill(self.pid, number)  # not reaped, so the number is still its own
