"""Count the hops of a call: calls that enter another file of the package.

Each function that is entered from another file counts once for each file it is entered from. Constructors,
properties, lambdas and generated methods of values do not count: they hold data. Nor do calls from and to the
ground: the single files beside the rooms, the kernel's bindings in `linux/`, and the codec in `ipc/`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType

import staddle

_ROOT = os.path.dirname(staddle.__file__) + "/"
_CODEC = ("wire", "descriptors", "forkserver_messages", "agent_messages")
_GROUND = ("linux/", "files/", *(f"ipc/{name}.py" for name in _CODEC))
_DATA = ("__init__", "__eq__", "__hash__", "<lambda>")


def hops(work: Callable[[], object]) -> list[tuple[str, str, str]]:
    """(caller's file, callee's file, function) for each hop of this thread, in their order."""
    found: dict[tuple[str, str, str], None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code, caller = frame.f_code, frame.f_back
        if event != "call" or caller is None or code.co_name in _DATA or _is_property(frame):
            return
        hop = (_room_file(caller), _room_file(frame), code.co_qualname)
        if hop[0] and hop[1] and hop[0] != hop[1]:
            found[hop] = None

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return list(found)


def _room_file(frame: FrameType) -> str:
    """The file below the package, if it is in a room and not of the ground."""
    name = frame.f_code.co_filename
    inner = name[len(_ROOT) :] if name.startswith(_ROOT) else ""
    return inner if "/" in inner and not inner.startswith(_GROUND) else ""


def _is_property(frame: FrameType) -> bool:
    owner = type(frame.f_locals.get("self"))
    return isinstance(getattr(owner, frame.f_code.co_name, None), property)
