"""Tools for files of a sandbox: read, write, edit, find."""

from __future__ import annotations

import base64
import difflib
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp_types import AudioContent, CallToolResult, ImageContent
from pydantic import BaseModel, Field

from .calls import answer, clipped, handle_of, readable
from .command_tools import MOST_OUTPUT, SandboxId
from .error_text import tool_error

#: The largest file to read, and the largest picture or recording to send.
MOST_READ = 16 << 20
MOST_MEDIA = 5 << 20
LINES = 2000
#: The first bytes of a file, and its media type.
_MEDIA = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", ""),  # WEBP or WAVE: the word after the size decides
    (b"ID3", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}

FilePath = Annotated[str, Field(description="Absolute, or relative to the shell's directory.")]


class FileText(BaseModel):
    """Lines of a file, or its media type if it is not text."""

    path: str
    media_type: str
    text: str
    first_line: int
    #: Number of lines in `text`.
    lines: int
    total_lines: int
    #: Bytes of the whole file.
    size: int
    #: Whether more lines follow.
    truncated: bool


class WrittenFile(BaseModel):
    """A file that was written."""

    path: str
    size: int
    created: bool


class EditedFile(BaseModel):
    """An edit that was done, or would be."""

    path: str
    replaced: int
    written: bool
    diff: str


class FoundFiles(BaseModel):
    """Found paths."""

    paths: list[str]
    truncated: bool


class FoundLines(BaseModel):
    """Found lines, as path:line:text."""

    matches: list[str]
    truncated: bool


class DirectoryEntry(BaseModel):
    """One entry of a directory."""

    name: str
    kind: str
    size: int


class DirectoryEntries(BaseModel):
    """The entries of a directory."""

    path: str
    entries: list[DirectoryEntry]
    truncated: bool


@readable
async def read_file(
    ctx: Context[Any, Any],
    path: FilePath,
    offset: Annotated[int, Field(ge=1, description="The first line, from 1.")] = 1,
    limit: Annotated[int, Field(ge=1, le=100_000, description="Lines to return.")] = LINES,
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Read a text file by lines, exactly as it is, or a picture or recording as such."""
    files = (await handle_of(ctx, sandbox)).sandbox.files
    data: bytes = await files.read_bytes(path, limit=MOST_READ)
    kind = media_type(data)
    facts = FileText(
        path=path,
        media_type=kind,
        text="",
        first_line=offset,
        lines=0,
        total_lines=0,
        size=len(data),
        truncated=False,
    )
    if kind.startswith(("image/", "audio/")):
        if len(data) > MOST_MEDIA:
            raise tool_error(
                f"{path} has {len(data)} bytes",
                why=f"{MOST_MEDIA} are sent at most",
                fix="make a smaller one with a command",
            )
        body = base64.b64encode(data).decode()
        content: ImageContent | AudioContent = (
            ImageContent(type="image", data=body, mime_type=kind)
            if kind.startswith("image/")
            else AudioContent(type="audio", data=body, mime_type=kind)
        )
        return CallToolResult(content=[content], structured_content=facts.model_dump(mode="json"))
    if kind != "text/plain":
        raise tool_error(
            f"{path} is not text", why="it has NUL bytes", fix="inspect it with a command: file, xxd, strings"
        )
    lines = data.decode("utf-8", "replace").splitlines(keepends=True)
    chosen = lines[offset - 1 : offset - 1 + limit]
    text, cut = clipped("".join(chosen), MOST_OUTPUT)
    facts.text, facts.lines, facts.total_lines = text, len(chosen), len(lines)
    facts.truncated = cut or offset - 1 + len(chosen) < len(lines)
    if facts.truncated:
        more = offset + len(chosen)
        text += f"\n[… {len(lines) - more + 1} of {len(lines)} lines follow; offset={more} continues …]"
    return answer(facts, text if chosen else f"(no line from {offset}: the file has {len(lines)})")


def media_type(data: bytes) -> str:
    """Guess a file's media type from its first bytes."""
    for start, kind in _MEDIA:
        if data.startswith(start):
            return kind or _RIFF.get(data[8:12], "application/octet-stream")
    return "application/octet-stream" if b"\0" in data[:8192] else "text/plain"


@readable
async def write_file(
    ctx: Context[Any, Any],
    path: FilePath,
    content: str,
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Write a file, whole or not at all; directories above it are made."""
    files = (await handle_of(ctx, sandbox)).sandbox.files
    created = not await files.exists(path)
    await files.write(path, content, parents=True)
    size = len(content.encode("utf-8", "surrogateescape"))
    text = f"{'created' if created else 'replaced'} {path} ({size} bytes)"
    return answer(WrittenFile(path=path, size=size, created=created), text)


@readable
async def edit_file(
    ctx: Context[Any, Any],
    path: FilePath,
    old_text: Annotated[str, Field(min_length=1, description="Exactly as in the file, with indentation.")],
    new_text: str,
    expected_count: Annotated[int, Field(ge=1, description="How often old_text is in the file.")] = 1,
    dry_run: Annotated[bool, Field(description="Only return the diff.")] = False,
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Replace text in a file. Refused unless old_text is there exactly expected_count times."""
    files = (await handle_of(ctx, sandbox)).sandbox.files
    before: str = await files.read(path, limit=MOST_READ)
    found = before.count(old_text)
    if found != expected_count:
        raise tool_error(
            f"old_text is {found} times in {path}, not {expected_count}",
            why=_why(before, old_text, new_text),
            fix="give more of the lines around it, or set expected_count"
            if found
            else "read the file again, and give the text exactly as it is there",
        )
    after = before.replace(old_text, new_text)
    if not dry_run and after != before:
        await files.write(path, after)
    name = path.lstrip("/")
    diff = "".join(
        difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}")
    )
    shown = diff.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    facts = EditedFile(path=path, replaced=found, written=not dry_run, diff=clipped(shown, MOST_OUTPUT)[0])
    return answer(facts, facts.diff or "(no difference: new_text is old_text)")


def _why(before: str, old: str, new: str) -> str:
    """The likely reason why a text was not found as often as expected."""
    if before.count(old):
        return "it would be replaced in each place, or in the wrong one"
    if new and new in before:
        return "new_text is there already: it may have been done before"
    first = old.strip().splitlines()[:1]
    if first and first[0].strip() in before:
        return f"its first line is there with other spaces or other lines after it: {first[0].strip()!r}"
    return "the file does not have it"


@readable
async def glob(
    ctx: Context[Any, Any],
    pattern: Annotated[str, Field(description="Such as src/**/*.py; ** is any number of directories.")],
    limit: Annotated[int, Field(ge=1, le=100_000)] = 1000,
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Find files, directories and links by name, sorted."""
    found: list[str] = await (await handle_of(ctx, sandbox)).sandbox.files.glob(pattern)
    facts = FoundFiles(paths=found[:limit], truncated=len(found) > limit)
    return answer(facts, _listed(facts.paths, truncated=facts.truncated))


def _listed(lines: list[str], *, truncated: bool) -> str:
    """Lines as text, with a mark if there are more."""
    more = [f"[… more than {len(lines)}: narrow it, or raise limit …]"] if truncated else []
    return "\n".join([*lines, *more]) or "(nothing found)"


@readable
async def grep(
    ctx: Context[Any, Any],
    pattern: Annotated[str, Field(description="An extended regular expression.")],
    path: FilePath = ".",
    include: Annotated[str | None, Field(description="Only files whose name matches, such as *.py.")] = None,
    ignore_case: bool = False,
    limit: Annotated[int, Field(ge=1, le=10_000)] = 200,
    sandbox: SandboxId = None,
) -> CallToolResult:
    """Search in files below a directory, binary ones left out. Each match is path:line:text."""
    argv = ["grep", "-rnIE", "--devices=skip", *(["-i"] if ignore_case else ())]
    argv += [f"--include={include}"] if include else []
    box = (await handle_of(ctx, sandbox)).sandbox
    result = await box.exec([*argv, "-e", pattern, "--", path], timeout=60)
    if result.exit_code > 1 or str(result.reason) != "exited":
        said = result.stderr.strip().splitlines()
        if not result.stdout:
            raise tool_error(
                "the search failed",
                why=said[-1] if said else str(result.reason),
                fix="correct the pattern, or search another directory",
            )
    lines = [line[:1000] for line in result.stdout.splitlines()]
    facts = FoundLines(matches=lines[:limit], truncated=len(lines) > limit or result.stdout_truncated)
    return answer(facts, _listed(facts.matches, truncated=facts.truncated))


@readable
async def list_directory(
    ctx: Context[Any, Any], path: FilePath = ".", sandbox: SandboxId = None
) -> CallToolResult:
    """List a directory, sorted by name; links are listed as links."""
    found = await (await handle_of(ctx, sandbox)).sandbox.files.list(path)
    entries = [DirectoryEntry(name=each.name, kind=each.kind, size=each.size) for each in found[:5000]]
    facts = DirectoryEntries(path=path, entries=entries, truncated=len(found) > len(entries))
    lines = [
        f"{each.name}/" if each.kind == "directory" else f"{each.name} ({each.kind}, {each.size} bytes)"
        for each in entries
    ]
    return answer(facts, "\n".join([*lines, *(["[… more …]"] if facts.truncated else ())]) or "(empty)")
