"""The host program's side: a zygote for each plan, and sandboxes taken from it.

A zygote is started when the first session with its plan is opened, and serves all that follow.
It is the host program's child and never outlives it.
"""

from __future__ import annotations

import os
import threading

from .._value import Value
from ..errors import LaunchFailed
from ..layout import rows
from ..layout.from_plan import lay_out
from ..layout.host import Host, open_named
from ..layout.operations import Bind
from ..linux import idmaps, landlock
from ..linux.seccomp import program
from ..network.arrangement import arrange
from ..policy.plan import Identity
from . import blueprint as records
from . import sharing
from .handle import Zygote, taken_as_root
from .network import encoded as encoded_network

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..layout.operations import Operation
    from ..policy.plan import Plan

_SPARES = 2
#: Zygotes without a session that are kept for the next one.
_MOST_IDLE = 4


class Layers(Value):
    """Where the changes to a workspace go: paths of the host, the layers below topmost first."""

    upper: str
    work: str
    lowers: tuple[str, ...] = ()


class Taken:
    """A sandbox that is ours: the line to its agent, and who its processes are on the host, if not we.

    It ends when the line is closed; `close` is to be called after that.
    """

    def __init__(self, line: int, owner: Zygote, blueprint: records.Blueprint, place: Bind | None) -> None:
        self.line = line
        self.uid = blueprint.base + blueprint.whose if blueprint.base >= 0 else None
        self._owner: Zygote | None = owner
        self._blueprint, self._place = blueprint, place

    def workspace(self, layers: Layers) -> int:
        """The sandbox's workspace with other layers on it, as a mount that is attached nowhere yet."""
        if self._owner is None or self._place is None:
            raise LaunchFailed("there is no workspace to be shown", why="the sandbox has ended")
        request, tree = _request((self._place,), layers, self._blueprint)
        try:
            found = self._owner.take(request.replace(view=()), tree)
        finally:
            if tree is not None:
                os.close(tree)
        if found is None:
            raise LaunchFailed(
                "the workspace could not be shown again",
                why="something else is mounted there since the sandbox was made",
                fix="commit what is to be kept, and open another sandbox",
            )
        return found

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
    inside = Identity()
    return (base + inside.uid, base + inside.gid) if count > 1 else (base, base)


def open_sandbox(
    plan: Plan, bash: str, layers: Layers | None = None, *, along: Sequence[int] = (), grouped: bool = False
) -> Taken:
    """A sandbox for `plan`, the changes to whose workspace go to `layers`, if not to the host.

    `along` are descriptors for its agent (see `Request`), which stay the caller's; with
    `grouped` there are doors to control groups among them.

    Its shell, the program `bash` inside, is running already; the first message on the line
    announces it, or says why there is no sandbox.
    """
    shared, blueprint = _drawn(plan, bash)
    if grouped:
        # A shell that was started ahead would see the name of the group that it is moved to.
        blueprint = blueprint.replace(later=1)
    request, tree = _request(shared.workspace, layers, blueprint)
    request = request.replace(along=len(along))
    try:
        for _ in range(2):
            found = _zygote(blueprint)
            line = found.take(request, tree, along)
            if line is not None:
                with _registry:
                    found.live += 1
                place = shared.workspace[0] if shared.workspace else None
                return Taken(line, found, blueprint, place if isinstance(place, Bind) else None)
            _forget(blueprint, found)
    finally:
        if tree is not None:
            os.close(tree)
    if found.ended:
        raise LaunchFailed("the sandbox could not be made", why="the zygote has ended, twice")
    raise LaunchFailed(
        "the workspace could not be shown",
        why="what is mounted there changes while the sandbox is made",
        fix="try again when nothing is being mounted",
    )


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


#: What was drawn last. Plans are compared by identity: who opens many sandboxes uses one plan.
_drawings: list[tuple[Plan, str, sharing.Shared, records.Blueprint]] = []
_MOST_DRAWINGS = 8


def _drawn(plan: Plan, bash: str) -> tuple[sharing.Shared, records.Blueprint]:
    for known, shell, shared, blueprint in _drawings:
        if known is plan and shell == bash:
            return shared, blueprint
    shared = sharing.share(lay_out(plan, Host()).operations)
    blueprint = _blueprint(plan, shared, bash)
    _drawings.insert(0, (plan, bash, shared, blueprint))
    del _drawings[_MOST_DRAWINGS:]
    return shared, blueprint


def _blueprint(plan: Plan, shared: sharing.Shared, bash: str) -> records.Blueprint:
    from ..backends.filters import filter_profile
    from ..backends.last_steps import rlimits
    from ..backends.namespaces.orders import scopes
    from ..limits.in_memory import sized
    from ..limits.standing_in import stand_ins

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
        reach=encoded_network(arrange(plan.network)),
        scoped=landlock.bits(scopes(plan), "scope"),
        rlimits=tuple((resource, most, most) for _, resource, most in limits),
        filter=program(filter_profile(plan)),
        bash=os.fsencode(bash),
        environment=tuple(os.fsencode(f"{name}={value}") for name, value in plan.environment().items()),
        directory=_quoted(os.fsencode(plan.cwd)),
        spares=_SPARES,
        memory=memory,
        processes=processes,
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


def _request(
    view: Sequence[Operation], layers: Layers | None, blueprint: records.Blueprint
) -> tuple[records.Request, int | None]:
    if not view:
        return records.Request(b"", 0, 0, b"", b"", (), ()), None
    place = view[0]
    if not isinstance(place, Bind):
        raise TypeError("a workspace begins with what is shown")
    source = open_named(place.outside)
    try:
        status = os.fstat(source)
    finally:
        os.close(source)
    request = records.Request(
        os.fsencode(place.outside),
        status.st_dev,
        status.st_ino,
        os.fsencode(layers.upper) if layers else b"",
        os.fsencode(layers.work) if layers else b"",
        tuple(os.fsencode(lower) for lower in layers.lowers) if layers else (),
        rows.encoded((place.replace(writable=layers is not None or place.writable), *view[1:])),
    )
    return request, taken_as_root(place, blueprint) if blueprint.base >= 0 else None
