"""A command in a session, with the face of a Popen: for the catalogue, which knows nothing of sessions."""

from __future__ import annotations

import os
import subprocess
from typing import Any, BinaryIO

from staddle import Identity, Policy
from staddle.inside.agent.confinement import ROOT_RIGHTS
from staddle.sandbox.open import as_root, settings
from staddle.sandbox.open import open as opening

#: Who a command of a session is: its user, its root for once, or the root that all of it is.
USERS = {"session": "", "session as root": "once", "session of root": "always"}


#: What a root is there for, and no attack of its.
ROOTS_OWN = frozenset({"create-in-system-directories", "become-another-user", "change-groups"})


def rights(backend: str) -> int:
    """The capabilities that a command may have, as bits."""
    return ROOT_RIGHTS if USERS[backend] else 0


class Started:
    """One command, alone in a sandbox of its own, as far as `subprocess.Popen` is needed here."""

    def __init__(
        self, command: list[str], policy: Policy, directory: str, streams: dict[str, Any], root: str = ""
    ) -> None:
        identity = Identity(uid=0) if root == "always" else None
        self.sandbox = opening.open_agent(
            settings.settings(policy=policy, backend="namespaces", identity=identity)
        )
        if root == "once":
            as_root.prepare_system(self.sandbox.decided, self.sandbox.workspace)
        self.returncode: int | None = None
        self.stdin: BinaryIO | None = None
        self.stdout: BinaryIO | None = None
        self.stderr: BinaryIO | None = None
        given = []
        for name, mode in (("stdin", "wb"), ("stdout", "rb"), ("stderr", "rb")):
            if streams.get(name) == subprocess.PIPE:
                reading, writing = os.pipe2(os.O_CLOEXEC)
                ours, theirs = (writing, reading) if name == "stdin" else (reading, writing)
                setattr(self, name, os.fdopen(ours, mode))
                given.append(theirs)
            else:
                given.append(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))
        self._process = self.sandbox.agent.spawn(
            command,
            self.sandbox.decided.plan.environment(),
            directory,
            stdio=(given[0], given[1], given[2]),
            who=(0, 0, ()) if root == "once" else None,
        )
        for fd in given:
            os.close(fd)

    def poll(self) -> int | None:
        self.returncode = self._process.poll()
        return self.returncode

    def communicate(self, timeout: float) -> tuple[bytes, bytes]:
        if self.stdin is not None:
            self.stdin.close()
        out, err = (stream.read() if stream is not None else b"" for stream in (self.stdout, self.stderr))
        self.returncode = self._process.wait(timeout)
        self._process.close()
        for fd in (self.sandbox.shell.socket, self.sandbox.shell.control):
            os.close(fd)
        for fd in self.sandbox.shell.files.descriptors():
            os.close(fd)
        self.sandbox.agent.close()
        return out, err
