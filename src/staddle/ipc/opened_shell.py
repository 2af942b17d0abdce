"""A shell that an agent has started: its descriptors, checked before use."""

from __future__ import annotations

import os
import stat

from .._value import Value
from ..errors import LaunchFailed, SandboxLost
from . import agent_messages
from .wire import close_all

#: Characters allowed in the paths of a shell's files, which are put into its command lines unquoted.
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-")
#: The kinds of the files of a shell, in the order in which they come.
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
    """The files between us and a shell, and their paths for the shell."""

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
    """A shell that was just started, and everything that belongs to it; the caller closes it."""

    pid: int
    socket: int
    control: int
    files: OpenShellFiles
    #: Its pid on the host (0: unknown).
    host_pid: int = 0

    def close(self) -> None:
        """Close everything, which ends the shell."""
        close_all((self.socket, self.control, *self.files.descriptors()))


def lost(why: str = "") -> SandboxLost:
    """Return the error for a sandbox that does not answer any more."""
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
    """Return the files of a shell from a message, after checking them."""
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
    """Return the shell that a message announces, or raise its error: `what`, and why."""
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
    """Replace this descriptor with a nonblocking open file of our own.

    The received one is shared with the agent. A process that traces the agent could make it block.
    """
    ours = os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK | os.O_CLOEXEC)
    os.dup2(ours, fd, inheritable=False)
    os.close(ours)


def _pid_of(handle: int) -> int:
    """Return the pid here of the process of a pidfd; 0 if there is none."""
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
    """Return the error that an agent sent in place of an answer."""
    message.close()
    if message.kind == agent_messages.REFUSED:
        return LaunchFailed(
            what,
            why=message.fields[0].decode("utf-8", "replace"),
            fix="`staddle doctor` tries what this host can do",
        )
    return lost("its agent answered something else than it was asked")
