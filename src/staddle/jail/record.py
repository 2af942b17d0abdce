"""The record of a workspace: a file beside its tree that no sandbox can write, and its lock (claim)."""

from __future__ import annotations

import os
import time

from .._value import Value
from ..errors import WorkspaceBusy, WorkspaceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

#: From each state, where it may go. A run that was ended can be run again; `published` is the end.
TRANSITIONS: dict[str, tuple[str, ...]] = {
    "prepared": ("running", "failed"),
    "running": ("stopped", "failed"),
    "stopped": ("running", "published", "failed"),
    "failed": ("running",),
    "published": (),
}
FORMAT = 1


class WorkspaceRecord(Value):
    """The facts of a workspace. `base` is the commit it began from, `changed` when `state` last did."""

    name: str
    repository: str
    common: str
    branch: str
    base: str
    state: str
    created: float
    changed: float

    def moved_to(self, state: str) -> WorkspaceRecord:
        """The same in another state, or WorkspaceError when there is no way from here to there."""
        if state not in TRANSITIONS:
            raise WorkspaceError(
                f"there is no state {state!r}", fix=f"choose one of {', '.join(TRANSITIONS)}"
            )
        if state not in TRANSITIONS[self.state]:
            ways = " or ".join(TRANSITIONS[self.state]) or "nothing else"
            raise WorkspaceError(
                f"the workspace {self.name} cannot become {state}",
                why=f"it is {self.state}, which can become {ways}",
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
            raise ValueError(f"it says {record.state!r} for a state")
        return record
    except FileNotFoundError:
        raise WorkspaceError(f"there is no workspace at {directory!r}") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise WorkspaceError(
            f"the workspace at {directory!r} cannot be read", why=str(error), fix="reap it"
        ) from None


def write(directory: str, record: WorkspaceRecord) -> None:
    """Replace the record, whole or not at all, also when the power goes."""
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
    """One process has the workspace. The kernel ends the claim with the process, however it ends."""

    def __init__(self, directory: str) -> None:
        import fcntl

        self._descriptor = os.open(f"{directory}/claim", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for attempt in range(5):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if attempt < 4:
                    time.sleep(0.01)  # `is_claimed` may be looking, for a moment
        os.close(self._descriptor)
        raise WorkspaceBusy(
            f"the workspace at {directory!r} is in use",
            why="another process, or another part of this one, has claimed it",
            fix="wait for its end, or make another workspace",
        )

    def release(self) -> None:
        """Give it back. A second time does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()


def is_claimed(directory: str) -> bool:
    """Whether a living process has claimed it."""
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
