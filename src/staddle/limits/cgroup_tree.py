"""All cgroups of one host program, below one cgroup of its own in each hierarchy, removed after it.

The name of that cgroup identifies the program. A later program removes the cgroups of programs that have
ended. It may use another place, so a small shell waits for our end, however that happens, and removes the
rest. In a pid namespace other than the machine's first, that shell may end with us. There we remove the
cgroups ourselves at exit.
"""

from __future__ import annotations

import _thread
import os

from ..errors import LaunchFailed
from ..linux import cgroups
from ..linux.process import start_time
from ..linux.process_tree import in_other_namespaces
from .sandbox_cgroups import SandboxCgroups, removed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..policy.limits import Limits
    from .cgroup_layout import CgroupParent, CgroupSupport

PREFIX = "staddle-"
_SHELL = "/bin/sh"
#: Kill everything in our cgroups first, if the kernel can. Otherwise the processes have already ended with
#: us, except for processes frozen in version 1, which die once they are thawed.
_AFTERWARDS = """
read line
turn=0
while [ $turn -lt 100 ]; do
  left=
  for own in "$@"; do
    [ -e "$own/cgroup.kill" ] && echo 1 >"$own/cgroup.kill"
    for state in "$own"/*/freezer.state; do [ -e "$state" ] && echo THAWED >"$state"; done
    rmdir "$own"/*/ "$own"
    [ -d "$own" ] && left=yes
  done
  [ "$left" ] || exit 0
  turn=$((turn + 1)); sleep 0.05
done
"""


class CgroupTree:
    """The cgroups of this program. Threads may share this object; a forked child has none of the cgroups."""

    def __init__(self, means: CgroupSupport) -> None:
        if not means.places or any(not place.base for place in means.places):
            raise ValueError("there is nothing to make groups in: none at all, or no scope was settled in")
        self._pid = os.getpid()
        self._turn = _thread.allocate_lock()
        self._made = 0
        self._own: dict[CgroupParent, str] = {}
        name = PREFIX + identity()
        try:
            for place in means.places:
                tidy(place.base)
                if place.given:  # delegated to us, so we may enable controllers in it
                    cgroups.enable(place.base, place.controllers)
                self._own[place] = path = f"{place.base}/{name}-{_next()}"
                os.mkdir(path, 0o755)
                if place.version == 2:
                    cgroups.enable(path, place.controllers)
            self._keeper, self._line = _keeper(tuple(self._own.values()))
            self._identity = os.fstat(self._line).st_ino
        except OSError as error:
            self._remove()
            raise LaunchFailed(
                "no control group could be made",
                why=error.strerror or str(error),
                fix="see `staddle doctor` for what this host offers",
            ) from error

    def group(self, limits: Limits, *, ours: int = 0, together: bool = False) -> SandboxCgroups:
        """Create the cgroups of one more sandbox, with `limits` in force and no process in them yet."""
        with self._turn:
            self._made += 1
            number = self._made
        made: dict[CgroupParent, str] = {}
        try:
            for place, own in self._own.items():
                os.mkdir(f"{own}/{number}", 0o755)
                made[place] = f"{own}/{number}"
            group = SandboxCgroups(made)
            group.limit(limits, ours=ours, together=together)
        except BaseException as error:
            SandboxCgroups(made).close()
            if isinstance(error, OSError):
                why = error.strerror or str(error)
                raise LaunchFailed(
                    "a control group could not be made",
                    why=why,
                    fix="see `staddle doctor` about limits, or set Limits.none()",
                ) from error
            raise
        return group

    @property
    def closed(self) -> bool:
        """Whether all cgroups have been removed."""
        return not self._own

    def close(self) -> None:
        """Kill all members and remove all cgroups. Does nothing when called again, or in a forked child."""
        if self._pid != os.getpid() or not self._own:
            return
        groups = [
            SandboxCgroups({place: f"{own}/{name}"})
            for place, own in self._own.items()
            for name in _below(own)
        ]
        for group in groups:
            group.signal_all()
        for group in groups:
            group.close()
        self._remove()
        if self._keeper:
            try:
                os.write(self._line, b"\n")  # a forked child may hold the pipe open
            except BrokenPipeError:
                pass  # it was killed
        os.close(self._line)
        if self._keeper:
            try:
                os.waitpid(self._keeper, 0)
            except ChildProcessError:
                pass  # the program around us reaps every child itself

    def let_go(self) -> None:
        """Close our end of the pipe in a forked child: the cgroups are the parent's."""
        try:
            if os.fstat(self._line).st_ino == self._identity:  # a clone may have closed it long ago
                os.close(self._line)
        except OSError:
            pass

    def _remove(self) -> None:
        for place, own in list(self._own.items()):
            removed(own)
            del self._own[place]


_count = [0]


def _next() -> int:
    _count[0] += 1
    return _count[0]


def identity() -> str:
    """Return a name for this process that is unique on this machine since boot."""
    space = os.stat("/proc/self/ns/pid").st_ino
    pid = os.getpid()
    return f"{space}-{pid}-{start_time(pid)}"


def tidy(base: str) -> None:
    """Remove the cgroups in `base` whose program has ended, and kill the processes in them.

    Whether a program in another pid namespace has ended is visible only if we see all processes of the
    machine. Its processes ended with that namespace.
    """
    space = os.stat("/proc/self/ns/pid").st_ino
    owners = {name: owner for name in _below(base) if (owner := _owner(name)) is not None}
    elsewhere = None
    if any(owner[0] != space for owner in owners.values()):
        elsewhere = in_other_namespaces()
    for name, (where, pid, started) in owners.items():
        own = f"{base}/{name}"
        if where == space and start_time(pid) != started:
            for below in _below(own):
                SandboxCgroups({_place(own): f"{own}/{below}"}).close()
        elif where != space and elsewhere is not None and (pid, started) not in elsewhere:
            for below in _below(own):
                removed(f"{own}/{below}")
        else:
            continue
        removed(own)


def _owner(name: str) -> tuple[int, int, int] | None:
    """Return (pid namespace, pid, start time) of the owner of this cgroup; None for a foreign name."""
    if not name.startswith(PREFIX):
        return None
    words = name[len(PREFIX) :].split("-")
    if len(words) != 4 or not all(word.isdecimal() for word in words):
        return None
    return int(words[0]), int(words[1]), int(words[2])


def _place(own: str) -> CgroupParent:
    """Describe a cgroup of another program, just well enough to kill the processes in it."""
    from .cgroup_layout import CgroupParent

    if os.path.exists(f"{own}/cgroup.controllers"):
        return CgroupParent(2, own, frozenset())
    return CgroupParent(1, own, frozenset({"freezer"} if os.path.exists(f"{own}/freezer.state") else ()))


def _below(group: str) -> list[str]:
    try:
        with os.scandir(group) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _keeper(paths: Sequence[str]) -> tuple[int, int]:
    """Start a shell that removes `paths` when the returned descriptor is closed; (pid, descriptor)."""
    theirs, ours = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if not os.access(_SHELL, os.X_OK):
            return 0, ours
        actions = [(os.POSIX_SPAWN_DUP2, theirs, 0), *((os.POSIX_SPAWN_DUP2, null, fd) for fd in (1, 2))]
        # Its own session: a Ctrl-C or a closed terminal that ends us must not end the shell.
        keeper = os.posix_spawn(
            _SHELL,
            ["sh", "-c", _AFTERWARDS, "staddle", *paths],
            {"PATH": "/usr/bin:/bin"},
            file_actions=actions,
            setsid=True,
        )
        return keeper, ours
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
        os.close(null)
