"""The programs of the system that we start: which ones, and whether they can be trusted.

They run with the rights of the user, or of root, before anything is confined. So they come
from system directories only, never from PATH or the working directory, and nobody but root
may be able to change them.
"""

from __future__ import annotations

import os
import stat

from ..._value import Value

#: Where programs are looked for, in this order.
DIRECTORIES: tuple[str, ...] = ("/usr/bin", "/usr/local/bin", "/bin")

#: The first version that can forbid user namespaces inside (--disable-userns).
OLDEST = (0, 8, 0)


_described: dict[tuple[int, ...], Bubblewrap] = {}


class Program(Value):
    """An executable, as it was when we looked. `problem` says why it is not used."""

    path: str
    identity: tuple[int, ...] = ()
    problem: str = ""


class Bubblewrap(Value):
    """What an installed bwrap is able to do, as far as its own text tells."""

    version: str
    mounts_descriptors: bool


def find(name: str, directories: tuple[str, ...] | None = None) -> Program | None:
    """The system's program `name`, None when there is none."""
    for directory in DIRECTORIES if directories is None else directories:
        program = examine(os.path.join(directory, name))
        if program is not None:
            return program
    return None


def examine(path: str, *, owners: tuple[int, ...] = (0,)) -> Program | None:
    """The program at `path` and what speaks against it, None when nothing is there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
    return Program(path, identity, _problem(path, status, owners))


def _problem(path: str, status: os.stat_result, owners: tuple[int, ...]) -> str:
    if not stat.S_ISREG(status.st_mode) or not os.access(path, os.X_OK):
        return f"{path} cannot be executed"
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID):
        return f"{path} is setuid, and a setuid bwrap refuses what confines the command here"
    # In a user namespace that does not map root, root's files belong to the overflow id.
    stranger = status.st_uid not in owners and (status.st_uid != _overflow() or os.access(path, os.W_OK))
    if stranger or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        return f"{path} can be changed by others than root (owner {status.st_uid}, mode {mode})"
    return ""


def _overflow() -> int:
    try:
        with open("/proc/sys/kernel/overflowuid") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 65534


def describe(path: str, identity: tuple[int, ...] = ()) -> Bubblewrap:
    """Version and abilities of the bwrap at `path`, read from the file: a tenth of starting it.

    A file that does not have them in its text (a script around it) is asked instead. Told
    the file's `identity`, it is read once per process.
    """
    if identity not in _described:
        _described[identity] = _describe(path)
    return _described[identity] if identity else _described.pop(identity)


def _describe(path: str) -> Bubblewrap:
    with open(path, "rb") as file:
        text = file.read(1 << 20)
    version = _version(text)
    if not version:
        text = _ask(path, "--version") + _ask(path, "--help")
        version = _version(text)
    return Bubblewrap(version, b"--ro-bind-fd" in text)


def is_old(version: str) -> bool:
    """Whether this version, or a text that is none, is older than what we need."""
    numbers = version.split(".")
    if not all(number.isdigit() for number in numbers):
        return True
    return tuple(int(number) for number in numbers) < OLDEST


def _version(text: bytes) -> str:
    mark = b"bubblewrap "
    at = text.find(mark)
    while at >= 0:
        word = text[at + len(mark) : at + len(mark) + 16]
        digits = word[: len(word) - len(word.lstrip(b"0123456789."))]
        if digits[:1].isdigit() and b"." in digits:
            return digits.decode().rstrip(".")
        at = text.find(mark, at + 1)
    return ""


def _ask(path: str, question: str) -> bytes:
    import subprocess

    try:
        answer = subprocess.run(
            [path, question],
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return b""
    return answer.stdout[: 1 << 20]
