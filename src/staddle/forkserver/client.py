"""The host program's side: a zygote for each plan, and sandboxes taken from it.

A zygote is started when the first session with its plan is opened, and serves all that follow.
It is the host program's child and never outlives it.
"""

from __future__ import annotations

import os
import threading
from functools import partial

from .._value import Value
from ..errors import LaunchFailed
from ..files.remove_tree import remove
from ..inside.agent.mount_swap import WORLD
from ..ipc import forkserver_messages as records
from ..ipc.network_spec import encoded as encoded_network
from ..linux import idmaps, landlock
from ..linux.seccomp import program
from ..mounts import rows, shared_view
from ..mounts.from_plan import lay_out
from ..mounts.host import Host
from ..mounts.operations import Bind
from ..network.namespace.arrangement import arrange
from ..policy.workspace import PLACE
from .connection import Promise, Zygote
from .requests import Layers, lent
from .requests import request as request_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..limits.group import Group
    from ..mounts.operations import Operation
    from ..policy.plan import Plan
    from .connection import Found, Lend

#: The places that are of the world where there is one, and the home.
_LAYERED = ("/tmp", "/var/tmp")
_SPARES = 2
#: Zygotes without a session that are kept for the next one.
_MOST_IDLE = 4


class World(Value):
    """What can be written beside the workspace, in layers: a fresh one over `skeleton`, or `layers`.

    With both, a sandbox that was made ahead for a fresh one does as well.
    """

    skeleton: str | None
    layers: Layers | None = None


class Taken:
    """A sandbox that is ours: the line to its agent, and who its processes are on the host, if not we.

    `layer` is the name of the one that was made ahead for it, in the directory of the skeleton:
    the taker's, to be used or to be removed. `instead` are the layers of its workspace if they are
    not those that were asked for, see `make_next`. It ends when the line is closed; `close` is to be
    called after that.
    """

    def __init__(self, found: Found, owner: Zygote, blueprint: records.Blueprint, place: Bind | None) -> None:
        self.line, self.layer = found.descriptors[0], found.layer
        self.instead = found.promise.layers if found.promise else None
        self.uid = blueprint.base + blueprint.whose if blueprint.base >= 0 else None
        self._zygote, self._number = owner, owner.taken
        self._owner: Zygote | None = owner  # until it is closed
        self._blueprint, self._place = blueprint, place

    def make_trees(self, layers: Mapping[str, Layers], line: int) -> None:
        """Have trees made with other layers, by the path of each one's root inside: mounts, attached nowhere.

        They go to the agent at the other end of `line`: that of the workspace first, see `in_order`.
        """
        workspace = layers.get(PLACE)
        if self._owner is None or (workspace is not None and self._place is None):
            raise LaunchFailed("there is nothing to be shown", why="the sandbox has ended")
        view = () if workspace is None or self._place is None else (self._place,)
        others = {root: layer for root, layer in layers.items() if root != PLACE}
        request = request_for(view, workspace, others).replace(alone=1, along=1)
        if self._owner.take(request, [line], partial(lent, view, self._blueprint)) is None:
            raise LaunchFailed(
                "the workspace could not be shown again",
                why="something else is mounted there since the sandbox was made",
                fix="commit what is to be kept, and open another sandbox",
            )

    @property
    def is_usual(self) -> bool:
        """Whether the next one may well show the same, and nothing is made ahead for that yet.

        Not any more when another one has been taken since.
        """
        zygote, spares = self._zygote, self._blueprint.spares
        return bool(spares) and zygote.is_repeated and zygote.promise is None and zygote.taken == self._number

    def make_next(self, layers: Layers, look: bytes, drop: Callable[[], object]) -> None:
        """Have the next sandbox made ahead, if it shows the same, which looks like this, in these layers.

        Its taker finds them as `instead`; if nobody ever takes it, `drop` is called. Never raises, and may
        be called when this one has ended.
        """
        place = self._place
        if place is None or self._zygote.ended:
            drop()
            return
        try:
            request = request_for((place,), layers, {}).replace(look=look, ahead=1)
            promise = Promise(request.shows, layers, drop)
            if self._zygote.take(request, (), partial(lent, (place,), self._blueprint), promise) is None:
                drop()
        except (LaunchFailed, OSError):
            drop()  # whoever asks for it without that is told

    def groups_of(self, pid: int) -> Group | None:
        """The sandbox's control groups, if it has any; `pid` is one of its processes, on the host."""
        return None if self._owner is None else self._owner.groups_of(pid)

    def close(self) -> None:
        """Say that it has ended."""
        owner, self._owner = self._owner, None
        if owner is not None:
            _released(owner)


# ---------------------------------------------------------------- all of them

_zygotes: dict[records.Blueprint, Zygote] = {}
_registry = threading.Lock()


def mounter() -> tuple[int, int] | None:
    """Who must be able to write the layers of a sandbox's workspace, if not we: root's zygote is nobody."""
    if os.geteuid() != 0:
        return None
    base, count = _ids()
    owner = base + (records.OWNER if count > records.OWNER else 0)
    return owner, owner


def root_of(mounter: tuple[int, int] | None, uid: int) -> int | None:
    """Who the root of a sandbox is on the host, if not we: whose layers `mounter` mounts.

    `uid` is the number inside of its user, who may be root already.
    """
    return None if mounter is None else _ids()[0] if uid else mounter[0]


def world_of(plan: Plan, bash: str) -> tuple[tuple[str, ...], tuple[Operation, ...]]:
    """The places of the world of `plan`, and what is in it at first: see `shared_view.Shared`."""
    layered = _drawn(plan, bash).layered
    return layered.places, layered.skeleton


def open_sandbox(
    plan: Plan,
    bash: str,
    layers: Layers | None = None,
    *,
    look: bytes = b"",
    world: World | None = None,
    trees: Mapping[str, Layers] | None = None,
    along: Sequence[int] = (),
    grouped: bool = False,
) -> Taken:
    """A sandbox for `plan`, the changes to whose workspace go to `layers`, if not to the host.

    `look` is what the workspace looks like, if nothing was changed in it yet: see `Taken.instead`.
    What it writes elsewhere goes to `world`, or is gone with it; `trees` are of directories of the
    system, by their paths, if those can be written, too. `along` are descriptors for its
    agent (see `Request`), which stay the caller's; with `grouped` it is in control groups.

    Its shell, the program `bash` inside, is running already; the first message on the line
    announces it, or says why there is no sandbox.
    """
    drawing = _drawn(plan, bash)
    doors = 0
    if grouped:
        from ..limits import here

        doors = len(here.means().places)
    blueprint, view = drawing.blueprint(world, doors), drawing.plain.workspace
    others = {WORLD: world.layers} if world is not None and world.layers is not None else {}
    others |= trees or {}
    request = request_for(view, layers, others).replace(along=len(along), look=b"" if others else look)
    for _ in range(2):
        zygote = _zygote(blueprint)
        found = _taken(zygote, request, along, partial(lent, view, blueprint), world)
        if found is not None:
            with _registry:
                zygote.live += 1
                zygote.note(request.shows)
            place = view[0] if view and isinstance(view[0], Bind) else None
            return Taken(found, zygote, blueprint, place)
        _forget(blueprint, zygote)
    if zygote.ended:
        raise LaunchFailed("the sandbox could not be made", why="the zygote has ended, twice")
    raise LaunchFailed(
        "the workspace could not be shown",
        why="what is mounted there changes while the sandbox is made",
        fix="try again when nothing is being mounted",
    )


def _taken(
    zygote: Zygote, request: records.Request, along: Sequence[int], lend: Lend, world: World | None
) -> Found | None:
    """One that lives: those that wait may have been killed while they did."""
    for _ in range(_SPARES + 1):
        found = zygote.take(request, along, lend)
        if found is None or not found.has_been_killed:
            return found
        found.close()
        if found.layer and world is not None and world.skeleton is not None:
            remove((os.fsencode(f"{os.path.dirname(world.skeleton)}/{found.layer}"),))
    raise LaunchFailed("the sandbox could not be made", why="its first process is killed")


def _zygote(blueprint: records.Blueprint) -> Zygote:
    with _registry:
        found = _zygotes.get(blueprint)
        if found is None or found.ended:
            before, found = found, Zygote(blueprint)
            _zygotes[blueprint] = found
            if before is not None and not before.live:
                before.close()
        return found


def _forget(blueprint: records.Blueprint, stale: Zygote) -> None:
    """Ask it no more; it ends with its last sandbox."""
    with _registry:
        if _zygotes.get(blueprint) is stale:
            del _zygotes[blueprint]
    if not stale.live:
        stale.close()


def _released(owner: Zygote) -> None:
    """One sandbox less; the zygotes that nobody has a session of end, but for the newest."""
    with _registry:
        owner.live -= 1
        forgotten = owner not in _zygotes.values() and not owner.live
        idle = [key for key, found in _zygotes.items() if not found.live]
        ended = [_zygotes.pop(key) for key in idle[:-_MOST_IDLE]]
    for found in (*ended, *([owner] if forgotten else [])):
        found.close()


def _after_fork() -> None:
    """A fork of the host program has no zygotes: those are its parent's, and end with that."""
    while _zygotes:
        _zygotes.popitem()[1].hang_up()


os.register_at_fork(after_in_child=_after_fork)


class _Drawing:
    """A plan, as it was drawn: without a world of layers, and with one."""

    def __init__(self, plan: Plan, bash: str) -> None:
        operations = lay_out(plan, Host()).operations
        self.plan, self.bash = plan, bash
        self.plain = shared_view.share(operations)
        self.layered = shared_view.share(operations, (*_LAYERED, plan.identity.home))
        self._blueprints: dict[tuple[bool, str | None, int], records.Blueprint] = {}

    def blueprint(self, world: World | None, doors: int) -> records.Blueprint:
        """All sandboxes of the plan; those whose world is made ahead over one skeleton."""
        ahead = None if world is None else world.skeleton
        key = (world is not None, ahead, doors)
        if key not in self._blueprints:
            made = _blueprint(self.plan, self.plain if ahead is None else self.layered, self.bash)
            made = made.replace(doors=doors)
            if world is not None:
                places = tuple(map(os.fsencode, self.layered.places))
                made = made.replace(places=places, skeleton=os.fsencode(ahead or ""))
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            made = _known.setdefault(made, made)  # then it is found without being compared
            self._blueprints[key] = made
        return self._blueprints[key]


#: What was drawn last. Plans are compared by identity: who opens many sandboxes uses one plan.
_drawings: list[_Drawing] = []
_MOST_DRAWINGS = 8
#: Every blueprint once: those of two plans may well be the same.
_known: dict[records.Blueprint, records.Blueprint] = {}
_MOST_KNOWN = 64


def _drawn(plan: Plan, bash: str) -> _Drawing:
    for known in _drawings:
        if known.plan is plan and known.bash == bash:
            return known
    made = _Drawing(plan, bash)
    _drawings.insert(0, made)
    del _drawings[_MOST_DRAWINGS:]
    return made


def _blueprint(plan: Plan, shared: shared_view.Shared, bash: str) -> records.Blueprint:
    from ..backends.filters import filter_profile
    from ..backends.last_steps import rlimits
    from ..backends.namespaces.orders import scopes
    from ..limits import processors
    from ..limits.standing_in import stand_ins
    from ..mounts.sizes import sized

    base, count = _ids() if os.geteuid() == 0 else (-1, 1)
    who = plan.identity
    standing_in, memory, processes = stand_ins(plan.limits)
    limits = (*rlimits(plan.limits), *standing_in)
    return records.Blueprint(
        template=rows.encoded(shared.template),
        own=rows.encoded(sized(plan.limits, shared.own)),
        uid=who.uid,
        gid=who.gid,
        host=os.fsencode(who.host),
        base=base,
        count=count,
        network=int(plan.network.mode == "open"),
        reach=encoded_network(arrange(plan.network, asks=bool(plan.asks))),
        scoped=landlock.bits(scopes(plan), "scope"),
        rlimits=tuple((resource, most, most) for _, resource, most in limits),
        filter=program(filter_profile(plan)),
        bash=os.fsencode(bash),
        environment=tuple(os.fsencode(f"{name}={value}") for name, value in plan.environment().items()),
        directory=_quoted(os.fsencode(plan.cwd)),
        spares=_SPARES,
        memory=memory,
        processes=processes,
        processors=processors.count(plan.limits.cpu),
    )


def _ids() -> tuple[int, int]:
    base, count = idmaps.unused_ids_here()
    if not count:
        raise LaunchFailed(
            "root's sandbox would have to run as root",
            why="this user namespace has no other id",
            fix="run staddle as an ordinary user",
        )
    return base, count


def _quoted(path: bytes) -> bytes:
    """A path as one word of a shell."""
    return b"'" + path.replace(b"'", b"'\\''") + b"'"
