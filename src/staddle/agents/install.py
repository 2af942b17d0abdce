"""Change the settings of a coding agent so that it is confined whenever it is started, and undo that.

Before a file is changed, what it contained is kept, in `$XDG_DATA_HOME/staddle/agents/NAME`. If nothing else
has changed it since, `remove` puts exactly that back; else it takes only what staddle added out of it.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
import os
import shutil
import sys

from .._value import Value
from ..errors import InvalidCall, UsageError
from .shim import searching_shim, write_shims
from .table import mcp_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from .table import CodingAgent, SettingsEdit

RECORD, WORDS = "installed.json", "words.json"


class FileChange(Value):
    """A settings file as it is and as it is to be. `before` is None if it does not exist."""

    path: str
    before: bytes | None
    after: bytes
    merge: dict[str, Any] | None = None


class InstallPlan(Value):
    """Every change of an installation. `words` are the options with which its sandbox is opened."""

    agent: str
    way: str
    words: tuple[str, ...]
    changes: tuple[FileChange, ...]


def home_of(agent: str) -> str:
    """The directory of an agent's shims, policy options and kept settings."""
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return f"{data}/staddle/agents/{agent}"


def brokers_of(agent: str) -> str:
    """The directory of the brokers that run for an agent; it belongs to this user, and no sandbox sees it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    top = f"{runtime}/staddle-agents" if runtime else f"/tmp/staddle-agents-{os.getuid()}"
    return f"{top}/{agent}"


def plan(agent: CodingAgent, way: str, words: Sequence[str] = ()) -> InstallPlan:
    """Plan an installation. Changes nothing."""
    edits = agent.ways[way].edits
    if edits is None:
        raise UsageError(
            f"{agent.title} has no setting for the way {way!r}",
            fix=f"start it with `staddle agent {agent.name} --way {way}`"
            + "".join(f", or use --way {name}" for name, each in agent.ways.items() if each.edits),
        )
    kept = _without(words, "--way")
    found = tuple(_change(edit) for edit in edits(home_of(agent.name), mcp_server(None)))
    return InstallPlan(agent.name, way, kept, found)


def _without(words: Sequence[str], option: str) -> tuple[str, ...]:
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and word != option and not word.startswith(f"{option}="):
            kept.append(word)
        skip = word == option
    return tuple(kept)


def _change(edit: SettingsEdit) -> FileChange:
    path = os.path.realpath(os.path.expanduser(edit.path))
    try:
        with open(path, "rb") as file:
            before: bytes | None = file.read()
    except FileNotFoundError:
        before = None
    if edit.merge is None:
        after = (edit.text or "").encode()
        if before not in (None, after):
            raise InvalidCall(
                f"{path} exists",
                why="staddle would have to change what it contains",
                fix=f"merge it yourself; --print shows what is needed, or move {path} away",
            )
        return FileChange(path, before, after)
    settings = _parsed(path, before)
    after = (json.dumps(_merged(settings, edit.merge), indent=2, ensure_ascii=False) + "\n").encode()
    return FileChange(path, before, after, edit.merge)


def _parsed(path: str, content: bytes | None) -> dict[str, Any]:
    if content is None or not content.strip():
        return {}
    try:
        settings = json.loads(content)
    except ValueError as error:
        raise InvalidCall(
            f"{path} is not plain JSON", why=str(error), fix="it may have comments: paste what --print shows"
        ) from None
    if not isinstance(settings, dict):
        raise InvalidCall(
            f"{path} is not a JSON object",
            why="the agent keeps its settings in one",
            fix="correct the file, or move it away",
        )
    return settings


def _merged(settings: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Both; objects are merged, lists added to, and other values replaced."""
    made = dict(settings)
    for name, value in more.items():
        old = made.get(name)
        if isinstance(value, dict):
            made[name] = _merged(old if isinstance(old, dict) else {}, value)
        elif isinstance(value, list):
            kept = old if isinstance(old, list) else []
            made[name] = [*kept, *(item for item in value if item not in kept)]
        else:
            made[name] = value
    return made


def _taken_out(settings: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """The settings without what was merged into them, where that is still as it was."""
    made = dict(settings)
    for name, value in ours.items():
        old = made.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            made[name] = _taken_out(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            made[name] = [item for item in old if item not in value]
        elif old == value:
            made[name] = None
        if made.get(name) in (None, {}, []):
            made.pop(name, None)
    return made


def printed(what: InstallPlan) -> str:
    """Text of each file, for people who install by hand."""
    parts = []
    for change in what.changes:
        body = change.after.decode() if change.merge is None else json.dumps(change.merge, indent=2) + "\n"
        parts.append(f"# {change.path}\n{body}")
    return "\n".join(parts)


def difference(what: InstallPlan) -> str:
    """The changes as a unified diff."""
    return "".join(line for change in what.changes for line in _lines(change))


def _lines(change: FileChange) -> Iterator[str]:
    before = (change.before or b"").decode("utf-8", "replace").splitlines(True)
    after = change.after.decode("utf-8", "replace").splitlines(True)
    name = change.path if change.before is not None else os.devnull
    for line in difflib.unified_diff(before, after, name, change.path):
        yield line if line.endswith("\n") else f"{line}\n"


def install(what: InstallPlan) -> None:
    """Carry the plan out."""
    home = home_of(what.agent)
    if os.path.exists(f"{home}/{RECORD}"):
        raise InvalidCall(
            f"staddle is installed for {what.agent} already",
            fix=f"staddle agent {what.agent} --remove",
            why="its settings name it",
        )
    os.makedirs(home, 0o700, exist_ok=True)
    serve = [sys.executable, "-m", "staddle", "agent", what.agent, *what.words, "--serve"]
    write_shims(home, searching_shim(brokers_of(what.agent), serve))
    record = {
        "way": what.way,
        "files": [
            {
                "path": change.path,
                "before": None if change.before is None else base64.b64encode(change.before).decode(),
                "after": _digest(change.after),
                "merge": change.merge,
            }
            for change in what.changes
        ],
    }
    _write(f"{home}/{RECORD}", json.dumps(record, indent=2).encode())
    for change in what.changes:
        os.makedirs(os.path.dirname(change.path), 0o700, exist_ok=True)
        _write(change.path, change.after)


def remove(agent: CodingAgent) -> list[str]:
    """Undo the installation; what was done to each file, as lines."""
    home, said = home_of(agent.name), []
    try:
        with open(f"{home}/{RECORD}", "rb") as file:
            record = json.load(file)
    except FileNotFoundError:
        raise InvalidCall(
            f"staddle is not installed for {agent.title}",
            why="its settings do not name it",
            fix="staddle agent NAME --install",
        ) from None
    for entry in record["files"]:
        path = entry["path"]
        before = None if entry["before"] is None else base64.b64decode(entry["before"])
        try:
            with open(path, "rb") as file:
                now = file.read()
        except FileNotFoundError:
            said.append(f"{path} does not exist any more")
            continue
        if _digest(now) == entry["after"]:
            said.append(f"{path} is as it was")
        elif entry["merge"] is not None:
            left = _taken_out(_parsed(path, now), entry["merge"])
            before = (json.dumps(left, indent=2, ensure_ascii=False) + "\n").encode()
            said.append(f"{path} was changed since: only staddle's part was removed")
        else:
            said.append(f"{path} was changed since, and is left: remove staddle's part yourself")
            continue
        if before is None:
            os.unlink(path)
        else:
            _write(path, before)
    shutil.rmtree(home)
    return said


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(path: str, content: bytes) -> None:
    """Replace a file whole; its permissions stay."""
    mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o600
    descriptor = os.open(f"{path}.staddle", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(descriptor, "wb") as file:
        file.write(content)
    os.rename(f"{path}.staddle", path)
