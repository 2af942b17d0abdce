"""Test the fleet on several Ray nodes of this machine, and write what was measured into docs/fleet.md.

    scripts/test_fleet.py [--quick] [--faults N] [--tasks N] [--open N]

Ray is installed into an environment of its own below /var/tmp. --quick measures nothing and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PLACE = Path(f"/var/tmp/staddle-fleet-{os.getuid()}")
PAGE = ROOT / "docs" / "fleet.md"
BEGIN, END = "<!-- fleet: begin -->", "<!-- fleet: end -->"


def environment() -> str:
    """The interpreter of an environment with Ray."""
    python = PLACE / "bin" / "python"
    mark = PLACE / "installed"
    if not mark.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PLACE)], check=True)
        packages = ["pytest>=8", "pytest-timeout>=2.3", "-e", f"{ROOT}[ray]", "ray[default]"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
        mark.touch()
    return str(python)


def suite(python: str, name: str, **variables: str) -> None:
    """Run one suite; its failure is ours."""
    command = [python, "-m", "pytest", "-q", "-c", "tests/fleet/pytest.ini", f"tests/fleet/suite_{name}.py"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=True)


def table(figures: dict[str, Any], faults: dict[str, Any], simulation: dict[str, Any]) -> str:
    """The figures as a table of the page."""
    latency, lives, tasks = figures["latency"], figures["lives"], figures["tasks"]
    crowd, actors, driver = figures["crowd"], figures["actors"], figures["driver"]
    day = time.strftime("%Y-%m-%d")
    rows = [
        (
            "`true`: median here, added by the fleet, added at p99; a call of Ray that does nothing",
            f"{latency['embedded_median_ms']:.2f} ms, {latency['added_median_ms']:.2f} ms, "
            f"{latency['added_p99_ms']:.2f} ms; {latency['ray_median_ms']:.2f} ms",
        ),
        (
            "create, use, close: here, fleet, ratio",
            f"{lives['embedded_per_second']:.0f}/s, {lives['fleet_per_second']:.0f}/s, {lives['ratio']:.2f}",
        ),
        (
            f"{tasks['tasks']:,} tasks: a local pool, `map`, ratio",
            f"{tasks['embedded_per_second']:.0f}/s, {tasks['fleet_per_second']:.0f}/s, {tasks['ratio']:.2f}",
        ),
        (
            "memory of the largest keeper, after the first quarter of these tasks and after the last",
            f"{tasks['keeper_mb_first_turn']:.0f} MB, {tasks['keeper_mb_last_turn']:.0f} MB",
        ),
        (
            f"{crowd['open']:,} sandboxes open at once: that answered, seconds to open them",
            f"{crowd['answered']:,}, {crowd['seconds_to_open']:.0f} s",
        ),
        ("one actor for each sandbox: create and use", f"{actors['per_second']:.1f}/s"),
        ("`ray.experimental.sandbox`", str(figures["rays_own"])),
        (
            "CPU time of the driver: one call, one node of the list of nodes",
            f"{driver['call_ms']:.2f} ms, {driver['nodes_ms_each']:.3f} ms",
        ),
        *(
            (f"killed: {kind}", ", ".join(f"{name} {value}" for name, value in facts.items()))
            for kind, facts in faults.items()
        ),
        (
            f"simulation: {simulation['tasks']:,} tasks, {simulation['nodes']:,} nodes, "
            f"{simulation['deaths']} deaths",
            f"{simulation['retried']} tried again, {simulation['lost']} lost, "
            f"{len(simulation['problems'])} problems, {simulation['seconds'] * 1e6:.0f} µs for each task",
        ),
    ]
    machine = f"{figures['nodes']} nodes, {figures['cores']} cores, load {figures['load']:.0f} at the start"
    head = f"Measured on {day}: {machine}.\n\n| what | result |\n| --- | --- |\n"
    return head + "".join(f"| {what} | {result} |\n" for what, result in rows)


def simulated() -> dict[str, Any]:
    """The simulation at full size."""
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    from tests.support.fleet_simulation import simulate

    found = simulate(nodes=1000, per_node=4, tasks=1_000_000, retries=2, deaths=500, seed=1)
    return {**vars(found), "tasks": 1_000_000, "nodes": 1000}


def main() -> int:
    """Test, measure, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--open", type=int, default=2000)
    asked = parser.parse_args()
    python = environment()
    suite(python, "cluster")
    suite(python, "docs")
    record, figures = PLACE / "faults.json", PLACE / "figures.json"
    record.unlink(missing_ok=True)
    figures.unlink(missing_ok=True)
    suite(python, "faults", FLEET_FAULTS=str(3 if asked.quick else asked.faults), FLEET_RECORD=str(record))
    if asked.quick:
        return 0
    simulation = simulated()
    command = [python, "benchmarks/fleet.py", "--tasks", str(asked.tasks), "--open", str(asked.open)]
    subprocess.run([*command, "--json", str(figures)], cwd=ROOT, check=True)
    made = table(json.loads(figures.read_text()), json.loads(record.read_text()), simulation)
    page = PAGE.read_text()
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    page = page.replace("writes this table; it has not yet run as a whole.", "writes this table.")
    PAGE.write_text(pattern.sub(lambda _: f"{BEGIN}\n{made}{END}", page))
    print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
