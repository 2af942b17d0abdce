"""Where imported bases lie: a directory for each, in the user's data directory.

    <data>/staddle/bases/<name>/root          the root file system
                               /about.json    what it was made of
                        /.<random>/...        one in the making, or one that is going

A base appears under its name by one rename, when it is whole.
"""

from __future__ import annotations

import os

from .._value import Value
from ..errors import BaseError
from ..policy.base import checked_name, directory, imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class ImportedBase(Value):
    """One imported base. `source` is what the archive called itself, `size` the bytes in its files."""

    name: str
    root: str
    source: str
    size: int
    entries: int
    created: float


def listed() -> Iterator[ImportedBase]:
    """All of them, by name. One whose record cannot be read is there, with nothing known about it."""
    import json

    try:
        names = sorted(os.listdir(directory()))
    except OSError:
        return
    for name in names:
        root = imported(name)
        if root is None:
            continue
        try:
            with open(f"{directory()}/{name}/about.json", encoding="utf-8") as file:
                about = json.loads(file.read(1 << 16))
            yield ImportedBase(
                name,
                root,
                str(about["source"]),
                int(about["size"]),
                int(about["entries"]),
                float(about["created"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            yield ImportedBase(name, root, "", 0, 0, 0.0)


def remove(name: str) -> None:
    """Let a base go. Sandboxes that have it now keep what they have seen of it open, and lose the rest."""
    checked_name(name)
    here = directory()
    if not os.path.isdir(f"{here}/{name}"):
        raise BaseError(f"there is no base {name!r}", fix="`staddle base ls` lists them")
    gone = f"{here}/.{os.urandom(8).hex()}"
    os.rename(f"{here}/{name}", gone)
    delete(gone)


def delete(path: str) -> None:
    """Remove a tree of ours, with directories in it that cannot be entered."""
    from ..files.remove_tree import remove as remove_tree

    remove_tree((os.fsencode(path),))
