"""What the helper is told to make around the command, and the launch that starts it."""

from __future__ import annotations

import os

from ...errors import LaunchFailed
from ...helper import starting, surroundings
from ...helper.instructions import encode as encode_instructions
from ...helper.status import sentence
from ...layout import rows
from ...linux import userns
from ..base import Launch
from ..descriptors import Descriptors
from ..last_steps import instructions, needed
from ..shortfalls import scopes_sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...layout.from_plan import Layout
    from ...layout.operations import Operation
    from ...limits.group import Group
    from ...network.told import Told
    from ...policy.plan import Plan
    from ...zygote.network import Row as NetworkRow

#: By their names in /proc. Those of the user, the processes and the mounts come with every sandbox.
NAMESPACES = {
    "net": userns.CLONE_NEWNET,
    "ipc": userns.CLONE_NEWIPC,
    "uts": userns.CLONE_NEWUTS,
    "cgroup": userns.CLONE_NEWCGROUP,
}
_ALWAYS = ("user", "pid", "mnt")


def launch(plan: Plan, layout: Layout, stranger: int | None, command: Sequence[str]) -> Launch:
    """The helper, ready to be started once."""
    give = Descriptors()
    read = -1
    group: Group | None = None
    try:
        read, write = os.pipe2(os.O_CLOEXEC)
        status = give.keep(write)
        told, ends = _line(plan, give)
        group = _group(plan)
        doors = tuple(give.keep(door) for door in group.doors()) if group else ()
        asked = orders(plan, layout, stranger, command, status=status, gateway=ends, doors=doors)
        file = give.holding(surroundings.encode(asked))
        return Launch(
            argv=starting.command("namespaces", str(file)),
            env=dict(starting.ENVIRONMENT),
            cwd="/",
            pass_fds=give.all(),
            status=read,
            failure=sentence,
            relays=True,
            close=give.close,
            uid=stranger,
            here=lambda prepare: _start_here(asked, prepare, told),
            told=told,
            group=group,
        )
    except BaseException as error:
        give.close()
        if group is not None:
            group.close()
        if read >= 0:
            os.close(read)
        if isinstance(error, OSError):
            why = error.strerror or str(error)
            raise LaunchFailed("the sandbox could not be prepared", why=why) from error
        raise


def _line(plan: Plan, give: Descriptors) -> tuple[Told | None, tuple[int, ...]]:
    """The line of a gateway that the launcher will start: what we hear on it, and both of its ends."""
    if not reaches_out(plan):
        return None, ()
    from ...network.starting import new_line
    from ...network.told import Told

    ours, theirs = new_line(plan.network)
    told = Told(ours)
    return told, (give.keep(theirs.detach()), give.keep(os.dup(ours.fileno())))


def _view(plan: Plan, layout: Layout) -> list[Operation]:
    if plan.limits.memory is None:
        return needed(layout)
    from ...limits.in_memory import sized

    return sized(plan.limits, needed(layout))


def _group(plan: Plan) -> Group | None:
    """The control groups of the sandbox, where they are to limit something. Its first process is in them."""
    limits = plan.limits
    if limits.memory is None and limits.cpu is None and limits.processes is None:
        return None
    from ...limits import here

    return here.group(limits, ours=1, together=True)


def _start_here(asked: surroundings.Surroundings, prepare: Callable[[], None], told: Told | None) -> int:
    from ...helper.inside import start_here

    if told is None:
        return start_here(asked, prepare)
    from ...helper.gateway import Gateway
    from ...helper.status import NotStarted

    try:
        gateway = Gateway(asked.gateway)
    except NotStarted as failure:
        raise LaunchFailed("the command did not start", why=str(failure)) from None
    told.started_here(gateway.pid)
    try:
        return start_here(asked, prepare, gateway)
    finally:
        os.close(gateway.ready)


def orders(
    plan: Plan,
    layout: Layout,
    stranger: int | None,
    command: Sequence[str],
    *,
    status: int,
    gateway: tuple[int, ...] = (),
    doors: tuple[int, ...] = (),
) -> surroundings.Surroundings:
    """Everything that the helper needs to know."""
    who = plan.identity
    return surroundings.Surroundings(
        status=status,
        launcher=os.getpid(),
        view=rows.encoded(_view(plan, layout)),
        namespaces=sum(NAMESPACES[name] for name in namespaces(plan)),
        uid=who.uid,
        gid=who.gid,
        host=os.fsencode(who.host),
        stranger=-1 if stranger is None else stranger,
        foreign=surroundings.foreign((*_ALWAYS, *namespaces(plan))),
        command=encode_instructions(instructions(plan, command, scopes(plan))),
        network=_network(plan) if gateway else (),
        gateway=gateway,
        doors=doors,
    )


def reaches_out(plan: Plan) -> bool:
    """Whether there is a gateway. Nothing of it is loaded for a network that is none, or the host's."""
    if plan.network.mode in ("deny", "open"):
        return False
    from ...network.arrangement import needs_gateway

    return needs_gateway(plan.network)


def _network(plan: Plan) -> tuple[NetworkRow, ...]:
    from ...network.arrangement import arrange
    from ...zygote.network import encoded

    return encoded(arrange(plan.network))


def namespaces(plan: Plan) -> tuple[str, ...]:
    """The names of those to make besides: an open network is the host's."""
    return tuple(name for name in NAMESPACES if name != "net" or plan.network.mode != "open")


def scopes(plan: Plan) -> tuple[str, ...]:
    """What Landlock keeps within the sandbox: abstract sockets, which belong to a network namespace."""
    shared = plan.network.mode == "open" and scopes_sockets()
    return ("abstract_unix_socket",) if shared else ()
