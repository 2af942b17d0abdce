"""Resolve symbolic links in a tree as it will be after a commit.

Computed from the layers and the bases; no link is followed on the host. A sandbox chooses what its links
say, so a chain of them is bounded as the kernel bounds one.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .merged_view import OpenLayers

#: The kernel gives up on a path with more links than this (path_resolution(7)).
_MOST_LINKS = 40


class LinkTargets:
    """Reads links in the merged tree of a view, each once."""

    def __init__(self, opened: OpenLayers) -> None:
        self._opened = opened
        self._targets: dict[str, str | None] = {}

    def target(self, path: str) -> str | None:
        """The text of the link at `path`; None where there is no link."""
        if path not in self._targets:
            self._targets[path] = self._read(path)
        return self._targets[path]

    def resolve(self, path: str) -> str | None:
        """The path of what `path` leads to, relative to the tree; None when it leads out of it."""
        todo, links = path.split("/")[::-1], 0
        done: list[str] = []
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not done:
                    return None
                done.pop()
                continue
            done.append(part)
            target = self.target("/".join(done))
            if target is None:
                continue
            links += 1
            if target.startswith("/") or links > _MOST_LINKS:
                return None
            done.pop()
            todo.extend(target.split("/")[::-1])
        return "/".join(done)

    def _read(self, path: str) -> str | None:
        parent, _, name = path.rpartition("/")
        for tree in (*self._opened.layers, *self._opened.bases):
            found = tree.status(path)
            if found is None:
                continue
            if not stat.S_ISLNK(found.st_mode):
                return None
            try:
                directory = tree.directory(parent)
                try:
                    return os.readlink(name, dir_fd=directory)
                finally:
                    os.close(directory)
                    tree.give_back()
            except OSError:
                return None  # another thing by now
        return None
