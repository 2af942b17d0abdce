"""Several Ray nodes on this machine, with few CPUs, small object stores and no dashboard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

# A busy machine starts them slowly. Before Ray is loaded.
os.environ.setdefault("RAY_agent_register_timeout_ms", "300000")
os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_log_monitor": False}


class Nodes:
    """A cluster of this machine: a head, and `more` nodes. To be closed."""

    def __init__(self, more: int) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        self.others = [self.add() for _ in range(more)]

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self) -> Any:
        return self.cluster.add_node(**NODE)

    def connect(self) -> None:
        import ray

        ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")

    def kill(self, node: Any) -> None:
        """As if the machine had lost power: its processes get SIGKILL."""
        self.cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()


def leftovers(mark: str = "") -> list[str]:
    """Directories of keepers that exist, and processes with `mark` among their arguments."""
    home = Path(f"/tmp/staddle-fleet-{os.getuid()}")
    found = [str(path) for path in home.iterdir()] if home.is_dir() else []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark and mark.encode() in words:
            found.append(name)
    return found
