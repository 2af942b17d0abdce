"""Read and write descriptors without a file object: small files, files of /proc, memory files."""

from __future__ import annotations

import os
import stat
import sys


def read_text(path: str, most: int, flags: int = 0) -> str:
    """Return the beginning of a regular file; "" if it is none, or cannot be read. Never blocks."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | flags)
    except (OSError, ValueError):
        return ""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return os.read(fd, most).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    finally:
        os.close(fd)


def read_whole(path: str) -> bytes:
    """Return the contents of a file of ours, or of the kernel."""
    data = bytearray()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while chunk := os.read(fd, 1 << 16):
            data += chunk
    finally:
        os.close(fd)
    return bytes(data)


def read_if_there(path: str) -> bytes:
    """Return the contents of such a file; empty if it cannot be read."""
    try:
        return read_whole(path)
    except OSError:
        return b""


def current_directory() -> str | None:
    """Return the working directory of this process, if it still exists."""
    try:
        here = os.getcwd()
    except OSError:
        return None
    return here if here.startswith("/") else None


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data`, however many calls it takes."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def memory_file(data: bytes) -> int:
    """Make a memory file with these contents, and return its descriptor. Its offset is at the end."""
    fd = os.memfd_create("staddle", os.MFD_CLOEXEC)
    try:
        write_all(fd, data)
    except BaseException:
        os.close(fd)
        raise
    return fd


def put(fd: int, data: bytes) -> None:
    """Write the whole of `data` at the beginning of a file."""
    done = os.pwrite(fd, data, 0)
    while done < len(data):
        done += os.pwrite(fd, data[done : done + (1 << 20)], done)


def resize_pipe(fd: int, size: int) -> None:
    """Set the capacity of a pipe to `size` bytes, if this user may have that."""
    import fcntl  # not in every process that reads files

    try:
        fcntl.fcntl(fd, 1031, size)  # F_SETPIPE_SZ
    except OSError:
        pass  # its capacity stays unchanged


def unread_bytes(fd: int) -> int:
    """Return how many bytes wait in a pipe."""
    import fcntl

    return int.from_bytes(fcntl.ioctl(fd, 0x541B, bytes(4)), sys.byteorder)  # FIONREAD
