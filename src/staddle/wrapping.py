"""`wrap`: returns your command, confined, for you to start.

    wrapped = wrap(["pytest", "-q"], Policy.agent().with_read("."))
    process = wrapped.popen(stdout=subprocess.PIPE)

If a command cannot be confined, `wrap` raises an error before anything runs.
"""

from __future__ import annotations

import os

from .backends import choose
from .errors import AlreadyWrapped, CommandNotFound, InvalidCall, LaunchFailed, PolicyError, StaddleError
from .launch.view import find_program, hidden_program
from .linux.fileio import current_directory
from .linux.open_files import have_standard_streams
from .linux.process import REAPING
from .policy.compiler import asking, compile
from .policy.host_sockets import mask_host_sockets
from .policy.network import PATIENCE, whole_seconds
from .policy.own_places import make_own

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence
    from socket import socket
    from typing import Any

    from .egress_request import EgressRequest
    from .enforcement import BackendName, Enforcement
    from .events import Event
    from .launch.contract import Launch
    from .launch.forwarding import CommandForwarding
    from .launch.subprocesses import Completed
    from .network.host.approval_calls import ApprovalCalls, OnConnect
    from .observe.audit import AuditedCommand, AuditTarget, CommandAudit
    from .policy import Policy
    from .policy.plan import Plan


class WrappedCommand:
    """A confined command that has not been started.

    Start it with `popen()` or `run()`, or yourself with exactly `argv`, `env`, `cwd` and `pass_fds`. It can
    be started only once, because the launcher reads its descriptors. The command ends when the *thread* that
    started it ends (the kernel's parent-death signal is per thread), so start it from a thread that lives as
    long as the command.
    """

    def __init__(self, launch: Launch, plan: Plan, enforced: Enforcement) -> None:
        self._launch = launch
        self._started = False
        self._audit: CommandAudit | None = None
        self._process: subprocess.Popen[Any] | None = None
        self._forwarding: CommandForwarding | None = None
        self._command: tuple[str, ...] = ()
        self.plan = plan
        self.enforced = enforced
        self.argv = list(launch.argv)
        self.env = dict(launch.env)
        self.cwd = launch.cwd
        self.pass_fds = launch.pass_fds
        self.backend = enforced.backend

    def popen(self, **kwargs: Any) -> subprocess.Popen[Any]:
        """Start it. Accepts `subprocess.Popen`'s arguments, except those that confine the command.

        `terminate` and `send_signal` reach every process of the command; `kill` ends them all. On bwrap, a
        signal sent to the `pid` in another way ends all as well.
        """
        from .launch.running import Lifeline, start

        launch = self.launch()
        self.begin_audit()
        self._close_audit()  # the caller sees how it ends
        lifeline = None
        try:
            if launch.is_monitored:
                lifeline = Lifeline(launch.status)
                kwargs["group"] = lifeline.group
            REAPING.__enter__()  # for good: the caller may wait for it at any time
            process = start(launch, **kwargs)
        except BaseException:
            if lifeline is not None:
                lifeline.close()
            raise
        finally:
            if launch.status is not None:
                os.close(launch.status)  # not read here; run() reads it
        if lifeline is not None:
            vars(process)["lifeline"] = lifeline  # a MonitoredPopen closes it
        if launch.gateway_log is not None:
            if self.plan.asks or self.plan.is_inspected:
                launch.gateway_log.attend()  # calls on_connect, and lists refusals afterwards
            else:
                launch.gateway_log.close()
        self._process = process
        return process

    def run(self, **kwargs: Any) -> Completed:
        """Start it, wait, and return a CompletedProcess like `subprocess.run`, with `reason` and `why`.

        `timeout` replaces the policy's. Captured output is limited to the policy's `limits.output`; its head
        and tail are kept. A failing command returns a result; LaunchFailed means that it never started.
        Values of secret variables are redacted in captured output, and in our own standard streams unless
        they are a terminal.
        """
        from .launch.running import complete
        from .observe.redaction import secrets_of

        launch, secrets = self.launch(), secrets_of(self.plan)
        audited = self.begin_audit()
        try:
            with REAPING:
                done = complete(launch, self.plan.limits, secrets=secrets, **kwargs)
        except LaunchFailed:
            try:
                if self.backend != "native":
                    find_program(self.plan, self._command[0])  # its error says more
                raise
            except StaddleError as error:
                self.end_audit(audited, error=error)
                raise
        except BaseException as error:
            self.end_audit(audited, error=error)
            raise
        self.end_audit(audited, done.returncode, done.reason, why=done.why)
        return done

    def connect(self, port: int) -> socket:
        """Connect to a server in the command, at `port` of its 127.0.0.1 or ::1. Call it after `popen()`.

        Raises ConnectionError if nothing listens there, InvalidCall on backends without access to its
        network. namespaces and bwrap have access, and any backend if the network is open.
        """
        from socket import create_connection

        if self._has_hosts_network():
            return create_connection(("localhost", port))
        return self._forwarded().connect(port)

    def expose(self, port: int, host_port: int = 0) -> int:
        """Forward a port of the host's 127.0.0.1 to `port` of the command until it ends. After `popen()`.

        Every user of this host can connect to it. On the host's own network it returns `port` itself.
        """
        if self._has_hosts_network():
            from .network.host.forward import same_port

            return same_port(port, host_port)
        return self._forwarded().expose(port, host_port)

    def _has_hosts_network(self) -> bool:
        return self.plan.network.mode == "open" or self.backend in ("native", "seatbelt")

    def _forwarded(self) -> CommandForwarding:
        if self.backend not in ("namespaces", "bwrap"):
            raise InvalidCall(
                "this command accepts no connections",
                why=f"{self.backend} has no way into its network",
                fix="use the namespaces or bwrap backend",
            )
        if self._process is None:
            raise InvalidCall(
                "this command cannot be connected to",
                why="it was not started by popen()",
                fix="call popen() first, and connect to it while it runs",
            )
        if self._forwarding is None:
            from .launch.forwarding import CommandForwarding

            self._forwarding = CommandForwarding(self._process)
        return self._forwarding

    def audit_to(self, target: AuditTarget) -> None:
        """Write an audit log of this command to `target`: a file, a stream or a function."""
        from .observe.audit import CommandAudit
        from .observe.redaction import secrets_of

        self._audit = CommandAudit.of(target, self.plan, secrets_of(self.plan), self.backend)

    def begin_audit(self) -> AuditedCommand | None:
        """Log that the command is about to start, if there is a log. For callers that use `launch()`."""
        return None if self._audit is None else self._audit.begin(self._command, self.plan.cwd)

    def end_audit(
        self,
        audited: AuditedCommand | None,
        status: int = 0,
        reason: str = "exited",
        *,
        why: str = "",
        error: BaseException | None = None,
    ) -> None:
        """Log its end, and close the log."""
        if audited is None:
            return
        try:
            if error is None:
                code = status if status >= 0 else 128 - status
                audited.end(code, reason, why=why, events=self.violations())
            else:
                audited.failed(error)
        finally:
            self._close_audit()

    def _close_audit(self) -> None:
        audit, self._audit = self._audit, None
        if audit is not None:
            audit.close()

    def violations(self) -> tuple[Event, ...]:
        """Protected names that appeared below a writable path since the plan was made.

        After `run()`, also every destination that the network refused, once each.
        """
        from .launch.view import appeared

        gateway_log = self._launch.gateway_log
        if gateway_log is None:
            return appeared(self.plan)
        from .observe.redaction import NONE, secrets_of

        secrets = secrets_of(self.plan) or NONE
        return (*appeared(self.plan), *map(secrets.event, gateway_log.events()))

    def requests(self) -> list[EgressRequest]:
        """Return the HTTP requests to hosts with HTTP rules or secrets: the last thousand."""
        log = self._launch.gateway_log
        return [] if log is None else log.requests()

    def decide_with(self, deciding: ApprovalCalls) -> None:
        """Answer the questions of its network gateway, if the backend has one."""
        if self._launch.gateway_log is not None:
            self._launch.gateway_log.decide_with(deciding)

    def close(self) -> None:
        """Release the descriptors of a command that will not be started."""
        self._close_audit()
        if not self._started:
            launch = self.launch()
            launch.close()
            if launch.status is not None:
                os.close(launch.status)
            if launch.gateway_log is not None:
                launch.gateway_log.close()
            if launch.limited is not None:
                launch.limited.close()

    def launch(self) -> Launch:
        """Hand over the launch, once, to the caller that starts it."""
        if self._started:
            raise AlreadyWrapped(
                "this command has been started already",
                why="its descriptors are read once by the launcher",
                fix="call wrap() again for a second run",
            )
        self._started = True
        return self._launch

    def __repr__(self) -> str:
        return f"<WrappedCommand {self.backend}: {self.plan.cwd!r}>"


def wrap(
    argv: Sequence[str],
    policy: Policy,
    *,
    backend: BackendName = "auto",
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    best_effort: bool = False,
    on_connect: Callable[[Event], Any] | None = None,
    on_connect_timeout: float = PATIENCE,
    audit: AuditTarget | None = None,
    on_request: Callable[[Event], Any] | None = None,
) -> WrappedCommand:
    """Return the command, confined by `policy`, ready to be started.

    A program given by its path becomes readable, unless the policy denies it; its neighbours do not. A hidden
    program raises CommandNotFound here, a missing one in `run()`. `on_connect` decides about destinations
    that the policy's network leaves open; any answer but True within `on_connect_timeout` seconds refuses
    them. `on_request` decides in the same way about HTTP requests that no rule allows; the answer "always"
    also allows equal requests later. `audit` is a file, a stream or a function that receives a line before
    the start and one at the end of `run`.

    Raises PolicyError for an invalid policy, PolicyNotEnforceable if it cannot be enforced here,
    BackendUnavailable if no backend works here. Never returns a command with weaker confinement.
    """
    command = checked(argv)
    if policy.rules is not None:
        policy.rules.check(command)
    plan = (
        compile(policy, cwd=cwd, env=env)
        if backend == "native"
        else _compile_for(command[0], policy, cwd, env)
    )
    ask = None
    if on_connect is not None:
        from .network.host import approval_calls

        ask = approval_calls.checked(on_connect, awaited=False)
        plan = asking(plan, whole_seconds(on_connect_timeout))
    requests: tuple[OnConnect, int] | None = None
    if on_request is not None:
        from .network.host.approval_calls import checked_for_requests

        decider = checked_for_requests(on_request, plan.network, awaited=False)
        requests = (decider, whole_seconds(on_connect_timeout)) if decider is not None else None
    made = prepare(command, plan, backend=backend, best_effort=best_effort, requests=requests)
    if made.enforced.nested:
        made.enforced.tell_once()
    if ask is not None:
        made.decide_with(approval_calls.ApprovalCalls(ask, plan.network, plan.asks))
    if audit is not None:
        try:
            made.audit_to(audit)
        except BaseException:
            made.close()
            raise
    return made


def _compile_for(program: str, policy: Policy, cwd: str | None, env: Mapping[str, str] | None) -> Plan:
    """Compile the plan; make `program` readable if given by path. CommandNotFound if that is denied."""
    plan = compile(policy, cwd=cwd, env=env)
    hidden = hidden_program(plan, program)
    if not hidden:
        return plan
    base = cwd or current_directory()
    plan = compile(policy.with_read(hidden), cwd=plan.cwd, env=env, base=base)
    if hidden_program(plan, program):
        raise CommandNotFound(
            f"{program!r} is not visible inside",
            why=f"the policy does not let {hidden!r} be read",
            fix="deny less, or name another program",
        )
    return plan


def prepare(
    command: list[str],
    plan: Plan,
    *,
    backend: str,
    best_effort: bool,
    requests: tuple[OnConnect, int] | None = None,
) -> WrappedCommand:
    """Prepare the command on a backend that enforces `plan`. The only way from a plan to a process.

    `requests` decides about HTTP requests that no rule allows, within that many seconds.
    """
    plan = mask_host_sockets(plan)
    if plan.package_cache:
        from .packages.mirror import with_mirror

        plan = with_mirror(plan)
    have_standard_streams()
    with REAPING:
        chosen, enforced = choose(plan, backend, best_effort=best_effort)
    limits = plan.limits
    if chosen.name == "landlock" and (limits.defaults or limits.memory or limits.cpu or limits.processes):
        from .limits.enforced import of_landlock

        held, gaps = of_landlock(limits, as_root=any(gap.protection == "root" for gap in enforced.gaps))
        enforced = enforced.replace(limits=held, gaps=(*enforced.gaps, *gaps))
    elif limits.defaults or (
        chosen.name == "namespaces" and (limits.memory or limits.cpu or limits.processes)
    ):
        from .limits.enforced import of_command  # looked up only where it is not obvious

        writes = any(grant.access == "write" for grant in plan.grants)
        held, gaps = of_command(limits, inside=chosen.name == "namespaces", writes=writes)
        enforced = enforced.replace(limits=held, gaps=(*enforced.gaps, *gaps))
    if plan.guards:
        make_own(plan)
    inspector = None
    if plan.is_inspected and chosen.name not in ("landlock", "seatbelt", "native"):
        from .network.host.inspector_process import inspected

        plan, inspector = inspected(plan, *requests or ())
    try:
        launch = chosen.prepare(plan, command)
        if inspector is not None and launch.gateway_log is not None:
            launch.gateway_log.inspect_with(inspector)
        if inspector is not None or plan.package_cache:
            launch = launch.replace(here=None)  # it forks, and this process has threads
    except BaseException:
        if inspector is not None:
            inspector.close()
        raise
    made = WrappedCommand(launch, plan, enforced)
    made._command = tuple(command)
    return made


def checked(argv: Sequence[str]) -> list[str]:
    """Check that `argv` is an argument list that is not wrapped yet. Raises PolicyError otherwise."""
    if isinstance(argv, WrappedCommand) or is_wrapped(argv):
        raise AlreadyWrapped(
            "this command is confined already", why="wrapping is one-way", fix="wrap the original command"
        )
    if isinstance(argv, str | bytes):
        raise PolicyError(
            "a command is a list of arguments, not one string",
            why="splitting it would be guessing",
            fix=f'wrong: wrap({argv!r})  right: wrap(["bash", "-c", {argv!r}])',
        )
    command = [os.fsdecode(item) for item in argv]
    if not command or not command[0]:
        raise PolicyError(
            "the command is empty",
            fix='give at least a program: wrap(["true"])',
            why="there would be nothing to run",
        )
    for item in command:
        if "\0" in item:
            raise PolicyError(
                f"{item!r} has a NUL in it", why="no argument can contain one", fix="take it out"
            )
    return command


def is_wrapped(argv: Sequence[str]) -> bool:
    """Whether `wrap` made this command line."""
    words = [os.fsdecode(item) for item in argv[:24] if isinstance(item, str | bytes)]
    here = os.path.dirname(__file__)
    launchers = ("inside/__main__.py", "backends/seatbelt_launcher.py")
    if any(os.path.join(here, launcher) in words for launcher in launchers):
        return True
    return any(
        os.path.basename(word) == "bwrap"
        and words[i + 1 : i + 2] == ["--args"]
        and words[i + 3 : i + 4] == ["--"]
        for i, word in enumerate(words)
    )
