"""Several Ray nodes on this machine, with few CPUs, small object stores, no dashboard; witnesses of tasks."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
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
        self.cluster = head()
        self.others = [self.add() for _ in range(more)]

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self) -> Any:
        """One more node."""
        return tried(lambda: self.cluster.add_node(**NODE))

    def connect(self) -> None:
        import ray

        ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")

    def kill(self, node: Any) -> None:
        """As if the machine had lost power: its processes get SIGKILL."""
        self.cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        import ray

        session = self.cluster.head_node.get_session_dir_path()
        ray.shutdown()
        self.cluster.shutdown()
        shutil.rmtree(session, ignore_errors=True)

    def kill_head(self) -> None:
        """The head alone, as if its machine had lost power."""
        end_processes(self.cluster.head_node)

    def kill_all(self) -> None:
        """Everything, where nothing can be asked any more."""
        for node in (self.cluster.head_node, *self.others):
            end_processes(node)
        shutil.rmtree(self.cluster.head_node.get_session_dir_path(), ignore_errors=True)


def head() -> Any:
    """A cluster with a head alone."""
    from ray.cluster_utils import Cluster

    def make() -> Any:
        try:
            return Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        except Exception:
            end_children()
            raise

    return tried(make)


def tried(start: Callable[[], Any]) -> Any:
    """Start a node. Ray gives it 30 seconds, which on a busy machine is too little at times."""
    for _ in range(4):
        try:
            return start()
        except Exception as error:
            print(f"a node did not start: {error}")
    return start()


def end_processes(node: Any) -> None:
    """Kill the processes of a node without asking its head, which may be dead."""
    for started in [each.process for kind in node.all_processes.values() for each in kind]:
        started.kill()
        started.wait(60)


def end_children() -> None:
    """Kill the processes that this program has started: of a cluster that did not come up."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                os.kill(int(name), signal.SIGKILL)
        except OSError:
            continue  # it has just ended


def witness(directory: str, mark: str) -> Callable[[Any, int], int]:
    """A task that adds a line to a file of its own each time it runs, and takes a random moment."""

    def task(sandbox: Any, item: int) -> int:
        with open(f"{directory}/{item}", "a") as out:
            out.write("ran\n")
        sandbox.start(f"exec sleep {mark}")
        sandbox.run(f"sleep 0.{item % 5}")
        return item

    return task


def check(outcomes: Sequence[Any], directory: Path, number: int, allowed: type[Exception]) -> tuple[int, int]:
    """Each task has one outcome, and ran at most once; how many were done and how many lost."""
    assert sorted(outcome.item for outcome in outcomes) == list(range(number))
    lost = [outcome for outcome in outcomes if not outcome.ok]
    assert all(isinstance(outcome.error, allowed) for outcome in lost), lost[:1]
    for outcome in outcomes:
        ran = times_run(directory, outcome.item)
        assert ran == 1 if outcome.ok else ran <= 1, (outcome, ran)
    return number - len(lost), len(lost)


def times_run(directory: Path, item: int) -> int:
    """How often its task began."""
    path = directory / str(item)
    return len(path.read_text().splitlines()) if path.exists() else 0


def leftovers(mark: str = "") -> list[str]:
    """Directories of keepers with the one that they are in, and processes with `mark` as an argument."""
    home = Path(tempfile.gettempdir()) / f"staddle-fleet-{os.getuid()}"
    try:
        found = [str(home), *map(str, home.iterdir())] if home.is_dir() else []
    except FileNotFoundError:
        found = []  # the last keeper has just removed it
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark and mark.encode() in words:
            found.append(name)
    return found
