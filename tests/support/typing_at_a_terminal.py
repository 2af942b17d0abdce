"""A person at a terminal: starts a command on one, types line after line, ends as the command does.

    python typing_at_a_terminal.py '["stty size", "exit 5"]' staddle jail shell WS

Types the next line when the command has printed nothing for a moment. Needs nothing but Python.
"""

import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import time

QUIET = 0.6
PATIENCE = 40


def main() -> int:
    lines = json.loads(sys.argv[1])
    pid, leader = pty.fork()
    if pid == 0:
        os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - no shell is the point
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("4H", 31, 99, 0, 0))
    end = time.monotonic() + PATIENCE
    heard = False
    while time.monotonic() < end:
        ready, _, _ = select.select([leader], [], [], QUIET)
        if ready:
            try:
                data = os.read(leader, 65536)
            except OSError:
                break
            heard = True
            os.write(1, data)
        elif heard and lines:
            line = lines.pop(0)
            os.write(leader, line.encode() if line == "\x03" else line.encode() + b"\r")
    else:
        os.kill(pid, 9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main() % 256)
