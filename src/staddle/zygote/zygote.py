"""The fork server: one process for each plan that a host program opens sessions with.

Single-threaded, started by exec, so that it may enter a user namespace and clone itself. It
keeps a few sandboxes ready and hands one out when asked. It ends when the host program does,
however that happens, because their line is down then; and with it, by the kernel's hand, every
sandbox.
"""

from __future__ import annotations

import _socket
import fcntl
import gc
import os
import select

from ..helper.scratch import remove
from ..helper.wire import Malformed
from ..linux import process
from ..linux.openat2 import open_beneath
from . import last_look, spare, template, workspace
from .blueprint import LONGEST, READY, REFUSED, STALE, TAKEN, decode_blueprint, decode_request
from .descriptors import receive, send
from .sharing import OLD_ROOT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from .blueprint import Blueprint

#: A spare is made again only when nothing was asked for this long: the processor is the first
#: command's.
_QUIET = 20  # milliseconds


def main(words: list[str]) -> NoReturn:
    """Be the zygote on the line that is descriptor `words[0]`, with the blueprint in `words[1]`."""
    line = _socket.socket(fileno=int(words[0]))
    os.set_inheritable(line.fileno(), False)
    doing = ""
    try:
        blueprint = decode_blueprint(_contents(int(words[1])))
        outside = last_look.outside(blueprint)
        process.close_from(3, keep=(line.fileno(),))
        _be_quiet()
        doing = "while the part that all sandboxes share was made"
        template.make(blueprint, line)
        outside += last_look.template()
        old_root = os.open(OLD_ROOT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except BaseException as error:
        _answer(line, REFUSED + spare.reason(error, doing))
        os._exit(1)
    gc.collect()
    gc.freeze()
    _Zygote(blueprint, outside, line, old_root).serve()


class _Zygote:
    def __init__(
        self, blueprint: Blueprint, outside: last_look.Outside, line: _socket.socket, old_root: int
    ) -> None:
        self._blueprint, self._outside = blueprint, outside
        self._line, self._old_root = line, old_root
        self._spares: list[_socket.socket] = []
        self._children: set[int] = set()
        self._stores: set[bytes] = set()
        self._held: dict[bytes, int] = {}

    def serve(self) -> NoReturn:
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        self._refill()
        _answer(self._line, READY)
        while True:
            short = len(self._spares) < self._blueprint.spares
            asked = poll.poll(_QUIET if short else 1000)
            self._reap()
            if asked:
                try:
                    message, trees = receive(self._line, LONGEST)
                except ConnectionResetError:
                    self._end()
                except OSError as error:  # too long, or too many descriptors for us
                    _answer(self._line, REFUSED + spare.reason(error))
                    continue
                if not message:
                    self._end()
                self._hand_out(message, trees)
            elif short:
                self._refill()

    def _hand_out(self, message: bytes, trees: list[int]) -> None:
        """A sandbox with its workspace, or the workspace alone."""
        given: _socket.socket | None = None
        along: list[int] = []
        try:
            request = decode_request(message)
            while trees and len(along) < request.along:
                along.insert(0, trees.pop())
            if request.upper:
                self._use(os.path.dirname(os.path.dirname(request.upper)))
            if request.workspace:
                trees.append(workspace.take(request, self._old_root, trees.pop() if trees else None))
                if not request.view:
                    send(self._line, TAKEN, trees)
                    return
            given = self._next()
            try:
                send(given, message, [*trees, *along])
            except BrokenPipeError:
                pass  # it could not be made, and whoever gets its line reads there why
            send(self._line, TAKEN, [given.fileno()])
        except workspace.Moved:
            _answer(self._line, STALE)
        except (Malformed, OSError) as error:
            _answer(self._line, REFUSED + spare.reason(error))
        finally:
            for fd in (*trees, *along):
                os.close(fd)
            if given is not None:
                given.close()

    def _use(self, store: bytes) -> None:
        """Layers go to this directory. If they are there to stay, whoever has them next waits for our end."""
        self._stores.add(store)
        path = f"{os.fsdecode(store[1:])}/users-{os.getppid()}"
        try:
            users = open_beneath(self._old_root, path, os.O_RDONLY)
        except OSError:
            return  # they go with the host program
        if store in self._held:
            os.close(self._held[store])
        self._held[store] = users
        fcntl.flock(users, fcntl.LOCK_SH)

    def _refill(self) -> None:
        try:
            self._spares.append(self._made())
        except OSError:
            pass  # too many processes, for now; who asks is told

    def _next(self) -> _socket.socket:
        """One that waits, or a new one."""
        while self._spares:
            line = self._spares.pop(0)
            if not _has_spoken(line):
                return line
            line.close()  # something went wrong, and that may be over
        return self._made()

    def _made(self) -> _socket.socket:
        pid, line = spare.make(self._blueprint, self._outside)
        self._children.add(pid)
        return line

    def _reap(self) -> None:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                self._children.discard(ended)
        except ChildProcessError:
            pass

    def _end(self) -> NoReturn:
        """The host program has hung up. If that was its end, the layers of its sandboxes go, too."""
        for pid in self._children:
            os.kill(pid, process.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)
        for store in self._stores:
            try:
                lock = open_beneath(self._old_root, os.fsdecode(store[1:]) + "/lock", os.O_RDWR)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue  # it is alive, or has tidied up itself
            remove((OLD_ROOT.encode() + store,))
        os._exit(0)


def _be_quiet() -> None:
    """Nothing of the user's is ours: their terminal, their standard streams, their keys."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)
    try:
        process.new_session_keyring()
    except OSError:
        pass  # a kernel without keys
    os.umask(0o022)
    process.default_signals()


def _has_spoken(line: _socket.socket) -> bool:
    """Whether a spare could not be made: those that wait for somebody say nothing."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    return bool(poll.poll(0))


def _answer(line: _socket.socket, message: bytes) -> None:
    try:
        send(line, message)
    except OSError:
        os._exit(0)  # nobody is there any more


def _contents(file: int) -> bytes:
    data = bytearray()
    while chunk := os.pread(file, 1 << 20, len(data)):
        data += chunk
    return bytes(data)
