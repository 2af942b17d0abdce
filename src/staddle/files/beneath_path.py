"""The safe file operations by the name of an anchor, for code that holds no descriptor of it.

The anchor itself is the caller's word and may be a link; nothing beneath it may.
"""

from __future__ import annotations

import os

from . import beneath
from .beneath import PendingFile, relative

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .beneath import AnyPath


def open_for_write(anchor: AnyPath, rel_path: AnyPath, perm: int = 0o644) -> PendingFile:
    """A file beneath `anchor` to write to; it takes its place, whole, when it is closed."""
    path = relative(rel_path)
    root = _opened(anchor)
    try:
        return beneath.pending(root, path, perm)
    finally:
        os.close(root)


def safe_mkdir_all(anchor: AnyPath, rel_dir: AnyPath, perm: int = 0o755) -> None:
    """Make the directory `rel_dir` and what is missing above it, beneath `anchor`."""
    path = relative(os.fsdecode(rel_dir).rstrip("/") or os.fsdecode(rel_dir))
    root = _opened(anchor)
    try:
        os.close(beneath.make_directories(root, path, perm))
    finally:
        os.close(root)


def safe_remove(anchor: AnyPath, rel_path: AnyPath) -> None:
    """Remove a file beneath `anchor`; a link there is removed itself, never followed."""
    path = relative(rel_path)
    root = _opened(anchor)
    try:
        beneath.remove(root, path)
    finally:
        os.close(root)


def _opened(anchor: AnyPath) -> int:
    return os.open(anchor, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
