"""Questions to the person at the client, before something leaves the sandbox.

The SDK asks in the way of the client's protocol revision: by input_required on 2026-07-28, by an elicitation
request before that. Only an accepted form with the box ticked is a yes.
"""

from __future__ import annotations

import shlex
from contextvars import ContextVar
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

from mcp.server.mcpserver import Context, Elicit
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from staddle import Network
from staddle.display import counted

from .calls import handle_of, readable, sandboxes
from .error_text import tool_error
from .sandboxes import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from staddle import AsyncReview, Change, Review

    from .sandboxes import ServedSandbox, ServerSettings

#: Changes to list in a question.
MOST_LISTED = 40
#: Protected names to spell out in a command for the user.
_MOST_SPELLED = 5
#: The review that a person was asked about, during one request.
SHOWN: ContextVar[AsyncReview] = ContextVar("SHOWN")


class Consent(BaseModel):
    """The answer of a person."""

    allow: bool = Field(description="Allow it this time.")


def refuse_unless(consent: Consent, what: str) -> None:
    """Raise ToolError unless the person said yes."""
    if not consent.allow:
        raise ToolError(f"{what} was refused: the user declined")


def ask(ctx: Context[Any, Any], tool: str, message: str, otherwise: str) -> Consent | Elicit[Consent]:
    """Ask, unless this server is set not to. `otherwise` is the fix if the client cannot ask."""
    if tool in sandboxes(ctx).settings.unasked:
        return Consent(allow=True)
    capabilities = ctx.client_capabilities
    if capabilities is None or capabilities.elicitation is None:
        raise tool_error(
            f"{tool} needs the consent of the user",
            why="this client cannot ask (no elicitation)",
            fix=otherwise,
        )
    return Elicit(message, Consent)


@readable
async def may_commit(
    ctx: Context[Any, Any], paths: list[str] | None, overwrite: bool, sandbox: str | None
) -> Consent | Elicit[Consent]:
    """Ask whether the changes may be written to the host; without changes there is no question."""
    handle = await handle_of(ctx, sandbox)
    review = await handle.sandbox.review(paths)
    SHOWN.set(review)
    if not review.changes:
        return Consent(allow=True)
    settings = sandboxes(ctx).settings
    _refuse_protected(review, handle, settings)
    text = question(review, handle.id, str(settings.workspace), overwrite=overwrite)
    return ask(ctx, "commit", text, _outside(handle, settings, "--yes commit"))


def _refuse_protected(review: Review, handle: ServedSandbox, settings: ServerSettings) -> None:
    """Raise ToolError for changes that no tool can commit. The person is not asked about them."""
    if not review.held:
        return
    held = review.held
    programs = " (a new executable after chmod -x)" if any("executable" in item.why for item in held) else ""
    allow = "".join(f" --allow {shlex.quote(item.path)}" for item in held)
    words = allow if len(held) <= _MOST_SPELLED else " --allow-protected"
    raise tool_error(
        f"{counted(len(held), 'change')} cannot be committed by a tool",
        why=", ".join(_rows([f"{item.path}: {item.why}" for item in held], MOST_LISTED)),
        fix=f"name the other changes in `paths`{programs}; {_outside(handle, settings, '', words)}",
    )


def _outside(handle: ServedSandbox, settings: ServerSettings, option: str, words: str = "") -> str:
    """The user's own way to commit: from a kept sandbox, or with another server."""
    if settings.keep and handle.id == DEFAULT:
        return f"the user can end this server, and then run `staddle commit {settings.keep}{words}`"
    options = f"{option}, or with --keep NAME" if option else "--keep NAME"
    return (
        f"the user can start `staddle mcp` with {options}, and run `staddle commit NAME{words}` when that "
        "server has ended; this sandbox is not kept, and what is not committed is lost when its server ends: "
        "show the user what you changed"
    )


@readable
async def may_allow_host(ctx: Context[Any, Any], host: str, sandbox: str | None) -> Consent | Elicit[Consent]:
    """Ask whether programs in the sandbox may connect to a host, unless they already may."""
    handle = await handle_of(ctx, sandbox)
    Network.allow(host)  # refuses an invalid entry
    if handle.sandbox.policy.network == Network.open():
        raise tool_error(
            f"{host} can be reached already",
            why="the network of this sandbox is open",
            fix="just connect to it",
        )
    if host in handle.allowed:
        return Consent(allow=True)
    return ask(
        ctx,
        "allow_host",
        f"Let programs in the sandbox {handle.id} connect to {host!r}{_kind_of(host)}? "
        "They can send everything that is in the sandbox there.",
        f"the user can start the server with `staddle mcp --allow {host}`, or with --yes allow_host",
    )


def question(review: Review, sandbox: str, where: str, *, overwrite: bool) -> str:
    """The question about a commit: the most important changes first, then the others.

    It ends with the digest of the review, which also covers unlisted changes. An answer to another text does
    not count: a client of a stateless revision sends it with the next request.
    """
    heads = [f"Write {counted(len(review.changes), 'change')} of the sandbox {sandbox} to {where}?"]
    if overwrite and review.conflicts:
        heads.append(
            f"This REPLACES what you have changed there since ({counted(len(review.conflicts), 'file')}):"
        )
        heads += _rows([f"{item.path}: {item.why}" for item in review.conflicts], MOST_LISTED)
    rows = [f"{change.kind} {change.path}{_remark(change)}" for change in _in_order(review.changes)]
    return "\n".join([*heads, *_rows(rows, MOST_LISTED), f"(review {review.digest[:16]})"])


def _kind_of(host: str) -> str:
    """A remark for an entry that is an address: its kind."""
    found = Network.allow(host).rules[0].host
    try:
        address = ip_network(found, strict=False)
    except ValueError:
        return ""
    if address.is_loopback:
        return " (THIS machine's loopback)"
    if address.is_link_local:
        return " (a LINK-LOCAL address: cloud credentials are served there)"
    return " (a PRIVATE network)" if address.is_private else " (a public address)"


def _rows(rows: list[str], most: int) -> list[str]:
    more = [f"… and {len(rows) - most} more"] if len(rows) > most else []
    return [*map(_plain, rows[:most]), *more]


def _remark(change: Change) -> str:
    return " (executable)" if change.type == "file" and (change.mode or 0) & 0o111 else ""


#: Files that make a build or a tool run something: listed before others.
_BUILD = frozenset(
    (
        *("makefile", "cmakelists.txt", "package.json", "pyproject.toml", "setup.py", "setup.cfg"),
        *("conftest.py", "tox.ini", "noxfile.py", "cargo.toml", "build.rs", "go.mod", "pom.xml"),
        *("build.gradle", "dockerfile", "docker-compose.yml", "jenkinsfile", "requirements.txt"),
        *("package-lock.json", "yarn.lock", "poetry.lock", "uv.lock", "justfile", "rakefile", "gemfile"),
    )
)


def _in_order(changes: Iterable[Change]) -> list[Change]:
    """Order changes for a person: builds, programs, replaced or deleted files, then new ones."""

    def place(change: Change) -> tuple[bool, bool, bool]:
        name = change.path.rpartition("/")[2].lower()
        builds = name in _BUILD or "/.github/" in change.path or "/.git" in change.path
        return (not builds, not _remark(change), change.kind == "added")

    return sorted(changes, key=place)


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
