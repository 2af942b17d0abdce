"""`Fleet` and `AsyncFleet`: sandboxes on the nodes of a Ray cluster.

with Fleet() as fleet:                         # a Ray of its own, on this machine
    with fleet.create(workspace="project") as sb:
        sb.run("make test").check()
        best = max(sb.fork(8), key=score)
        best.commit()
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from staddle import check

from .cluster import Cluster, FleetEvent, FleetSettings
from .content_store import ContentStore, SentTree
from .factory import SandboxFactory
from .placement import FleetLimits
from .sandbox import AsyncFleetSandbox, FleetSandbox
from .steps import finish, finish_awaited
from .task_map import TaskMap


class _FleetFace:
    """Common part of `Fleet` and `AsyncFleet`."""

    def __init__(
        self,
        address: str | None = None,
        *,
        limits: FleetLimits | None = None,
        warm: int = 2,
        cpus: float = 0.0,
        memory: int = 0,
        gpus: int = 0,
        lease: float = 30.0,
        head_patience: float = 20.0,
        runtime_env: Mapping[str, Any] | None = None,
        ray_options: Mapping[str, Any] | None = None,
        on_event: Callable[[FleetEvent], object] | None = None,
        logs: str | os.PathLike[str] | None = None,
        **defaults: Any,
    ) -> None:
        check.seconds("lease", lease, 2, fix="give a number of seconds, at least 2")
        check.count("warm", warm, 0, fix="give a number of sandboxes, 0 for none")
        if logs is not None:
            os.makedirs(logs, mode=0o700, exist_ok=True)
        settings = FleetSettings(
            address=address,
            limits=limits or FleetLimits(),
            warm=warm,
            cpus=float(cpus),
            memory=int(memory),
            gpus=check.count("gpus", gpus, 0, fix="give a number of GPUs, 0 for none"),
            lease=float(lease),
            head_patience=float(head_patience),
            runtime_env=runtime_env,
            ray_options=dict(ray_options or {}),
            on_event=on_event,
            logs=None if logs is None else os.fspath(logs),
        )
        self._cluster = Cluster(settings)
        try:
            self._store = ContentStore()
            self._factory = SandboxFactory(self._cluster, self._store, defaults)
            self._cluster.wait_for_a_node()
        except BaseException:
            self._cluster.close()
            raise

    @property
    def id(self) -> str:
        """Its id, which keepers, metrics and logs contain."""
        return self._cluster.id

    def status(self) -> dict[str, Any]:
        """The state of the fleet as plain data: nodes, sandboxes, tenants, waiting requests, losses."""
        cluster, placement = self._cluster, self._cluster.placement
        nodes = [
            {
                "node": keeper.node,
                "ready": keeper.ready,
                "capacity": keeper.capacity,
                "in_use": room.used if (room := placement.nodes.get(keeper.node)) is not None else 0,
                **{name: keeper.facts[name] for name in _FACTS if name in keeper.facts},
            }
            for keeper in list(cluster.keepers.values())
        ]
        return {
            "fleet": cluster.id,
            "problem": "" if cluster.error is None else str(cluster.error),
            "nodes": nodes,
            "in_use": len(placement.grants),
            "capacity": sum(room.capacity for room in list(placement.nodes.values())),
            "waiting": placement.waiting,
            "tenants": placement.of_tenants(),
            "lost_sandboxes": cluster.lost_sandboxes,
            "sent_bytes": self._store.put_bytes,
        }

    def events(self) -> list[FleetEvent]:
        """The last ten thousand events, oldest first."""
        return list(self._cluster.events)

    def map(
        self,
        work: str | Callable[..., Any],
        items: Iterable[Any],
        *,
        concurrency: int | None = None,
        ordered: bool = True,
        retries: int = 0,
        progress: bool | Callable[[int, int, int | None], object] = False,
        tenant: str = "",
        timeout: float | None = None,
        **options: Any,
    ) -> TaskMap:
        """Run a task for each of `items`, each in a fresh sandbox; iterate over the result for the outcomes.

        `work` is a command or a function. A command gets its item in `$ITEM` (an item that is a mapping: in
        the variables that it names), and the outcome's value is its `Result`. A function `work(sandbox,
        item)` is called on the node with a `staddle.Sandbox`, and the value is its return value.
        `concurrency` is the number of tasks at a time (default: two per CPU of the cluster). Outcomes come in
        the order of the items, or with `ordered=False` as they finish. Items are read on demand, so they may
        be endless.

        Each task runs once. If its node is lost, its outcome is `SandboxLost`. `retries` is the number of
        further tries, for tasks that may run twice. `progress` is True for a bar on a terminal, or a function
        of the numbers of tasks done, failed, and in total (None: unknown). `timeout` is that of a command;
        the other options are those of `create`.
        """
        command_options = {} if timeout is None else {"timeout": timeout}
        return TaskMap(
            self._factory,
            work,
            items,
            concurrency=concurrency,
            ordered=ordered,
            retries=retries,
            progress=progress,
            tenant=tenant,
            command_options=command_options,
            sandbox_options=options,
        )

    def __repr__(self) -> str:
        used, nodes = len(self._cluster.placement.grants), len(self._cluster.placement.nodes)
        return f"<{type(self).__name__} {self.id}: {used} sandboxes on {nodes} nodes>"


class Fleet(_FleetFace):
    """Sandboxes on the nodes of a Ray cluster, open until `close()`. For threads.

    `address` is that of a cluster ("auto", "host:port"; "ray://…" is not supported). The default is
    `RAY_ADDRESS`, or a Ray started for this program on this machine's loopback, which ends with it. If the
    program is already connected to Ray, the fleet uses that connection. `limits` bound nodes, tenants and
    waiting requests. On each node the keeper keeps `warm` sandboxes of the requested kinds ready, and
    reserves `cpus` and `memory` with Ray. With `gpus`, it reserves at most that many NVIDIA GPUs of each
    node, and each sandbox has one of them for itself; nodes without a GPU are not used. Sandboxes end when
    the driver ends, or after `lease` seconds without contact to it. `head_patience` is the time for which the
    head of the cluster may be silent. `runtime_env` is for keepers, `ray_options` for ray.init. `on_event` is
    called for each event. `logs` is a directory for one log per sandbox. The other options are those of
    `create`, as defaults for each sandbox.
    """

    def create(
        self, *, tenant: str = "", snapshot: Any = None, timeout: float | None = None, **options: Any
    ) -> FleetSandbox:
        """A sandbox on the node with the most room; waits for room, at most `timeout` seconds.

        Options are `policy`, `workspace` (a directory of the driver, or the result of `put`), `base`, `mode`,
        `env`, `backend`, `best_effort`, `identity`, `environment`. `snapshot` is a `staddle.Snapshot`, the
        file of one, or a snapshot of a sandbox of this fleet. Paths in a policy are paths on the node.
        """
        made = finish(self._factory.create(tenant=tenant, snapshot=snapshot, timeout=timeout, **options))
        return FleetSandbox(made, self._factory)

    def put(self, directory: str | os.PathLike[str]) -> SentTree:
        """Send a directory once, for many sandboxes: `create(workspace=fleet.put("project"))`."""
        return self._store.tree(directory)

    def close(self) -> None:
        """Close every sandbox and every keeper. A second call does nothing."""
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncFleet(_FleetFace):
    """Sandboxes on the nodes of a Ray cluster, awaited; the arguments are those of `Fleet`."""

    async def create(
        self, *, tenant: str = "", snapshot: Any = None, timeout: float | None = None, **options: Any
    ) -> AsyncFleetSandbox:
        """A sandbox on the node with the most room; see `Fleet.create`."""
        work = self._factory.create(tenant=tenant, snapshot=snapshot, timeout=timeout, **options)
        return AsyncFleetSandbox(await finish_awaited(work), self._factory)

    async def put(self, directory: str | os.PathLike[str]) -> SentTree:
        """Send a directory once, for many sandboxes."""
        import asyncio

        return await asyncio.to_thread(self._store.tree, directory)

    async def close(self) -> None:
        """Close every sandbox and every keeper. A second call does nothing."""
        import asyncio

        await asyncio.to_thread(self._cluster.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


#: The facts that a keeper reports about itself.
_FACTS = ("pid", "version", "open", "warm", "tasks", "created", "closed", "commands", "fetched_bytes")
