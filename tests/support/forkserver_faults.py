"""Open a session while one system call fails, somewhere between the host program and the shell. And again.

    python -m tests.support.forkserver_faults '{"place": "/var/tmp/x"}'        prints what happened as JSON

One host program opens them all; its calls, and those of all that it starts, are asked about.
First for calls while a fork server starts, with a new one each time; then for calls while it
serves, with one that goes on. After each the next sandbox must work.
"""

from __future__ import annotations

import gc
import json
import os
import re
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from seccompy.notify import Listener

from staddle import Policy
from staddle.background import wait_for_jobs
from staddle.errors import StaddleError
from staddle.forkserver import client
from staddle.layers import trash
from staddle.limits import host_cgroups
from staddle.linux import process
from staddle.policy.network import Network
from staddle.sandbox.open import open as opening
from staddle.sandbox.open import settings
from staddle.sandbox.open.handle import SandboxHandle
from staddle.sandbox.open.next_sandbox import NEXT
from staddle.sandbox.workspace import stores
from tests.support.faults import WATCHED as USUAL
from tests.support.faults import Call, Watch, mounts, places, watched
from tests.support.forkservers import children, close
from tests.support.waiting import until

WATCHED = (
    *(*USUAL, "openat2", "fsopen", "fsconfig", "fsmount", "mknodat", "fchmodat", "socketpair", "pipe2"),
    *("signalfd4", "memfd_create"),
)
#: Of the host program: what it does for root's fork server, and what it needs to talk to one.
OF_THE_HOST = (
    *("open_tree", "mount_setattr", "write uid_map", "write gid_map", "socketpair"),
    "memfd_create",
)
FEW = ("setns", "seccomp", "execve")
HOST, SERVER = 0, 1
LONGEST = 1 << 20


# ---------------------------------------------------------------- the host program


class HostProgram:
    """Opens sandboxes as it is told, one at a time. Run in a child of its own, with the filter on."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._others = 0
        self._made, self._root = Path(asked["place"], "made"), "of_a_root" in asked.get("parts", ())
        client._SPARES = 0  # nothing is made ahead: whatever happens, happens for whom we open one
        NEXT.end()
        network = getattr(Network, asked.get("network", "deny"))()
        self._settings = settings.settings(
            asked["place"],
            Policy.agent().with_network(network).with_limits(**asked.get("limits", {})),
            backend="namespaces",
            mode=asked.get("mode", "overlay"),
        )
        # Once for all: what is there to be hidden on this host may change at any time.
        decided = opening.decide(self._settings)
        opening.decide = lambda *_: decided

    def serve(self, line: socket.socket) -> None:
        while order := line.recv(LONGEST).decode():
            line.send(json.dumps(getattr(self, order)()).encode())

    def open(self) -> dict[str, Any]:
        """A sandbox, and a command in it."""
        said: dict[str, Any] = {"out": "", "why": "", "error": ""}
        try:
            sandbox = opening.open_agent(self._settings)
            try:
                said |= _command(sandbox, root=self._root)
            finally:
                close(sandbox)
        except StaddleError as error:
            said |= {"why": error.why, "error": type(error).__name__}
        except BaseException as error:
            said |= {"why": str(error), "error": f"not one of ours: {type(error).__name__}"}
        trash.wait()  # or else that is still going on while the next one is opened
        said["made"] = self._made.exists()
        self._made.unlink(missing_ok=True)
        return said

    def there(self) -> dict[str, Any]:
        """What is there of us, once nothing changes any more."""
        wait_for_jobs()
        gc.collect()  # an error of a failed start may refer to itself
        wanted = 2 * len(client._servers) + self._others  # each with who makes its sandboxes
        if not until(lambda: len(children()) <= wanted, 5):
            self._others += len(children()) - wanted  # that is a difference, but not one for each time
        found = {
            "processes": self._others,
            "descriptors": sorted(map(_kind, _open("self"))),
            "mounts": len(mounts()),
            "layers": _layers(),
        }
        for server in client._servers.values():
            pid = server._process.pid
            found["of the fork server"] = [
                len(_open(str(pid))),
                len(Path(f"/proc/{pid}/mountinfo").read_bytes().splitlines()),
            ]
        return found

    def server(self) -> int:
        """The fork server that serves us, 0 for none."""
        return next((server._process.pid for server in client._servers.values()), 0)

    def end_servers(self) -> None:
        while client._servers:
            client._servers.popitem()[1].close()


def _command(sandbox: SandboxHandle, *, root: bool) -> dict[str, Any]:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        started = sandbox.agent.spawn(
            ("/bin/sh", "-c", "echo it ran; touch made"),
            sandbox.decided.environment,
            sandbox.directory,
            stdio=(reading, writing, writing),
            who=(0, 0, ()) if root else None,
        )
        code = started.wait(60)
        started.close()
        os.set_blocking(reading, False)
        out = os.read(reading, 4096).decode() if code == 0 else ""
        return {"out": out, "why": started.failure, "error": f"ended with {code}" if code else ""}
    finally:
        os.close(reading)
        os.close(writing)


def _kind(fd: str) -> str:
    """What the descriptor is of; any cgroup that is made in advance is as good as another."""
    return re.sub(r"/\d+/(?=[a-z.]+$)", "/", os.readlink(f"/proc/self/fd/{fd}").split(":")[0])


def _open(pid: str) -> list[str]:
    """The descriptors of a process, but for the one that we look with."""
    return [fd for fd in os.listdir(f"/proc/{pid}/fd") if os.path.lexists(f"/proc/{pid}/fd/{fd}")]


def _layers() -> int:
    return sum(len(names) for store in stores._stores for _, names, _ in os.walk(store.path))


# ---------------------------------------------------------------- who makes its calls fail


class Sweep:
    """The host program, and our answers to what it and all of its children ask."""

    def __init__(self, asked: dict[str, Any]) -> None:
        process.subreaper()
        self._once = asked.get("once", False)
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.host = os.fork()
        if self.host == 0:
            self._line.close()
            _be_host(asked, theirs)
        theirs.close()
        _, (descriptor,), _, _ = socket.recv_fds(self._line, 1, 1)
        self._watch = Watch(Listener(descriptor), WATCHED)

    def tell(self, order: str, fail: Call | None = None) -> Any:
        """Have the host program do something, with one call failing."""
        self._watch.begin(fail, [self.host, *([self._server] if order == "open" and self._server else [])])
        self._line.send(order.encode())
        self._watch.answer(lambda: bool(select.select([self._line], [], [], 0)[0]), self._line.fileno())
        said = self._line.recv(LONGEST)
        assert said, "the host program has ended"
        return json.loads(said)

    _server = 0

    def attempt(self, fail: Call | None) -> dict[str, Any]:
        """One sandbox, and what there was to see of it."""
        said = self.tell("open", fail)
        assert isinstance(said, dict)
        return {**said, "failed": self._watch.failed, "calls": self._watch.calls}

    def starting(self) -> list[dict[str, Any]]:
        """Calls of the host program and of a fork server until that is ready."""
        self.attempt(None)  # the first time an interpreter may write what it compiled
        self.tell("end_servers")
        whole = self.attempt(None)
        assert whole["out"] == "it ran\n", whole
        self.tell("end_servers")
        before = self.tell("there")
        made = whole["calls"][SERVER]
        begin = made.index("execve")
        chosen = places(made, begin, made.index("fork", begin) + 1)
        faults = [(SERVER, at) for at in chosen if made[at] != "openat2"]  # for a lock that need not be there
        faults += [(SERVER, at) for at in places(made, 0, begin) if made[at] != "close_range"]
        faults += _of_the_host(whole["calls"][HOST])
        runs = []
        for fail in faults:
            run = self.attempt(fail)
            run["next"] = self.attempt(None)["out"]
            self.tell("end_servers")
            runs.append({"who": fail[0], **run, "left": _difference(before, self.tell("there"))})
        return runs

    def serving(self) -> list[dict[str, Any]]:
        """Calls of a fork server that is asked, and of the sandbox that it makes."""
        self.attempt(None)
        self._server = self.tell("server")
        whole = self.attempt(None)
        assert whole["out"] == "it ran\n", whole
        before = self.tell("there")
        shell, command = (who for who, made in enumerate(whole["calls"]) if "seccomp" in made)
        faults = _of_the_host(whole["calls"][HOST])
        for who in range(SERVER, shell):
            made = whole["calls"][who]
            chosen = places(made, 0, len(made), once=self._once)
            if who == SERVER and "openat2" in made:  # first for a lock that need not be there
                chosen.remove(made.index("openat2"))
            if who == SERVER:  # when it has answered; and again before the next
                chosen = [at for at in chosen if made[at] != "umount2"]
            faults += [(who, at) for at in chosen]
        for who in (shell, command):  # the same steps: for the command a few will do
            made = whole["calls"][who]
            steps = {made.index(place): place for place in made[: made.index("execve") + 1][::-1]}
            names = FEW if who == command else tuple(steps.values())
            faults += [(who, at) for at, place in steps.items() if place in names]
        runs = []
        for fail in faults:
            run = self.attempt(fail)
            run["next"] = self.attempt(None)["out"]
            runs.append({"who": fail[0], **run, "left": _difference(before, self.tell("there"))})
        assert self.tell("server") == self._server, "the fork server was replaced"
        return runs

    def of_a_root(self) -> list[dict[str, Any]]:
        """Calls of a command that becomes the sandbox's root."""
        self.attempt(None)
        self._server = self.tell("server")
        whole = self.attempt(None)
        assert whole["out"] == "it ran\n", whole
        before = self.tell("there")
        command = max(who for who, made in enumerate(whole["calls"]) if "seccomp" in made)
        made = whole["calls"][command]
        runs = []
        for at in places(made, 0, made.index("execve") + 1):
            if made[at] == "setsid" and at != made.index("setsid"):
                continue  # it is the leader of a session already
            run = self.attempt((command, at))
            run["next"] = self.attempt(None)["out"]
            runs.append({"who": command, **run, "left": _difference(before, self.tell("there"))})
        return runs

    def end(self) -> None:
        """End the host program."""
        self._line.close()
        ending = os.pidfd_open(self.host)
        try:
            self._watch.answer(lambda: os.waitpid(self.host, os.WNOHANG)[0] != 0, ending)
        except TimeoutError:
            os.kill(self.host, signal.SIGKILL)
            raise
        finally:
            os.close(ending)


def _of_the_host(made: list[str]) -> list[Call]:
    """The first of each: a later one may be about a tree that is shown as it is if that fails."""
    return [(HOST, made.index(place)) for place in sorted(set(made)) if place.startswith(OF_THE_HOST)]


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {name: [before[name], after.get(name)] for name in before if before[name] != after.get(name)}


def _be_host(asked: dict[str, Any], line: socket.socket) -> None:
    code = 1
    try:
        watched(WATCHED, line)
        HostProgram(asked).serve(line)
        host_cgroups.close()  # the shell that does it later cannot, once nobody answers its calls
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        os._exit(code)


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """Sweep over one kind of sandbox."""
    sweep = Sweep(asked)
    runs = []
    try:
        for part in asked.get("parts", ("starting", "serving")):
            runs += getattr(sweep, part)()
    finally:
        sweep.end()
    for run in runs:
        del run["calls"]
    return {"runs": runs}


if __name__ == "__main__":
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
