"""`staddle explain` prints what a run would do, line by line with the reason, and runs nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from staddle.linux.seccomp import describe
from tests.support.staddle_command import environment, staddle


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("out", "secret", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "out/.git").mkdir()
    (tmp_path / "out/.git/config").write_text("[core]\n")
    return tmp_path


WORDS = [
    "--read",
    "data",
    "--write",
    "out",
    "--deny",
    "secret",
    "--env",
    "API_TOKEN=hunter2",
    "--env",
    "MODE=fast",
]


def test_every_part_of_the_plan_is_there_with_its_origin(place: Path) -> None:
    done = staddle("explain", *WORDS, "--", "touch", "marker", cwd=place)
    assert done.returncode == 0, done.stderr
    assert not (place / "marker").exists()
    lines = done.stdout.splitlines()
    for path, origin in ((f"{place}/out", "write 'out'"), (f"{place}/secret (directory)", "deny 'secret'")):
        assert any(path in line and origin in line for line in lines), path
    for part in (
        f"{place}/out/.git/config",
        "MODE=fast",
        "timeout 120",
        "network:",
        "deny",
        "command: touch marker",
    ):
        assert part in done.stdout
    assert "hunter2" not in done.stdout
    assert "API_TOKEN=(hidden)" in done.stdout


@pytest.mark.parametrize("backend", ["namespaces", "bwrap", "landlock"])
def test_every_filtered_call_is_listed(backend: str, place: Path) -> None:
    done = staddle("explain", "--verbose", "--backend", backend, "--read", "data", "--", "true", cwd=place)
    profile = "landlock" if backend == "landlock" else "namespaces"
    for row in describe(profile):
        assert ", ".join(row.calls) in done.stdout


def test_the_same_as_data(place: Path) -> None:
    report = json.loads(staddle("explain", "--json", *WORDS, "--", "true", cwd=place).stdout)
    plan = report["plan"]
    assert report["backend"] == "namespaces"
    assert report["command"] == ["true"]
    grant = {"path": f"{place}/out", "access": "write", "directory": True, "origin": "write 'out'"}
    assert any(grant.items() <= item.items() for item in plan["grants"])
    assert [item["path"] for item in plan["hidden"]] == [f"{place}/secret"]
    assert {v["name"]: v["value"] for v in plan["variables"]}["API_TOKEN"] is None
    assert "hunter2" not in json.dumps(report)
    assert report["steps"]
    assert report["gaps"] == []


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_what_would_be_refused_says_so_and_why(place: Path) -> None:
    done = staddle("explain", "--disk", "1G", "--", "true", cwd=place)
    assert done.returncode == 0
    assert "this run would be refused" in done.stdout
    assert "disk" in done.stdout
    for backend in ("namespaces", "bwrap"):
        named = staddle("explain", "--backend", backend, "--disk", "1G", "--", "true", cwd=place)
        assert "cannot be enforced here" in named.stdout


@pytest.mark.same_for_everyone
def test_hostile_names_are_shown_harmless(place: Path) -> None:
    nasty = place / "\x1b]0;owned\x07\x1b[2J\u202e"
    nasty.mkdir()
    done = staddle("explain", "--write", str(nasty), "--", "true", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout


@pytest.mark.same_for_everyone
def test_host_variables_do_not_show(place: Path) -> None:
    done = staddle("explain", "--", "true", cwd=place, env={**environment(), "HOST_SECRET": "hunter2"})
    assert "hunter2" not in done.stdout


def test_it_fits_on_a_screen_and_limits_have_values(place: Path) -> None:
    done = staddle("explain", "--audit", "/var/tmp/log", "--output-cap", "5K", "--", "true", cwd=place)
    lines = done.stdout.splitlines()
    assert len(lines) <= 45
    for said in ("timeout 120", "memory ", "processes ", "output 5.0K", "audit log: /var/tmp/log"):
        assert any(line.strip().startswith(said) for line in lines), said
    everything = staddle("explain", "--verbose", "--", "true", cwd=place).stdout
    assert "/etc/passwd" in everything
    assert "/etc/passwd" not in done.stdout
