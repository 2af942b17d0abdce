"""From paths that a run used to the fewest sensible grants. Pure: it reads no disk.

A path is granted by itself, unless a rule of the table names the directory that it belongs to, or several
files next to it were used. NEVER lists directories that are not granted whole, because far more is in them
than any run uses.
"""

from __future__ import annotations

import os
import re
from functools import cache

from .._value import Value
from ..paths import above, covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: Never granted whole; `~` is the home of the user who learns. Also never: another user's home.
NEVER = (
    *(
        "/",
        "/boot",
        "/dev",
        "/etc",
        "/home",
        "/lost+found",
        "/media",
        "/mnt",
        "/opt",
        "/proc",
        "/root",
        "/run",
    ),
    *("/srv", "/sys", "/tmp", "/usr", "/usr/local", "/usr/share", "/usr/lib", "/var", "/var/cache"),
    *(
        "/var/lib",
        "/var/log",
        "/var/run",
        "/var/spool",
        "/var/tmp",
        "/var/www",
        "/nix",
        "/nix/store",
        "/run/user",
    ),
    *("~", "~/.cache", "~/.config", "~/.local", "~/.local/bin", "~/.local/lib", "~/.local/share"),
    *("~/.local/state", "~/bin", "~/Desktop", "~/Documents", "~/Downloads", "~/Library", "~/Pictures"),
)
#: The directory that a file belongs to, as the first group. The first rule that matches applies.
BELONGS = (
    (r"(.+/node_modules)(/.*)?", "packages of Node.js"),
    (r"(.+/\.git)(/.*)?", "a git repository"),
    (r"(~/\.cache/[^/]+)/.*", "a cache"),
    (r"(~/\.pyenv/versions/[^/]+)/.*", "a Python"),
    (r"(~/\.nvm/versions/node/[^/]+)/.*", "a Node.js"),
    (r"(~/\.rustup/toolchains/[^/]+)/.*", "a Rust"),
    (r"(~/\.cargo/registry)/.*", "crates"),
    (r"(~/go/pkg/mod)/.*", "Go modules"),
    (r"(~/\.m2/repository)/.*", "Maven artifacts"),
    (r"(~/\.gradle/caches)/.*", "Gradle caches"),
    (r"(~/\.local/share/uv/[^/]+)/.*", "uv"),
    (r"(/nix/store/[^/]+)/.*", "a Nix package"),
    (r"(.+)/(?:lib|lib64)/python3[^/]*/.*", "a Python environment"),
    (r"(.+/lib/python3[^/]*/site-packages)/.*", "Python packages"),
    (r"(.+/site-packages)/.*", "Python packages"),
)
#: Files in one directory from which on the directory is granted.
MANY = 4
#: Grants above which neighbours are folded further, so that a policy stays readable.
SCREEN = 24


class Used(Value):
    """A path to grant. `whole`: a directory whose names were listed."""

    path: str
    whole: bool = False


def is_never(path: str, home: str) -> bool:
    """Whether `path` is one of NEVER, a user's home, or has one of these below it."""
    return path in _never(home) or bool(re.fullmatch(r"/home/[^/]+", path))


@cache
def _never(home: str) -> frozenset[str]:
    places = [each.replace("~", home, 1) for each in NEVER]
    return frozenset(each for place in places for each in (place, *above(place)))


def fold(used: Iterable[Used], home: str) -> dict[str, tuple[str, ...]]:
    """Return the grants, each with the used paths that it covers, which are at least one."""
    paths = {each.path: each for each in used if not (each.whole and is_never(each.path, home))}
    grants = {path for path in paths if not is_never(path, home)}
    grants = _by_rules(grants, home)
    grants = _by_neighbours(grants, {each.path for each in paths.values() if each.whole}, home)
    while len(grants) > SCREEN:
        fewer = _by_screen(grants, home)
        if fewer == grants:
            break
        grants = fewer
    grants = outermost(grants)
    covered: dict[str, list[str]] = {grant: [] for grant in sorted(grants)}
    for path in sorted(paths):
        grant = next((each for each in (path, *above(path)) if each in covered), None)
        if grant is not None:
            covered[grant].append(path)
    return {grant: tuple(files) for grant, files in covered.items()}


def outermost(grants: Iterable[str]) -> set[str]:
    """Return the paths without those below another one."""
    known = set(grants)
    return {path for path in known if not any(parent in known for parent in above(path))}


def _by_rules(grants: set[str], home: str) -> set[str]:
    """Replace two or more files of one package, environment or cache by its directory."""
    owners: dict[str, set[str]] = {}
    for path in grants:
        if (owner := belongs_to(path, home)) is not None:
            owners.setdefault(owner, set()).add(path)
    folded = {owner: files for owner, files in owners.items() if len(files) > 1 or owner in files}
    return (grants - {path for files in folded.values() for path in files}) | folded.keys()


def belongs_to(path: str, home: str) -> str | None:
    """Return the directory of the table that `path` belongs to, if that may be granted."""
    short = "~" + path[len(home) :] if covers(home, path) else path
    for pattern, _ in BELONGS:
        if (found := re.fullmatch(pattern, short)) is not None:
            owner = found[1].replace("~", home, 1) if found[1].startswith("~") else found[1]
            if not is_never(owner, home):
                return owner
    return None


def _by_neighbours(grants: set[str], listed: set[str], home: str) -> set[str]:
    """Replace many files of a directory by the directory."""
    grants = outermost(grants)
    parents: dict[str, int] = {}
    for path in grants:
        parents[os.path.dirname(path)] = parents.get(os.path.dirname(path), 0) + 1
    many = {place for place, count in parents.items() if count >= MANY and not is_never(place, home)}
    return outermost(grants | many | (listed & grants))


def _by_screen(grants: set[str], home: str) -> set[str]:
    """Fold the deepest directories with at least two grants in them; return the same if there are none."""
    inside: dict[str, int] = {}
    for path in grants:
        for place in above(path):
            inside[place] = inside.get(place, 0) + 1
    several = [place for place, count in inside.items() if count > 1 and not is_never(place, home)]
    deepest = max((place.count("/") for place in several), default=0)
    return outermost(grants | {place for place in several if place.count("/") == deepest})
