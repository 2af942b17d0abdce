"""Facts about processes and descriptors from /proc."""

from __future__ import annotations

import os

#: Where the fields of /proc/PID/stat are, counted from the one after the name: state, parent, start time.
STATE, PARENT, STARTED = 0, 1, 19


def stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name; none when the process is gone."""
    try:
        return split_stat(_read(f"/proc/{pid}/stat", 2048))
    except OSError:
        return []


def split_stat(text: bytes, most: int = -1) -> list[bytes]:
    """The fields of a stat file after the name, the first `most` of them split."""
    # The name in parentheses is the process's own choice and may hold anything.
    return text.rpartition(b")")[2].split(None, most)


def start_time(pid: int) -> int:
    """When a process was started, in ticks since boot; 0 when it is gone."""
    fields = stat_fields(pid)
    return int(fields[STARTED]) if len(fields) > STARTED else 0


def parent_of(pid: int) -> int:
    """The parent of a process; 0 when it is gone."""
    fields = stat_fields(pid)
    return int(fields[PARENT]) if len(fields) > PARENT else 0


def mount_id(fd: int) -> bytes:
    """The id of the mount that an open file is on; empty where the kernel does not say."""
    words = _read(f"/proc/self/fdinfo/{fd}", 1024).partition(b"mnt_id:")[2].split(None, 1)
    return words[0] if words else b""


def _read(path: str, most: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, most)
    finally:
        os.close(fd)
