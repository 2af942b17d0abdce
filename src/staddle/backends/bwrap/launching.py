"""From operations to a command line: the chain of programs, their rights, the steps and the gaps.

  python    (only with the network open) keeps abstract sockets of the host out of reach
  nsenter   (with a staged view) enters the staged mounts, and as root becomes an unused id
  setpriv   (as root, without a staged view) becomes an unused id; nsenter wants a namespace from 2.41 on
  python    (instead of these two, if the policy allows some hosts) starts the gateway, makes the
            network, and does what they do
  prlimit   sets the limits of every sandbox
  bwrap     namespaces, filesystem, rights, filter; it reads its arguments from a descriptor
  prlimit   (only if the policy limits files) sets limits that would break bwrap itself
  command

Each program replaces itself with the next by exec, so the started process ends up as bwrap.
"""

from __future__ import annotations

import os

from ..._value import Value
from ...display import shown
from ...enforcement import Gap, Step
from ...errors import LaunchFailed
from ...ipc.wire import sentence
from ...launch.contract import Launch
from ...linux.seccomp import program
from ...mounts.host import needs_translation
from ...mounts.operations import Bind, File, Mask
from .. import description as common
from .. import gateways
from ..description import become, filter_steps
from ..launching import Descriptors, filter_profile
from . import abstract_sockets, arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...mounts.from_plan import Layout
    from ...mounts.operations import Operation
    from ...policy.plan import Plan
    from .staged_view import Built

#: bwrap reads the whole mount table for each mount; above this number staddle builds the view faster.
_MANY_MOUNTS = 48
#: bwrap accepts 9000 arguments, and an operation has up to six.
_MANY = 1000
#: For bwrap and the programs before it: the host's user can read it in bwrap's /proc entry.
_ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


class Starter(Value):
    """The programs of the chain, and the id to become if root starts them."""

    bwrap: str
    identity: tuple[int, ...]
    mounts_descriptors: bool
    prlimit: str
    nsenter: str = ""
    setpriv: str = ""
    unprivileged_uid: int | None = None


def is_staged(layout: Layout, unprivileged_uid: int | None) -> bool:
    """Whether staddle builds the view instead of bwrap."""
    operations = layout.operations
    binds = [op for op in operations if isinstance(op, Bind)]
    mounted = len(binds) + sum(
        isinstance(op, Mask) or (isinstance(op, File) and op.below) for op in operations
    )
    if mounted > _MANY_MOUNTS or len(operations) > _MANY or any(op.source for op in binds):
        return True
    if any(isinstance(op, Mask) and op.optional for op in operations):
        return True  # bwrap would create an empty file in place of a file deleted just now
    if unprivileged_uid is None:
        return False
    from ...mounts.host import needs_translation

    return any(needs_translation(op.outside, op.writable) for op in binds)


def launch(starter: Starter, plan: Plan, layout: Layout, command: Sequence[str]) -> Launch:
    """Open and pack everything for one start. Raises instead of leaving anything out."""
    give = Descriptors()
    try:
        return _launch(starter, plan, layout, command, give)
    except BaseException as error:
        give.close()
        if isinstance(error, OSError):
            why = error.strerror or str(error)
            raise LaunchFailed(
                "the sandbox could not be prepared", why=why, fix="`staddle doctor` tries every step"
            ) from error
        raise


def _launch(
    starter: Starter, plan: Plan, layout: Layout, command: Sequence[str], give: Descriptors
) -> Launch:
    operations: Sequence[Operation] = layout.operations
    built: Built | None = None
    if is_staged(layout, starter.unprivileged_uid):
        from . import staged_view  # lazily: ordinary starts are faster without it

        ours, operations = staged_view.split(operations)
        if starter.unprivileged_uid is not None:
            built = staged_view.build_as_root(ours, starter.unprivileged_uid)
        else:
            built = staged_view.build_as_user(ours)
    # A file, not a pipe: if the reader is gone, the launcher must not die of SIGPIPE half-way.
    status = give.holding(b"")
    gateway_log, ends = gateways.open_socket(plan, give, command, lasting=True, copies=True)
    if gateway_log is None:
        enter = _entering(starter, built, give)
    else:
        enter = _connecting(starter, plan, built, give, (status, *ends))
    words = [
        *arguments.confinement(plan),
        *(("--bind", built.place, "/") if built else ()),
        *enter.first,
        *arguments.filesystem(operations, give, by_descriptor=starter.mounts_descriptors),
        *("--chdir", plan.cwd),
        *arguments.environment(plan),
        *("--seccomp", str(give.holding(program(filter_profile(plan))))),
        *("--json-status-fd", str(status)),
    ]
    packed = give.holding(arguments.packed(words))
    within = arguments.rlimits_inside(plan.limits, arguments.hard_limit)
    scoped: tuple[str, ...] = ()
    if plan.network.mode == "open":
        from .abstract_sockets import prefix

        scoped = prefix()
    argv = (
        *_ordinary_scheduling(starter),
        *scoped,
        *enter.before,
        *(starter.prlimit, *arguments.rlimits_outside(arguments.hard_limit), "--"),
        *(starter.bwrap, "--args", str(packed), "--"),
        *((starter.prlimit, *within, "--") if within else ()),
        *command,
    )
    reading = os.open(f"/proc/self/fd/{status}", os.O_RDONLY | os.O_CLOEXEC)
    return Launch(
        argv,
        _ENVIRONMENT,
        "/",
        pass_fds=give.all(),
        status=reading,
        failure=failure,
        is_monitored=True,
        close=give.close,
        uid=starter.unprivileged_uid,
        gateway_log=gateway_log,
    )


class _Enter(Value):
    """The command prefix that enters the namespaces for bwrap, and bwrap's first arguments."""

    before: tuple[str, ...] = ()
    first: tuple[str, ...] = ()


def _entering(starter: Starter, built: Built | None, give: Descriptors) -> _Enter:
    """Enter a staged view with nsenter, and become the unused id."""
    uid = starter.unprivileged_uid
    if built is None:
        become_uid = (starter.setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--")
        return _Enter(() if uid is None else become_uid)
    before = [f"--mount=/proc/self/fd/{give.keep(built.mount_namespace)}"]
    # nsenter leaves these descriptors open, and bwrap would pass them to the command. bwrap closes the
    # descriptor to wait for (--block-fd, which is at its end already) and the one to hold (--sync-fd).
    first = ["--block-fd", str(give.all()[-1])]
    if built.user_namespace is not None:
        before += [f"--user=/proc/self/fd/{give.keep(built.user_namespace)}", "--preserve-credentials"]
        first += ["--sync-fd", str(give.all()[-1])]
    if uid is not None:
        before += [f"--setgid={uid}", f"--setuid={uid}"]
    return _Enter((starter.nsenter, *before, "--"), tuple(first))


def _connecting(
    starter: Starter, plan: Plan, built: Built | None, give: Descriptors, fds: tuple[int, ...]
) -> _Enter:
    """Enter with our own program, which first makes a network. `fds`: status, both gateway ends, copies."""
    from ...inside import bwrap_prelude
    from ...launch.contract import helper_command

    status, theirs, ours, copies = fds
    user = -1 if built is None or built.user_namespace is None else give.keep(built.user_namespace)
    orders = bwrap_prelude.PreludeSpec(
        status=status,
        launcher=os.getpid(),
        network=gateways.rows(plan),
        gateway=(theirs, ours, copies),
        user_namespace=user,
        mount_namespace=-1 if built is None else give.keep(built.mount_namespace),
        unprivileged_uid=-1 if starter.unprivileged_uid is None else starter.unprivileged_uid,
    )
    return _Enter(helper_command("bwrap", str(give.holding(bwrap_prelude.encode(orders)))))


def failure(said: bytes) -> str | None:
    """The reason why the command did not start, from bwrap's status; None if it did.

    bwrap writes the exit status only of a command that it executed. It also writes nothing if it is killed
    before that, so call this only after bwrap ended by itself.
    """
    if said[:1].isdigit():
        return sentence(said)  # written by our own program, before bwrap started
    if b'"exit-code"' in said:
        return None
    if b'"child-pid"' in said:
        return "bwrap could not finish the sandbox or execute the command; it printed why on standard error"
    return "bwrap did not get as far as making a sandbox; it printed why on standard error"


_OURS = "bwrap"


def steps(plan: Plan, layout: Layout, starter: Starter) -> Iterator[Step]:
    """Every setup step, in order."""
    unprivileged_uid = starter.unprivileged_uid
    yield from gateways.started(_OURS, plan)
    if gateways.reaches_out(plan):
        yield Step("a network of its own, with nothing but a loopback", "plan")
    yield from gateways.reached(plan)
    if plan.network.mode == "open" and abstract_sockets.prefix():
        yield Step("Landlock: abstract UNIX sockets of others are out of reach", _OURS)
    if unprivileged_uid is not None:
        yield become(unprivileged_uid, _OURS)
    if is_staged(layout, unprivileged_uid):
        yield Step("build the filesystem below in a mount namespace of its own", _OURS)
    for option in arguments.rlimits_outside(arguments.hard_limit):
        yield Step(f"resource limit {option.removeprefix('--').split(':')[0]}", _OURS)
    yield Step(f"start {shown(starter.bwrap)} with an empty environment: {_flags(plan)}", _OURS)
    for operation in layout.operations:
        owner = ""
        if unprivileged_uid is not None and isinstance(operation, Bind) and not operation.again:
            translated = needs_translation(operation.outside, operation.writable)
            owner = ", its owner as the sandbox's user" if translated else ""
        yield Step(f"{operation}{owner}", operation.origin)
    yield Step(f"working directory {shown(plan.cwd)}", "plan")
    for variable in plan.variables:
        value = "(secret)" if variable.secret else shown(variable.value)
        yield Step(f"variable {shown(variable.name)}={value}", variable.origin)
    yield from filter_steps(filter_profile(plan))
    for option in arguments.rlimits_inside(plan.limits, arguments.hard_limit):
        yield Step(f"resource limit {option.removeprefix('--').split(':')[0]}", "limits")


def _ordinary_scheduling(starter: Starter) -> tuple[str, ...]:
    """Words that reset scheduling to normal if the host program runs with real-time priority."""
    if os.sched_getscheduler(0) not in (os.SCHED_FIFO, os.SCHED_RR):
        return ()
    return (os.path.join(os.path.dirname(starter.prlimit), "chrt"), "--other", "0")


def _flags(plan: Plan) -> str:
    return " ".join(shown(word) for word in arguments.confinement(plan))


_FILES = ("file_size", "open_files")


def gaps(plan: Plan, layout: Layout, starter: Starter) -> Iterator[Gap]:
    """Every gap, those of the policy first."""
    yield from common.of_a_fresh_root(plan, layout, starter.unprivileged_uid, _scopes)
    yield from common.limits("bwrap", plan)
    for name in _FILES:
        if getattr(plan.limits, name) is not None and plan.access(starter.prlimit) == "none":
            yield Gap(
                f"limits.{name}",
                f"{starter.prlimit} sets it, and the policy hides that program",
                f"grant {starter.prlimit}, or leave limits.{name} out",
            )


def _scopes() -> bool:
    from . import abstract_sockets  # lazily: few plans need it

    return bool(abstract_sockets.prefix())
