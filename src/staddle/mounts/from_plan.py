"""From a plan to the operations that build its view, and a cache of them. Decides, and changes nothing.

The items of a plan are visited in the order of their paths, parents first, with the region that contains
each. A region is a directory of ours (`own`), a path of the host (`read`, `write`, or `layer` if changes do
not get there), or hidden. The region decides what an item needs:

* A mount inside a writable region can be moved away by renaming a directory above it. So
  every directory between the region and the mount is pinned, by a mount of its own.
* A denied name in a read-only region may be missing, or have a thousand denied siblings.
  Then the directory is rebuilt: an empty directory, with the visible entries mounted in it.
  Entries that appear there later stay invisible, and a thousand mounts become a few.
* A denied name that is missing in a writable region cannot be enforced: only an entry placed
  there could stop its creation, and we never place anything in the user's tree.
* A path that is shown below a private directory needs parent directories. They have the names
  of the host's directories but are not these, so they accept no files: files written there
  would be lost without a message. The private home is the exception: programs expect to
  write all over it.
"""

from __future__ import annotations

from .._value import Value
from ..errors import PolicyNotEnforceable
from ..policy.plan import (
    Closed,
    Device,
    Grant,
    Guard,
    Hidden,
    Layered,
    Link,
    Plan,
    Scratch,
    Socket,
    Text,
    all_derived,
)
from ..policy.system import TOP
from .host import Host
from .operations import (
    Bind,
    DeviceNode,
    Devices,
    Directory,
    Empty,
    File,
    Mask,
    Overlay,
    ProcMount,
    Seal,
    Symlink,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Literal, TypeAlias

    from .host import Entry, Kind, View
    from .operations import Operation

    RegionKind: TypeAlias = Literal["own", "read", "write", "layer", "hidden", "link", "processes"]
    Region: TypeAlias = tuple[str, RegionKind]
    from ..policy.plan import Plan

#: The origin of the operations of every sandbox.
_OURS = "sandbox"
#: Files of /proc that reveal facts about the host: keys, timers, symbols, the kernel's command line.
PROC_MASKS = ("/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/kallsyms", "/proc/cmdline")
#: A denied directory has no room for files, in case its owner opens it up.
_HIDDEN_SIZE = 4096
_ROOT_SIZE = 1 << 20
_SHM_SIZE = 1 << 30
#: Parent directories may be listed and passed, but not written, even by their owner.
_WAY = 0o555
#: A directory with fewer denied files is not worth rebuilding; with more entries it is too large.
_REBUILD_FROM, _REBUILD_TO = 8, 512


class Layout(Value):
    """The operations, in order, and the denied paths that they do not enforce."""

    operations: tuple[Operation, ...]
    unheld: tuple[Hidden, ...]


class _Rebuilt(Value):
    """A directory of a read-only region that is rebuilt from its visible entries."""

    path: str
    origin: str


class _RetainedItem(Value):
    path: str
    origin: str
    source: str = ""


class _Elsewhere:
    """The host's view, for paths that are shown under another name."""

    def __init__(self, view: View, outside: Callable[[str], str]) -> None:
        self._view, self.outside = view, outside

    def kind(self, path: str) -> Kind | None:
        return self._view.kind(self.outside(path))

    def entries(self, path: str) -> tuple[Entry, ...]:
        return self._view.entries(self.outside(path))

    def searchable(self, path: str) -> bool:
        return self._view.searchable(self.outside(path))


# At one path the first of these decides, and later ones are in its region.
_ORDER = {
    kind: place
    for place, kind in enumerate(
        (
            *(Hidden, Closed, Scratch, Devices, Device, ProcMount, Layered, Grant),
            *(_RetainedItem, _Rebuilt, Guard, Socket, Text, Link),
        )
    )
}
if TYPE_CHECKING:
    _Shown: TypeAlias = Layered | Grant | _RetainedItem | _Rebuilt | Guard | Socket | Text | Link
    _Item: TypeAlias = Hidden | Closed | Scratch | Devices | Device | ProcMount | _Shown


def lay_out(plan: Plan, view: View) -> Layout:
    """Return the operations for `plan` on the host that `view` shows."""
    if any(grant.source for grant in plan.grants):
        view = _Elsewhere(view, plan.outside)
    items = _items(plan)
    rebuilt, unheld = _rebuild(items, view) if plan.hidden else ([], [])
    writer = _Writer(view, frozenset(s.path for s in plan.scratch if s.path != plan.identity.home))
    root_size = _ROOT_SIZE + sum(len(text.content) + 4096 for text in plan.texts)
    writer.add(Empty("/", 0o755, root_size, _OURS))
    taken = {item.path for item in items}
    for path in TOP:
        if path not in taken:
            writer.add(Directory(path, 0o755, _OURS))
    for item, region in _visit([*items, *rebuilt]):
        writer.write(item, region)
    for item in reversed(rebuilt):
        if isinstance(item, _Rebuilt):
            writer.add(Seal(item.path, item.origin))
    writer.add(Seal("/dev", _OURS))
    writer.add(Seal("/", _OURS))
    return Layout(tuple(writer.operations), tuple(unheld))


def _items(plan: Plan) -> list[_Item]:
    granted = {grant.path for grant in plan.grants}
    items: list[_Item] = [
        *plan.hidden,
        *plan.closed,
        *(scratch for scratch in plan.scratch if scratch.path not in granted),  # the grant would cover it
        *plan.layers,
        *(grant for grant in plan.grants if grant.path not in ("/dev", "/proc")),  # they are made anew
        *plan.guards,
        *(socket for socket in plan.sockets if socket.present),
        *plan.texts,
        *plan.links,
        Devices("/dev", _OURS),
        *plan.devices,
        ProcMount("/proc", _OURS),
    ]
    if all(scratch.path != "/dev/shm" for scratch in plan.scratch):
        items.append(Scratch("/dev/shm", 0o1777, _SHM_SIZE, _OURS))
    return items


def _visit(items: Iterable[_Item]) -> Iterator[tuple[_Item, Region]]:
    """Yield every item with the innermost region that contains it, parents first."""
    regions: list[Region] = [("/", "own")]
    for item in sorted(items, key=_place):
        while not _covers(regions[-1][0], item.path):
            regions.pop()
        region = regions[-1]
        yield item, region
        kind = _opens(item, region[1])
        if kind is not None:
            regions.append((item.path, kind))


def _place(item: _Item) -> tuple[list[str], int, bool]:
    path = item.path.split("/") if item.path != "/" else [""]
    return path, _ORDER[type(item)], isinstance(item, Grant) and item.access == "read"


def _opens(item: _Item, around: RegionKind) -> RegionKind | None:
    """Return the region that begins with `item`, if there is one."""
    if around in ("hidden", "link"):
        return None
    if isinstance(item, Hidden):
        return "hidden"
    if isinstance(item, Scratch | Devices):
        return "own"
    if isinstance(item, ProcMount):
        return "processes"
    if isinstance(item, Layered):
        return "layer"
    if isinstance(item, Grant):
        if around == "own" or (around in ("read", "layer") and item.access == "write"):
            return item.access
    elif isinstance(item, _RetainedItem):
        return "read" if around == "own" else None
    elif isinstance(item, _Rebuilt):
        return "own"
    elif isinstance(item, Guard):
        return "read" if around == "write" else None
    elif isinstance(item, Link):
        return "link" if around == "own" else None
    return None


def _rebuild(items: list[_Item], view: View) -> tuple[list[_Item], list[Hidden]]:
    """Return the directories to rebuild with their visible entries, and denied paths that stay unenforced."""
    denied: dict[str, list[Hidden]] = {}  # read-only directory: its denied files
    missing: dict[str, list[Hidden]] = {}  # read-only directory: its denied names that are missing
    unheld: list[Hidden] = []
    hidden: set[str] = set()
    for item, (root, around) in _visit(items):
        if isinstance(item, Closed):
            hidden.add(item.path)
        if not isinstance(item, Hidden) or around not in ("read", "write"):
            continue
        hidden.add(item.path)
        if item.kind == "missing" and around == "write":
            unheld.append(item)
        elif item.kind == "missing":
            there = _nearest_directory(item.path, root, view)
            if there:
                missing.setdefault(there, []).append(item)
        elif item.kind == "file" and around == "read":
            denied.setdefault(_parent(item.path), []).append(item)
    scratch = {item.path for item in items if isinstance(item, Scratch)}
    rebuilt: list[_Item] = []
    for directory in sorted({*missing, *(d for d, files in denied.items() if len(files) >= _REBUILD_FROM)}):
        cause = [*missing.get(directory, ()), *denied.get(directory, ())]
        try:
            kept = [e for e in view.entries(directory) if _join(directory, e.name) not in hidden]
        except OSError:
            kept = None
            if not view.searchable(directory):
                continue  # no process in the sandbox can reach anything in there
        if directory not in missing and (kept is None or len(kept) + 1 >= len(cause)):
            continue  # masking one by one is as good
        if kept is None or len(kept) > _REBUILD_TO:
            unheld += missing[directory]
            continue
        rebuilt.append(_Rebuilt(directory, cause[0].origin))
        seen = [e for e in kept if _join(directory, e.name) not in scratch]
        outside = view.outside(directory) if isinstance(view, _Elsewhere) else directory
        rebuilt += _entries(directory, outside, seen, cause[0])
    return rebuilt, unheld


def _entries(directory: str, outside: str, kept: list[Entry], cause: Hidden) -> Iterator[_Item]:
    for entry in kept:
        path, source = _join(directory, entry.name), _join(outside, entry.name)
        if entry.kind == "link":
            yield Link(path, entry.target, cause.origin)
        else:
            yield _RetainedItem(path, cause.origin, source if source != path else "")


def _nearest_directory(path: str, within: str, view: View) -> str | None:
    """Return the deepest directory above `path` within `within`; None if a file is in the way."""
    directory = _parent(path)
    while _covers(within, directory):
        kind = view.kind(directory)
        if kind is not None:
            return directory if kind == "directory" else None
        directory = _parent(directory)
    return None


class _Writer:
    """Turns items into operations, each pinned if it could be moved away.

    `private` are our directories in which no file should be written by mistake.
    """

    def __init__(self, view: View, private: frozenset[str]) -> None:
        self.operations: list[Operation] = []
        self._view = view
        self._private = private
        self._pinned: set[str] = set()
        self._ways: set[str] = set()

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)

    def write(self, item: _Item, region: Region) -> None:
        """Add the operations that `item` needs in this region."""
        root, around = region
        if around == "hidden":
            return
        if around == "link":
            if isinstance(item, Hidden):
                return
            raise PolicyNotEnforceable(
                f"{item.path!r} cannot be shown",
                why=f"{root!r} is a link inside, and nothing is mounted through links",
                fix="name the path that the link points to",
            )
        operation = self._operation(item, around)
        if operation is None:
            return
        if around == "write":
            self._pin(item.path, root, item.origin)
        elif around == "own" and root in self._private:
            self._lead_to(item.path, root, item.origin)
        self.add(operation)
        if isinstance(item, Layered):
            self.add(Overlay(item.path, item.upper, item.work, item.origin))
        if isinstance(item, ProcMount):
            self._mask_processes()

    def _operation(self, item: _Item, around: RegionKind) -> Operation | None:
        own, below = around == "own", around in ("read", "write", "layer")
        if around == "processes" and not isinstance(item, Hidden | Text):
            return None
        if isinstance(item, Hidden):
            return None if own else _hide(item, below)
        if isinstance(item, Closed):
            # In a layer it is not the host's socket, and no process has bound it.
            seen = around in ("read", "write")
            return Mask(item.path, item.origin, optional=True, which=item.which) if seen else None
        if isinstance(item, Scratch):
            return Empty(item.path, item.mode, item.size, item.origin, below)
        if isinstance(item, Devices | ProcMount):
            return item
        if isinstance(item, Device):
            return DeviceNode(item.path, item.major, item.minor, item.origin) if own else None
        if isinstance(item, Layered):
            # Writable, so that its owner is shown as the sandbox's user.
            return Bind(item.path, True, item.origin, below)
        if isinstance(item, Grant):
            if own or (around in ("read", "layer") and item.access == "write"):
                return Bind(item.path, item.access == "write", item.origin, below, source=item.source)
            return None
        if isinstance(item, _RetainedItem):
            return Bind(item.path, False, item.origin, optional=True, source=item.source) if own else None
        if isinstance(item, _Rebuilt):
            return Empty(item.path, 0o755, _ROOT_SIZE, item.origin, below)
        if isinstance(item, Guard):
            writable = around == "write"
            return Bind(item.path, False, item.origin, below=True, again=True) if writable else None
        if isinstance(item, Socket):
            return Bind(item.path, False, item.origin, optional=True) if own else None
        if isinstance(item, Text):
            if own or self._view.kind(item.path) == "file":
                return File(item.path, item.content, item.origin, not own, item.mode)
            return None  # the host has no such file to cover, or a link of that name
        return Symlink(item.path, item.target, item.origin) if own else None

    def _pin(self, path: str, root: str, origin: str) -> None:
        for directory in _between(root, path, self._pinned):
            self.add(Bind(directory, True, origin, below=True, again=True))

    def _lead_to(self, path: str, root: str, origin: str) -> None:
        for directory in _between(root, path, self._ways):
            self.add(Directory(directory, _WAY, origin))

    def _mask_processes(self) -> None:
        for path in PROC_MASKS:
            if self._view.kind(path) == "file":
                self.add(Mask(path, _OURS))
        # Its environment, memory and root are those of the launcher.
        self.add(Empty("/proc/1", 0, _HIDDEN_SIZE, _OURS))


def _hide(item: Hidden, below: bool) -> Operation | None:
    if item.kind == "directory":
        return Empty(item.path, 0, _HIDDEN_SIZE, item.origin, below)
    return Mask(item.path, item.origin) if item.kind == "file" else None


def _between(root: str, path: str, seen: set[str]) -> list[str]:
    """Return the directories between `root` and `path` that are not in `seen`, parents first; add them."""
    found = []
    directory = _parent(path)
    while directory != root and _covers(root, directory) and directory not in seen:
        found.append(directory)
        directory = _parent(directory)
    seen.update(found)
    return found[::-1]


def _covers(ancestor: str, path: str) -> bool:
    return ancestor in (path, "/") or path.startswith(ancestor + "/")


def _parent(path: str) -> str:
    return path[: path.rindex("/")] or "/"


def _join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


# The cache of layouts: see policy.plan. While a sandbox is opened, its layout is needed several times: for
# its gaps, for the fork server's configuration, for the layers of the system.

LAYOUT = "layout"
#: Parts of a plan that determine its layout, if that does not depend on the host.
_PARTS = (
    *("grants", "outside", "links", "texts", "scratch", "sockets", "closed", "layers", "identity"),
    "devices",
)


class PlanLayout:
    """The layout of one plan, and values that others have derived from it, by their own keys."""

    __slots__ = ("derived", "layout")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.derived: dict[object, object] = {}


def entry_of(plan: Plan) -> PlanLayout:
    """Return the entry of this plan, created if missing."""
    known: PlanLayout | None = plan.derived.get(LAYOUT)
    if known is not None:
        return known
    alike = next((entry for other, entry in all_derived(LAYOUT) if _are_alike(other, plan)), None)
    made = plan.derived[LAYOUT] = PlanLayout(lay_out(plan, Host()) if alike is None else alike.layout)
    return made


def layout_of(plan: Plan) -> Layout:
    """Return the cached layout of this plan, or a new one."""
    return entry_of(plan).layout


def forget(plan: Plan) -> None:
    """Forget a layout that depends on the host, when a command is started: the next start looks again."""
    if plan.hidden or plan.guards:
        plan.derived.pop(LAYOUT, None)


def _are_alike(one: Plan, other: Plan) -> bool:
    """Whether both have the same layout: independent of the host, and from the same parts."""
    if one.hidden or one.guards or other.hidden or other.guards:
        return False
    return all(getattr(one, part) == getattr(other, part) for part in _PARTS)
