"""A look at a cluster from outside: its nodes, and every keeper of every fleet."""

from __future__ import annotations

from typing import Any

from .cluster import NAMESPACE, connect, import_ray

#: Seconds that keepers have to answer.
_PATIENCE = 30


def survey(address: str | None) -> dict[str, Any]:
    """The nodes of a cluster and its keepers, as plain data. It does not renew anybody's lease."""
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
        done, _ = ray.wait(asked, num_returns=len(asked), timeout=_PATIENCE) if asked else ([], [])
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
