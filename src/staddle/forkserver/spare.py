"""A clone of the zygote that becomes the first process of one sandbox.

It has what is the sandbox's own made before anybody asks: its part of the view, its loopback, the
user namespace that its commands will be in, and a shell that waits. Then it waits itself, for its
workspace and for whoever takes it.
"""

from __future__ import annotations

import _socket
import os
import select

from ..inside.agent import as_root, own_view, verify
from ..inside.agent.agent import Agent
from ..inside.agent.confinement import Confinement
from ..inside.agent.mount_swap import Trees
from ..inside.agent.network import Network
from ..inside.agent.shell_files import InDirectory
from ..ipc import agent_messages
from ..ipc.descriptors import receive, send
from ..ipc.forkserver_messages import LONGEST, decode_request
from ..ipc.reasons import reason
from ..limits import processors
from ..limits.supervisor import Supervisor
from ..limits.telling import Watch
from ..linux import mounts, process, userns
from ..linux.landlock import Ruleset
from ..linux.syscalls import call
from ..mounts.operations import Empty
from ..mounts.rows import decoded
from ..mounts.shared_view import CONTROL
from .prewarm import rehearse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from ..ipc.forkserver_messages import Blueprint

_NAMESPACES = (
    mounts.CLONE_NEWNS
    | userns.CLONE_NEWPID
    | userns.CLONE_NEWIPC
    | userns.CLONE_NEWUTS
    | userns.CLONE_NEWCGROUP
)
#: What the shell is told first: it was started before the workspace was in its place.
_THERE = b"cd %b; OLDPWD=; unset OLDPWD\n"


class Draft:
    """What all sandboxes of a plan have alike, made before any of them is: they share its memory."""

    def __init__(self, blueprint: Blueprint, outside: verify.Outside) -> None:
        self.blueprint, self.outside = blueprint, outside
        places = tuple(map(os.fsdecode, blueprint.places))
        self.trees = Trees(
            blueprint.whose,
            places=places,
            operations=lambda: decoded((*blueprint.template, *blueprint.own)),
        )
        self.confinement = confinement = Confinement(
            blueprint.uid,
            blueprint.gid,
            blueprint.whose,
            blueprint.rlimits,
            blueprint.filter,
            # A root has rights where it has something to itself: in layers, not in the host's directories.
            rights=as_root.RIGHTS if blueprint.uid == 0 and blueprint.places else 0,
        )
        self.agent = Agent(
            confinement.become,
            user=blueprint.whose,
            swap=self.trees.swap,
            tidy=self.trees.tidy,
            confine=confinement.confine,
            started=confinement.started,
            become_root=confinement.become_root,
        )


def make(draft: Draft, layer: bytes, doors: tuple[int, ...]) -> tuple[int, _socket.socket]:
    """A new sandbox in the making, with a `layer` made ahead; (its process, the host's end of its line).

    `doors` lead to its control groups.
    """
    theirs, ours = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    flags = _NAMESPACES | (0 if draft.blueprint.network else userns.CLONE_NEWNET)
    pid = call("clone", flags | process.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        _live(draft, layer, doors, ours)
    ours.close()
    return pid, theirs


def _live(draft: Draft, layer: bytes, doors: tuple[int, ...], line: _socket.socket) -> NoReturn:
    """The whole life of the clone: it never returns into what the zygote was doing."""
    doing = "while it was begun"
    try:
        blueprint, trees, agent = draft.blueprint, draft.trees, draft.agent
        process.death_signal(process.SIGKILL)
        process.close_from(3, keep=(line.fileno(), *doors))
        processors.narrow(blueprint.processors)
        doing = ""
        control = own_view.made(blueprint, draft.outside, layer)
        doing = "at a last look"
        verify.at_the_first()
        doing = "while its shell was started"
        if blueprint.scoped:
            # Ours, so that it is one for all that we start: they may talk to each other.
            with Ruleset(0, scoped=blueprint.scoped) as scope:
                scope.restrict()
        trees.begin(control)
        draft.confinement.begin(doors, goes_first=bool(blueprint.memory))
        network = None if blueprint.network else Network(blueprint.reach)
        agent.begin(line, InDirectory(control, CONTROL.encode()), network)
        shell = agent.start_shell(blueprint.bash, blueprint.environment, b"/")
        agent.confirm()
        rehearse()
        doing = "while its workspace was mounted"
        along = _await_workspace(line, trees, lambda: os.write(shell[1][1], _THERE % blueprint.directory))
        doing = "while its limits were put on"
        if blueprint.memory or blueprint.processes:
            agent.watch = Watch(_supervisor(blueprint, agent), along.pop(0))
        agent.announce(*shell)
        agent.serve()
    except BaseException as error:
        try:
            send(line, agent_messages.encode(agent_messages.REFUSED, reason(error, doing)))
        except OSError:
            pass
    os._exit(1)


def _supervisor(blueprint: Blueprint, agent: Agent) -> Supervisor:
    """Who holds in the agent's loop what the kernel does not."""
    in_memory = [item.path for item in decoded(blueprint.own) if isinstance(item, Empty)]
    return Supervisor(
        blueprint.memory or None, blueprint.processes or None, (CONTROL, *in_memory), agent.waiting_shells
    )


def _await_workspace(line: _socket.socket, trees: Trees, there: Callable[[], object]) -> list[int]:
    """Wait until somebody takes us; mount what we are for. Returns what came along for the agent.

    `there` is called when all of it is in its place.
    """
    request = decode_request(_heard(line)[0])
    operations = request.operations() if request.workspace else ()
    _, given = _heard(line)
    if operations:
        trees.mount(operations, given.pop(0))
    if request.trees:
        roots = [os.fsdecode(tree[0]) for tree in request.trees]
        others, given = given[: len(roots)], given[len(roots) :]
        for fd in (*trees.swap(roots, False, lambda: dict(zip(roots, others, strict=True))), *others):
            os.close(fd)
        trees.tidy()
    there()
    return _heard(line)[1] if request.ahead else given


def _heard(line: _socket.socket) -> tuple[bytes, list[int]]:
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.poll()
    message, descriptors = receive(line, LONGEST)
    if not message:
        os._exit(0)  # nobody will, or there is nothing to mount, and they have been told why
    return message, descriptors
