"""The start of a sandbox's first shell, as a list of system calls.

Every sandbox has this shell, started before anyone asks for it. The steps are those of
`ProcessConfinement.become`, in the same order, with the same verification before the exec. A fork of the
interpreter would make them as well, but copy hundreds of pages: its own, and then those of its parent.
"""

from __future__ import annotations

import os
import struct

from ..._value import Value
from ...limits.process_attributes import BEFORE_OTHERS, OOM_SCORE
from ...linux import process, userns
from ...linux.call_list import AT_FDCWD, Buffer, CallList
from ..child import SEARCH_PATH, places
from ..confine import fewer_files

_WITHOUT = "the sandbox would be without"
_DROPPED = "capabilities cannot be dropped"
_OTHER_ID = "it cannot become the sandbox's user"
_LIMITS = "limits cannot be set"
_STATUS_ROOM, _LINK_ROOM, _FEW = 16384, 64, 64
_NO_SIGNALS, _DEFAULT_ACTION = bytes(8), bytes(32)
_UMASK = 0o022


class ShellPlan(Value):
    """The first shell and its rights, the same in all sandboxes of a configuration."""

    argv: tuple[bytes, ...]
    environment: tuple[bytes, ...]
    uid: int
    gid: int
    #: Whether these ids are others than the agent's.
    changes_ids: bool
    #: The id maps of the sandbox's user namespace, and the inode of the namespace around it.
    maps: tuple[tuple[str, bytes], ...]
    around: int
    #: The capabilities that it keeps, its resource limits (resource, soft, hard), and its filters.
    kept: int
    rlimits: tuple[tuple[int, int, int], ...]
    filters: tuple[bytes, ...]
    #: The number of descriptors with which it enters its cgroups.
    cgroups: int
    #: Whether /proc is that of an outer container, of which the agent has a writable descriptor.
    outer_processes: bool


class ShellStart:
    """Prepared once, by a process whose limits and priority all its forks inherit."""

    def __init__(self, plan: ShellPlan) -> None:
        self._plan = plan
        self._calls = calls = CallList()
        self._namespace, self._proc = calls.slot(), calls.slot()
        self._stdio = [calls.slot() for _ in range(3)]
        self._cgroups = [calls.slot() for _ in range(plan.cgroups)]
        self._close_agent()
        self._pid, end = calls.fork(what="a process cannot be made")
        self._begin()
        self._enter_groups()
        self._enter_namespace()
        self._confine()
        self._verify()
        self._exec()
        end()
        self._close_agent()  # where fs.suid_dumpable is 1, the child's change of rights has opened our memory
        calls.prepare()

    def start(self, stdio: tuple[int, ...], namespace: int, cgroup_fds: tuple[int, ...], proc: int) -> int:
        """Start it in the user namespace `namespace`; return its pid. OSError: a step has failed.

        `proc` is the agent's descriptor of an outer /proc.
        """
        values = {self._namespace: namespace, self._proc: proc}
        values |= dict(zip((*self._stdio, *self._cgroups), (*stdio, *cgroup_fds), strict=True))
        self._calls.carry_out(values)
        return self._calls[self._pid]

    def text(self) -> str:
        """Return the list, a line for each call."""
        return self._calls.text()

    def _close_agent(self) -> None:
        # Before any process of the sandbox runs: none may trace us, the agent. This also hides us in its
        # /proc. Not earlier, because then the agent could not open its own files there.
        self._prctl(process.PR_SET_DUMPABLE, 0, what="the agent could be traced")

    def _prctl(self, option: int, *args: int, what: str) -> None:
        self._calls.call("prctl", option, *args, *(0,) * (4 - len(args)), what=what)

    def _begin(self) -> None:
        calls = self._calls
        calls.call("setsid", what="it stays in our session")
        for number, fd in enumerate(self._stdio):
            calls.call("dup3", fd, number, 0, what="its streams cannot be set")
        numbers = {*range(1, process.LAST_SIGNAL + 1)} - {process.SIGKILL, process.SIGSTOP}
        actions = [(number, _DEFAULT_ACTION, 0, 8) for number in sorted(numbers)]
        calls.each("rt_sigaction", actions, what="its signals cannot be reset")
        self._prctl(process.PR_SET_CHILD_SUBREAPER, 1, what="its orphans would leave it")
        if process.is_real_time():
            calls.call("sched_setscheduler", 0, os.SCHED_OTHER, bytes(4), what="it stays a real-time process")

    def _enter_groups(self) -> None:
        """Enter with the agent's rights. See `process_attributes.go_first` and `cgroups.enter`."""
        calls = self._calls
        with open(f"/proc/self/{OOM_SCORE}", "rb") as file:
            goes_first = int(file.read()) >= BEFORE_OTHERS
        if not goes_first:
            what = "its OOM score cannot be set"
            # Only for this moment: no process of the sandbox runs yet.
            self._prctl(process.PR_SET_DUMPABLE, 1, what=what)
            place = (self._proc, b"self/") if self._plan.outer_processes else (AT_FDCWD, b"/proc/self/")
            name = place[1] + OOM_SCORE.encode()
            file_ = calls.call("openat", place[0], name, os.O_WRONLY | os.O_CLOEXEC, 0, what=what)
            self._prctl(process.PR_SET_DUMPABLE, 0, what=what)
            score = b"%d" % BEFORE_OTHERS
            calls.call("write", file_, score, len(score), what=what)
            calls.call("close", file_, what=what)
        for group in self._cgroups:
            calls.call("write", group, b"0", 1, what="its cgroup cannot be entered")
            calls.call("close", group, what="its cgroup cannot be entered")
        if self._cgroups:  # from inside, our cgroup has no name
            calls.call("unshare", userns.CLONE_NEWCGROUP, what="its cgroup would be seen")

    def _enter_namespace(self) -> None:
        calls, plan = self._calls, self._plan
        what = "its user namespace cannot be entered"
        calls.call("setns", self._namespace, userns.CLONE_NEWUSER, what=what)
        if not plan.kept:
            self._empty_bounding_set()  # before the steps that drop the right to do it
        if plan.changes_ids:
            self._change_ids()
        if plan.kept:
            self._bound(plan.kept)
        self._clear_capabilities()

    def _change_ids(self) -> None:
        calls, plan = self._calls, self._plan
        calls.call("setgroups", 0, 0, what=_OTHER_ID)
        calls.call("setresgid", *(plan.gid,) * 3, what=_OTHER_ID)
        calls.call("setresuid", *(plan.uid,) * 3, what=_OTHER_ID)

    def _empty_bounding_set(self) -> None:
        self._prctl(process.PR_SET_SECUREBITS, process.SECUREBITS, what=_DROPPED)
        self._bound(0)

    def _bound(self, kept: int) -> None:
        dropped = [each for each in range(process.last_capability() + 1) if not kept >> each & 1]
        drop = process.PR_CAPBSET_DROP
        self._calls.each("prctl", [(drop, each, 0, 0, 0) for each in dropped], what=_DROPPED)

    def _clear_capabilities(self) -> None:
        self._prctl(process.PR_CAP_AMBIENT, 4, what=_DROPPED)  # clear all
        self._calls.call("capset", *process.packed_capabilities(self._plan.kept), what=_DROPPED)

    def _confine(self) -> None:
        """See `inside.confine.confine`."""
        calls = self._calls
        calls.call("umask", _UMASK, what="its umask cannot be set")
        calls.call("chdir", b"/", what="its directory cannot be entered")
        self._limit(False)
        self._prctl(process.PR_SET_NO_NEW_PRIVS, 1, what="no_new_privs cannot be set")
        self._filter(self._plan.filters[0])
        calls.call("rt_sigprocmask", process.SIG_SETMASK, _NO_SIGNALS, 0, 8, what="signals stay blocked")

    def _limit(self, open_files: bool) -> None:
        limits = {resource: (soft, hard) for resource, soft, hard in self._plan.rlimits}
        files = limits.pop(process.RLIMIT_NOFILE, None) or fewer_files()
        if open_files:  # last, because the steps before may need more files than this
            limits = {process.RLIMIT_NOFILE: files} if files else {}
        several = [(0, resource, packed, 0) for resource, packed in process.packed_rlimits(limits)]
        self._calls.each("prlimit64", several, what=_LIMITS)

    def _filter(self, program: bytes) -> None:
        header = struct.pack("@HP", len(program) // 8, self._calls.address(program))
        self._calls.call("seccomp", 1, 0, header, what="the system call filter was not loaded")

    def _verify(self) -> None:
        """See `verify.at_myself`."""
        calls, plan = self._calls, self._plan
        status, link, ids = Buffer(_STATUS_ROOM), Buffer(_LINK_ROOM), Buffer(_FEW)
        length = calls.read(b"/proc/self/status", status, what="its status cannot be read")
        held = {b"Inh": 0, b"Prm": plan.kept, b"Eff": plan.kept, b"Bnd": plan.kept, b"Amb": 0}
        for text, what in (
            *((b"\nCap%b:\t%016x\n" % row, "an end to all capabilities") for row in held.items()),
            (b"\nNoNewPrivs:\t1\n", "an end to new privileges"),
            (b"\nSeccomp:\t2\n", "a filter of system calls"),
        ):
            calls.check(status, length, text, "within", what=f"{_WITHOUT} {what}")
        found = calls.call(
            "readlinkat", AT_FDCWD, b"/proc/self/ns/user", link, _LINK_ROOM, what="no namespace"
        )
        of_its_own = f"{_WITHOUT} a user namespace of its own"
        calls.check(link, found, b"user:[", "within", what=of_its_own)
        calls.check(link, found, b"user:[%d]" % plan.around, "absent", what=of_its_own)
        of_its_own_user = f"{_WITHOUT} a user of its own"
        for name, number in (("getresuid", plan.uid), ("getresgid", plan.gid)):
            at = calls.address(bytes(12))
            calls.call(name, at, at + 4, at + 8, what=_OTHER_ID)
            calls.check(at, 12, struct.pack("3I", *(number,) * 3), "whole", what=of_its_own_user)
        if plan.changes_ids:
            groups = calls.call("getgroups", _FEW // 4, ids, what=_OTHER_ID)
            calls.check(ids, groups, b"", "whole", what=of_its_own_user)
        for name, text in plan.maps:
            rows_ = b"".join(b"%10d %10d %10d\n" % tuple(map(int, row.split())) for row in text.split(b"\n"))
            length = calls.read(b"/proc/self/" + name.encode(), status, what="its ids cannot be read")
            calls.check(status, length, rows_, "whole", what=f"{_WITHOUT} ids of its own")

    def _exec(self) -> None:
        calls, plan = self._calls, self._plan
        for extra in plan.filters[1:]:
            self._filter(extra)
        self._limit(True)
        path = dict(item.split(b"=", 1) for item in plan.environment).get(b"PATH", SEARCH_PATH)
        words = [self._pointers(several) for several in (plan.argv, plan.environment)]
        *first, last = places(plan.argv[0], path)
        for place in first:
            calls.call("execve", place, *words, what="", may_fail=True)
        calls.call("execve", last, *words, what=f"{os.fsdecode(plan.argv[0])!r} cannot be run")

    def _pointers(self, several: tuple[bytes, ...]) -> int:
        """Return the address of a null-terminated array of pointers to these texts."""
        calls = self._calls
        return calls.address(struct.pack(f"{len(several) + 1}P", *map(calls.address, several), 0))
