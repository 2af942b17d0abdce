"""A process that dies at a step of our choice: right before its Nth call that changes something."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from staddle.layers import commit_dir, journal

#: Everything that changes something on a disk.
CALLS = [
    *(
        "chmod",
        "chown",
        "fchmod",
        "fchown",
        "ftruncate",
        "link",
        "mkdir",
        "mkfifo",
        "mknod",
        "open",
        "rename",
    ),
    *("rmdir", "setxattr", "symlink", "unlink", "utime", "write", "fsync", "makedirs"),
]


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Do `work` in a child that dies right before its `number`th call; whether it came that far."""
    child = os.fork()
    if child == 0:
        left = [number]

        def dying(real: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **kwargs: object) -> object:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            return call

        for name in CALLS:
            setattr(os, name, dying(getattr(os, name)))
        journal.exchange_names = dying(journal.exchange_names)  # type: ignore[assignment]
        journal.rename_new = dying(journal.rename_new)  # type: ignore[assignment]
        commit_dir.sync_file_system = dying(commit_dir.sync_file_system)  # type: ignore[assignment]
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(9)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)
