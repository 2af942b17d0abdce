"""Kill keepers, nodes, drivers and the head at random moments under load.

Every task ends with a result or a clear error, none runs twice, and nothing is left behind. Each task adds a
line to a file of its own on this machine: the witness of how often it ran.

FLEET_FAULTS is how often each kind is done, FLEET_SECONDS how long each may take: what is not done by then is
not counted. FLEET_RECORD is a file with what was done: a run goes on where another one ended.
"""

from __future__ import annotations

import itertools
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
from typing import Any

import pytest

from staddle.errors import SandboxLost
from staddle.fleet import Fleet
from tests.fleet.ray_nodes import Nodes, check, leftovers, witness
from tests.support.waiting import unique_seconds, until, with_argument

TIMES = int(os.environ.get("FLEET_FAULTS", "3"))
SECONDS = float(os.environ.get("FLEET_SECONDS", "3000"))
RECORD = os.environ.get("FLEET_RECORD", "")
SEED = int(os.environ.get("FLEET_SEED", "1"))
#: Kills in one fleet, and tasks that are out while they happen.
_ROUND, _OUT = 5, 6
#: Seconds until everything has come to be so, on a machine that is very busy.
_LONG = 300


class FaultRecord:
    """Faults of one kind so far, of this run and of those that it goes on from."""

    def __init__(self, kind: str) -> None:
        self.kind, self.end = kind, time.monotonic() + SECONDS
        self.dice = random.Random(f"{SEED} {kind} {self._facts().get('kills', 0)}")  # noqa: S311

    def rounds(self, most: int) -> Iterator[int]:
        """How many faults are to be done next, until all are, or the time is over."""
        while (left := TIMES - int(self._facts().get("kills", 0))) > 0 and time.monotonic() < self.end:
            before = self._facts()
            yield min(most, left)
            if not RECORD and self._facts() == before:
                return

    def add(self, **facts: float) -> None:
        """Add what was seen in one round; of seconds the most is kept."""
        found = self._facts()
        for name, value in facts.items():
            old = found.get(name, 0)
            found[name] = round(max(old, value), 1) if name.startswith("seconds") else old + value
        _FACTS[self.kind] = found
        if RECORD:
            Path(f"{RECORD}.part").write_text(json.dumps(_all_facts() | {self.kind: found}, indent=1))
            os.rename(f"{RECORD}.part", RECORD)

    def _facts(self) -> dict[str, Any]:
        return dict(_all_facts().get(self.kind, {}))


_FACTS: dict[str, dict[str, Any]] = {}


def _all_facts() -> dict[str, dict[str, Any]]:
    return dict(json.loads(Path(RECORD).read_text())) if RECORD and Path(RECORD).exists() else _FACTS


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    made = Nodes(2)
    made.connect()
    yield made
    made.close()


class Load:
    """A map on a fleet in a thread, with tasks that are their own witnesses, until `stop()`."""

    def __init__(self, fleet: Fleet, directory: Path, mark: str) -> None:
        directory.mkdir()
        self.directory, self.given, self._over = directory, 0, threading.Event()
        self.outcomes: list[Any] = []
        tasks = fleet.map(witness(str(directory), mark), self._items(), concurrency=_OUT, ordered=False)
        self._thread = threading.Thread(target=lambda: self.outcomes.extend(tasks))
        self._thread.start()

    def _items(self) -> Iterator[int]:
        for number in itertools.count():
            if self._over.is_set():
                return
            self.given = number + 1
            yield number

    def stop(self) -> tuple[int, int]:
        """Wait for the last task; how many were done, and how many lost."""
        self._over.set()
        self._thread.join(600)
        assert not self._thread.is_alive()
        return check(self.outcomes, self.directory, self.given, SandboxLost)


@pytest.mark.timeout(SECONDS + 900)
def test_killed_keepers(nodes: Nodes, tmp_path: Path) -> None:
    record = FaultRecord("keeper")
    for turn, times in enumerate(record.rounds(_ROUND)):
        mark, before, kills = unique_seconds(), set(leftovers()), 0
        with Fleet(lease=120) as fleet:
            load = Load(fleet, tmp_path / f"tasks{turn}", mark)
            while kills < times:
                time.sleep(record.dice.uniform(0.1, 2.0))  # a random moment; nothing is asserted about it
                ready = [node for node in fleet.status()["nodes"] if node["ready"] and "pid" in node]
                if len(ready) > 1:
                    try:
                        os.kill(record.dice.choice(ready)["pid"], signal.SIGKILL)
                        kills += 1
                    except ProcessLookupError:
                        continue  # it was killed a moment ago
            assert until(lambda fleet=fleet, times=times: noticed(fleet) == times, _LONG)
            done, lost = load.stop()
        assert until(lambda mark=mark, before=before: set(leftovers(mark)) <= before, _LONG), leftovers(mark)
        record.add(kills=kills, noticed=kills, tasks=load.given, done=done, lost=lost, twice=0, left=0)


def noticed(fleet: Fleet) -> int:
    """Keepers that the fleet knows to be lost."""
    return sum(event.kind == "keeper lost" for event in fleet.events())


@pytest.mark.timeout(SECONDS + 900)
def test_killed_nodes(nodes: Nodes, tmp_path: Path) -> None:
    record = FaultRecord("node")
    for turn, times in enumerate(record.rounds(_ROUND)):
        mark, before = unique_seconds(), set(leftovers())
        with Fleet(lease=120) as fleet:
            load = Load(fleet, tmp_path / f"tasks{turn}", mark)
            for _ in range(times):
                time.sleep(record.dice.uniform(0, 2))
                nodes.kill(nodes.others.pop(record.dice.randrange(2)))
                nodes.others.append(nodes.add())
            done, lost = load.stop()
            assert until(
                lambda fleet=fleet: sum(node["ready"] for node in fleet.status()["nodes"]) == 3, _LONG
            )
        assert until(lambda mark=mark, before=before: set(leftovers(mark)) <= before, _LONG), leftovers(mark)
        record.add(kills=times, tasks=load.given, done=done, lost=lost, twice=0, left=0)


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


@pytest.mark.timeout(SECONDS + 900)
def test_killed_drivers(nodes: Nodes, tmp_path: Path) -> None:
    """Two of three are killed when all their sandboxes are open, the others while they begin."""
    record = FaultRecord("driver")
    for turn, _ in enumerate(record.rounds(1)):
        mark, before = unique_seconds(), set(leftovers())
        driver = started(tmp_path, nodes.address, mark)
        assert driver.stdout is not None
        if turn % 3:
            assert any(line == "ready\n" for line in driver.stdout)  # Ray prints there as well
            assert until(lambda mark=mark: len(with_argument(mark)) >= 6)
            time.sleep(record.dice.uniform(0, 1))
        else:
            time.sleep(record.dice.uniform(0, 8))
        driver.kill()
        driver.wait()
        driver.stdout.close()
        began = time.monotonic()
        assert until(lambda mark=mark, before=before: set(leftovers(mark)) <= before, _LONG), leftovers(mark)
        record.add(
            kills=1, while_it_begins=int(not turn % 3), left=0, seconds_until_clean=time.monotonic() - began
        )


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
    import json, os, sys, threading, time
    from pathlib import Path
    from staddle.errors import FleetLost, SandboxLost, StaddleError
    from staddle.fleet import Fleet
    from tests.fleet.ray_nodes import Nodes, end_children, leftovers, times_run, witness
    from tests.support.waiting import until
    mark, directory, moment = os.environ["FLEET_MARK"], Path(sys.argv[1]), float(sys.argv[2])
    before = set(leftovers())
    try:
        nodes = Nodes(1)
        nodes.connect()
    except Exception as error:
        print("no cluster", error, flush=True)  # on a busy machine Ray gives up on its own processes
        end_children()
        os._exit(0)
    try:
        fleet = Fleet(lease=8, head_patience=5)
        opened = [fleet.create() for _ in range(4)]
        for sandbox in opened:
            sandbox.start(f"exec sleep {mark}")
        outcomes, ended = [], []
        def load():
            try:
                task = witness(str(directory), mark)
                for outcome in fleet.map(task, range(10_000), concurrency=4, ordered=False):
                    outcomes.append(outcome)
            except StaddleError as error:
                ended.append(type(error).__name__)
        loading = threading.Thread(target=load, daemon=True)
        loading.start()
        time.sleep(moment)
        nodes.kill_head()
        said, text, end = set(), "", time.monotonic() + 60
        while "FleetLost" not in said and time.monotonic() < end:
            for sandbox in opened:
                try:
                    sandbox.run("true", timeout=5)
                except StaddleError as error:
                    said.add(type(error).__name__)
                    text = str(error)
            time.sleep(0.1)
        loading.join(60)
        known = {outcome.item: outcome for outcome in outcomes}
        counted = {int(path.name): times_run(directory, int(path.name)) for path in directory.iterdir()}
        facts = {
            "said": sorted(said),
            "text": text,
            "map": ended,
            "tasks": len(known),
            "done": sum(outcome.ok for outcome in outcomes),
            "lost": sum(isinstance(outcome.error, SandboxLost) for outcome in outcomes),
            "twice": sum(number > 1 for number in counted.values()) + len(outcomes) - len(known),
            "unknown": sorted(set(counted) - set(known)),
        }
        began = time.monotonic()
        facts["gone"] = until(lambda: set(leftovers(mark)) <= before, 60)
        facts["left"] = sorted(set(leftovers(mark)) - before)
        facts["seconds_until_clean"] = time.monotonic() - began
        print("facts", json.dumps(facts), flush=True)
    finally:
        nodes.kill_all()
        os._exit(0)
"""


@pytest.mark.timeout(SECONDS + 900)
def test_killed_heads(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(textwrap.dedent(HEAD))
    root, record = str(Path(__file__).parents[2]), FaultRecord("head")
    for turn, _ in enumerate(record.rounds(1)):
        tasks = tmp_path / f"tasks{turn}"
        tasks.mkdir()
        moment = record.dice.uniform(0, 3)
        done = subprocess.run(
            [sys.executable, str(tmp_path / "driver.py"), str(tasks), str(moment)],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": f"{root}{os.pathsep}{root}/src",
                "FLEET_MARK": unique_seconds(),
                # Ray ends a program without a head after 60 seconds: it shall say first what it has seen.
                "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
            },
            timeout=600,
            check=False,
        )
        if "no cluster" in done.stdout:
            continue  # nothing was killed, and nothing is counted
        assert "facts" in done.stdout, done.stderr[-3000:]
        facts = json.loads(done.stdout.split("facts", 1)[1])
        assert "FleetLost" in facts["said"], facts
        assert facts["map"] == ["FleetLost"], facts
        assert facts["tasks"] == facts["done"] + facts["lost"], facts
        assert (facts["twice"], facts["unknown"], facts["left"]) == (0, [], []), facts
        counted = {name: facts[name] for name in ("tasks", "done", "lost", "twice", "seconds_until_clean")}
        record.add(kills=1, left=0, **counted)
