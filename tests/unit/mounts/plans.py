"""Plans made by hand, and a host that is a dictionary."""

from __future__ import annotations

from typing import Any

from staddle.mounts.host import Entry
from staddle.policy.identity import Identity
from staddle.policy.limits import Limits
from staddle.policy.network import Network
from staddle.policy.plan import Grant, Guard, Hidden, Plan, Scratch

WHY = "test"


def read(path: object, directory: bool = True) -> Grant:
    return Grant(str(path), "read", directory, WHY)


def write(path: object, directory: bool = True) -> Grant:
    return Grant(str(path), "write", directory, WHY)


def hidden(path: object, kind: str = "directory") -> Hidden:
    return Hidden(str(path), kind, WHY)  # type: ignore[arg-type]


def guard(path: str, directory: bool = True) -> Guard:
    return Guard(path, directory, WHY)


def scratch(path: str, mode: int = 0o1777, size: int = 1 << 20) -> Scratch:
    return Scratch(path, mode, size, WHY)


def plan(**fields: Any) -> Plan:
    """An empty plan with these fields."""
    empty: dict[str, Any] = dict.fromkeys(
        ("grants", "hidden", "guards", "links", "texts", "scratch", "sockets", "variables"), ()
    )
    defaults = {"network": Network.deny(), "limits": Limits.none(), "identity": Identity(), "cwd": "/"}
    return Plan(**{**empty, **defaults, **fields})


class DictHost:
    """A file is `{path: None}`, a link `{path: "target"}`, a directory `{path: [names]}`."""

    def __init__(self, tree: dict[str, Any] | None = None) -> None:
        self.tree = tree or {}

    def kind(self, path: str) -> Any:
        if path not in self.tree:
            return None
        there = self.tree[path]
        return "file" if there is None else "link" if isinstance(there, str) else "directory"

    def searchable(self, path: str) -> bool:
        return True

    def entries(self, path: str) -> tuple[Entry, ...]:
        names = self.tree.get(path)
        if not isinstance(names, list):
            raise PermissionError(path)
        found = []
        for name in sorted(names):
            at = f"{path}/{name}"
            kind = self.kind(at) or "file"
            found.append(Entry(name, kind, self.tree[at] if kind == "link" else ""))
        return tuple(found)
