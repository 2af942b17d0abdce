"""A clone of the zygote that becomes the first process of one sandbox.

It makes what is the sandbox's own before anybody asks: its processes, terminals, loopback,
private directories and control files, the user namespace that its commands will be in, and a
shell that waits. Then it waits itself, for its workspace and for whoever takes it.
"""

from __future__ import annotations

import _socket
import os
import select

from ..layout.building import Builder, mount_processes
from ..layout.rows import decoded
from ..linux import loopback, mounts, process, userns
from ..linux.landlock import Ruleset
from ..linux.syscalls import call
from . import requests
from .agent import Agent
from .blueprint import LONGEST, decode_request
from .channel import InDirectory
from .confinement import Confinement
from .descriptors import receive, send
from .sharing import ASIDE, CONTROL
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


def make(blueprint: Blueprint) -> tuple[int, _socket.socket]:
    """A new sandbox in the making; (its process, the host's end of its line)."""
    theirs, ours = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    flags = _NAMESPACES | (0 if blueprint.network else userns.CLONE_NEWNET)
    pid = call("clone", flags | process.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        _live(blueprint, ours)
    ours.close()
    return pid, theirs


def _live(blueprint: Blueprint, line: _socket.socket) -> NoReturn:
    """The whole life of the clone: it never returns into what the zygote was doing."""
    try:
        process.death_signal(process.SIGKILL)
        process.close_from(3, keep=(line.fileno(),))
        control = _be_first(blueprint)
        place = Workspace(blueprint.whose, control)
        agent = Agent(
            line,
            InDirectory(control, CONTROL.encode()),
            _confinement(blueprint).become,
            user=blueprint.whose,
            swap=place.swap,
        )
        process.dumpable(False)  # nothing of the sandbox looks into us: that hides us in its /proc, too
        shell = agent.start_shell(blueprint.bash, blueprint.environment, b"/")
        _await_workspace(line, place)
        os.write(shell[1][1], _THERE % blueprint.directory)
        agent.announce(*shell)
        agent.serve()
    except BaseException as error:
        try:
            why = f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace")[:2048]
            send(line, requests.encode(requests.REFUSED, why))
        except OSError:
            pass
    os._exit(1)


def _be_first(blueprint: Blueprint) -> int:
    """Make everything that is the sandbox's own; the directory of its control files."""
    mounts.umount("/proc")
    mount_processes("/proc")
    Builder.extending("/", owner=blueprint.whose).build(decoded(blueprint.own))
    quiet = mounts.MS_NOSUID | mounts.MS_NOEXEC
    mounts.mount("devpts", "/dev/pts", "devpts", flags=quiet, options="newinstance,ptmxmode=0666,mode=620")
    mounts.umount(ASIDE)  # and with it the old root: from here on nothing of the host can be reached
    control = _control()
    if not blueprint.network:
        loopback.up()
    call("sethostname", blueprint.host, len(blueprint.host))
    if blueprint.scoped:
        # Ours, so that it is one for all that we start: they may talk to each other.
        with Ruleset(0, scoped=blueprint.scoped) as scope:
            scope.restrict()
    return control


def _confinement(blueprint: Blueprint) -> Confinement:
    return Confinement(blueprint.uid, blueprint.gid, blueprint.whose, blueprint.rlimits, blueprint.filter)


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


def _await_workspace(line: _socket.socket, place: Workspace) -> None:
    """Wait until somebody takes us; mount what we are for."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.poll()
    message, trees = receive(line, LONGEST)
    if not message:
        os._exit(0)  # nobody will
    request = decode_request(message)
    if trees:
        place.mount(request.operations(), trees[0])
