"""Change the settings of a coding agent so that it is confined at every start, and undo that.

Before changing a file, staddle saves its content in `$XDG_DATA_HOME/staddle/agents/NAME`. If nothing else has
changed the file since, `remove` restores the saved content; else it removes only staddle's additions.
"""

from __future__ import annotations

import base64
import difflib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
from contextlib import contextmanager

from .. import places
from .._value import Value
from ..errors import InvalidCall, UsageError
from . import json_text
from .shim import searching_shim, write_shims
from .table import mcp_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from .table import CodingAgent, SettingsEdit

RECORD = "installed.json"
#: A larger file is not a settings file.
MOST_SETTINGS = 4 << 20
_MISSING = object()


class FileChange(Value):
    """A settings file before and after the change. `before` is None if it does not exist."""

    path: str
    before: bytes | None
    after: bytes
    merge: dict[str, Any] | None = None
    whole: tuple[tuple[str, ...], ...] = ()


class InstallPlan(Value):
    """All changes of an installation. `words` are the options of its sandbox."""

    agent: str
    way: str
    words: tuple[str, ...]
    changes: tuple[FileChange, ...]


def home_of(agent: str) -> str:
    """The directory of an agent's shims, policy options and saved settings."""
    return f"{places.of_user('data')}/agents/{agent}"


def brokers_of(agent: str) -> str:
    """The directory of an agent's running brokers. No sandbox can reach it."""
    return f"{places.runtime()}/brokers/{agent}"


def plan(agent: CodingAgent, way: str, words: Sequence[str] = ()) -> InstallPlan:
    """Plan an installation. `words` are the options of its sandbox. Changes nothing."""
    edits = agent.ways[way].edits
    if edits is None:
        raise UsageError(
            f"{agent.title} has no setting for the way {way!r}",
            fix=f"start it with `staddle agent {agent.name} --way {way}`"
            + "".join(f", or use --way {name}" for name, each in agent.ways.items() if each.edits),
        )
    found = tuple(_change(edit) for edit in edits(home_of(agent.name), [*mcp_server(None), *words]))
    return InstallPlan(agent.name, way, tuple(words), found)


def _change(edit: SettingsEdit) -> FileChange:
    path = os.path.realpath(os.path.expanduser(edit.path))
    before = _read(path)
    if edit.merge is None:
        after = (edit.text or "").encode()
        if before not in (None, after):
            raise InvalidCall(
                f"{path} exists",
                why="staddle would have to change what it contains",
                fix=f"merge it yourself; --print shows what is needed, or move {path} away",
            )
        return FileChange(path, before, after)
    text = _text(path, before)
    after = _merged(text, edit.merge, edit.whole).encode()
    return FileChange(path, before, after, edit.merge, edit.whole)


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_SETTINGS:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidCall(
            f"{path} cannot be read", why=error.strerror or str(error), fix="correct that, or move it away"
        ) from None


def _text(path: str, content: bytes | None) -> str:
    """Settings as text; an empty object if there are none."""
    if content is None or not content.strip():
        return "{}\n"
    try:
        text = content.decode()
        value = json_text.parse(text).value
    except ValueError as error:
        raise InvalidCall(
            f"{path} is not JSON", why=str(error), fix="correct it, or paste what --print shows"
        ) from None
    if not isinstance(value, dict):
        raise InvalidCall(
            f"{path} is not a JSON object",
            why="the agent keeps its settings in one",
            fix="correct the file, or move it away",
        )
    return text


def _value(text: str, path: Sequence[str]) -> Any:
    value = json_text.parse(text).value
    for name in path:
        value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
    return value


def _merged(
    text: str, ours: dict[str, Any], whole: Sequence[tuple[str, ...]], path: tuple[str, ...] = ()
) -> str:
    """Merge objects, extend lists, and replace other values and the members in `whole`."""
    for name, value in ours.items():
        here = (*path, name)
        old = _value(text, here)
        if isinstance(value, dict) and isinstance(old, dict) and here not in whole:
            text = _merged(text, value, whole, here)
        elif isinstance(value, list) and isinstance(old, list) and here not in whole:
            for item in value:
                if item not in old:
                    text = json_text.append(text, here, item)
        elif old != value or (isinstance(old, dict) and list(old) != list(value)):
            text = json_text.put(text, here, value)
    return text


def _taken_out(
    text: str,
    ours: dict[str, Any],
    whole: Sequence[tuple[str, ...]],
    before: Any,
    path: tuple[str, ...] = (),
) -> str:
    """Undo a merge: restore values from `before` where the merged value is unchanged."""
    for name, value in ours.items():
        here = (*path, name)
        now, was = _value(text, here), before.get(name, _MISSING) if isinstance(before, dict) else _MISSING
        if isinstance(value, dict) and isinstance(now, dict) and here not in whole:
            text = _taken_out(text, value, whole, was, here)
        elif isinstance(value, list) and isinstance(now, list) and here not in whole:
            for item in value:
                if item in now and not (isinstance(was, list) and item in was):
                    text = json_text.drop(text, here, item)
        elif now == value:
            text = json_text.drop(text, here) if was is _MISSING else json_text.put(text, here, was)
        if _value(text, here) in ({}, []) and was != _value(text, here):
            text = json_text.drop(text, here) if was is _MISSING else json_text.put(text, here, was)
    return text


def printed(what: InstallPlan) -> str:
    """The text of each file, for people who install by hand."""
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
    """Carry out the whole plan, or nothing of it."""
    home = home_of(what.agent)
    os.makedirs(os.path.dirname(home), 0o700, exist_ok=True)
    with _locked(os.path.dirname(home)):
        if os.path.exists(f"{home}/{RECORD}"):
            raise InvalidCall(
                f"staddle is installed for {what.agent} already",
                fix=f"staddle agent {what.agent} --remove",
                why="its settings name it",
            )
        for change in what.changes:
            _check_unchanged(change)
        made = [each for change in what.changes for each in _missing_above(change.path)]
        record = {
            "way": what.way,
            "directories": made,
            "files": [
                {
                    "path": change.path,
                    "before": None if change.before is None else base64.b64encode(change.before).decode(),
                    "after": _digest(change.after),
                    "merge": change.merge,
                    "whole": change.whole,
                }
                for change in what.changes
            ],
        }
        serve = [sys.executable, "-m", "staddle", "agent", what.agent, *what.words, "--serve"]
        written: list[FileChange] = []
        try:
            os.makedirs(home, 0o700, exist_ok=True)
            write_shims(home, searching_shim(brokers_of(what.agent), serve))
            _write(f"{home}/{RECORD}", json.dumps(record, indent=2).encode())
            for change in what.changes:
                os.makedirs(os.path.dirname(change.path), 0o700, exist_ok=True)
                _write(change.path, change.after)
                written.append(change)
        except BaseException as error:
            for change in written:
                _put_back(change.path, change.before)
            _remove_empty(made)
            shutil.rmtree(home, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            raise InvalidCall(
                "nothing was installed",
                why=f"{error.filename or home}: {error.strerror}",
                fix="let it be written, or paste what --print shows",
            ) from None


def _check_unchanged(change: FileChange) -> None:
    """Refuse to overwrite content that the user was not shown, or a read-only file."""
    if _read(change.path) != change.before:
        raise InvalidCall(
            f"{change.path} was changed just now",
            why="another program has written it since the change was shown",
            fix="do it again",
        )
    if change.before is not None and not os.stat(change.path).st_mode & 0o222:
        raise InvalidCall(
            f"{change.path} is read-only",
            why="its mode lets no user write it",
            fix=f"chmod u+w {change.path}",
        )


def remove(agent: CodingAgent) -> list[str]:
    """Undo the installation; return one line per file."""
    home = home_of(agent.name)
    if os.path.isdir(home):
        with _locked(os.path.dirname(home)):
            return _removed(home, agent)
    return _removed(home, agent)


def _removed(home: str, agent: CodingAgent) -> list[str]:
    said = []
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
        now = _read(path)
        if now is None:
            said.append(f"{path} does not exist any more")
            continue
        if _digest(now) == entry["after"]:
            said.append(f"{path} is as it was")
        elif entry["merge"] is not None:
            whole = [tuple(each) for each in entry.get("whole", ())]
            was = json_text.parse(_text(path, before)).value
            before = _taken_out(_text(path, now), entry["merge"], whole, was).encode()
            said.append(f"{path} was changed since: only staddle's part was removed")
        else:
            said.append(f"{path} was changed since, and is left: remove staddle's part yourself")
            continue
        _put_back(path, before)
    _remove_empty(record.get("directories", ()))
    shutil.rmtree(home)
    return said


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Exclude other installations. Locks the directory itself, so that no lock file is left."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _missing_above(path: str) -> list[str]:
    """The missing parent directories of a path, topmost first."""
    found: list[str] = []
    while not os.path.lexists(path := os.path.dirname(path)):
        found.insert(0, path)
    return found


def _remove_empty(directories: Sequence[str]) -> None:
    for each in reversed(directories):
        try:
            os.rmdir(each)
        except OSError:
            continue  # it is not empty


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _put_back(path: str, before: bytes | None) -> None:
    if before is None:
        os.unlink(path)
    else:
        _write(path, before)


def _write(path: str, content: bytes) -> None:
    """Replace a file atomically; keep its permissions and owner."""
    new = f"{path}.staddle"
    try:
        os.unlink(new)  # left by a killed process
    except FileNotFoundError:
        pass
    found = os.stat(path) if os.path.exists(path) else None
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(content)
        if found is not None:
            os.fchmod(file.fileno(), found.st_mode & 0o777)
            if (found.st_uid, found.st_gid) != (os.getuid(), os.getgid()) and os.getuid() == 0:
                os.fchown(file.fileno(), found.st_uid, found.st_gid)
    os.rename(new, path)
