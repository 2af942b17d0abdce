"""Placement: which node gets the next sandbox, and which requests wait. Uses no clock, no Ray and no node.

A node has room for a number of sandboxes. A request waits if there is no room, or if its tenant is at its
limit. Tenants take turns; requests of one tenant are served in order. If `waiting` requests wait already, a
further one is refused at once, so that a caller that is too fast notices.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from staddle import check
from staddle.errors import FleetBusy, FleetError, SandboxLost

#: With at most this many nodes, look for one that already has the content; with more, take any.
_FEW = 16


@dataclass(frozen=True)
class FleetLimits:
    """Bounds of a fleet.

    `per_node` is the most sandboxes on one node, `total` on all nodes (None: limited only by the nodes).
    `tenant` is the most sandboxes of one tenant; `tenants` overrides it by name. `waiting` is the most
    requests that wait for room.
    """

    per_node: int | None = None
    total: int | None = None
    tenant: int | None = None
    tenants: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 10_000

    def __post_init__(self) -> None:
        named = {"per_node": self.per_node, "total": self.total, "tenant": self.tenant}
        named |= {f"tenants[{name!r}]": value for name, value in self.tenants.items()}
        for name, value in named.items():
            if value is not None:
                check.count(name, value, fix="give a number of sandboxes, at least 1")
        check.count("waiting", self.waiting, 0, fix="give a number of requests, 0 for none")

    def of(self, tenant: str) -> int | None:
        """The most sandboxes of that tenant."""
        return self.tenants.get(tenant, self.tenant)


@dataclass
class NodeRoom:
    """One node: its capacity, the sandboxes in use, and the content that it has fetched."""

    name: str
    capacity: int
    used: int = 0
    content: set[str] = field(default_factory=set)
    version: int = 0

    @property
    def free(self) -> int:
        """Number of sandboxes that still fit."""
        return self.capacity - self.used


@dataclass(frozen=True)
class Reservation:
    """The right to one sandbox on a node. `Placement.release` returns it."""

    node: str
    tenant: str
    serial: int


@dataclass(eq=False)
class _Request:  # compared by identity: several requests may be equal
    tenant: str
    content: str
    only: str
    future: Future[Reservation]


class Placement:
    """Assigns sandboxes of tenants to nodes. Thread-safe."""

    def __init__(self, limits: FleetLimits | None = None) -> None:
        self.limits = limits or FleetLimits()
        self.nodes: dict[str, NodeRoom] = {}
        self.grants: dict[int, Reservation] = {}
        self._by_node: dict[str, set[int]] = {}
        self._tenants: dict[str, int] = {}
        #: By tenant and required node, if any: requests for one node wait separately.
        self._queues: OrderedDict[tuple[str, str], deque[_Request]] = OrderedDict()
        self._waiting = 0
        self._serial = 0
        #: (used part, serial, name, version), emptiest first; entries with another version are outdated.
        self._heap: list[tuple[float, int, str, int]] = []
        self._lock = threading.RLock()
        self._closed: FleetError | None = None

    # ------------------------------------------------------------ nodes

    def join(self, node: str, capacity: int) -> None:
        """Use a node from now on, even one that was lost before."""
        if self.limits.per_node is not None:
            capacity = min(capacity, self.limits.per_node)
        with self._lock:
            if node not in self.nodes:
                self.nodes[node] = NodeRoom(node, capacity)
                self._by_node[node] = set()
                self._changed(self.nodes[node])
                self._serve()

    def leave(self, node: str) -> list[Reservation]:
        """Stop using a node; return the reservations lost with it."""
        with self._lock:
            if self.nodes.pop(node, None) is None:
                return []
            lost = [self.grants.pop(serial) for serial in sorted(self._by_node.pop(node))]
            for grant in lost:
                self._one_less(grant.tenant)
            self._serve()
            return lost

    def has_content(self, node: str, digest: str) -> None:
        """Record that the node has that content, and so is better for sandboxes that need it."""
        with self._lock:
            if node in self.nodes:
                self.nodes[node].content.add(digest)

    # ------------------------------------------------------------ sandboxes

    def take_now(self, tenant: str = "", content: str = "") -> Reservation | None:
        """Room for one sandbox, if there is some and no other request waits for it."""
        with self._lock:
            self._refuse_closed()
            if self._waiting and any(self._may(name) for name, only in self._queues if not only):
                return None
            return self._grant(tenant, content, "")

    def ask(self, tenant: str = "", content: str = "", only: str = "") -> Future[Reservation]:
        """Room for one sandbox, now or later. FleetBusy if too many requests wait already.

        `content` is the digest of the content that it needs there; `only` is the required node.
        """
        with self._lock:
            self._refuse_closed()
            future: Future[Reservation] = Future()
            if (
                not self._queues.get((tenant, only))
                and (found := self._grant(tenant, content, only)) is not None
            ):
                future.set_result(found)
                return future
            if self._waiting >= self.limits.waiting:
                raise FleetBusy(
                    f"{self._waiting} requests for a sandbox wait already",
                    why=f"all {len(self.nodes)} nodes are full, or a tenant has as many as it may have",
                    fix="ask more slowly, close sandboxes, or add nodes",
                )
            self._queues.setdefault((tenant, only), deque()).append(_Request(tenant, content, only, future))
            self._waiting += 1
            return future

    def withdraw(self, asked: Future[Reservation]) -> None:
        """Cancel a request; if it was granted meanwhile, release the reservation."""

        def give_back(done: Future[Reservation]) -> None:
            if done.exception() is None:
                self.release(done.result())

        with self._lock:
            for key, queue in self._queues.items():
                request = next((request for request in queue if request.future is asked), None)
                if request is not None:
                    queue.remove(request)
                    self._waiting -= 1
                    if not queue:
                        del self._queues[key]
                    break
            if not asked.cancel():
                asked.add_done_callback(give_back)
            self._serve()  # requests behind it may fit now

    def is_valid(self, grant: Reservation) -> bool:
        """Whether it was neither released nor lost with its node."""
        return grant.serial in self.grants

    def release(self, grant: Reservation) -> None:
        """Release it. Does nothing the second time, or after its node was lost."""
        with self._lock:
            if self.grants.pop(grant.serial, None) is None:
                return
            self._by_node[grant.node].discard(grant.serial)
            room = self.nodes[grant.node]
            room.used -= 1
            self._changed(room)
            self._one_less(grant.tenant)
            self._serve()

    def close(self, error: FleetError) -> None:
        """Refuse all waiting and all further requests with this error."""
        with self._lock:
            self._closed = error
            waiting = [request for queue in self._queues.values() for request in queue]
            self._queues.clear()
            self._waiting = 0
        for request in waiting:
            if request.future.set_running_or_notify_cancel():
                request.future.set_exception(error)

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return self._waiting

    def of_tenants(self) -> dict[str, int]:
        """Number of sandboxes of each tenant."""
        with self._lock:
            return dict(self._tenants)

    # ------------------------------------------------------------ with the lock

    def _refuse_closed(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _may(self, tenant: str) -> bool:
        most = self.limits.of(tenant)
        return most is None or self._tenants.get(tenant, 0) < most

    def _grant(self, tenant: str, content: str, only: str) -> Reservation | None:
        total = self.limits.total
        if not self._may(tenant) or (total is not None and len(self.grants) >= total):
            return None
        room = self.nodes.get(only) if only else self._near(content) or self._emptiest()
        if room is None or room.free <= 0:
            return None
        room.used += 1
        self._changed(room)
        self._serial += 1
        grant = Reservation(room.name, tenant, self._serial)
        self.grants[grant.serial] = grant
        self._by_node[room.name].add(grant.serial)
        self._tenants[tenant] = self._tenants.get(tenant, 0) + 1
        return grant

    def _near(self, content: str) -> NodeRoom | None:
        """The emptiest node with the content, unless it is half full already."""
        if not content or len(self.nodes) > _FEW:
            return None
        found = [
            room for room in self.nodes.values() if content in room.content and room.used * 2 < room.capacity
        ]
        return min(found, key=lambda room: room.used / room.capacity, default=None)

    def _emptiest(self) -> NodeRoom | None:
        while self._heap:
            _, _, name, version = self._heap[0]
            room = self.nodes.get(name)
            if room is not None and room.version == version:
                return room
            heapq.heappop(self._heap)
        return None

    def _changed(self, room: NodeRoom) -> None:
        room.version += 1
        self._serial += 1
        part = room.used / room.capacity if room.capacity else 1.0
        heapq.heappush(self._heap, (part, self._serial, room.name, room.version))
        if len(self._heap) > 64 + 4 * len(self.nodes):
            self._heap = [
                entry
                for entry in self._heap
                if entry[2] in self.nodes and self.nodes[entry[2]].version == entry[3]
            ]
            heapq.heapify(self._heap)

    def _one_less(self, tenant: str) -> None:
        self._tenants[tenant] -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]

    def _serve(self) -> None:
        """Grant free places to waiting requests, one per tenant in turn."""
        idle = 0
        while self._waiting and idle < len(self._queues):
            key, queue = next(iter(self._queues.items()))
            self._queues.move_to_end(key)
            while queue and queue[0].future.cancelled():
                queue.popleft()
                self._waiting -= 1
            if not queue:
                del self._queues[key]
                continue
            request = queue[0]
            if request.only and request.only not in self.nodes:
                queue.popleft()
                self._waiting -= 1
                if request.future.set_running_or_notify_cancel():
                    request.future.set_exception(_node_lost(request.only))
                continue
            found = self._grant(request.tenant, request.content, request.only)
            if found is None:
                idle += 1
                continue
            idle = 0
            queue.popleft()
            self._waiting -= 1
            if not queue:
                del self._queues[key]
            if request.future.set_running_or_notify_cancel():
                request.future.set_result(found)
            else:
                self.release(found)


def _node_lost(node: str) -> SandboxLost:
    return SandboxLost(
        f"node {node[:8]} has left the fleet",
        fix="fork from a snapshot that was saved",
        why="its machine went down, or was taken out",
    )
