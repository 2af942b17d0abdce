"""The directory of imported bases, and the names they can have. `bases/store.py` lists and removes them."""

from __future__ import annotations

import os

from ..errors import BaseError

#: Says where they are, in the place of the data directory.
VARIABLE = "STADDLE_BASES"
LONGEST_NAME = 64
_IN_A_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


def directory() -> str:
    """The directory of all of them. It need not exist."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen.startswith("/"):
        return chosen
    data = os.environ.get("XDG_DATA_HOME", "")
    # The specification says that a relative one is to be ignored.
    home = data if data.startswith("/") else os.path.expanduser("~/.local/share")
    return f"{home}/staddle/bases"


def checked_name(name: str) -> str:
    """`name`, if a base can be called so."""
    odd = next((char for char in name if char not in _IN_A_NAME), "")
    if not name or len(name) > LONGEST_NAME or odd or name[0] in ".-":
        why = f"it has {odd!r} in it" if odd else f"1 to {LONGEST_NAME} characters, no '.' or '-' first"
        raise BaseError(
            f"a base cannot be called {name!r}", why=why, fix="use letters, digits, '_', '-' and '.'"
        )
    return name


def imported(name: str) -> str | None:
    """The root of the base called `name`; None if there is none."""
    try:
        checked_name(name)
    except BaseError:
        return None
    root = f"{directory()}/{name}/root"
    return root if os.path.isdir(root) and not os.path.islink(root) else None
