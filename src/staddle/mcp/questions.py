"""Questions to the person at the client, before something leaves the sandbox.

The SDK asks in the way of the client's protocol revision: by `input_required` on 2026-07-28, by an
elicitation request before that. Only an accepted form with the box ticked is a yes.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from mcp.server.mcpserver import Context, Elicit
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from staddle import Network, StaddleError

from .calls import handle_of, readable, sandboxes

if TYPE_CHECKING:
    from staddle import Change

#: So many changes are listed in a question.
MOST_LISTED = 40
#: The changes that a person was asked about, while one request is served.
SHOWN: ContextVar[frozenset[tuple[str, str]]] = ContextVar("SHOWN")


class Consent(BaseModel):
    """The answer of a person."""

    allow: bool = Field(description="Allow it this time.")


def refuse_unless(consent: Consent, what: str) -> None:
    """ToolError, unless the person said yes."""
    if not consent.allow:
        raise ToolError(f"{what} was refused: the user declined")


def ask(ctx: Context[Any, Any], tool: str, message: str) -> Consent | Elicit[Consent]:
    """Ask, unless this server was told not to."""
    if tool in sandboxes(ctx).settings.unasked:
        return Consent(allow=True)
    capabilities = ctx.client_capabilities
    if capabilities is None or capabilities.elicitation is None:
        raise ToolError(
            f"{tool} needs the consent of a person: this client cannot ask for it (no elicitation); "
            f"ask the user to start `staddle mcp --yes {tool}`, or to review and commit outside"
        )
    return Elicit(message, Consent)


@readable
async def may_commit(
    ctx: Context[Any, Any], paths: list[str] | None, sandbox: str | None
) -> Consent | Elicit[Consent]:
    """Ask whether the changes may be written to the host; there is no question if there are none."""
    handle = await handle_of(ctx, sandbox)
    changes = await handle.sandbox.diff(paths)
    SHOWN.set(named(changes))
    if not changes:
        return Consent(allow=True)
    where = sandboxes(ctx).settings.workspace
    listed = listed_changes(changes, MOST_LISTED)
    return ask(
        ctx, "commit", f"Write {len(changes)} changes of the sandbox {handle.id} to {where}?\n{listed}"
    )


@readable
async def may_allow_host(ctx: Context[Any, Any], host: str, sandbox: str | None) -> Consent | Elicit[Consent]:
    """Ask whether programs in the sandbox may connect to a host; not again if they may already."""
    handle = await handle_of(ctx, sandbox)
    Network.allow(host)  # refuses an entry that means nothing
    if handle.sandbox.policy.network == Network.open():
        raise StaddleError(
            f"{host} can be reached already",
            why="the network of this sandbox is open",
            fix="just connect to it",
        )
    if host in handle.allowed:
        return Consent(allow=True)
    return ask(
        ctx,
        "allow_host",
        f"Let programs in the sandbox {handle.id} connect to {host!r}? "
        "They can send everything that is in the sandbox there.",
    )


def named(changes: list[Change]) -> frozenset[tuple[str, str]]:
    """Kind and path of each change."""
    return frozenset((change.kind, change.path) for change in changes)


def listed_changes(changes: list[Change], most: int) -> str:
    """The changes, one a line; each name on its line, whatever it contains."""
    rows = [f"{change.kind} {_plain(change.path)}" for change in changes[:most]]
    if len(changes) > most:
        rows.append(f"… and {len(changes) - most} more")
    return "\n".join(rows)


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
