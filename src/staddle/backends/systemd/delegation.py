"""Which controllers of the control groups the manager has to give: limits hold only with them."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

_MOUNT = "/sys/fs/cgroup"


def controllers(
    scope: Literal["user", "system"], uid: int | None = None, mount: str = _MOUNT
) -> frozenset[str]:
    """The controllers in the manager's own part of the tree; none where it is not the unified one."""
    uid = os.geteuid() if uid is None else uid
    own = f"user.slice/user-{uid}.slice/user@{uid}.service/" if scope == "user" else ""
    try:
        with open(f"{mount}/{own}cgroup.controllers") as file:
            return frozenset(file.read().split())
    except OSError:
        return frozenset()
