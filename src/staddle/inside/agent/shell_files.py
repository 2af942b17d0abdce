"""The files between a shell and the host program, made by the agent, and the greeting that names them.

    text     the command, which the shell reads as a script; the host program writes it
    status   `return N`: how `$?` comes to be what it was
    done     a pipe on which the shell says that a command is over
    input    standard input of a command that has one
    output   pipes of what a command prints; replaced once a background job holds them
    errors

The host program gets descriptors and never a path of its own; the shell opens by path each
time, because a command may close any descriptor it finds. Where the paths are is one of two
ways: in a directory that is read-only to the sandbox but for its pipes, or nowhere, as
descriptors of the agent in /proc, where there is nothing to remove and nothing is left behind.
"""

from __future__ import annotations

import os

from ...ipc.agent_messages import BRAKE_TRAP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object

#: Their order wherever descriptors and places of a shell are listed; a place more is `nowhere`.
NAMES = ("text", "status", "done", "input", "output", "errors")
#: What a background job may go on to use; the next command gets new ones.
RENEWED = ("input", "output", "errors")
_PIPES = ("done", "output", "errors")


class Channel(Protocol):
    """A directory for the files of shells."""

    def make(self, name: str, shell: int, serial: int) -> tuple[int, bytes]:
        """A new file, of the kind that `name` is; (a descriptor, the path for the shell)."""

    def drop(self, name: str, shell: int, serial: int) -> None:
        """Remove what `make` made; it stays usable for processes that have it open."""

    def nowhere(self) -> bytes:
        """A directory that does not exist, nor ever will."""


class InDirectory:
    """In a directory of our own, which the sandbox sees at `path`."""

    def __init__(self, directory: int, path: bytes) -> None:
        self.directory, self._path = directory, path

    def make(self, name: str, shell: int, serial: int) -> tuple[int, bytes]:
        """See Channel."""
        file = _file_name(name, shell, serial)
        if name in _PIPES:
            os.mkfifo(file, 0o600, dir_fd=self.directory)
        else:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self.directory))
        # The commands may run as another user than the agent. chmod, because of our umask.
        os.chmod(file, 0o622 if name in _PIPES else 0o644, dir_fd=self.directory)
        fd = os.open(file, _flags(name), dir_fd=self.directory)
        return fd, self._path + b"/" + file.encode()

    def drop(self, name: str, shell: int, serial: int) -> None:
        """See Channel."""
        try:
            os.unlink(_file_name(name, shell, serial), dir_fd=self.directory)
        except FileNotFoundError:
            pass

    def nowhere(self) -> bytes:
        """See Channel."""
        return self._path + b"/x"


class Nameless:
    """As descriptors of this process: for an agent that the sandbox's commands can look into."""

    def make(self, name: str, shell: int, serial: int) -> tuple[int, bytes]:
        """See Channel."""
        del shell, serial
        if name in _PIPES:
            made, other = os.pipe2(os.O_CLOEXEC)
            try:
                fd = os.open(f"/proc/self/fd/{made}", _flags(name))
            finally:
                os.close(made)
                os.close(other)
        else:
            fd = os.memfd_create("staddle", os.MFD_CLOEXEC)
        return fd, b"/proc/%d/fd/%d" % (os.getpid(), fd)

    def drop(self, name: str, shell: int, serial: int) -> None:
        """Do nothing: the file ends with its last descriptor."""

    def nowhere(self) -> bytes:
        """See Channel."""
        return b"/proc/%d/fd/x" % os.getpid()


class ChannelFiles:
    """The files of one shell."""

    def __init__(self, channel: Channel, shell: int) -> None:
        self._channel, self._shell = channel, shell
        self._serial = dict.fromkeys(NAMES, 0)
        self._made: dict[str, tuple[int, bytes]] = {}
        self.former: set[tuple[int, int]] = set()
        try:
            for name in NAMES:
                self._made[name] = channel.make(name, shell, 0)
        except BaseException:
            self.close()
            raise

    def descriptor(self, name: str) -> int:
        """Our descriptor of one of them."""
        return self._made[name][0]

    def descriptors(self) -> list[int]:
        """All of them, in order."""
        return [self._made[name][0] for name in NAMES]

    def paths(self) -> tuple[bytes, ...]:
        """Paths of the files as the shell sees them, and the one that does not exist."""
        return (*(self._made[name][1] for name in NAMES), self._channel.nowhere())

    def renew(self) -> None:
        """Leave the pipes to the jobs that hold them, and make new ones."""
        self.former |= self.pipes()
        for name in RENEWED:
            fd, _ = self._made[name]
            serial = self._serial[name]
            self._made[name] = self._channel.make(name, self._shell, serial + 1)
            self._serial[name] = serial + 1
            self._channel.drop(name, self._shell, serial)
            os.close(fd)

    def pipes(self) -> set[tuple[int, int]]:
        """Device and inode of the present pipes for output."""
        return {identity(self._made[name][0]) for name in ("output", "errors")}

    def close(self) -> None:
        """Remove them all."""
        for name, (fd, _) in self._made.items():
            self._channel.drop(name, self._shell, self._serial[name])
            os.close(fd)
        self._made.clear()


def identity(fd: int | str) -> tuple[int, int]:
    """Device and inode of a file, by descriptor or by a path in /proc."""
    status = os.stat(fd)
    return status.st_dev, status.st_ino


def _file_name(name: str, shell: int, serial: int) -> str:
    """The name of a file in the directory; short, since the shell reads it with every command."""
    return f"{shell}{name[0]}{serial}" if serial else f"{shell}{name[0]}"


def _flags(name: str) -> int:
    if name in ("output", "errors"):  # read-only: else we would keep its end from being seen
        return os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    return os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC


#: A shell that reads its commands from a pipe, and goes on after any error.
SHELL_OPTIONS = (b"--norc", b"--noprofile", b"--noediting", b"-i")

#: It keeps no history, prints no prompt, looks for no mail, and says which it is.
_FIRST_WORDS = b"""\
unset MAILCHECK HISTFILE; set +o history +o histexpand; history -c; PS1= PS2= PS0=; shopt -u checkwinsize
trap '%(brake)b' SIGRTMAX
\\. /dev/null </dev/null >%(output)b 2>%(errors)b
((0)) 2>%(done)b >"%(nowhere)b/hello.${BASH_VERSINFO[0]-}.${BASH_VERSINFO[1]-}." || _=
"""


def greeting(paths: tuple[bytes, ...]) -> bytes:
    """The first lines to a shell with its files in these places, in the order of shell_files.NAMES.

    Among them is a command that does nothing, given as all that follow will be: the first one costs
    three times as much as another, and no caller waits for it now. It is not read from the file for
    texts, which may contain the first command of a caller already.
    """
    _, _, done, _, output, errors, nowhere = paths
    named = {b"done": done, b"output": output, b"errors": errors, b"nowhere": nowhere}
    return _FIRST_WORDS % {**named, b"brake": BRAKE_TRAP}
