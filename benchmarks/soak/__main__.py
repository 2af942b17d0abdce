"""`make soak`: the same thing ten thousand times, and a kill at every moment. Nothing may be left.

    python benchmarks/soak [PART ...] [--as-root] [--no-page]       SOAK=0.01 scales the number of steps
    python benchmarks/soak --list

Each part runs in a process of its own. That process and all below it have directories for temporary
files, layers and commits that belong to the part: what is in them afterwards was left behind. As root
each part is run once more as an ordinary user. The results are written to docs/internals/soak.md. Ends
with 1 if a part had an error, left something or was not flat.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cancellations
import cycles
import interruptions
import kills
import load
import on_systemd
import page
import serving
from ledger import Leftovers, adopt_orphans, figures, reap
from page import Outcome
from part import Run

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
PARTS = (*cycles.PARTS, *load.PARTS, *kills.PARTS, *cancellations.PARTS, *interruptions.PARTS, *serving.PARTS)
_BY_NAME = {part.name: part for part in PARTS}
_RESULT = "RESULT "


def main() -> int:
    parser = argparse.ArgumentParser(description="What staddle uses and leaves behind in a long run.")
    parser.add_argument("parts", nargs="*", metavar="PART", help="all of them, unless some are named")
    parser.add_argument("--list", action="store_true", help="name the parts")
    parser.add_argument("--as-user", action="store_true", help="only as an ordinary user")
    parser.add_argument("--as-root", action="store_true", help="only as root")
    parser.add_argument("--no-page", action="store_true", help="leave docs/internals/soak.md as it is")
    for name in ("--supervise", "--work"):
        parser.add_argument(name, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--victim", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if given.victim:
        kills.victim(given.victim[0], Path(given.victim[1]))
        return 0
    if given.work:
        return _work(given.work[0], int(given.work[1]))
    if given.supervise:
        return _supervise(given.supervise[0], int(given.supervise[1]))
    if given.list:
        for part in PARTS:
            print(f"{part.name:18} {part.count:7,}  {part.what}")
        return 0
    unknown = [name for name in given.parts if name not in _BY_NAME]
    if unknown:
        parser.error(f"there is no part {unknown[0]}: see --list")
    scale = float(os.environ.get("SOAK", "1"))
    users = [page.who()] if os.geteuid() else page.USERS
    users = ["user"] if given.as_user else ["root"] if given.as_root else users
    outcomes = []
    for name in given.parts or _BY_NAME:
        for user in users:
            outcome = _run(name, _BY_NAME[name].scaled(scale), user)
            outcomes.append(outcome)
            print(" | ".join(outcome.cells()), flush=True)
            for trouble in (*outcome.errors[:5], *outcome.left[:5], *outcome.uneven):
                print(f"    {trouble}", flush=True)
            if not given.no_page:
                page.write([outcome], PARTS)
    bad = [f"{outcome.part} as {outcome.user}" for outcome in outcomes if not outcome.is_good]
    print(f"not good: {', '.join(bad)}" if bad else "no error, nothing left, all flat")
    return 1 if bad else 0


def _run(name: str, count: int, user: str) -> Outcome:
    """Run one part, as that user, and wait for it."""
    words = ["--supervise", name, str(count)]
    print(f"{name} as {user}: {count} steps", file=sys.stderr, flush=True)
    if on_systemd.is_needed(name):
        with on_systemd.started(words, user) as command:
            said, status = _until_it_ends(command)
    else:
        change = user == "user" and os.geteuid() == 0
        start = [str(_ROOT / "scripts/as-user")] if change else [sys.executable]
        said, status = _until_it_ends([*start, str(_HERE.relative_to(_ROOT)), *words], cwd=_ROOT)
    for line in said.splitlines():
        if line.startswith(_RESULT):
            return Outcome.from_dict(json.loads(line[len(_RESULT) :]))
    return Outcome(name, user, 0, count, (f"the part ended with {status}",), (), (), (), 0)


def _until_it_ends(command: list[str], **options: Any) -> tuple[str, int]:
    """Run a program; what it said, and its status. It ends with us, and we with it."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    try:
        said, _ = process.communicate()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return said, process.returncode


def _supervise(name: str, count: int) -> int:
    """Start the part in a process with directories of its own; say what it did and what it left."""
    adopt_orphans()
    with contextlib.ExitStack() as stack:
        # Layers in memory, as usual. What a killed program leaves may be closed even to its owner.
        places = {
            variable: Path(tempfile.mkdtemp(prefix="soak-", dir=above))
            for variable, above in (
                ("STADDLE_LAYERS", "/dev/shm"),
                ("TMPDIR", None),
                ("XDG_STATE_HOME", None),
            )
        }
        for place in places.values():
            stack.callback(shutil.rmtree, place, ignore_errors=True)
            place.chmod(0o711)
        before = Leftovers(list(places.values()))
        environment = {**os.environ, **{name: str(place) for name, place in places.items()}}
        began = time.monotonic()
        command = [sys.executable, str(_HERE), "--work", name, str(count)]
        said, status = _until_it_ends(command, env=environment)
        seconds = time.monotonic() - began
        left = before.left()
        told = json.loads(said.rpartition(_RESULT)[2]) if _RESULT in said else {}
        if status or not told:
            told.setdefault("errors", []).append(f"the program ended with {status}")
        outcome = Outcome.from_dict(
            {
                "part": name,
                "user": page.who(),
                "asked": count,
                "done": 0,
                "figures": [],
                "notes": [],
                **told,
                "left": left,
                "seconds": seconds,
            }
        )
        print(_RESULT + json.dumps(outcome.to_dict()), flush=True)
        reap()
    return 0


def _work(name: str, count: int) -> int:
    """Do the part, in this process; say what was used."""
    part = _BY_NAME[name]
    if name.startswith("kill-"):
        adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="soak-") as place:
        Path(place).chmod(0o711)
        run = Run(name, count, Path(place))
        try:
            part.work(run)
        except Exception as error:
            run.fail(f"{type(error).__name__}: {error}")
            raise
        finally:
            found = figures(run.readings, run.done, part.descriptors) if part.is_flat and run.readings else []
            told = {
                "done": run.done,
                "errors": run.errors,
                "notes": run.notes,
                "figures": [vars(figure) for figure in found],
            }
            print(_RESULT + json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
