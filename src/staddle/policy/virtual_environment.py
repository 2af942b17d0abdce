"""A virtual environment of the host, continued inside: its packages are read there, new ones go to the home.

What is shown of the host cannot be written, so `pip install` in an activated virtual environment would fail.
Inside, an environment of the sandbox's own comes before it on the PATH: with the same interpreter, with
everything that the host's one has behind its own packages, and with the same scripts for its own interpreter.
"""

from __future__ import annotations

import os

from ..linux import fileio
from .plan import Link, Text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Parts = tuple[tuple[Text, ...], tuple[Link, ...]]

#: Where it is in the home.
NAME = ".venv"
ORIGIN = "virtual environment"
#: Scripts of an environment: how many are looked at, and how long one may be.
_MOST, _LONGEST = 500, 1 << 15
#: The line of a script that names its interpreter may be the second one, where its path is long.
_HEAD = 600
_MOST_KNOWN = 8
_known: dict[object, Parts] = {}


def is_environment(directory: str) -> bool:
    """Whether `directory`, on the PATH, is the `bin` of a virtual environment."""
    root, name = os.path.split(directory)
    return (
        name == "bin"
        and os.access(f"{root}/pyvenv.cfg", os.R_OK)
        and os.access(f"{directory}/python", os.X_OK)
    )


def continued(root: str, place: str) -> Parts:
    """The files and links that make `place` an environment which continues that in `root`, of the host."""
    key = (root, place, *(_stamp(f"{root}/{name}") for name in ("pyvenv.cfg", "bin", "lib")))
    made = _known.get(key)
    if made is None:
        made = (tuple(_texts(root, place)), tuple(_links(root, place)))
        while len(_known) >= _MOST_KNOWN:
            _known.pop(next(iter(_known), key), None)
        _known[key] = made
    return made


def _texts(root: str, place: str) -> Iterator[Text]:
    yield Text(f"{place}/pyvenv.cfg", _content(f"{root}/pyvenv.cfg"), ORIGIN, 0o644)
    for version in _names(f"{root}/lib"):
        packages = f"{root}/lib/{version}/site-packages"
        if version.startswith("python3") and os.path.isdir(packages):
            # As a directory of packages, not as a path: what is installed there may have lines of its own.
            line = f"import site; site.addsitedir({packages!r})\n"
            yield Text(f"{place}/lib/{version}/site-packages/_host.pth", line.encode(), ORIGIN, 0o644)
    old, new = f"{root}/bin/python".encode(), f"{place}/bin/python".encode()
    for name in _names(f"{root}/bin")[:_MOST]:
        script = _script(f"{root}/bin/{name}")
        if old in script[:_HEAD]:
            content = script[:_HEAD].replace(old, new) + script[_HEAD:]
            yield Text(f"{place}/bin/{name}", content, ORIGIN, 0o755)


def _links(root: str, place: str) -> Iterator[Link]:
    for name in _names(f"{root}/bin"):
        if name == "python" or name.startswith("python3"):
            path = f"{root}/bin/{name}"
            if not _script(path) and os.access(path, os.X_OK):
                yield Link(f"{place}/bin/{name}", path, ORIGIN)


def _script(path: str) -> bytes:
    """A script, if it is one and not long; else nothing."""
    content = _content(path)
    return content if content.startswith(b"#!") and len(content) < _LONGEST else b""


def _content(path: str) -> bytes:
    # A link may lead to what is hidden, and a sandbox may have made it.
    return os.fsencode(fileio.read_text(path, _LONGEST, os.O_NOFOLLOW))


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _stamp(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
