"""The change list: the changes of a sandbox to its files, for people and programs.

    for change in diff(view):
        print(change.kind, change.path)
        print(change.text_diff())

Kinds are `added`, `modified`, `deleted`, `renamed`. If only the permissions, the type (a file became a
directory) or the link target changed, the kind is `mode`, `type` or `link`. A file that was rewritten with
the same content is no change. Owners, times and attributes are ignored, as a commit does not copy them
either.
"""

from __future__ import annotations

import os
import stat

from .._value import Value
from .differences import Difference, Selection, differences, without_collection
from .frozen_base import host_files, signatures
from .merged_view import LayerView, OpenLayers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from ..files.tree import Tree
    from .baseline import Baseline
    from .differences import Kind

#: The most bytes to read to detect renames.
RENAME_BYTES = 256 << 20
_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


class Change(Value):
    """One change. `path` is the path inside; bytes that are not UTF-8 are as in `os.fsdecode`.

    `type`, `size` and `mode` describe the present file, the `old_` fields the earlier one; `target` is that
    of a link. Fields that do not apply are None. `conflict` describes what the host has changed there since
    the sandbox began, for which `commit` would refuse. `elsewhere`: it is outside the workspace (in the home,
    in /tmp or in the system), and never committed.
    """

    _is_shown_short = True

    kind: Kind
    path: str
    type: str | None = None
    size: int | None = None
    mode: int | None = None
    target: str | None = None
    old_path: str | None = None
    old_type: str | None = None
    old_size: int | None = None
    old_mode: int | None = None
    old_target: str | None = None
    conflict: str = ""
    elsewhere: bool = False

    def __str__(self) -> str:
        """Kind and path, for people: `modified /workspace/f`."""
        from ..display import shown

        told = f"{self.kind} {shown(self.path)}"
        if self.old_path:
            told += f" (from {shown(self.old_path)})"
        return told + (f": {self.conflict}" if self.conflict else "")

    def text_diff(self, *, context: int = 3, limit: int = 1 << 20) -> str:
        """Return the change as a unified diff, computed from the present files.

        For a change in a review, the content is shown only while it is the reviewed content.

        If a side has more than `limit` bytes, is binary or not a file, the text only describes it. The text
        is the agent's: `staddle.display.shown_block` makes it harmless.
        """
        from .unified_diff import text_diff

        asked: Callable[[int, int], str] | None = self.__dict__.get("_asked")  # of a change in a server
        if asked is not None:
            return asked(context, limit)
        source: tuple[LayerView, Difference] | None = self.__dict__.get("_source")
        return text_diff(self, *(source or (None, None)), context=context, limit=limit)


@without_collection()
def diff(
    view: LayerView,
    paths: Collection[str] | None = None,
    *,
    at: str = "",
    baseline: Baseline | None = None,
    elsewhere: bool = False,
) -> list[Change]:
    """Return every change of the view, by path; only at and below `paths` if given. `at` prefixes paths.

    With a `baseline`, committed changes are left out, even if the host has changed the files since.
    `elsewhere` is set on each change.
    """
    with OpenLayers(view) as opened:
        found = list(differences(opened, Selection(paths)))
        if baseline is not None:
            found = baseline.outstanding(found)
        told = []
        copied = signatures(view.bases)
        with host_files(view.bases) as host:
            for item in in_order(with_renames(opened, found)):
                why = (
                    next((why for _, why in baseline.conflicts(item, copied, host)), "")
                    if baseline is not None
                    else ""
                )
                told.append(change_of(opened, item, at, why, elsewhere=elsewhere))
        return told


def in_order(found: Iterable[Difference]) -> list[Difference]:
    """Sort by path, with a directory directly before its contents."""
    return sorted(found, key=lambda item: item.path.split("/"))


def change_of(
    opened: OpenLayers, item: Difference, at: str = "", conflict: str = "", *, elsewhere: bool = False
) -> Change:
    """Return a difference as a Change."""
    before = f"{at.rstrip('/')}/" if at else ""
    new, old = _described(item.new), _described(item.old)
    old_path = item.old_path or item.path
    change = Change(
        item.kind,
        before + item.path,
        *new,
        _target(opened.layers[item.layer], item.path) if new[0] == "symlink" else None,
        before + item.old_path if item.old_path else None,
        *old,
        _target(opened.bases[item.base], old_path) if old[0] == "symlink" else None,
        conflict,
        elsewhere,
    )
    change._set("_source", (opened.view, item))
    return change


def type_of(mode: int) -> str:
    """Return the type of a file in one word, by its mode."""
    return _TYPES.get(stat.S_IFMT(mode), "device")


def _described(status: os.stat_result | None) -> tuple[str | None, int | None, int | None]:
    """Return (type, size of a file, permissions)."""
    if status is None:
        return (None, None, None)
    mode = status.st_mode
    kind = type_of(mode)
    return (kind, status.st_size if kind == "file" else None, stat.S_IMODE(mode))


def _target(tree: Tree, path: str) -> str | None:
    parent, _, name = path.rpartition("/")
    try:
        directory = tree.directory(parent)
    except OSError:
        return None
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        return None  # replaced meanwhile
    finally:
        os.close(directory)
        tree.give_back()


def with_renames(opened: OpenLayers, found: list[Difference]) -> list[Difference]:
    """Merge a deleted and an added file of the same content into one renamed file.

    Overlayfs keeps no trace of a rename, so only unchanged files with content can be recognized. If several
    files have the same content, they are paired by their names.
    """
    gone: dict[int, list[Difference]] = {}
    for item in found:
        if item.kind == "deleted" and item.old is not None and _has_content(item.old):
            gone.setdefault(item.old.st_size, []).append(item)
    if not gone:
        return found
    came: dict[int, list[Difference]] = {}
    for item in found:
        new = item.new if item.kind == "added" else None
        if new is not None and _has_content(new) and new.st_size in gone:
            came.setdefault(new.st_size, []).append(item)
    merged: set[int] = set()
    left = RENAME_BYTES
    for size, added in sorted(came.items()):
        left -= size * (len(added) + len(gone[size]))
        if left < 0:
            break
        before: dict[bytes, list[Difference]] = {}
        for item in in_order(gone[size]):
            if digest := _digest(opened, item, new=False):
                before.setdefault(digest, []).append(item)
        for item in in_order(added):
            candidates = before.get(_digest(opened, item, new=True) or b"")
            if candidates:
                _pair(item, candidates, merged)
    return [item for item in found if id(item) not in merged]


def _pair(item: Difference, candidates: list[Difference], merged: set[int]) -> None:
    name = item.path.rpartition("/")[2]
    same_name = (one for one in candidates if one.path.rpartition("/")[2] == name)
    source = next(same_name, candidates[0])
    candidates.remove(source)
    merged.add(id(source))
    item.kind, item.old, item.base, item.old_path = "renamed", source.old, source.base, source.path


def _has_content(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_size > 0


def _digest(opened: OpenLayers, item: Difference, *, new: bool) -> bytes | None:
    from hashlib import blake2b

    tree = opened.layers[item.layer] if new else opened.bases[item.base]
    parent, _, name = item.path.rpartition("/")
    try:
        directory = tree.directory(parent)
        try:
            fd = tree.file(directory, name)
        finally:
            os.close(directory)
        try:
            total = blake2b(digest_size=16)
            while data := os.read(fd, 1 << 20):
                total.update(data)
            return total.digest()
        finally:
            os.close(fd)
    except OSError:
        return None
    finally:
        tree.give_back()
