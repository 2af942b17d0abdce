"""`staddle cache`: the package cache of this user."""

from __future__ import annotations

from ..display import shown
from ..errors import UsageError
from .kept import JSON, age, begin, print_json
from .options import HELP, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_HELP = """\
Manage the packages that sandboxes with --package-cache have downloaded.

usage: staddle cache ls       list them with their sizes, the least recently used first
       staddle cache clear    remove all of them
       staddle cache path     print the directory

The cache has at most 10 GiB. staddle removes what was not used for the longest time.

{options}
"""


def verbs() -> dict[str, tuple[Option, ...]]:
    """Return the options of each of its commands."""
    return {"ls": (JSON, HELP), "clear": (HELP,), "path": (HELP,)}


def main(words: Sequence[str]) -> int:
    """List or clear the cache, or print its place."""
    parsed = begin(words, (JSON, HELP), "cache", _HELP)
    if parsed is None:
        return 0
    verb = parsed.words[0] if len(parsed.words) == 1 else ""
    if verb not in ("ls", "clear", "path"):
        said = " ".join(parsed.words)
        raise UsageError(
            f"staddle cache does not understand {said!r}" if said else "staddle cache needs a command",
            fix="write: cache ls, cache clear, or cache path",
        )
    if parsed.on("json") and verb != "ls":
        raise UsageError("--json is for the list", fix="leave it out")
    from ..packages.cache import PackageCache

    cache = PackageCache()
    if verb == "path":
        print(cache.place)
    elif verb == "clear":
        print(f"{cache.clear():,} bytes removed")
    elif parsed.on("json"):
        print_json([{"name": file.name, "bytes": file.size, "used": file.used} for file in cache.files()])
    else:
        files = cache.files()
        if not files:
            print("no package is cached; `staddle run --package-cache` keeps what it downloads")
        for file in files:
            print(f"{file.size:>14,} bytes  {age(file.used):>4} ago  {shown(file.name)}")
    return 0
