"""Metrics of a keeper, for Prometheus through Ray's own exporter. They are flushed once a second."""

from __future__ import annotations

import threading
from typing import Any

#: Upper bounds of the histograms, in seconds.
_BOUNDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0]
#: Most observations to keep between two flushes.
_MOST = 1000


class KeeperMetrics:
    """Counters that cost a command almost nothing."""

    def __init__(self, fleet: str, node: str) -> None:
        self._tags = {"fleet": fleet, "node": node}
        self._lock = threading.Lock()
        self.totals = {"created": 0, "closed": 0, "commands": 0}
        self._flushed = dict(self.totals)
        self._creations: list[float] = []
        self._commands: list[float] = []
        self._ray: dict[str, Any] | None = None

    def created(self, seconds: float) -> None:
        """Count an opened sandbox."""
        with self._lock:
            self.totals["created"] += 1
            if len(self._creations) < _MOST:
                self._creations.append(seconds)

    def closed(self) -> None:
        """Count a closed sandbox."""
        with self._lock:
            self.totals["closed"] += 1

    def ran(self, seconds: float) -> None:
        """Count a finished command."""
        with self._lock:
            self.totals["commands"] += 1
            if len(self._commands) < _MOST:
                self._commands.append(seconds)

    def flush(self, opened: int, warm: int) -> None:
        """Report everything to Ray."""
        metrics = self._metrics()
        with self._lock:
            creations, self._creations = self._creations, []
            commands, self._commands = self._commands, []
            totals = dict(self.totals)
        metrics["open"].set(opened)
        metrics["warm"].set(warm)
        for name, total in totals.items():
            if total > self._flushed[name]:
                metrics[name].inc(total - self._flushed[name])
        self._flushed = totals
        for seconds in creations:
            metrics["creation"].observe(seconds)
        for seconds in commands:
            metrics["command"].observe(seconds)

    def _metrics(self) -> dict[str, Any]:
        if self._ray is None:
            from ray.util.metrics import Counter, Gauge, Histogram

            keys = tuple(self._tags)
            self._ray = {
                "open": Gauge("staddle_fleet_sandboxes", "Sandboxes that are open", keys),
                "warm": Gauge("staddle_fleet_warm_sandboxes", "Sandboxes that are warm", keys),
                "created": Counter("staddle_fleet_created", "Sandboxes that were opened", keys),
                "closed": Counter("staddle_fleet_closed", "Sandboxes that were closed", keys),
                "commands": Counter("staddle_fleet_commands", "Commands and tasks that finished", keys),
                "creation": Histogram("staddle_fleet_creation_seconds", "To open one", _BOUNDS, keys),
                "command": Histogram("staddle_fleet_command_seconds", "To run one command", _BOUNDS, keys),
            }
            for metric in self._ray.values():
                metric.set_default_tags(self._tags)
        return self._ray
