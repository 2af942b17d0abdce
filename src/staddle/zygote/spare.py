"""A clone of the zygote that becomes the first process of one sandbox.

It makes what is the sandbox's own before anybody asks: its processes, terminals, loopback,
private directories and control files, the user namespace that its commands will be in, and a
shell that waits. Then it waits itself, for its workspace and for whoever takes it.
"""

from __future__ import annotations

import _socket
import os
import select

from ..errors import StaddleError
from ..helper.status import not_started
from ..helper.wire import Malformed
from ..layout.building import Builder, mount_processes
from ..layout.operations import Empty
from ..layout.rows import decoded
from ..limits.supervisor import Supervisor
from ..linux import mounts, process, userns
from ..linux.landlock import Ruleset
from ..linux.syscalls import call
from . import last_look, requests
from .agent import Agent
from .blueprint import LONGEST, decode_request
from .channel import InDirectory
from .confinement import Confinement
from .descriptors import receive, send
from .network import Network
from .sharing import ASIDE, CONTROL
from .watching import Watch
from .workspace import Workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from .blueprint import Blueprint

_NAMESPACES = (
    mounts.CLONE_NEWNS
    | userns.CLONE_NEWPID
    | userns.CLONE_NEWIPC
    | userns.CLONE_NEWUTS
    | userns.CLONE_NEWCGROUP
)
_CONTROL_SIZE = 64 << 20
#: What the shell is told first: it was started before the workspace was in its place.
_THERE = b"cd %b; OLDPWD=; unset OLDPWD\n"


def make(blueprint: Blueprint, outside: last_look.Outside) -> tuple[int, _socket.socket]:
    """A new sandbox in the making; (its process, the host's end of its line)."""
    theirs, ours = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    flags = _NAMESPACES | (0 if blueprint.network else userns.CLONE_NEWNET)
    pid = call("clone", flags | process.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        _live(blueprint, outside, ours)
    ours.close()
    return pid, theirs


def _live(blueprint: Blueprint, outside: last_look.Outside, line: _socket.socket) -> NoReturn:
    """The whole life of the clone: it never returns into what the zygote was doing."""
    doing = "while it was begun"
    try:
        process.death_signal(process.SIGKILL)
        process.close_from(3, keep=(line.fileno(),))
        doing = "while its own part of the view was made"
        control = _be_first(blueprint)
        doing = "at a last look"
        last_look.around(blueprint, outside)
        doing = "while its shell was started"
        place = Workspace(blueprint.whose, control)
        confinement = _confinement(blueprint)
        agent = Agent(
            line,
            InDirectory(control, CONTROL.encode()),
            confinement.become,
            user=blueprint.whose,
            swap=place.swap,
            network=None if blueprint.network else Network(blueprint.reach),
            confine=confinement.confine,
        )
        process.dumpable(False)  # nothing of the sandbox looks into us: that hides us in its /proc, too
        shell = None if blueprint.later else agent.start_shell(blueprint.bash, blueprint.environment, b"/")
        doing = "while its workspace was mounted"
        along = _await_workspace(line, place)
        doing = "while its limits were put on"
        if blueprint.memory or blueprint.processes:
            agent.watch = Watch(_supervisor(blueprint, agent), along.pop(0))
        confinement.doors = tuple(along)
        doing = "while its shell was started"
        if shell is None:
            shell = agent.start_shell(blueprint.bash, blueprint.environment, b"/")
        agent.confirm()
        os.write(shell[1][1], _THERE % blueprint.directory)
        agent.announce(*shell)
        agent.serve()
    except BaseException as error:
        try:
            send(line, requests.encode(requests.REFUSED, reason(error, doing)))
        except OSError:
            pass
    os._exit(1)


def reason(error: BaseException, doing: str = "") -> bytes:
    """What went wrong, for who asked."""
    text = str(error) if isinstance(error, StaddleError | Malformed) else str(not_started(error))
    return f"{doing}: {text}".removeprefix(": ").encode("utf-8", "backslashreplace")[:2048]


def _be_first(blueprint: Blueprint) -> int:
    """Make everything that is the sandbox's own; the directory of its control files."""
    mounts.umount("/proc")
    mount_processes("/proc")
    Builder.extending("/", owner=blueprint.whose).build(decoded(blueprint.own))
    quiet = mounts.MS_NOSUID | mounts.MS_NOEXEC
    mounts.mount("devpts", "/dev/pts", "devpts", flags=quiet, options="newinstance,ptmxmode=0666,mode=620")
    mounts.umount(ASIDE)  # and with it the old root: from here on nothing of the host can be reached
    control = _control()
    call("sethostname", blueprint.host, len(blueprint.host))
    if blueprint.scoped:
        # Ours, so that it is one for all that we start: they may talk to each other.
        with Ruleset(0, scoped=blueprint.scoped) as scope:
            scope.restrict()
    return control


def _confinement(blueprint: Blueprint) -> Confinement:
    return Confinement(blueprint.uid, blueprint.gid, blueprint.whose, blueprint.rlimits, blueprint.filter)


def _supervisor(blueprint: Blueprint, agent: Agent) -> Supervisor:
    """Who holds in the agent's loop what the kernel does not."""
    in_memory = [item.path for item in decoded(blueprint.own) if isinstance(item, Empty)]
    return Supervisor(
        blueprint.memory or None, blueprint.processes or None, (CONTROL, *in_memory), agent.waiting_shells
    )


def _control() -> int:
    """The control files: ours to write, and only to be read, or written as pipes, by anybody inside."""
    options = f"mode=0755,size={_CONTROL_SIZE}"
    plain = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
    mounts.mount("tmpfs", CONTROL, "tmpfs", flags=plain, options=options)
    control = os.open(CONTROL, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    cover = mounts.clone_tree(control)
    try:
        mounts.set_attributes(cover, mounts.ATTR_RDONLY)
        mounts.attach(cover, control)
    finally:
        os.close(cover)
    return control


def _await_workspace(line: _socket.socket, place: Workspace) -> list[int]:
    """Wait until somebody takes us; mount what we are for. Returns what came along for the agent."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.poll()
    message, trees = receive(line, LONGEST)
    if not message:
        os._exit(0)  # nobody will
    request = decode_request(message)
    own = len(trees) - request.along
    if own > 0:
        place.mount(request.operations(), trees[0])
    return trees[own:]
