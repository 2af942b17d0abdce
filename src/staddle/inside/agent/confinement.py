"""Confine a process of the sandbox between fork and exec. A child of the agent runs this.

It begins with the agent's capabilities over the sandbox. It ends in the sandbox's inner user namespace
without capabilities, or as root there with ROOT_RIGHTS.
"""

from __future__ import annotations

import errno
import os
import struct

from ...ipc.exec_spec import ExecSpec
from ...ipc.wire import CONFINEMENT, NotStarted
from ...limits import process_attributes
from ...linux import cgroups, process, procfs, userns
from ...linux.call_list import CallList
from ...linux.seccomp import NEW_LISTENER, WAIT_KILLABLE, load
from ...linux.syscalls import AUDIT_ARCH, COLUMN, NUMBERS, architecture, call
from ..confine import become_command, confine
from . import verify
from .shell_start import ShellPlan, ShellStart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ...ipc.agent_messages import Who

_FEW_FILES = 32


class ProcessConfinement:
    """The confinement of every process of one sandbox.

    All of them are in one user namespace, below the one that owns the view. So they cannot change a mount,
    and the kernel counts a user's processes for all of them together.
    """

    def __init__(
        self,
        uid: int,
        gid: int,
        whose: int,
        rlimits: tuple[tuple[int, int, int], ...],
        filter: bytes,
        *,
        rights: int = 0,
    ):
        """`whose` is the id in our namespace that `uid` becomes: ours (0), or an id without an account.

        `rights` are the capabilities that all processes keep, for a session as root.
        """
        self._uid, self._gid, self._whose = uid, gid, whose
        self._rlimits, self._filter = rlimits, filter
        self._rights = rights
        self._outer = verify.user_namespace()
        self._namespace = -1  # until `begin`
        self._cgroup_fds: tuple[int, ...] = ()
        self._goes_first = False
        self._watch: tuple[bytes, int] | None = None
        self._shell: ShellStart | None = None
        self._child = CallList()
        why = "the sandbox's inner user namespace cannot be made"
        self._held = self._child.hold(userns.CLONE_NEWUSER, what=why)
        self._child.prepare()

    def watch(self, filter: bytes, channel: int) -> None:
        """Load `filter` into every later process of the sandbox, and send its listener on `channel`.

        The filter only reports calls. Our own filter is loaded after it, and the stricter answer counts.
        """
        os.set_inheritable(channel, False)
        self._watch = filter, channel

    def prepare(
        self, argv: tuple[bytes, ...], environment: tuple[bytes, ...], cgroups: int, *, outer: bool
    ) -> None:
        """Prepare the start of the first shell in every sandbox, with as many `cgroups`, for `start_shell`.

        `outer`: /proc is that of an outer container.
        """
        self._shell = ShellStart(
            ShellPlan(
                argv,
                environment,
                self._uid,
                self._gid,
                changes_ids=bool(self._whose),
                maps=self._maps()[-2:],
                around=self._outer,
                kept=self._rights,
                rlimits=self._rlimits,
                filters=(self._filter, *((program(architecture()),) if self._pretends else ())),
                cgroups=cgroups,
                outer_processes=outer,
            )
        )

    def begin(self, cgroup_fds: tuple[int, ...], *, goes_first: bool = False) -> None:
        """Begin for one sandbox. Each process enters the sandbox's cgroups with `cgroup_fds`.

        With `goes_first`, or in cgroups, the kernel kills its processes first when memory runs out.
        """
        self._cgroup_fds, self._goes_first = cgroup_fds, goes_first or bool(cgroup_fds)
        self._namespace = self._make_namespace()

    def _make_namespace(self) -> int:
        """Return the user namespace of the sandbox's processes, made with a child that only waits."""
        self._child.carry_out()
        pid = self._child[self._held]
        try:
            for name, text in self._maps():
                fd = os.open(f"{procfs.directory(pid)}/{name}", os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.write(fd, text)
                finally:
                    os.close(fd)
            return os.open(f"{procfs.directory(pid)}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.kill(pid, process.SIGKILL)
            os.waitpid(pid, 0)

    def start_shell(self, stdio: tuple[int, int, int]) -> int:
        """Start the first shell, confined as by `become`; return its pid. NotStarted if a step fails."""
        if self._shell is None:
            raise NotStarted(CONFINEMENT, "its start was not prepared")
        try:
            return self._shell.start(stdio, self._namespace, self._cgroup_fds, procfs.outer())
        except OSError as error:
            raise NotStarted(CONFINEMENT, error.strerror or str(error), error.errno) from None

    def become(self, argv: tuple[bytes, ...], environment: tuple[bytes, ...], directory: bytes) -> NoReturn:
        """Confine this process and exec. Raises only NotStarted or OSError."""
        self._enter(self._rights)
        self._be_watched()
        spec = self._spec(argv, environment, directory)
        become_command(spec, None, -1, guardian=0, last=self._last, kept=self._rights)

    def confine_ahead(self) -> None:
        """Confine this process as `become` does, without exec; the programs that it starts inherit this.

        NotStarted if the limit on open files is too low for this process to work.
        """
        self._enter(self._rights)
        self._be_watched()
        open_files = confine(self._spec((), (), b"/"), None, guardian=0, kept=self._rights)
        self._last()
        if open_files:
            if min(open_files) < _FEW_FILES:
                raise NotStarted(CONFINEMENT, "too few files may be open")
            process.set_rlimits({process.RLIMIT_NOFILE: open_files})

    def confine(self, grouped: bool) -> None:
        """Confine this process in the same way, without exec and without a limit on open files.

        Unless `grouped`, it stays out of the sandbox's cgroups, which may be frozen.
        """
        self._enter(grouped=grouped)
        confine(self._spec((), (), b"/"), None, guardian=0)
        self._look()

    def another(self, who: Who) -> AnotherUser:
        """Return the confinement for another user of the sandbox. OSError if the sandbox has only one id."""
        if who[0] and not self._whose:
            raise OSError(errno.EPERM, f"uid {who[0]} is not mapped: this sandbox has one id")
        return AnotherUser(self, who)

    def _enter_as(self, who: Who, *, grouped: bool = True) -> None:
        if who[0]:
            self._enter(grouped=grouped, who=who)
            return
        self._enter_groups(grouped)
        if self._whose:
            self._join()
            process.become(0, 0)
        else:
            enter_alone()
        process.keep_capabilities(ROOT_RIGHTS)

    def _enter(self, kept: int = 0, *, grouped: bool = True, who: Who | None = None) -> None:
        uid, gid, groups = who or (self._uid, self._gid, ())
        self._enter_groups(grouped)
        self._join()
        if not kept:
            process.empty_bounding_set()  # before the steps that drop the right to do it
        if self._whose:
            process.become(uid, gid, groups)
        if kept:
            process.keep_capabilities(kept)
        else:
            process.clear_capabilities()

    def _be_watched(self) -> None:
        """Report our calls from here on, if the sandbox is watched; the host program continues each."""
        if self._watch is None:
            return
        filter, channel = self._watch
        process.no_new_privs()
        try:
            listener = load(filter, NEW_LISTENER | WAIT_KILLABLE)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            listener = load(filter, NEW_LISTENER)  # before Linux 5.19
        process.send_descriptor(channel, listener)
        os.close(listener)

    def _join(self) -> None:
        call("setns", self._namespace, userns.CLONE_NEWUSER)

    def _enter_groups(self, grouped: bool) -> None:
        # We still have the agent's rights, and no code of the sandbox runs in this process.
        if self._goes_first:
            process_attributes.go_first()
        if self._cgroup_fds:
            if grouped:
                process.leave_real_time()
                cgroups.enter(self._cgroup_fds)
            call("unshare", userns.CLONE_NEWCGROUP)  # from inside, our cgroup has no name

    def _look(self) -> None:
        verify.at_myself(self._uid, self._gid, self._maps()[-2:], self._outer, self._rights)

    def _last(self) -> None:
        """Verify right before the exec. If there is only one id, make root's changes of owners succeed."""

        self._look()
        if self._pretends:
            pretend_owners()

    def _last_as(self, who: Who) -> None:
        self._look_as(who)
        if not who[0] and not self._whose:
            pretend_owners()

    def _look_as(self, who: Who) -> None:
        uid, gid, _ = who
        maps = self._maps()[-2:] if self._whose else ROOT_MAPS
        verify.at_myself(uid, gid, maps, self._outer, 0 if uid else ROOT_RIGHTS)

    @property
    def _pretends(self) -> bool:
        """Whether changes of owners succeed without effect, because root has only one id."""
        return bool(self._rights) and not self._whose

    def _spec(self, argv: tuple[bytes, ...], environment: tuple[bytes, ...], directory: bytes) -> ExecSpec:
        return ExecSpec(argv, environment, directory, rlimits=self._rlimits, filter=self._filter)

    def _maps(self) -> tuple[tuple[str, bytes], ...]:
        if self._whose:  # every id maps to itself, except for the sandbox's user
            maps = (_everybody(number, self._whose) for number in (self._uid, self._gid))
            return tuple(zip(("uid_map", "gid_map"), maps, strict=True))
        return ("setgroups", b"deny"), ("uid_map", b"%d 0 1" % self._uid), ("gid_map", b"%d 0 1" % self._gid)


class AnotherUser:
    """The confinement for another user than the sandbox's own; its root keeps ROOT_RIGHTS."""

    def __init__(self, confinement: ProcessConfinement, who: Who) -> None:
        self._confinement, self._who = confinement, who
        self._kept = 0 if who[0] else ROOT_RIGHTS

    def become(self, argv: tuple[bytes, ...], environment: tuple[bytes, ...], directory: bytes) -> NoReturn:
        """Like `ProcessConfinement.become`."""
        mine, who = self._confinement, self._who
        mine._enter_as(who)
        mine._be_watched()
        spec = mine._spec(argv, environment, directory)
        become_command(spec, None, -1, guardian=0, last=lambda: mine._last_as(who), kept=self._kept)

    def confine(self, grouped: bool) -> None:
        """Like `ProcessConfinement.confine`."""
        mine, who = self._confinement, self._who
        mine._enter_as(who, grouped=grouped)
        confine(mine._spec((), (), b"/"), None, guardian=0, kept=self._kept)
        mine._look_as(who)


def _everybody(number: int, whose: int) -> bytes:
    """Return a map of `number` inside to `whose`, and of each id that is neither of these to itself."""
    if number == whose:
        return b"0 0 65536"
    low, high = sorted((number, whose))
    between, after = (low + 1, low + 1, high - low - 1), (high + 1, high + 1, 65535 - high)
    rows = ((0, 0, low), (number, whose, 1), between, after)
    return b"\n".join(b"%d %d %d" % row for row in rows if row[2] > 0)


# Root inside has a root's rights over the sandbox, and over nothing else.
#
# The capabilities count in a user namespace of the sandbox, and for files only if their owner is mapped
# there. It owns no mount, no network and no process of ours. Capabilities that package installation does not
# need are missing: for devices, tracing and administration.

#: chown, dac_override, fowner, fsetid, kill, setgid, setuid.
ROOT_RIGHTS = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7
#: Id maps if there is only one id: the sandbox's user is also its root.
ROOT_MAPS = (("uid_map", b"0 0 1"), ("gid_map", b"0 0 1"))


def enter_alone() -> None:
    """Enter a new user namespace in which our only id is 0.

    A child of the agent calls this. For a moment, processes with the same id could trace it. But a process in
    another user namespace of the sandbox has no right to.
    """
    process.dumpable(True)  # else root would own our own maps
    call("unshare", userns.CLONE_NEWUSER)
    for name, text in (("setgroups", b"deny"), *ROOT_MAPS):
        fd = os.open(procfs.own(name), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text)
        finally:
            os.close(fd)


# Root in a sandbox with one id: giving a file or a process to another user succeeds, and does nothing.
#
# An ordinary user's sandbox has one id, which is its user and its root, and owns every file. Packages that
# create an account for their service, and archives with many owners, ask for other ids. They would fail
# halfway. So for root's commands, a second filter makes these calls succeed without effect. A filter can
# only remove abilities: none of these calls grants a right.


#: The calls that change the owner of a file or of a process.
CALLS = (
    *("chown", "fchown", "fchownat", "lchown", "setgid", "setgroups", "setregid", "setresgid", "setresuid"),
    *("setreuid", "setuid"),
)
_ALLOW, _SUCCEED = 0x7FFF_0000, 0x0005_0000  # the second fails with error number 0
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_INSTRUCTION = struct.Struct("=HBBI")


def program(machine: str) -> bytes:
    """Return the filter for an architecture.

    It leaves other calling conventions to the first filter. Pure.
    """
    numbers = [number for name in CALLS if (number := NUMBERS[name][COLUMN[machine]]) is not None]
    rows = [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_IF_EQUAL, 0, len(numbers) + 1, AUDIT_ARCH[machine])]
    rows.append((_LOAD, 0, 0, _NUMBER_AT))
    rows += [(_IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    rows += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _SUCCEED)]
    return b"".join(_INSTRUCTION.pack(*row) for row in rows)


def pretend_owners() -> None:
    """Load the filter into this process and its children, after no_new_privs and the first filter."""
    load(program(architecture()))
