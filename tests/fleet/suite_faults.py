"""Kill keepers, nodes, drivers and the head at random moments under load. FLEET_FAULTS is how often, each.

Every task ends with a result or a clear error, none runs twice, and nothing is left behind. Each task appends
a line to a file of its own on this machine: the witness of how often it ran.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Sandbox
from staddle.errors import SandboxLost
from staddle.fleet import Fleet
from tests.fleet.ray_nodes import Nodes, leftovers
from tests.support.waiting import unique_seconds, until, with_argument

TIMES = int(os.environ.get("FLEET_FAULTS", "3"))
RECORD = os.environ.get("FLEET_RECORD", "")
SEED = int(os.environ.get("FLEET_SEED", "1"))


def record(kind: str, **facts: object) -> None:
    """Add what was seen to the record of this run."""
    if RECORD:
        path = Path(RECORD)
        found = json.loads(path.read_text()) if path.exists() else {}
        found[kind] = facts
        path.write_text(json.dumps(found, indent=1))


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    made = Nodes(2)
    made.connect()
    yield made
    made.close()


def witness(directory: str, mark: str):  # type: ignore[no-untyped-def]
    """A task that writes a line each time it runs, and takes a random moment."""

    def task(sandbox: Sandbox, item: int) -> int:
        with open(f"{directory}/{item}", "a") as out:
            out.write("ran\n")
        sandbox.start(f"exec sleep {mark}")
        sandbox.run(f"sleep 0.{item % 5}")
        return item

    return task


def check(outcomes: list, directory: Path, number: int) -> tuple[int, int]:  # type: ignore[type-arg]
    """Each task has one outcome, and ran at most once; how many were done and how many lost."""
    assert sorted(outcome.item for outcome in outcomes) == list(range(number))
    lost = [outcome for outcome in outcomes if not outcome.ok]
    assert all(isinstance(outcome.error, SandboxLost) for outcome in lost), lost[:1]
    for outcome in outcomes:
        path = directory / str(outcome.item)
        ran = len(path.read_text().splitlines()) if path.exists() else 0
        assert ran == 1 if outcome.ok else ran <= 1
    return number - len(lost), len(lost)


@pytest.mark.timeout(3600)
def test_killed_keepers(nodes: Nodes, tmp_path: Path) -> None:
    dice, mark, before = random.Random(SEED), unique_seconds(), set(leftovers())  # noqa: S311
    kills, stop = 0, threading.Event()
    number = 40 * TIMES
    with Fleet(lease=120) as fleet:

        def kill() -> None:
            nonlocal kills
            while not stop.wait(dice.uniform(0.2, 2.0)) and kills < TIMES:
                ready = [node for node in fleet.status()["nodes"] if node["ready"] and "pid" in node]
                if len(ready) > 1:
                    try:
                        os.kill(dice.choice(ready)["pid"], signal.SIGKILL)
                        kills += 1
                    except ProcessLookupError:
                        continue  # it was killed a moment ago

        killing = threading.Thread(target=kill)
        killing.start()
        outcomes = []
        task = witness(str(tmp_path), mark)
        items = iter(range(number))
        outcomes += list(fleet.map(task, items, concurrency=6, ordered=False))
        stop.set()
        killing.join()
        done, lost = check(outcomes, tmp_path, number)
        deaths = sum(event.kind == "keeper lost" for event in fleet.events())
    assert until(lambda: set(leftovers(mark)) <= before), leftovers(mark)
    record("keeper", kills=kills, noticed=deaths, tasks=number, done=done, lost=lost, twice=0, left=0)


@pytest.mark.timeout(7200)
def test_killed_nodes(nodes: Nodes, tmp_path: Path) -> None:
    mark, before = unique_seconds(), set(leftovers())
    number = 20 * TIMES
    kills = 0
    with Fleet(lease=120) as fleet:
        outcomes: list = []  # type: ignore[type-arg]
        task = witness(str(tmp_path), mark)
        mapping = threading.Thread(
            target=lambda: outcomes.extend(fleet.map(task, range(number), concurrency=4, ordered=False))
        )
        mapping.start()
        for _ in range(TIMES):
            nodes.kill(nodes.others.pop(0))
            kills += 1
            nodes.others.append(nodes.add())
        mapping.join()
        done, lost = check(outcomes, tmp_path, number)
        assert until(lambda: sum(node["ready"] for node in fleet.status()["nodes"]) == 3)
    assert until(lambda: set(leftovers(mark)) <= before), leftovers(mark)
    record("node", kills=kills, tasks=number, done=done, lost=lost, twice=0, left=0)


DRIVER = """
    import os
    from staddle.fleet import Fleet
    address, mark = os.environ["FLEET_ADDRESS"], os.environ["FLEET_MARK"]
    with Fleet(address, lease=20) as fleet:
        opened = [fleet.create() for _ in range(6)]
        for sandbox in opened:
            sandbox.start(f"exec sleep {mark}")
        print("ready", flush=True)
        list(fleet.map("sleep 0.3", range(10_000), concurrency=4))
"""


def started(directory: Path, address: str, mark: str) -> subprocess.Popen[str]:
    """A driver; its mark is not among its own arguments."""
    (directory / "driver.py").write_text(textwrap.dedent(DRIVER))
    return subprocess.Popen(
        [sys.executable, str(directory / "driver.py")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FLEET_ADDRESS": address, "FLEET_MARK": mark},
    )


@pytest.mark.timeout(7200)
def test_killed_drivers(nodes: Nodes, tmp_path: Path) -> None:
    dice, before = random.Random(SEED), set(leftovers())  # noqa: S311
    slowest = 0.0
    for _ in range(TIMES):
        mark = unique_seconds()
        driver = started(tmp_path, nodes.address, mark)
        assert driver.stdout is not None
        assert any(line == "ready\n" for line in driver.stdout)  # Ray prints there as well
        assert until(lambda mark=mark: len(with_argument(mark)) >= 6)
        time.sleep(dice.uniform(0, 1))  # a random moment; nothing is asserted about it
        driver.kill()
        driver.wait()
        driver.stdout.close()
        began = time.monotonic()
        assert until(lambda mark=mark: set(leftovers(mark)) <= before, 180), leftovers(mark)
        slowest = max(slowest, time.monotonic() - began)
    record("driver", kills=TIMES, left=0, slowest_seconds=round(slowest, 1))


@pytest.mark.timeout(1200)
def test_a_driver_that_is_silent_loses_its_sandboxes(nodes: Nodes, tmp_path: Path) -> None:
    """A stopped driver lives for Ray: the lease is what ends its sandboxes."""
    before, mark = set(leftovers()), unique_seconds()
    driver = started(tmp_path, nodes.address, mark)
    assert driver.stdout is not None
    try:
        assert any(line == "ready\n" for line in driver.stdout)
        assert until(lambda: len(with_argument(mark)) >= 6)
        os.kill(driver.pid, signal.SIGSTOP)
        assert until(lambda: set(leftovers(mark)) <= before, 240), leftovers(mark)
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()


HEAD = """
    import sys, os, signal, time
    from tests.fleet.ray_nodes import Nodes
    from staddle.errors import FleetLost, SandboxLost, StaddleError
    from staddle.fleet import Fleet
    nodes = Nodes(1)
    nodes.connect()
    fleet = Fleet(lease=15, head_patience=8)
    opened = [fleet.create() for _ in range(4)]
    for sandbox in opened:
        sandbox.start(f"exec sleep {sys.argv[1]}")
    head = nodes.cluster.head_node
    for kind in ("gcs_server", "raylet"):
        for process in head.all_processes[kind]:
            os.kill(process.process.pid, signal.SIGKILL)
    said = set()
    end = time.monotonic() + 50
    while "FleetLost" not in said and time.monotonic() < end:
        for sandbox in opened:
            try:
                sandbox.run("true", timeout=5)
            except StaddleError as error:
                said.add(type(error).__name__)
                text = str(error)
        time.sleep(0.2)
    print("said", sorted(said), text, flush=True)
    fleet.close()
    os._exit(0)
"""


@pytest.mark.timeout(7200)
def test_killed_heads(tmp_path: Path) -> None:
    before = set(leftovers())
    (tmp_path / "driver.py").write_text(textwrap.dedent(HEAD))
    root = str(Path(__file__).parents[2])
    said = ""
    for _ in range(max(1, TIMES // 3)):
        mark = unique_seconds()
        done = subprocess.run(
            [sys.executable, str(tmp_path / "driver.py"), mark],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": root},
            timeout=1200,
            check=False,
        )
        assert "said" in done.stdout, done.stderr[-3000:]
        said = done.stdout.split("said", 1)[1].strip()
        assert "FleetLost" in said
        assert until(lambda mark=mark: set(leftovers(mark)) <= before, 180), leftovers(mark)
    record("head", kills=max(1, TIMES // 3), raised="`FleetLost`", left=0)
