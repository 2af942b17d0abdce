"""What a switch is: a protection taken away on purpose, and the checks that must notice."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Changes what staddle decides, in the session's own process.
Patch = Callable[[], None]


@dataclass(frozen=True)
class Edit:
    """Changes the text of one file of a copy of staddle: for what its helper does in another process.

    `file` may be a pattern, when any of several files may say it.
    """

    file: str
    old: str
    new: str

    def apply(self, source: Path) -> None:
        """Change it, once, in the tree at `source`, whose files may be others' as well."""
        texts = {path: path.read_text() for path in (source / "staddle").glob(self.file)}
        saying = [path for path, text in texts.items() for _ in range(text.count(self.old))]
        assert len(saying) == 1, f"{self.file} does not say this once any more: {self.old!r}"
        saying[0].unlink()
        saying[0].write_text(texts[saying[0]].replace(self.old, self.new))
        for compiled in (saying[0].parent / "__pycache__").glob(f"{saying[0].stem}.*"):
            compiled.unlink()  # it says what the file said before


@dataclass(frozen=True)
class Switch:
    """What is taken away, and who must notice.

    Those are attacks, or the checks `uids` (the command is root), `parent` (something stays),
    `terminal` (the user's can be reached) and `start` (staddle itself refuses to start).
    """

    off: Patch
    notices: tuple[str, ...]
    #: Only meaningful when root runs the tests ("root"), or only when an ordinary user does ("user").
    only: str = ""
    edits: tuple[Edit, ...] = ()
    network: str = "deny"
    #: The same lines hold it, in the same way, whoever runs the tests: it is enough that one does.
    same_for_everyone: bool = False

    def __post_init__(self) -> None:
        assert not (self.only and self.same_for_everyone), "what only one can notice is not the same"


def nothing() -> None:
    """For switches that only edit."""


def together(*patches: Patch) -> Patch:
    """Several patches as one."""

    def off() -> None:
        for patch in patches:
            patch()

    return off


def _leave_sockets() -> None:
    from staddle import wrapping
    from staddle.sandbox.open import decide

    wrapping.mask_host_sockets = decide.mask_host_sockets = lambda plan, **_: plan


#: Every way to start something looks for them. Landlock never lets one in a readable directory be used.
SOCKETS_IN_GRANTS = Switch(
    _leave_sockets,
    ("connect-to-a-socket-in-a-read-grant", "connect-to-a-socket-in-a-write-grant"),
    same_for_everyone=True,
)


def allow_everything(*_: Any, **__: Any) -> bytes:
    """A system call filter that allows everything."""
    return struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)


#: What our own helper does for every sandbox that it makes itself.
NO_PROCESS_NAMESPACE = (
    Edit("inside/namespace_init.py", '        call("unshare", userns.CLONE_NEWPID)\n', ""),
    Edit(
        "inside/namespace_init.py",
        "_be_somebody_else(spec, userns.CLONE_NEWPID)",
        "_be_somebody_else(spec)",
    ),
)
NO_LAST_LOOK = Edit("inside/namespace_init.py", "    verify.around(spec, kept)\n", "")
SEEN_FIRST_PROCESS = Edit("mounts/builder.py", '"hidepid=2"', '""')
#: No process that is closed to the ones inside is seen in /proc.
HIDEPID = Switch(
    nothing,
    ("read-a-path-of-the-host-in-the-command-line-of-the-first-process",),
    edits=(SEEN_FIRST_PROCESS,),
)
OPEN_FIRST_PROCESS = (
    Edit("inside/namespace_init.py", "    process.dumpable(False)\n", ""),
    # PID 1 keeps it where it measures memory: a process without capabilities cannot look into one with some.
    Edit(
        "inside/namespace_init.py",
        "    kept = 0 if work.watch is None else 1 << _CAP_SYS_PTRACE\n",
        "    kept = 0\n",
    ),
    SEEN_FIRST_PROCESS,
)
