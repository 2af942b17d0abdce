"""How large a file system in memory may be in a sandbox whose memory or disk is limited. Pure."""

from __future__ import annotations

from ..mounts.operations import Empty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..mounts.operations import Operation
    from ..policy.limits import Limits

_PAGE = 4096


def sized(limits: Limits, operations: Iterable[Operation]) -> list[Operation]:
    """`operations`, where no place for files has more than half of the sandbox's memory, or than its disk.

    What is written there cannot be taken back by ending somebody. The rest is to run in.
    """
    bounds = [
        *(() if limits.memory is None else (limits.memory // 2,)),
        *(() if limits.disk is None else (limits.disk,)),
    ]
    if not bounds:
        return list(operations)
    most = max(min(bounds), _PAGE)
    return [
        item.replace(size=most) if isinstance(item, Empty) and item.size > most else item
        for item in operations
    ]
