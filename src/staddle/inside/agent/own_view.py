"""One sandbox's own part of the view: /proc, terminals, private directories and control files.

The sandbox's first process makes and verifies it, with a list of system calls, before any other process is
there. Python does only what needs decisions meanwhile, in a child: layers, and unusual operations.
"""

from __future__ import annotations

import os
import struct

from ...errors import LaunchFailed
from ...ipc.wire import CONFINEMENT, NotStarted, reason
from ...linux import mounts, overlay
from ...linux.call_list import AT_FDCWD, Buffer, CallList, Slot
from ...linux.openat2 import how_without_symlinks
from ...mounts.builder import Builder, empty_options
from ...mounts.operations import Empty, Mask, decode_operations
from ...mounts.shared_view import ASIDE, BORROWED, CONTROL, OLD_PROCESSES, OLD_ROOT
from ..child import live
from .own_namespaces import IN_MEMORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...ipc.forkserver_messages import ForkServerConfig
    from ...mounts.operations import Operation
    from .verify import Outside

_NOT_MADE = "its own part of the view was not made"
_WITHOUT = "the sandbox would be without"
_PATH = os.O_PATH | os.O_CLOEXEC
_DIRECTORY = _PATH | os.O_DIRECTORY
_QUIET, _PLAIN = mounts.MS_NOSUID | mounts.MS_NOEXEC, mounts.MS_NOSUID | mounts.MS_NODEV
_LOW_PORTS = b"/proc/sys/net/ipv4/ip_unprivileged_port_start"
_CONTROL_SIZE = 64 << 20
_LONGEST = 4096
#: Enough for a table of many thousand mounts. Memory that is not used is not taken.
_TABLE_ROOM, _LINK_ROOM = 8 << 20, 64
_LONGEST_NAME = 64
#: The first of three descriptors that nothing else uses, for calls that take no descriptor but a path.
_TARGET = 60
_TMPFS_MAGIC = 0x01021994
#: Of struct utsname.
_NAME_LENGTH = 65


class OwnView:
    """Prepared once for all sandboxes of a configuration."""

    def __init__(self, config: ForkServerConfig, outside: Outside) -> None:
        self._config = config
        operations = decode_operations(config.own)
        is_usual = all(_is_usual(operation) for operation in operations)
        #: What Python does, between the two lists.
        self._left: tuple[Operation, ...] = () if is_usual else operations
        self._first = calls = CallList()
        self._see_processes(calls)
        if config.skeleton:
            self._make_layer(calls)
        self._last = last = calls if is_usual else CallList()
        for operation in operations if is_usual else ():
            self._make(last, operation)
        self._finish(last)
        self._verify(last, outside)
        for each in {calls, last}:
            each.prepare()

    def make(self, layer: bytes) -> int:
        """Make and verify it; return the directory of the control files. NotStarted: a step has failed."""
        if layer:
            self._first.fill(self._layer, layer)
        try:
            self._first.carry_out()
            if self._left:
                _in_a_child(self._make_left)
                self._last.carry_out()
        except OSError as error:
            raise NotStarted(CONFINEMENT, error.strerror or str(error), error.errno) from None
        return self._last[self._control]

    def text(self) -> str:
        """Return the lists, a line for each call."""
        return "\n".join(each.text() for each in dict.fromkeys((self._first, self._last)))

    def _make_left(self) -> int:
        Builder.extending("/", owner=self._config.whose).build(self._left)
        return 0

    def _see_processes(self, calls: CallList) -> None:
        # The other /proc, of an outer namespace, is unmounted with everything in ASIDE.
        old, place = self._open(calls, "/proc"), self._open(calls, OLD_PROCESSES)
        self._attach(calls, old, place)
        if self._config.outer_processes:  # read-only, see `builder.outer_processes`
            source = self._open(calls, OLD_PROCESSES)
            plain = mounts.ATTR_NOSUID | mounts.ATTR_NODEV | mounts.ATTR_NOEXEC | mounts.ATTR_RDONLY
            self._attach(calls, self._clone(calls, source, plain), self._open(calls, "/proc"))
        else:
            # Every process is listed, so `ps` and `pgrep` find root's. Ours show no path of the host.
            self._mount(calls, b"proc", b"/proc", _PLAIN | mounts.MS_NOEXEC, "")
        if not self._config.network:  # kernels without this setting need none
            file = calls.call(
                "openat", AT_FDCWD, _LOW_PORTS, os.O_WRONLY | os.O_CLOEXEC, 0, what="", may_fail=True
            )
            calls.call("write", file, b"0", 1, what="", may_fail=True)
            calls.call("close", file, what="", may_fail=True)

    def _make_layer(self, calls: CallList) -> None:
        """Fill the directory of the layer, and mount the home tree with it."""
        skeleton = OLD_ROOT.encode() + self._config.skeleton
        self._layer = calls.address(bytes(_LONGEST_NAME))
        # With the place of the layers: `layers.store.no_room` looks for it.
        place = os.fsdecode(os.path.dirname(self._config.skeleton))
        what = f"the layer of its home cannot be made in {place!r}"
        flags = _DIRECTORY | os.O_NOFOLLOW

        def opened(directory: int, path: bytes | int, how: int = flags) -> Slot:
            return calls.call("openat", directory, path, how, 0, what=what)

        store = opened(AT_FDCWD, os.path.dirname(skeleton))
        # By descriptor from here on: if the layer is being removed, nothing more is created in it.
        layer = opened(store, self._layer)
        for name, mode in ((b"upper", 0o755), (b"work", 0o700)):
            calls.call("mkdirat", layer, name, mode, what=what)
        trees = opened(AT_FDCWD, skeleton), opened(layer, b"upper"), opened(layer, b"work")
        numbers = range(_TARGET, _TARGET + len(trees))
        for tree, number in zip(trees, numbers, strict=True):
            calls.call("dup3", tree, number, os.O_CLOEXEC, what=what)
        volatile = not self._config.skeleton.startswith(IN_MEMORY)
        options = overlay.options([numbers[0]], *numbers[1:], volatile=volatile)
        self._mount(calls, b"overlay", BORROWED.encode(), _PLAIN, options, what=what)
        for fd in (store, layer, *trees, *numbers):
            calls.call("close", fd, what=what)
        for place in map(os.fsdecode, self._config.places):
            part = self._clone(calls, self._open(calls, BORROWED + place), 0)
            self._attach(calls, part, self._open(calls, place))

    def _make(self, calls: CallList, operation: Operation) -> None:
        """Do the same as `Builder` for the usual operations."""
        if isinstance(operation, Empty):
            target = self._open(calls, operation.path)
            calls.call("dup3", target, _TARGET, os.O_CLOEXEC, what=_NOT_MADE)
            place = os.fsencode(mounts.path_of(_TARGET))
            self._mount(calls, b"tmpfs", place, _PLAIN, empty_options(operation, self._config.whose))
            calls.call("close", _TARGET, what=_NOT_MADE)
            calls.call("close", target, what=_NOT_MADE)
        else:
            null = self._open(calls, "/dev/null", _PATH)
            mask = self._clone(calls, null, mounts.ATTR_NOSUID | mounts.ATTR_NODEV | mounts.ATTR_RDONLY)
            self._attach(calls, mask, self._open(calls, operation.path, _PATH))

    def _finish(self, calls: CallList) -> None:
        self._mount(calls, b"devpts", b"/dev/pts", _QUIET, "newinstance,ptmxmode=0666,mode=620")
        # This also unmounts the old root: from here on, nothing of the host can be reached. All at once,
        # because the kernel waits for every processor at each unmount.
        calls.call("umount2", ASIDE.encode(), mounts.MNT_DETACH, what=_NOT_MADE)
        # The control files: we can write them; inside they are read-only, except for pipes.
        options = f"mode=0755,size={_CONTROL_SIZE}"
        self._mount(calls, b"tmpfs", CONTROL.encode(), _PLAIN | mounts.MS_NOEXEC, options)
        directory = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._control = self._open(calls, CONTROL, directory)
        cover = self._clone(calls, self._control, mounts.ATTR_RDONLY, close=False)
        self._attach(calls, cover, self._control, close=False)
        if self._config.host:
            calls.call("sethostname", self._config.host, len(self._config.host), what=_NOT_MADE)

    def _verify(self, calls: CallList, outside: Outside) -> None:
        """See `inside.verify.around`, and `verify`."""
        table, link = Buffer(_TABLE_ROOM), Buffer(_LINK_ROOM)
        for kind, inode in outside:
            what = f"{_WITHOUT} a {os.fsdecode(kind)} namespace of its own"
            length = self._link(calls, b"/proc/self/ns/" + kind, link)
            calls.check(link, length, kind + b":[", "within", what=what)
            calls.check(link, length, kind + b":[%d]" % inode, "absent", what=what)
        own = calls.call("getpid", what=_NOT_MADE)
        calls.expect(own, 1, what=f"{_WITHOUT} being its PID 1")
        length = calls.read(b"/proc/self/cmdline", table, what=_NOT_MADE)
        calls.check(
            table, length, b"/", "absent", what=f"{_WITHOUT} a command line without paths of the host"
        )
        if self._config.host:
            names = calls.address(bytes(6 * _NAME_LENGTH))
            calls.call("uname", names, what=_NOT_MADE)
            host = self._config.host + b"\0"
            calls.check(names + _NAME_LENGTH, len(host), host, "whole", what=f"{_WITHOUT} its own host name")
        length = calls.read(b"/proc/self/mountinfo", table, what=_NOT_MADE)
        root = calls.address(bytes(256))
        calls.call("statfs", b"/", root, what=_NOT_MADE)
        magic = struct.pack("q", _TMPFS_MAGIC)
        calls.check(root, len(magic), magic, "whole", what=f"{_WITHOUT} a root of its own")
        calls.check(table, length, b" / / ", "within", what=f"{_WITHOUT} a root of its own")
        own_processes = f"{_WITHOUT} a /proc of its own, or one that cannot be written"
        read_only = "within" if self._config.outer_processes else "absent"
        calls.check(table, length, b" /proc ro,", read_only, what=own_processes)
        if not self._config.outer_processes:
            calls.check(link, self._link(calls, b"/proc/self", link), b"1", "whole", what=own_processes)
        kept = f" {ASIDE}/".encode()
        calls.check(table, length, kept, "absent", what=f"{_WITHOUT} an end to what is kept aside")

    # One step each.

    def _open(self, calls: CallList, path: str, flags: int = _DIRECTORY) -> Slot:
        """Open a path without links."""
        how = how_without_symlinks(flags)
        return calls.call("openat2", AT_FDCWD, os.fsencode(path), how, len(how), what=f"{path!r}")

    def _link(self, calls: CallList, path: bytes, room: Buffer) -> Slot:
        return calls.call("readlinkat", AT_FDCWD, path, room, room.size, what=_NOT_MADE)

    def _mount(
        self, calls: CallList, kind: bytes, place: bytes, flags: int, options: str, *, what: str = ""
    ) -> None:
        what = what or f"{os.fsdecode(kind)} cannot be mounted"
        calls.call("mount", kind, place, kind, flags, os.fsencode(options), what=what)

    def _clone(self, calls: CallList, source: Slot, attributes: int, *, close: bool = True) -> Slot:
        tree = calls.call("open_tree", source, b"", mounts.CLONE_TREE, what=_NOT_MADE)
        if attributes:
            attr, flags = mounts.packed_attributes(attributes), mounts.RECURSIVELY
            calls.call("mount_setattr", tree, b"", flags, attr, len(attr), what=_NOT_MADE)
        if close:
            calls.call("close", source, what=_NOT_MADE)
        return tree

    def _attach(self, calls: CallList, tree: Slot, place: Slot, *, close: bool = True) -> None:
        calls.call("move_mount", tree, b"", place, b"", mounts.BY_DESCRIPTORS, what=_NOT_MADE)
        for fd in (tree, place) if close else (tree,):
            calls.call("close", fd, what=_NOT_MADE)


def _is_usual(operation: Operation) -> bool:
    if isinstance(operation, Empty):
        return operation.below and bool(operation.mode)
    return isinstance(operation, Mask) and not operation.optional


def _in_a_child(work: Callable[[], int]) -> None:
    """Run `work` in a fork, whose memory is freed with it. LaunchFailed: what it reported."""
    report, report_to = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        live(work, lambda error: os.write(report_to, reason(error)) and 1)
    os.close(report_to)
    try:
        said = os.read(report, _LONGEST)
    finally:
        os.close(report)
        status = os.waitpid(child, 0)[1]
    if said or status:
        raise LaunchFailed(
            said.decode("utf-8", "replace") or _NOT_MADE,
            why="a step of the setup failed inside",
            fix="`staddle doctor` tries what this host can do",
        )
