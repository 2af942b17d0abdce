"""How large a file system in memory may be in a sandbox whose memory is limited. Pure."""

from __future__ import annotations

from ..layout.operations import Empty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..layout.operations import Operation
    from ..policy.limits import Limits

_PAGE = 4096


def sized(limits: Limits, operations: Iterable[Operation]) -> list[Operation]:
    """`operations`, where none makes more than half of the sandbox's memory a place for files.

    What is written there cannot be taken back by ending somebody. The rest is to run in.
    """
    if limits.memory is None:
        return list(operations)
    most = max(limits.memory // 2, _PAGE)
    return [
        item.replace(size=most) if isinstance(item, Empty) and item.size > most else item
        for item in operations
    ]
