"""PID 1 of a single command's sandbox, for the namespaces and systemd backends.

    launcher ── first ── command
       │          │
       │          └ PID 1 of the sandbox: builds the view, drops every right, reaps, passes
       │            signals on to every process
       └ outside: the process that was started to stand for the command

The launcher calls `start`, and has the rights of the user, or of root, until then. `start_here` is for our
command line, which is its own launcher. When the launcher ends, for whatever reason, the kernel kills
`first`, and with it every process of the sandbox. No process inside can see, signal or trace `first`. It is
not dumpable, so /proc does not show it, and the filter refuses its pid.
"""

from __future__ import annotations

import gc
import os
import select

from ..errors import StaddleError
from ..ipc.exec_spec import decode
from ..ipc.wire import CONFINEMENT, NotStarted, not_started, written
from ..linux import cgroups, mounts, netlink, process, procfs, userns
from ..linux.process import exit_status
from ..linux.syscalls import call
from ..mounts.builder import Builder, place_for
from ..mounts.host import needs_translation
from ..mounts.operations import Bind
from . import confine, verify
from .child import HANDLED, Attendant, live

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from ..ipc.exec_spec import ExecSpec
    from ..ipc.namespace_spec import NamespaceSpec
    from ..limits.supervisor import LimitTally
    from ..linux.landlock import Ruleset
    from ..mounts.operations import Operation
    from .gateway import CommandGateway

_RLIMIT_NPROC, _CAP_SYS_PTRACE, _CLONE_PARENT = 6, 19, 0x8000


def start(
    spec: NamespaceSpec, stdio: Sequence[int], gateway: CommandGateway | None = None
) -> tuple[int, int]:
    """Start the sandbox and drop every right. HANDLED signals are blocked already.

    Returns its first process, and a descriptor on which that reports why there is no command (see
    `status.written`). Once the command is exec'd, the descriptor is at end of file. If the policy allows
    network access, `gateway` is running already, in our network.
    """
    work = _Work(spec, gateway, launchers=1)
    if spec.unprivileged_uid >= 0:
        call("unshare", userns.CLONE_NEWPID)
    else:
        _be_somebody_else(spec, userns.CLONE_NEWPID)
    report, report_to = os.pipe2(os.O_CLOEXEC)
    awaited, ready = os.pipe2(os.O_CLOEXEC)
    first = os.fork()
    if first == 0:
        os.close(report)
        os.close(ready)
        live(lambda: _first(work, stdio, report_to, awaited), lambda error: _report(report_to, error))
    for fd in (report_to, awaited, *spec.cgroup_fds, *work.tally, *work.translated.values()):
        os.close(fd)
    if spec.unprivileged_uid >= 0:
        # The same id as `first`, so that we may signal it.
        process.become(spec.unprivileged_uid, spec.unprivileged_uid)
    process.no_new_privs()
    process.clear_capabilities()
    process.dumpable(False)  # the command's specification may contain secrets
    try:
        os.write(ready, b"!")
    except BrokenPipeError:
        pass  # it has failed already, and reports why
    os.close(ready)
    return first, report


def start_here(
    spec: NamespaceSpec,
    prepare: Callable[[], None],
    gateway: CommandGateway | None = None,
    *,
    confirmed: int = -1,
) -> int:
    """Start the sandbox as a child of this process, which continues unchanged. Returns its first process.

    With `confirmed`, it is a child of our parent instead, and exec's nothing before a byte arrives there.

    Only for a process with a single thread, of whose memory the first process may have a copy. That reports
    why there is no command on `spec.status`, whose other end must be ours. The child calls `prepare` first of
    all. Send it the signals to pass on.
    """
    work = _Work(spec, gateway)
    own = userns.CLONE_NEWPID | (userns.CLONE_NEWUSER if spec.unprivileged_uid < 0 else 0)
    own |= _CLONE_PARENT if confirmed >= 0 else 0
    uid, gid = os.geteuid(), os.getegid()

    def be_first() -> int:
        gc.disable()  # a collection would copy all of our parent's memory
        process.block_signals(HANDLED)
        prepare()
        kept = (spec.status, confirmed, *spec.cgroup_fds, *work.kept(), *work.translated.values())
        process.close_from(3, keep=kept)
        os.set_inheritable(spec.status, False)
        open_streams()
        if spec.unprivileged_uid < 0:
            userns.map_ids(uid, gid, spec.uid, spec.gid)
        return _first(work, range(3), spec.status, confirmed)

    first = call("clone", own | process.SIGCHLD, 0, 0, 0, 0)
    if first == 0:
        live(be_first, lambda error: _report(spec.status, error))
    return first


def open_streams() -> None:
    """Open /dev/null for each stream that the caller has closed: no file of ours may have its number."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for stream in range(3):
        try:
            is_the_callers = os.get_inheritable(stream)
        except OSError:
            is_the_callers = False
        if not is_the_callers:
            os.dup2(null, stream)
            os.set_inheritable(stream, True)
    if null > 2:
        os.close(null)


class _Work:
    """The first process's task, and the descriptors that only a process outside can make for it."""

    def __init__(self, spec: NamespaceSpec, gateway: CommandGateway | None, launchers: int = 0) -> None:
        """There are so many `launchers` in the user namespace of the sandbox."""
        self.spec, self.launchers = spec, launchers
        self.gateway = gateway
        self.operations = spec.operations()
        self.translated: dict[tuple[int, int], int] = {}
        if spec.unprivileged_uid >= 0:
            self.translated = translations(self.operations, spec.unprivileged_uid)
        self.watch = _watch(spec, self.operations)
        self.go_first: Callable[[], None] | None = None
        if spec.cgroup_fds or spec.memory:
            from ..limits.process_attributes import go_first  # while our files can be read

            self.go_first = go_first
        self.tally = () if self.watch is None else (spec.tally,)

    def kept(self) -> tuple[int, ...]:
        """Return the descriptors of the gateway, and of the tally file."""
        gateway = () if self.gateway is None else self.gateway.descriptors()
        return (*gateway, *self.tally)


def _watch(spec: NamespaceSpec, operations: Sequence[Operation]) -> LimitTally | None:
    """Return the supervisor that enforces limits without cgroups in the first process's loop, if needed."""
    if not spec.memory and not spec.processes:
        return None
    from ..limits.supervisor import LimitTally, Supervisor
    from ..mounts.operations import Empty  # while our files can be read

    in_memory = [item.path for item in operations if isinstance(item, Empty)]
    is_own = bool(spec.namespaces & userns.CLONE_NEWNET)
    held = Supervisor(spec.memory or None, spec.processes or None, in_memory, counts_sockets=is_own)
    return LimitTally(held, spec.tally)


def _be_somebody_else(spec: NamespaceSpec, namespaces: int = 0) -> None:
    """Enter a user namespace as the plan's user, with every capability, but only over this namespace."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", userns.CLONE_NEWUSER | namespaces)
    userns.map_ids(uid, gid, spec.uid, spec.gid)


def _be_mapped_by_root(spec: NamespaceSpec) -> None:
    """Enter a user namespace as another id, while we are root. For hosts that restrict other users.

    In the new namespace we have no id until a process that is still outside maps one.
    """
    os.setgroups([])
    waiting, go = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.close(go)
        live(lambda: _map_parent(spec, waiting), lambda _: 1)
    os.close(waiting)
    call("unshare", userns.CLONE_NEWUSER)
    os.write(go, b"!")
    os.close(go)
    if os.waitpid(child, 0)[1]:
        raise NotStarted(CONFINEMENT, "root could not map the ids of the sandbox")
    os.setresgid(spec.gid, spec.gid, spec.gid)
    os.setresuid(spec.uid, spec.uid, spec.uid)


def _map_parent(spec: NamespaceSpec, waiting: int) -> int:
    """Write our parent's maps once it reports that it is in its namespace; return the exit status."""
    if os.read(waiting, 1) != b"!":
        return 1
    userns.write_maps(
        procfs.directory(os.getppid()), spec.unprivileged_uid, spec.unprivileged_uid, spec.uid, spec.gid
    )
    return 0


# ---------------------------------------------------------------- inside


def _first(work: _Work, stdio: Sequence[int], report_to: int, awaited: int = -1) -> int:
    """Be PID 1 of the sandbox. Returns the command's exit status.

    It reports on `report_to` if there is no command. It reads from `awaited` that the launcher has dropped
    its rights, or that the host program knows this process; nothing is exec'd before.
    """
    spec = work.spec
    _die_with_the_launcher(report_to)
    if spec.cgroup_fds:  # before the cgroup namespace: from inside, our cgroups have no names
        process.leave_real_time()
        cgroups.enter(spec.cgroup_fds)
    if spec.processors:
        from ..limits import process_attributes  # while our files can be read

        process_attributes.narrow_cpus(spec.processors)
    call("unshare", mounts.CLONE_NEWNS | spec.namespaces)
    mounts.mount(None, "/", flags=mounts.MS_REC | mounts.MS_PRIVATE)
    if spec.host:
        call("sethostname", spec.host, len(spec.host))
    if work.gateway is not None:
        work.gateway.give_sockets(spec.network)
    elif spec.namespaces & userns.CLONE_NEWNET:
        netlink.loopback_up()
    outer: tuple[int, ...] = ()
    if spec.outer_processes:
        outer = (os.open(procfs.PROC, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC),)
        procfs.use_outer(*outer)
    enter_root(
        work.operations, spec.unprivileged_uid, work.translated, outer_processes=bool(spec.outer_processes)
    )
    if spec.unprivileged_uid >= 0:
        if spec.maps_as_root:
            _be_mapped_by_root(spec)
        else:
            process.become(spec.unprivileged_uid, spec.unprivileged_uid)
            process.dumpable(True)  # the change of ids made us undumpable, and /proc/self root's
            _be_somebody_else(spec)
        _die_with_the_launcher(report_to)  # the change of ids has cleared the death signal too
    process.no_new_privs()
    process.empty_bounding_set()
    # Measuring memory needs to trace processes that are not dumpable. The command does not get this.
    kept = 0 if work.watch is None else 1 << _CAP_SYS_PTRACE
    process.clear_capabilities(kept)
    # No process of the sandbox may trace us. This also hides us in its /proc.
    process.dumpable(False)
    verify.around(spec, kept)
    command = decode(spec.command)
    ruleset = confine.build_ruleset(command)
    if awaited >= 0 and os.read(awaited, 1) != b"!":
        raise NotStarted(CONFINEMENT, "the process that started this has not confirmed it")
    if work.gateway is not None:
        work.gateway.await_ready()
    waiting, go = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(go)
        # Our own processes among those that the kernel counts in this user namespace.
        ours = 1 + (work.launchers if spec.unprivileged_uid < 0 else 0)
        most = spec.processes + ours if spec.processes else 0
        if work.go_first is not None:
            work.go_first()  # the kernel must kill it before us
        live(
            lambda: _command(command, ruleset, stdio, report_to, processes=most, waiting=waiting),
            lambda error: _report(report_to, error),
        )
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    process.close_from(3, keep=(go, report_to, *work.tally, *outer))
    os.write(go, b"!")  # our own setup is complete: nothing can fail any more
    os.close(report_to)  # before the command begins: from then on, the launcher passes signals to the command
    os.close(go)
    return _attend(pid, work.watch)


def _command(
    command: ExecSpec,
    ruleset: Ruleset | None,
    stdio: Sequence[int],
    report_to: int,
    *,
    processes: int,
    waiting: int,
) -> NoReturn:
    """Be the command; its user may have so many `processes` (0: no limit).

    It waits until `waiting` reports that the first process is ready, and then for its end of file.
    """
    if os.read(waiting, 1) != b"!":
        raise NotStarted(CONFINEMENT, "PID 1 of the sandbox has failed")
    os.read(waiting, 1)
    process.clear_capabilities()
    if processes:
        process.set_rlimits({_RLIMIT_NPROC: (processes, processes)})
    for number, fd in enumerate(stdio):
        os.dup2(fd, number)
    process.close_from(3, keep=(report_to, *((ruleset.fd,) if ruleset else ())))
    confine.become_command(command, ruleset, report_to, guardian=1)


def _die_with_the_launcher(report_to: int) -> None:
    process.death_signal(process.SIGKILL)
    poll = select.poll()
    poll.register(report_to, 0)
    if poll.poll(0):  # the launcher, which reads it, has ended
        os._exit(CONFINEMENT)


def _attend(command: int, watch: LimitTally | None = None) -> int:
    """Wait for the command, and enforce limits without cgroups meanwhile; return its exit status."""
    attendant = Attendant(command, reaps_all=True)
    status = attendant.run(_pass_on, lambda: None if watch is None else watch.patience(None))
    if watch is not None and status:
        watch.look(gone=1)  # the cause of its failure may not have been sampled yet
    return exit_status(status or 0)


def _pass_on(number: int) -> None:
    try:
        os.kill(-1, number)  # every process of this pid namespace except ourselves
    except ProcessLookupError:
        pass


def _report(report_to: int, error: BaseException) -> int:
    """Write to `report_to` why there is no command; return the exit code for that failure."""
    failure = not_started(error)
    try:
        os.write(report_to, written(failure.code, str(failure)))
    except OSError:
        pass
    return failure.code


# The view of the command: a fresh root with only the paths from the plan. It is built in a private copy of
# the host's mounts, with the right to mount there: as root, or as an ordinary user in a user namespace.


def translations(operations: Sequence[Operation], unprivileged_uid: int) -> dict[tuple[int, int], int]:
    """As root, make user namespaces that show the owners of granted trees as the unused id we become."""
    from ..linux import idmaps

    made: dict[tuple[int, int], int] = {}
    for operation in operations:
        if not isinstance(operation, Bind) or operation.again:
            continue
        if needs_translation(operation.outside, operation.writable):
            try:
                status = os.lstat(operation.outside)
            except FileNotFoundError:
                continue  # optional, or refused when it is mounted
            owner = (status.st_uid, status.st_gid)
            if owner not in made:
                made[owner] = idmaps.translation(*owner, unprivileged_uid)
    return made


def _terminal() -> str:
    """Return the path of the command's terminal, if its standard input is one and is visible here."""
    try:
        return os.ttyname(0)
    except OSError:
        return ""


def enter_root(
    operations: Sequence[Operation],
    owner: int,
    translated: Mapping[tuple[int, int], int],
    *,
    outer_processes: bool = False,
) -> None:
    """Build the new root and move into it; nothing of the old root can be reached afterwards.

    `owner` (-1: our own id) owns the empty directories. The `translated` namespaces, by user and group id,
    show files as owned by `owner`.
    """
    try:
        place = place_for(operations)
        Builder(
            place,
            owner=owner,
            translation=(lambda *whose: translated.get(whose)) if owner >= 0 else None,
            outer_processes=outer_processes,
            terminal=_terminal(),
        ).build(operations)
    except StaddleError as error:
        raise NotStarted(CONFINEMENT, str(error)) from None
    # "." twice: the old root ends up on top of the new root, and is unmounted at once.
    os.chdir(place)
    call("pivot_root", b".", b".")
    mounts.umount(".")
    os.chdir("/")
