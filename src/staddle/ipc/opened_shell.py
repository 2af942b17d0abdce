"""A shell that an agent has started: what it hands over, looked at before it is used."""

from __future__ import annotations

import os
import stat

from .._value import Value
from ..errors import LaunchFailed, SandboxLost
from . import agent_messages
from .descriptors import close_all

#: What the paths of a shell's files may be made of: they are put into its command lines as they are.
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-")
#: Of which kind the files of a shell are, in the order in which they come.
_KINDS = (stat.S_ISREG, stat.S_ISREG, stat.S_ISFIFO, stat.S_ISREG, stat.S_ISFIFO, stat.S_ISFIFO)


class ShellPaths(Value):
    """Paths of a shell's files, as the shell sees them."""

    text: bytes
    status: bytes
    done: bytes
    input: bytes
    output: bytes
    errors: bytes
    missing_dir: bytes


class OpenShellFiles(Value):
    """The files between us and a shell, and where the shell finds them."""

    text: int
    status: int
    done: int
    input: int
    output: int
    errors: int
    paths: ShellPaths

    def descriptors(self) -> tuple[int, ...]:
        """All descriptors."""
        return self.text, self.status, self.done, self.input, self.output, self.errors


class OpenedShell(Value):
    """A shell that was just started, and all that belongs to it; the taker's to close."""

    pid: int
    socket: int
    control: int
    files: OpenShellFiles
    #: Its number on the host, 0 when that is not known.
    host_pid: int = 0

    def close(self) -> None:
        """Close all of it: the shell ends."""
        close_all((self.socket, self.control, *self.files.descriptors()))


def lost(why: str = "") -> SandboxLost:
    """The error of a sandbox that does not answer any more."""
    return SandboxLost(
        "the sandbox has stopped by itself",
        why=why
        or "its PID 1 was killed, or the fork server that all sandboxes of this policy come from, "
        "or memory ran out",
        fix="open another one; diff(), commit(), snapshot() and fork() still have the changes of this one",
    )


def shell_files(
    message: agent_messages.Message, places: tuple[bytes, ...], descriptors: list[int]
) -> OpenShellFiles:
    """The files of a shell out of a message, looked at first."""
    plain = len(places) == 7 and all(place and _PLAIN.issuperset(place) for place in places)
    if not plain or not all(kind(os.fstat(fd).st_mode) for kind, fd in zip(_KINDS, descriptors, strict=True)):
        message.close()
        raise lost("its agent handed out something else than the files of a shell")
    text, status, done, stdin, output, errors = descriptors
    try:
        for fd, flags in ((done, os.O_RDWR), (output, os.O_RDONLY), (errors, os.O_RDONLY)):
            _reopen_pipe(fd, flags)
    except BaseException:
        message.close()
        raise
    return OpenShellFiles(text, status, done, stdin, output, errors, ShellPaths(*places))


def opened_shell(message: agent_messages.Message, what: str = "a shell could not be started") -> OpenedShell:
    """The shell that a message announces, or the error that it is instead: `what`, and why."""
    if message.kind != agent_messages.OPENED:
        raise refused(message, what)
    try:
        pid, places = message.fields
        socket, control, *files = message.descriptors[:8]
        if not stat.S_ISSOCK(os.fstat(socket).st_mode) or not stat.S_ISFIFO(os.fstat(control).st_mode):
            raise lost("its agent handed out something else than a line and a pipe")
        made = shell_files(message, places, files)
        _reopen_pipe(control, os.O_WRONLY)
        host_pid = 0
        for handle in message.descriptors[8:]:
            host_pid = _pid_of(handle)
            os.close(message.descriptors.pop())
        return OpenedShell(pid, socket, control, made, host_pid)
    except BaseException:
        message.close()
        raise


def _reopen_pipe(fd: int, flags: int) -> None:
    """Have an open file of our own at this number, that does not block.

    The one that came is the agent's as well. Whoever traces the agent could let it block.
    """
    ours = os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK | os.O_CLOEXEC)
    os.dup2(ours, fd, inheritable=False)
    os.close(ours)


def _pid_of(handle: int) -> int:
    """The number here of the process that a pidfd means; 0 when it means none."""
    try:
        file = os.open(f"/proc/self/fdinfo/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        number = os.read(file, 4096).partition(b"\nPid:")[2].split(None, 1)[:1]
    finally:
        os.close(file)
    return int(number[0]) if number and number[0].isdigit() else 0


def refused(message: agent_messages.Message, what: str) -> LaunchFailed | SandboxLost:
    """The error that an agent answered with, instead of what it was asked for."""
    message.close()
    if message.kind == agent_messages.REFUSED:
        return LaunchFailed(
            what,
            why=message.fields[0].decode("utf-8", "replace"),
            fix="`staddle doctor` tries what this host can do",
        )
    return lost("its agent answered something else than it was asked")
