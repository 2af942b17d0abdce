"""Our own namespaces: the helper makes a fresh root with only the plan's paths.

It needs no program but the interpreter, and no privilege. An ordinary user gets a user namespace; root
becomes an id that no account has. If a step fails, the helper starts nothing.

Limits of this backend: a command can connect to a UNIX socket that appears in a granted directory after
the start, even if the directory is read-only. It does not see a path of the policy that appears on the
host after the start. Its mount table shows the host paths of the grants. It keeps the user's groups, and
so can read what a group may read in a granted directory.
"""

from __future__ import annotations

import _thread
import errno
import os
import time

from .._value import Value
from ..enforcement import Gap, Probe, Step
from ..errors import BackendUnavailable, LaunchFailed, StaddleError
from ..ipc import namespace_spec
from ..ipc.exec_spec import encode as encode_instructions
from ..ipc.wire import sentence
from ..launch.contract import ENVIRONMENT, Launch, helper_command
from ..linux import mounts, userns
from ..linux.idmaps import unprivileged_uid
from ..linux.userns import Obstacle
from ..mounts.operations import encode_operations
from . import description as common
from . import gateways
from .description import become, filter_steps, last, scopes_sockets, view
from .launching import Descriptors, filter_profile, instructions, needed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..limits.command_limits import CommandLimits
    from ..mounts.from_plan import Layout
    from ..mounts.operations import Operation
    from ..network.host.gateway_log import GatewayLog
    from ..policy.plan import Plan
    from .canary import SelfTest

#: By their names in /proc. Every sandbox also has user, pid and mount namespaces.
NAMESPACES = {
    "net": userns.CLONE_NEWNET,
    "ipc": userns.CLONE_NEWIPC,
    "uts": userns.CLONE_NEWUTS,
    "cgroup": userns.CLONE_NEWCGROUP,
}
_ALWAYS = ("user", "pid", "mnt")


_probing = _thread.allocate_lock()
#: Self-tests whose outcome nobody has asked for, by process and user.
_begun: dict[tuple[int, int], SelfTest] = {}


class Namespaces:
    """Confines in namespaces that our own helper makes."""

    name = "namespaces"

    # The contract.

    def begin_probe(self) -> None:
        """Assume that it works: the helper checks before it starts the command, and reports a failure.

        For our command line, which then calls `doubt`.
        """
        who = os.geteuid()
        found = unprivileged_uid()
        with _probing:
            if who not in _known:
                _known[who] = self._unusable(found) if isinstance(found, Obstacle) else self._to_be_seen()

    def begin_self_test(self) -> None:
        """Start the self-test of `probe` without waiting for it, unless its outcome is known."""
        me = os.getpid(), os.geteuid()
        found = unprivileged_uid()
        with _probing:
            if me[1] not in _known and me not in _begun and not isinstance(found, Obstacle):
                try:
                    _begun[me] = _self_test(found)
                except (OSError, StaddleError):
                    pass  # `probe` tries it again, and says why

    def probe(self) -> Probe:
        """Whether a real sandbox confines its command, according to a self-test.

        Tried once. After a failure, which can come from an overloaded machine, it is tried again after some
        seconds.
        """
        who = os.geteuid()
        with _probing:  # a second caller waits for the first one's result
            now = time.monotonic()
            if who not in _known or now > _tried_again.get(who, now):
                from ..interrupts import uninterrupted

                found = _known[who] = uninterrupted(self._try)  # an interrupt would leave processes behind
                _tried_again.pop(who, None)
                if not found.usable:
                    _tried_again[who] = time.monotonic() + _FAILURE_HOLDS
            return _known[who]

    def doubt(self) -> bool:
        """After a failed start: run the self-test, and return whether this host is the cause.

        True if nothing can be confined here, or only with a gap.
        """
        who = os.geteuid()
        with _probing:
            if _known.get(who) == self._to_be_seen():
                _known[who] = self._try()
                return not _known[who].usable or not _names_hosts() or outer_processes()
            return False

    def gaps(self, plan: Plan) -> tuple[Gap, ...]:
        """The gaps of `plan` on this host."""
        from ..mounts.from_plan import layout_of

        return tuple(gaps(plan, layout_of(plan), _who()))

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """Steps of the setup, in order."""
        from ..mounts.from_plan import layout_of

        return tuple(steps(plan, layout_of(plan), _who(), _groups(plan)))

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """The helper, which makes the sandbox and passes on signals and the exit status of the command."""
        from ..mounts.from_plan import forget, layout_of

        layout = layout_of(plan)
        forget(plan)
        return launch(plan, layout, _who(), command)

    # Internals.

    def _try(self) -> Probe:
        found = unprivileged_uid()
        if isinstance(found, Obstacle):
            return self._unusable(found)
        who = os.geteuid()

        def outcome() -> tuple[str, str]:
            started = _begun.pop((os.getpid(), who), None) or _self_test(found)
            problem, message = started.outcome()
            if started.timed_out:
                started = _self_test(found, again=True)
                problem, message = started.outcome()
            return problem, started.not_started or message

        for without in (_nameless, _with_outer_processes):
            without.discard(who)
        try:
            problem, message = outcome()
            if problem and "sethostname" in message:  # some container engines' filters refuse it
                _nameless.add(who)
                problem, message = outcome()
            if problem and _proc_is_covered():
                _with_outer_processes.add(who)
                if outcome()[0]:
                    _with_outer_processes.discard(who)  # there is another obstacle: report the first reason
                else:
                    problem = message = ""
        except (OSError, StaddleError) as error:
            return self._unusable(Obstacle(f"its self-test could not be started: {error}", ""))
        return self._judged(problem, message)

    def _to_be_seen(self) -> Probe:
        return Probe(self.name, usable=True, why="the start will show it")

    def _judged(self, problem: str, message: str) -> Probe:
        if not problem:
            return Probe(self.name, usable=True)
        if problem != "the command did not run":
            return self._unusable(
                Obstacle(f"its self-test ran, but with {problem}", "please report this, it is a bug")
            )
        if "mount_setattr" in message and os.strerror(errno.ENOSYS) in message:
            return self._unusable(Obstacle(mounts.TOO_OLD, mounts.NEWER))
        from ..linux.userns import observe, obstacle

        in_the_way = obstacle(observe(_who()))
        said = Obstacle(f"its self-test failed: {message or 'without a word'}", "see `staddle doctor`")
        return self._unusable(in_the_way or said)

    def _unusable(self, obstacle: Obstacle) -> Probe:
        return Probe(self.name, usable=False, why=obstacle.why, fix=obstacle.fix)


def _self_test(unprivileged_uid: int | None, *, again: bool = False) -> SelfTest:
    """Start a self-test; with `again` a more patient one."""
    from ..mounts.from_plan import lay_out
    from ..mounts.host import Host
    from . import canary

    nonce = os.urandom(8).hex()
    plan = canary.plan(nonce)
    prepared = launch(plan, lay_out(plan, Host()), unprivileged_uid, canary.command())
    return canary.SelfTest(prepared, nonce, named=_names_hosts(), patience=canary.PATIENCE[again])


def _names_hosts() -> bool:
    """Whether a sandbox of this user gets its own host name, according to the probe."""
    return os.geteuid() not in _nameless


def outer_processes() -> bool:
    """Whether a sandbox of this user gets the /proc of the outer container, according to the probe."""
    return os.geteuid() in _with_outer_processes


def _proc_is_covered() -> bool:
    """Whether the kernel refuses a new /proc only because parts of this one are covered."""
    found = userns.observe(_who())
    return found.stage == "proc" and bool(found.covered)


def host_name(plan: Plan) -> bytes:
    """The sandbox's host name; empty (the container's) if a filter refuses to set it."""
    return os.fsencode(plan.identity.host) if _names_hosts() else b""


def _who() -> int | None:
    """The user id of root's sandbox; None for an ordinary user."""
    found = unprivileged_uid()
    if isinstance(found, Obstacle):
        raise BackendUnavailable("namespaces cannot confine anything here", why=found.why, fix=found.fix)
    return found


class Unit(Value):
    """A systemd unit for the launcher and the sandbox; the fields are those of `NamespaceSpec`."""

    unit: bytes
    starter: tuple[bytes, ...]
    starter_environment: tuple[bytes, ...]
    bounds: tuple[tuple[bytes, int], ...]


def launch(
    plan: Plan,
    layout: Layout,
    unprivileged_uid: int | None,
    command: Sequence[str],
    unit: Unit | None = None,
) -> Launch:
    """The helper, ready for one start. With a `unit`, the unit limits memory, cpu and processes."""
    give = Descriptors()
    read = -1
    limited: CommandLimits | None = None
    try:
        read, write = os.pipe2(os.O_CLOEXEC)
        status = give.keep(write)
        gateway_log, ends = gateways.open_socket(plan, give, command, copies=unit is not None)
        limited = _limited(plan) if unit is None else None
        asked = spec(
            plan, layout, unprivileged_uid, command, status=status, gateway=ends, limited=limited, unit=unit
        )
        if limited is not None:
            asked = asked.replace(
                cgroup_fds=tuple(give.keep(cgroup_fd) for cgroup_fd in limited.cgroup_fds()),
                tally=give.keep(os.dup(limited.tally)) if limited.tally >= 0 else -1,
            )
        file = give.holding(namespace_spec.encode(asked))
        return Launch(
            argv=helper_command("namespaces", str(file)),
            env=dict(ENVIRONMENT),
            cwd="/",
            pass_fds=give.all(),
            status=read,
            failure=sentence,
            relays=True,
            close=give.close,
            uid=unprivileged_uid,
            here=None if unit else lambda prepare: _start_here(asked, prepare, gateway_log),
            gateway_log=gateway_log,
            limited=limited,
        )
    except BaseException as error:
        give.close()
        if limited is not None:
            limited.close()
        if read >= 0:
            os.close(read)
        if isinstance(error, OSError):
            why = error.strerror or str(error)
            raise LaunchFailed(
                "the sandbox could not be prepared", why=why, fix="`staddle doctor` tries every step"
            ) from error
        raise


def _view(plan: Plan, layout: Layout) -> list[Operation]:
    if plan.limits.memory is None:
        return needed(layout)
    from ..mounts.operations import sized

    return sized(plan.limits, needed(layout))


def _limited(plan: Plan) -> CommandLimits | None:
    """The limits of the whole sandbox, including its first process; None if there are none."""
    limits = plan.limits
    if limits.memory is None and limits.cpu is None and limits.processes is None and not limits.defaults:
        return None
    from ..limits.command_limits import command_limits

    return command_limits(limits)


def _start_here(
    asked: namespace_spec.NamespaceSpec, prepare: Callable[[], None], gateway_log: GatewayLog | None
) -> int:
    from ..inside.namespace_init import start_here

    if gateway_log is None:
        return start_here(asked, prepare)
    from ..inside.gateway import CommandGateway
    from ..ipc.wire import NotStarted

    try:
        gateway = CommandGateway(asked.gateway)
    except NotStarted as failure:
        raise LaunchFailed(
            "the command did not start", why=str(failure), fix="`staddle doctor` tries every step"
        ) from None
    gateway_log.started_here(gateway.pid)
    try:
        return start_here(asked, prepare, gateway)
    finally:
        os.close(gateway.ready)


def spec(
    plan: Plan,
    layout: Layout,
    unprivileged_uid: int | None,
    command: Sequence[str],
    *,
    status: int,
    gateway: tuple[int, ...] = (),
    limited: CommandLimits | None = None,
    unit: Unit | None = None,
) -> namespace_spec.NamespaceSpec:
    """The namespace specification: everything that the helper needs."""
    who = plan.identity
    return namespace_spec.NamespaceSpec(
        status=status,
        launcher=os.getpid(),
        view=encode_operations(_view(plan, layout)),
        namespaces=sum(NAMESPACES[name] for name in namespaces(plan)),
        uid=who.uid,
        gid=who.gid,
        host=host_name(plan),
        unprivileged_uid=-1 if unprivileged_uid is None else unprivileged_uid,
        foreign=namespace_spec.foreign((*_ALWAYS, *namespaces(plan))),
        command=encode_instructions(
            instructions(
                plan,
                command,
                scopes(plan),
                () if limited is None else limited.rlimits,
                keeps_processors=unit is None and _keeps_processors(plan),
            )
        ),
        network=gateways.rows(plan) if gateway else (),
        gateway=gateway,
        cgroup_fds=(),
        memory=0 if limited is None else limited.memory,
        processes=0 if limited is None else limited.processes,
        processors=_processors(plan),
        outer_processes=int(outer_processes()),
        maps_as_root=int(unprivileged_uid is not None and userns.is_restricted()),
        **({} if unit is None else unit.__dict__),
    )


def _processors(plan: Plan) -> int:
    if plan.limits.cpu is None:
        return 0
    from ..limits.process_attributes import cpu_count

    return cpu_count(plan.limits.cpu)


def _keeps_processors(plan: Plan) -> bool:
    """Whether CPU affinity enforces the cpu limit in place of a control group."""
    if plan.limits.cpu is None:
        return False
    from ..limits.enforced import keeps_processors, usable

    return keeps_processors(plan.limits, usable())


def namespaces(plan: Plan) -> tuple[str, ...]:
    """The further namespaces to make; an open network is the host's."""
    return tuple(name for name in NAMESPACES if name != "net" or plan.network.mode != "open")


def scopes(plan: Plan) -> tuple[str, ...]:
    """Landlock's scopes: if the network namespace is shared, the abstract sockets in it."""
    shared = plan.network.mode == "open" and scopes_sockets()
    return ("abstract_unix_socket",) if shared else ()


_OURS = "namespaces"


def steps(plan: Plan, layout: Layout, unprivileged_uid: int | None, limits: Iterable[Step]) -> Iterator[Step]:
    """Every setup step, in order; `limits` are the steps that set limits."""
    yield from gateways.started(_OURS, plan)
    yield from limits
    if unprivileged_uid is None:
        yield from _user(plan)
    names = ", ".join(("pid", "mnt", *namespaces(plan)))
    yield Step(f"make namespaces ({names}) that end with the process that started this", _OURS)
    if _names_hosts():
        yield Step(f"be called {plan.identity.host!r}", "plan")
    if "net" in namespaces(plan):
        yield Step("a network of its own, with nothing but a loopback", "plan")
    yield from gateways.reached(plan)
    yield from view(layout, unprivileged_uid is not None)
    yield Step("detach the old root", _OURS)
    if unprivileged_uid is not None:
        yield become(unprivileged_uid, _OURS)
        yield from _user(plan)
    yield Step("PID 1 of the sandbox verifies all this; it is hidden, reaps, passes signals on", _OURS)
    yield from last(plan, _OURS)
    for scope in scopes(plan):
        yield Step(f"Landlock keeps within the sandbox: {scope}", _OURS)
    yield from filter_steps(filter_profile(plan))


def _groups(plan: Plan) -> Iterator[Step]:
    """The control groups that the first process enters, if limits need them and the host allows them."""
    asked = {name: getattr(plan.limits, name) for name in ("memory", "cpu", "processes")}
    if not any(asked.values()):
        return
    from ..limits.enforced import enforced_limits, usable

    for item in enforced_limits(plan.limits, usable(), inside=True, layer="none")[0]:
        if asked.get(item.limit):
            yield Step(f"{item.by} limits {item.limit} to {asked[item.limit]}", "limits")


def _user(plan: Plan) -> Iterator[Step]:
    who = plan.identity
    yield Step(f"be uid {who.uid} and gid {who.gid} in a user namespace of its own", _OURS)


def gaps(plan: Plan, layout: Layout, unprivileged_uid: int | None) -> Iterator[Gap]:
    """Every gap, those of the policy first."""
    yield from common.of_a_fresh_root(plan, layout, unprivileged_uid, common.scopes_sockets)
    yield from _limits(plan)
    if not _names_hosts():
        yield Gap(
            "identity",
            "the host name inside is that of the container: its system call filter refuses sethostname",
            "start the container with the filter that `staddle doctor --container` names",
            documented=True,
        )
    if outer_processes():
        yield Gap(
            "processes",
            "/proc is the container's, because parts of it are covered: its other processes, their command "
            "lines, mounts and connections can be seen, and a process has another number in it",
            "start the container with --security-opt systempaths=unconfined (Docker) or unmask=ALL (Podman)",
            documented=True,
        )


def _limits(plan: Plan) -> Iterator[Gap]:
    if all(getattr(plan.limits, name) is None for name in common.NEED_MORE):
        return  # no limit asked for: skip looking at the host
    from ..limits.enforced import enforced_limits, usable

    yield from enforced_limits(plan.limits, usable(), inside=True, layer="none")[1]


#: Probe results by user. Per process.
_known: dict[int, Probe] = {}
#: Seconds for which a failure is reused, and the end of that time by user.
_FAILURE_HOLDS = 5.0
_tried_again: dict[int, float] = {}
#: Users whose sandboxes cannot have their own host name, and users whose cannot have their own /proc.
_nameless: set[int] = set()
_with_outer_processes: set[int] = set()
