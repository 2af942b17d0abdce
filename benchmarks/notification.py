"""What a view by seccomp notification would cost: calls with a path wait until a supervisor has answered.

    python benchmarks/notification.py

On landlock the workspace is seen at its own path, and /tmp cannot be used. A supervisor could translate
paths, as it makes connections: it would have to read the path from the caller's memory, open the file and put
the descriptor in its place, since a call that is let through looks at memory that the caller may change.
This measures the least that could cost, with a supervisor in Python that reads the path and lets the call
through; docs/backends.md has the figures of one run, and why it is not done.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_REQUEST, _ANSWER = struct.Struct("QIIiIQ6Q"), struct.Struct("QqiI")
#: The calls with a path that programs make most, by machine: openat, newfstatat, readlinkat, faccessat(2),
#: statx; on x86_64 also open, stat, lstat, access, readlink.
_CALLS = {
    "x86_64": (2, 4, 6, 21, 89, 257, 262, 267, 269, 332, 439),
    "aarch64": (48, 56, 78, 79, 291, 439),
}
_FIRST_IS_PATH = {2, 4, 6, 21, 89} if platform.machine() == "x86_64" else set()
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_ROUNDS = 7


def _program(calls: tuple[int, ...]) -> bytes:
    rows = [(0x20, 0, 0, 0)]  # the number of the call
    rows += [(0x15, len(calls) - at, 0, number) for at, number in enumerate(calls)]
    rows += [(0x06, 0, 0, _ALLOW), (0x06, 0, 0, _NOTIFY)]
    return b"".join(struct.pack("HBBI", *row) for row in rows)


def _confine() -> int:
    """Stop this process at each such call from now on; the listener that tells of them."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    program = _program(_CALLS[platform.machine()])
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    listener: int = libc.syscall(_SECCOMP[platform.machine()], 1, 8, header)
    assert listener >= 0, os.strerror(ctypes.get_errno())
    return listener


def _supervised(command: list[str], cwd: str) -> tuple[float, int]:
    """Seconds that a command takes under a supervisor, and how many calls were answered."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    child = os.fork()
    if child == 0:
        os.chdir(cwd)
        null = os.open("/dev/null", os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        socket.send_fds(theirs, [b"!"], [_confine()])
        os.execvp(command[0], command)  # noqa: S606
    _, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
    began, count = time.perf_counter(), 0
    buffer = bytearray(_REQUEST.size)
    memory: dict[int, int] = {}
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        buffer[:] = bytes(len(buffer))
        try:
            fcntl.ioctl(listener, _RECEIVE, buffer)
        except OSError:
            continue  # it was interrupted, or ended
        identity, thread, _, number, _, _, *arguments = _REQUEST.unpack(buffer)
        at = arguments[0 if number in _FIRST_IS_PATH else 1]
        try:
            if thread not in memory or not os.pread(memory[thread], 256, at):  # another program by now
                memory[thread] = os.open(f"/proc/{thread}/mem", os.O_RDONLY)
                os.pread(memory[thread], 256, at)
            fcntl.ioctl(listener, _SEND, _ANSWER.pack(identity, 0, 0, _CONTINUE))
        except OSError:
            pass  # it has ended
        count += 1
    seconds = time.perf_counter() - began
    for fd in (listener, *memory.values()):
        os.close(fd)
    return seconds, count


def _plain(command: list[str], cwd: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - began


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place, "tree")
        tree.mkdir()
        for number in range(1000):
            (tree / f"{number}.c").write_text(f"int f{number}(void) {{ return {number}; }}\n")
        for words in (["init", "-q"], ["add", "."]):
            subprocess.run(["git", *words], check=True, cwd=tree, stdout=subprocess.DEVNULL)
        opening = "import os\nfor _ in range(3000): os.stat('1.c')"
        commands = {
            "3,000 times stat": [sys.executable, "-S", "-c", opening],
            "git status, 1,000 files": ["git", "status", "--short"],
            "python: import asyncio": [sys.executable, "-c", "import asyncio"],
            "grep -r, 1,000 files": ["grep", "-r", "nothing", "."],
            "gcc -c": ["gcc", "-c", "1.c", "-o", "/dev/null"],
        }
        for name, command in commands.items():
            pairs = [(_plain(command, str(tree)), *_supervised(command, str(tree))) for _ in range(_ROUNDS)]
            plain, supervised, calls = (statistics.median(column) for column in zip(*pairs, strict=True))
            each = (supervised - plain) / max(1, calls) * 1e6
            print(
                f"{name}: {plain * 1000:.1f} ms, {supervised * 1000:.1f} ms with a supervisor: "
                f"{supervised / plain:.1f} times, {calls:.0f} calls, {each:.0f} µs more for each",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
