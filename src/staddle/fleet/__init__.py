"""Sandboxes on many machines, on Ray: `Fleet`, and `AsyncFleet` for asyncio. Needs the extra `ray`.

  with Fleet(workspace="project") as fleet:
      for done in fleet.map("pytest -q $ITEM", ["tests/a.py", "tests/b.py"]):
          print(done.item, done.get().exit_code)

On each node one keeper, a Ray actor, owns the sandboxes. The driver decides where a sandbox goes
(`placement.py`) and which tasks to retry (`task_map.py`), and sends workspaces and snapshots.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .fleet import AsyncFleet, Fleet
    from .placement import FleetLimits
    from .sandbox import AsyncFleetSandbox, FleetSandbox
    from .task_map import TaskOutcome

__all__ = ["AsyncFleet", "AsyncFleetSandbox", "Fleet", "FleetLimits", "FleetSandbox", "TaskOutcome"]

_HOME = {
    "AsyncFleet": "fleet",
    "AsyncFleetSandbox": "sandbox",
    "Fleet": "fleet",
    "FleetLimits": "placement",
    "FleetSandbox": "sandbox",
    "TaskOutcome": "task_map",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'staddle.fleet' has no attribute {name!r}")
    return getattr(__import__(f"staddle.fleet.{home}", fromlist=[name]), name)
