"""`staddle agent NAME --serve PID`: a broker for an agent that was started without `staddle agent`.

An installed shim starts it if none is running. It is a separate process, which ends when the agents that used
it have exited.
"""

from __future__ import annotations

import fcntl
import os
import select
import threading

from .. import places
from ..errors import InvalidCall, StaddleError
from .broker import ShellBroker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..sandbox.sandbox import Sandbox
    from .table import CodingAgent

#: These may run between an agent and its shell; the agent is their nearest other ancestor.
_SHELLS = {
    "sh",
    "bash",
    "dash",
    "zsh",
    "fish",
    "ksh",
    "env",
    "timeout",
    "nohup",
    "setsid",
    "script",
    "sudo",
    "su",
}
_LONGEST_ERROR = 4096


def serve(agent: CodingAgent, pid: int, open_sandbox: Callable[[str], Sandbox]) -> int:
    """Print the directory of the broker for the agent above process `pid`; start one if none runs."""
    caller = agent_above(pid)
    workspace = os.path.realpath(f"/proc/{caller}/cwd")
    brokers = places.make_private(places.runtime(), "brokers", agent.name)
    home = f"{brokers}/{workspace.replace('/', '%')}"
    read, write = os.pipe2(os.O_CLOEXEC)
    with open(f"{brokers}/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_alive(home):
            print(home)
            return 0
        if os.fork() == 0:
            os.close(read)
            _detached(lambda: _serve(home, workspace, caller, open_sandbox, write))
        os.close(write)
        with open(read, "rb") as answer:
            said = answer.read(_LONGEST_ERROR).decode("utf-8", "replace")
    if said != "ready":
        raise StaddleError(
            "the sandbox of this agent could not be opened",
            why=said or "its process exited",
            fix="run `staddle doctor`, and read the agent's log",
        )
    print(home)
    return 0


def _detached(work: Callable[[], None]) -> None:
    """Run `work` in a new session, without the agent's streams. Does not return."""
    status = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.chdir("/")
        work()
        status = 0
    finally:
        os._exit(status)


def _serve(
    home: str, workspace: str, caller: int, open_sandbox: Callable[[str], Sandbox], ready: int
) -> None:
    import shutil

    users = AgentProcesses()
    users.add(caller)
    try:
        shutil.rmtree(home, ignore_errors=True)  # left by a killed broker
        os.mkdir(home, 0o700)
        broker = ShellBroker(open_sandbox(workspace), home, lambda pid: users.add(agent_above(pid)))
    except BaseException as error:
        os.write(ready, str(error).encode("utf-8", "replace")[:_LONGEST_ERROR])
        shutil.rmtree(home, ignore_errors=True)
        raise
    with broker:
        os.write(ready, b"ready")
        os.close(ready)
        users.wait()


class AgentProcesses:
    """The agents that use a broker, by their pidfds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pidfds: dict[int, int] = {}
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)

    def add(self, pid: int) -> None:
        """Also wait for this process."""
        with self._lock:
            if pid not in self._pidfds:
                try:
                    self._pidfds[pid] = os.pidfd_open(pid)
                except OSError:
                    return  # already exited
                os.eventfd_write(self._bell, 1)

    def wait(self) -> None:
        """Wait until all have exited."""
        while True:
            poll = select.poll()
            with self._lock:
                known = {descriptor: pid for pid, descriptor in self._pidfds.items()}
            if not known:
                return
            poll.register(self._bell, select.POLLIN)
            for descriptor in known:
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll():
                if descriptor == self._bell:
                    os.eventfd_read(self._bell)
                    continue
                with self._lock:
                    os.close(self._pidfds.pop(known[descriptor]))


def agent_above(pid: int) -> int:
    """The nearest ancestor that is not a shell or similar."""
    found = _parent(pid)
    while found > 1:
        with open(f"/proc/{found}/comm") as file:
            name = file.read().strip()
        above = _parent(found)
        if name not in _SHELLS or above <= 1:
            break
        found = above
    return found


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b") ")[2].split()[1])
    except FileNotFoundError:
        raise InvalidCall(
            f"there is no process {pid}",
            why="it exited long ago, or was never started here",
            fix="list the processes first",
        ) from None


def _is_alive(home: str) -> bool:
    from .shim import BROKER, start_ticks

    try:
        with open(f"{home}/{BROKER}") as file:
            pid, ticks = file.read().split()
        return start_ticks(int(pid)) == ticks
    except (OSError, ValueError):
        return False
