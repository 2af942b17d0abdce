"""List and remove kept sandboxes."""

from __future__ import annotations


def kept_sandboxes() -> list[str]:
    """Return the names of this user's kept sandboxes; `Sandbox(keep=NAME)` continues one."""
    from ..layers.session_record import names

    return names()


def remove_kept(name: str) -> None:
    """Remove the kept sandbox `name` with all its changes. Its workspace is not touched.

    Raises LayerError if it does not exist or is in use.
    """
    from ..layers import trash
    from ..layers.persistent_store import remove

    remove(name)
    trash.wait()
