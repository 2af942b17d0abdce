"""The cgroups of one sandbox: one in each useful hierarchy, handled as one.

The host program does everything here, from outside. Processes inside can neither see nor change their
cgroups.

The sandbox's first process is ours and stays outside of them. Inside, it would be throttled with the others,
and frozen in a pause. If files in memory use up the limit and no other process is left, it would be killed
although it is small. Its children enter the cgroups by descriptor.
"""

from __future__ import annotations

import errno
import os
import time

from ..background import do_later
from ..errors import LaunchFailed
from ..linux import cgroups, process
from . import cgroup_layout
from .usage import GroupMeter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ..policy.limits import Limits
    from .cgroup_layout import CgroupParent

#: Seconds for a cgroup to freeze, or for its processes to end.
_PATIENCE = 5.0
#: Seconds for a cgroup to freeze that is frozen only to kill its processes.
_SHORT_PATIENCE = 0.1
#: Seconds for processes to end with the sandbox's first process, before we kill them.
_GRACE, _LONG_GRACE = 0.01, 0.25
_KILL, _FREEZE, _EVENTS = "cgroup.kill", "cgroup.freeze", "cgroup.events"
_STATE = "freezer.state"  # of version 1


class SandboxCgroups:
    """The existing cgroups of a sandbox. `close` kills their processes and removes them."""

    def __init__(self, directories: Mapping[CgroupParent, str]) -> None:
        self._directories = dict(directories)
        self._unified = next((path for place, path in self._directories.items() if place.version == 2), "")
        #: The last two parts of each path, by which /proc/PID/cgroup identifies members.
        self.tails = {"/".join(path.split("/")[-2:]) for path in self._directories.values()}
        self._limits: tuple[object, ...] = ()  # in force now
        #: A meter whose files are open, for the caller who takes this sandbox.
        self.prewarmed_meter: GroupMeter | None = None
        #: The highest memory that a meter has measured.
        self.highest = 0
        self._is_frozen = False
        #: The freezer file, kept open while frozen: there might be no free descriptor to thaw with.
        self._freezer = -1

    def at(self, controller: str) -> tuple[int, str] | None:
        """Return version and directory of the cgroup with `controller`; "" matches any of version 2."""
        for place, path in self._directories.items():
            if controller in place.controllers or (not controller and place.version == 2):
                return place.version, path
        return None

    @property
    def controllers(self) -> frozenset[str]:
        """Controllers that can limit or measure a sandbox here."""
        return frozenset().union(*(place.controllers for place in self._directories))

    # ---------------------------------------------------------------- limits

    def limit(self, limits: Limits, *, ours: int = 0, together: bool = False) -> None:
        """Enforce each of `limits` that has a controller; LaunchFailed if the kernel refuses one."""
        key = limits.memory, limits.cpu, limits.processes, ours, together
        if key == self._limits:
            return
        if self._limits:
            self._lift()  # version 1 accepts some settings only in the right order, up or down
        self._limits = key
        for place, path in self._directories.items():
            for setting in cgroup_layout.settings(limits, place.version, ours=ours, together=together):
                if setting.controller in place.controllers:
                    _set(path, setting)

    def _lift(self) -> None:
        """Remove the limits that were set in advance."""
        self._limits = ()
        for place, path in self._directories.items():
            for setting in cgroup_layout.UNLIMITED[place.version]:
                if setting.controller in place.controllers:
                    _set(path, setting)

    def widen(self, limits: Limits) -> None:
        """Raise the memory limit.

        In reverse order, as the limit on memory plus swap must never be below it.
        """
        self._limits = ()
        for place, path in self._directories.items():
            if "memory" in place.controllers:
                only = limits.replace(cpu=None, processes=None)
                for setting in reversed(tuple(cgroup_layout.settings(only, place.version))):
                    _set(path, setting)

    # ---------------------------------------------------------------- members

    def add(self, pid: int) -> None:
        """Move a process in before it has started others: its later children are then members too."""
        for path in self._directories.values():
            cgroups.add(path, pid)

    def cgroup_fds(self) -> list[int]:
        """Open descriptors with which a process can enter the cgroups; see `linux.cgroups.enter`.

        The sandbox's first process gets them, and each of its children uses them before it execs. In version
        2, the kernel moves a process only while no other process is starting anywhere. That can take some
        milliseconds, but a shell that is started ahead has done it before it is needed.
        """
        found: list[int] = []
        try:
            for place, path in self._directories.items():
                name = cgroups.THREADS if place.version == 1 else cgroups.MEMBERS
                found.append(os.open(f"{path}/{name}", os.O_WRONLY | os.O_CLOEXEC))
        except BaseException:
            for fd in found:
                os.close(fd)
            raise
        return found

    def members(self) -> set[int]:
        """Return the pids of the members; 0 stands for processes that are not visible from here."""
        found: set[int] = set()
        for path in self._directories.values():
            try:
                found.update(cgroups.members(path))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):
                    raise
                continue  # removed
        return found

    # ---------------------------------------------------------------- pausing, ending

    def freeze(self, patience: float = _PATIENCE) -> bool:
        """Freeze all members; return whether that succeeded in time. If not, thaw them.

        No process inside can resist. A process that waits for a disk freezes only afterwards.
        """
        try:
            return self._freeze(patience)
        except BaseException:  # including from a signal handler
            self.thaw()
            raise

    def _freeze(self, patience: float) -> bool:
        file, stop, _ = self._freezer_file()
        if not file:
            return False
        group = os.path.dirname(file)
        if self._freezer < 0:
            self._freezer = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        os.pwrite(self._freezer, stop, 0)
        if stop == b"1":
            frozen = _until(lambda: cgroups.table(cgroups.read(group, _EVENTS)).get("frozen") == 1, patience)
        else:
            frozen = _until(lambda: cgroups.read(group, _STATE).strip() == "FROZEN", patience)
        self._is_frozen = frozen
        if not frozen:
            self.thaw()
        return frozen

    def thaw(self) -> None:
        """Let the members continue."""
        self._is_frozen = False
        file, _, go_on = self._freezer_file()
        if file:
            fd, self._freezer = self._freezer, -1
            if fd < 0:
                fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(fd, go_on, 0)
            finally:
                os.close(fd)

    def _freezer_file(self) -> tuple[str, bytes, bytes]:
        """Return (file, text to freeze, text to thaw); the file is "" if there is no freezer."""
        if self._unified and _exists(self._unified, _FREEZE):
            return f"{self._unified}/{_FREEZE}", b"1", b"0"
        freezer = self.at("freezer")
        return ("" if freezer is None else f"{freezer[1]}/{_STATE}"), b"FROZEN", b"THAWED"

    @property
    def freezes(self) -> bool:
        """Whether these cgroups can be frozen."""
        return bool(self._unified) or self.at("freezer") is not None

    def kill(self) -> None:
        """Kill all members, whatever signals they ignore and whatever they start."""
        if self._unified and _exists(self._unified, _KILL):
            cgroups.write(self._unified, _KILL, "1")
            return
        end = time.monotonic() + _PATIENCE
        pause = 0.001
        while (left := self.members() - {0}) and time.monotonic() < end:
            # While frozen, no member can exit and leave its pid to a foreign process, nor start another. Not
            # in the first round: a process that is already ending does not freeze.
            frozen = pause > 0.001 and self.freeze(_SHORT_PATIENCE)
            for pid in self.members() - {0} if frozen else left:
                _kill_member(pid, self._directories.values())
            self.thaw()
            time.sleep(pause)
            pause = min(pause * 2, 0.02)

    def signal_all(self) -> None:
        """Send SIGKILL to the present members without waiting: many end sooner if all get it first."""
        for pid in self.members() - {0}:
            _kill_member(pid, self._directories.values())

    def close(self) -> bool:
        """Kill the rest and remove the cgroups. Returns whether they are gone; can be called again."""
        self.prewarmed_meter = None
        if _until(self._remove, _GRACE):
            return True
        try:
            if self.members():
                self.kill()
        except OSError:
            pass  # the remaining members prevent the removal, which we report
        return _until(self._remove)

    def close_later(self) -> None:
        """Close the cgroups in the background, without delaying other jobs while processes are ending.

        They end with the sandbox's first process, after some milliseconds in which the kernel unmounts their
        view.
        """
        self.prewarmed_meter = None
        end, pause = time.monotonic() + (0 if self._is_frozen else _LONG_GRACE), 0.0005

        def close() -> None:
            nonlocal pause
            if self._remove():
                return
            if time.monotonic() > end:
                self.close()
                return
            pause = min(pause * 2, 0.008)
            time.sleep(pause)
            do_later(close)

        do_later(close)

    def leave(self) -> None:
        """Remove the cgroups if they are empty. Otherwise they stay until the program ends."""
        self._remove()

    def _remove(self) -> bool:
        for place, path in list(self._directories.items()):
            if not removed(path):
                return False  # the other cgroups have the same members
            del self._directories[place]
        fd, self._freezer = self._freezer, -1
        if fd >= 0:
            os.close(fd)
        return True


def removed(path: str) -> bool:
    """Remove a cgroup without processes and child cgroups; return whether it is gone."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # busy: its last process is still ending
    return True


def _set(path: str, setting: cgroup_layout.CgroupSetting) -> None:
    try:
        cgroups.write(path, setting.file, setting.text)
    except FileNotFoundError:
        if setting.needed:
            raise _not_set(setting, "this kernel has no such control") from None
    except OSError as error:
        raise _not_set(setting, error.strerror or str(error)) from error


def _not_set(setting: cgroup_layout.CgroupSetting, why: str) -> LaunchFailed:
    name = cgroup_layout.LIMIT_OF[setting.controller]
    return LaunchFailed(
        f"limits.{name} could not be set",
        why=f"{setting.file} = {setting.text}: {why}",
        fix=f"leave limits.{name} out, or choose another value",
    )


def _kill_member(pid: int, groups: Iterable[str]) -> None:
    """Kill a process by descriptor, if it is still in one of `groups` once the descriptor is open."""
    try:
        descriptor = process.pidfd_open(pid)
    except OSError:
        return
    try:
        if any(pid in cgroups.members(path) for path in groups):
            process.pidfd_send_signal(descriptor, process.SIGKILL)
    except OSError:
        pass  # it has ended
    finally:
        os.close(descriptor)


def _exists(path: str, name: str) -> bool:
    return os.path.exists(f"{path}/{name}")


def _until(true: Callable[[], bool], patience: float = _PATIENCE) -> bool:
    """Poll `true()`; return whether it became true in time."""
    end = time.monotonic() + patience
    pause = 0.0002
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
    return True
