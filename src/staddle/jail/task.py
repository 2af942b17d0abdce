"""The task of a workspace: the prompt of its agent, and the reference of the issue or ticket.

It is stored in `task.json` beside the record, where no sandbox can read or write it. A reference belongs to
one workspace of its repository at a time. `reserve` decides under a lock; a workspace that crashed during its
creation reserves nothing.
"""

from __future__ import annotations

import os

from .._value import Value
from ..errors import PolicyError, WorkspaceBusy, WorkspaceError
from . import record as records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT = 1
#: Larger files are not read; a prompt can be a book, but not a library.
MOST_BYTES = 8 << 20
_FILE = "task.json"
_LOCK = "references.lock"
#: Nobody works on these any more, so their references are free.
_FREE = ("published",)


class Task(Value):
    """The task of a workspace; every part may be empty.

    `repository` is the name that people use (`owner/name`), `reference` the issue or ticket, `prompt` the
    request to the agent, `session` the agent's id of its conversation, to resume it.
    """

    repository: str = ""
    reference: str = ""
    title: str = ""
    prompt: str = ""
    session: str = ""

    def __post_init__(self) -> None:
        for name in self._fields:
            value = getattr(self, name)
            if not isinstance(value, str) or "\0" in value:
                raise PolicyError(
                    f"the {name} of a task is {value!r}",
                    why="it is not a text, or contains a NUL byte",
                    fix="give one line of text",
                )
            if name != "prompt" and not value.isprintable():
                raise PolicyError(
                    f"the {name} of a task is {value!r}",
                    fix="write it on one line",
                    why="it has a line end in it",
                )
        if self.session.startswith("-"):
            raise PolicyError(
                f"the session of a task is {self.session!r}",
                why="an agent would take it for an option",
                fix="write it without a leading dash",
            )


def read(directory: str) -> Task:
    """The task of the workspace in `directory`; an empty one if none is stored."""
    import json

    try:
        with open(f"{directory}/{_FILE}", "rb") as file:
            facts = json.loads(file.read(MOST_BYTES))
        if facts.pop("format") != FORMAT:
            raise ValueError("another version of staddle wrote it")
        return Task(**{name: value for name, value in facts.items() if name != "scope"})
    except FileNotFoundError:
        return Task()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, PolicyError) as error:
        raise WorkspaceError(
            f"the task of {directory!r} cannot be read",
            why=str(error),
            fix="remove the file, or write it again with update_task()",
        ) from None


def write(directory: str, task: Task, common: str) -> None:
    """Store `task` atomically. `common` is the git directory that its reference belongs to."""
    import json

    facts = {"format": FORMAT, "scope": _scope(task, common), **task.as_dict()}
    temporary = f"{directory}/{_FILE}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(json.dumps(facts, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, f"{directory}/{_FILE}")


def reserve(directory: str, task: Task, common: str, others: Iterable[str]) -> None:
    """Store `task` for the new workspace in `directory`, which the caller has claimed.

    Raises WorkspaceBusy if one of `others` has the same reference of the same repository; if two processes
    ask at once, one gets it. Publishing or removing that workspace frees the reference.
    """
    import fcntl

    if not task.reference:
        return write(directory, task, common)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    lock = os.open(f"{os.path.dirname(directory)}/{_LOCK}", flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # for a few reads and one write, never while git runs
        for other in others:
            if other != directory and _has(other, task, common):
                raise WorkspaceBusy(
                    f"{task.reference!r} is being worked on",
                    why=f"the workspace {os.path.basename(other)} has it",
                    fix="use that one, publish it, or remove it",
                )
        write(directory, task, common)
    finally:
        os.close(lock)
    return None


def _has(directory: str, task: Task, common: str) -> bool:
    import json

    try:
        with open(f"{directory}/{_FILE}", "rb") as file:
            facts = json.loads(file.read(MOST_BYTES))
        same = facts["reference"] == task.reference and facts["scope"] == _scope(task, common)
    except (OSError, ValueError, TypeError, KeyError):
        return False
    if not same:
        return False
    try:
        return records.read(directory).state not in _FREE
    except WorkspaceError:
        return records.is_claimed(directory)  # being made if claimed; else left by a crash


def _scope(task: Task, common: str) -> str:
    return task.repository or os.fsencode(common).decode("utf-8", "backslashreplace")
