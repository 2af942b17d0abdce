"""bubblewrap: a fresh root with only what the plan names, in namespaces of its own.

    probe             finds bwrap, checks it, and runs a harmless command in a real sandbox
    executable        which bwrap it is, and why one that is there does not confine
    staged_view       as root, or with very many mounts: the view built by us (see `mounts`)
    arguments         operations -> bwrap's arguments, and prlimit's
    launching         argv and descriptors of the whole chain of programs; steps and gaps in words
    abstract_sockets  with an open network: Landlock's scope, put on before bwrap starts

What it does not do, by nature: a UNIX socket that appears in a granted directory after the start can
be connected to, read-only or not; a name of the policy's that appears on the host after the start is not
seen; the mount table inside shows the paths of what was granted.
"""

from __future__ import annotations

import _thread
import os

from ...enforcement import Probe, Step
from ...errors import BackendUnavailable, StaddleError
from ...launch.contract import Launch
from ...linux import programs
from ...linux.idmaps import unprivileged_uid
from ...linux.userns import Obstacle
from ...mounts.from_plan import forget, lay_out, layout_of
from ...mounts.host import Host
from . import executable
from .launching import Starter, launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...enforcement import Gap
    from ...policy.plan import Plan
    from ..canary import SelfTest

_INSTALL = "apt-get install bubblewrap (or dnf, pacman, apk, zypper)"

#: What was found out about a bwrap, by the file it was and who asked. Per process.
_known: dict[tuple[str | int, ...], Probe] = {}
#: The self-tests under way.
_begun: dict[tuple[str | int, ...], SelfTest] = {}
_probing = _thread.allocate_lock()


class Bwrap:
    """Confines with bubblewrap, an `executable` of your choice or the system's."""

    name = "bwrap"

    def __init__(self, executable: str | None = None) -> None:
        self._executable = executable

    # The contract.

    def begin_probe(self) -> None:
        """Start the self-test, so that it runs while the caller does something else."""
        found = self._find()
        if isinstance(found, Starter):
            with _probing:
                self._begin(found)

    def probe(self) -> Probe:
        """Whether a real sandbox confines as it must. Tried once per process and bwrap."""
        found = self._find()
        return found if isinstance(found, Probe) else self._probed(found)

    def gaps(self, plan: Plan) -> tuple[Gap, ...]:
        """The gaps of `plan`: what bwrap does not hold on this host."""
        from .launching import gaps

        return tuple(gaps(plan, layout_of(plan), self._starter()))

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """Everything that is set up, in order."""
        from .launching import steps

        return tuple(steps(plan, layout_of(plan), self._starter()))

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """The command as bwrap will confine it. Raises when bwrap was not seen to confine."""
        starter = self._starter()
        with _probing:
            self._begin(starter)
        layout = layout_of(plan)
        forget(plan)
        prepared = launch(starter, plan, layout, command)
        probe = self._probed(starter)
        if not probe.usable:
            prepared.close()
            if prepared.status is not None:
                os.close(prepared.status)
            raise BackendUnavailable("bwrap cannot confine anything here", why=probe.why, fix=probe.fix)
        return prepared

    # How.

    def _probed(self, found: Starter) -> Probe:
        key = _key(found)
        with _probing:  # a second caller waits for the first one's answer
            self._begin(found)
            canary = _begun.pop(key, None)
            if canary is not None:
                _known[key] = self._judged(found, *canary.outcome())
            return _known[key]

    def _starter(self) -> Starter:
        found = self._find()
        if isinstance(found, Probe):
            raise BackendUnavailable("bwrap cannot confine anything here", why=found.why, fix=found.fix)
        return found

    def _find(self) -> Starter | Probe:
        """The programs to start, or why there are none."""
        bwrap = self._bwrap()
        if bwrap is None:
            where = self._executable or f"no bwrap in {', '.join(programs.DIRECTORIES) or 'any directory'}"
            return self._unusable(f"bubblewrap is not installed: {where}", _INSTALL)
        if bwrap.problem:
            return self._unusable(bwrap.problem, f"reinstall it: {_INSTALL}")
        able = executable.describe(bwrap.path, bwrap.identity)
        if executable.is_old(able.version):
            oldest = ".".join(map(str, executable.OLDEST))
            found = able.version or "of unknown version"
            return self._unusable(f"{bwrap.path} is {found}, and {oldest} is needed", "update bubblewrap")
        tools = {}
        for name in ("prlimit", "nsenter"):
            tool = programs.find(name)
            if tool is None or tool.problem:
                why = tool.problem if tool else f"no {name} in {', '.join(programs.DIRECTORIES)}"
                return self._unusable(f"{name} of util-linux is needed: {why}", "apt-get install util-linux")
            tools[name] = tool.path
        who = unprivileged_uid()
        if isinstance(who, Obstacle):
            return self._unusable(who.why, who.fix)
        return Starter(
            bwrap.path, bwrap.identity, able.mounts_descriptors, tools["prlimit"], tools["nsenter"], who
        )

    def _bwrap(self) -> programs.Program | None:
        if self._executable is None:
            return programs.find("bwrap")
        # Named by the program that uses us: its own user may own it, unless that is a stranger to root.
        return programs.examine(os.path.abspath(self._executable), owners=(0, os.geteuid()))

    def _begin(self, found: Starter) -> None:
        key = _key(found)
        if key in _known or key in _begun:
            return
        from .. import canary

        nonce = os.urandom(8).hex()
        plan = canary.plan(nonce)
        try:
            _begun[key] = canary.SelfTest(launch(found, plan, lay_out(plan, Host()), canary.command()), nonce)
        except (OSError, StaddleError) as error:
            _known[key] = self._unusable(f"its self-test could not be started: {error}")

    def _judged(self, found: Starter, problem: str, message: str) -> Probe:
        number = executable.describe(found.bwrap, found.identity).version
        if not problem:
            return Probe(self.name, usable=True, version=number)
        from .executable import diagnose

        why, fix = diagnose(found, problem, message)
        return self._unusable(why, fix, number)

    def _unusable(self, why: str, fix: str = "", version: str = "") -> Probe:
        return Probe(self.name, usable=False, why=why, fix=fix, version=version)


def _key(found: Starter) -> tuple[str | int, ...]:
    return found.bwrap, *found.identity, os.geteuid()
