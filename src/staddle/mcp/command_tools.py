"""Tools that run commands: in a shell that remembers, or in the background."""

from __future__ import annotations

import asyncio
import signal as signals
import time
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, Field

from staddle import Result, StaddleError

from .calls import ProgressReports, clipped, handle_of, readable
from .sandboxes import ServedSandbox

#: Characters of output that a call returns unless it says another number; and the most.
OUTPUT_LIMIT = 30_000
MOST_OUTPUT = 1_000_000
#: Seconds that a process gets to read its input, unless a call says another number.
READ_WITHIN = 30.0
_POLL_EVERY = 0.02

SandboxId = Annotated[
    str | None, Field(description="Id from open_sandbox or fork. Leave it out for the default sandbox.")
]
OutputLimit = Annotated[
    int,
    Field(ge=100, le=MOST_OUTPUT, description="Characters of output to return; the middle is left out."),
]
CallId = Annotated[
    str | None,
    Field(
        max_length=200,
        description="Any text of your own. A repeated call with the same text returns the first "
        "answer and does nothing again: use it if you may have to retry.",
    ),
]
Pid = Annotated[int, Field(description="From bash with background=true, or list_processes.")]


class CommandOutcome(BaseModel):
    """End of a command, and its output."""

    output: str = Field(description="Standard output and standard error in order, if merged.")
    stderr: str = Field(description="Standard error, if not merged.")
    exit_code: int | None = Field(description="None while it runs in the background.")
    reason: str = Field(description="exited, signalled, timeout, memory, output_limit, … or running.")
    why: str = Field(description="The limit that stopped it, in a sentence; empty if none did.")
    cwd: str = Field(description="The shell's directory afterwards.")
    seconds: float
    truncated: bool = Field(description="Whether some of the output was left out.")
    changed: list[str] = Field(description="Files that it changed, as `kind path`; the first 100.")
    refused: list[str] = Field(description="What it was not allowed to do, and what would allow it.")
    pid: int | None = Field(description="Of a command in the background, for read_output.")


class ProcessOutput(BaseModel):
    """The output of a background process, from an offset."""

    output: str
    next_offset: int = Field(description="Pass it as `offset` to get only what comes later.")
    running: bool
    exit_code: int | None
    truncated: bool


class ProcessRow(BaseModel):
    """One process in the background."""

    pid: int
    command: str
    running: bool
    exit_code: int | None


class ProcessRows(BaseModel):
    """The processes in the background of a sandbox."""

    processes: list[ProcessRow]


class SentInput(BaseModel):
    """Number of bytes that a process has taken, and whether it runs."""

    sent: int = Field(description="Bytes of `text` in UTF-8; all of them, or it is an error.")
    running: bool


@readable
async def bash(
    ctx: Context[Any, Any],
    command: Annotated[str, Field(description="Shell text; several lines and heredocs are fine.")],
    timeout: Annotated[
        float | None,
        Field(
            gt=0,
            le=86400,
            description="Seconds after which it is killed, with all it started (default: 120, unless the "
            "user has set another).",
        ),
    ] = None,
    background: Annotated[
        bool, Field(description="Start it and return at once, for servers and long jobs.")
    ] = False,
    merge: Annotated[
        bool, Field(description="Standard error within `output`, in order; else in `stderr`.")
    ] = True,
    output_limit: OutputLimit = OUTPUT_LIMIT,
    session: Annotated[
        str | None, Field(description="Name of another shell with its own directory and variables.")
    ] = None,
    call_id: CallId = None,
    sandbox: SandboxId = None,
) -> Annotated[CallToolResult, CommandOutcome]:
    """Run a bash command in the sandbox and wait for its end.

    The shell remembers directory, variables, functions and aliases between calls. The workspace is a
    copy-on-write view of the user's directory: change files freely, nothing reaches the user before `commit`.
    A failing command is a normal answer with its exit code. There is usually no network: `refused` says what
    was tried, and `allow_host` asks the user for a host. There is no terminal and no standard input; use
    background=true for programs that do not end, then read_output, write_stdin and kill.
    """
    handle = await handle_of(ctx, sandbox)

    async def work() -> CallToolResult:
        if background:
            return await _start(handle, command)
        reports = ProgressReports(ctx)
        options: dict[str, Any] = {"on_stdout": reports.heard, "merge": merge}
        if timeout is not None:
            options["timeout"] = timeout
        if not merge:
            options["on_stderr"] = reports.heard
        try:
            shell = handle.sandbox if session is None else await handle.sandbox.session(session)
            result = await shell.run(command, **options)
        finally:
            reports.close()
        return _ran(result, output_limit)

    return await handle.once(call_id, work)  # type: ignore[no-any-return]


def _ran(result: Result, limit: int) -> CallToolResult:
    output, cut = clipped(result.stdout, limit)
    stderr, cut_too = clipped(result.stderr, limit)
    changes = result.changes or ()
    outcome = CommandOutcome(
        output=output,
        stderr=stderr,
        exit_code=result.exit_code,
        reason=str(result.reason),
        why=result.why,
        cwd=result.cwd,
        seconds=round(result.duration, 3),
        truncated=cut or cut_too or result.stdout_truncated or result.stderr_truncated,
        changed=[f"{change.kind} {change.path}" for change in changes[:100]],
        refused=[f"{event.what}: {event.rule}" for event in result.violations],
        pid=None,
    )
    lines = [output, stderr and f"[stderr]\n{stderr}"]
    if result.exit_code or str(result.reason) != "exited":
        why = f": {result.why}" if result.why else ""
        lines.append(f"[exit code {result.exit_code}, {result.reason}{why}]")
    if result.timed_out:
        lines.append("[it took too long; give it a longer timeout, or background=true]")
    lines += [f"[refused: {text}]" for text in outcome.refused]
    return _answer(outcome, "\n".join(line.rstrip("\n") for line in lines if line))


async def _start(handle: ServedSandbox, command: str) -> CallToolResult:
    # One stream, in order. `eval`, so that bash's own words about the text are in it, too.
    argv = ["bash", "-c", 'exec 2>&1; eval "$1"', "bash", command]
    process = await handle.sandbox.start(argv)
    handle.processes[process.pid] = process
    handle.log.append(f"{time.strftime('%H:%M:%S')} started {process.pid} {command!r}")
    outcome = CommandOutcome(
        output="",
        stderr="",
        exit_code=None,
        reason="running",
        why="",
        cwd="",
        seconds=0.0,
        truncated=False,
        changed=[],
        refused=[],
        pid=process.pid,
    )
    return _answer(outcome, f"[started in the background, pid {process.pid}; read_output follows it]")


def _answer(outcome: BaseModel, text: str) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=outcome.model_dump(mode="json")
    )


def _process(handle: ServedSandbox, pid: int) -> Any:
    found = handle.processes.get(pid)
    if found is None:
        raise StaddleError(
            f"there is no background process {pid} in {handle.id!r}",
            why=f"started were: {', '.join(map(str, handle.processes)) or 'none'}",
            fix="use a pid that bash with background=true returned",
        )
    return found


@readable
async def read_output(
    ctx: Context[Any, Any],
    pid: Pid,
    offset: Annotated[int, Field(ge=0, description="Bytes to skip: next_offset of the last call.")] = 0,
    wait: Annotated[
        float, Field(ge=0, le=600, description="Seconds to wait for more output, or until it exits.")
    ] = 0.0,
    output_limit: OutputLimit = OUTPUT_LIMIT,
    sandbox: SandboxId = None,
) -> ProcessOutput:
    """Read what a background process has printed, standard output and error in order.

    Call it again with next_offset to follow. With `wait` it returns as soon as something new is there.
    """
    process = _process(await handle_of(ctx, sandbox), pid)
    until = time.monotonic() + wait
    while True:
        code = process.poll()
        said = process.output()
        kept, dropped = said.stdout_bytes, said.stdout_bytes_dropped
        total = len(kept) + dropped
        if total > offset or code is not None or time.monotonic() >= until:
            break
        await asyncio.sleep(_POLL_EVERY)
    new = max(0, total - offset)
    lost = dropped and new > len(kept) // 2
    data = kept if not offset else kept[len(kept) - min(new, len(kept) // 2 if lost else new) :]
    text, cut = clipped(data.decode("utf-8", "replace") if new else "", output_limit)
    return ProcessOutput(
        output=text, next_offset=total, running=code is None, exit_code=code, truncated=cut or bool(lost)
    )


@readable
async def write_stdin(
    ctx: Context[Any, Any],
    pid: Pid,
    text: Annotated[str, Field(description="Written as it is: end a line with \\n.")],
    close: Annotated[bool, Field(description="End the input afterwards (Ctrl-D).")] = False,
    timeout: Annotated[
        float, Field(gt=0, le=600, description="Seconds in which it must read.")
    ] = READ_WITHIN,
    call_id: CallId = None,
    sandbox: SandboxId = None,
) -> SentInput:
    """Write to the standard input of a background process."""
    handle = await handle_of(ctx, sandbox)
    process = _process(handle, pid)

    async def work() -> SentInput:
        data = text.encode()
        sent = await handle.type(pid, data, timeout)
        if sent < len(data):
            raise StaddleError(
                f"the process took {sent} of {len(data)} bytes in {timeout:g} seconds",
                why="it does not read its input, and the pipe is full",
                fix=f"read its output, wait until it reads, and send what follows the first {sent} bytes",
            )
        if close:
            process.close_stdin()
        return SentInput(sent=sent, running=process.running)

    return await handle.once(call_id, work)  # type: ignore[no-any-return]


@readable
async def kill(
    ctx: Context[Any, Any],
    pid: Pid,
    signal: Annotated[str, Field(description="TERM, INT, KILL, HUP, …")] = "TERM",
    sandbox: SandboxId = None,
) -> ProcessRow:
    """Send a background process, and all that it started, a signal. One that has ended stays ended."""
    process = _process(await handle_of(ctx, sandbox), pid)
    name = signal.upper().removeprefix("SIG")
    number = getattr(signals.Signals, f"SIG{name}", None)
    if number is None:
        raise StaddleError(
            f"there is no signal {signal!r}", fix="use TERM, INT, KILL or HUP", why="only these are sent"
        )
    process.kill(int(number))
    await process.wait(1.0)
    return _row(process)


@readable
async def list_processes(ctx: Context[Any, Any], sandbox: SandboxId = None) -> ProcessRows:
    """List background processes, and jobs that commands left with `&`; also those that ended lately."""
    handle = await handle_of(ctx, sandbox)
    return ProcessRows(processes=[_row(each) for each in await handle.sandbox.processes()])


def _row(process: Any) -> ProcessRow:
    command, code = process.command, process.poll()
    if not isinstance(command, str):
        command = command[-1] if command[:1] == ("bash",) else " ".join(command)
    return ProcessRow(pid=process.pid, command=command[:500], running=code is None, exit_code=code)
