"""Event loop under the inspect_ai adapter: 50 at once, files of 200 MB; its checks beside its local sandbox.

PYTHONPATH=src /var/tmp/staddle-adapters-0/inspect_ai/bin/python benchmarks/adapters.py [checks]
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from inspect_ai.util._sandbox import limits, self_check
from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

from staddle.adapters.inspect_ai import StaddleSandboxEnvironment as Provider

AT_ONCE, SIZE, TIMES = 50, 200 << 20, 4


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


async def checked(kind: Any) -> dict[str, float]:
    """Seconds of each check of inspect_ai that this provider passes, and of opening and closing."""
    began = time.perf_counter()
    made = await kind.sample_init("checks", None, {})
    took = {"open": time.perf_counter() - began}
    for name, check in vars(self_check).items():
        if name.startswith("test_"):
            began = time.perf_counter()
            try:
                await check(made["default"])
            except (Exception, AssertionError):  # noqa: S112 - not all of them are passed without a sandbox
                continue
            took[name] = time.perf_counter() - began
    began = time.perf_counter()
    await kind.sample_cleanup("checks", None, made, False)
    return took | {"close": time.perf_counter() - began}


async def checks() -> None:
    """Print the seconds of all checks that both providers pass: in all, and without those that wait."""
    rounds = []
    for _ in range(2):  # in turns: the machine is shared
        rounds.append([await checked(kind) for kind in (Provider, LocalSandboxEnvironment)])
    both = [name for name in rounds[0][0] if all(name in side for pair in rounds for side in pair)]
    print(f"passed of 44: staddle {len(rounds[0][0]) - 2}, local {len(rounds[0][1]) - 2}")
    for what, names in (
        ("all that both pass", both),
        ("without timeouts", [name for name in both if "timeout" not in name]),
    ):
        least = [sum(min(pair[side][name] for pair in rounds) for name in names) for side in (0, 1)]
        print(f"{what} ({len(names) - 2} checks): staddle {least[0]:.2f} s, local {least[1]:.2f} s")


async def main() -> None:
    """Print the figures."""
    made = await Provider.sample_init("cost", None, {})
    environment = made["default"]
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
    asyncio.run(checks() if sys.argv[1:] == ["checks"] else main())
