"""Downloads for other sandboxes: a cache that they all see, and that none of them can change.

It is filled only on a call from outside (`keep`), and used only by sandboxes that are told
to. There it lies under their own caches: what they download goes to their layers. Whoever keeps
downloads vouches for them: what a sandbox has in its cache is that sandbox's word.
"""

from __future__ import annotations

import os

from ..files import beneath
from ..layers.unified_diff import content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..layers.changes import Change

#: The directories of a home that caches are in, and what of them is kept: pip's, uv's and npm's.
PLACES = (".cache", ".npm")
KEPT = (".cache/pip/", ".cache/uv/", ".npm/_cacache/")
#: Names another place for them. Run by root, everybody must be able to pass through to it.
VARIABLE = "STADDLE_DOWNLOADS"
_LARGEST, _MOST = 256 << 20, 16 << 30


def home_of_downloads() -> str:
    """Where they are on the host: the user's own cache. Root's is where everybody may read."""
    if chosen := os.environ.get(VARIABLE):
        return os.path.abspath(chosen)
    if os.geteuid() == 0:
        return "/var/cache/staddle/downloads"
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(caches, "staddle", "downloads")


def keep(changes: Iterable[Change], home: str) -> int:
    """Copy what is in the caches of a sandbox whose home is `home`; how many files that were."""
    place = home_of_downloads()
    os.makedirs(place, 0o755, exist_ok=True)
    root = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    count, room = 0, _MOST
    try:
        for change in changes:
            path = change.path.removeprefix(f"{home}/")
            if change.type != "file" or path == change.path or not path.startswith(KEPT):
                continue
            data = content(change, min(_LARGEST, room), new=True)
            if data is None:
                continue
            with beneath.pending(root, path) as file:
                file.write(data)
            count, room = count + 1, room - len(data)
    finally:
        os.close(root)
    return count


def trees(home: str, store: str, owner: int | None) -> dict[str, list[str]]:
    """The layers below the caches of a sandbox whose home is `home`, topmost first; see `snapshot.extend`.

    `owner` is who the sandbox's user is on the host, if not we: then directories of its own lie over
    ours, in `store`.
    """
    from .system_layer import repeated

    kept = home_of_downloads()
    found: dict[str, list[str]] = {}
    for name in PLACES:
        below = f"{kept}/{name}"
        if not os.path.isdir(below):
            continue
        own = [] if owner is None else [repeated(below, f"{store}/downloads-{os.urandom(6).hex()}", owner)]
        found[f"{home}/{name}"] = [*own, below]
    return found
