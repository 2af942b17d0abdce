"""bubblewrap: a fresh root with only the plan's paths, in its own namespaces.

  probe             finds bwrap, checks it, and runs a harmless command in a real sandbox
  describe, judge   the version of bwrap, and why an installed bwrap does not confine
  staged_view       as root, or with very many mounts: staddle builds the view (see `mounts`)
  arguments         operations -> bwrap's arguments, and prlimit's
  launching         argv and descriptors of the whole chain of programs; steps and gaps in words
  abstract_sockets  with an open network: applies Landlock's scope before bwrap starts

Limits of this backend: a command can connect to a UNIX socket that appears in a granted directory after
the start, even if the directory is read-only. It does not see a path of the policy that appears on the
host after the start. Its mount table shows the host paths of the grants.
"""

from __future__ import annotations

import _thread
import os

from ..._value import Value
from ...enforcement import Probe, Step
from ...errors import BackendUnavailable, StaddleError
from ...launch.contract import Launch
from ...linux import mounts, programs
from ...linux.idmaps import unprivileged_uid
from ...linux.userns import Obstacle, UsernsFacts, observe, obstacle
from ...mounts.from_plan import forget, lay_out, layout_of
from ...mounts.host import Host
from .launching import Starter, launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...enforcement import Gap
    from ...policy.plan import Plan
    from ..canary import SelfTest
    from .launching import Starter

_INSTALL = "apt-get install bubblewrap (or dnf, pacman, apk, zypper)"

#: Probe results, by the file of bwrap and the user. Per process.
_known: dict[tuple[str | int, ...], Probe] = {}
#: Running self-tests.
_begun: dict[tuple[str | int, ...], SelfTest] = {}
_probing = _thread.allocate_lock()


class Bwrap:
    """Confines with bubblewrap: the given `executable` (default: the system's)."""

    name = "bwrap"

    def __init__(self, executable: str | None = None) -> None:
        self._executable = executable

    # The contract.

    def begin_probe(self) -> None:
        """Start the self-test in the background."""
        found = self._find()
        if isinstance(found, Starter):
            with _probing:
                self._begin(found)

    def probe(self) -> Probe:
        """Whether a real sandbox confines its command. Tried once per process and bwrap."""
        found = self._find()
        return found if isinstance(found, Probe) else self._probed(found)

    def gaps(self, plan: Plan) -> tuple[Gap, ...]:
        """The parts of `plan` that bwrap does not enforce on this host."""
        from .launching import gaps

        return tuple(gaps(plan, layout_of(plan), self._starter()))

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """Steps of the setup, in order."""
        from .launching import steps

        return tuple(steps(plan, layout_of(plan), self._starter()))

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """The command as bwrap will confine it. Raises unless the self-test of bwrap passed."""
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

    # Internals.

    def _probed(self, found: Starter) -> Probe:
        key = _key(found)
        with _probing:  # a second caller waits for the first one's result
            self._begin(found)
            canary = _begun.pop(key, None)
            if canary is not None:
                from ...interrupts import uninterrupted

                said = uninterrupted(canary.outcome)
                if canary.timed_out:
                    self._begin(found, again=True)
                    if (canary := _begun.pop(key, None)) is None:
                        return _known[key]
                    said = uninterrupted(canary.outcome)
                _known[key] = self._judged(found, *said)
            return _known[key]

    def _starter(self) -> Starter:
        found = self._find()
        if isinstance(found, Probe):
            raise BackendUnavailable("bwrap cannot confine anything here", why=found.why, fix=found.fix)
        return found

    def _find(self) -> Starter | Probe:
        """The programs to start, or the reason why there are none."""
        bwrap = self._bwrap()
        if bwrap is None:
            where = self._executable or f"no bwrap in {', '.join(programs.DIRECTORIES) or 'any directory'}"
            return self._unusable(f"bubblewrap is not installed: {where}", _INSTALL)
        if bwrap.problem:
            return self._unusable(bwrap.problem, f"reinstall it: {_INSTALL}")
        able = describe(bwrap.path, bwrap.identity)
        if is_old(able.version):
            oldest = ".".join(map(str, OLDEST))
            found = able.version or "of unknown version"
            return self._unusable(f"{bwrap.path} is {found}, and {oldest} is needed", "update bubblewrap")
        tools = {}
        for name in ("prlimit", "nsenter", "setpriv"):
            tool = programs.find(name)
            if tool is None or tool.problem:
                why = tool.problem if tool else f"no {name} in {', '.join(programs.DIRECTORIES)}"
                return self._unusable(f"{name} of util-linux is needed: {why}", "apt-get install util-linux")
            tools[name] = tool.path
        who = unprivileged_uid()
        if isinstance(who, Obstacle):
            return self._unusable(who.why, who.fix)
        if not mounts.can_set_attributes():  # staddle makes mounts itself for most views
            return self._unusable(mounts.TOO_OLD, mounts.NEWER)
        return Starter(bwrap.path, bwrap.identity, able.mounts_descriptors, **tools, unprivileged_uid=who)

    def _bwrap(self) -> programs.Program | None:
        if self._executable is None:
            return programs.find("bwrap")
        # The calling program named this file, so its user may own it; as root, only root may.
        return programs.examine(os.path.abspath(self._executable), owners=(0, os.geteuid()))

    def _begin(self, found: Starter, *, again: bool = False) -> None:
        key = _key(found)
        if key in _known or key in _begun:
            return
        from .. import canary

        nonce = os.urandom(8).hex()
        plan = canary.plan(nonce)
        try:
            prepared = launch(found, plan, lay_out(plan, Host()), canary.command())
            _begun[key] = canary.SelfTest(prepared, nonce, patience=canary.PATIENCE[again])
        except (OSError, StaddleError) as error:
            _known[key] = self._unusable(f"its self-test could not be started: {error}")

    def _judged(self, found: Starter, problem: str, message: str) -> Probe:
        number = describe(found.bwrap, found.identity).version
        if not problem:
            return Probe(self.name, usable=True, version=number)

        why, fix = diagnose(found, problem, message)
        return self._unusable(why, fix, number)

    def _unusable(self, why: str, fix: str = "", version: str = "") -> Probe:
        return Probe(self.name, usable=False, why=why, fix=fix, version=version)


def _key(found: Starter) -> tuple[str | int, ...]:
    return found.bwrap, *found.identity, os.geteuid()


#: The first version with --disable-userns, which forbids user namespaces inside.
OLDEST = (0, 8, 0)

_described: dict[tuple[int, ...], Bubblewrap] = {}


class Bubblewrap(Value):
    """Version and abilities of an installed bwrap, as far as its own text shows them."""

    version: str
    mounts_descriptors: bool


def describe(path: str, identity: tuple[int, ...] = ()) -> Bubblewrap:
    """Version and abilities of the bwrap at `path`, read from the file: ten times as fast as starting it.

    If the text of the file does not contain them (a wrapper script), bwrap is started and asked. With the
    file's `identity` the result is cached per process.
    """
    if identity not in _described:
        _described[identity] = _describe(path)
    return _described[identity] if identity else _described.pop(identity)


def _describe(path: str) -> Bubblewrap:
    with open(path, "rb") as file:
        text = file.read(1 << 20)
    version = _version(text)
    if not version:
        text = _ask(path, "--version") + _ask(path, "--help")
        version = _version(text)
    return Bubblewrap(version, b"--ro-bind-fd" in text)


def is_old(version: str) -> bool:
    """Whether `version` is older than `OLDEST`, or not a version."""
    numbers = version.split(".")
    if not all(number.isdigit() for number in numbers):
        return True
    return tuple(int(number) for number in numbers) < OLDEST


def _version(text: bytes) -> str:
    mark = b"bubblewrap "
    at = text.find(mark)
    while at >= 0:
        word = text[at + len(mark) : at + len(mark) + 16]
        digits = word[: len(word) - len(word.lstrip(b"0123456789."))]
        if digits[:1].isdigit() and b"." in digits:
            return digits.decode().rstrip(".")
        at = text.find(mark, at + 1)
    return ""


def _ask(path: str, question: str) -> bytes:
    import subprocess

    try:
        answer = subprocess.run(
            [path, question],
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return b""
    return answer.stdout[: 1 << 20]


_REINSTALL = "reinstall bubblewrap, and see what else has put a program of that name there"


def diagnose(found: Starter, problem: str, message: str) -> tuple[str, str]:
    """Try each step without bwrap, and return the cause of the failure and its fix."""
    return judge(found.bwrap, problem, message, observe(found.unprivileged_uid))


def judge(bwrap: str, problem: str, message: str, facts: UsernsFacts) -> tuple[str, str]:
    """Derive cause and fix from the self-test's problem, bwrap's message and the kernel's restrictions."""
    if problem != "the command did not run":
        return f"{bwrap} ran its self-test without confining it: {problem}", _REINSTALL
    in_the_way = obstacle(facts)
    if in_the_way is not None:
        return in_the_way.why, in_the_way.fix
    if not message:
        return f"{bwrap} ended without running the command, and without a word", _REINSTALL
    return f"its self-test failed: {message.splitlines()[-1]}", "see whether bwrap works by itself"
