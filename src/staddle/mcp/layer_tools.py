"""Tools for sandboxes as a whole: open, snapshot, fork, review, commit, and what is allowed."""

from __future__ import annotations

from typing import Annotated, Any

from mcp.server.mcpserver import Context, Resolve
from pydantic import BaseModel, Field

from staddle import StaddleError

from .calls import clipped, handle_of, readable, sandboxes
from .command_tools import OUTPUT_LIMIT, OutputLimit, SandboxId
from .questions import SHOWN, Consent, may_allow_host, may_commit, refuse_unless

Paths = Annotated[
    list[str] | None, Field(description="Only these files and directories; all changes if left out.")
]


class SandboxFacts(BaseModel):
    """A sandbox, and what holds it."""

    sandbox: str
    forked_from: str
    workspace: str = Field(description="The user's directory that it shows; empty if none.")
    mode: str
    cwd: str = Field(description="Of the shell, as last known while it runs a command.")
    backend: str
    enforced: list[str] = Field(description="Protections in force, by name.")
    gaps: list[str] = Field(description="What is not enforced here, and why.")
    network: str
    allowed_hosts: list[str]
    limits: dict[str, Any]
    usage: dict[str, Any]
    snapshots: list[str]
    others: list[str] = Field(description="Other sandboxes of this server.")


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
    ended: list[str] = Field(description="Commands of processes that were killed.")


class ForkedSandboxes(BaseModel):
    """Sandboxes that continue from the same point."""

    sandboxes: list[str]


class ChangeRow(BaseModel):
    """One change."""

    kind: str
    path: str
    conflict: str = Field(description="What the host did to the same file since; empty if nothing.")


class ChangeRows(BaseModel):
    """Changes that are not on the host."""

    changes: list[ChangeRow]
    diff: str
    truncated: bool


class CommittedChanges(BaseModel):
    """Changes that are on the host now."""

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
) -> OpenedSandbox:
    """Open another sandbox beside the default one, with its own shell, processes and changes."""
    handle = await sandboxes(ctx).open(name, empty=empty)
    return OpenedSandbox(sandbox=handle.id, cwd=await handle.cwd())


@readable
async def close_sandbox(ctx: Context[Any, Any], sandbox: str) -> ClosedSandbox:
    """End everything in a sandbox. Changes that were not committed are gone."""
    return ClosedSandbox(sandbox=sandbox, was_open=await sandboxes(ctx).close(sandbox))


@readable
async def status(ctx: Context[Any, Any], sandbox: SandboxId = None) -> SandboxFacts:
    """Tell what this sandbox may do, which protections are in force, what it has used, and its snapshots."""
    handle = await handle_of(ctx, sandbox)
    box, settings = handle.sandbox, sandboxes(ctx).settings
    enforced, policy = box.enforced, box.policy
    return SandboxFacts(
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


@readable
async def snapshot(
    ctx: Context[Any, Any],
    label: Annotated[str, Field(max_length=200)] = "",
    sandbox: SandboxId = None,
) -> SnapshotRow:
    """Save this moment (files, directory, variables) for restore. It is cheap: do it before risks."""
    handle = await handle_of(ctx, sandbox)
    taken = await handle.sandbox.snapshot(label)
    name = f"snap-{len(handle.snapshots) + 1}{f'-{label}' if label else ''}"
    handle.snapshots[name] = taken
    return SnapshotRow(snapshot=name, sandbox=handle.id)


@readable
async def restore(
    ctx: Context[Any, Any],
    snapshot: Annotated[str, Field(description="From the tool snapshot.")],
    sandbox: SandboxId = None,
) -> RestoredState:
    """Go back to a snapshot: files and shells are as they were then, background processes are ended."""
    handle = await handle_of(ctx, sandbox)
    found = handle.snapshots.get(snapshot)
    if found is None:  # the newest that was given this label
        found = next((one for one in reversed(handle.snapshots.values()) if one.label == snapshot), None)
    if found is None:
        raise StaddleError(
            f"there is no snapshot {snapshot!r} of {handle.id!r}",
            why=f"there are: {', '.join(handle.snapshots) or 'none'}",
            fix="name one of these",
        )
    restored = await handle.sandbox.restore(found)
    return RestoredState(snapshot=snapshot, ended=[each.command for each in restored.ended])


@readable
async def fork(
    ctx: Context[Any, Any],
    count: Annotated[int, Field(ge=1, le=16)] = 1,
    name: Annotated[
        str | None,
        Field(
            max_length=48,
            pattern=r"^[\w.-]+$",
            description="The new ids are NAME-1, NAME-2, …; those that are open are returned as they are.",
        ),
    ] = None,
    sandbox: SandboxId = None,
) -> ForkedSandboxes:
    """Make more sandboxes that continue from here, to try several ways and keep the best."""
    handle = await handle_of(ctx, sandbox)
    base = name or _unused(ctx, f"{handle.id}-fork")
    made = await sandboxes(ctx).fork(handle, [f"{base}-{number}" for number in range(1, count + 1)])
    return ForkedSandboxes(sandboxes=[each.id for each in made])


def _unused(ctx: Context[Any, Any], base: str) -> str:
    taken = {each.id.rpartition("-")[0] for each in sandboxes(ctx)}
    return next(name for number in range(1, 10_000) if (name := f"{base}{number}") not in taken)


@readable
async def diff(
    ctx: Context[Any, Any],
    paths: Paths = None,
    text: Annotated[bool, Field(description="With unified diffs, not only names.")] = True,
    output_limit: OutputLimit = OUTPUT_LIMIT,
    sandbox: SandboxId = None,
) -> ChangeRows:
    """Show every change to the workspace that is not in the user's directory yet."""
    changes = await (await handle_of(ctx, sandbox)).sandbox.diff(paths)
    shown, cut = clipped(diff_text(changes, output_limit) if text else "", output_limit)
    rows = [
        ChangeRow(kind=change.kind, path=change.path, conflict=change.conflict) for change in changes[:1000]
    ]
    return ChangeRows(changes=rows, diff=shown, truncated=cut or len(changes) > len(rows))


def diff_text(changes: list[Any], enough: int) -> str:
    """The changes as unified diffs; no more are made once there are `enough` characters."""
    parts, size = [], 0
    for change in changes:
        if size > enough:
            parts.append(f"{change.kind} {change.path}\n")
            continue
        made = change.text_diff() or f"{change.kind} {change.path}\n"
        parts.append(made)
        size += len(made)
    return "".join(parts)


@readable
async def commit(
    ctx: Context[Any, Any],
    consent: Annotated[Consent, Resolve(may_commit)],
    paths: Paths = None,
    overwrite: Annotated[
        bool, Field(description="Also over files that the user has changed since then (see `conflict`).")
    ] = False,
    sandbox: SandboxId = None,
) -> CommittedChanges:
    """Write the changes to the user's directory: all of them, or none. The user is asked.

    Refused for files that would make the user's own git, editor or shell run something.
    """
    refuse_unless(consent, "commit")
    review = SHOWN.get()
    if not review.changes:
        if paths:
            raise StaddleError(
                f"there is no change at {paths[0]!r}",
                why="diff does not list it",
                fix="name paths as diff does",
            )
        return CommittedChanges(committed=[])
    done = await review.commit(on_conflict="overwrite" if overwrite else "refuse")
    return CommittedChanges(committed=[f"{change.kind} {change.path}" for change in done.changes])


@readable
async def discard(ctx: Context[Any, Any], paths: Paths = None, sandbox: SandboxId = None) -> DiscardedChanges:
    """Drop changes: the files are as the user's directory has them. Take a snapshot first if in doubt."""
    box = (await handle_of(ctx, sandbox)).sandbox
    gone = [f"{change.kind} {change.path}" for change in await box.diff(paths)]
    await box.discard(paths)
    return DiscardedChanges(discarded=gone)


@readable
async def allow_host(
    ctx: Context[Any, Any],
    host: Annotated[
        str,
        Field(
            max_length=260,
            pattern=r"^[A-Za-z0-9.:\[\]-]+$",
            description="A host for all of its ports, or host:port, as `refused` of bash names it.",
        ),
    ],
    consent: Annotated[Consent, Resolve(may_allow_host)],
    sandbox: SandboxId = None,
) -> AllowedHost:
    """Ask the user to let programs in the sandbox connect to one host, until the sandbox is closed."""
    handle = await handle_of(ctx, sandbox)
    refuse_unless(consent, f"the host {host}")
    handle.allowed.add(host)
    return AllowedHost(host=host, allowed_hosts=sorted(handle.allowed))
