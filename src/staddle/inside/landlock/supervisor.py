"""The two processes that stay while a command runs under Landlock, so that nothing survives either.

    launcher          started by the caller: passes signals on, exits with the command's status
      └ supervisor    in its own session: starts the command, answers its connect() calls,
          │           kills everything at the end, removes the private directories
          └ command

If the launcher is killed, the supervisor sees the end of a pipe and kills everything. If the supervisor is
killed, the command dies with it. The launcher then inherits the remaining processes and kills them. Both run
as the sandbox's user, outside its Landlock rules and filter. No process inside can signal, trace or read
either.
"""

from __future__ import annotations

import gc
import os
import select
import time

from ...files import remove_tree
from ...ipc.wire import CONFINEMENT, NotStarted, not_started, tell
from ...linux import process
from ...linux.landlock import RIGHTS, Ruleset
from ...linux.process import exit_status
from .. import confine
from ..child import HANDLED as ATTENDED
from ..child import PASSED_ON, Attendant, live, release_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ...ipc.exec_spec import ExecSpec
    from ...limits.supervisor import LimitTally
    from .connections import Broker

#: The kernel sends this when the thread that started the launcher ends. People do not send it.
ORPHANED = process.LAST_SIGNAL
HANDLED = (*ATTENDED, ORPHANED)
RLIMIT_NPROC = 6
#: Milliseconds until we check again whether a connection can be made, when too many are in progress.
_BUSY = 20


def launch(spec: ExecSpec, ruleset: Ruleset | None, status: int, parent: int) -> NoReturn:
    """Be the launcher: start the supervisor, pass signals on to it, exit with its status."""
    process.subreaper()
    lifeline, ours = os.pipe2(os.O_CLOEXEC)
    supervisor = os.fork()
    if supervisor == 0:
        os.close(ours)
        live(lambda: _watch(spec, ruleset, status, lifeline), lambda error: _report(status, error))
    os.close(lifeline)
    if status >= 0:
        os.close(status)
    if ruleset:
        ruleset.close()
    release_streams()

    def on_signal(number: int) -> None:
        nonlocal ours
        if number in PASSED_ON:
            os.kill(supervisor, number)  # our child is not reaped yet, so its pid is still its own
        elif os.getppid() != parent and ours >= 0:
            os.close(ours)  # the supervisor then kills everything
            ours = -1

    status = Attendant(supervisor, more=(ORPHANED,), reaps_all=True).run(on_signal) or 0
    if os.WIFSIGNALED(status):
        # Killed from outside. The command died with it, and the remaining processes are our children now.
        Descendants().end()
        remove_tree.remove(spec.scratch)
    os._exit(exit_status(status))


def _watch(spec: ExecSpec, ruleset: Ruleset | None, status: int, lifeline: int) -> int:
    """Be the supervisor. Returns the command's exit status once no process of it is left."""
    os.setsid()  # a signal to the launcher's process group must not reach us
    process.subreaper()
    descendants = Descendants()
    try:
        descendants = share_scope(spec)
        others = _others(spec)
        command, broker = _start(spec, ruleset, status, others)
        return _attend(command, broker, descendants, lifeline, _limits(spec, command, others))
    finally:
        descendants.end()
        remove_tree.remove(spec.scratch)


def _start(spec: ExecSpec, ruleset: Ruleset | None, status: int, others: int) -> tuple[int, Broker | None]:
    ours, theirs = process.descriptor_channel() if spec.brokered else (-1, -1)
    supervisor = os.getpid()
    most = spec.processes + others if spec.processes else 0
    command = os.fork()
    if command == 0:
        if most:
            process.set_rlimits({RLIMIT_NPROC: (most, most)})
        live(
            lambda: confine.become_command(spec, ruleset, status, supervisor, theirs),
            lambda error: _report(status, error),
        )
    for fd in (theirs, status):
        if fd >= 0:
            os.close(fd)
    if ruleset:
        ruleset.close()
    if spec.names_threads:
        _keep(f"/proc/{command}/task")
    if ours < 0:
        return command, None
    from .connections import Broker  # while the command's process is busy

    listener = process.receive_descriptor(ours)
    os.close(ours)
    # None: the command's process has failed, and reported why.
    return command, None if listener is None else Broker(listener, spec)


def _keep(directory: str) -> None:
    """Keep a directory of /proc open until we end, so that the kernel does not forget the rule for it."""
    try:
        os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        pass  # the command has ended


def _others(spec: ExecSpec) -> int:
    """Count the other processes and threads of the command's user, because RLIMIT_NPROC is per user.

    Root's sandbox has its own user id, with launcher and supervisor. An ordinary user may start more
    processes later.
    """
    if not spec.processes:
        return 0
    if spec.uid >= 0:
        return 2
    from ...linux.process_tree import threads_of_user

    return threads_of_user(os.getuid())


def _limits(spec: ExecSpec, command: int, others: int) -> LimitTally | None:
    """Return the supervisor of the limits: it measures everything below us, and kills.

    The command, which may be the agent of a session, is spared while it is small.
    """
    if not spec.memory and not spec.processes:
        return None
    from ...limits.supervisor import LimitTally, Supervisor, threads
    from ...linux.process_tree import descendants, threads_of_user

    watch = Supervisor(
        spec.memory or None,
        spec.processes or None,
        (),
        lambda: (command,),
        pids=lambda: descendants(os.getpid()),
        count=threads if spec.uid >= 0 else lambda _: threads_of_user(os.getuid()) - others,
    )
    return LimitTally(watch, spec.tally)


def _attend(
    command: int,
    broker: Broker | None,
    descendants: Descendants,
    lifeline: int,
    limits: LimitTally | None = None,
) -> int:
    """Serve until the command or the launcher has ended; return the exit status."""
    gc.enable()  # this process lives long, unlike the others
    release_streams()
    attendant = Attendant(command, more=(ORPHANED,), reaps_all=True)

    def answer(events: int) -> None:
        nonlocal broker
        if broker is not None and events & select.POLLIN:
            broker.receive()
        elif broker is not None:
            attendant.leave(broker.listener)  # no process is under the filter any more
            broker = None

    def patience() -> float | None:
        busy = None
        if broker is not None:
            is_free = broker.is_free()
            attendant.serve(broker.listener, answer, select.POLLIN if is_free else 0)
            busy = None if is_free else _BUSY
        return busy if limits is None else limits.patience(busy)

    def pass_on(number: int) -> None:
        if number in PASSED_ON:
            descendants.send(number)

    attendant.serve(lifeline, lambda _: attendant.stop())
    status = attendant.run(pass_on, patience)
    if limits is not None and status:
        limits.look(gone=1)  # the cause of its failure may not have been sampled yet
    return 128 + process.SIGKILL if status is None else exit_status(status)


def _report(status: int, error: BaseException) -> int:
    """Report why the command did not start; return the exit code for that failure."""
    failure = not_started(error)
    tell(status, failure)
    return failure.code


# Send signals to all processes that the command started, even if they changed their session or parent.
#
# A process never leaves the Landlock domain it was started in. The supervisor is in that domain too, one
# layer above, with signals scoped. So kill(-1) reaches every process of the sandbox at once and no other, and
# not even a chain of forks escapes. They cannot signal the supervisor. Without that scope (ABI below 6) we
# walk the process tree, which a fast enough chain of forks can outrun.

_SIGNAL, _REFER = RIGHTS["scope"]["signal"][0], RIGHTS["fs"]["refer"][0]
#: If a process survives SIGKILL for this many seconds, the kernel holds it.
_PATIENCE = 10.0


class Descendants:
    """All processes below this one. `scoped`: kill(-1) reaches exactly these."""

    def __init__(self, *, scoped: bool = False) -> None:
        self._scoped = scoped

    def send(self, number: int) -> None:
        """Send a signal to each of them."""
        if self._scoped:
            try:
                os.kill(-1, number)
            except ProcessLookupError:
                pass
            return
        from ...linux.process_tree import descendants, send  # rarely needed, and never earlier

        for pid in descendants(os.getpid()):
            send(pid, number)

    def end(self) -> None:
        """Kill them all and wait until they are gone."""
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
    """Enter the domain in which the command's own domain will be nested. The supervisor calls this.

    The domain does not restrict files, because the supervisor removes the private directories. It has the
    command's ports, because the supervisor connects in its place.
    """
    if not spec.scoped & _SIGNAL:
        return Descendants()
    # Without this right, a layer forbids moving files between directories.
    with Ruleset(_REFER, spec.handled_net, spec.scoped) as ruleset:
        root = os.open("/", os.O_PATH | os.O_CLOEXEC)
        ruleset.allow_beneath(root, _REFER)
        os.close(root)
        for port, rights in spec.ports:
            ruleset.allow_port(port, rights)
        ruleset.restrict()
    # kill(-1) without a scope would kill every process of the user, so verify the scope. Our parent is
    # outside, has the same user, and must be out of reach.
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return Descendants(scoped=True)
    raise NotStarted(CONFINEMENT, "Landlock reports that signals are scoped, but they are not")
