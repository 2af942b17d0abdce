"""One zygote, as the host program has it: a child process and a line to it."""

from __future__ import annotations

import _socket
import os
import threading

from ..errors import LaunchFailed
from ..helper import starting
from ..layout.building import not_built, take
from ..layout.operations import Bind
from ..layout.rows import decoded
from ..linux import idmaps
from . import blueprint as records
from .descriptors import receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

#: How long a zygote may take to start on a loaded machine, in seconds.
_PATIENCE = 60.0


class Zygote:
    """One fork server, and the right to talk to it."""

    def __init__(self, blueprint: records.Blueprint) -> None:
        self.live = 0  # sandboxes; whoever keeps us counts
        self._lock = threading.Lock()
        self._deaf = False
        self._line, self._process = _start(records.encode(blueprint))
        try:
            self._line.settimeout(_PATIENCE)
            if blueprint.base >= 0:
                self._lend(blueprint)
            self._hear(records.READY)
        except BaseException as error:
            self._process.kill()
            last_words = self._last_words()
            self.close()
            if isinstance(error, OSError):
                raise _failed(last_words, error) from error
            raise

    def take(self, request: records.Request, tree: int | None, along: Sequence[int] = ()) -> int | None:
        """What is asked for: the line to a new sandbox, or a workspace alone.

        None when the host's mounts have changed since we were started, or the zygote has ended.
        """
        try:
            return self._take(request, [*(() if tree is None else (tree,)), *along])
        except (BrokenPipeError, ConnectionResetError):
            return None
        except OSError as error:
            # Its answer may come yet, and must not be taken for one to something else.
            self._deaf = True
            raise _failed(b"", error) from error

    def _take(self, request: records.Request, given: Sequence[int]) -> int | None:
        with self._lock:
            send(self._line, records.encode(request), given)
            answer, descriptors = receive(self._line, records.LONGEST)
        if answer in (records.STALE, b""):
            return None
        if answer != records.TAKEN or len(descriptors) != 1:
            raise _failed(answer)
        return descriptors[0]

    @property
    def ended(self) -> bool:
        """Whether it has gone, or must not be asked any more."""
        return self._deaf or self._process.poll() is not None

    def hang_up(self) -> None:
        """Leave it to whoever else has the line."""
        self._line.close()

    def close(self) -> None:
        """End it, and every sandbox of it."""
        self._line.close()
        if self._deaf:
            self._process.kill()
        self._process.wait()

    def _lend(self, blueprint: records.Blueprint) -> None:
        """What only root can do for a zygote that is nobody: map its ids, open what is shown."""
        self._hear(records.MAP)
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{self._process.pid}/{name}", "wb", buffering=0) as file:
                file.write(b"0 %d %d" % (blueprint.base, blueprint.count))
        send(self._line, records.MAPPED)
        shown = [op for op in decoded(blueprint.template) if isinstance(op, Bind) and not op.again]
        for first in range(0, len(shown), records.MOST_DESCRIPTORS):
            trees: list[int | None] = []
            try:
                for operation in shown[first : first + records.MOST_DESCRIPTORS]:
                    trees.append(taken_as_root(operation, blueprint))
                there = bytes(tree is not None for tree in trees)
                send(self._line, there, [tree for tree in trees if tree is not None])
            finally:
                for tree in trees:
                    if tree is not None:
                        os.close(tree)

    def _hear(self, expected: bytes) -> None:
        answer, _ = receive(self._line, records.LONGEST)
        if answer != expected:
            raise _failed(answer)

    def _last_words(self) -> bytes:
        """What it said before it hung up: the line tells of the end first."""
        for _ in range(2):
            try:
                return receive(self._line, records.LONGEST)[0]
            except ConnectionResetError:
                continue
            except OSError:
                break
        return b""


def taken_as_root(operation: Bind, blueprint: records.Blueprint) -> int | None:
    """What a grant names, as root's sandbox is to see it."""
    stranger = blueprint.base + blueprint.whose
    try:
        return take(operation, lambda owner, group: idmaps.translation(owner, group, stranger), private=True)
    except OSError as error:
        raise not_built(f"{operation.outside!r}: {error.strerror or error}") from error


def _start(blueprint: bytes) -> tuple[_socket.socket, subprocess.Popen[bytes]]:
    """Our end of the line, and the process at the other."""
    import subprocess

    opened: list[int] = []
    try:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        opened.append(line := theirs.detach())
        opened.append(file := os.memfd_create("staddle", os.MFD_CLOEXEC))
        view = memoryview(blueprint)
        while view:
            view = view[os.write(file, view) :]
        process = subprocess.Popen(
            starting.command("zygote", str(line), str(file)),
            env=starting.ENVIRONMENT,
            cwd="/",
            pass_fds=(line, file),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the user's terminal is not for it
        )
        return ours, process
    except OSError as error:
        raise LaunchFailed("the zygote could not be started", why=error.strerror or str(error)) from error
    finally:
        for fd in opened:
            os.close(fd)


def _failed(answer: bytes, error: OSError | None = None) -> LaunchFailed:
    if answer[:1] == records.REFUSED:
        why = answer[1:].decode("utf-8", "replace")
    elif isinstance(error, TimeoutError):
        why = f"the zygote has not answered for {_PATIENCE:.0f} seconds"
    elif error is not None and not isinstance(error, BrokenPipeError | ConnectionResetError):
        why = error.strerror or str(error)
    else:
        why = "the zygote has ended"
    return LaunchFailed("the sandbox could not be made", why=why, fix="see `staddle doctor`")
