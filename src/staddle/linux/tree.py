"""What a process has started, and signals that cannot hit a stranger."""

from __future__ import annotations

import os

from .process import pidfd_open, pidfd_send_signal


def descendants(root: int) -> list[int]:
    """Every living process below `root`, parents before children, without `root` itself."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (parent := parent_of(int(name))):
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def parent_of(pid: int) -> int:
    """The parent of `pid`, or 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses is the process's own choice and may hold anything.
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def send(pid: int, number: int) -> None:
    """Signal `pid` if it is still the process it was: a descriptor does not get reused."""
    parent = parent_of(pid)
    try:
        descriptor = pidfd_open(pid)
    except OSError:
        return
    try:
        if parent and parent_of(pid) == parent:
            pidfd_send_signal(descriptor, number)
    except OSError:
        pass  # it ended, or is not ours to signal
    finally:
        os.close(descriptor)
