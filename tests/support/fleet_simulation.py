"""A seeded simulation of a map on a fleet: the real placement and board of tasks, no Ray and no clock.

Nodes die with all that runs on them, and come back empty. Every task has a duration; what is out on a node
that dies is lost. Invariants are checked as it goes.
"""

from __future__ import annotations

import heapq
import random
import time
from dataclasses import dataclass, field

from staddle.fleet.placement import FleetLimits, Placement, Reservation
from staddle.fleet.task_map import TaskBoard

_WINDOW = 16


@dataclass
class SimulationResult:
    """What came of it; `seconds` is the CPU time of the simulation for each task."""

    finished: int = 0
    lost: int = 0
    retried: int = 0
    deaths: int = 0
    most_starts: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def simulate(
    *, nodes: int, per_node: int, tasks: int, retries: int, deaths: int, seed: int, ordered: bool = False
) -> SimulationResult:
    """Run `tasks` on `nodes`, of which one dies `deaths` times at random moments and comes back."""
    dice = random.Random(seed)  # noqa: S311 - not a secret
    began, result = time.process_time(), SimulationResult()
    placement = Placement(FleetLimits())
    for number in range(nodes):
        placement.join(f"n{number}", per_node)
    slots = nodes * per_node // 2
    board = TaskBoard(range(tasks), ordered=ordered, retries=retries, window=_WINDOW * slots)
    board.took(0.03)  # batches of eight
    starts, ends = bytearray(tasks), bytearray(tasks)
    mean = 0.03 * _WINDOW / 2
    #: (moment, serial, what, …): the end of a batch, the death of a node, its return.
    moments: list[tuple[float, int, str, object]] = []
    serial = 0
    idle: list[Reservation] = []
    out: dict[int, tuple[Reservation, list[object]]] = {}
    by_node: dict[str, set[int]] = {f"n{number}": set() for number in range(nodes)}
    length = tasks / _WINDOW * 2 * mean / slots
    for _ in range(deaths):
        serial += 1
        heapq.heappush(moments, (dice.uniform(0, length), serial, "death", f"n{dice.randrange(nodes)}"))
    now = 0.0
    while True:
        while len(out) < slots:
            batch = board.take(_WINDOW // 2)
            if not batch:
                break
            grant = idle.pop() if idle else placement.take_now()
            if grant is None:
                board.put_back(batch)
                break
            if grant.serial not in placement.grants:  # its node died while the slot was idle
                board.put_back(batch)
                continue
            for task in batch:
                starts[task.index] += 1
            serial += 1
            out[serial] = (grant, list(batch))
            by_node[grant.node].add(serial)
            heapq.heappush(moments, (now + dice.expovariate(1 / mean), serial, "end", serial))
        while (outcome := board.reported()) is not None:
            ends[outcome.index] += 1
            result.lost += not outcome.ok
            result.finished += 1
            if outcome.attempts > retries + 1:
                result.problems.append(f"task {outcome.index} was tried {outcome.attempts} times")
        if board.over or not moments:
            break
        now, _, what, about = heapq.heappop(moments)
        if what == "death" and about in placement.nodes:
            result.deaths += 1
            node = str(about)
            placement.leave(node)
            for number in sorted(by_node[node]):
                board.lost(out.pop(number)[1], "its node died", node)  # type: ignore[arg-type]
            by_node[node].clear()
            serial += 1
            heapq.heappush(moments, (now + dice.uniform(0.1, 5), serial, "return", node))
        elif what == "return":
            placement.join(str(about), per_node)
        elif what == "end" and about in out:
            grant, batch = out.pop(int(str(about)))  # type: ignore[assignment]
            by_node[grant.node].discard(int(str(about)))
            for task in batch:
                board.done(task, None, None, grant.node)
            idle.append(grant)
        if (
            any(room.used > room.capacity for room in placement.nodes.values())
            if serial % 1000 == 0
            else False
        ):
            result.problems.append(f"a node is overbooked at {now}")
    result.retried = board.retried
    result.most_starts = max(starts, default=0)
    result.seconds = (time.process_time() - began) / max(1, tasks)
    if any(count != 1 for count in ends):
        result.problems.append(f"{sum(count != 1 for count in ends)} tasks have not exactly one outcome")
    if result.most_starts > retries + 1:
        result.problems.append(f"a task was started {result.most_starts} times")
    return result
