"""Which limit a command ran into, and how that is said. Pure.

A limit is a reason only for a command that failed: one whose child was killed or could not be
started, and that coped with it, has come to its own end.
"""

from __future__ import annotations

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.limits import Limits
    from .usage import Events

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class RanInto(Value):
    """The limit, by its name in `Reason`, and a sentence."""

    limit: str
    sentence: str


def ran_into(
    limits: Limits, exit_code: int, before: Events, after: Events, *, full: bool = False, ended: int = 0
) -> RanInto | None:
    """The limit that made a command fail, if one did.

    `full`: too much is written, by the limit on that, or on memory where files are in it. `ended`:
    how many processes a supervisor killed for their memory during it, where the kernel does not hold that.
    """
    if exit_code == 0:
        return None
    killed = after.out_of_memory - before.out_of_memory + ended
    if killed > 0 and limits.memory is not None:
        what = "a process was" if killed == 1 else f"{killed} processes were"
        sentence = f"{what} killed: all together used more than {size(limits.memory)} of memory"
        return RanInto("memory", f"{sentence} (limits.memory)")
    if after.refused_processes > before.refused_processes and limits.processes is not None:
        return RanInto(
            "processes",
            f"a process or thread could not be started: there were {limits.processes} (limits.processes)",
        )
    if full and limits.disk is not None:
        return RanInto("disk", f"no room is left: {size(limits.disk)} are written (limits.disk)")
    if full and limits.memory is not None:
        sentence = f"no room is left: {size(limits.memory)} are written, which is in memory (limits.memory)"
        return RanInto("memory", sentence)
    return None


def size(count: int) -> str:
    """Bytes, as people say it."""
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} bytes"
