"""Find the command after which a test fails, by halving the history in one fork."""

from __future__ import annotations

from ... import check
from ..._value import Value
from ...display import shown
from ...errors import InvalidCall
from ..result import Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Literal, Protocol

    from ..workspace.snapshot import Snapshot
    from .point import HistoryPoint

    Test = str | Sequence[str] | Callable[[Any], object]
    Verdict = Literal["good", "bad", "skipped"]

    class TestedSandbox(Protocol):
        """Fork in which the test runs."""

        def run(self, command: str, /) -> Result: ...
        def exec(self, argv: Sequence[str], /) -> Result: ...
        def restore(self, snapshot: Snapshot, /) -> object: ...


#: Exit code of a test that cannot judge a point, and the first that ends the search, both as for git.
SKIP, ABORT = 125, 128
_TIMEOUT = 124
#: Characters of a line of errors in our own.
_LONGEST = 200


class Bisected(Value):
    """Result of a bisect: `point` is the first after which the test fails, `before` the last good one.

    `result` is that of the first failing test there (None if the test was a function without one). `skipped`
    are points that the test could not judge. If some of them are next to `point`, each of `suspects` may be
    the one; else it has only `point`. `tests` is the number of tests run.
    """

    point: HistoryPoint
    before: HistoryPoint
    result: Result | None
    suspects: tuple[HistoryPoint, ...]
    skipped: tuple[HistoryPoint, ...] = ()
    tests: int = 0

    def __str__(self) -> str:
        """Point, command and exit code of the test, in one line."""
        code = "" if self.result is None else f" (exit code {self.result.exit_code})"
        return (
            f"the test fails since point {self.point.number}: {self.point.command or self.point.cause}{code}"
        )


class Bisection:
    """One search. `points` are in order; the first must pass, the last must fail."""

    def __init__(self, points: Sequence[HistoryPoint], test: Test, repeat: int, fork: TestedSandbox) -> None:
        self._points, self._test, self._fork = points, test, fork
        self._repeat = check.count("repeat", repeat, fix="give the number of times to run the test")
        self._results: dict[int, Result | None] = {}
        self._verdicts: dict[int, Verdict] = {}
        self._tests = 0

    def run(self) -> Bisected:
        """Return the first point after which the test fails."""
        good, bad = 0, len(self._points) - 1
        if self._verdict(bad) != "bad":
            raise InvalidCall(
                f"the test does not fail at the newest point, {self._points[bad].number}",
                why=self._told(bad),
                fix="give the point after which it fails as bad=, or repeat= for a test that fails sometimes",
            )
        if self._verdict(good) != "good":
            raise InvalidCall(
                f"the test does not pass at the oldest point, {self._points[good].number}",
                why=self._told(good),
                fix="give a point at which it passes as good=, or correct the test",
            )
        while (middle := self._between(good, bad)) is not None:
            verdict = self._verdict(middle)
            if verdict == "good":
                good = middle
            elif verdict == "bad":
                bad = middle
        return Bisected(
            self._points[bad],
            self._points[good],
            self._results[bad],
            tuple(self._points[good + 1 : bad + 1]),
            tuple(self._points[at] for at, verdict in sorted(self._verdicts.items()) if verdict == "skipped"),
            self._tests,
        )

    def _between(self, good: int, bad: int) -> int | None:
        """Return the point nearest to the middle that is not skipped."""
        middle = (good + bad) // 2
        left = [at for at in range(good + 1, bad) if self._verdicts.get(at) != "skipped"]
        return min(left, key=lambda at: abs(at - middle), default=None)

    def _verdict(self, at: int) -> Verdict:
        """Run the test at a point: it is good if the test passes each time."""
        for _ in range(self._repeat):
            # Each time anew: a test may leave files that change the next one.
            self._fork.restore(self._points[at].snapshot)
            self._tests += 1
            code, result = self._tested()
            if code == SKIP:
                self._verdicts[at] = "skipped"
                break
            if code >= ABORT:
                raise InvalidCall(
                    f"the test ended with {code} at point {self._points[at].number}",
                    why="a signal ended it, or it could not judge the point",
                    fix="exit with 0 (good), 1 to 127 (bad) or 125 (skip)",
                )
            if code:
                self._verdicts[at], self._results[at] = "bad", result
                break
        else:
            self._verdicts[at] = "good"
        return self._verdicts[at]

    def _tested(self) -> tuple[int, Result | None]:
        if isinstance(self._test, str):
            found: object = self._fork.run(self._test)
        elif callable(self._test):
            found = self._test(self._fork)
        else:
            found = self._fork.exec(self._test)
        if isinstance(found, Result):
            return _TIMEOUT if found.timed_out else found.exit_code, found
        if found is None or isinstance(found, bool):
            return (1 if found is False else 0), None
        if isinstance(found, int):
            return found, None
        raise InvalidCall(
            f"the test returned {found!r}",
            why="it is no verdict",
            fix="return a Result, an exit code, or True for good and False for bad",
        )

    def _told(self, at: int) -> str:
        """Return what the test did at a point, with the last line of its errors if it failed."""
        verdict, result = self._verdicts[at], self._results.get(at)
        if verdict != "bad":
            return f"it {'passes' if verdict == 'good' else 'is skipped (exit code 125)'} there"
        if result is None:
            return "it fails there"
        last = (result.stderr.strip().splitlines() or [""])[-1]
        return f"it fails there (exit code {result.exit_code})" + (last and f": {shown(last)[:_LONGEST]}")
