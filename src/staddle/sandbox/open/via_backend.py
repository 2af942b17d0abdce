"""Start the agent as a backend's confined command, and end it with all its processes.

The kernel ends a backend's command with the *thread* that started it. A sandbox lives as long as the program,
so one thread that never ends starts all of them.
"""

from __future__ import annotations

import _socket
import os
import queue
import subprocess
import threading

from ...background import start_thread
from ...errors import LaunchFailed, StaddleError
from ...inside.agent import standalone
from ...ipc.agent_client import AgentClient
from ...launch import running
from ...launch.running import Lifeline
from ...linux import process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...backends.base import Backend
    from ...ipc.opened_shell import OpenedShell
    from ...launch.contract import Launch
    from ...network.host.approval_calls import OnConnect
    from ...network.host.inspector_process import InspectorProcess
    from ...policy.plan import Plan
    from .limits import SandboxLimits
    from .network import SandboxNetwork

    Process = subprocess.Popen[bytes]

#: Seconds for an agent to end everything before its launcher is killed.
_PATIENCE = 5.0
#: Backends with a network namespace per sandbox, and a gateway if anything is reachable.
_OWN_NETWORK = ("bwrap", "systemd")


def launch_agent(
    backend: Backend,
    plan: Plan,
    bash: str,
    on_connect: OnConnect | None = None,
    after: Callable[[], None] | None = None,
    *,
    inspector: InspectorProcess | None = None,
) -> tuple[AgentClient, OpenedShell, int | None, SandboxNetwork | None, SandboxLimits | None]:
    """Start an agent in a new sandbox of `backend`, with a shell.

    Also returns the uid of its processes on the host, if not ours; its network, if the backend has one; and
    the limits that its launcher enforces. `after` is called when it has ended.
    """
    launch = backend.prepare(plan, standalone.command())
    try:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        said, saying = os.pipe2(os.O_CLOEXEC)
    except BaseException:
        launch.close()
        raise
    try:
        # A launcher that relays signals ends by itself, and so does a bare agent.
        alone = launch.relays or backend.name == "native"
        started = _thread_that_stays().start(lambda: _LaunchedAgent(launch, alone, theirs, saying))
    except BaseException:
        for fd in (ours.detach(), said):
            os.close(fd)
        raise
    finally:
        theirs.close()
        os.close(saying)
    agent: AgentClient | None = None
    limits: SandboxLimits | None = None
    try:
        if backend.name == "landlock" or (launch.limited is not None and launch.limited.tally >= 0):
            from .limits import LaunchedLimits

            scratch = os.fsdecode(launch.scratch[0]) if launch.scratch else ""
            limits = LaunchedLimits(plan.limits, launch.limited, scratch)
            limits.launched_by(started.process.pid)
        standalone.send_code(ours)
        network = _network(backend, launch, plan, on_connect, inspector)
        agent = AgentClient(ours.detach(), lambda: _end(started, network, limits, after), kill=started.kill)
        # With the agent's own environment: only the backend knows the paths of home and /tmp.
        return agent, agent.shell({}, "", bash), launch.uid, network, limits
    except BaseException as error:
        if limits is not None and agent is None:
            limits.close()
        if agent is not None:
            agent.close()
        else:
            ours.close()
            started.end()
        if isinstance(error, StaddleError | OSError):
            raise _diagnosis(launch, started, said) from error
        raise
    finally:
        os.close(said)
        if launch.status is not None:
            os.close(launch.status)


def _network(
    backend: Backend,
    launch: Launch,
    plan: Plan,
    on_connect: OnConnect | None,
    inspector: InspectorProcess | None,
) -> SandboxNetwork | None:
    if backend.name not in _OWN_NETWORK or plan.network.mode == "open":
        return None
    from .network import SandboxNetwork

    log = launch.gateway_log
    if log is None:
        return SandboxNetwork(plan, on_connect)
    socket, copies = log.take_socket(), log.take_copies()
    return SandboxNetwork(plan, on_connect, gateway_socket=socket, copies=copies, inspector=inspector)


def _end(
    started: _LaunchedAgent,
    network: SandboxNetwork | None,
    limits: SandboxLimits | None,
    after: Callable[[], None] | None,
) -> None:
    started.end()
    if limits is not None:
        limits.close()
    if network is not None:
        network.close()
    if after is not None:
        after()


class _LaunchedAgent:
    """Launcher of an agent, from its start to its end."""

    def __init__(self, launch: Launch, alone: bool, agent_socket: _socket.socket, errors: int) -> None:
        self._lifeline = None if alone else Lifeline(launch.status)
        try:
            self.process: Process = running.start(
                launch,
                group=0 if self._lifeline is None else self._lifeline.group,  # without Ctrl-C
                stdin=agent_socket,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        except BaseException:
            if self._lifeline is not None:
                self._lifeline.close()
            raise

    def end(self) -> None:
        """Wait until everything inside has ended after the socket was closed; kill it if it does not."""
        try:
            self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._lifeline is not None:
            self._lifeline.close()

    def kill(self) -> None:
        """End the launcher, and everything inside with it, without the agent's help.

        On native, only the agent would end the processes that it started.
        """
        started = [process_tree.ProcessIdentity(pid) for pid in process_tree.descendants(self.process.pid)]
        running.end(self.process)
        for process in started:
            process.kill()


def _diagnosis(launch: Launch, started: _LaunchedAgent, said: int) -> LaunchFailed:
    """Return why there is no agent: the launcher's status, and its last output."""
    words = b""
    os.set_blocking(said, False)
    try:
        words = os.read(said, 4096)
    except BlockingIOError:
        pass
    failure = running.never_started(launch) if started.process.returncode else None
    last = words.decode("utf-8", "replace").strip()
    why = "; ".join(part for part in (failure, last) if part) or "its PID 1 exited at once"
    return LaunchFailed("the sandbox could not be started", why=why, fix="see `staddle doctor`")


# ---------------------------------------------------------------- one thread for all launches


class _Thread:
    """Thread that starts launchers, and their queue."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        start_thread(self._stay, "staddle-launches")

    @property
    def ours(self) -> bool:
        """Whether it belongs to this process, not to the parent of a fork."""
        return self._process == os.getpid()

    def start(self, make: Callable[[], _LaunchedAgent]) -> _LaunchedAgent:
        """Start a launcher in the thread, and wait for it."""
        answer: queue.SimpleQueue[_LaunchedAgent | BaseException] = queue.SimpleQueue()

        def job() -> None:
            try:
                answer.put(make())
            except BaseException as error:
                answer.put(error)

        self._asked.put(job)
        made = answer.get()
        if isinstance(made, BaseException):
            raise made
        return made

    def _stay(self) -> None:
        while True:
            self._asked.get()()


_threads: list[_Thread] = []
_making = threading.Lock()


def _thread_that_stays() -> _Thread:
    with _making:
        if not _threads or not _threads[0].ours:
            _threads[:] = [_Thread()]
        return _threads[0]
