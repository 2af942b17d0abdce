"""For the tests of the fork server: sandboxes at their lowest level, and what is there of them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from staddle.sandbox.open import open as opening
from staddle.sandbox.open import settings
from staddle.sandbox.open.handle import SandboxHandle


def opened(workspace: str | None = None, mode: str = "overlay", **more: object) -> SandboxHandle:
    """A sandbox of the namespaces backend."""
    return opening.open_agent(settings.settings(workspace, backend="namespaces", mode=mode, **more))


def close(sandbox: SandboxHandle) -> None:
    """Let it go, with all that was handed over."""
    for fd in (sandbox.shell.socket, sandbox.shell.control, *sandbox.shell.files.descriptors()):
        os.close(fd)
    sandbox.agent.close()


def output(
    sandbox: SandboxHandle, *argv: str, env: Mapping[str, str] | None = None
) -> tuple[str, int | None]:
    """What a program in it prints to both streams, and its exit status."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        started = sandbox.agent.spawn(
            argv, env or sandbox.decided.environment, sandbox.directory, stdio=(null, writing, writing)
        )
    finally:
        os.close(writing)
        os.close(null)
    said = b""
    while chunk := os.read(reading, 65536):
        said += chunk
    os.close(reading)
    try:
        return said.decode("utf-8", "surrogateescape"), started.wait(60)
    finally:
        started.close()


def children(of: int | None = None) -> set[int]:
    """The processes below a process of ours."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state != b"Z":
            parents[int(name)] = int(parent)
    found = {of or os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    return found - {of or os.getpid()}
