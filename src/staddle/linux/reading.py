"""Files, read without a file object: small ones that somebody else may have written, and those of /proc."""

from __future__ import annotations

import os
import stat


def text(path: str, most: int, flags: int = 0) -> str:
    """The beginning of a regular file; "" when it is none, or cannot be read. Never waits for anybody."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | flags)
    except (OSError, ValueError):
        return ""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return os.read(fd, most).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    finally:
        os.close(fd)


def whole(path: str) -> bytes:
    """All that is in a file of our own, or of the kernel."""
    data = bytearray()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while chunk := os.read(fd, 1 << 16):
            data += chunk
    finally:
        os.close(fd)
    return bytes(data)
