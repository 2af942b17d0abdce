"""What is left when whoever started the sandbox is killed: nothing, however it tried to stay."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

#: Three ways to stay: a plain child, one in a session of its own, one that lost its parent.
STAYERS = """
import os, sys, time
def stay():
    os.execv("/usr/bin/sleep", [sys.argv[1], "600"])
if os.fork() == 0:
    stay()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        stay()
    os._exit(0)
os.write(1, b"x")
time.sleep(600)
"""
SECONDS = 10.0
#: How long to wait for the end of what is not expected to end.
MOMENT = 2.0


def survived(backend: str, switched_off: str = "") -> list[int]:
    """The processes that are still there some seconds after the process that started them was killed."""
    marker = f"staddle-orphan-{os.getpid()}-{time.monotonic_ns()}"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        starter = subprocess.Popen(
            [
                sys.executable,
                "-c",
                STARTER,
                backend,
                switched_off,
                marker,
                directory,
                STAYERS,
                __package__ or "",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what stays would hold ours open
        )
        assert starter.stdout is not None
        assert starter.stdout.read(1) == b"x", "the sandbox did not start"
        deadline = time.monotonic() + SECONDS
        while len(_called(marker)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(_called(marker)) >= 2, "the processes that are to stay did not start"
        starter.kill()
        starter.wait()
        deadline = time.monotonic() + (MOMENT if switched_off else SECONDS)
        while _called(marker) and time.monotonic() < deadline:
            time.sleep(0.02)
        left = _called(marker)
        for pid in _mentioning(marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        starter.stdout.close()
        return left


#: Starts the sandbox and waits to be killed.
STARTER = """
import importlib, sys, time
backend, switched_off, marker, directory, stayers, package = sys.argv[1:]
from staddle import Policy, wrap
if switched_off:
    importlib.import_module(package + ".switches").switch_off(backend, switched_off)
command = ["/usr/bin/python3", "-I", "-c", stayers, marker]
wrapped = wrap(command, Policy.agent().with_read(directory), backend=backend, cwd=directory,
               best_effort=bool(switched_off))
process = wrapped.popen()
time.sleep(600)
"""


def _called(marker: str) -> list[int]:
    """The processes that stay, by the name they gave themselves."""
    return [pid for pid, line in _command_lines() if line.startswith(marker.encode() + b"\0" + b"600")]


def _mentioning(marker: str) -> list[int]:
    """These, and what started them."""
    return [pid for pid, line in _command_lines() if marker.encode() in line]


def _command_lines() -> Iterator[tuple[int, bytes]]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            yield int(pid), Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
