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

from ..files.remove_tree import remove
from ..inside.agent import home_layers, verify
from ..inside.parent import contents
from ..ipc.descriptors import close_all, receive, send
from ..ipc.forkserver_messages import (
    GO,
    LONGEST,
    MADE,
    PREPARED,
    READY,
    REFUSED,
    STALE,
    TAKEN,
    UNLENT,
    WANTING,
    decode_blueprint,
    decode_request,
)
from ..ipc.reasons import reason
from ..ipc.wire import Malformed
from ..linux import process
from ..linux.openat2 import open_beneath
from ..mounts.shared_view import OLD_ROOT
from . import template, workspace
from .cloner import Maker
from .prewarm import rehearse_all
from .spares import Spare, Spares, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ..ipc.forkserver_messages import Blueprint, Request

#: A spare is made again only when nothing was asked for this long, as long as one was ready: the
#: processor is the first command's.
_QUIET = 20  # milliseconds


def main(words: list[str]) -> NoReturn:
    """Be the zygote on the line that is descriptor `words[0]`, with the blueprint in `words[1]`."""
    line = _socket.socket(fileno=int(words[0]))
    os.set_inheritable(line.fileno(), False)
    doing = ""
    try:
        blueprint = decode_blueprint(contents(int(words[1])))
        outside = verify.outside(blueprint)
        process.close_from(3, keep=(line.fileno(),))
        _be_quiet()
        doing = "while the part that all sandboxes share was made"
        template.make(blueprint, line)
        outside += verify.template()
        old_root = os.open(OLD_ROOT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        doing = "while it was made ready for more"
        rehearse_all(blueprint, outside)
        gc.collect()
        gc.freeze()
        maker = Maker(blueprint, outside)
    except BaseException as error:
        _answer(line, REFUSED + reason(error, doing))
        os._exit(1)
    _Zygote(blueprint, maker, line, old_root).serve()


class _Wanting(Exception):
    """There are no doors for another sandbox."""


class _Zygote:
    def __init__(self, blueprint: Blueprint, maker: Maker, line: _socket.socket, old_root: int) -> None:
        self._blueprint, self._maker = blueprint, maker
        self._line, self._old_root = line, old_root
        self._coming: list[tuple[bytes, tuple[int, ...]]] = []  # layer and doors of those that are being made
        self._stores: set[bytes] = {home_layers.store_of(blueprint)} if blueprint.skeleton else set()
        self._held: dict[bytes, int] = {}
        self._doors: list[tuple[int, ...]] = []  # to the control groups of sandboxes that are to be made
        self._spares = Spares(blueprint, self._doors.append)

    def serve(self) -> NoReturn:
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        poll.register(self._maker, select.POLLIN)
        self._refill()
        _answer(self._line, READY)
        while True:
            short = self._is_short
            ready = [fd for fd, _ in poll.poll(_QUIET if short else None)]
            if self._maker.fileno() in ready:
                self._collect()
            if self._line.fileno() in ready:
                try:
                    message, trees = receive(self._line, LONGEST)
                except ConnectionResetError:
                    self._end()
                except OSError as error:  # too long, or too many descriptors for us
                    _answer(self._line, REFUSED + reason(error))
                    continue
                if not message:
                    self._end()
                self._hand_out(message, trees)
            elif short and not ready:
                self._refill()

    def _hand_out(self, message: bytes, lent: list[int]) -> None:
        """What is asked for: a sandbox, trees for one, or one that is made ready for whoever asks next."""
        along: list[int] = []
        try:
            request = decode_request(message)
            while lent and len(along) < request.along:
                along.insert(0, lent.pop())
            prepared = self._prepared(request)
            if prepared is None and request.workspace and not lent and self._blueprint.base >= 0:
                _answer(self._line, UNLENT)
                return
            if not request.alone:
                self._put_by(along)
            if prepared is not None:
                self._give(prepared, GO, along, PREPARED)
                return
            for upper in (*filter(None, (request.upper,)), *(tree[1] for tree in request.trees)):
                self._use(os.path.dirname(os.path.dirname(upper)))
            if request.alone:
                self._send_trees(request, lent, along)
            elif request.ahead:
                self._prepare(request, message, lent)
            else:
                self._give_one(request, message, lent, along)
        except ConnectionError:
            self._end()  # there is nobody to make one, or nobody who wants it
        except workspace.Moved:
            _answer(self._line, STALE)
        except _Wanting:
            _answer(self._line, WANTING)
        except (Malformed, OSError) as error:
            _answer(self._line, REFUSED + reason(error))
        finally:
            close_all((*lent, *along))
            self._tidy()

    def _send_trees(self, request: Request, lent: list[int], lines: list[int]) -> None:
        trees = workspace.take_all(request, self._old_root, lent)
        try:
            _pass_on(lines, trees)
        finally:
            close_all(trees)
        send(self._line, TAKEN)

    def _prepare(self, request: Request, message: bytes, lent: list[int]) -> None:
        self._spares.forget()
        trees = workspace.take_all(request, self._old_root, lent)
        self._spares.prepare(request.shows, message, trees)
        send(self._line, TAKEN)

    def _give_one(self, request: Request, message: bytes, lent: list[int], along: list[int]) -> None:
        spare = self._spares.take()
        is_late = spare is None
        if spare is None:
            self._begin_one()
        else:  # it gets ready while we make what it waits for
            tell(spare.line, message)
        trees: list[int] = []
        try:
            try:
                trees = workspace.take_all(request, self._old_root, lent)
            finally:
                spare = spare or self._made()
        except BaseException:
            close_all(trees)
            if spare is not None and is_late:  # it has heard of nothing yet
                self._spares.add(spare, first=True)
            elif spare is not None:
                self._spares.discard(spare)
            raise
        try:
            if is_late:
                tell(spare.line, message)
            self._give(spare, TAKEN, [*trees, *along], MADE if is_late else TAKEN)
        finally:
            close_all(trees)
        if is_late:  # they are asked for faster than we make them: then without a pause
            self._refill()

    def _give(self, spare: Spare, word: bytes, descriptors: list[int], answer: bytes) -> None:
        """Hand one over, with the last thing that it waits for."""
        try:
            tell(spare.line, word, descriptors)
            send(self._line, answer + spare.layer, [spare.line.fileno()])
        except BaseException:
            self._spares.discard(spare)
            raise
        spare.close()

    def _prepared(self, request: Request) -> Spare | None:
        """The one that was made ready for such a request."""
        if request.shows is None or request.alone or request.ahead:
            return None
        found = self._spares.take(request.shows)
        if found is None:
            self._spares.forget()  # something else is wanted now
        return found

    def _tidy(self) -> None:
        """Now that who asked has an answer."""
        try:
            workspace.tidy()
        except OSError:
            pass  # done again before the next
        missing = max(0, self._blueprint.spares - len(self._spares) - len(self._coming))
        while len(self._doors) > missing:  # of a request that was not granted
            close_all(self._doors.pop())

    def _use(self, store: bytes) -> None:
        """Layers go to this directory. If they are there to stay, whoever has them next waits for our end."""
        if store in self._stores and store not in self._held:
            return  # they go with the host program
        self._stores.add(store)
        path = f"{os.fsdecode(store[1:])}/users-{os.getppid()}"
        try:
            users = open_beneath(self._old_root, path, os.O_RDONLY)
        except OSError:
            return
        if store in self._held:
            os.close(self._held[store])
        self._held[store] = users
        fcntl.flock(users, fcntl.LOCK_SH)

    def _put_by(self, along: list[int]) -> None:
        """Keep the doors that came along; before them is what an agent that holds limits tells in."""
        each = self._blueprint.doors
        told = 1 if self._blueprint.memory or self._blueprint.processes else 0
        while each and len(along) >= told + each:
            self._doors.append(tuple(along[-each:]))
            del along[-each:]

    @property
    def _is_short(self) -> bool:
        """Whether a spare is missing that could be made."""
        blueprint = self._blueprint
        there = len(self._spares) + len(self._coming)
        return there < blueprint.spares and bool(self._doors or not blueprint.doors)

    def _refill(self) -> None:
        """Have one more begun, if one is missing."""
        try:
            if self._is_short:
                self._ask()
        except ConnectionError:
            self._end()
        except OSError:
            pass  # for now; who asks is told

    def _collect(self) -> None:
        """Take what the maker has begun."""
        try:
            self._spares.add(self._made())
        except ConnectionError:
            self._end()
        except OSError:
            pass  # too many processes, for now; who asks is told

    def _begin_one(self) -> None:
        """None waits: have one begun while we go on, unless one is being made already."""
        self._spares.forget()  # there is no room for one that waits for somebody else
        if not self._coming:
            self._ask()

    def _ask(self) -> None:
        """Have one begun; `_made` follows."""
        layer = home_layers.new_name(self._blueprint)
        if self._blueprint.doors and not self._doors:
            raise _Wanting
        doors = self._doors.pop(0) if self._doors else ()
        try:
            self._maker.ask(layer, doors)
        except BaseException:
            close_all(doors)
            raise
        self._coming.append((layer, doors))

    def _made(self) -> Spare:
        """The one that was asked for first, of those that are being made."""
        layer, doors = self._coming.pop(0)
        try:
            return Spare(self._maker.made(), layer, doors)
        except BaseException:
            close_all(doors)
            raise

    def _end(self) -> NoReturn:
        """The host program has hung up. If that was its end, the layers of its sandboxes go, too."""
        self._maker.end()
        for layer in (*self._spares.layers, *(layer for layer, _ in self._coming)):
            home_layers.take_back(self._blueprint, layer)
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


def _pass_on(lines: list[int], trees: list[int]) -> None:
    """Give trees to the agent that waits for them at the other end."""
    for fd in lines:
        line = _socket.socket(fileno=fd)
        try:
            send(line, TAKEN, trees)
        except OSError:
            pass  # it does not wait any more, and says why
        finally:
            line.detach()


def _answer(line: _socket.socket, message: bytes) -> None:
    try:
        send(line, message)
    except OSError:
        os._exit(0)  # nobody is there any more
