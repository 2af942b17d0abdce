"""Discard some changes of a layer, so that the lower state is visible there again."""

from __future__ import annotations

import os
import stat

from ..errors import LayerError
from ..files.remove_tree import copy_file
from ..files.tree import Tree
from .differences import Difference, Selection, differences
from .layer_writer import LayerWriter
from .merge import copy_of, merge
from .merged_view import LayerView, OpenLayers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection


def discard(view: LayerView, paths: Collection[str], destination: str, owner: tuple[int, int] | None) -> None:
    """Fill the empty `destination` with the first layer of `view`, without its changes at `paths`.

    If another layer of the view made a change there, an entry on top undoes it.
    """
    selection = Selection(paths)
    merge(view.layers[:1], destination, without=selection)
    rest = LayerView((destination, *view.layers[1:]), view.bases)
    with OpenLayers(rest) as opened:
        found = sorted(differences(opened, selection), key=lambda item: item.path.split("/"))
    with OpenLayers(rest) as opened:
        covering = _Covering(opened, owner)
        for item in found:
            covering.cover(item)
        covering.finish()


def bring_back(source: str, paths: Collection[str], destination: str, hidden: Collection[str] = ()) -> None:
    """Restore `paths`, except `hidden` ones, from `source` in `destination`, a copy without them."""
    root = os.open(destination, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with Tree(source, ours=False) as base:
            for path in sorted({path.strip("/") for path in paths}, key=lambda path: path.split("/")):
                if path not in hidden and (status := base.status(path)) is not None:
                    _bring(base, root, path, status, Selection(hidden) if hidden else None)
    finally:
        os.close(root)


def _bring(base: Tree, root: int, path: str, status: os.stat_result, hidden: Selection | None) -> None:
    parent, _, name = path.rpartition("/")
    here = _way(base, root, parent)
    try:
        source = base.directory(parent)
        try:
            if stat.S_ISDIR(status.st_mode):
                os.mkdir(name, 0o700, dir_fd=here)
                below = hidden.below(path) if hidden is not None else None
                copy_of(f"/proc/self/fd/{source}/{name}", f"/proc/self/fd/{here}/{name}", without=below)
            elif stat.S_ISLNK(status.st_mode):
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=here)
            elif stat.S_ISREG(status.st_mode):
                _copy(base, source, here, name)
        finally:
            os.close(source)
    except FileExistsError:
        pass  # it came with a directory above
    finally:
        os.close(here)


def _way(base: Tree, root: int, path: str) -> int:
    """Open the directory `path` of a copy; create missing parts as on the host."""
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    whole = ""
    for name in path.split("/") if path else ():
        whole = f"{whole}/{name}" if whole else name
        try:
            os.mkdir(name, 0o700, dir_fd=here)
            if (status := base.status(whole)) is not None:
                os.chmod(name, stat.S_IMODE(status.st_mode) & 0o777 | 0o700, dir_fd=here)
        except FileExistsError:
            pass
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            below = os.open(name, flags, dir_fd=here)
        except OSError:
            raise LayerError(
                f"the changes below {whole!r} cannot be dropped alone",
                why="the sandbox made it something else than a directory, or closed it",
                fix=f"drop {whole!r} too",
            ) from None
        finally:
            os.close(here)
        here = below
    return here


class _Covering:
    """The top layer, in which entries of the bases cover the changes of other layers."""

    def __init__(self, opened: OpenLayers, owner: tuple[int, int] | None) -> None:
        self._opened, self._root = opened, opened.layers[0].root
        self._writer = LayerWriter(self._root, owner)
        #: Below these paths nothing has to be done: the entry above covers it all.
        self._covered: set[str] = set()

    def cover(self, item: Difference) -> None:
        """Make the path of `item` show the entry of the bases."""
        if any(item.path.startswith(f"{path}/") for path in self._ancestors(item.path)):
            return
        parent, _, name = item.path.rpartition("/")
        here = self._parent(parent)
        try:
            if item.kind != "mode" or item.old is None or not stat.S_ISDIR(item.old.st_mode):
                self._clear(here, name, item.path)
            if item.old is None:
                self._writer.whiteout(here, name)
                self._covered.add(item.path)
            else:
                self._put(here, name, item, item.old)
        finally:
            os.close(here)

    def finish(self) -> None:
        self._writer.finish()

    def _ancestors(self, path: str) -> list[str]:
        parts = path.split("/")
        return [one for count in range(1, len(parts)) if (one := "/".join(parts[:count])) in self._covered]

    def _put(self, here: int, name: str, item: Difference, old: os.stat_result) -> None:
        base = self._opened.bases[item.base]
        if stat.S_ISDIR(old.st_mode):
            try:
                self._writer.mkdir(here, item.path)
            except FileExistsError:
                self._writer.chown(here, name)
            self._writer.set_mode(item.path, old.st_mode)
            return
        self._covered.add(item.path)
        source = base.directory(item.path.rpartition("/")[0])
        try:
            plain = stat.S_ISLNK(old.st_mode) or stat.S_ISREG(old.st_mode)
            kind = old.st_mode if plain else stat.S_IFIFO | stat.S_IMODE(old.st_mode)
            self._writer.copy(base, source, here, name, kind)
        finally:
            os.close(source)

    def _parent(self, path: str) -> int:
        """Open the directory `path` of the layer; create missing parts as in the merged view."""
        here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
        whole = ""
        for name in path.split("/") if path else ():
            whole = f"{whole}/{name}" if whole else name
            try:
                status = os.stat(name, dir_fd=here, follow_symlinks=False)
            except FileNotFoundError:
                self._make(here, whole, opaque=False)
            else:
                if stat.S_ISCHR(status.st_mode):
                    # Deleted as a whole. It is restored with only the selected contents.
                    os.unlink(name, dir_fd=here)
                    self._make(here, whole, opaque=True)
                elif not stat.S_ISDIR(status.st_mode):
                    os.close(here)
                    raise LayerError(
                        f"the changes below {whole!r} cannot be dropped alone",
                        why="the sandbox made it something else than a directory",
                        fix=f"drop {whole!r} too",
                    )
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            above, here = here, below
            os.close(above)
        return here

    def _make(self, here: int, path: str, *, opaque: bool) -> None:
        self._writer.mkdir(here, path, opaque=opaque)
        for tree in (*self._opened.layers[1:], *self._opened.bases):
            status = tree.status(path)
            if status is not None and stat.S_ISDIR(status.st_mode):
                self._writer.chown(here, path.rpartition("/")[2], status)
                self._writer.set_mode(path, status.st_mode)
                break

    def _clear(self, here: int, name: str, path: str) -> None:
        """Remove the layer's own entry at a selected path, unless this call has put it there."""
        try:
            os.unlink(name, dir_fd=here)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            pass  # put there by us, for the entries below it


def _copy(base: Tree, source: int, here: int, name: str) -> None:
    fd = base.file(source, name)
    try:
        copy_file(fd, here, name, os.fstat(fd))
    finally:
        os.close(fd)
