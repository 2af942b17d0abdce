"""Starting the helper with instructions made by hand, as root and as an ordinary user."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from staddle.ipc.exec_spec import ExecSpec
from staddle.launch.contract import helper_launch
from staddle.linux import landlock, seccomp
from staddle.linux.idmaps import FIRST_UNUSED

ROOT = os.geteuid() == 0
READ, WRITE = landlock.bits(landlock.READ, "fs"), landlock.bits(landlock.WRITE, "fs")
SYSTEM = tuple(path for path in ("/usr", "/opt", "/etc", "/proc") if os.path.isdir(path))


def order(*argv: str, work: Path | str | None = None, **changes: Any) -> ExecSpec:
    """ExecSpec for a fully confined command that may write `work`."""
    kept, _ = landlock.weaken(landlock.EVERYTHING, landlock.abi())
    rules = [(os.fsencode(path), READ, 0) for path in SYSTEM]
    rules += [(b"/dev/null", READ | WRITE, 0), (b"/dev/urandom", READ, 0)]
    fields: dict[str, Any] = {}
    if work is not None:
        path = os.fsencode(work)
        rules.append((path, WRITE, 0))
        fields["sockets"] = ((b"beneath", path),)
    if ROOT:
        fields["uid"] = fields["gid"] = FIRST_UNUSED + int.from_bytes(os.urandom(3), "little")
        fields["empty"] = ((b"/tmp", 0o1777, 0),)
        if work is not None:
            fields["trees"] = ((os.fsencode(work), 0, 0, 0),)
    return ExecSpec(
        argv=tuple(os.fsencode(word) for word in argv),
        environment=(b"PATH=/usr/bin:/bin", b"LANG=C.UTF-8"),
        directory=b"/" if work is None else os.fsencode(work),
        supervise=1,
        rlimits=((4, 1, 1),),
        handled_fs=landlock.bits(kept, "fs"),
        handled_net=landlock.bits(kept, "net"),
        scoped=landlock.bits(kept, "scope"),
        rules=tuple(rules),
        filter=seccomp.program("landlock"),
        brokered=1,
        **fields,
    ).replace(**changes)


class Started:
    """A helper that was started. `said` is why the command did not start, when it did not."""

    def __init__(self, instructions: ExecSpec, **kwargs: Any) -> None:
        launch = helper_launch(instructions)
        kwargs = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | kwargs
        try:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                launch.argv, env=launch.env, cwd=launch.cwd, pass_fds=launch.pass_fds, **kwargs
            )
        finally:
            launch.close()
        assert launch.status is not None
        with os.fdopen(launch.status, "rb") as status:
            self.said = launch.failure(status.read())

    def end(self, timeout: float = 30) -> tuple[int, str, str]:
        """Its exit status, what it wrote, and what it wrote to standard error."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, os.fsdecode(out or b""), os.fsdecode(err or b"")

    def supervisor(self) -> int:
        """The pid of the process that the launcher started."""
        return next(pid for pid, parent in processes() if parent == self.process.pid)


def run(instructions: ExecSpec, **kwargs: Any) -> tuple[int, str, str]:
    """Start it and wait for its end. The command must have started."""
    started = Started(instructions, **kwargs)
    ended = started.end()
    assert started.said is None, started.said
    return ended


def processes() -> Iterator[tuple[int, int]]:
    """Every process that is not dead, and its parent."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in "ZX":
            yield int(name), int(parent)


def marked(mark: str) -> list[int]:
    """Processes with `mark` on their command line."""
    found = []
    for pid, _ in processes():
        try:
            if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found
