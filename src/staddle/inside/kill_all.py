"""Signals to everything the command started, however far it has wandered.

A command may fork, change its session and let its parents die; it never leaves the
Landlock domain it was started in. The supervisor is in that domain too, one layer above, with
signals scoped: kill(-1) then reaches every process of the sandbox and no other, at once,
so that not even a chain of forks slips through. The supervisor is out of reach for them.
Without that scope (ABI below 6) the tree of processes is walked, which a fast enough chain
of forks can outrun.
"""

from __future__ import annotations

import os
import time

from ..ipc.status import CONFINEMENT, NotStarted
from ..linux import process
from ..linux.landlock import RIGHTS, Ruleset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ipc.exec_spec import ExecSpec

_SIGNAL, _REFER = RIGHTS["scope"]["signal"][0], RIGHTS["fs"]["refer"][0]
#: A process that does not die of SIGKILL for this long is held by the kernel, not by us.
_PATIENCE = 10.0


class Descendants:
    """All processes below this one. `scoped`: they are exactly those that kill(-1) reaches."""

    def __init__(self, *, scoped: bool = False) -> None:
        self._scoped = scoped

    def send(self, number: int) -> None:
        """Signal every one of them."""
        if self._scoped:
            try:
                os.kill(-1, number)
            except ProcessLookupError:
                pass
            return
        from ..linux.process_tree import descendants, send  # rarely needed, and never before

        for pid in descendants(os.getpid()):
            send(pid, number)

    def end(self) -> None:
        """Kill every one of them and wait until they are gone."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            self.send(process.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.002)


def share_scope(spec: ExecSpec) -> Descendants:
    """Enter the domain that the command's own will be nested in. The caller is the supervisor.

    Files are not restricted in it: the supervisor removes the private directories. Ports are the
    same as the command's, because the supervisor connects in its place.
    """
    if not spec.scoped & _SIGNAL:
        return Descendants()
    # A layer that says nothing about moving files between directories forbids it.
    with Ruleset(_REFER, spec.handled_net, spec.scoped) as ruleset:
        root = os.open("/", os.O_PATH | os.O_CLOEXEC)
        ruleset.allow_beneath(root, _REFER)
        os.close(root)
        for port, rights in spec.ports:
            ruleset.allow_port(port, rights)
        ruleset.restrict()
    # kill(-1) without a scope would end every process of the user, so see that it holds: our
    # parent is outside, of the same user, and must be out of reach.
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return Descendants(scoped=True)
    raise NotStarted(CONFINEMENT, "Landlock says that signals are scoped, but they are not")
