"""`staddle doctor` says what a run then really gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from staddle import backends, doctor
from staddle.display import counted
from staddle.enforcement import PROTECTIONS
from tests.support.staddle_command import staddle


def test_it_names_every_backend_and_the_one_a_run_uses(tmp_path: Path) -> None:
    done = staddle("doctor", cwd=tmp_path)
    assert done.returncode == 0
    for name in backends.NAMES:
        assert name in done.stdout
    assert "`staddle run` uses namespaces" in done.stdout


def test_a_backend_that_enforces_all_protections_says_which_limits_it_does_not(tmp_path: Path) -> None:
    text = staddle("doctor", cwd=tmp_path).stdout
    _, _, bwrap = text.partition("yes  bwrap")
    heading, *rows = bwrap.partition("\n\n")[0].splitlines()
    assert rows
    assert all(row.strip().startswith("not limits.") for row in rows)
    assert heading.endswith(f"19 of 19 protections, but not {counted(len(rows), 'default limit')}")


@pytest.mark.slow
def test_it_says_what_the_network_can_be_here(tmp_path: Path) -> None:
    assert "\nnetwork: allow lists of hosts" in staddle("doctor", cwd=tmp_path).stdout
    found = json.loads(staddle("doctor", "--json", cwd=tmp_path).stdout)
    assert found["network"].startswith("allow lists of hosts")


@pytest.mark.slow
def test_what_it_says_is_what_a_run_gets(tmp_path: Path) -> None:
    found = json.loads(staddle("doctor", "--json", cwd=tmp_path).stdout)
    report = json.loads(staddle("run", "--json", "--", "true", cwd=tmp_path).stdout)
    assert report["backend"] == found["auto"]
    assert report["enforced"]["held"] == found["backends"][found["auto"]]["enforces"]
    for name in ("namespaces", "bwrap", "landlock"):
        report = json.loads(staddle("run", "--json", "--backend", name, "--", "true", cwd=tmp_path).stdout)
        assert report["enforced"]["held"] == found["backends"][name]["enforces"]
        assert report["enforced"]["gaps"] == found["backends"][name]["gaps"]


@pytest.mark.slow
def test_what_cannot_be_used_says_why_and_what_to_do(tmp_path: Path) -> None:
    found = json.loads(staddle("doctor", "--json", cwd=tmp_path).stdout)
    for name, entry in found["backends"].items():
        if not entry["usable"]:
            assert entry["why"], name
            assert entry["fix"], name
            done = staddle("run", "--backend", name, "--", "true", cwd=tmp_path)
            assert done.returncode == 125
            assert entry["why"] in done.stderr


def test_the_library_says_the_same() -> None:
    found = doctor()
    assert found.can_confine
    assert found.auto == "namespaces"
    held = {finding.probe.backend: finding.held for finding in found.findings}
    assert held["namespaces"] == held["bwrap"] == tuple(PROTECTIONS)
    assert held["native"] == ()


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("words", [["--jsno"], ["now"]])
def test_bad_input_is_a_sentence(words: list[str], tmp_path: Path) -> None:
    done = staddle("doctor", *words, cwd=tmp_path)
    assert done.returncode == 125
    assert done.stderr.startswith("staddle: ")
