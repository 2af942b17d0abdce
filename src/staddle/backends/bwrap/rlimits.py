"""Resource limits, set by prlimit of util-linux: a plain command line cannot set them otherwise.

Outside, before bwrap: what holds for every sandbox. Inside, before the command: what the
policy asks for, because bwrap itself must open and write files to set everything up.
"""

from __future__ import annotations

import ctypes
import struct

from ...linux.syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...policy.limits import Limits

_NUMBERS = {"fsize": 1, "core": 4, "nofile": 7, "memlock": 8, "nice": 13, "rtprio": 14}
#: 1 byte of core is the only value that also stops a core handler (`|program` in core_pattern,
#: run by the kernel as root on the host); nothing real-time, no higher priority, little pinned memory.
ALWAYS = {"core": 1, "rtprio": 0, "nice": 0, "memlock": 65536}


def outside(ceiling: Callable[[str], int]) -> tuple[str, ...]:
    """prlimit's options for every sandbox. `ceiling` is the hard limit we have: none is raised."""
    return _options(ALWAYS, ceiling)


def inside(limits: Limits, ceiling: Callable[[str], int]) -> tuple[str, ...]:
    """prlimit's options for what this policy limits, none when it does not."""
    asked = {"fsize": limits.file_size, "nofile": limits.open_files}
    return _options({name: value for name, value in asked.items() if value is not None}, ceiling)


def _options(asked: dict[str, int], ceiling: Callable[[str], int]) -> tuple[str, ...]:
    lowered = {name: min(value, ceiling(name)) for name, value in asked.items()}
    return tuple(f"--{name}={value}:{value}" for name, value in lowered.items())


def hard_limit(name: str) -> int:
    """The hard limit of this process; no limit is the largest number."""
    answer = ctypes.create_string_buffer(16)
    call("prlimit64", 0, _NUMBERS[name], None, ctypes.addressof(answer))
    ceiling: int = struct.unpack("QQ", answer.raw)[1]
    return ceiling
