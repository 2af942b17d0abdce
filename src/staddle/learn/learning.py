"""One sandbox that learns: its watched policy, its recorders, and what it has learned so far."""

from __future__ import annotations

import inspect
import threading
import time

from ..errors import BackendUnavailable, InvalidCall
from ..linux import watched_calls
from ..policy import Network
from ..policy.workspace import compile_session
from . import world
from .facts import Measured, Recording
from .proposal import World, propose, shown_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Literal

    from ..egress_request import EgressRequest
    from ..events import Event
    from ..ipc.agent_client import AgentClient
    from ..limits.usage import Usage
    from ..policy import Policy
    from ..policy.plan import Plan
    from .proposal import Learned
    from .recording import UseRecorder

    Learn = bool | Literal["refuse", "http"]

_MOST_COMMANDS = 1000


class Learning:
    """The state of learning in a sandbox and its forks. Thread-safe.

    With `refuse`, a run is watched under the policy itself; otherwise it may read what its user may read.
    With `http`, requests to the hosts that the policy allows are inspected.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        workspace: str | None,
        mode: str,
        env: Mapping[str, str],
        refuse: bool,
        http: bool = False,
        on_connect: Callable[[Event], Any] | None,
    ) -> None:
        #: Those of the given policy. One without them may have been learned from another command.
        self._toolchains = policy.toolchains
        if policy.preset == "agent" and not refuse:
            policy = policy.replace(toolchains=True)
        self.policy, self._workspace, self._mode, self._env = policy, workspace, mode, env
        self._ask = on_connect
        self._is_open = policy.network.mode == "open" and not refuse
        self._plan = self._compiled(policy)
        self.watched, self._private = world.readable(policy, self._plan)
        if refuse:
            self.watched = policy
        if self._is_open:  # names are only known where the gateway asks
            self.watched = self.watched.with_network(Network.deny())
        if http:
            self.watched = self.watched.with_network(_inspected(policy.network))
        self.asks = self._is_open or on_connect is not None or policy.network.mode in ("deny", "allow")
        self._lock = threading.Lock()
        self._recorders: list[UseRecorder] = []
        self._commands: list[str] = []
        self._failed = self._ended = 0
        self._seconds, self._memory = 0.0, 0
        self._began: dict[int, float] = {}
        self._compared: World | None = None

    def begin(self, agent: AgentClient, backend: str) -> UseRecorder:
        """Watch every process that this agent starts from now on."""
        check_backend(backend)
        from .recording import UseRecorder

        recorder = UseRecorder(self._world())
        try:
            agent.watch(watched_calls.program(), recorder.channel.fileno())
        except BaseException:
            recorder.close()
            raise
        with self._lock:
            recorder.command = len(self._commands) or 1
            self._recorders.append(recorder)
        return recorder

    def decide(self, event: Event) -> Any:
        """Record a destination, and answer: as `on_connect` does, or by the network of the policy."""
        if self._ask is None:
            return self._answered(event, self._is_open)
        answer = self._ask(event)
        if inspect.isawaitable(answer):

            async def awaited() -> bool:
                return self._answered(event, (await answer) is True)

            return awaited()
        return self._answered(event, answer is True)

    def _answered(self, event: Event, allowed: bool) -> bool:
        with self._lock:
            recorders = self._recorders[-1:]
        for recorder in recorders:
            recorder.asked(event.what, allowed)
        return allowed

    def command_begins(self, command: str | tuple[str, ...]) -> None:
        """Number a command that starts."""
        with self._lock:
            if len(self._commands) < _MOST_COMMANDS:
                self._commands.append(shown_command(command))
            for recorder in self._recorders:
                recorder.command = len(self._commands)
            self._began[threading.get_ident()] = time.monotonic()

    def command_ended(self, ok: bool, usage: Usage) -> None:
        """Count the end of a command, and what it took."""
        with self._lock:
            self._ended += 1
            self._failed += not ok
            self._seconds = max(self._seconds, usage.wall)
            self._memory = max(self._memory, usage.memory or 0)

    def learned(self, before: str = "", requests: Iterable[EgressRequest] = ()) -> Learned:
        """Return the proposal so far; `before` is the policy file that it adds to."""
        return propose(self.recording().replace(requests=tuple(requests)), self._world(), before)

    def recording(self) -> Recording:
        """Return everything that was recorded so far."""
        with self._lock:
            recorders, commands = list(self._recorders), tuple(self._commands)
            succeeded = None if not self._ended else not self._failed
            seconds, memory = self._seconds, self._memory or None
        facts = {(fact.path, fact.use): fact for each in reversed(recorders) for fact in each.facts()}
        most = max((each.most_threads for each in recorders), default=0)
        return Recording(
            tuple(facts.values()),
            tuple(dict.fromkeys(fact for each in recorders for fact in each.hosts())),
            commands,
            succeeded,
            Measured(seconds, memory, most),
            sum(each.calls for each in recorders),
            sum(each.unread for each in recorders),
            all(each.is_whole for each in recorders),
        )

    def _world(self) -> World:
        if self._compared is None:
            apart, plan = self._mode in ("overlay", "copy"), self._compiled(self.watched)
            about = self.policy, self._plan, plan, world.home(), self._workspace, apart
            self._compared = World(*about, self._private, self._toolchains)
        return self._compared

    def _compiled(self, policy: Policy) -> Plan:
        access: Literal["read", "write"] = "write" if self._mode == "bind" else "read"
        frozen = self._mode == "readonly"
        return compile_session(policy, self._workspace, access=access, env=self._env, frozen=frozen)[0]


def _inspected(network: Network) -> Network:
    """Return an allow list with a rule for every request to each of its hosts that has no rule."""
    rules = []
    for entry in network.rules:
        if entry.kind != "network" and entry.protocol == "tcp" and not entry.deny:
            known = any(str(rule.host_rule().host) == entry.host for rule in network.http)
            rules += [] if known else [f"* {entry}/**"]
    if not rules:
        raise InvalidCall(
            "no requests can be learned",
            why="the policy allows no host by its name, or has HTTP rules for each already",
            fix="name the hosts with Network.allow, or --allow; `staddle learn --network open` finds them",
        )
    return network.with_http(*rules)


def check_backend(backend: str) -> None:
    """Raise BackendUnavailable unless sandboxes of this backend can be watched."""
    if backend not in ("auto", "namespaces"):
        raise BackendUnavailable(
            "a policy cannot be learned here",
            why=f"programs are watched by their agent, and on {backend} it has no right to do that",
            fix="use the namespaces backend; `staddle doctor` shows how to get it",
        )


def checked(learn: object) -> Learn:
    """Check the argument `learn` of a sandbox."""
    if learn in ("refuse", "http"):
        return learn
    if not isinstance(learn, bool):
        raise InvalidCall(
            f"learn is {learn!r}",
            why="it is neither True, False, 'refuse' nor 'http'",
            fix="use True to let the run read, 'http' to inspect its requests, 'refuse' to watch its policy",
        )
    return learn
