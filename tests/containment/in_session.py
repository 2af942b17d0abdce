"""A command in a session, with the face of a Popen: for the catalogue, which knows nothing of sessions."""

from __future__ import annotations

import os
import subprocess
from typing import Any, BinaryIO

from staddle import Policy
from staddle.session import opening


class Started:
    """One command, alone in a sandbox of its own, as far as `subprocess.Popen` is needed here."""

    def __init__(self, command: list[str], policy: Policy, directory: str, streams: dict[str, Any]) -> None:
        self.sandbox = opening.open_agent(opening.settings(policy=policy, backend="namespaces"))
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
        self._process = self.sandbox.link.spawn(
            command, self.sandbox.environment, directory, stdio=(given[0], given[1], given[2])
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
        for fd in (self.sandbox.shell.line, self.sandbox.shell.control):
            os.close(fd)
        for fd in self.sandbox.shell.files.descriptors():
            os.close(fd)
        self.sandbox.link.close()
        return out, err
