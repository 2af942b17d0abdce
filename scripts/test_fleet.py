"""Test the fleet on several Ray nodes of this machine, and write the figures into docs/internals/fleet.md.

    scripts/test_fleet.py [--quick] [--resume] [--only PART …] [--faults N] [--seconds N] [--tasks N]

Ray is installed into an environment of its own below /var/tmp. --quick measures nothing and writes nothing.
--seconds bounds each kind of fault, and the tasks. Figures are written after each part, with what was really
done; --resume goes on from those of an earlier run. Root runs the tests as a user without privileges, too.
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
PAGE = ROOT / "docs" / "internals" / "fleet.md"
#: What was found, also by an earlier run.
FIGURES, RECORD, SIMULATION = PLACE / "figures.json", PLACE / "faults.json", PLACE / "simulation.json"
PARTS = ("tests", "figures", "faults")
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


def suite(python: str, name: str, *, user: bool = False, **variables: str) -> None:
    """Run one suite; its failure is ours. `user`: as a user without privileges, in a copy of the tree."""
    options = ["-m", "pytest", "-q", "-c", "tests/fleet/pytest.ini", f"tests/fleet/suite_{name}.py"]
    if user:
        command, variables = ["scripts/as-user", *options], {"AS_USER_PYTHON": python, **variables}
    else:
        command = [python, *options]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=True)


def table(figures: dict[str, Any], faults: dict[str, Any], simulation: dict[str, Any]) -> str:
    """The figures that there are, as a table of the page."""
    rows = [*_of_figures(figures), *_of_faults(faults)]
    if simulation:
        rows.append(
            (
                f"simulation: {simulation['tasks']:,} tasks, {simulation['nodes']:,} nodes, "
                f"{simulation['deaths']} deaths",
                f"{simulation['retried']} tried again, {simulation['lost']} lost, "
                f"{len(simulation['problems'])} problems, {simulation['seconds'] * 1e6:.0f} µs for each task",
            )
        )
    made = f"Measured on {time.strftime('%Y-%m-%d')}"
    if figures:
        made += (
            f": {figures['nodes']} nodes on {figures['cores']} cores, load {figures['load']:.0f} at the start"
        )
    return f"{made}.\n\n| what | result |\n| --- | --- |\n" + "".join(
        f"| {what} | {result} |\n" for what, result in rows
    )


def _of_figures(figures: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if latency := figures.get("latency"):
        rows += [
            (
                "`true`: median here, added by the fleet, added at p99",
                f"{latency['embedded_median_ms']:.2f} ms, {latency['added_median_ms']:.2f} ms, "
                f"{latency['added_p99_ms']:.2f} ms",
            ),
            (
                "a call of a Ray actor that does nothing: median, p99",
                f"{latency['ray_median_ms']:.2f} ms, {latency['ray_p99_ms']:.2f} ms",
            ),
        ]
    if lives := figures.get("lives"):
        rates = f"{lives['embedded_per_second']:.0f}/s, {lives['fleet_per_second']:.0f}/s"
        rows.append(("create, use, close: here, fleet, ratio", f"{rates}, {lives['ratio']:.2f}"))
    if tasks := figures.get("tasks"):
        rates = f"{tasks['embedded_per_second']:.0f}/s, {tasks['fleet_per_second']:.0f}/s"
        sizes = ", ".join(f"{size:.0f}" for size in tasks["keeper_mb"])
        rows += [
            (f"{tasks['tasks']:,} tasks: a local pool, `map`, ratio", f"{rates}, {tasks['ratio']:.2f}"),
            ("memory of the largest keeper before these tasks, and after each quarter", f"{sizes} MB"),
        ]
    if crowd := figures.get("crowd"):
        rows.append(
            (
                f"{crowd['open']:,} sandboxes open at once: that answered, seconds to open them",
                f"{crowd['answered']:,}, {crowd['seconds_to_open']:.0f} s",
            )
        )
    if actors := figures.get("actors"):
        rows.append(("one actor for each sandbox: create and use", f"{actors['per_second']:.1f}/s"))
    if "rays_own" in figures:
        rows.append(("`ray.experimental.sandbox`", str(figures["rays_own"])))
    if driver := figures.get("driver"):
        costs = f"{driver['call_ms']:.2f} ms, {driver['nodes_ms_each']:.3f} ms"
        rows.append(("CPU time of the driver: one command, one node of the list of nodes", costs))
    return rows


def _of_faults(faults: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (
            f"killed: {kind}",
            ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()),
        )
        for kind, facts in faults.items()
    ]


def write_page() -> None:
    """Put the figures that there are into the page."""
    found = [json.loads(path.read_text()) if path.exists() else {} for path in (FIGURES, RECORD, SIMULATION)]
    page, made = PAGE.read_text(), table(*found)
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: f"{BEGIN}\n{made}{END}", page))
    print(made)


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
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--open", type=int, default=2000)
    asked = parser.parse_args()
    python = environment()
    if not asked.resume:
        for path in (RECORD, FIGURES, SIMULATION):
            path.unlink(missing_ok=True)
    if "tests" in asked.only:
        suite(python, "cluster")
        suite(python, "docs")
        if os.getuid() == 0:
            suite(python, "cluster", user=True)
    if asked.quick:
        suite(python, "faults", FLEET_FAULTS="3", FLEET_SECONDS=str(asked.seconds))
        return 0
    if "figures" in asked.only:
        SIMULATION.write_text(json.dumps(simulated()))
        sizes = ["--tasks", str(asked.tasks), "--seconds", str(asked.seconds), "--open", str(asked.open)]
        subprocess.run([python, "benchmarks/fleet.py", *sizes, "--json", str(FIGURES)], cwd=ROOT, check=True)
        write_page()
    if "faults" in asked.only:
        try:
            suite(
                python,
                "faults",
                FLEET_FAULTS=str(asked.faults),
                FLEET_SECONDS=str(asked.seconds),
                FLEET_RECORD=str(RECORD),
            )
        finally:
            write_page()
    return 0


if __name__ == "__main__":
    sys.exit(main())
