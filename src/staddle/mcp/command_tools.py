"""Tools that run commands: in a shell that keeps its state, or in the background."""

from __future__ import annotations

import asyncio
import signal as signals
import time
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp_types import CallToolResult
from pydantic import BaseModel, Field

from staddle import Result

from .calls import ProgressReports, answer, clipped, handle_of, offers, readable
from .error_text import ALLOW_IT, spelled, tool_error
from .sandboxes import ServedSandbox

#: Characters of output that a call returns (default), and the most that it may ask for.
OUTPUT_LIMIT = 30_000
MOST_OUTPUT = 1_000_000
#: Seconds for a process to read its input (default).
READ_WITHIN = 30.0
_POLL_EVERY = 0.02

SandboxId = Annotated[str | None, Field(description="Leave it out for the default sandbox.")]
OutputLimit = Annotated[int, Field(ge=100, le=MOST_OUTPUT, description="Most characters to return.")]
CallId = Annotated[
    str | None,
    Field(
        max_length=200,
        description="To retry safely: a call with the same text returns the first answer and runs nothing.",
    ),
]
Pid = Annotated[int, Field(description="From bash with background=true.")]


class CommandOutcome(BaseModel):
    """The end of a command, and its output."""

    #: Standard output and standard error in order, if merged.
    output: str
    #: Standard error, if not merged.
    stderr: str
    #: None while it runs in the background.
    exit_code: int | None
    #: exited, signalled, timeout, memory, output_limit, … or running.
    reason: str
    #: The limit that stopped it, in a sentence; empty if none did.
    why: str
    #: The shell's directory afterwards.
    cwd: str
    seconds: float
    #: Whether some of the output was left out.
    truncated: bool
    #: Files that it changed, as `kind path`; the first 100.
    changed: list[str]
    #: Refused operations, and what would allow them.
    refused: list[str]
    #: For a background command: its pid, for read_output.
    pid: int | None


class ProcessOutput(BaseModel):
    """The output of a background process, from an offset."""

    output: str
    #: Pass it as `offset` to get only later output.
    next_offset: int
    running: bool
    exit_code: int | None
    truncated: bool


class ProcessRow(BaseModel):
    """One background process."""

    pid: int
    command: str
    running: bool
    exit_code: int | None


class ProcessRows(BaseModel):
    """The background processes of a sandbox."""

    processes: list[ProcessRow]


class SentInput(BaseModel):
    """Number of bytes that a process read, and whether it runs."""

    #: Bytes of `text` in UTF-8; fewer are an error.
    sent: int
    running: bool


@readable
async def bash(
    ctx: Context[Any, Any],
    command: str,
    timeout: Annotated[
        float | None,
        Field(gt=0, le=86400, description="Seconds until it is killed (default: 120, or the user's)."),
    ] = None,
    background: Annotated[
        bool, Field(description="Start it and return its pid at once, for servers and long jobs.")
    ] = False,
    merge: Annotated[bool, Field(description="Standard error within the output, in order.")] = True,
    output_limit: OutputLimit = OUTPUT_LIMIT,
    session: Annotated[
        str | None, Field(description="Name of another shell, with its own directory and variables.")
    ] = None,
    call_id: CallId = None,
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Run a bash command in the sandbox, wait for its end, return output and exit code.

    The shell keeps directory, variables and functions between calls. No terminal, no standard input.
    """
    handle = await handle_of(ctx, sandbox)

    async def work() -> CallToolResult:
        if background:
            return await _start(
                handle, command, "; read_output follows it" if offers(ctx, "read_output") else ""
            )
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
        return _ran(result, output_limit, can_ask=offers(ctx, "allow_host"))

    return await handle.once(call_id, work)  # type: ignore[no-any-return]


def _ran(result: Result, limit: int, *, can_ask: bool) -> CallToolResult:
    output, cut = clipped(result.stdout, limit)
    stderr, cut_too = clipped(result.stderr, limit)
    changes = result.changes or ()
    outcome = CommandOutcome(
        output=output,
        stderr=stderr,
        exit_code=result.exit_code,
        reason=str(result.reason),
        why=spelled(result.why),
        cwd=result.cwd,
        seconds=round(result.duration, 3),
        truncated=cut or cut_too or result.stdout_truncated or result.stderr_truncated,
        changed=[f"{change.kind} {change.path}" for change in changes[:100]],
        refused=[f"{event.what}: {event.rule}" for event in result.violations],
        pid=None,
    )
    lines = [output, stderr and f"[stderr]\n{stderr}"]
    if result.exit_code or str(result.reason) != "exited":
        why = f": {outcome.why}" if outcome.why else ""
        lines.append(f"[exit code {result.exit_code}, {result.reason}{why}]")
    if result.timed_out:
        lines.append("[it took too long: give it a longer timeout, or run it in the background]")
    lines += [f"[refused: {text}]" for text in outcome.refused]
    if any(event.kind == "refused" for event in result.violations):
        how = (
            "allow_host asks the user for a host"
            if can_ask
            else f"only the user can allow a host: {ALLOW_IT}"
        )
        lines.append(f"[{how}]")
    text = "\n".join(line.rstrip("\n") for line in lines if line)
    return answer(outcome, text or "(exit code 0, no output)")


async def _start(handle: ServedSandbox, command: str, hint: str) -> CallToolResult:
    # Merge both streams in order. `eval` includes bash's own error messages about the text.
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
    return answer(outcome, f"[started in the background, pid {process.pid}{hint}]")


def _process(handle: ServedSandbox, pid: int) -> Any:
    found = handle.processes.get(pid)
    if found is None:
        raise tool_error(
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
) -> CallToolResult:
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
    facts = ProcessOutput(
        output=text, next_offset=total, running=code is None, exit_code=code, truncated=cut or bool(lost)
    )
    state = "running" if code is None else f"exit code {code}"
    return answer(
        facts, "\n".join([*([text.rstrip("\n")] if text else ()), f"[{state}; next_offset={total}]"])
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
) -> CallToolResult:
    """Write to the standard input of a background process."""
    handle = await handle_of(ctx, sandbox)
    process = _process(handle, pid)

    async def work() -> CallToolResult:
        data = text.encode()
        sent = await handle.type(pid, data, timeout)
        if sent < len(data):
            raise tool_error(
                f"the process took {sent} of {len(data)} bytes in {timeout:g} seconds",
                why="it does not read its input, and the pipe is full",
                fix=f"read its output, wait until it reads, and send what follows the first {sent} bytes",
            )
        if close:
            process.close_stdin()
        facts = SentInput(sent=sent, running=process.running)
        return answer(facts, f"sent {sent} bytes; it {'runs' if facts.running else 'has ended'}")

    return await handle.once(call_id, work)  # type: ignore[no-any-return]


@readable
async def kill(
    ctx: Context[Any, Any],
    pid: Pid,
    signal: Annotated[str, Field(description="TERM, INT, KILL, HUP, …")] = "TERM",
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Send a background process, and all that it started, a signal. One that has ended stays ended."""
    process = _process(await handle_of(ctx, sandbox), pid)
    name = signal.upper().removeprefix("SIG")
    number = getattr(signals.Signals, f"SIG{name}", None)
    if number is None:
        raise tool_error(
            f"there is no signal {signal!r}", fix="use TERM, INT, KILL or HUP", why="only these are sent"
        )
    process.kill(int(number))
    await process.wait(1.0)
    row = _row(process)
    return answer(row, _line(row))


@readable
async def list_processes(ctx: Context[Any, Any], sandbox: SandboxId = None) -> CallToolResult:
    """List background processes, and jobs that commands left with `&`; also those that ended lately."""
    handle = await handle_of(ctx, sandbox)
    facts = ProcessRows(processes=[_row(each) for each in await handle.sandbox.processes()])
    return answer(facts, "\n".join(map(_line, facts.processes)) or "(no background process)")


def _line(row: ProcessRow) -> str:
    return f"{row.pid} {'running' if row.running else f'exit code {row.exit_code}'} {row.command}"


def _row(process: Any) -> ProcessRow:
    command, code = process.command, process.poll()
    if not isinstance(command, str):
        command = command[-1] if command[:1] == ("bash",) else " ".join(command)
    return ProcessRow(pid=process.pid, command=command[:500], running=code is None, exit_code=code)
