"""Random trees and rules: what the kernel allows is what `Plan.access` says."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from staddle.mounts.from_plan import lay_out
from staddle.mounts.host import Host
from staddle.policy.plan import Plan
from tests.support.fresh_roots import PYTHON, run, system
from tests.unit.mounts.plans import guard, hidden, read, scratch, write

pytestmark = pytest.mark.usefixtures("fresh_root")

# Tries to read and to write every file, and to create one in every directory.
TRY = """
import os, sys
def able(path, flags):
    try: os.close(os.open(path, flags, 0o600))
    except OSError: return False
    return True
for line in os.read(0, 1 << 20).decode().split("\\n"):
    if line.endswith("/"):
        found = able(line + "seen", os.O_RDONLY), able(line + "new", os.O_CREAT | os.O_WRONLY)
    else:
        found = able(line, os.O_RDONLY), able(line, os.O_WRONLY)
    print("r" if found[0] else "-", "w" if found[1] else "-")
"""


def grow(root: Path, dice: random.Random, depth: int = 3) -> None:
    root.mkdir(exist_ok=True)
    (root / "seen").write_text("")
    for name in "abc":
        if depth and dice.random() < 0.7:
            grow(root / name, dice, depth - 1)
    for name in "xy":
        if dice.random() < 0.7:
            (root / name).write_text(name)


def rules(root: Path, dice: random.Random) -> Plan:
    directories = [str(path) for path in [root, *root.rglob("*")] if path.is_dir()]
    files = [str(path) for path in root.rglob("*") if path.is_file() and path.name != "seen"]

    def some(among: list[str], most: int) -> list[str]:
        return dice.sample(among, min(len(among), dice.randint(0, most)))

    grants = [*map(read, some(directories, 3)), *map(write, some(directories, 3))]
    grants += [read(path, False) for path in some(files, 2)] + [write(path, False) for path in some(files, 2)]
    hides = [hidden(p) for p in some(directories, 2)] + [hidden(p, "file") for p in some(files, 3)]
    hides += [hidden(f"{p}/none/at-all", "missing") for p in some(directories, 2)]
    private = [scratch(path) for path in some(directories[1:], 1)]
    guards = [guard(p) for p in some(directories[1:], 2)] + [guard(p, False) for p in some(files, 2)]
    wanted = system(grants=tuple(grants), hidden=tuple(hides)).replace(scratch=tuple(private))
    guarded = [
        item
        for item in guards
        if wanted.access(item.path) == "write"
        and not any(grant.path == item.path or grant.path.startswith(item.path + "/") for grant in grants)
        and not any(item.path.startswith(place.path) for place in private)
    ]
    return wanted.replace(guards=tuple(guarded))


@pytest.mark.parametrize("seed", range(24))
def test_the_kernel_agrees_with_the_reference(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)  # noqa: S311
    grow(tmp_path / "t", dice)
    wanted = rules(tmp_path / "t", dice)
    unheld = {item.path for item in lay_out(wanted, Host()).unheld}
    places = []
    for path in sorted((tmp_path / "t").rglob("*")):
        private = [item.path for item in wanted.scratch]
        if path.name != "seen" and not any(f"{path}/".startswith(f"{place}/") for place in private):
            places.append(f"{path}/" if path.is_dir() else str(path))
    script = TRY.replace("os.read(0, 1 << 20).decode()", json.dumps("\n".join(places)))
    answers = run(wanted, *PYTHON, script).out.splitlines()
    expected = {"none": "- -", "read": "r -", "write": "r w"}
    for place, answer in zip(places, answers, strict=True):
        if place.rstrip("/") not in unheld:
            assert answer == expected[wanted.access(place.rstrip("/"))], (place, wanted)
