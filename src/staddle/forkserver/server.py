"""The fork server: one process for each configuration with which a host program opens sessions.

It is single-threaded and started by exec, so that it may enter a user namespace and clone itself. It keeps a
few sandboxes ready, its spares, and hands one out on request. When the host program ends, for whatever
reason, their socket is closed and the fork server ends. With it the kernel kills every sandbox.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import gc
import os
import select
import time

from ..files.remove_tree import remove
from ..inside.agent import own_namespaces, verify
from ..inside.namespace_launcher import contents
from ..ipc.forkserver_messages import (
    COMMAND_LINE,
    CONFIGURE,
    GOODBYE,
    LONGEST,
    MADE,
    MAP,
    MAPPED,
    MOST_DESCRIPTORS,
    NEED_CGROUPS,
    READY,
    REFUSED,
    ROOT_OF_TEMPLATE,
    STALE,
    SYNC,
    TAKEN,
    decode_config,
    decode_request,
)
from ..ipc.wire import Malformed, close_all, pass_descriptors, reason, receive, receive_last, send
from ..linux import call_list, mounts, overlay, process, userns
from ..linux.openat2 import open_beneath
from ..linux.syscalls import call
from ..mounts.builder import Builder, place_for
from ..mounts.operations import Bind, decode_operations
from ..mounts.shared_view import ASIDE, BASE, BORROWED, OLD_ROOT
from .spare import Cloner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from ..ipc.forkserver_messages import ForkServerConfig, SandboxRequest

#: Milliseconds without a request before a spare is replaced, if another is ready: the first command needs the
#: processor.
_QUIET = 20
#: The same after the first sandbox: most programs that need another one ask for it later, or at once.
_FIRST_QUIET = 1000
#: Seconds for a host program to end, on a busy machine, once it has closed the socket.
_LAST_PATIENCE = 30.0


def main(words: list[str]) -> NoReturn:
    """Be the fork server on the socket that is descriptor `words[0]`, configured by its first message."""
    socket = _socket.socket(fileno=int(words[0]))
    os.set_inheritable(socket.fileno(), False)
    doing = ""
    try:
        message, files = receive(socket, LONGEST)
        if message != CONFIGURE or len(files) != 1:
            os._exit(0)  # the host program has ended, or needs no fork server
        config = decode_config(contents(files[0]))
        outside = verify.outside(config)
        call_list.use_machine_code()  # while its file can be opened
        process.close_from(3, keep=(socket.fileno(),))
        # Every process inside can read our command lines, so they contain no path of the host.
        process.set_command_line(COMMAND_LINE)
        _be_quiet()
        doing = "while the part that all sandboxes share was made"
        make_template(config, socket)
        outside += verify.template()
        old_root = os.open(OLD_ROOT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        gc.collect()
        gc.freeze()
        gc.enable()  # this process and its forks live long; frozen objects are neither scanned nor copied
        cloner = Cloner(config, outside)
    except BaseException as error:
        try:
            send(socket, REFUSED + reason(error, doing))
        finally:
            os._exit(1)
    ForkServer(config, cloner, socket, old_root).serve()


class _NoCgroups(Exception):
    """There are no cgroup descriptors for another sandbox."""


class ForkServer:
    """The server's loop and its state: spares, clones in the making, cgroup descriptors, stores."""

    def __init__(
        self, config: ForkServerConfig, cloner: Cloner, socket: _socket.socket, old_root: int
    ) -> None:
        self._config, self._cloner = config, cloner
        self._socket, self._old_root = socket, old_root
        self._host = HostDirectories(config, old_root)
        self._coming: list[tuple[bytes, tuple[int, ...]]] = []  # clones in the making
        self._stores: set[bytes] = {own_namespaces.layer_store(config)} if config.skeleton else set()
        self._held: dict[bytes, int] = {}
        self._cgroup_fds: list[tuple[int, ...]] = []  # for sandboxes that are made next
        self._spares = Spares(config)
        self._given = 0  # sandboxes

    def serve(self) -> NoReturn:
        """Answer requests until the host program closes the socket, and refill the spares in between."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._cloner, select.POLLIN)
        self._refill()
        self._answer(READY)
        while True:
            short = self._is_short
            ready = [fd for fd, _ in poll.poll(self._quiet if short else None)]
            if self._cloner.fileno() in ready:
                self._collect()
            if self._socket.fileno() in ready:
                try:
                    message, trees = receive(self._socket, LONGEST)
                except ConnectionResetError:
                    self._end()
                except OSError as error:  # too long, or too many descriptors for us
                    self._answer(REFUSED + reason(error))
                    continue
                if not message or message == GOODBYE:
                    self._end(said_goodbye=bool(message))
                if message[:1] == SYNC:
                    self._answer(message)
                else:
                    self._hand_out(message, trees)
            elif short and not ready:
                self._refill()

    def _hand_out(self, message: bytes, borrowed: list[int]) -> None:
        """Answer one request: for a sandbox, or for trees of a sandbox."""
        extra_fds: list[int] = []
        try:
            request = decode_request(message)
            while borrowed and len(extra_fds) < request.extra_fds:
                extra_fds.insert(0, borrowed.pop())
            if not request.alone:
                self._put_by(extra_fds)
            for upper in (*filter(None, (request.upper,)), *(tree[1] for tree in request.trees)):
                self._use(os.path.dirname(os.path.dirname(upper)))
            if request.alone:
                self._send_trees(request, borrowed, extra_fds)
            else:
                self._give_one(request, message, borrowed, extra_fds)
        except ConnectionError:
            self._end()  # the cloner or the host program has ended
        except Moved:
            self._answer(STALE)
        except _NoCgroups:
            self._answer(NEED_CGROUPS)
        except (Malformed, OSError) as error:
            self._answer(REFUSED + reason(error))
        finally:
            close_all((*borrowed, *extra_fds))
            self._tidy()

    def _send_trees(self, request: SandboxRequest, borrowed: list[int], sockets: list[int]) -> None:
        trees = take_all(request, self._host, borrowed, self._is_volatile)
        try:
            for socket in sockets:
                pass_descriptors(socket, trees)
        finally:
            close_all(trees)
        send(self._socket, TAKEN)

    def _give_one(
        self, request: SandboxRequest, message: bytes, borrowed: list[int], extra_fds: list[int]
    ) -> None:
        spare = self._spares.take()
        is_late = spare is None
        if spare is None:
            self._begin_one()
        else:  # it gets ready while we make its trees
            tell(spare.socket, message)
        trees: list[int] = []
        try:
            try:
                trees = take_all(request, self._host, borrowed, self._is_volatile)
            finally:
                spare = spare or self._made()
        except BaseException:
            close_all(trees)
            if spare is not None and is_late:  # it has received nothing yet
                self._spares.add(spare, first=True)
            elif spare is not None:
                self._spares.discard(spare)
            raise
        try:
            if is_late:
                tell(spare.socket, message)
            self._give(spare, [*trees, *extra_fds], MADE if is_late else TAKEN)
        finally:
            close_all(trees)
        self._given += 1
        if is_late and self._given > 1:  # requests arrive faster than we clone, so clone without a pause
            self._refill()

    def _give(self, spare: Spare, descriptors: list[int], answer: bytes) -> None:
        """Hand a spare over, with the last message that it waits for."""
        try:
            tell(spare.socket, TAKEN, descriptors)
            send(self._socket, answer + bytes([self._missing_groups]) + spare.layer, [spare.socket.fileno()])
        except BaseException:
            self._spares.discard(spare)
            raise
        spare.close()

    def _tidy(self) -> None:
        """Clean up once the reply is sent."""
        try:
            tidy()
        except OSError:
            pass  # done again before the next request
        while len(self._cgroup_fds) > self._missing_spares:  # from a request that was not granted
            close_all(self._cgroup_fds.pop())

    def _use(self, store: bytes) -> None:
        """Record a store of layers. Lock a persistent one (shared): its next user waits for our end."""
        if store in self._stores and store not in self._held:
            return  # such stores end with the host program
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

    def _is_volatile(self, upper: bytes) -> bool:
        """Whether a layer is on a disk and not of a kept sandbox, so that it ends with the host program."""
        store = os.path.dirname(os.path.dirname(upper))
        return store not in self._held and not store.startswith(own_namespaces.IN_MEMORY)

    def _put_by(self, extra_fds: list[int]) -> None:
        """Keep the received cgroup descriptors. The tally file of limits, if any, precedes them."""
        each = self._config.cgroup_fds
        told = 1 if self._config.memory or self._config.processes else 0
        while each and len(extra_fds) >= told + each:
            self._cgroup_fds.append(tuple(extra_fds[-each:]))
            del extra_fds[-each:]

    @property
    def _quiet(self) -> int:
        return _FIRST_QUIET if self._given == 1 else _QUIET

    @property
    def _missing_spares(self) -> int:
        return max(0, self._config.spares - len(self._spares) - len(self._coming))

    @property
    def _missing_groups(self) -> int:
        """Count the spares that cannot be made because earlier spares have ended with their cgroups."""
        each = self._config.cgroup_fds
        return min(255, max(0, self._missing_spares - len(self._cgroup_fds))) if each else 0

    @property
    def _is_short(self) -> bool:
        """Whether a spare is missing and could be made."""
        return self._missing_spares > 0 and bool(self._cgroup_fds or not self._config.cgroup_fds)

    def _refill(self) -> None:
        """Request one more clone, if a spare is missing."""
        try:
            if self._is_short:
                self._ask()
        except ConnectionError:
            self._end()
        except OSError:
            pass  # for now; the next request reports it

    def _collect(self) -> None:
        """Receive the clone that the cloner has made."""
        try:
            self._spares.add(self._made())
        except ConnectionError:
            self._end()
        except OSError:
            pass  # too many processes, for now; the next request reports it

    def _begin_one(self) -> None:
        """Request a clone because no spare waits, unless one is being made already."""
        if not self._coming:
            self._ask()

    def _ask(self) -> None:
        """Request a clone from the cloner; `_made` follows."""
        if self._config.cgroup_fds and not self._cgroup_fds:
            raise _NoCgroups
        layer = own_namespaces.new_layer(self._config)
        cgroup_fds = self._cgroup_fds.pop(0) if self._cgroup_fds else ()
        try:
            self._cloner.ask(layer, cgroup_fds)
        except BaseException:
            close_all(cgroup_fds)
            own_namespaces.take_back_layer(self._config, layer)
            raise
        self._coming.append((layer, cgroup_fds))

    def _made(self) -> Spare:
        """Return the oldest of the requested clones."""
        layer, cgroup_fds = self._coming.pop(0)
        try:
            return Spare(self._cloner.made(), layer, cgroup_fds)
        except BaseException:
            close_all(cgroup_fds)
            own_namespaces.take_back_layer(self._config, layer)
            raise

    def _answer(self, message: bytes) -> None:
        try:
            send(self._socket, message)
        except OSError:
            self._end()  # the host program has ended

    def _finds_goodbye(self) -> bool:
        """Whether a goodbye is among the messages that were not read: our answer before it was not wanted."""
        self._socket.setblocking(False)
        try:
            while True:
                message, descriptors, _ = receive_last(self._socket, LONGEST)
                close_all(descriptors)
                if message in (b"", GOODBYE):
                    return bool(message)
        except OSError:
            return False

    def _end(self, *, said_goodbye: bool = False) -> NoReturn:
        """End all sandboxes. If the host program has ended, also remove the layers of its sandboxes.

        A host program that has closed the socket without a goodbye has ended, or is about to. The kernel
        closes its files one after the other, the lock of a store perhaps after the socket. So we wait for the
        lock.
        """
        self._cloner.end()
        for layer in (*self._spares.layers, *(layer for layer, _ in self._coming)):
            own_namespaces.take_back_layer(self._config, layer)
        poll = select.poll()
        poll.register(self._socket, 0)
        is_over = not said_goodbye and bool(poll.poll(0)) and not self._finds_goodbye()  # its end is closed
        deadline = time.monotonic() + (_LAST_PATIENCE if is_over else 0)
        for store in self._stores:
            try:
                lock = open_beneath(self._old_root, os.fsdecode(store[1:]) + "/lock", os.O_RDWR)
            except OSError:
                continue  # it has cleaned up itself
            if _lock(lock, deadline):
                remove((OLD_ROOT.encode() + store,))
        os._exit(0)


def _be_quiet() -> None:
    """Release the user's terminal, standard streams and keys."""
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


def _lock(lock: int, deadline: float) -> bool:
    """Lock a file before the deadline; return whether that succeeded."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)


class Spare:
    """A waiting clone: the socket to it, and its home layer.

    If it is not taken, `cgroup_fds` are used for another clone.
    """

    __slots__ = ("cgroup_fds", "layer", "socket")

    def __init__(self, socket: _socket.socket, layer: bytes, cgroup_fds: Sequence[int] = ()) -> None:
        self.socket, self.layer, self.cgroup_fds = socket, layer, tuple(cgroup_fds)

    @property
    def has_failed(self) -> bool:
        """Whether it could not be made: a waiting spare sends nothing."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close our descriptors of it."""
        self.socket.close()
        close_all(self.cgroup_fds)


class Spares:
    """The spares of a fork server, which wait to be taken."""

    def __init__(self, config: ForkServerConfig) -> None:
        self._config = config
        self._waiting: list[Spare] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def layers(self) -> list[bytes]:
        """Names of the home layers that were made for them."""
        return [spare.layer for spare in self._waiting]

    def add(self, spare: Spare, *, first: bool = False) -> None:
        """Add a spare; with `first` at the front, if it was taken before and not used."""
        self._waiting.insert(0 if first else len(self._waiting), spare)

    def take(self) -> Spare | None:
        """Remove and return a waiting spare; None if there is none."""
        while self._waiting:
            spare = self._waiting.pop(0)
            if not spare.has_failed:
                return spare
            self.discard(spare)  # the cause of its failure may be gone
        return None

    def discard(self, spare: Spare) -> None:
        """End a spare that will not be taken, and remove its home layer.

        No other process enters its cgroups: the host program removes them when they are empty.
        """
        spare.close()
        own_namespaces.take_back_layer(self._config, spare.layer)


def tell(socket: _socket.socket, message: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a message to a spare. A spare that could not be made has left its reason on its socket."""
    try:
        send(socket, message, descriptors)
    except BrokenPipeError:
        pass  # the host program reads the reason on its socket


# The mounts that a fork server makes: the shared part of the view once, and directories of each sandbox.
#
# `make_template` moves the fork server into the shared part. Afterwards its root is the sandbox's, with the
# old root aside. Workspaces are opened from there. As long as the host's /proc is visible there, the kernel
# allows mounting a new /proc.
#
# `take_all` opens or mounts the directories of one sandbox on the host: its workspace, and further trees of
# layers. If the host program is root, it has opened the workspace for the fork server. The sandbox's first
# process attaches the mounts, see `mount_swap`.


def make_template(config: ForkServerConfig, socket: _socket.socket) -> None:
    """Enter our own user namespace, at the root of the template."""
    _enter(config, socket)
    mounts.mount(None, "/", flags=mounts.MS_REC | mounts.MS_PRIVATE)
    operations = decode_operations(config.template)
    taken = _receive_trees(socket, operations) if config.base >= 0 else None
    place = place_for(operations)
    Builder(place, taken=taken).build(operations)
    os.chdir(place)
    call("pivot_root", b".", os.fsencode(OLD_ROOT[1:]))
    os.chdir("/")
    # Until a spare has its own.
    mounts.mount(f"{OLD_ROOT}/proc", "/proc", flags=mounts.MS_BIND | mounts.MS_REC)


def _enter(config: ForkServerConfig, socket: _socket.socket) -> None:
    """Enter a new user namespace, with every capability over it only; as root with unused ids."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", userns.CLONE_NEWUSER | mounts.CLONE_NEWNS)
    if config.base < 0:
        userns.map_ids(uid, gid, 0, 0)
        return
    send(socket, MAP)  # only a process outside may map ids that are not ours
    if socket.recv(16) != MAPPED:
        os._exit(1)
    process.become(0, 0)
    process.dumpable(True)  # the change of ids made us undumpable, and /proc/self root's


def _receive_trees(socket: _socket.socket, operations: tuple[object, ...]) -> dict[Bind, int | None]:
    """Receive the shared binds, because root's fork server may not open the host's files."""
    binds = [op for op in operations if isinstance(op, Bind) and not op.again]
    taken: dict[Bind, int | None] = {}
    while len(taken) < len(binds):
        present, trees = receive(socket, MOST_DESCRIPTORS)
        if not present:
            os._exit(1)
        for there in present:  # a byte for each: whether it exists
            taken[binds[len(taken)]] = trees.pop(0) if there else None
    return taken


class HostDirectories:
    """Directories of the host, by their paths there."""

    def __init__(self, config: ForkServerConfig, old_root: int) -> None:
        """Find the directories of a base in the template, if there is one."""
        self._old_root = old_root
        operations = decode_operations(config.template)
        bases = [op.outside for op in operations if isinstance(op, Bind) and op.path == BASE]
        self._base = os.fsencode(bases[0]) if bases else b""

    def open(self, path: bytes) -> int:
        """Open the directory at `path`."""
        if path == ROOT_OF_TEMPLATE:
            return os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if not self._base or not path.startswith(self._base + b"/"):
            return open_beneath(self._old_root, os.fsdecode(path[1:]) or ".", os.O_PATH)
        place = os.open(BASE, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return open_beneath(place, os.fsdecode(path[len(self._base) + 1 :]), os.O_PATH)
        finally:
            os.close(place)


class Moved(Exception):
    """Another directory is at this path: the host's mounts have changed since the fork server was started."""


def take_all(
    request: SandboxRequest, host: HostDirectories, borrowed: list[int], is_volatile: Callable[[bytes], bool]
) -> list[int]:
    """Return the requested detached mounts: the workspace first, then further trees.

    `is_volatile` tells whether a layer need not survive a crash of the machine. Removes the descriptors that
    it uses from `borrowed`, which root has opened.
    """
    found: list[int] = []
    try:
        if request.workspace:
            tree = borrowed.pop(0) if borrowed else None
            if request.upper:
                base = _found(request, host) if tree is None else tree
                above = (request.upper, request.work, is_volatile(request.upper))
                found.append(_layered(above, request.lowers, base, host, tree))
            else:
                found.append(_taken(request, host) if tree is None else tree)
        for _, upper, work, lowers in request.trees:
            above = (upper, work, is_volatile(upper))
            found.append(_layered(above, lowers.split(b"\0"), None, host, None))
        return found
    except BaseException:
        for fd in found:
            os.close(fd)
        raise


def _layered(
    top: tuple[bytes, bytes, bool],
    lowers: Sequence[bytes],
    base: int | None,
    host: HostDirectories,
    borrowed: int | None,
) -> int:
    """Return an overlay of layers of the host, and of `base` below them, which is closed.

    `top` is the upper and the work directory, and whether it is volatile.
    """
    upper, work, volatile = top
    opened = [] if base is None else [base]
    try:
        for path in (*lowers, upper, work):
            opened.append(host.open(path))
        *below, above, aside = opened if base is None else [*opened[1:-2], base, *opened[-2:]]
        if borrowed is None:
            return overlay.overlay(below, above, aside, volatile=volatile)
        # A layer must be mounted somewhere in our namespace.
        return _mounted_for(
            borrowed, lambda: overlay.overlay([*below[:-1], BORROWED], above, aside, volatile=volatile)
        )
    finally:
        for fd in opened:
            os.close(fd)


def _mounted_for(tree: int, work: Callable[[], int]) -> int:
    """Run `work` while `tree` is mounted at BORROWED. It stays there until `tidy`, or the next call."""
    tidy()
    place = os.open(BORROWED, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mounts.attach(tree, place)
    finally:
        os.close(place)
    return work()


def tidy() -> None:
    """Unmount BORROWED. Slow: the kernel waits for every processor."""
    if os.stat(BORROWED).st_dev != os.stat(ASIDE).st_dev:
        mounts.umount(BORROWED)


def _found(request: SandboxRequest, host: HostDirectories) -> int:
    """Open the workspace on the host. Moved if it is another directory now."""
    try:
        source = host.open(request.workspace)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV):
            raise Moved from None
        raise
    status = os.fstat(source)
    if (status.st_dev, status.st_ino) != (request.device, request.inode):
        os.close(source)
        raise Moved
    return source


def _taken(request: SandboxRequest, host: HostDirectories) -> int:
    """Clone the workspace's mount, read-only unless it is granted for writing."""
    source = _found(request, host)
    try:
        tree = mounts.clone_tree(source)
    finally:
        os.close(source)
    try:
        writable = any(isinstance(op, Bind) and op.writable for op in request.operations()[:1])
        read_only = 0 if writable and not request.upper else mounts.ATTR_RDONLY
        mounts.set_attributes(tree, mounts.ATTR_NOSUID | mounts.ATTR_NODEV | read_only)
    except BaseException:
        os.close(tree)
        raise
    return tree
