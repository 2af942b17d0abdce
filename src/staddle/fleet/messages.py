"""Messages between driver and keepers: plain values.

A keeper sends texts, bytes, numbers and staddle's own values. Data made by a sandbox is bytes and text in
them: it is never pickled, so none of it is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from staddle import Change, Result, StaddleError
from staddle.display import shown
from staddle.errors import FleetError, InvalidCall

from .content import unpack

#: Calls of a sandbox over the direct connection to its keeper: they contain no Ray references.
DIRECT = frozenset(
    (
        *("create", "close", "run", "call", "text_diff", "start", "processes", "terminal"),
        *("snapshot", "snapshots", "restore"),
    )
)
#: The call that connects the driver to a server in a sandbox.
TUNNEL = "tunnel"
#: Errors that mean the same everywhere.
_PLAIN = (OSError, ValueError, TypeError, KeyError, RuntimeError, EOFError, NotImplementedError)

#: Options of a command that only work in its own process.
_LOCAL = {
    "spill": "a file on the node would be out of reach",
    "cancel": "an Event is of one process; call interrupt()",
}


#: The most bytes of each version of a conflict that travel.
_MOST_VERSION = 1 << 20


class FleetConflict:
    """A conflict of a merge on a node, with the contents; a version of more than a MiB is None."""

    def __init__(self, path: str, kind: str, why: str, fork: int, versions: tuple[bytes | None, ...]) -> None:
        self.path, self.kind, self.why, self.fork = path, kind, why, fork
        self._versions = versions

    @classmethod
    def of(cls, conflict: Any) -> FleetConflict:
        """Return a conflict of `Sandbox.merge` so that it can travel."""
        found = (conflict.base(), conflict.ours(), conflict.theirs(), conflict.marked())
        sent = tuple(None if each is None or len(each) > _MOST_VERSION else each for each in found)
        return cls(conflict.path, conflict.kind, conflict.why, conflict.fork, sent)

    def base(self) -> bytes | None:
        """Return the content before both changes; None if there was no file."""
        return self._versions[0]

    def ours(self) -> bytes | None:
        """Return the content in the sandbox; None if there is no file."""
        return self._versions[1]

    def theirs(self) -> bytes | None:
        """Return the content in the fork; None if there is no file."""
        return self._versions[2]

    def marked(self) -> bytes | None:
        """Return the text with git's conflict markers; None if it was not merged by line."""
        return self._versions[3]

    def __str__(self) -> str:
        """Kind, path and reason, for people."""
        return f"{self.kind} {shown(self.path)}: {shown(self.why)}"


@dataclass(frozen=True)
class ContentRefs:
    """Content in Ray's object store: the references of its manifest and of its packs, by digest."""

    digest: str
    listed: Any
    packs: Mapping[str, Any] = field(default_factory=dict)

    def manifest(self) -> bytes:
        """The bytes of the manifest."""
        import ray

        found: bytes = ray.get(self.listed)
        return found

    def pack(self, digest: str) -> bytes:
        """The bytes of a pack, checked."""
        import ray

        return unpack(ray.get(self.packs[digest]), digest)


@dataclass(frozen=True)
class SandboxSpec:
    """Specification of a sandbox: the options of `Sandbox`, and the content that it needs.

    Equivalent specs have the same `key`, which names a kind of warm sandboxes.
    """

    options: Mapping[str, Any]
    key: str
    workspace: ContentRefs | None = None
    base: ContentRefs | None = None
    snapshot: ContentRefs | None = None
    tenant: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether it needs no content, and so contains no Ray reference."""
        return self.workspace is None and self.base is None and self.snapshot is None


@dataclass(frozen=True)
class TaskCode:
    """Body of a task: a command, or a pickled function of the driver in Ray's object store."""

    command: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    function: Any = None

    def load(self) -> bytes:
        """The pickled function."""
        import ray

        found: bytes = ray.get(self.function)
        return found


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a command, ready to send."""
    given = {name: value for name, value in options.items() if value is not None or name in ("timeout",)}
    for name, why in _LOCAL.items():
        if name in given:
            raise InvalidCall(
                f"{name} does not work in a fleet", why=why, fix="do it on the machine itself, with a Sandbox"
            )
    stdin = given.get("stdin")
    if stdin is not None and hasattr(stdin, "read"):
        given["stdin"] = stdin.read()
    return given


def portable(value: Any) -> Any:
    """The value without parts that only work in its own process."""
    if isinstance(value, Result):
        if not value.changes:
            return value
        changes = None if value.changes is None else tuple(map(_plain_change, value.changes))
        return value.replace(changes=changes)
    if isinstance(value, Change):
        return _plain_change(value)
    if type(value) in (list, tuple):
        return type(value)(portable(each) for each in value)
    if isinstance(value, str) and type(value) is not str:
        streams = {name: str(getattr(value, name, "")) for name in ("stdout", "stderr")}
        return streams if hasattr(value, "stderr") else str(value)  # output of a process
    return value


def _plain_change(change: Change) -> Change:
    """A change without the files that it was found in."""
    return Change(**{name: getattr(change, name) for name in Change._fields})


def portable_error(error: Exception, *, foreign: bool = False) -> Exception:
    """The error itself, or one that describes it. `foreign`: raised by a function of the driver."""
    if isinstance(error, StaddleError):
        for name in ("result", "conflicts"):
            if name in error.__dict__:
                error.__dict__[name] = portable(error.__dict__[name])
        return _bare(error)
    if type(error) in _PLAIN or isinstance(error, OSError):
        return _bare(error)
    if foreign and _is_picklable(error):
        return _bare(error)
    return FleetError(
        f"{type(error).__name__} in a keeper",
        why=str(error)[:2000],
        fix="see the log of the machine that it was on",
    )


def _bare(error: Exception) -> Exception:
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def _is_picklable(error: Exception) -> bool:
    import pickle

    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - what this process has just written
    except Exception:
        return False
    return True
