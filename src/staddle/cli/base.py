"""`staddle base`: import images as root file systems for sandboxes, without a daemon."""

from __future__ import annotations

import sys

from ..display import shown
from ..errors import UsageError
from .kept import JSON, age, begin, print_json
from .options import HELP, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..bases.store import ImportedBase

_OPTIONS = (JSON, HELP)
_HELP = """\
Keep root file systems that replace this machine's system inside a sandbox.

usage: staddle base import IMAGE.tar [NAME]   make one of an image: `docker save`, or an OCI archive
       staddle base ls                        list them
       staddle base rm NAME...                remove them

Its layers are unpacked in their order, each compared with its digest. Everything in it becomes
yours; set-user-id bits, devices and the image's own environment are left out. Bases lie in
$XDG_DATA_HOME/staddle/bases (~/.local/share), or in $STADDLE_BASES.

{options}

  docker save debian:12 -o debian.tar
  staddle base import debian.tar
  staddle run --base debian -- cat /etc/os-release
"""


def verbs() -> dict[str, tuple[Option, ...]]:
    """Return the options of each of its commands."""
    return {"ls": _OPTIONS, "import": _OPTIONS, "rm": (HELP,)}


def main(words: Sequence[str]) -> int:
    """Import, list or remove bases."""
    parsed = begin(words, _OPTIONS, "base", _HELP)
    if parsed is None:
        return 0
    verb, *rest = parsed.words or ("",)
    if parsed.on("json") and verb not in ("ls", "import"):
        raise UsageError("--json is for the list and for an import", fix="leave it out")
    if verb == "ls" and not rest:
        return _list(parsed.on("json"))
    if verb == "import" and 1 <= len(rest) <= 2:
        return _import(rest[0], rest[1] if rest[1:] else None, parsed.on("json"))
    if verb == "rm" and rest:
        from ..bases.store import remove

        for name in rest:
            remove(name)
        return 0
    raise UsageError(
        f"staddle base does not understand {' '.join(parsed.words)!r}",
        fix="write: base import IMAGE.tar [NAME], base ls, or base rm NAME",
    )


def _import(archive: str, name: str | None, as_json: bool) -> int:
    import signal

    from ..bases.store import import_image

    # After a signal, clean up as after an error.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        made = import_image(archive, name, progress=_say if sys.stderr.isatty() else None)
    except SystemExit as error:
        return int(error.code or 0)
    if as_json:
        print_json(_facts(made))
    else:
        print(f"{shown(made.name)}: {made.entries:,} entries, {made.size:,} bytes")
    return 0


def _say(what: str) -> None:
    print(f"staddle: {what}", file=sys.stderr, flush=True)


def _list(as_json: bool) -> int:
    from ..bases.store import listed

    found = list(listed())
    if as_json:
        print_json([_facts(base) for base in found])
        return 0
    width = max((len(base.name) for base in found), default=0)
    for base in found:
        size = f"{base.size:>14,} bytes"
        print(f"{base.name:<{width}}  {size}  {age(base.created):>4} ago  {shown(base.source)}")
    return 0


def _facts(base: ImportedBase) -> dict[str, object]:
    return {
        "name": base.name,
        "root": shown(base.root),
        "source": base.source,
        "bytes": base.size,
        "entries": base.entries,
        "created": base.created,
    }
