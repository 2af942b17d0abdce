"""The files between a shell and the host program, made by the agent, and the greeting that names them.

    text     the command, which the shell reads as a script; the host program writes it
    status   `return N`, which restores `$?`
    done     a pipe on which the shell reports the end of a command
    input    standard input of a command that has one
    output   pipes for a command's output; replaced once a background job has them open
    errors

The host program gets descriptors and never a path of its own. The shell opens paths each time, because a
command may close any descriptor it finds. The files are either in a directory that the sandbox sees
read-only, except for its pipes. Or they are descriptors of the agent in /proc, which leave nothing to remove.
"""

from __future__ import annotations

import os

from ...ipc.agent_messages import BRAKE_TRAP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object

#: Their order in every list of descriptors and paths of a shell; the last path is `nowhere`.
NAMES = ("text", "status", "done", "input", "output", "errors")
#: Files that a background job may keep using; the next command gets new files.
RENEWED = ("input", "output", "errors")
_PIPES = ("done", "output", "errors")


class Channel(Protocol):
    """A place for the files of shells."""

    def make(self, name: str, shell: int, serial: int) -> tuple[int, bytes]:
        """Create a file of the kind `name`; return (a descriptor, the path for the shell)."""

    def drop(self, name: str, shell: int, serial: int) -> None:
        """Remove a file from `make`; processes that have it open can still use it."""

    def nowhere(self) -> bytes:
        """Return the path of a directory that never exists."""


class InDirectory:
    """Files in our own directory, which the sandbox sees at `path`."""

    def __init__(self, directory: int, path: bytes) -> None:
        self.directory, self._path = directory, path

    def make(self, name: str, shell: int, serial: int) -> tuple[int, bytes]:
        """See `Channel.make`."""
        file = _file_name(name, shell, serial)
        if name in _PIPES:
            os.mkfifo(file, 0o600, dir_fd=self.directory)
        else:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self.directory))
        # Commands may run as another user than the agent. chmod, because of our umask.
        os.chmod(file, 0o622 if name in _PIPES else 0o644, dir_fd=self.directory)
        fd = os.open(file, _flags(name), dir_fd=self.directory)
        return fd, self._path + b"/" + file.encode()

    def drop(self, name: str, shell: int, serial: int) -> None:
        """See `Channel.drop`."""
        try:
            os.unlink(_file_name(name, shell, serial), dir_fd=self.directory)
        except FileNotFoundError:
            pass

    def nowhere(self) -> bytes:
        """See `Channel.nowhere`."""
        return self._path + b"/x"


class Nameless:
    """Files as descriptors of this process, for an agent whose /proc the sandbox's commands can read."""

    def make(self, name: str, shell: int, serial: int) -> tuple[int, bytes]:
        """See `Channel.make`."""
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
        """See `Channel.nowhere`."""
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
        """Return our descriptor of a file."""
        return self._made[name][0]

    def descriptors(self) -> list[int]:
        """Return all descriptors, in order."""
        return [self._made[name][0] for name in NAMES]

    def paths(self) -> tuple[bytes, ...]:
        """Return the paths of the files inside, and the path that does not exist."""
        return (*(self._made[name][1] for name in NAMES), self._channel.nowhere())

    def renew(self) -> None:
        """Leave the pipes to the jobs that have them open, and make new ones."""
        self.former |= self.pipes()
        for name in RENEWED:
            fd, _ = self._made[name]
            serial = self._serial[name]
            self._made[name] = self._channel.make(name, self._shell, serial + 1)
            self._serial[name] = serial + 1
            self._channel.drop(name, self._shell, serial)
            os.close(fd)

    def pipes(self) -> set[tuple[int, int]]:
        """Return device and inode of the present pipes for output."""
        return {identity(self._made[name][0]) for name in ("output", "errors")}

    def close(self) -> None:
        """Remove all files."""
        for name, (fd, _) in self._made.items():
            self._channel.drop(name, self._shell, self._serial[name])
            os.close(fd)
        self._made.clear()


def identity(fd: int | str) -> tuple[int, int]:
    """Return device and inode of a file, by descriptor or by a path in /proc."""
    status = os.stat(fd)
    return status.st_dev, status.st_ino


def _file_name(name: str, shell: int, serial: int) -> str:
    """Return the name of a file in the directory; short, because the shell reads it with every command."""
    return f"{shell}{name[0]}{serial}" if serial else f"{shell}{name[0]}"


def _flags(name: str) -> int:
    if name in ("output", "errors"):  # read-only, so that we do not hide its end of file
        return os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    return os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC


#: A shell that reads its commands from a pipe, and continues after any error.
SHELL_OPTIONS = (b"--norc", b"--noprofile", b"--noediting", b"-i")

#: No history, no prompt, no mail check; and the shell reports its version.
_FIRST_WORDS = b"""\
unset MAILCHECK HISTFILE; set +o history +o histexpand; history -c; PS1= PS2= PS0=; shopt -u checkwinsize
trap '%(brake)b' SIGRTMAX
\\. /dev/null </dev/null >%(output)b 2>%(errors)b
((0)) 2>%(done)b >"%(nowhere)b/hello.${BASH_VERSINFO[0]-}.${BASH_VERSINFO[1]-}." || _=
"""


def greeting(paths: tuple[bytes, ...]) -> bytes:
    """Return the first lines for a shell with its files at these paths, in the order of NAMES.

    They include a command that does nothing, in the form of all later commands. The first command takes three
    times as long as others, and no caller waits for it now. It is not read from the file for texts, which may
    already contain the caller's first command.
    """
    _, _, done, _, output, errors, nowhere = paths
    named = {b"done": done, b"output": output, b"errors": errors, b"nowhere": nowhere}
    return _FIRST_WORDS % {**named, b"brake": BRAKE_TRAP}
