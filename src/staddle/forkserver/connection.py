"""One zygote, as the host program has it: a child process and a line to it."""

from __future__ import annotations

import _socket
import os
import threading

from ..errors import LaunchFailed
from ..ipc import forkserver_messages as records
from ..ipc.descriptors import close_all, receive, send
from ..launch import helper
from ..layers import removal
from ..limits import scope
from ..mounts.operations import Bind
from ..mounts.rows import decoded
from .requests import taken_as_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from ..limits.ahead import Ahead
    from ..limits.group import Group
    from .requests import Layers

    #: Opens what root's zygote cannot, if it is root's; to be closed.
    Lend: TypeAlias = Callable[[], Sequence[int]]

#: To a request: a letter and a name, or a sentence. There is no room to be made for more.
_LONGEST_ANSWER = 4096
#: How long a zygote may take to start on a loaded machine, in seconds.
_PATIENCE = 60.0
#: And to end, when nobody is at the other end of its line any more.
_LAST_PATIENCE = 5.0


class _Wanting(Exception):
    """It has no control groups for another sandbox."""


class Promise:
    """The layers of the next sandbox that shows the same; `drop` is called if there is none."""

    def __init__(self, shows: object, layers: Layers, drop: Callable[[], object]) -> None:
        self.shows, self.layers, self.drop = shows, layers, drop


class Found:
    """What was asked for: the line to a sandbox, its layer made ahead, and the promise that is kept so."""

    def __init__(self, descriptors: list[int], layer: str, promise: Promise | None, *, waited: bool) -> None:
        self.descriptors, self.layer, self.promise = descriptors, layer, promise
        self._waited = waited

    @property
    def has_been_killed(self) -> bool:
        """Whether it has ended without a word, while it waited for somebody: another one will not."""
        if not self._waited:
            return False
        line = _socket.socket(fileno=self.descriptors[0])
        try:
            line.settimeout(_PATIENCE)
            return not line.recv(1, _socket.MSG_PEEK)
        except ConnectionResetError:
            return True
        except OSError:
            return False  # whoever asks is told
        finally:
            line.detach()

    def close(self) -> None:
        """It is for nobody."""
        close_all(self.descriptors)
        if self.promise is not None:
            self.promise.drop()


class Zygote:
    """One fork server, and the right to talk to it."""

    def __init__(self, blueprint: records.Blueprint) -> None:
        self.live = 0  # sandboxes; whoever keeps us counts
        self.promise: Promise | None = None
        self.taken = 0  # sandboxes, in all
        self.is_repeated = False  # whether the last two showed the same
        self._last: object = None
        self._lock = threading.Lock()
        self._deaf = False
        before, around = scope.asked() if blueprint.doors else ((), {})
        self._line, self._process = _start(records.encode(blueprint), before, around)
        self._ahead: Ahead | None = None
        try:
            self._line.settimeout(_PATIENCE)
            if blueprint.base >= 0:
                self._lend(blueprint)
            self._hear(records.READY)
            if blueprint.doors:
                self._ahead = _groups(blueprint, self._process.pid)
        except BaseException as error:
            self._process.kill()
            last_words = self._last_words()
            self.close()
            if isinstance(error, OSError):
                raise _failed(last_words, error) from error
            raise

    def take(
        self, request: records.Request, along: Sequence[int], lend: Lend, promise: Promise | None = None
    ) -> Found | None:
        """What is asked for: a new sandbox, or trees for one, or one that is made ahead, as a `promise`.

        `along` are descriptors that go with it, see `Request`; before them goes what `lend` lends, where
        that is needed. None when the host's mounts have changed since we were started, or the zygote
        has ended.
        """
        try:
            if self._ahead is None or request.alone or request.ahead:
                return self._take(request, along, lend, promise)
            return self._take_with_groups(self._ahead, request, along, lend)
        except (BrokenPipeError, ConnectionResetError):
            return None
        except OSError as error:
            raise _failed(b"", error) from error

    def _take_with_groups(
        self, ahead: Ahead, request: records.Request, along: Sequence[int], lend: Lend
    ) -> Found | None:
        for wanting in (False, True):
            doors = ahead.doors(wanting=wanting)
            try:
                asked = request.replace(along=request.along + len(doors))
                found = self._take(asked, [*along, *doors], lend)
                removal.in_background(ahead.restock)
                return found
            except _Wanting:
                continue
            except LaunchFailed:
                ahead.not_taken()
                raise
            finally:
                close_all(doors)
        raise LaunchFailed("the sandbox could not be made", why="its control groups were lost, twice")

    def _take(
        self, request: records.Request, along: Sequence[int], lend: Lend, promise: Promise | None = None
    ) -> Found | None:
        expected = self.promise
        is_ready = expected is not None and expected.shows == request.shows and not request.ahead
        answer, descriptors, kept = self._asked(request, along, () if is_ready else lend(), promise)
        if answer == records.UNLENT:  # what was promised is not ready yet
            answer, descriptors, kept = self._asked(request, along, lend(), promise)
        if answer in (records.STALE, b""):
            return None
        if answer == records.WANTING:
            raise _Wanting
        count = 0 if request.alone or request.ahead else 1
        is_given = answer[:1] in (records.TAKEN, records.MADE) or kept is not None
        if not is_given or len(descriptors) != count:
            raise _failed(answer)
        return Found(descriptors, os.fsdecode(answer[1:]), kept, waited=answer[:1] != records.MADE)

    def _asked(
        self, request: records.Request, along: Sequence[int], lent: Sequence[int], promise: Promise | None
    ) -> tuple[bytes, list[int], Promise | None]:
        """Its answer, with what came along, and the promise that it keeps; takes what is `lent`."""
        try:
            with self._lock:
                answer, descriptors = self._answer(request, [*lent, *along])
                before = after = self.promise
                if request.shows is not None and answer != records.UNLENT:
                    # It has been kept, or never will be.
                    after = self.promise = promise if answer == records.TAKEN else None
        finally:
            close_all(lent)
        kept = before if answer[:1] == records.PREPARED else None
        if before is not None and before not in (kept, after):
            before.drop()
        return answer, descriptors, kept

    def _answer(self, request: records.Request, given: Sequence[int]) -> tuple[bytes, list[int]]:
        try:
            send(self._line, records.encode(request), given)
            return receive(self._line, _LONGEST_ANSWER)
        except BaseException:
            # Its answer may come yet, and must not be taken for one to something else.
            self._deaf = True
            raise

    def note(self, shows: object) -> None:
        """A sandbox that shows this was taken."""
        self.taken += 1
        self.is_repeated, self._last = shows is not None and shows == self._last, shows

    def groups_of(self, pid: int) -> Group | None:
        """The control groups of a sandbox that was taken, one of whose processes is `pid` on the host."""
        return None if self._ahead is None else self._ahead.taken(pid)

    @property
    def ended(self) -> bool:
        """Whether it has gone, or must not be asked any more."""
        without_groups = self._ahead is not None and self._ahead.gone
        return self._deaf or without_groups or self._has_exited

    @property
    def _has_exited(self) -> bool:
        """Without Popen's lock, which Ctrl-C can leave locked for ever."""
        try:
            waits = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._process.pid, waits) is not None
        except ChildProcessError:
            return True

    def hang_up(self) -> None:
        """Leave it to whoever else has the line."""
        self._line.close()
        if self._ahead is not None:
            self._ahead.let_go()

    def close(self) -> None:
        """End it, and every sandbox of it."""
        self._line.close()
        if self.promise is not None:
            self.promise.drop()
            self.promise = None
        import subprocess

        try:
            self._process.wait(0 if self._deaf else _LAST_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()  # it does not listen, or was stopped
            self._process.wait()
        if self._ahead is not None:
            self._ahead.close()

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


def _groups(blueprint: records.Blueprint, pid: int) -> Ahead:
    """For the sandboxes of the zygote that is `pid`: below ours, or in the scope that it was started in."""
    from ..limits import here
    from ..limits.ahead import Ahead
    from ..limits.family import Family

    family = here.family()
    if family is not None:
        return Ahead(family, blueprint.spares)
    return Ahead(Family(scope.settle(pid, here.means())), blueprint.spares, owned=True)


def _start(
    blueprint: bytes, before: Sequence[str] = (), around: dict[str, str] | None = None
) -> tuple[_socket.socket, subprocess.Popen[bytes]]:
    """Our end of the line, and the process at the other. What is `before` its command brings it elsewhere."""
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
            (*before, *helper.python("forkserver/__main__.py", str(line), str(file))),
            env={**helper.ENVIRONMENT, **(around or {})},
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
