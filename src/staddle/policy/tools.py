"""Find the toolchains of the caller. The result is cached while PATH and its directories are unchanged."""

from __future__ import annotations

import os
import time

from ..hostinfo.layouts import ENVIRONMENTS, SYSTEM
from ..hostinfo.resolution import HostPaths
from ..linux import fileio
from ..paths import WORKSPACE_PATH, absolute, covers, not_for
from . import presets, system
from .plan import Link, Note
from .resolve_rules import ResolvedRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..hostinfo.resolution import PathContext, ResolvedPath
    from ..hostinfo.toolchains import Toolchains

_ORIGIN = "toolchains"

#: Maximum length of a version file or a pyvenv.cfg.
_LONGEST = 1 << 16
#: Variables about toolchains.
VARIABLES = (
    *("PATH", "VIRTUAL_ENV", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "PYENV_VERSION", "RBENV_VERSION"),
    *("NODENV_VERSION", "GOENV_VERSION", "PHPENV_VERSION", "PLENV_VERSION"),
)
#: Seconds for which a result is valid, because deeper directories may change; number of cached results.
_FRESH, _MOST_KNOWN = 30.0, 16
_known: dict[object, tuple[float, Toolchains]] = {}


class Disk:
    """The host's disk, read with the caller's rights."""

    def __init__(self) -> None:
        self._host = HostPaths()

    def find(self, path: str) -> ResolvedPath:
        """Resolve an absolute path."""
        return self._host.find(path)

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory."""
        try:
            return sorted(os.listdir(directory))
        except OSError:
            return []

    def text(self, path: str) -> str:
        """Return the beginning of a regular file."""
        return fileio.read_text(path, _LONGEST)


class Tools:
    """The toolchain part of a plan: rules, links, PATH, notes."""

    __slots__ = ("after", "before", "links", "notes", "rules")

    def __init__(self) -> None:
        self.rules: list[ResolvedRule] = []
        self.links: list[Link] = []
        self.before: tuple[str, ...] = ()
        self.after: tuple[str, ...] = ()
        self.notes: list[Note] = []


def tools(
    context: PathContext,
    host: HostPaths,
    rules: Sequence[ResolvedRule],
    home: str,
    *,
    workspace: str | None,
    moved: bool,
) -> Tools:
    """Find toolchains for a plan with `rules` and `home`. `moved`: the workspace has another path inside."""
    made = Tools()
    path = context.env.get("PATH", "")
    places = [place for place in path.split(":") if place[:1] == "/" and place not in SYSTEM]
    places += _environments(workspace)
    if not places:
        return made  # as on most servers: no further search
    granted = [rule.place.path for rule in rules if rule.field in ("read", "write")]
    seen = [*granted, workspace] if moved and workspace is not None else granted
    found = _found(path, places, context, (seen, home, workspace))
    for one in found.toolchains:
        place = host.find(one.root)
        if place.kind in ("directory", "file") and place.path == one.root and not not_for("read", one.root):
            made.rules.append(ResolvedRule("read", place, f"toolchain {one.what}: {one.why}"))
    made.rules += [ResolvedRule("deny", host.find(place), _ORIGIN) for place in found.denied]
    made.links = [
        Link(where, to, _ORIGIN)
        for where, to in found.links
        if not (moved and workspace is not None and covers(workspace, where))  # visible anyway
    ]
    # Scripts of a virtual environment begin with the path of its interpreter, so the workspace needs a link
    # at its host path. But nothing can be mounted below a link.
    named = workspace if moved and found.at_its_place else None
    if named is not None and not any(covers(named, path) for path in granted):
        made.links.append(Link(named, WORKSPACE_PATH, "the virtual environment of the workspace"))
    away = [rule.place.path for rule in rules if rule.field == "deny" and rule.asked]
    made.before, made.after = (
        tuple(
            WORKSPACE_PATH + place[len(workspace) :]
            if moved and workspace and covers(workspace, place)
            else place
            for place in places
            if not any(covers(path, place) for path in away)
        )
        for places in (found.before, found.after)
    )
    made.notes = [
        Note(f"{path!r} on the PATH is not shown: it is not a toolchain that staddle knows", _ORIGIN)
        for path in found.left_out
    ]
    return made


def _environments(workspace: str | None) -> list[str]:
    """Return the existing pyvenv.cfg files of the workspace's virtual environments."""
    if workspace is None:
        return []
    places = (f"{workspace}/{name}/pyvenv.cfg" for name in ENVIRONMENTS)
    return [place for place in places if os.access(place, os.F_OK)]


def _found(
    path: str, places: Iterable[str], context: PathContext, around: tuple[list[str], str, str | None]
) -> Toolchains:
    """Return the toolchains of `path`, cached while `places` are unchanged.

    `around` are the visible paths, the home inside (which is private), and the workspace.
    """
    visible, inside, workspace = around
    env, home = context.env, context.home
    said = tuple(env.get(name) for name in VARIABLES)
    key = (home, tuple(visible), inside, workspace, said, tuple(map(_stamp, places)))
    made = _known.get(key)
    now = time.monotonic()
    if made is not None and now - made[0] <= _FRESH:
        return made[1]
    from ..hostinfo.toolchains import find

    private = [item.path for item in system.scratch(inside)]

    def hidden(place: str) -> bool:
        nearest = max((len(path) for path in visible if covers(path, place)), default=0)
        return not nearest or any(covers(path, place) and len(path) > nearest for path in private)

    denied = [absolute(path, "", home) for path in presets.denied("agent")]
    found = find(path, home, Disk(), hidden=hidden, denied=denied, env=env, workspace=workspace)
    while len(_known) >= _MOST_KNOWN:
        _known.pop(next(iter(_known), key), None)
    _known[key] = (now, found)
    return found


def _stamp(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except (OSError, ValueError):
        return 0
