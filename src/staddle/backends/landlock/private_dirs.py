"""The places of a plan's private directories where nothing can be mounted.

Without a mount namespace /tmp and the home cannot be replaced. They are not granted; a
private directory stands in for each, and variables and the working directory that point
into them point there instead. A program that insists on the name /tmp fails.
"""

from __future__ import annotations

import os

from ...errors import BackendUnavailable
from ...policy.paths import covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...policy.plan import Plan


#: A file that cannot be hidden, only refused, and a program that gives up when it is: what to tell it.
_NOT_TO_BE_READ = {"/etc/gitconfig": ("GIT_CONFIG_NOSYSTEM", "1")}


class PrivateDirs:
    """`moved` maps a private directory of the plan to the one that stands in for it.

    `granted` are paths of the host, which stay where they are also below such a directory.
    """

    def __init__(self, top: str, moved: dict[str, str], granted: Iterable[str] = ()) -> None:
        self.top = top
        self.moved = moved
        self._granted = tuple(granted)

    @classmethod
    def of(cls, plan: Plan, parent: str, token: str, but: Iterable[str] = ()) -> PrivateDirs:
        """Directories below `parent` for what the plan points to. `but`: those are where they should be."""
        top = os.path.join(parent, f"staddle-{token}")
        moved: dict[str, str] = {}
        granted = [grant.path for grant in plan.grants]
        pointed_to = [plan.cwd, *(part for value in plan.environment().values() for part in value.split(":"))]
        for item in plan.scratch:
            if item.path not in but and any(covers(item.path, place) for place in pointed_to):
                # Short: the name of a socket below it must fit into 108 bytes.
                moved[item.path] = os.path.join(top, f"{len(moved)}")
        return cls(top, moved, granted)

    def directories(self) -> tuple[str, ...]:
        """The directories to make, in order; the first holds the others and is removed at the end."""
        return (self.top, *self.moved.values()) if self.moved else ()

    def place(self, path: str) -> str:
        """Path at which `path` of the plan really lies."""
        around = (item for item in (*self._granted, *self.moved) if covers(item, path))
        inside = max(around, key=len, default="")
        return self.moved[inside] + path[len(inside) :] if inside in self.moved else path

    def environment(self, plan: Plan, *, can_mount: bool) -> dict[str, str]:
        """The plan's variables, with every path in them where it is, also in lists such as PATH."""
        told = (
            {}
            if can_mount
            else {
                name: value
                for path, (name, value) in _NOT_TO_BE_READ.items()
                if os.path.exists(path) and plan.access(path) == "none"
            }
        )
        return told | {
            name: ":".join(self.place(part) for part in value.split(":"))
            for name, value in plan.environment().items()
        }


def parent_for_private(candidates: Iterable[str]) -> str:
    """The first of these directories in which we can make one that no other user can replace."""
    for directory in candidates:
        real = os.path.realpath(directory) if directory.startswith("/") else ""
        if real and os.path.isdir(real) and os.access(real, os.W_OK | os.X_OK):
            return real
    raise BackendUnavailable(
        "there is no place for a private directory",
        why="none of $TMPDIR, /tmp and /var/tmp can be written",
        fix="set TMPDIR to a directory of your own",
    )
