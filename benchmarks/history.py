"""What a history costs: commands with and without one, undo near and far, a bisect of a hundred commands."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import count

from measure import Claim, interleaved, ms, timed
from staddle import Sandbox

#: The points of the long history.
FAR = 500
#: Seconds without a command, in which the next snapshot is prepared.
PAUSE = 0.02


def commands() -> list[Claim]:
    """Commands that change nothing, and one file, in a sandbox with a history and in one without."""
    numbers = count()

    def change(sb: Sandbox) -> None:
        sb.run(f"echo {next(numbers)} > f")  # equal content would be no change

    def with_snapshot() -> None:
        change(by_hand)
        by_hand.snapshot()

    with Sandbox(history=True) as on, Sandbox() as off, Sandbox() as by_hand:
        found = interleaved(
            {
                "nothing, on": lambda: on.run(":"),
                "nothing, off": lambda: off.run(":"),
                "changed, on": lambda: change(on),
                "changed, off": lambda: change(off),
                "by hand": with_snapshot,
            },
            rounds=300,
        )
    claims = []
    for what, most in (("nothing", 0.05), ("changed", 1.5)):
        with_it, without = found[f"{what}, on"], found[f"{what}, off"]
        detail = f"{ms(with_it)} against {ms(without)}"
        title = (
            f"a command that changed {'nothing' if what == 'nothing' else 'a file'}, ms more with a history"
        )
        claims.append(Claim(title, (with_it - without) * 1000, most, detail))
    with_it, without = after_a_pause(change)
    title = "a command after 20 ms that changed a file, ms more with a history"
    claims.append(Claim(title, (with_it - without) * 1000, 1.5, f"{ms(with_it)} against {ms(without)}"))
    ratio = found["changed, on"] / found["by hand"]
    detail = f"{ms(found['changed, on'])} against {ms(found['by hand'])}"
    return [*claims, Claim("a command with a history / with snapshot() after it", ratio, 1.1, detail)]


def after_a_pause(change: Callable[[Sandbox], None]) -> tuple[float, float]:
    """The median seconds of a command that changes a file after a pause, with a history and without."""
    with Sandbox(history=True) as on, Sandbox() as off:
        times: dict[Sandbox, list[float]] = {on: [], off: []}
        for _ in range(150):
            for sb, taken in times.items():
                time.sleep(PAUSE)
                taken.append(timed(lambda sb=sb: change(sb)))
        return statistics.median(times[on]), statistics.median(times[off])


def steps() -> list[Claim]:
    """Undo and redo over one point and over many."""
    with Sandbox(history=True) as sb:
        early, late = [], []
        for number in range(FAR + 100):
            took = timed(lambda number=number: sb.run(f"echo {number} > f{number % 50}"))
            (early if number < 100 else late if number >= FAR else []).append(took)
        near, far = [], []
        for _ in range(15):
            near.append(timed(sb.undo))
            sb.redo()
            far.append(timed(lambda: sb.undo(FAR)))
            sb.redo(FAR)
    near_, far_ = statistics.median(near), statistics.median(far)
    first, last = statistics.median(early), statistics.median(late)
    return [
        Claim("undo over one point, ms", near_ * 1000, 5, ""),
        Claim(f"undo over {FAR} points / over one", far_ / near_, 2, f"{ms(far_)} against {ms(near_)}"),
        Claim(f"a command after {FAR} points / at first", last / first, 2, f"{ms(last)} against {ms(first)}"),
    ]


def bisect() -> list[Claim]:
    """A hundred commands and a test of 10 ms."""
    with Sandbox(history=True) as sb:
        for number in range(100):
            sb.run(f"echo {number} > n")
        began = time.perf_counter()
        found = sb.bisect("sleep 0.01; test ! -e n || test $(cat n) -lt 62")
        took = time.perf_counter() - began
        assert found.point.command == "echo 62 > n"
    own = took - found.tests * 0.01
    detail = f"{found.tests} tests, {ms(took)} in all"
    return [Claim("bisect of 100 commands, seconds of its own", own, 1, detail)]


CLAIMS = (commands, steps, bisect)

if __name__ == "__main__":
    for measured in CLAIMS:
        for claim in measured():
            print(claim)
