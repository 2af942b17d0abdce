"""A change as a unified diff, or as a sentence if there is none."""

from __future__ import annotations

import os

from ..files.tree import Tree
from .fingerprint import WHOLE, digest_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from .differences import Difference, Kind
    from .merged_view import LayerView

    class ShownChange(Protocol):
        """The fields of a `Change`."""

        @property
        def kind(self) -> Kind: ...
        @property
        def path(self) -> str: ...
        @property
        def type(self) -> str | None: ...
        @property
        def mode(self) -> int | None: ...
        @property
        def target(self) -> str | None: ...
        @property
        def old_path(self) -> str | None: ...
        @property
        def old_type(self) -> str | None: ...
        @property
        def old_mode(self) -> int | None: ...
        @property
        def old_target(self) -> str | None: ...


#: In the worst case, difflib compares every line with every other.
MOST_LINES = 20_000


class _TooLarge(Exception):
    """The file has more bytes than requested."""


class _NotReviewed(Exception):
    """The content differs from the review."""


def text_diff(
    change: ShownChange,
    view: LayerView | None,
    item: Difference | None,
    *,
    context: int = 3,
    limit: int = 1 << 20,
) -> str:
    """Return `change` as a unified diff with complete lines; one line of text if there is none."""
    head = _head(change)
    if change.kind == "mode" or "file" not in (change.type, change.old_type):
        return head
    try:
        old = _side(change, view, item, limit, new=False) if change.old_type == "file" else b""
        new = _side(change, view, item, limit, new=True) if change.type == "file" else b""
    except _TooLarge:
        return f"{head}Files differ; one has more than {limit:,} bytes\n"
    except _NotReviewed:
        return f"{head}The content has changed since the review\n"
    except OSError as error:
        return f"{head}The content no longer exists: {error.strerror}\n"
    if b"\0" in old or b"\0" in new:
        return f"{head}Binary files differ\n"
    return head + _unified(change, old, new, context)


def content(change: ShownChange, limit: int, *, new: bool) -> bytes | None:
    """Return the new or old content of the file; None if there is none, or it exceeds `limit` bytes."""
    if (change.type if new else change.old_type) != "file":
        return None
    view, item = change.__dict__.get("_source") or (None, None)
    try:
        return _side(change, view, item, limit, new=new)
    except (OSError, _TooLarge, _NotReviewed):
        return None


def _head(change: ShownChange) -> str:
    lines = []
    if change.kind == "renamed":
        lines += [f"rename from {change.old_path}", f"rename to {change.path}"]
    if change.old_mode is not None and change.mode is not None and change.old_mode != change.mode:
        lines += [f"old mode {change.old_mode:04o}", f"new mode {change.mode:04o}"]
    if change.type != change.old_type and change.type not in (None, "file"):
        lines.append(f"new {change.type} {change.path}")
    if change.type != change.old_type and change.old_type not in (None, "file"):
        lines.append(f"deleted {change.old_type} {change.old_path or change.path}")
    if change.target != change.old_target:
        lines += [f"-> {target}" for target in (change.old_target, change.target) if target is not None]
        if change.old_target is not None and change.target is not None:
            lines[-2:] = [f"was -> {change.old_target}", f"now -> {change.target}"]
    return "".join(f"{line}\n" for line in lines)


def _side(
    change: ShownChange, view: LayerView | None, item: Difference | None, limit: int, *, new: bool
) -> bytes:
    """Return the new or old content; for a change in a review, only if it is the reviewed content."""
    if change.__dict__.get("_is_turned"):  # its new content is the old one of `item`
        return _content(view, item, limit, new=not new)
    expected: str | None = change.__dict__.get("_reviewed") if new else None
    data = _content(view, item, limit if expected is None else min(limit, WHOLE), new=new)
    if expected is not None and digest_of(data) != expected:
        raise _NotReviewed
    return data


def _content(view: LayerView | None, item: Difference | None, limit: int, *, new: bool) -> bytes:
    if view is None or item is None:
        raise FileNotFoundError(2, "this change came without its files")
    path = item.path if new else item.old_path or item.path
    parent, _, name = path.rpartition("/")
    with Tree((view.layers[item.layer] if new else view.bases[item.base]), ours=new) as tree:
        directory = tree.directory(parent)
        try:
            fd = tree.file(directory, name)
        finally:
            os.close(directory)
        with open(fd, "rb") as file:
            data = file.read(limit + 1)
    if len(data) > limit:
        raise _TooLarge
    return data


def _unified(change: ShownChange, old: bytes, new: bytes, context: int) -> str:
    import difflib

    before, after = _lines(old), _lines(new)
    was = "/dev/null" if change.old_type is None else f"a/{(change.old_path or change.path).lstrip('/')}"
    now = "/dev/null" if change.type is None else f"b/{change.path.lstrip('/')}"
    if len(before) > MOST_LINES or len(after) > MOST_LINES:
        return f"--- {was}\n+++ {now}\nText differs; there are more than {MOST_LINES:,} lines\n"
    lines = []
    for line in difflib.unified_diff(before, after, was, now, n=context):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def _lines(data: bytes) -> list[str]:
    """Split into lines, which end only at a newline, not at a form feed."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
