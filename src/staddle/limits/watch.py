"""Who has to go when a sandbox takes more memory than it may and the kernel does not hold it. Pure.

Facts in, decision out: whoever has a loop measures, asks, does it, and asks again after a while.
"""

from __future__ import annotations

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

#: What a processor can fill in a second, in bytes; from this follows how long nobody needs to look.
_FASTEST = 2 << 30
#: Between two looks, in seconds, and how much longer when nothing moves.
_SHORTEST, _LONGEST, _RESTING = 0.005, 0.25, 4
#: A shell that waits is worth keeping as long as it takes no more than this part of the limit.
_SMALL = 8


class Sample(Value):
    """What was measured: bytes by process, and what all share (files in memory, shared memory).

    Not `exact`: pages that processes share are counted for each of them, so that the truth is
    no more than this.
    """

    processes: tuple[tuple[int, int], ...]
    shared: int
    exact: bool

    @property
    def total(self) -> int:
        """All of it."""
        return sum(memory for _, memory in self.processes) + self.shared


class Step(Value):
    """What to do: end these processes; look closer now; or else look again after so many seconds."""

    kill: tuple[int, ...] = ()
    closer: bool = False
    again: float = _LONGEST


def judge(
    sample: Sample, most: int, shells: Collection[int] = (), cores: int = 1, resting: bool = False
) -> Step:
    """The step to take for a sandbox that may use `most` bytes.

    The largest processes go, as many as it takes. `shells` are spared as long as they are not
    large themselves. Where files in memory are what takes it, ending processes gives nothing
    back: then those go that could write more. `resting`: nothing has changed since last time.
    """
    excess = sample.total - most
    if excess <= 0:
        again = min(max(-excess / (_FASTEST * cores), _SHORTEST), _LONGEST)
        return Step(again=min(again * _RESTING, _LONGEST) if resting else again)
    if not sample.exact:
        return Step(closer=True)
    victims = []
    for pid, memory in sorted(sample.processes, key=lambda item: -item[1]):
        if pid in shells and memory * _SMALL <= most:
            continue
        victims.append(pid)
        excess -= memory
        if excess <= 0:
            break
    return Step(kill=tuple(victims), again=_SHORTEST)
