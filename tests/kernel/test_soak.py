"""The soak runs, and notices what it is there to notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.in_a_child import captured, python

SOAK = Path(__file__).parents[2] / "benchmarks/soak"


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SOAK))
    import ledger

    return ledger  # type: ignore[no-any-return]


def soak(*parts: str) -> subprocess.CompletedProcess[str]:
    """Run these parts with as few steps as can be, as this user only."""
    who = ["--as-root"] if os.geteuid() == 0 else []
    return captured(
        [sys.executable, str(SOAK), "--no-page", *who, *parts], env={**os.environ, "SOAK": "0.0005"}
    )


@pytest.mark.slow
def test_parts_run_and_say_what_they_found() -> None:
    done = soak("commands", "kill-commit", "cancel-namespaces")
    errors = [line.split(" | ")[3] for line in done.stdout.splitlines() if line.startswith("`")]
    assert errors == ["0"] * 3, done.stdout + done.stderr
    assert "0 neither" in done.stdout


def test_what_is_left_behind_is_noticed(tmp_path: Path) -> None:
    told = python(
        f"""
import subprocess
from pathlib import Path
sys.path.insert(0, {str(SOAK)!r})
import ledger

place = Path({str(tmp_path)!r})
before = ledger.Leftovers([place])
(place / "staddle-0/x").mkdir(parents=True)
(place / "staddle-0/x/lock").touch()
with subprocess.Popen(["sleep", "100"]) as process:
    listed = before.now()
    process.kill()
print(f"{{place}}/staddle-0/x/lock" in listed)
print(any(f"process {{process.pid}} " in line for line in listed))
"""
    )
    assert told.split() == ["True", "True"]


def test_growth_is_noticed(ledger: ModuleType) -> None:
    flat = [ledger.Reading(30 << 20, 20, 4, 10 << 20, 20, 3)] * 20
    leak = [ledger.Reading((30 + step) << 20, 20 + step, 4, 10 << 20, 20, 3) for step in range(20)]
    assert all(figure.is_flat for figure in ledger.figures([flat], 10_000, 8))
    uneven = [figure.name for figure in ledger.figures([flat, leak], 10_000, 8) if not figure.is_flat]
    assert uneven == ["memory", "descriptors"]
