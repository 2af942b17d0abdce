"""A clone of the fork server that becomes the first process of one sandbox.

Before it is requested, it makes the sandbox's own part of the view, its loopback, the user namespace of its
commands, and a shell that waits. Then it waits for its workspace.
"""

from __future__ import annotations

import _socket
import os
import select

from ..inside.agent import verify
from ..inside.agent.agent import SandboxAgent
from ..inside.agent.confinement import ROOT_RIGHTS, ProcessConfinement
from ..inside.agent.mount_swap import TreeMounts
from ..inside.agent.own_namespaces import AgentNetwork
from ..inside.agent.own_view import OwnView
from ..inside.agent.shell_files import SHELL_OPTIONS, InDirectory
from ..inside.child import live
from ..ipc import agent_messages
from ..ipc.forkserver_messages import LONGEST, decode_request
from ..ipc.wire import reason, receive, send
from ..limits import process_attributes
from ..limits.supervisor import LimitTally, Supervisor
from ..linux import mounts, process, procfs, userns
from ..linux.landlock import Ruleset
from ..linux.syscalls import call
from ..mounts.operations import Empty, decode_operations
from ..mounts.shared_view import CONTROL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from ..ipc.forkserver_messages import ForkServerConfig

_NAMESPACES = (
    mounts.CLONE_NEWNS
    | userns.CLONE_NEWPID
    | userns.CLONE_NEWIPC
    | userns.CLONE_NEWUTS
    | userns.CLONE_NEWCGROUP
)
#: The first line for the shell, which was started before the workspace was mounted.
_THERE = b"cd %b; OLDPWD=; unset OLDPWD\n"


class SandboxTemplate:
    """The parts that all sandboxes of a configuration share, made before the first clone."""

    def __init__(self, config: ForkServerConfig, outside: verify.Outside) -> None:
        self.config, self.view = config, OwnView(config, outside)
        places = tuple(map(os.fsdecode, config.places))
        self.trees = TreeMounts(
            config.whose,
            places=places,
            operations=lambda: decode_operations((*config.template, *config.own)),
        )
        self.confinement = confinement = ProcessConfinement(
            config.uid,
            config.gid,
            config.whose,
            config.rlimits,
            config.filter,
            # A root has rights only in layers of its own, not in the host's directories.
            rights=ROOT_RIGHTS if config.uid == 0 and config.places else 0,
        )
        argv = config.bash, *SHELL_OPTIONS
        outer = bool(config.outer_processes)
        confinement.prepare(argv, config.environment, config.cgroup_fds, outer=outer)
        self.agent = SandboxAgent(
            confinement.become,
            user=config.whose,
            swap=self.trees.swap,
            tidy=self.trees.tidy,
            confine=confinement.confine,
            another=confinement.another,
            ids=(config.uid, config.gid),
            confine_ahead=confinement.confine_ahead,
            watched=confinement.watch,
        )
        self.trees.on_fork = self.agent.leave_out_one


def make(template: SandboxTemplate, layer: bytes, cgroup_fds: tuple[int, ...]) -> tuple[int, _socket.socket]:
    """Clone a new sandbox with the home layer `layer`; return (its process, the host's end of its socket).

    `cgroup_fds` are the descriptors with which its processes enter its cgroups.
    """
    theirs, ours = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    flags = _NAMESPACES | (0 if template.config.network else userns.CLONE_NEWNET)
    pid = call("clone", flags | process.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        _live(template, layer, cgroup_fds, ours)
    ours.close()
    return pid, theirs


def _live(
    template: SandboxTemplate, layer: bytes, cgroup_fds: tuple[int, ...], socket: _socket.socket
) -> NoReturn:
    """Be the clone: make the sandbox's own part, wait for a workspace, then be its agent."""
    doing = "while it was started"

    def work() -> NoReturn:
        nonlocal doing
        config, trees, agent = template.config, template.trees, template.agent
        process.death_signal(process.SIGKILL)
        process.close_from(3, keep=(socket.fileno(), *cgroup_fds))
        process_attributes.narrow_cpus(config.processors)
        doing = "while its own part of the view was made"
        if config.outer_processes:
            procfs.use_outer(os.open(procfs.PROC, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        control = template.view.make(layer)
        doing = "while its shell was started"
        if config.scoped:
            # Our domain contains all our children, so that they may talk to each other.
            with Ruleset(0, scoped=config.scoped) as scope:
                scope.restrict()
        trees.begin(control)
        template.confinement.begin(cgroup_fds, goes_first=True)
        network = None if config.network else AgentNetwork(config.reach)
        agent.begin(socket, InDirectory(control, CONTROL.encode()), network)
        shell = agent.start_shell(
            config.bash, config.environment, b"/", start=template.confinement.start_shell
        )
        doing = "while its workspace was mounted"
        extra_fds = _await_workspace(socket, trees, lambda: _wake(shell[1][1], _THERE % config.directory))
        doing = "while its limits were put on"
        if config.memory or config.processes:
            agent.watch = LimitTally(_supervisor(config, agent), extra_fds.pop(0))
        agent.announce(*shell)
        agent.serve()

    def failed(error: BaseException) -> int:
        send(socket, agent_messages.encode(agent_messages.REFUSED, reason(error, doing)))
        return 1

    live(work, failed)


def _supervisor(config: ForkServerConfig, agent: SandboxAgent) -> Supervisor:
    """Return the supervisor that enforces limits without cgroups in the agent's loop."""
    in_memory = [item.path for item in decode_operations(config.own) if isinstance(item, Empty)]
    return Supervisor(
        config.memory or None,
        config.processes or None,
        (CONTROL, *in_memory),
        agent.waiting_shells,
        counts_sockets=not config.network,
    )


def _await_workspace(socket: _socket.socket, trees: TreeMounts, there: Callable[[], object]) -> list[int]:
    """Wait for a request and mount its workspace; return the extra descriptors for the agent.

    `there` is called when everything is mounted.
    """
    request = decode_request(_received(socket)[0])
    operations = request.operations() if request.workspace else ()
    _, given = _received(socket)
    if operations:
        trees.mount(operations, given.pop(0))
    if request.trees:
        roots = [os.fsdecode(tree[0]) for tree in request.trees]
        others, given = given[: len(roots)], given[len(roots) :]
        for fd in (*trees.swap(roots, False, lambda: dict(zip(roots, others, strict=True))), *others):
            os.close(fd)
        trees.tidy()
    there()
    return given


def _wake(control: int, text: bytes) -> None:
    """Tell the shell that its workspace is mounted."""
    try:
        os.write(control, text)
    except BrokenPipeError:
        os._exit(1)  # it was killed while it waited: without a message from us, another spare is taken


def _received(socket: _socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message of the fork server, with its descriptors."""
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    poll.poll()
    message, descriptors = receive(socket, LONGEST)
    if not message:
        os._exit(0)  # discarded, or the mount failed and the host program knows why
    return message, descriptors


# The process from which sandboxes are cloned, and which does nothing else.
#
# It shares memory with its clones page by page, until one of them writes. An interpreter writes to every
# object that it uses. So anything that this process did between two clones would be copied in each of them.
# The fork server, which receives requests and mounts trees, is another process: it never clones, and never
# copies its pages.


#: To the cloner: clone, with this layer. From it: cloned, with the agent's socket; or failed, with an errno.
_CLONE, _CLONED, _FAILED = b"m", b"d", b"x"
_LONGEST = 4096
#: Milliseconds between two checks for ended clones while there is no request.
_OFTEN = 1000


class Cloner:
    """The fork server's handle of the cloner."""

    def __init__(self, config: ForkServerConfig, outside: verify.Outside) -> None:
        """Start it. Everything that sandboxes share exists already, and everything is imported."""
        self._socket, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self._process = os.fork()
        if self._process == 0:
            CloneServer(theirs, config, outside).serve()
        theirs.close()

    def fileno(self) -> int:
        """Readable when `made` need not wait."""
        return self._socket.fileno()

    def ask(self, layer: bytes, cgroup_fds: Sequence[int] = ()) -> None:
        """Request a new sandbox, see `spare.make`; then call `made`."""
        send(self._socket, _CLONE + layer, cgroup_fds)

    def made(self) -> _socket.socket:
        """Return the host's end of the new agent's socket. ConnectionError: the cloner has ended."""
        answer, descriptors = receive(self._socket, _LONGEST)
        if not answer:
            raise ConnectionResetError
        if answer[:1] != _CLONED or len(descriptors) != 1:
            error = int(answer[1:] or b"0")
            raise OSError(error, f"a sandbox could not be started: {os.strerror(error)}")
        return _socket.socket(fileno=descriptors[0])

    def end(self) -> None:
        """End it, and every sandbox; returns when none is left."""
        self._socket.close()
        os.waitpid(self._process, 0)


class CloneServer:
    """The cloner's own loop."""

    def __init__(self, socket: _socket.socket, config: ForkServerConfig, outside: verify.Outside) -> None:
        self._socket, self._template = socket, SandboxTemplate(config, outside)
        self._children: set[int] = set()

    def serve(self) -> NoReturn:
        """Clone once for each request of the fork server, until that has ended."""
        try:
            process.death_signal(process.SIGKILL)
            process.close_from(3, keep=(self._socket.fileno(),))
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            while True:
                asked = poll.poll(_OFTEN)
                self._reap()
                if asked:
                    message, cgroup_fds = receive(self._socket, _LONGEST)
                    if not message:
                        break
                    self._make(message[1:], cgroup_fds)
        finally:  # even if the last clone could not be handed over any more
            try:
                self._end()
            finally:
                os._exit(0)

    def _make(self, layer: bytes, cgroup_fds: list[int]) -> None:
        try:
            pid, socket = make(self._template, layer, tuple(cgroup_fds))
        except OSError as error:
            send(self._socket, _FAILED + b"%d" % (error.errno or 0))
            return
        finally:
            for cgroup_fd in cgroup_fds:
                os.close(cgroup_fd)
        self._children.add(pid)
        send(self._socket, _CLONED, (socket.fileno(),))
        socket.close()

    def _reap(self) -> None:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                self._children.discard(ended)
        except ChildProcessError:
            pass

    def _end(self) -> None:
        for pid in self._children:
            os.kill(pid, process.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)
