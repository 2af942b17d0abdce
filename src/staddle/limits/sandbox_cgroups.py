"""The control groups of one sandbox: one in each hierarchy that is of use, handled as one.

Everything here is done from outside, by the host program. The processes inside have no way to
see or change their groups.

The sandbox's first process, which is ours, had better not be in them: it would be held up where
they use their share of the processors, stopped in a pause, and, small as it is, killed where
files in memory use up what they may have and there is nobody else left. What it starts puts
itself in, by a cgroup descriptor.
"""

from __future__ import annotations

import errno
import os
import time

from ..background import do_later
from ..errors import LaunchFailed
from ..linux import cgroups, process
from . import cgroup_files
from .usage import GroupMeter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ..policy.limits import Limits
    from .cgroup_layout import CgroupParent

#: How long a group may take to freeze, or its processes to end, in seconds.
_PATIENCE = 5.0
#: How long a group that is stopped only to end what is in it may take to freeze.
_SHORT_PATIENCE = 0.1
#: How long processes may take to end with the sandbox's first one, before they are looked for.
_GRACE, _LONG_GRACE = 0.01, 0.25
_KILL, _FREEZE, _EVENTS = "cgroup.kill", "cgroup.freeze", "cgroup.events"
_STATE = "freezer.state"  # of version 1


class SandboxCgroups:
    """The groups of a sandbox. They exist; `close` ends what is in them and removes them."""

    def __init__(self, directories: Mapping[CgroupParent, str]) -> None:
        self._directories = dict(directories)
        self._unified = next((path for place, path in self._directories.items() if place.version == 2), "")
        #: By which its members know it in /proc: the end of each of its names.
        self.tails = {"/".join(path.split("/")[-2:]) for path in self._directories.values()}
        self._limits: tuple[object, ...] = ()  # that are in force
        #: A meter whose files are open, for who takes it.
        self.prewarmed_meter: GroupMeter | None = None
        #: The most memory that a meter has seen.
        self.highest = 0
        self._is_frozen = False
        #: The file by which it is stopped, from before that until it goes on: there may be no room by then.
        self._freezer = -1

    def at(self, controller: str) -> tuple[int, str] | None:
        """The version and directory of the group that has `controller`; "" is any of version 2."""
        for place, path in self._directories.items():
            if controller in place.controllers or (not controller and place.version == 2):
                return place.version, path
        return None

    @property
    def controllers(self) -> frozenset[str]:
        """Controllers with which a sandbox can be limited or measured here."""
        return frozenset().union(*(place.controllers for place in self._directories))

    # ---------------------------------------------------------------- limits

    def limit(self, limits: Limits, *, ours: int = 0, together: bool = False) -> None:
        """Have those of `limits` hold that there is a controller for. LaunchFailed when one does not."""
        key = limits.memory, limits.cpu, limits.processes, ours, together
        if key == self._limits:
            return
        if self._limits:
            self._lift()  # some of version 1 are accepted only in the right order, up or down
        self._limits = key
        for place, path in self._directories.items():
            for setting in cgroup_files.settings(limits, place.version, ours=ours, together=together):
                if setting.controller in place.controllers:
                    _set(path, setting)

    def _lift(self) -> None:
        """Take off the limits that were put on in advance."""
        self._limits = ()
        for place, path in self._directories.items():
            for setting in cgroup_files.UNLIMITED[place.version]:
                if setting.controller in place.controllers:
                    _set(path, setting)

    def widen(self, limits: Limits) -> None:
        """Put up the limit on memory; a limit of memory and swap together cannot be below it meanwhile."""
        self._limits = ()
        for place, path in self._directories.items():
            if "memory" in place.controllers:
                only = limits.replace(cpu=None, processes=None)
                for setting in reversed(tuple(cgroup_files.settings(only, place.version))):
                    _set(path, setting)

    # ---------------------------------------------------------------- members

    def add(self, pid: int) -> None:
        """Put a process in, before it has started anything: what it starts later is in as well."""
        for path in self._directories.values():
            cgroups.add(path, pid)

    def cgroup_fds(self) -> list[int]:
        """Descriptors by which a process that has them puts itself in: see `linux.cgroups.enter`.

        To be handed to the sandbox's first process, and used in each of its children before
        they exec. In version 2 the kernel moves a process when no other is starting anywhere: that can
        take some milliseconds, but a shell that is started ahead has done it when it is needed.
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
        """The processes in it; 0 stands for those that are not to be seen from here."""
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
        """Stop everything in it where it stands; whether it did in time. If not, it goes on.

        Nothing inside can resist, but a process that waits for a disk stands still only afterwards.
        """
        try:
            return self._freeze(patience)
        except BaseException:  # of a signal's handler, too
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
        """Let it go on."""
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
        """(the file by which it is stopped, what to write for that, and for it to go on); "" without one."""
        if self._unified and _exists(self._unified, _FREEZE):
            return f"{self._unified}/{_FREEZE}", b"1", b"0"
        freezer = self.at("freezer")
        return ("" if freezer is None else f"{freezer[1]}/{_STATE}"), b"FROZEN", b"THAWED"

    @property
    def freezes(self) -> bool:
        """Whether there is a way to freeze it."""
        return bool(self._unified) or self.at("freezer") is not None

    def kill(self) -> None:
        """End everything in it, whatever its processes do about it, start or ignore."""
        if self._unified and _exists(self._unified, _KILL):
            cgroups.write(self._unified, _KILL, "1")
            return
        end = time.monotonic() + _PATIENCE
        pause = 0.001
        while (left := self.members() - {0}) and time.monotonic() < end:
            # Frozen, none of them can end and leave its number to a stranger, nor start another. But not
            # at first: who is ending already does not freeze.
            frozen = pause > 0.001 and self.freeze(_SHORT_PATIENCE)
            for pid in self.members() - {0} if frozen else left:
                _kill_member(pid, self._directories.values())
            self.thaw()
            time.sleep(pause)
            pause = min(pause * 2, 0.02)

    def signal_all(self) -> None:
        """Send SIGKILL to what is in it now, and wait for nothing: many end sooner if all have it first."""
        for pid in self.members() - {0}:
            _kill_member(pid, self._directories.values())

    def close(self) -> bool:
        """End what is left in it and remove it; whether that was possible. A second time does nothing."""
        self.prewarmed_meter = None
        if _until(self._remove, _GRACE):
            return True
        try:
            if self.members():
                self.kill()
        except OSError:
            pass  # what is still in it keeps it from being removed, and that is told
        return _until(self._remove)

    def close_later(self) -> None:
        """Close it while no caller waits, and other such work does not wait for processes that are ending.

        They end with the sandbox's first one, after some milliseconds in which their view is unmounted.
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
        """Remove it if it is empty; else it stays until the program ends."""
        self._remove()

    def _remove(self) -> bool:
        for place, path in list(self._directories.items()):
            if not removed(path):
                return False  # nor can the others be: a process is in all of them
            del self._directories[place]
        fd, self._freezer = self._freezer, -1
        if fd >= 0:
            os.close(fd)
        return True


def removed(path: str) -> bool:
    """Remove a group that has no process and no group in it; whether it is gone."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # busy: its last process is still ending
    return True


def _set(path: str, setting: cgroup_files.CgroupSetting) -> None:
    try:
        cgroups.write(path, setting.file, setting.text)
    except FileNotFoundError:
        if setting.needed:
            raise _not_set(setting, "this kernel has no such control") from None
    except OSError as error:
        raise _not_set(setting, error.strerror or str(error)) from error


def _not_set(setting: cgroup_files.CgroupSetting, why: str) -> LaunchFailed:
    name = cgroup_files.LIMIT_OF[setting.controller]
    return LaunchFailed(
        f"limits.{name} could not be set",
        why=f"{setting.file} = {setting.text}: {why}",
        fix=f"leave limits.{name} out, or choose another value",
    )


def _kill_member(pid: int, groups: Iterable[str]) -> None:
    """Kill a process that is still in one of `groups` when we have it by a descriptor."""
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
    """Whether `true()` became so in time."""
    end = time.monotonic() + patience
    pause = 0.0002
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
    return True
