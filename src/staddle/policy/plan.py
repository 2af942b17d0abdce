"""The plan: a policy resolved for this host, as plain data.

Nothing here accesses the system. `compile` makes a plan, a backend executes it, and `staddle explain` prints
it. Every item has an `origin`, so that a user can ask why a path is visible.

Paths are absolute, without `.`, `..` or symlinks, and are `str` as from `os.fsdecode`, which preserves any
bytes. A path inside is the same as outside, unless a grant has a `source`.

Values derived from a plan (the layout, the decision about a sandbox) are cached by plan identity and a key. A
compiled plan is reused only briefly (see `workspace`), because the host may change. A program that opens many
sandboxes at once uses one plan for them.
"""

from __future__ import annotations

from .._value import Value
from ..paths import covers
from .identity import Identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Literal

    from .egress_secret import EgressSecret
    from .limits import Limits
    from .network import Network

#: The origin of a grant for a private copy. Writes to it change no file of the host.
COPY = "copy"


class Grant(Value):
    """`path` and everything below it may be read (and run), or read and written.

    `source` is the path on the host, if it is different.
    """

    path: str
    access: Literal["read", "write"]
    directory: bool
    origin: str
    source: str = ""


class Layered(Value):
    """Changes at and below `path`, which is granted for reading, go to `upper`, a directory of staddle.

    The kernel uses `work`, on the same file system. Write grants below `path` still change the host's files.
    """

    path: str
    upper: str
    work: str
    origin: str


class Hidden(Value):
    """`path` and everything below it cannot be read or changed inside, even below a grant.

    `missing` means that it did not exist when the plan was made.
    """

    path: str
    kind: Literal["file", "directory", "missing"]
    origin: str


class Guard(Value):
    """A protected name below a write grant: it may be read, but not changed, moved or replaced."""

    path: str
    directory: bool
    origin: str


class Link(Value):
    """A symlink to create inside, so that a usual spelling works (`/bin`, a linked grant)."""

    path: str
    target: str
    origin: str


class Text(Value):
    """A small file that exists only inside, or a copy of a host file that is safe to show.

    A writable one belongs to the sandbox's user.
    """

    path: str
    content: bytes
    origin: str
    mode: int = 0o444


class Scratch(Value):
    """An empty directory of this run alone, deleted at its end."""

    path: str
    mode: int
    size: int
    origin: str


class Socket(Value):
    """A UNIX socket that may be connected to. It may appear later: missing is no error."""

    path: str
    present: bool
    origin: str


class Closed(Value):
    """A UNIX socket in a granted directory that was not granted by name: it cannot be connected to.

    `which` identifies it: a mask for this socket does not cover another one bound there later.
    """

    path: str
    origin: str
    which: str = ""


class Device(Value):
    """A character device of the host, with the numbers that it had when the plan was made."""

    path: str
    major: int
    minor: int
    origin: str


class Variable(Value):
    """One environment variable inside. `secret` values are never shown."""

    name: str
    value: str
    origin: str
    secret: bool = False

    def __repr__(self) -> str:
        return Value.__repr__(self.replace(value="(hidden)") if self.secret else self)


class Note(Value):
    """Information for a reader of the plan: a rule without effect, a followed link."""

    text: str
    origin: str


class Plan(Value):
    """The facts a backend needs, without how to enforce them."""

    grants: tuple[Grant, ...]
    hidden: tuple[Hidden, ...]
    guards: tuple[Guard, ...]
    links: tuple[Link, ...]
    texts: tuple[Text, ...]
    scratch: tuple[Scratch, ...]
    sockets: tuple[Socket, ...]
    variables: tuple[Variable, ...]
    network: Network
    limits: Limits
    identity: Identity
    cwd: str
    notes: tuple[Note, ...] = ()
    unprotect: tuple[str, ...] = ()
    #: Only the namespaces backend supports layers.
    layers: tuple[Layered, ...] = ()
    #: Seconds for `on_connect` to decide about an unlisted destination; 0: not asked.
    asks: int = 0
    closed: tuple[Closed, ...] = ()
    #: The host's path of the root file system inside; empty: the host's own system.
    base: str = ""
    #: Whether documented gaps of a backend are accepted if every backend has gaps.
    nested: bool = False
    #: Users inside who may create directories in `/`: "root", or "writable" for all.
    world: str = "root"
    #: Whether printed output hides the values of secret variables.
    redact: bool = True
    #: Devices of the host that may be used, besides those of every sandbox.
    devices: tuple[Device, ...] = ()
    #: Secrets that stay outside. Until the sandbox opens, their variables have no placeholders yet.
    secrets: tuple[EgressSecret, ...] = ()
    #: Whether pip, npm and apt install through the package cache. Its mirror is in `network` once it runs.
    package_cache: bool = False

    @property
    def is_inspected(self) -> bool:
        """Whether requests go through the HTTP inspector."""
        return bool(self.network.is_inspected or self.secrets)

    def environment(self) -> dict[str, str]:
        """Return the variables that the command starts with."""
        return {variable.name: str(variable.value) for variable in self.variables}

    def explain(self) -> tuple[tuple[str, list[tuple[str, str]]], ...]:
        """Describe the plan for people: headings with rows of (permission, origin)."""
        return tuple((heading, rows) for heading, rows in self._sections() if rows)

    def _sections(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        from ..display import shown

        who = self.identity
        yield (
            "who",
            [(f"{who.user} ({who.uid}:{who.gid}) on {who.host}, home {who.home}, in {shown(self.cwd)}", "")],
        )
        if self.base:
            yield "the system inside", [(shown(self.base), "base")]
        yield "may be read", [(shown(g.path), g.origin) for g in self.grants if g.access == "read"]
        yield (
            "may be read and written",
            [(shown(g.path), g.origin) for g in self.grants if g.access == "write"],
        )
        yield (
            "devices of the host, with the system calls of their drivers",
            [(f"{shown(d.path)} ({d.major}:{d.minor})", d.origin) for d in self.devices],
        )
        yield "hidden", [(f"{shown(h.path)} ({h.kind})", h.origin) for h in self.hidden]
        yield "protected from change", [(shown(g.path), g.origin) for g in self.guards]
        if self.world == "writable":
            yield "may be made", [("directories in /", "world")]
        yield "private, with nothing of the host", [(s.path, s.origin) for s in self.scratch]
        yield (
            "made for the inside",
            [
                *((shown(t.path), t.origin) for t in self.texts),
                *((f"{shown(link.path)} -> {shown(link.target)}", link.origin) for link in self.links),
            ],
        )
        yield (
            "sockets",
            [
                *(
                    (shown(s.path) + ("" if s.present else " (does not exist yet)"), s.origin)
                    for s in self.sockets
                ),
                *((f"not {shown(c.path)}", c.origin) for c in self.closed),
            ],
        )
        yield "network", [(str(self.network.replace(http=(), http_limits=())), "")]
        if self.package_cache:
            yield "packages", [("the indexes of this host's pip, npm and apt, by its cache", "package_cache")]
        yield "HTTP requests", [(str(rule), "http") for rule in self.network.http]
        yield "limits of requests", [(str(limit), "http_limits") for limit in self.network.http_limits]
        yield "secrets that stay outside", [(shown(str(secret)), "secrets") for secret in self.secrets]
        yield (
            "variables",
            [(f"{v.name}={'(hidden)' if v.secret else shown(v.value)}", v.origin) for v in self.variables],
        )
        yield (
            "limits",
            [(f"{name} {value}", "") for name, value in self.limits.as_dict().items() if value is not None],
        )
        yield "notes", [(shown(note.text), note.origin) for note in self.notes]

    def access(self, path: str) -> Literal["none", "read", "write"]:
        """Return the access at an absolute, normal `path`. The reference for all backends."""
        if any(covers(item.path, path) for item in self.hidden):
            return "none"
        text = next((text for text in self.texts if text.path == path), None)
        if text is not None and not text.mode & 0o200:
            return "read"
        scratch, granted = self._covering(path)
        if any(covers(layer.path, path) for layer in self.layers):
            return "write"
        written = max((len(g.path) for g in granted if g.access == "write"), default=0)
        if scratch and not granted and self._on_the_way(path, scratch):
            return "read"
        if written or (scratch and not granted):
            # An explicit write grant inside a guarded directory makes it writable again.
            guarded = max((len(g.path) for g in self.guards if covers(g.path, path)), default=0)
            return "read" if guarded > written else "write"
        return "read" if granted else "none"

    def outside(self, path: str) -> str:
        """Return the host's path of the file that is visible at `path`."""
        moved = [grant for grant in self.grants if grant.source and covers(grant.path, path)]
        if not moved:
            return path
        innermost = max(moved, key=lambda grant: len(grant.path))
        return innermost.source + path[len(innermost.path) :]

    def written(self) -> list[str]:
        """Return the host's paths of all write grants."""
        return [self.outside(grant.path) for grant in self.grants if grant.access == "write"]

    def shows(self, path: str) -> bool:
        """Whether the host's file at `path` is visible inside; a scratch directory shows none."""
        return not any(covers(item.path, path) for item in self.hidden) and bool(self._covering(path)[1])

    def _on_the_way(self, path: str, scratch: int) -> bool:
        """Whether `path` is in a directory that exists only because a grant is below it.

        It is read-only, because files there would silently disappear with the private directory. The private
        home is an exception, because programs create directories there.
        """
        home = len(self.identity.home)
        if scratch == home and covers(self.identity.home, path):
            return False
        first = path[: scratch + 1] + path[scratch + 1 :].partition("/")[0]
        return len(path) > scratch and any(covers(first, g.path) and g.path != first for g in self.grants)

    @property
    def derived(self) -> dict[object, Any]:
        """Cache of values derived from this plan, by key. Only the last `_MOST_CACHED` plans have one."""
        found = _entries.get(id(self))
        if found is None:
            found = _entries[id(self)] = (self, {})
            while len(_entries) > _MOST_CACHED:
                _entries.pop(next(iter(_entries), 0), None)
        return found[1]

    def _covering(self, path: str) -> tuple[int, list[Grant]]:
        """Return the length of the innermost scratch directory around `path`, and the grants valid there."""
        # A scratch directory covers grants above it; grants below it are visible in it.
        scratch = max((len(s.path) for s in self.scratch if covers(s.path, path)), default=0)
        return scratch, [g for g in self.grants if len(g.path) >= scratch and covers(g.path, path)]


_MOST_CACHED = 32
#: By the id of the plan. An entry references its plan, so that no other plan can get the same id.
_entries: dict[int, tuple[Plan, dict[object, Any]]] = {}


def all_derived(key: object) -> list[tuple[Plan, Any]]:
    """Return the plans with a derived value for `key`, and these values, newest first."""
    return [(plan, known[key]) for plan, known in reversed(tuple(_entries.values())) if key in known]
