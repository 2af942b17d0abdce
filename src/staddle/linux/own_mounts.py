"""Work in a child with its own namespaces, which outlive it.

An ordinary user may mount only in their own user namespace, and a process with threads cannot enter one. So a
forked child enters one, does the work, and stays until its namespaces have been opened from outside. The
descriptors keep them alive.
"""

from __future__ import annotations

import errno
import os

from .. import errors
from .mounts import CLONE_NEWNS, MS_REC, MS_SLAVE, mount
from .syscalls import call
from .userns import CLONE_NEWUSER, map_ids, reap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


def with_own_mounts(work: Callable[[], None]) -> tuple[int, int]:
    """Run `work` where an ordinary user may mount; return (mount namespace, user namespace).

    Only the caller's own ids exist there. An OSError or StaddleError from `work` is raised here. The child
    has ended when this returns.
    """
    from ..interrupts import uninterrupted

    return uninterrupted(lambda: _with_own_mounts(work))


def _with_own_mounts(work: Callable[[], None]) -> tuple[int, int]:
    said, say = os.pipe2(os.O_CLOEXEC)
    wait, release = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.close(release)  # so that our death also releases the child
        _work(work, say, wait)
    os.close(say)
    os.close(wait)
    try:
        with os.fdopen(said, "rb") as file:
            message = file.read()
        if message:
            raise _received(message)
        flags = os.O_RDONLY | os.O_CLOEXEC
        mounts = os.open(f"/proc/{child}/ns/mnt", flags)
        return mounts, os.open(f"/proc/{child}/ns/user", flags)
    finally:
        os.close(release)
        reap(child)


def _work(work: Callable[[], None], say: int, wait: int) -> NoReturn:
    """Be the forked child. Writes nothing if all went well, and stays until it is released."""
    try:
        uid, gid = os.geteuid(), os.getegid()
        call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
        map_ids(uid, gid, uid, gid)
        mount(None, "/", flags=MS_REC | MS_SLAVE)
        work()
    except BaseException as error:
        os.write(say, _sent(error))
        os._exit(1)
    os.close(say)
    os.read(wait, 1)
    os._exit(0)


def _sent(error: BaseException) -> bytes:
    """Encode an error as bytes: its kind and its texts."""
    if isinstance(error, errors.StaddleError):
        parts = [type(error).__name__, error.what, error.why, error.fix]
    elif isinstance(error, OSError):
        parts = ["OSError", str(error.errno or errno.EIO), os.fsdecode(error.filename or ""), ""]
    else:
        parts = ["StaddleError", f"{type(error).__name__}: {error}", "this is a bug", "please report it"]
    return "\0".join(parts).encode("utf-8", "surrogateescape")


def _received(message: bytes) -> Exception:
    name, what, why, fix = message.decode("utf-8", "surrogateescape").split("\0")
    if name == "OSError":
        return OSError(int(what), os.strerror(int(what)), *([why] if why else []))
    error: Exception = getattr(errors, name)(what, why=why, fix=fix)
    return error
