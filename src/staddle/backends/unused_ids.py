"""The id that root's sandbox runs as, or why there is none."""

from __future__ import annotations

import os
import sys

from ..linux.userns import Obstacle

#: Needed to become another user, and to show that user the files that are granted.
_CAPABILITIES = {"CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SYS_ADMIN": 21}


def unprivileged_uid() -> int | Obstacle | None:
    """An id that no account has, for root's sandbox; None for an ordinary user, who keeps his own.

    Real root is never inside.
    """
    if sys.platform != "linux":
        return Obstacle("namespaces are a matter of Linux", "choose backend='seatbelt' on macOS")
    if os.geteuid() != 0:
        return None
    from ..linux.idmaps import unused_id_here
    from ..linux.process import capabilities

    effective, _, _ = capabilities()
    missing = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    if missing:
        return Obstacle(
            f"root lacks the capabilities {', '.join(missing)}: the sandbox would run as root",
            "run staddle as an ordinary user, or as root with all capabilities",
        )
    return unused_id_here() or Obstacle(
        "no other id exists in this user namespace: the sandbox would have to run as root",
        "run staddle as an ordinary user",
    )
