"""Cost of an adapter over staddle itself: a command, 50 at once, files of 200 MB. Needs inspect_ai.

PYTHONPATH=src /var/tmp/staddle-adapters-0/inspect_ai/bin/python benchmarks/adapters.py
"""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from inspect_ai.util._sandbox import limits

from staddle.adapters.inspect_ai import StaddleSandboxEnvironment as Provider

ROUNDS, AT_ONCE, SIZE, TIMES = 300, 50, 200 << 20, 4


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    """Milliseconds of one call."""
    began = time.perf_counter()
    await call()
    return (time.perf_counter() - began) * 1000


def waited_for_cpu() -> float:
    """Seconds that this thread could have run, and other programs did, since its start."""
    with open(f"/proc/self/task/{threading.get_native_id()}/schedstat") as file:
        return int(file.read().split()[1]) / 1e9


async def stall(work: Awaitable[Any]) -> tuple[float, float]:
    """Milliseconds that the event loop did nothing else at worst, in all and without those for which it
    waited for a processor that others used.
    """
    worst = own = 0.0
    over = False

    async def tick() -> None:
        nonlocal worst, own
        while not over:
            waited, began = waited_for_cpu(), time.perf_counter()
            await asyncio.sleep(0.001)
            late = time.perf_counter() - began - 0.001
            worst, own = max(worst, late), max(own, late - (waited_for_cpu() - waited))

    ticking = asyncio.ensure_future(tick())
    # Held to the end: to free 200 MB is the caller's, and takes its time.
    result = await work
    over = True
    await ticking
    del result
    return worst * 1000, own * 1000


async def stalled(what: str, work: Callable[[], Awaitable[Any]]) -> None:
    """Print the worst stall of each time: a stall of ours comes every time, one of the machine does not."""
    found = [await stall(work()) for _ in range(TIMES)]
    worst, own = (", ".join(f"{each:.1f}" for each in sorted(column)) for column in zip(*found, strict=True))
    print(f"{what}: worst stall {own} ms; {worst} ms with what others used")


async def main() -> None:
    """Print the figures."""
    made = await Provider.sample_init("cost", None, {})
    environment = made["default"]
    pairs = []
    for _ in range(ROUNDS):  # in turns: the machine is shared
        own = await timed(lambda: environment.sandbox.exec(["true"]))
        pairs.append((own, await timed(lambda: environment.exec(["true"]))))
    own, adapter = (statistics.median(column) for column in zip(*pairs, strict=True))
    over = statistics.median(both - alone for alone, both in pairs)
    least = min(both for _, both in pairs) - min(alone for alone, _ in pairs)
    print(f"exec: staddle {own:.2f} ms, inspect_ai adapter {adapter:.2f} ms (medians of {ROUNDS})")
    print(f"the adapter over staddle in the same round: {over:.2f} ms; least of each: {least:.2f} ms")
    await stalled("nothing (the machine itself)", lambda: asyncio.sleep(1))
    busy = ["sh", "-c", "echo hi; sleep 0.2"]
    await stalled("50 commands", lambda: asyncio.gather(*(environment.exec(busy) for _ in range(AT_ONCE))))
    data = os.urandom(1 << 20) * (SIZE >> 20)
    await stalled("write 200 MB", lambda: environment.write_file("big", data))
    with limits.override_max_read_file_size(SIZE + 1):
        await stalled("read 200 MB", lambda: environment.read_file("big", text=False))
    await Provider.sample_cleanup("cost", None, made, False)

    async def many() -> None:
        opened = await asyncio.gather(*(Provider.sample_init("cost", None, {}) for _ in range(AT_ONCE)))
        await asyncio.gather(*(each["default"].exec(["echo", "hi"]) for each in opened))
        await asyncio.gather(*(Provider.sample_cleanup("cost", None, each, False) for each in opened))

    await stalled("50 sandboxes opened, used and closed", many)


if __name__ == "__main__":
    asyncio.run(main())
