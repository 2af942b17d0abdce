"""The fleet against sandboxes of one process, one actor for each sandbox, and Ray's own sandbox; in one run.

    python benchmarks/fleet.py [--tasks 10000] [--seconds 3600] [--open 2000] [--nodes 4] [--json FILE]

Needs the extra `ray`. All nodes are on this machine; what is compared takes turns, so that a busy machine is
busy for all alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from staddle import Pool, Sandbox
from staddle.fleet import Fleet, FleetLimits
from tests.fleet.ray_nodes import Nodes

_THREADS = 4
PARTS = ("latency", "lives", "driver", "tasks", "crowd", "actors")


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def latency(fleet: Fleet, rounds: int) -> dict[str, float]:
    """`true` in an open sandbox, here and through the fleet, and an actor that does nothing, in turns; ms."""
    import ray

    @ray.remote(num_cpus=0)
    class Nothing:
        async def answer(self) -> None:
            pass

    nothing = Nothing.remote()
    here: list[float] = []
    there: list[float] = []
    floor: list[float] = []
    with Sandbox() as local, fleet.create() as remote:
        jobs = (
            (lambda: local.run("true"), here),
            (lambda: remote.run("true"), there),
            (lambda: ray.get(nothing.answer.remote()), floor),
        )
        for number in range(rounds + 20):
            for job, times in jobs:
                began = time.perf_counter()
                job()
                if number >= 20:
                    times.append((time.perf_counter() - began) * 1000)
    ray.kill(nothing)
    return {
        "embedded_median_ms": statistics.median(here),
        "fleet_median_ms": statistics.median(there),
        "ray_median_ms": statistics.median(floor),
        "added_median_ms": statistics.median(there) - statistics.median(here),
        "added_p99_ms": quantile(there, 0.99) - quantile(here, 0.99),
        "ray_p99_ms": quantile(floor, 0.99),
    }


def lives(fleet: Fleet, each: int, rounds: int) -> dict[str, float]:
    """Create, use and close sandboxes, here and through the fleet, in turns; per second."""

    def local(_: int) -> None:
        with Sandbox() as sandbox:
            sandbox.run("true")

    def remote(_: int) -> None:
        with fleet.create() as sandbox:
            sandbox.run("true")

    rates: dict[str, list[float]] = {"embedded": [], "fleet": []}
    with ThreadPoolExecutor(_THREADS) as threads:
        for number in range(rounds + 1):
            for name, job in (("embedded", local), ("fleet", remote)):
                began = time.perf_counter()
                list(threads.map(job, range(each)))
                if number:
                    rates[name].append(each / (time.perf_counter() - began))
    found = {f"{name}_per_second": statistics.median(values) for name, values in rates.items()}
    ratio = statistics.median(b / a for a, b in zip(rates["embedded"], rates["fleet"], strict=True))
    return {**found, "ratio": ratio}


def tasks(fleet: Fleet, number: int, seconds: float) -> dict[str, Any]:
    """So many tasks by `map`, and by a pool of this process, in turns of 250 and for so long; per second."""
    spent, done, memory = {"embedded": 0.0, "fleet": 0.0}, 0, [keeper_memory(fleet)]
    began = time.perf_counter()
    with Pool(8) as pool, ThreadPoolExecutor(_THREADS) as threads:

        def one(_: int) -> bool:
            with pool.sandbox() as sandbox:
                return sandbox.run("true").ok

        while done < number and time.perf_counter() - began < seconds:
            each = min(250, number - done)
            now = time.perf_counter()
            assert all(threads.map(one, range(each)))
            spent["embedded"] += time.perf_counter() - now
            now = time.perf_counter()
            assert all(
                found.get().ok for found in fleet.map("true", range(each), concurrency=8, ordered=False)
            )
            spent["fleet"] += time.perf_counter() - now
            done += each
            memory.append(keeper_memory(fleet))
    return {
        "tasks": done,
        "embedded_per_second": done / spent["embedded"],
        "fleet_per_second": done / spent["fleet"],
        "ratio": spent["embedded"] / spent["fleet"],
        "keeper_mb": [memory[len(memory) * part // 4] for part in range(4)] + [memory[-1]],
    }


def keeper_memory(fleet: Fleet) -> float:
    """The largest resident set of a keeper, in MB."""
    sizes = []
    for node in fleet.status()["nodes"]:
        pages = int(Path(f"/proc/{node['pid']}/statm").read_text().split()[1])
        sizes.append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
    return max(sizes)


def crowd(fleet: Fleet, number: int) -> dict[str, float]:
    """So many sandboxes open at once, each of which answers."""
    began = time.perf_counter()
    with ThreadPoolExecutor(16) as threads:
        opened = list(threads.map(lambda _: fleet.create(), range(number)))
        taken = time.perf_counter() - began
        answered = sum(threads.map(lambda sandbox: sandbox.run("true").ok, opened))
        list(threads.map(lambda sandbox: sandbox.close(), opened))
    return {"open": len(opened), "answered": answered, "seconds_to_open": taken}


def actor_for_each(number: int) -> dict[str, float]:
    """One actor for each sandbox: create, use and end so many."""
    import ray

    @ray.remote(num_cpus=0)
    class Own:
        def __init__(self) -> None:
            self.sandbox = Sandbox()

        def run(self, command: str) -> int:
            return self.sandbox.run(command).exit_code

    began = time.perf_counter()
    actors = [Own.remote() for _ in range(number)]
    assert ray.get([actor.run.remote("true") for actor in actors]) == [0] * number
    seconds = time.perf_counter() - began
    for actor in actors:
        ray.kill(actor)
    return {"sandboxes": number, "per_second": number / seconds}


def rays_own() -> str:
    """Whether ray.experimental.sandbox can run here; its own words."""
    try:
        import importlib

        module = importlib.import_module("ray.experimental.sandbox")
        names = [name for name in dir(module) if "andbox" in name and not name.startswith("_")]
        import shutil

        if shutil.which("runsc") is None:
            return (
                f"not run: it needs gVisor (runsc), which is not on this machine (has {', '.join(names[:4])})"
            )
        return "not run: runsc is there, but no image"
    except Exception as error:
        return f"not run: {type(error).__name__}: {str(error).splitlines()[0][:200]}"


def driver_costs(fleet: Fleet) -> dict[str, float]:
    """CPU time of the driver for one call and for one look at the nodes, in milliseconds."""
    import ray

    with fleet.create() as sandbox:
        began = time.process_time()
        for _ in range(200):
            sandbox.run("true")
        call = (time.process_time() - began) / 200 * 1000
    began = time.process_time()
    for _ in range(50):
        ray.nodes()
    return {"call_ms": call, "nodes_ms_each": (time.process_time() - began) / 50 / len(ray.nodes()) * 1000}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--open", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=3600, help="the tasks take no longer than that")
    parser.add_argument("--json", default="")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    asked = parser.parse_args()
    nodes = Nodes(asked.nodes - 1)
    nodes.connect()
    found: dict[str, Any] = {"nodes": asked.nodes, "load": os.getloadavg()[0], "cores": os.cpu_count()}

    def note(name: str, value: Any) -> None:
        found[name] = value
        print(f"{name}: {value}", flush=True)
        if asked.json:
            before = json.loads(Path(asked.json).read_text()) if Path(asked.json).exists() else {}
            Path(asked.json).write_text(json.dumps({**before, **found}, indent=1))

    try:
        limits = FleetLimits(per_node=max(64, asked.open // asked.nodes + 10))
        with Fleet(limits=limits, lease=300, head_patience=120) as fleet:
            while len(fleet.status()["nodes"]) < asked.nodes or fleet.status()["capacity"] < asked.open:
                time.sleep(0.2)
            parts = {
                "latency": lambda: latency(fleet, asked.rounds),
                "lives": lambda: lives(fleet, 40, 5),
                "driver": lambda: driver_costs(fleet),
                "tasks": lambda: tasks(fleet, asked.tasks, asked.seconds),
                "crowd": lambda: crowd(fleet, asked.open),
            }
            for name, job in parts.items():
                if name in asked.parts:
                    note(name, job())
        if "actors" in asked.parts:
            note("actors", actor_for_each(16))
            note("rays_own", rays_own())
    finally:
        nodes.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
