"""Cost of an adapter over staddle itself: a command, 50 at once, files of 200 MB. Needs inspect_ai.

PYTHONPATH=src /var/tmp/staddle-adapters-0/inspect_ai/bin/python benchmarks/adapters.py
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from inspect_ai.util._sandbox import limits

from staddle.adapters.inspect_ai import StaddleSandboxEnvironment as Provider

ROUNDS, AT_ONCE, SIZE = 300, 50, 200 << 20


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    """Milliseconds of one call."""
    began = time.perf_counter()
    await call()
    return (time.perf_counter() - began) * 1000


async def stalled(work: Awaitable[Any]) -> str:
    """How long the event loop did nothing else at worst, and how long it took."""
    worst, over = 0.0, False

    async def tick() -> None:
        nonlocal worst
        while not over:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            worst = max(worst, time.perf_counter() - began - 0.001)

    ticking = asyncio.ensure_future(tick())
    began = time.perf_counter()
    await work
    took, over = time.perf_counter() - began, True
    await ticking
    return f"worst stall {worst * 1000:.1f} ms, {took:.2f} s"


async def main() -> None:
    """Print the figures."""
    made = await Provider.sample_init("cost", None, {})
    environment = made["default"]
    pairs = []
    for _ in range(ROUNDS):  # in turns: the machine is shared
        own = await timed(lambda: environment.sandbox.exec(["true"]))
        pairs.append((own, await timed(lambda: environment.exec(["true"]))))
    own, adapter = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"exec: staddle {own:.2f} ms, inspect_ai adapter {adapter:.2f} ms")
    print("nothing (the machine itself):", await stalled(asyncio.sleep(2)))
    busy = ["sh", "-c", "echo hi; sleep 0.2"]
    print("50 commands:", await stalled(asyncio.gather(*(environment.exec(busy) for _ in range(AT_ONCE)))))
    data = os.urandom(1 << 20) * (SIZE >> 20)
    print("write 200 MB:", await stalled(environment.write_file("big", data)))
    with limits.override_max_read_file_size(SIZE + 1):
        print("read 200 MB:", await stalled(environment.read_file("big", text=False)))
    await Provider.sample_cleanup("cost", None, made, False)
    opened: list[Any] = []

    async def open_all() -> None:
        opened.extend(await asyncio.gather(*(Provider.sample_init("cost", None, {}) for _ in range(AT_ONCE))))

    print("50 sandboxes opened:", await stalled(open_all()))
    commands = (each["default"].exec(["echo", "hi"]) for each in opened)
    print("50 commands in 50 sandboxes:", await stalled(asyncio.gather(*commands)))
    closing = (Provider.sample_cleanup("cost", None, each, False) for each in opened)
    print("50 sandboxes closed:", await stalled(asyncio.gather(*closing)))


if __name__ == "__main__":
    asyncio.run(main())
