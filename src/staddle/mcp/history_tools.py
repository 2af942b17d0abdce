"""Tools for what was done: list, undo and bisect commands, and merge the work of forks."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, Field

from staddle import AsyncSandbox, Result
from staddle.display import counted
from staddle.errors import InvalidCall, StaddleError

from .calls import answer, clipped, handle_of, offers, readable, sandboxes
from .command_tools import OUTPUT_LIMIT, OutputLimit, SandboxId
from .error_text import tool_error
from .layer_tools import Paths, diff_text

if TYPE_CHECKING:
    from staddle import HistoryPoint, Merge, Sandbox

    from .sandboxes import ServedSandbox

#: Characters of a command, and changes, in the row of a point.
_WIDTH, _MOST_NAMED = 200, 5
#: Characters of a text with conflict markers, and of the output of a test.
_MOST_MARKED = 4000

PointNumber = Annotated[int | None, Field(ge=0, description="Number of a point, as history lists it.")]


class PointRow(BaseModel):
    """The state of the files after one command."""

    point: int
    #: Seconds since 1970.
    time: float
    #: command, files, background, start, restore, discard, merge or commit.
    cause: str
    command: str
    exit_code: int | None
    #: Number of changes; None if there were too many to compare.
    changed: int | None
    #: The first changes, as `kind path`.
    changes: list[str]


class PointRows(BaseModel):
    """The points of a sandbox, newest first."""

    points: list[PointRow]


class UndoneCommands(BaseModel):
    """A step back, or forward again."""

    #: The present point.
    point: int
    #: Points that were taken back or done again.
    steps: list[PointRow]
    #: Commands of killed processes.
    ended: list[str]


class FoundPoint(BaseModel):
    """The first point after which a test fails."""

    point: PointRow
    #: The last point at which the test passes.
    last_good: int
    #: Points of which each may be the first bad one.
    suspects: list[int]
    skipped: list[int]
    tests: int
    exit_code: int
    output: str


class ConflictRow(BaseModel):
    """A path that two sandboxes changed in different ways."""

    path: str
    kind: str
    why: str
    #: The fork whose version does not fit.
    sandbox: str
    #: The text with conflict markers; empty if it was not merged by line.
    marked: str


class MergedForks(BaseModel):
    """A merge. Nothing was written unless `written`."""

    written: bool
    changes: list[str]
    conflicts: list[ConflictRow]
    #: Pipes, sockets and devices.
    left_out: list[str]
    #: Of the test; None if there was none.
    exit_code: int | None
    output: str


async def _with_history(ctx: Context[Any, Any], sandbox: str | None) -> AsyncSandbox:
    """The sandbox, which has a history. Raises ToolError if it has none."""
    handle = await handle_of(ctx, sandbox)
    if handle.no_history:
        raise tool_error(
            f"the sandbox {handle.id!r} has no history",
            why=handle.no_history,
            fix="snapshot before risks, and restore" if offers(ctx, "restore") else "",
        )
    return handle.sandbox


@readable
async def history(
    ctx: Context[Any, Any],
    point: Annotated[int | None, Field(ge=0, description="Show the diff of this point instead.")] = None,
    output_limit: OutputLimit = OUTPUT_LIMIT,
    sandbox: SandboxId = None,
) -> CallToolResult:
    """List the commands that changed files, newest first: each is a point that undo can go back to."""
    points = await (await _with_history(ctx, sandbox)).history()
    if point is not None:
        at = next((index for index, each in enumerate(points) if each.number == point), None)
        if at is None:
            raise tool_error(
                f"there is no point {point}",
                why="it was undone, or dropped with age",
                fix="history without `point` lists them",
            )
        older = points[max(0, at - 1)]
        made = await asyncio.to_thread(lambda: diff_text(points[at].diff(older), output_limit))
        text = f"{_line(_row(points[at]))}\n{made or '(no changes)'}"
        # No structured content, as for `diff`.
        return CallToolResult(content=[TextContent(type="text", text=text)])
    facts, room = PointRows(points=[]), output_limit
    lines: list[str] = []
    for each in reversed(points):
        row = _row(each)
        line = _line(row)
        room -= len(line) + 1
        if room < 0 and lines:
            lines.append(f"[… {len(points) - len(lines)} earlier points …]")
            break
        facts.points.append(row)
        lines.append(line)
    return answer(facts, "\n".join(lines))


def _row(point: HistoryPoint) -> PointRow:
    command = point.command if len(point.command) <= _WIDTH else f"{point.command[: _WIDTH - 1]}…"
    changes = [f"{change.kind} {change.path}" for change in (point.changes or ())[:_MOST_NAMED]]
    return PointRow(
        point=point.number,
        time=round(point.time, 3),
        cause=point.cause,
        command=command,
        exit_code=point.exit_code,
        changed=point.changed,
        changes=changes,
    )


def _line(row: PointRow) -> str:
    """A point in one line: number, time, command, exit code, changes."""
    more = "" if row.changed is None or row.changed <= len(row.changes) else f", … ({row.changed} changes)"
    changes = "many changes" if row.changed is None else f"{', '.join(row.changes)}{more}"
    parts = [time.strftime("%H:%M:%S", time.localtime(row.time)), repr(row.command) if row.command else ""]
    parts += [f"({row.cause})" if row.cause != "command" else ""]
    parts += [f"exit code {row.exit_code}" if row.exit_code else "", changes]
    return f"{row.point}: {'  '.join(part for part in parts if part)}"


@readable
async def undo(
    ctx: Context[Any, Any],
    count: Annotated[int, Field(ge=1, le=1000, description="Points to take back.")] = 1,
    redo: Annotated[bool, Field(description="Go forward again instead, after an undo.")] = False,
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Take back the last command that changed files: files and shell are as before it.

    Edits by tools between two commands are one point. Background processes are ended.
    """
    box = await _with_history(ctx, sandbox)
    step = await (box.redo(count) if redo else box.undo(count))
    steps = [_row(each) for each in step.points]
    facts = UndoneCommands(point=step.point.number, steps=steps, ended=[each.command for each in step.ended])
    done = "done again" if redo else "taken back"
    lines = [f"{done}: {_line(row)}" for row in steps]
    lines += [f"ended: {command}" for command in facts.ended]
    return answer(facts, "\n".join([*lines, f"files and shell are as at point {facts.point}"]))


@readable
async def bisect(
    ctx: Context[Any, Any],
    test: Annotated[str, Field(min_length=1, description="Exit code 0: good; 125: skip; others: bad.")],
    good: PointNumber = None,
    bad: PointNumber = None,
    repeat: Annotated[int, Field(ge=1, le=100, description="For a test that only fails sometimes.")] = 1,
    timeout: Annotated[float | None, Field(gt=0, le=86400, description="Seconds for one test.")] = None,
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Find the command that broke a test, by running it at about log2 of the points. Nothing is changed."""
    box = await _with_history(ctx, sandbox)
    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    cancelled = threading.Event()
    forks: list[Sandbox] = []

    def tested(fork: Sandbox) -> Result:
        if cancelled.is_set():  # nobody waits for the answer
            raise InvalidCall("the search was ended", why="the call was cancelled", fix="call it again")
        forks[:] = [fork]
        return fork.run(test, **options)

    search = asyncio.ensure_future(box.bisect(tested, good=good, bad=bad, repeat=repeat))
    try:
        found = await asyncio.shield(search)
    except asyncio.CancelledError:
        cancelled.set()
        search.add_done_callback(lambda done: done.cancelled() or done.exception())
        for fork in forks:  # not awaited: this task is cancelled
            asyncio.get_running_loop().run_in_executor(None, _interrupted, fork)
        raise
    result = found.result
    facts = FoundPoint(
        point=_row(found.point),
        last_good=found.before.number,
        suspects=[each.number for each in found.suspects],
        skipped=[each.number for each in found.skipped],
        tests=found.tests,
        exit_code=0 if result is None else result.exit_code,
        output=_output(result),
    )
    several = f"one of the points {facts.suspects}: some were skipped" if len(facts.suspects) > 1 else ""
    first = f"the test fails since point {_line(facts.point)}"
    told = f"[exit code {facts.exit_code} of the test there, after {counted(found.tests, 'test')}]"
    return answer(
        facts, "\n".join(each for each in (first, several, facts.output.rstrip("\n"), told) if each)
    )


def _interrupted(fork: Sandbox) -> None:
    with suppress(StaddleError):  # it may have ended
        fork.interrupt()


def _output(test: Result | None) -> str:
    return "" if test is None else clipped(test.stdout + test.stderr, _MOST_MARKED)[0]


@readable
async def merge(
    ctx: Context[Any, Any],
    forks: Annotated[list[str], Field(min_length=1, max_length=32, description="Ids of sandboxes.")],
    test: Annotated[str | None, Field(description="A command that must pass with all merged.")] = None,
    on_conflict: Annotated[
        Literal["refuse", "ours", "theirs"],
        Field(description="For lines that both changed: write nothing, or keep one version."),
    ] = "refuse",
    paths: Paths = None,
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Add the work of forks to this sandbox, by file and by line: all of it, or nothing. Forks stay open."""
    handle = await handle_of(ctx, sandbox)
    others = [await sandboxes(ctx).get(name) for name in forks]
    made = await handle.sandbox.merge(
        *(each.sandbox for each in others), test=test, on_conflict=on_conflict, paths=paths
    )
    return _merged(made, forks, handle)


def _merged(made: Merge, forks: list[str], handle: ServedSandbox) -> CallToolResult:
    test = made.test if isinstance(made.test, Result) else None
    facts = MergedForks(
        written=made.written,
        changes=[f"{change.kind} {change.path}" for change in made.changes],
        conflicts=[
            ConflictRow(
                path=each.path,
                kind=each.kind,
                why=each.why,
                sandbox=forks[each.fork],
                marked=clipped((each.marked() or b"").decode("utf-8", "replace"), _MOST_MARKED)[0],
            )
            for each in made.conflicts
        ],
        left_out=list(made.left_out),
        exit_code=None if test is None else test.exit_code,
        output=_output(test),
    )
    if facts.conflicts:
        lines = [f"nothing was written: {counted(len(facts.conflicts), 'conflict')}"]
        for row in facts.conflicts:
            lines += [f"{row.kind} {row.path} of {row.sandbox}: {row.why}", row.marked.rstrip("\n")]
        lines.append(
            "[merge again with on_conflict, or after you have written the same content into both sandboxes]"
        )
    elif not made.ok:
        lines = ["nothing was written: the test failed", facts.output.rstrip("\n")]
        lines.append(f"[exit code {facts.exit_code}: mend a fork, and merge again]")
    elif not made.written:
        lines = ["(nothing to merge)"]
    else:
        back = "" if handle.no_history else "; undo takes the merge back"
        lines = [f"merged {counted(len(facts.changes), 'change')}{back}:", *facts.changes]
    lines += [f"[left out: {path}]" for path in facts.left_out]
    return answer(facts, clipped("\n".join(line for line in lines if line), OUTPUT_LIMIT)[0])
