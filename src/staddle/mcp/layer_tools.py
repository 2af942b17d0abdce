"""Tools for whole sandboxes: open, snapshot, fork, review, commit, status and allowed hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from mcp.server.mcpserver import Context, Resolve
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, Field

from staddle.display import counted

from .calls import answer, clipped, handle_of, readable, sandboxes
from .command_tools import OUTPUT_LIMIT, OutputLimit, SandboxId
from .error_text import tool_error
from .questions import SHOWN, Consent, may_allow_host, may_commit, refuse_unless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from staddle import Change

Paths = Annotated[list[str] | None, Field(description="Only these files and directories (default: all).")]


class SandboxFacts(BaseModel):
    """A sandbox and its enforcement."""

    sandbox: str
    forked_from: str
    #: The user's directory that it shows; empty if none.
    workspace: str
    mode: str
    #: Of the shell; the last known one while it runs a command.
    cwd: str
    backend: str
    #: Enforced protections, by name.
    enforced: list[str]
    #: Gaps, with the reason.
    gaps: list[str]
    network: str
    allowed_hosts: list[str]
    limits: dict[str, Any]
    usage: dict[str, Any]
    snapshots: list[str]
    #: Other sandboxes of this server.
    others: list[str]


class OpenedSandbox(BaseModel):
    """A sandbox to name in other calls."""

    sandbox: str
    cwd: str


class ClosedSandbox(BaseModel):
    """Whether a sandbox was open."""

    sandbox: str
    was_open: bool


class SnapshotRow(BaseModel):
    """A snapshot to name in restore."""

    snapshot: str
    sandbox: str


class RestoredState(BaseModel):
    """The restored snapshot, and the processes that the restore ended."""

    snapshot: str
    #: Commands of killed processes.
    ended: list[str]


class ForkedSandboxes(BaseModel):
    """Sandboxes that continue from the same point."""

    sandboxes: list[str]


class CommittedChanges(BaseModel):
    """Changes that were written to the host."""

    committed: list[str]


class DiscardedChanges(BaseModel):
    """Changes that were dropped."""

    discarded: list[str]


class AllowedHost(BaseModel):
    """A host that programs may connect to."""

    host: str
    allowed_hosts: list[str]


@readable
async def open_sandbox(
    ctx: Context[Any, Any],
    name: Annotated[
        str | None,
        Field(max_length=64, pattern=r"^[\w.-]+$", description="Its id; an open one is returned."),
    ] = None,
    empty: Annotated[bool, Field(description="With an empty workspace instead of the user's.")] = False,
) -> CallToolResult:
    """Open another sandbox beside the default one, with its own shell, processes and changes."""
    handle = await sandboxes(ctx).open(name, empty=empty)
    facts = OpenedSandbox(sandbox=handle.id, cwd=await handle.cwd())
    return answer(facts, f"sandbox={facts.sandbox}, its shell is in {facts.cwd}")


@readable
async def close_sandbox(ctx: Context[Any, Any], sandbox: str) -> CallToolResult:
    """End everything in a sandbox. Changes that were not committed are gone."""
    facts = ClosedSandbox(sandbox=sandbox, was_open=await sandboxes(ctx).close(sandbox))
    return answer(facts, f"closed {sandbox}" if facts.was_open else f"({sandbox} was not open)")


@readable
async def status(ctx: Context[Any, Any], sandbox: SandboxId = None) -> CallToolResult:
    """Tell what this sandbox may do, which protections are in force, what it has used, and its snapshots."""
    handle = await handle_of(ctx, sandbox)
    box, settings = handle.sandbox, sandboxes(ctx).settings
    enforced, policy = box.enforced, box.policy
    facts = SandboxFacts(
        sandbox=handle.id,
        forked_from=handle.parent,
        workspace=settings.workspace or "",
        mode=settings.mode,
        cwd=await handle.cwd(),
        backend=enforced.backend,
        enforced=list(enforced.held),
        gaps=[f"{gap.protection}: {gap.why}" for gap in enforced.gaps],
        network=str(policy.network),
        allowed_hosts=sorted(handle.allowed),
        limits={name: value for name, value in policy.limits.as_dict().items() if value is not None},
        usage=box.usage.as_dict(),
        snapshots=list(handle.snapshots),
        others=[each.id for each in sandboxes(ctx) if each is not handle],
    )
    return answer(facts, "\n".join(f"{name}: {_shown(value)}" for name, value in facts if value))


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return "; ".join(value) if isinstance(value, list) else str(value)


@readable
async def snapshot(
    ctx: Context[Any, Any],
    label: Annotated[str, Field(max_length=200)] = "",
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Save this moment (files, directory, variables). It is cheap: do it before risks."""
    handle = await handle_of(ctx, sandbox)
    taken = await handle.sandbox.snapshot(label)
    name = f"snap-{len(handle.snapshots) + 1}{f'-{label}' if label else ''}"
    handle.snapshots[name] = taken
    return answer(SnapshotRow(snapshot=name, sandbox=handle.id), f"saved as {name}")


@readable
async def restore(
    ctx: Context[Any, Any],
    snapshot: Annotated[str, Field(description="Its name, or its label.")],
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Go back to a snapshot: files and shells are as they were then, background processes are ended."""
    handle = await handle_of(ctx, sandbox)
    found = handle.snapshots.get(snapshot)
    if found is None:  # the newest one with this label
        found = next((one for one in reversed(handle.snapshots.values()) if one.label == snapshot), None)
    if found is None:
        raise tool_error(
            f"there is no snapshot {snapshot!r} of {handle.id!r}",
            why=f"there are: {', '.join(handle.snapshots) or 'none'}",
            fix="name one of these" if handle.snapshots else "take one first",
        )
    restored = await handle.sandbox.restore(found)
    facts = RestoredState(snapshot=snapshot, ended=[each.command for each in restored.ended])
    ended = [f"ended: {command}" for command in facts.ended]
    return answer(facts, "\n".join([f"files and shells are as in {snapshot}", *ended]))


@readable
async def fork(
    ctx: Context[Any, Any],
    count: Annotated[int, Field(ge=1, le=16)] = 1,
    name: Annotated[
        str | None,
        Field(
            max_length=48,
            pattern=r"^[\w.-]+$",
            description="The new ids are NAME-1, NAME-2, …",
        ),
    ] = None,
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Make more sandboxes that continue from here, to try several ways and keep the best."""
    handle = await handle_of(ctx, sandbox)
    base = name or _unused(ctx, f"{handle.id}-fork")
    made = await sandboxes(ctx).fork(handle, [f"{base}-{number}" for number in range(1, count + 1)])
    facts = ForkedSandboxes(sandboxes=[each.id for each in made])
    return answer(facts, "\n".join(f"sandbox={name}" for name in facts.sandboxes))


def _unused(ctx: Context[Any, Any], base: str) -> str:
    taken = {each.id.rpartition("-")[0] for each in sandboxes(ctx)}
    return next(name for number in range(1, 10_000) if (name := f"{base}{number}") not in taken)


@readable
async def diff(
    ctx: Context[Any, Any],
    paths: Paths = None,
    text: Annotated[bool, Field(description="Unified diffs; false: only names.")] = True,
    output_limit: OutputLimit = OUTPUT_LIMIT,
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Show the changes to the workspace that are not in the user's directory yet, as a unified diff."""
    changes = await (await handle_of(ctx, sandbox)).sandbox.diff(paths)
    made = diff_text(changes, output_limit) if text else _names(changes, output_limit)
    # No structured content: clients that prefer it would show the model a diff with its newlines escaped.
    return CallToolResult(content=[TextContent(type="text", text=made or "(no changes)")])


def diff_text(changes: Sequence[Change], limit: int) -> str:
    """The changes as unified diffs of about `limit` characters, then the names of the rest."""
    parts: list[str] = []
    room = limit
    for number, change in enumerate(changes):
        made = f"{change.kind} {change.path}\n{change.text_diff()}"
        if len(made) > room and parts:
            rest = changes[number:]
            parts += [f"[… {len(rest)} more changes, without their text: name them in `paths` …]\n"]
            return "".join([*parts, _names(rest, limit)])
        made = clipped(made, room)[0]
        parts += [made, *([f"[conflict: {change.conflict}]\n"] if change.conflict else ())]
        room -= len(made)
    return "".join(parts)


def _names(changes: Sequence[Change], limit: int) -> str:
    lines: list[str] = []
    for change in changes:
        lines.append(
            f"{change.kind} {change.path}{f' [conflict: {change.conflict}]' if change.conflict else ''}\n"
        )
        limit -= len(lines[-1])
        if limit < 0 and len(lines) < len(changes):
            lines.append(f"[… {len(changes) - len(lines)} more changes …]\n")
            break
    return "".join(lines)


@readable
async def commit(
    ctx: Context[Any, Any],
    consent: Annotated[Consent, Resolve(may_commit)],
    paths: Paths = None,
    overwrite: Annotated[
        bool, Field(description="Even over files that the user has changed meanwhile (conflicts).")
    ] = False,
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Write the changes to the user's directory: all of them, or none. The user is asked.

    Refused for files that the user's own git, editor or shell would run.
    """
    refuse_unless(consent, "commit")
    review = SHOWN.get()
    if not review.changes:
        if paths:
            raise tool_error(
                f"there is no change at {paths[0]!r}",
                why="diff does not list it",
                fix="name paths as diff does",
            )
        return answer(CommittedChanges(committed=[]), "(no changes to commit)")
    done = await review.commit(on_conflict="overwrite" if overwrite else "refuse")
    facts = CommittedChanges(committed=[f"{change.kind} {change.path}" for change in done.changes])
    return answer(
        facts, f"committed {counted(len(done.changes), 'change')}:\n{_names(done.changes, OUTPUT_LIMIT)}"
    )


@readable
async def discard(ctx: Context[Any, Any], paths: Paths = None, sandbox: SandboxId = None) -> CallToolResult:
    """Drop changes: the files are as in the user's directory. Take a snapshot first if in doubt."""
    box = (await handle_of(ctx, sandbox)).sandbox
    changes = await box.diff(paths)
    await box.discard(paths)
    gone = DiscardedChanges(discarded=[f"{change.kind} {change.path}" for change in changes])
    return answer(
        gone, f"discarded:\n{_names(changes, OUTPUT_LIMIT)}" if changes else "(no changes to discard)"
    )


@readable
async def allow_host(
    ctx: Context[Any, Any],
    host: Annotated[
        str,
        Field(
            max_length=260,
            pattern=r"^[A-Za-z0-9.:\[\]-]+$",
            description="A host for all of its ports, or host:port.",
        ),
    ],
    consent: Annotated[Consent, Resolve(may_allow_host)],
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Ask the user to let programs in the sandbox connect to one host, until the sandbox is closed."""
    handle = await handle_of(ctx, sandbox)
    refuse_unless(consent, f"the host {host}")
    handle.allowed.add(host)
    facts = AllowedHost(host=host, allowed_hosts=sorted(handle.allowed))
    return answer(facts, f"programs in {handle.id} may connect to {', '.join(facts.allowed_hosts)}")
