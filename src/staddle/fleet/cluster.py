"""The driver's side of a cluster: a keeper on each node, their leases and their health.

One thread checks the cluster once a second: it starts keepers on new nodes, renews leases, and notices
losses. If that thread gets no answer any more, a second one concludes that the head of the cluster is dead.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from staddle.errors import ExtraMissing, FleetError, FleetLost, SandboxLost

from .channel import CommandChannel
from .placement import FleetLimits, Placement


class Losable(Protocol):
    """A sandbox that can be lost."""

    name: str

    def log(self, what: str, **facts: Any) -> None: ...


NAMESPACE = "staddle"
#: A resource of Ray nodes: the most sandboxes on a node, for all fleets together.
RESOURCE = "staddle_sandboxes"
#: Defaults for nodes without that resource: sandboxes per CPU, and memory per sandbox.
_PER_CPU, _MEMORY_EACH = 128, 32 << 20
#: Seconds between two checks, and before a dead keeper is replaced.
_TICK, _AFTER_DEATH = 1.0, 2.0
#: Seconds for keepers to answer a survey.
_SURVEY_PATIENCE = 30
#: Seconds for a keeper to answer `hello`, including the first one.
_TO_START = 300.0
#: Seconds for keepers to close everything.
_TO_STOP = 30.0


@dataclass(frozen=True)
class FleetEvent:
    """One event of a fleet: `kind`, the node, the sandbox if it is about one, a sentence."""

    time: float
    kind: str
    node: str = ""
    sandbox: str = ""
    text: str = ""


@dataclass(frozen=True)
class FleetSettings:
    """The settings of a fleet, for its keepers and its threads."""

    address: str | None = None
    limits: FleetLimits = field(default_factory=FleetLimits)
    warm: int = 2
    cpus: float = 0.0
    memory: int = 0
    gpus: int = 0
    lease: float = 30.0
    head_patience: float = 20.0
    runtime_env: Mapping[str, Any] | None = None
    ray_options: Mapping[str, Any] = field(default_factory=dict)
    on_event: Callable[[FleetEvent], object] | None = None
    logs: str | None = None


class KeeperHandle:
    """A keeper as the driver knows it. `lost` is the reason why it is lost; empty while it works."""

    def __init__(self, node: str, actor: Any, capacity: int, hello: Any) -> None:
        self.node, self.actor, self.capacity = node, actor, capacity
        self.hello, self.began = hello, time.monotonic()
        self.ready = False
        self.lost = ""
        self.facts: dict[str, Any] = {}
        self.sandboxes: weakref.WeakValueDictionary[str, Losable] = weakref.WeakValueDictionary()
        self.renewal: Any = None
        #: The direct connections, while they are usable.
        self.channel: CommandChannel | None = None

    def welcome(self, facts: dict[str, Any]) -> None:
        """Record its answer to `hello`."""
        if (direct := facts.pop("direct", None)) is not None:
            self.channel = CommandChannel(*direct)
        self.ready, self.facts = True, facts

    def hang_up(self) -> None:
        """Close every connection; calls that wait on one raise."""
        if self.channel is not None:
            self.channel.close()


class Cluster:
    """All nodes of one fleet."""

    def __init__(self, settings: FleetSettings) -> None:
        self.ray = import_ray()
        self.settings = settings
        self.id = uuid.uuid4().hex[:12]
        self.placement = Placement(settings.limits)
        self.keepers: dict[str, KeeperHandle] = {}
        self.error: Exception | None = None
        self.events: deque[FleetEvent] = deque(maxlen=10_000)
        self.lost_sandboxes = 0
        self._pending: weakref.WeakSet[asyncio.Future[Any]] = weakref.WeakSet()
        self._not_before: dict[str, float] = {}
        self._serial = 0
        self._lock = threading.RLock()
        self._first = threading.Event()
        self._ended = threading.Event()
        address = settings.address or os.environ.get("RAY_ADDRESS") or "local"
        self._owns_ray = connect(self.ray, address, settings.ray_options)
        self._seen = time.monotonic()
        self._watcher = threading.Thread(target=self._watch, name="staddle-fleet", daemon=True)
        self._guard = threading.Thread(target=self._watch_head, name="staddle-fleet-head", daemon=True)
        self._watcher.start()
        self._guard.start()

    def wait_for_a_node(self) -> None:
        """Wait until the first keeper is ready."""
        if self.settings.gpus and not self.ray.cluster_resources().get("GPU"):
            raise FleetError(
                "no node of the cluster has a GPU",
                why="Ray counts none",
                fix="start nodes with `ray start --num-gpus`, or leave gpus out",
            )
        end = time.monotonic() + _TO_START
        while not self._first.wait(0.1):
            if self.error is not None:
                raise self.error
            if time.monotonic() > end:
                raise FleetError(
                    "no node of the cluster can take a keeper",
                    why=self.events[-1].text if self.events else f"none was ready in {_TO_START:g} seconds",
                    fix="ask for less (cpus=, memory=), or free some; `ray status` lists what is in use",
                )

    # ------------------------------------------------------------ health

    def watch(self, future: asyncio.Future[Any]) -> None:
        """Let `future` fail when the fleet is lost."""
        if self.error is not None:
            raise self.error
        self._pending.add(future)

    def tell(self, kind: str, node: str = "", sandbox: str = "", text: str = "") -> None:
        """Record an event and call `on_event`."""
        event = FleetEvent(time.time(), kind, node, sandbox, text)
        self.events.append(event)
        if self.settings.on_event is not None:
            try:
                self.settings.on_event(event)
            except Exception as error:
                # The threads that keep the sandboxes alive call it, so they must go on.
                self.events.append(FleetEvent(time.time(), "on_event failed", text=_first_line(error)))

    def lose(self, keeper: KeeperHandle, why: str) -> None:
        """Mark a keeper and its sandboxes as lost."""
        with self._lock:
            if keeper.lost:
                return
            keeper.lost = why or "its keeper exited"
            if self.keepers.get(keeper.node) is keeper:
                del self.keepers[keeper.node]
            self._not_before[keeper.node] = time.monotonic() + _AFTER_DEATH
            self.placement.leave(keeper.node)
            lost = list(keeper.sandboxes.values())
            self.lost_sandboxes += len(lost)
        keeper.hang_up()
        self._kill(keeper)  # it may be alive but unreachable: nothing of it may remain
        self.tell("keeper lost", keeper.node, text=f"{keeper.lost}; {len(lost)} sandboxes are lost")
        for sandbox in lost:
            sandbox.log("lost", why=keeper.lost)
            self.tell("sandbox lost", keeper.node, sandbox.name, keeper.lost)

    def _kill(self, keeper: KeeperHandle) -> threading.Thread:
        """Let Ray kill a keeper, in a separate thread: without a head this call blocks."""

        def kill() -> None:
            try:
                self.ray.kill(keeper.actor)
            except Exception:  # noqa: S110 - it is dead already
                pass

        killing = threading.Thread(target=kill, name="staddle-fleet-kill", daemon=True)
        killing.start()
        return killing

    def failure(self, keeper: KeeperHandle, error: BaseException, what: str) -> Exception:
        """The error to raise when a call to a keeper failed in Ray."""
        if self.error is not None:
            return self.error
        if isinstance(error, self.ray.exceptions.RayActorError | self.ray.exceptions.OwnerDiedError):
            self.lose(keeper, _first_line(error))
            return SandboxLost(
                f"{what} is lost",
                why=f"its keeper on node {keeper.node[:8]} was lost: {keeper.lost}",
                fix="what ran may have run in part; create another one",
            )
        return FleetError(
            f"{what}: Ray failed", why=_first_line(error), fix="read `ray status` and Ray's logs"
        )

    def _fail(self, error: FleetLost) -> None:
        """Mark the fleet as failed; every further request raises."""
        self.error = error
        self.placement.close(error)
        self.tell("fleet lost", text=str(error))
        for keeper in list(self.keepers.values()):
            keeper.hang_up()
        for future in list(self._pending):
            loop = future.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_fail_future, future, error)

    def _watch_head(self) -> None:
        while not self._ended.wait(_TICK):
            silent = time.monotonic() - self._seen
            if silent > self.settings.head_patience and self.error is None:
                self._fail(
                    FleetLost(
                        "the head of the Ray cluster does not answer",
                        why=f"it has not for {silent:.0f} seconds",
                        fix="its sandboxes end with their leases; start the cluster again, and another Fleet",
                    )
                )

    # ------------------------------------------------------------ the watcher

    def _watch(self) -> None:
        renewed = 0.0
        every = min(5.0, self.settings.lease / 5)
        while not self._ended.is_set() and self.error is None:
            began = time.monotonic()
            try:
                alive = {node["NodeID"]: node["Resources"] for node in self.ray.nodes() if node["Alive"]}
                self._seen = time.monotonic()
            except Exception:
                self._ended.wait(_TICK)
                continue
            due = time.monotonic() - renewed > every
            renewed = time.monotonic() if due else renewed
            try:
                self._tend(alive, due)
            except Exception as error:
                self.tell("look failed", text=_first_line(error))  # the next check is in a second
            # With very many nodes a check is slow; spend at most a tenth of the time on checks.
            pause = max(_TICK, 10 * (time.monotonic() - began))
            self._ended.wait(min(pause, every) if self._first.is_set() else 0.05)

    def _tend(self, alive: Mapping[str, Mapping[str, float]], due: bool) -> None:
        """Drop keepers of removed nodes, start keepers on new nodes, and check the others."""
        with self._lock:
            known = dict(self.keepers)
        for name, keeper in known.items():
            if name not in alive:
                self.lose(keeper, "its node has left the cluster")
        for keeper in list(self.keepers.values()):
            self._look_at(keeper, due)
        for name in alive.keys() - self.keepers.keys():
            if time.monotonic() >= self._not_before.get(name, 0.0) and not self._ended.is_set():
                self._start_keeper(name, alive[name])

    def _start_keeper(self, node: str, resources: Mapping[str, float]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from .keeper import Keeper

        capacity = capacity_of(resources, self.settings.limits.per_node)
        if self.settings.gpus:  # one for each sandbox
            capacity = min(capacity, self.settings.gpus, int(resources.get("GPU", 0)))
        if capacity < 1:
            self._not_before[node] = float("inf")
            return
        self._serial += 1
        options: dict[str, Any] = {
            "name": f"keeper-{self.id}-{node[:12]}-{self._serial}",
            "namespace": NAMESPACE,
            "num_cpus": self.settings.cpus,
            "max_concurrency": 2 * capacity + 64,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        if self.settings.memory:
            options["memory"] = self.settings.memory
        if self.settings.gpus:
            options["num_gpus"] = capacity
        if RESOURCE in resources:
            options["resources"] = {RESOURCE: capacity}
        if self.settings.runtime_env is not None:
            options["runtime_env"] = dict(self.settings.runtime_env)
        settings = (self.id, node, capacity, self.settings.warm, self.settings.lease)
        actor = self.ray.remote(Keeper).options(**options).remote(*settings)
        with self._lock:
            self.keepers[node] = KeeperHandle(node, actor, capacity, actor.hello.remote())

    def _look_at(self, keeper: KeeperHandle, due: bool) -> None:
        """Welcome it, or renew its lease."""
        if not keeper.ready:
            done = self._answer(keeper, keeper.hello)
            if done is not None:
                keeper.welcome(done)
                self.placement.join(keeper.node, keeper.capacity)
                self._first.set()
                self.tell("keeper started", keeper.node, text=f"room for {keeper.capacity} sandboxes")
            elif not keeper.lost and time.monotonic() - keeper.began > _TO_START:
                self.lose(keeper, "no room for a keeper on its node")
            return
        if keeper.renewal is not None and (done := self._answer(keeper, keeper.renewal)) is not None:
            keeper.facts, keeper.renewal = done, None
        if due and keeper.renewal is None and not keeper.lost:
            keeper.renewal = keeper.actor.renew.remote()

    def _answer(self, keeper: KeeperHandle, ref: Any) -> dict[str, Any] | None:
        """The keeper's answer, if there is one. A dead keeper is marked as lost."""
        done, _ = self.ray.wait([ref], timeout=0)
        if not done:
            return None
        try:
            kind, value = self.ray.get(ref, timeout=10)
        except Exception as error:
            self.lose(keeper, _first_line(error))
            return None
        if kind == "error":
            self.lose(keeper, str(value))
            return None
        found: dict[str, Any] = value
        return found

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """End every keeper and all sandboxes. A second call does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self.error is None:
            self.error = closed = FleetLost(
                "the fleet is closed", fix="make another one", why="close() was called"
            )
            self.placement.close(closed)
            self._stop_keepers(_TO_STOP)
        else:
            self._stop_keepers(_TICK)  # without a head, stop only the reachable ones
        for keeper in list(self.keepers.values()):
            keeper.hang_up()
        self._watcher.join(5)
        if self._owns_ray:
            self.ray.shutdown()

    def _stop_keepers(self, seconds: float) -> None:
        """Let them close everything and exit; kill those that do not in time."""
        keepers = [keeper for keeper in self.keepers.values() if not keeper.lost]
        try:
            self._all([keeper.actor.stop.remote() for keeper in keepers if keeper.ready], seconds)
            self._all([keeper.actor.__ray_terminate__.remote() for keeper in keepers], seconds / 3)
            end = time.monotonic() + seconds / 3
            for killing in [self._kill(keeper) for keeper in keepers]:
                killing.join(max(0.0, end - time.monotonic()))
        except Exception as error:
            # Ray has ended, or is unreachable: keepers end with the program, or with their lease.
            self.tell("keepers not stopped", text=_first_line(error))

    def _all(self, refs: list[Any], seconds: float) -> None:
        if refs:
            self.ray.wait(refs, num_returns=len(refs), timeout=seconds)


def import_ray() -> Any:
    """The module `ray`, or ExtraMissing."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ExtraMissing("a fleet needs Ray", why=str(error), fix="pip install 'staddle[ray]'") from error
    return ray


def connect(ray: Any, address: str, options: Mapping[str, Any]) -> bool:
    """Connect to Ray unless the program already has; return whether we must disconnect."""
    if ray.is_initialized():
        return False
    given: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": NAMESPACE}
    if address == "local":
        # Only this program uses it: no dashboard, and no ports outside this machine's loopback.
        given |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        # A busy machine must not make the start fail.
        os.environ.setdefault("RAY_agent_register_timeout_ms", "300000")
        os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")
    try:
        ray.init(address=address, **{**given, **options})
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise FleetError(
            f"the Ray cluster at {address!r} cannot be used",
            why=_first_line(error),
            fix="start one with `ray start --head`, or leave the address out",
        ) from error
    return True


def capacity_of(resources: Mapping[str, float], per_node: int | None) -> int:
    """The number of sandboxes that a node with these Ray resources may have."""
    if RESOURCE in resources:
        declared = int(resources[RESOURCE])
        return declared if per_node is None else min(declared, per_node)
    if per_node is not None:
        return per_node
    by_cpu = max(1, int(resources.get("CPU", 1) * _PER_CPU))
    return max(1, min(by_cpu, int(resources.get("memory", 1 << 40) // _MEMORY_EACH)))


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def _fail_future(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def survey(address: str | None) -> dict[str, Any]:
    """The nodes of a cluster and its keepers, as plain data. Renews no lease."""
    ray = import_ray()
    ours = connect(ray, address or "auto", {})
    try:
        nodes = [
            {
                "node": node["NodeID"],
                "alive": node["Alive"],
                "address": node["NodeManagerAddress"],
                "cpus": node["Resources"].get("CPU", 0.0),
            }
            for node in ray.nodes()
        ]
        asked = []
        for found in ray.util.list_named_actors(all_namespaces=True):
            if found["namespace"] == NAMESPACE and found["name"].startswith("keeper-"):
                try:
                    asked.append(ray.get_actor(found["name"], namespace=NAMESPACE).status.remote())
                except ValueError:
                    continue  # it has just ended
        done, _ = ray.wait(asked, num_returns=len(asked), timeout=_SURVEY_PATIENCE) if asked else ([], [])
        keepers = []
        for ref in done:
            try:
                kind, value = ray.get(ref)
            except ray.exceptions.RayError:
                continue
            if kind == "ok":
                keepers.append(value)
        return {"nodes": nodes, "keepers": keepers}
    finally:
        if ours:
            ray.shutdown()
