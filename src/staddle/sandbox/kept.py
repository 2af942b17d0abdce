"""Sandboxes that were kept by name: which there are, and their end."""

from __future__ import annotations


def kept_sandboxes() -> list[str]:
    """The names of all kept sandboxes of this user; `Sandbox(keep=NAME)` continues one."""
    from ..layers.session_record import names

    return names()


def remove_kept(name: str) -> None:
    """Remove the kept sandbox `name` with everything that was changed in it. Its workspace is not touched.

    LayerError if there is none, or if it is in use.
    """
    from ..layers import trash
    from ..layers.persistent_store import remove

    remove(name)
    trash.wait()
