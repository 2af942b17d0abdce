"""The user's terminal, when the command is started from one. Run with it as standard input."""

from __future__ import annotations

import fcntl
import os
import termios

from .kit import Refused, World, attack

NO = "EPERM ENOTTY EIO ENXIO EACCES ENOENT"


@attack("terminal", NO + " nothing", twin="usual-devices")
def type_into_the_terminal(world: World) -> str:
    tried = Refused("no terminal is open")
    for fd in (0, 1, 2):
        if os.isatty(fd):
            try:
                for byte in world["typed"].encode():
                    fcntl.ioctl(fd, termios.TIOCSTI, bytes([byte]))
            except OSError as error:
                tried = error
            else:
                return "typed"
    raise tried


@attack("terminal", NO, twin="usual-devices")
def open_the_controlling_terminal(world: World) -> str:
    fd = os.open("/dev/tty", os.O_RDWR)
    os.write(fd, b"")
    return os.ttyname(fd)
