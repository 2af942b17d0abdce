"""The command line prints no secret that it was asked to pass on, unless to a terminal or by choice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.staddle_command import staddle

KEY = "sk-live-0123456789abcdef"
PRINT = "echo $SERVICE_API_KEY; echo $SERVICE_API_KEY >&2"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", KEY)


@pytest.mark.same_for_everyone
def test_run_hides_it_in_both_streams_unless_told(tmp_path: Path) -> None:
    done = staddle("run", "--pass-env", "SERVICE_API_KEY", "-c", f"{PRINT}; exit 3", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, "(hidden)\n", "(hidden)\n")
    done = staddle("run", "--pass-env", "SERVICE_API_KEY", "--no-redact", "-c", PRINT, cwd=tmp_path)
    assert (done.stdout, done.stderr) == (f"{KEY}\n", f"{KEY}\n")


@pytest.mark.same_for_everyone
def test_what_is_relayed_is_whole_and_a_reader_that_leaves_ends_it(tmp_path: Path) -> None:
    words = ("run", "--pass-env", "SERVICE_API_KEY", "--output-cap", "1M")
    done = staddle(*words, "-c", "head -c 300000 /dev/zero | tr '\\0' s; printf sk-", cwd=tmp_path)
    assert done.stdout == "s" * 300000 + "sk-"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_json_overlays_and_shells_hide_it_too(tmp_path: Path) -> None:
    passed = ("--pass-env", "SERVICE_API_KEY")
    done = staddle("run", "--json", *passed, "-c", PRINT, cwd=tmp_path)
    report = json.loads(done.stdout)
    assert (report["stdout"], report["stderr"]) == ("(hidden)\n", "(hidden)\n")
    script = "echo $SERVICE_API_KEY | tee f"
    done = staddle("run", "--mode", "overlay", "--diff", *passed, "-c", script, cwd=tmp_path)
    assert done.stdout == "(hidden)\n"
    assert "+(hidden)" in done.stderr
    assert KEY not in done.stderr
    assert staddle("shell", *passed, input=PRINT, cwd=tmp_path).stdout == "(hidden)\n"
