"""The self-test: a harmless command in a real sandbox prints what it sees.

Its output shows a launcher that runs nothing, runs the command unconfined, or leaves out a part of the
confinement.
"""

from __future__ import annotations

import os
import select
import time

from ..launch.running import Lifeline
from ..policy.identity import Identity
from ..policy.limits import Limits
from ..policy.network import Network
from ..policy.plan import Grant, Link, Plan, Scratch, Variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..launch.contract import Launch

_SIGKILL, _SIGPIPE = 9, 13  # importing signal costs as much as half an interpreter start
_READ = ("status", "uid_map", "net/dev", "mountinfo", "environ")
_CAPABILITIES = (b"CapInh", b"CapPrm", b"CapEff", b"CapBnd", b"CapAmb")
_NONCE = "STADDLE_CANARY"
#: Seconds to wait for a self-test, then for a second one if the machine was too busy for the first.
PATIENCE = (10.0, 20.0)
_ORIGIN = "self-test"


def plan(nonce: str) -> Plan:
    """The smallest sandbox that can run a system program."""
    grants = [Grant("/usr", "read", True, _ORIGIN)]
    links = []
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(path):
            links.append(Link(path, os.readlink(path), _ORIGIN))
        elif os.path.isdir(path):
            grants.append(Grant(path, "read", True, _ORIGIN))
    return Plan(
        grants=tuple(grants),
        hidden=(),
        guards=(),
        links=tuple(links),
        texts=(),
        scratch=(Scratch("/tmp", 0o1777, 1 << 20, _ORIGIN),),
        sockets=(),
        variables=(Variable(_NONCE, nonce, _ORIGIN),),
        network=Network.deny(),
        limits=Limits.none(),
        identity=Identity(host=f"canary-{nonce}"),
        cwd="/",
    )


def command() -> tuple[str, ...]:
    """The command of the self-test: it prints facts about its environment."""
    return ("/bin/cat", "/proc/sys/kernel/hostname", *(f"/proc/self/{name}" for name in _READ))


def wrong(said: bytes, nonce: str, *, named: bool = True) -> str:
    """The protections that are missing according to the self-test's output; empty if all are there.

    `named`: the sandbox was given its own host name.
    """
    lines = said.split(b"\n")
    fields = dict(line.split(b":\t", 1) for line in lines if b":\t" in line)
    variables = lines[-1].split(b"\0")
    if b"%s=%s" % (_NONCE.encode(), nonce.encode()) not in variables:
        return "the command did not run"
    numbers = [line.split() for line in lines]
    problems = {
        "more variables than staddle's": {v.split(b"=")[0] for v in variables}
        - {_NONCE.encode(), b"PWD", b""},
        "no system call filter": fields.get(b"Seccomp") != b"2",
        "new privileges can be gained": fields.get(b"NoNewPrivs") != b"1",
        "capabilities": any(int(fields.get(name, b"1"), 16) for name in _CAPABILITIES),
        "no process namespace": _number(fields) > 9,
        "no user namespace": not any(len(n) == 3 and n[0] == b"1000" and n[2] == b"1" for n in numbers),
        "no host name of its own": named and lines[0] != b"canary-" + nonce.encode(),
        "a network": any(n[0].endswith(b":") and b"lo:" not in n[0] and len(n) == 17 for n in numbers if n),
        "the host's root directory": not any(b" / / " in line and b" - tmpfs " in line for line in lines),
    }
    return ", ".join(problem for problem, seen in problems.items() if seen)


def _number(fields: dict[bytes, bytes]) -> int:
    """The process number in the command's own pid namespace; /proc may show an outer one."""
    return int(fields.get(b"NSpid", fields.get(b"Pid", b"999999")).split()[-1])


class SelfTest:
    """A self-test that runs in the background; `outcome` waits for it."""

    def __init__(
        self, launch: Launch, nonce: str, *, named: bool = True, patience: float | None = None
    ) -> None:
        self._named, self._patience = named, PATIENCE[0] if patience is None else patience
        #: True if it was killed because it took too long; that says nothing about the host.
        self.timed_out = False
        self._status, self._failure = launch.status, launch.failure
        #: After `outcome`: the launcher's reason why the command was not started.
        self.not_started = ""
        self._nonce = nonce
        self._output, out = os.pipe2(os.O_CLOEXEC)
        self._errors, err = os.pipe2(os.O_CLOEXEC)
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        actions = [(os.POSIX_SPAWN_DUP2, source, to) for source, to in ((null, 0), (out, 1), (err, 2))]
        # dup2 onto itself: open in this child only, not in one that another thread starts now.
        actions += [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in launch.pass_fds]
        self._lifeline = None if launch.relays else Lifeline(launch.status)
        try:
            self._pid = os.posix_spawn(
                launch.argv[0],
                launch.argv,
                launch.env,
                file_actions=actions,
                setpgroup=0 if self._lifeline is None else self._lifeline.group,
                setsigmask=(),
                setsigdef=(_SIGPIPE,),
            )
        except OSError:
            for fd in (self._output, self._errors, self._status):
                if fd is not None:
                    os.close(fd)
            self._let_go()
            raise
        finally:
            launch.close()
            for fd in (out, err, null):
                os.close(fd)

    def outcome(self) -> tuple[str, str]:
        """(the sandbox's problem, the launcher's message). Both are empty if the sandbox confines."""
        said, message = self._listen()
        try:
            _, status = os.waitpid(self._pid, 0)
        except ChildProcessError:
            status = 0  # the host program reaps every child itself
        self._let_go()
        told = b""
        if self._status is not None:
            told = os.read(self._status, 4096)
            os.close(self._status)
        problem = wrong(said, self._nonce, named=self._named)
        sentence = self._failure(told)
        self.not_started = sentence or ""
        if not problem and (status or sentence is not None):
            problem = "it did not report the exit status of the command"
        return problem, message.decode(errors="replace").strip()

    def _let_go(self) -> None:
        if self._lifeline is not None:
            self._lifeline.close()

    def _listen(self) -> tuple[bytes, bytes]:
        deadline = time.monotonic() + self._patience
        heard = {self._output: b"", self._errors: b""}
        poll = select.poll()
        for fd in heard:
            poll.register(fd, select.POLLIN)
        open_ = set(heard)
        while open_:
            ready = poll.poll(max(0, int((deadline - time.monotonic()) * 1000)))
            if not ready:
                os.kill(self._pid, _SIGKILL)
                self.timed_out = True
                heard[self._errors] = b"it did not end within %d seconds" % self._patience
                break
            for fd, _ in ready:
                data = os.read(fd, 65536)
                heard[fd] = (heard[fd] + data)[: 1 << 20]
                if not data:
                    poll.unregister(fd)
                    open_.remove(fd)
        for fd in heard:
            os.close(fd)
        return heard[self._output], heard[self._errors]
