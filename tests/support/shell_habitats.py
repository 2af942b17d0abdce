"""Where a shell can be tried: a fresh one for each test, in each habitat that has an agent."""

from __future__ import annotations

import _socket
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import NamedTuple

from staddle import Sandbox
from staddle.inside.agent import standalone
from staddle.ipc.agent_client import AgentClient
from staddle.shell.command import CommandSpec, Outcome
from staddle.shell.shell import Shell

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb"}


class Done(NamedTuple):
    """What came of a run."""

    out: bytes
    err: bytes
    outcome: Outcome


class TriedShell:
    """A shell and the directory that it starts in."""

    def __init__(self, backend: str, agent: AgentClient, shell: Shell, directory: str) -> None:
        self.backend, self.agent, self.shell, self.directory = backend, agent, shell, directory

    def run(self, text: str | bytes, **kwargs: object) -> Done:
        """Run it, with what it prints."""
        out, err = bytearray(), bytearray()
        data = text.encode() if isinstance(text, str) else text
        kwargs.setdefault("timeout", 6)
        spec = CommandSpec(data, out=out.extend, err=err.extend, **kwargs)  # type: ignore[arg-type]
        outcome = self.shell.run(spec)
        return Done(bytes(out), bytes(err), outcome)


@contextmanager
def native() -> Iterator[TriedShell]:
    """No confinement: the agent as a child of the test."""
    with tempfile.TemporaryDirectory() as directory:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        process = subprocess.Popen(
            standalone.command(),
            stdin=theirs.fileno(),
            env=ENVIRONMENT,
            cwd=directory,
            start_new_session=True,
        )
        theirs.close()
        standalone.send_code(ours)
        agent = AgentClient(ours.detach(), lambda: process.wait(60) and None)
        shell = Shell(agent, agent.shell({}, ""))
        try:
            yield TriedShell("native", agent, shell, os.path.realpath(directory))
        finally:
            shell.close()
            agent.close()
        assert process.returncode is not None


@contextmanager
def of(backend: str) -> Iterator[TriedShell]:
    """A sandbox of this backend, without a workspace of the host."""
    with Sandbox(backend=backend, best_effort=True) as sandbox:
        shell = sandbox._now().main._shell
        tried = TriedShell(backend, sandbox._inside.agent, shell, "")
        tried.directory = tried.run("pwd").out.decode().strip()
        yield tried


#: By name; each makes a fresh shell in an empty directory.
HABITATS: dict[str, Callable[[], AbstractContextManager[TriedShell]]] = {
    "native": native,
    **{name: partial(of, name) for name in ("namespaces", "bwrap", "landlock")},
}
#: Where everything is tried; in the others a part of it, since a sandbox there takes a while to open.
FULLY = ("native", "namespaces")
