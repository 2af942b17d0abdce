"""The host program's side: one fork server for each configuration, and sandboxes taken from it.

The first session with a plan starts its fork server, which serves all later sessions. It is the host
program's child and never outlives it.
"""

from __future__ import annotations

import os
import threading
from functools import partial

from .._value import Value
from ..errors import LaunchFailed
from ..files.remove_tree import remove
from ..inside.agent.mount_swap import HOME_TREE
from ..ipc import forkserver_messages as records
from ..ipc.namespace_spec import encoded as encoded_network
from ..linux import idmaps, landlock
from ..linux.seccomp import program
from ..mounts import shared_view
from ..mounts.from_plan import LAYOUT, entry_of
from ..mounts.operations import Bind, encode_operations
from ..network.namespace.from_policy import network_spec
from ..paths import WORKSPACE_PATH, covers
from ..shell.quoting import quoted
from .connection import ForkServerClient, OverlayDirs
from .start import AHEAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..limits.cgroup_layout import CgroupSupport
    from ..mounts.operations import Operation
    from ..policy.plan import Plan
    from .connection import ForkReply

    LayersToMount = tuple[OverlayDirs, "HomeTree | None", Mapping[str, OverlayDirs]]
    #: From the mount points of the home tree, and its initial contents, to the directories to mount.
    ToMount = Callable[[tuple[str, ...], tuple[Operation, ...]], LayersToMount]

#: The mount points of the home tree, besides the home itself.
_LAYERED = ("/tmp", "/var/tmp")
_SPARES = 2
#: The most fork servers without a session to keep for the next one.
_MOST_IDLE = 4


class HomeTree(Value):
    """The layered tree besides the workspace (home, /tmp): a fresh layer over `skeleton`, or `layers`.

    With both, a spare whose fresh layer was made in advance may be used too.
    """

    skeleton: str | None
    layers: OverlayDirs | None = None


class SandboxProcess:
    """A sandbox that was taken: the socket to its agent, and its processes' uid on the host, if not ours.

    `layer` is the name of its prewarmed home layer, in the directory of the skeleton; the caller uses or
    removes it. The sandbox ends when `agent_socket` is closed; call `close` after that.
    """

    def __init__(
        self, reply: ForkReply, owner: ForkServerClient, config: records.ForkServerConfig, place: Bind | None
    ) -> None:
        self.agent_socket, self.layer = reply.descriptors[0], reply.layer
        self.uid = config.base + config.whose if config.base >= 0 else None
        #: The number of users inside, and the first one's id on the host (one id: no mapping).
        self.ids, self.base = (config.count, config.base) if config.whose else (1, -1)
        self._owner: ForkServerClient | None = owner  # until it is closed
        #: The cgroups of the fork server's sandboxes, if it has any.
        self.cgroups = owner.cgroups
        self._config, self._place = config, place

    def make_trees(self, layers: Mapping[str, OverlayDirs], socket: int) -> None:
        """Have the fork server mount trees with other layers, by the path of each root inside.

        The detached mounts go to the agent at the other end of `socket`, the workspace first; see `in_order`.
        """
        workspace = layers.get(WORKSPACE_PATH)
        if self._owner is None or (workspace is not None and self._place is None):
            raise LaunchFailed(
                "there is nothing to be shown", why="the sandbox has stopped", fix="open another one"
            )
        view = () if workspace is None or self._place is None else (self._place,)
        others = {root: layer for root, layer in layers.items() if root != WORKSPACE_PATH}
        if self._owner.take(view, workspace, others, [socket], alone=True) is None:
            raise LaunchFailed(
                "the workspace could not be shown again",
                why="something else is mounted there since the sandbox was made",
                fix="commit what is to be kept, and open another sandbox",
            )

    def close(self) -> None:
        """Count this sandbox as ended. This may end a fork server without sandboxes."""
        owner, self._owner = self._owner, None
        if owner is not None:
            _released(owner)


# ---------------------------------------------------------------- all of them

_servers: dict[records.ForkServerConfig, ForkServerClient] = {}
_registry = threading.Lock()


def mounter() -> tuple[int, int] | None:
    """Return the owner and group that must be able to write the layers of a workspace, if not ours.

    Root's fork server runs with ids without an account.
    """
    if os.geteuid() != 0:
        return None
    base, count = _ids()
    owner = base + (records.OWNER if count > records.OWNER else 0)
    return owner, owner


def root_of(mounter: tuple[int, int] | None, uid: int) -> int | None:
    """Return the uid on the host of the sandbox's root, whose layers `mounter` mounts; None if it is ours.

    `uid` is the id inside of the sandbox's user, who may be root already.
    """
    return None if mounter is None else _ids()[0] if uid else mounter[0]


def hides_nothing(plan: Plan, bash: str) -> bool:
    """Whether the workspace is shown unchanged: nothing is mounted in it."""
    shown = _views_of(plan, bash).plain.workspace
    return not any(covers(WORKSPACE_PATH, each.path) for each in shown[1:])


def open_sandbox(
    plan: Plan,
    bash: str,
    to_mount: ToMount | None = None,
    *,
    extra_fds: Sequence[int] = (),
    cgroups: CgroupSupport | None = None,
) -> SandboxProcess:
    """Take a sandbox for `plan`. With `to_mount`, changes to its workspace go to layers, else to the host.

    `to_mount` gets the mount points of the home tree and its initial contents (see `shared_view.SharedView`).
    It returns the layers of the workspace, the home tree for other writes (None: tmpfs), and the writable
    layered directories of the system, by their paths. `extra_fds` are descriptors for its agent (see
    `SandboxRequest`), which stay the caller's. The sandbox is in `cgroups`, if there are any.

    Its shell, the program `bash` inside, is running already. The first message on the agent's socket
    announces it, or contains the reason why there is no sandbox.
    """
    views = _views_of(plan, bash)
    layers: OverlayDirs | None = None
    home: HomeTree | None = None
    trees: Mapping[str, OverlayDirs] = {}
    if to_mount is not None:
        layers, home, trees = to_mount(views.layered.places, views.layered.skeleton)
    config, view = views.config(home, cgroups), views.plain.workspace
    others = {HOME_TREE: home.layers} if home is not None and home.layers is not None else {}
    others |= trees
    for _ in range(2):
        server = _server(config)
        try:
            found = _taken(partial(server.take, view, layers, others, extra_fds), home)
        except BaseException:
            _released(server)
            raise
        if found is not None:
            server.is_shared = not plan.is_inspected
            place = view[0] if view and isinstance(view[0], Bind) else None
            return SandboxProcess(found, server, config, place)
        _forget(config, server)
    if server.ended:
        raise LaunchFailed(
            "the sandbox could not be made",
            why="the fork server exited twice",
            fix="`staddle doctor` tries what this host can do; STADDLE_DEBUG=1 shows more",
        )
    raise LaunchFailed(
        "the workspace could not be shown",
        why="what is mounted there changes while the sandbox is made",
        fix="try again when nothing is being mounted",
    )


def _taken(take: Callable[[], ForkReply | None], home: HomeTree | None) -> ForkReply | None:
    """Return a living sandbox; None if another fork server has to be asked."""
    for _ in range(_SPARES + 1):  # a spare may have been killed while it waited
        found = take()
        if found is None or not found.has_been_killed:
            return found
        _discard(found, home)
    raise LaunchFailed(
        "the sandbox could not be made",
        why="its PID 1 is killed",
        fix="see whether memory has run out (dmesg), and try again",
    )


def _discard(reply: ForkReply, home: HomeTree | None) -> None:
    """Close an unused sandbox, and delete its home layer."""
    reply.close()
    if reply.layer and home is not None and home.skeleton is not None:
        remove((os.fsencode(f"{os.path.dirname(home.skeleton)}/{reply.layer}"),))


def _server(config: records.ForkServerConfig) -> ForkServerClient:
    """Return the fork server of this configuration, started if there is none or it has ended.

    It counts one more sandbox already, so that no other thread ends it meanwhile. See `_released`.
    """
    with _registry:
        found = _servers.get(config)
        if found is None or found.ended:
            before, found = found, ForkServerClient(config)
            _servers[config] = found
            if before is not None and not before.live:
                before.close()
        found.live += 1
        return found


def _forget(config: records.ForkServerConfig, stale: ForkServerClient) -> None:
    """Do not use this fork server any more: it gave no sandbox, and ends with its last one."""
    with _registry:
        if _servers.get(config) is stale:
            del _servers[config]
    _released(stale)


def _released(owner: ForkServerClient) -> None:
    """Count one sandbox less, and end idle fork servers except for the newest."""
    with _registry:
        owner.live -= 1
        forgotten = owner not in _servers.values() and not owner.live
        idle = [key for key, found in _servers.items() if not found.live]
        shared = [key for key in idle if _servers[key].is_shared]
        ended = [_servers.pop(key) for key in idle if key not in shared[-_MOST_IDLE:]]
    for found in (*ended, *([owner] if forgotten else [])):
        found.close()


def _after_fork() -> None:
    """Close all connections in a forked child: the fork servers are its parent's."""
    while _servers:
        _servers.popitem()[1].hang_up()


os.register_at_fork(after_in_child=_after_fork)


class _SharedViews:
    """The layout of one plan, split into shared and own part: without a home tree, and with one."""

    def __init__(self, plan: Plan, operations: Sequence[Operation], bash: str) -> None:
        self.plan, self.bash = plan, bash
        base = plan.base if os.geteuid() == 0 else ""
        self.plain = shared_view.share(operations, base=base)
        self.layered = shared_view.share(operations, (*_LAYERED, plan.identity.home), base)
        self._configs: dict[tuple[bool, str | None, CgroupSupport | None], records.ForkServerConfig] = {}

    def config(self, home: HomeTree | None, cgroups: CgroupSupport | None) -> records.ForkServerConfig:
        """Return the fork server's configuration; sandboxes with the same skeleton share it."""
        skeleton = None if home is None else home.skeleton
        key = (home is not None, skeleton, cgroups)
        if key not in self._configs:
            made = _config(self.plan, self.plain if skeleton is None else self.layered, self.bash)
            if cgroups is not None:
                controllers = tuple(map(str.encode, sorted(cgroups.controllers)))
                made = made.replace(cgroup_fds=len(cgroups.places), controllers=controllers)
            if home is not None:
                places = tuple(map(os.fsencode, self.layered.places))
                made = made.replace(places=places, skeleton=os.fsencode(skeleton or ""))
            if AHEAD.is_only:
                made = made.replace(spares=0)
            self._configs[key] = made
        return self._configs[key]


def _views_of(plan: Plan, bash: str) -> _SharedViews:
    entry = plan.derived.get(LAYOUT) or entry_of(plan)
    known = entry.derived.get((_SharedViews, bash))
    if not isinstance(known, _SharedViews):
        known = entry.derived[_SharedViews, bash] = _SharedViews(plan, entry.layout.operations, bash)
    return known


def _config(plan: Plan, shared: shared_view.SharedView, bash: str) -> records.ForkServerConfig:
    from ..backends.launching import filter_profile, rlimits
    from ..backends.namespaces import host_name, outer_processes, scopes
    from ..limits import process_attributes
    from ..limits.enforced import keeps_processors, session_cgroups, stand_ins
    from ..mounts.operations import sized

    base, count = _ids() if os.geteuid() == 0 else (-1, 1)
    who = plan.identity
    standing_in, memory, processes = stand_ins(plan.limits)
    limits = (*rlimits(plan.limits), *standing_in)
    return records.ForkServerConfig(
        template=encode_operations(shared.template),
        own=encode_operations(sized(plan.limits, shared.own)),
        uid=who.uid,
        gid=who.gid,
        host=host_name(plan),
        base=base,
        count=count,
        network=int(plan.network.mode == "open"),
        reach=encoded_network(network_spec(plan.network, asks=bool(plan.asks))),
        scoped=landlock.bits(scopes(plan), "scope"),
        rlimits=tuple((resource, most, most) for _, resource, most in limits),
        filter=program(
            filter_profile(plan),
            keeps_processors=keeps_processors(plan.limits, session_cgroups(plan.limits)),
        ),
        bash=os.fsencode(bash),
        environment=tuple(os.fsencode(f"{name}={value}") for name, value in plan.environment().items()),
        directory=quoted(os.fsencode(plan.cwd)),
        spares=_SPARES,
        memory=memory,
        processes=processes,
        processors=process_attributes.cpu_count(plan.limits.cpu),
        outer_processes=int(outer_processes()),
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
