"""The host program's connection to one fork server: its process, the socket to it, and the requests."""

from __future__ import annotations

import _socket
import os
import threading
from functools import partial

from .._value import Value
from ..background import do_later
from ..errors import LaunchFailed, resource_fix
from ..files.remove_tree import remove
from ..interrupts import uninterrupted, wait_readable
from ..ipc import forkserver_messages as records
from ..ipc.wire import close_all, receive, receive_last, send
from ..limits import scope
from ..linux import idmaps
from ..linux.file_room import refuse_if_full
from ..linux.fileio import memory_file
from ..mounts.host import not_built, open_named, take
from ..mounts.operations import Bind, decode_operations, encode_operations
from ..mounts.shared_view import BASE
from ..paths import WORKSPACE_PATH
from .start import started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..limits.prewarm import PrewarmedCgroups
    from ..mounts.operations import Operation, Row

#: A reply is a letter and a name, or a sentence.
_LONGEST_ANSWER = 4096
#: Seconds for a fork server to start on a loaded machine.
_PATIENCE = 60.0
#: Seconds for an answer, which takes a few milliseconds: a stopped server must not block its caller for long.
_ANSWER_PATIENCE = 20.0
#: Seconds for it to end once its socket is closed.
_LAST_PATIENCE = 5.0


class _NeedCgroups(Exception):
    """The fork server has no cgroup descriptors for another sandbox."""


class ForkReply:
    """Reply of the fork server: the agent's socket, its home layer's name, how many spares lack cgroups."""

    def __init__(self, descriptors: list[int], layer: str, *, waited: bool, missing_groups: int = 0) -> None:
        self.descriptors, self.layer, self.missing_groups = descriptors, layer, missing_groups
        self._waited = waited

    @property
    def has_been_killed(self) -> bool:
        """Whether the spare ended without a message while it waited. Another spare may live."""
        if not self._waited:
            return False
        socket = _socket.socket(fileno=self.descriptors[0])
        try:
            socket.settimeout(_PATIENCE)
            return not socket.recv(1, _socket.MSG_PEEK)
        except OSError as error:
            # After another error, the caller notices when it uses the socket.
            return isinstance(error, ConnectionResetError)
        finally:
            socket.detach()

    def close(self) -> None:
        """Close an unused sandbox."""
        close_all(self.descriptors)


class ForkServerClient:
    """One fork server: its process, and the lock for requests to it."""

    def __init__(self, config: records.ForkServerConfig) -> None:
        self._config = config
        self.live = 0  # open sandboxes, counted by client.py
        #: Whether another sandbox may need it: the certificates of an HTTP inspector are one sandbox's alone.
        self.is_shared = True
        self._lock = threading.Lock()
        #: Whether it has ended, or does not answer in time.
        self._deaf = False
        #: Whether a reply may come to a request whose caller was interrupted; and the number of the last
        #: SYNC.
        self._is_out_of_step, self._serial = False, 0
        before, around = scope.asked() if config.cgroup_fds else ((), {})
        self.cgroups: PrewarmedCgroups | None = None
        try:
            # An interrupt between the start of a process and recording its pid would leave a zombie.
            uninterrupted(partial(self._begin, before, around))
            self._socket.settimeout(_PATIENCE)
            self._configure(config)
            if config.base >= 0:
                self._set_up_as_root(config)
            self._expect(records.READY)
            self._socket.settimeout(_ANSWER_PATIENCE)
            if config.cgroup_fds:
                self.cgroups = _groups(config, self._process.pid)
        except BaseException as error:
            last_words = uninterrupted(self._abandon) if "_process" in vars(self) else b""
            if isinstance(error, OSError):
                raise _failed(last_words, error) from error
            raise

    def _begin(self, before: Sequence[str], around: dict[str, str]) -> None:
        self._socket, self._process = started(before, around)

    def _configure(self, config: records.ForkServerConfig) -> None:
        file = memory_file(records.encode(config))
        try:
            send(self._socket, records.CONFIGURE, [file])
        finally:
            os.close(file)

    def _abandon(self) -> bytes:
        """Kill it, and return its last message."""
        self._process.kill()
        last_words = self._last_words()
        self.close()
        return last_words

    def take(
        self,
        view: Sequence[Operation],
        layers: OverlayDirs | None,
        others: Mapping[str, OverlayDirs],
        extra_fds: Sequence[int],
        *,
        alone: bool = False,
    ) -> ForkReply | None:
        """Request a new sandbox, or, with `alone`, trees of an open sandbox.

        `view` is mounted at its workspace, with `layers`; `others` are further trees, by their roots.
        `extra_fds` go with the request, see `SandboxRequest`. None if the host's mounts have changed since
        the fork server was started, or it has ended.
        """
        request = _request(view, layers, others).replace(extra_fds=len(extra_fds), alone=int(alone))
        if layers is not None and layers.base:
            view = ()  # root's fork server need not open anything: the copy is given to it
        try:
            if self.cgroups is None or alone:
                return self._take(view, request, extra_fds)
            return self._take_with_groups(self.cgroups, view, request, extra_fds)
        except OSError as error:
            if isinstance(error, BrokenPipeError | ConnectionResetError):
                return None
            raise _failed(b"", error) from error

    def _take_with_groups(
        self,
        cgroups: PrewarmedCgroups,
        view: Sequence[Operation],
        request: records.SandboxRequest,
        extra_fds: Sequence[int],
    ) -> ForkReply | None:
        for again in (False, True):
            cgroup_fds = cgroups.cgroup_fds(again=again)
            try:
                asked = request.replace(extra_fds=request.extra_fds + len(cgroup_fds))
                found = self._take(view, asked, [*extra_fds, *cgroup_fds])
                if found is not None:
                    cgroups.missing = found.missing_groups
                do_later(cgroups.restock)
                return found
            except _NeedCgroups:
                continue
            except LaunchFailed:
                cgroups.not_taken()
                raise
            finally:
                close_all(cgroup_fds)
        raise LaunchFailed(
            "the sandbox could not be made",
            why="its control groups were lost, twice",
            fix="see what removes them (systemd, a cleaning job), and try again",
        )

    def _take(
        self, view: Sequence[Operation], request: records.SandboxRequest, extra_fds: Sequence[int]
    ) -> ForkReply | None:
        answer, descriptors = self._asked(request, extra_fds, _borrowed(view, self._config))
        if answer in (records.STALE, b""):
            return None
        if answer == records.NEED_CGROUPS:
            raise _NeedCgroups
        is_given = answer[:1] in (records.TAKEN, records.MADE)
        if not is_given or len(descriptors) != (0 if request.alone else 1):
            raise _failed(answer)
        if request.alone:
            return ForkReply(descriptors, "", waited=True)
        waited, missing, layer = answer[:1] != records.MADE, answer[1:2], os.fsdecode(answer[2:])
        return ForkReply(descriptors, layer, waited=waited, missing_groups=int.from_bytes(missing, "big"))

    def _asked(
        self, request: records.SandboxRequest, extra_fds: Sequence[int], borrowed: Sequence[int]
    ) -> tuple[bytes, list[int]]:
        """Return the reply and its descriptors; close the `borrowed` ones."""
        try:
            with self._lock:
                try:
                    if self._is_out_of_step:
                        self._resynchronize()
                    self._is_out_of_step = True
                    send(self._socket, records.encode(request), [*borrowed, *extra_fds])
                    wait_readable(self._socket.fileno(), _ANSWER_PATIENCE)
                    found = receive(self._socket, _LONGEST_ANSWER)
                    self._is_out_of_step = False
                    return found
                except OSError:
                    self._deaf = True
                    raise
        finally:
            close_all(borrowed)

    def _resynchronize(self) -> None:
        """Drop the reply to a request whose caller was interrupted, if there is one, and its sandbox."""
        self._serial += 1
        sync = records.SYNC + b"%d" % self._serial
        send(self._socket, sync)
        while (found := receive(self._socket, _LONGEST_ANSWER))[0] != sync:
            close_all(found[1])
            if not found[0]:
                raise ConnectionResetError
            if found[0][:1] in (records.TAKEN, records.MADE) and (layer := found[0][2:]):
                home = os.path.join(os.path.dirname(self._config.skeleton), layer)
                do_later(partial(remove, (home,)))

    @property
    def ended(self) -> bool:
        """Whether it has ended, or must not be used any more."""
        without_groups = self.cgroups is not None and self.cgroups.gone
        return self._deaf or without_groups or self._has_exited

    @property
    def _has_exited(self) -> bool:
        """Whether the process has exited. Without Popen's lock, which Ctrl-C can leave locked forever."""
        try:
            waits = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._process.pid, waits) is not None
        except ChildProcessError:
            return True

    def hang_up(self) -> None:
        """Close our end in a forked child: the parent process still has the socket."""
        self._socket.close()
        if self.cgroups is not None:
            self.cgroups.let_go()

    def close(self) -> None:
        """End it, and all its sandboxes."""
        try:
            send(self._socket, records.GOODBYE)
        except OSError:
            pass  # it has ended, or does not listen
        self._socket.close()
        import subprocess

        try:
            self._process.wait(0 if self._deaf else _LAST_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()  # it does not listen, or was stopped
            self._process.wait()
        if self.cgroups is not None:
            self.cgroups.close()

    def _set_up_as_root(self, config: records.ForkServerConfig) -> None:
        """As root: write the id maps of the fork server, which has unused ids, and open its binds for it."""
        self._expect(records.MAP)
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{self._process.pid}/{name}", "wb", buffering=0) as file:
                file.write(b"0 %d %d" % (config.base, config.count))
        send(self._socket, records.MAPPED)
        shown = [op for op in decode_operations(config.template) if isinstance(op, Bind) and not op.again]
        for first in range(0, len(shown), records.MOST_DESCRIPTORS):
            trees: list[int | None] = []
            try:
                for operation in shown[first : first + records.MOST_DESCRIPTORS]:
                    trees.append(_taken_as_root(operation, config))
                there = bytes(tree is not None for tree in trees)
                send(self._socket, there, [tree for tree in trees if tree is not None])
            finally:
                for tree in trees:
                    if tree is not None:
                        os.close(tree)

    def _expect(self, expected: bytes) -> None:
        answer, _ = receive(self._socket, records.LONGEST)
        if answer != expected:
            raise _failed(answer)

    def _last_words(self) -> bytes:
        """Return its last message, which a socket yields only after the end of the other side."""
        try:
            return receive_last(self._socket, records.LONGEST)[0]
        except OSError:
            return b""


def _groups(config: records.ForkServerConfig, pid: int) -> PrewarmedCgroups:
    """Return cgroups for the sandboxes of the fork server `pid`: below ours, or in its scope."""
    from ..limits import host_cgroups
    from ..limits.cgroup_tree import CgroupTree
    from ..limits.prewarm import PrewarmedCgroups

    found = host_cgroups.support().reduced(frozenset(map(bytes.decode, config.controllers)))
    family = host_cgroups.tree(found)
    if family is not None:
        return PrewarmedCgroups(family, config.spares)
    return PrewarmedCgroups(CgroupTree(scope.settle(pid, found)), config.spares, owned=True)


def _failed(answer: bytes, error: OSError | None = None) -> LaunchFailed:
    if answer[:1] == records.REFUSED:
        why = answer[1:].decode("utf-8", "replace")
    elif isinstance(error, TimeoutError):
        why = f"the fork server has not answered for {_PATIENCE:.0f} seconds"
    elif error is not None and not isinstance(error, BrokenPipeError | ConnectionResetError):
        why = error.strerror or str(error)
    else:
        why = "the fork server has exited"
    return LaunchFailed(
        "the sandbox could not be made", why=why, fix=resource_fix(why, "see `staddle doctor`")
    )


class OverlayDirs(Value):
    """The directories of one overlay mount: paths of the host, lower ones topmost first.

    The lowest directory of a workspace is missing: it is the workspace itself, or the copy `base`.
    """

    upper: str
    work: str
    lowers: tuple[str, ...] = ()
    base: str = ""


def in_order(roots: Iterable[str]) -> tuple[str, ...]:
    """Return the roots of trees in the order in which a fork server makes them."""
    return tuple(sorted(roots, key=lambda root: root != WORKSPACE_PATH))


def _request(
    view: Sequence[Operation],
    layers: OverlayDirs | None,
    others: Mapping[str, OverlayDirs],
) -> records.SandboxRequest:
    """Return the request for a sandbox, with or without a workspace."""
    trees = tuple(
        (
            os.fsencode(root),
            os.fsencode(tree.upper),
            os.fsencode(tree.work),
            b"\0".join(_encoded(tree.lowers)),
        )
        for root, tree in others.items()
    )
    if not view:
        return records.SandboxRequest(b"", 0, 0, b"", b"", (), (), trees=trees)
    place = view[0]
    if not isinstance(place, Bind):
        raise TypeError("a workspace starts with what is shown")
    lowest = layers.base if layers and layers.base else place.outside
    device, inode = _found(lowest)
    return records.SandboxRequest(
        os.fsencode(lowest),
        device,
        inode,
        os.fsencode(layers.upper) if layers else b"",
        os.fsencode(layers.work) if layers else b"",
        _encoded(layers.lowers) if layers else (),
        _rows(view, layers is not None),
        trees=trees,
    )


def _borrowed(view: Sequence[Operation], config: records.ForkServerConfig) -> list[int]:
    """Open the workspace for root's fork server, which cannot. The caller closes the descriptors."""
    if config.base < 0 or not view or not isinstance(view[0], Bind):
        return []
    borrowed = _taken_as_root(view[0], config)
    return [] if borrowed is None else [borrowed]


def _taken_as_root(operation: Bind, config: records.ForkServerConfig) -> int | None:
    """Open the source of a bind with its owner mapped to the sandbox's user. Root's host program runs this.

    The owner of a base below layers is the sandbox's root.
    """
    unprivileged_uid = config.base + (0 if operation.path == BASE and config.uid else config.whose)
    try:
        return take(
            operation, lambda owner, group: idmaps.translation(owner, group, unprivileged_uid), private=True
        )
    except OSError as error:
        refuse_if_full(error)
        raise not_built(f"{operation.outside!r}: {error.strerror or error}") from error


def _found(path: str) -> tuple[int, int]:
    """Return device and inode of the directory at `path`, for the fork server to compare."""
    try:
        status = os.lstat(path)
    except OSError:
        os.close(open_named(path))  # this raises an error with the reason
        raise
    return status.st_dev, status.st_ino


def _rows(view: Sequence[Operation], writable: bool) -> tuple[Row, ...]:
    """Encode the operations of a workspace as rows; the first shows it, `writable` if it is layered."""
    place, *rest = view
    if writable:
        place = place.replace(writable=True)
    return encode_operations((place, *rest))


def _encoded(paths: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(map(os.fsencode, paths))
