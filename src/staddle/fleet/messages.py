"""Messages between driver and keepers: plain values.

From a keeper come texts, bytes, numbers and staddle's own values. What a sandbox made is in them as bytes and
texts: it is never pickled, so nothing of it is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from staddle import Change, Result, StaddleError
from staddle.errors import FleetError

from .content import unpack

#: Errors that mean the same everywhere.
_PLAIN = (OSError, ValueError, TypeError, KeyError, RuntimeError, EOFError, NotImplementedError)


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

    `key` is the same for specs that mean the same, for warm sandboxes.
    """

    options: Mapping[str, Any]
    key: str
    workspace: ContentRefs | None = None
    base: ContentRefs | None = None
    snapshot: ContentRefs | None = None
    tenant: str = ""


@dataclass(frozen=True)
class TaskCode:
    """Body of a task: a command, or a function of the driver that Ray's object store has, pickled."""

    command: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    function: Any = None

    def load(self) -> bytes:
        """The pickled function."""
        import ray

        found: bytes = ray.get(self.function)
        return found


def portable(value: Any) -> Any:
    """The same without what only its own process can use."""
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
    """The same error, or one that says what it was. `foreign`: of a function that the driver sent."""
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
