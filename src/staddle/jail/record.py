"""The record, journal and lock (claim) of a workspace, beside its tree, where no sandbox can write.

The journal has one JSON line per event. It contains no secrets: only the names of variables, and known secret
values are redacted everywhere else.
"""

from __future__ import annotations

import os
import time

from .._value import Value
from ..errors import WorkspaceBusy, WorkspaceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any, Self

    from ..observe.redaction import Secrets

#: The allowed transitions from each state. An ended run can run again; `published` is final.
TRANSITIONS: dict[str, tuple[str, ...]] = {
    "prepared": ("running", "failed"),
    "running": ("stopped", "failed"),
    "stopped": ("running", "published", "failed"),
    "failed": ("running",),
    "published": (),
}
FORMAT = 1
#: Bytes of each of the two files with a run's output, and those that are searched for its last line.
MOST_OUTPUT, _TAIL = 4 << 20, 4096


class WorkspaceRecord(Value):
    """The facts of a workspace. `base` is its starting commit, `changed` the time of the last transition."""

    name: str
    repository: str
    common: str
    branch: str
    base: str
    state: str
    created: float
    changed: float

    def moved_to(self, state: str) -> WorkspaceRecord:
        """The record in another state, or WorkspaceError if that transition is not allowed."""
        if state not in TRANSITIONS:
            raise WorkspaceError(
                f"there is no state {state!r}",
                fix=f"choose one of {', '.join(TRANSITIONS)}",
                why="a workspace has one of these",
            )
        if state not in TRANSITIONS[self.state]:
            ways = " or ".join(TRANSITIONS[self.state]) or "nothing else"
            raise WorkspaceError(
                f"the workspace {self.name} cannot become {state}",
                why=f"it is {self.state}, which can become {ways}",
                fix="run in it, or publish() it, in that order",
            )
        return self.replace(state=state, changed=time.time())


def read(directory: str) -> WorkspaceRecord:
    """The record in `directory`, or WorkspaceError."""
    import json

    try:
        with open(f"{directory}/workspace.json", encoding="utf-8", errors="surrogateescape") as file:
            facts = json.load(file)
        if facts.pop("format") != FORMAT:
            raise ValueError("another version of staddle wrote it")
        record = WorkspaceRecord(**facts)
        if record.state not in TRANSITIONS:
            raise ValueError(f"it has {record.state!r} for a state")
        return record
    except FileNotFoundError:
        raise WorkspaceError(
            f"there is no workspace at {directory!r}",
            why="its record does not exist",
            fix="Workspace.list() has those that are",
        ) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise WorkspaceError(
            f"the workspace at {directory!r} cannot be read", why=str(error), fix="reap it"
        ) from None


def write(directory: str, record: WorkspaceRecord) -> None:
    """Replace the record atomically, even if the power fails."""
    import json

    text = json.dumps({"format": FORMAT, **record.as_dict()}, indent=1) + "\n"
    temporary = f"{directory}/workspace.json.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, f"{directory}/workspace.json")


class Claim:
    """Lock of one process on the workspace. The kernel releases it when the process ends, however it ends."""

    def __init__(self, directory: str) -> None:
        import fcntl

        self._descriptor = os.open(f"{directory}/claim", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for attempt in range(5):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, b"%d" % os.getpid(), 0)
                return
            except BlockingIOError:
                if attempt < 4:
                    time.sleep(0.01)  # `is_claimed` may have the lock for a moment
        os.close(self._descriptor)
        raise WorkspaceBusy(
            f"the workspace at {directory!r} is in use",
            why="another process, or another part of this one, has claimed it",
            fix="wait until it exits, or make another workspace",
        )

    def release(self) -> None:
        """Release the claim. A second call does nothing."""
        if self._descriptor >= 0:
            fd, self._descriptor = self._descriptor, -1
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()


def is_claimed(directory: str) -> bool:
    """Whether a running process has claimed it."""
    import fcntl

    try:
        descriptor = os.open(f"{directory}/claim", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def claimed_by(directory: str) -> int | None:
    """The process that has claimed it; None if no running one has."""
    if not is_claimed(directory):
        return None
    try:
        with open(f"{directory}/claim", "rb") as file:
            return int(file.read(20))
    except (OSError, ValueError):
        return None  # it is being claimed


class OutputFile:
    """The newest output of a run, for `staddle jail watch`: two files of at most MOST_OUTPUT bytes each.

    They are beside the tree, where no sandbox can write. The newer one stays until the next run.
    """

    def __init__(self, directory: str) -> None:
        self._path, self._size = output_path(directory), 0
        remove_output(directory)
        self._descriptor = self._opened()

    def _opened(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self._path, flags, 0o600)

    def write(self, data: bytes) -> None:
        """Append output. On a full disk it ends there: the run goes on."""
        try:
            if self._size + len(data) > MOST_OUTPUT and self._size:
                os.rename(self._path, f"{self._path}.before")
                os.close(self._descriptor)
                self._descriptor, self._size = self._opened(), 0
            self._size += os.write(self._descriptor, data[-MOST_OUTPUT:])
        except OSError:
            pass

    def close(self) -> None:
        """End it. Who still reads the older file has it open."""
        os.close(self._descriptor)
        _unlink(f"{self._path}.before")


def remove_output(directory: str) -> None:
    """Remove the output of the last run."""
    _unlink(output_path(directory))


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def output_path(directory: str) -> str:
    """The file with the newest output of a run that can be watched."""
    return f"{directory}/output"


def last_line(directory: str) -> str:
    """The last line of output of a run that can be watched; empty if there is none."""
    try:
        with open(output_path(directory), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


JOURNAL = "journal.jsonl"
#: Longer texts are cut: a prompt can be a book.
MOST_LETTERS = 2000
MOST_WORDS = 64
#: At most this much is read, from the end of the journal.
MOST_BYTES = 1 << 20


class JournalEntry(Value):
    """One line: time, event (`created`, `began`, `ended`, `committed`, ...) and facts."""

    at: float
    what: str
    facts: dict[str, Any]


def append_journal(directory: str, what: str, secrets: Secrets | None = None, **facts: object) -> None:
    """Write a line. Failure to write does not stop the run."""
    import json

    line = json.dumps({"at": time.time(), "what": what, **_plain(facts, secrets)}) + "\n"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(f"{directory}/{JOURNAL}", flags, 0o600)
    except OSError:
        return
    try:
        os.write(descriptor, line.encode())  # a single write, so that lines of two processes do not mix
    except OSError:
        pass
    finally:
        os.close(descriptor)


def read_journal(directory: str) -> tuple[JournalEntry, ...]:
    """Every line that can be read, oldest first."""
    import json

    found = []
    try:
        with open(f"{directory}/{JOURNAL}", "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MOST_BYTES))
            lines = file.read(MOST_BYTES).splitlines()
    except OSError:
        return ()
    for line in lines:
        try:
            facts = json.loads(line)
            found.append(JournalEntry(float(facts.pop("at")), str(facts.pop("what")), facts))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # incomplete: the power failed, or it is cut at the start of the last megabyte
    return tuple(found)


def end_journal(directory: str) -> None:
    """Write the end of a run whose process was killed. The caller must have the claim."""
    runs = [entry.what for entry in read_journal(directory) if entry.what in ("began", "ended")]
    if runs[-1:] == ["began"]:
        why = "its process was killed, and this line was written when that was noticed"
        append_journal(directory, "ended", status=None, reason="killed", why=why)


def _plain(facts: Mapping[str, object], secrets: Secrets | None) -> dict[str, object]:
    plain: dict[str, object] = {}
    for name, value in facts.items():
        if isinstance(value, str):
            plain[name] = _bounded(value, secrets)
        elif isinstance(value, list | tuple):
            words = [_bounded(str(item), secrets) for item in value[:MOST_WORDS]]
            plain[name] = words if len(value) <= MOST_WORDS else [*words, "…"]
        else:
            plain[name] = value
    return plain


def _bounded(text: str, secrets: Secrets | None) -> str:
    """Redact secrets before cutting, so that no half of a secret remains."""
    text = text if secrets is None else secrets.text(text)
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"
