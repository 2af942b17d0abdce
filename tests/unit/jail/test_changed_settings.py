"""A change in what an agent obeys when it starts is seen, whatever it is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from staddle.jail import agents
from staddle.jail.agents import changed_settings, fingerprint


@pytest.fixture
def config(tmp_path: Path) -> Path:
    place = tmp_path / "config"
    (place / "hooks").mkdir(parents=True)
    (place / "settings.json").write_text("{}")
    (place / "hooks/run").write_text("#!/bin/sh\n")
    return place


CHANGES: dict[str, Callable[[Path], object]] = {
    "another text of the same length": lambda place: (place / "settings.json").write_text("[]"),
    "a new file": lambda place: (place / "hooks/new").touch(),
    "a file that went": lambda place: (place / "hooks/run").unlink(),
    "a file that can be run now": lambda place: (place / "hooks/run").chmod(0o755),
    "a link in its place": lambda place: (
        (place / "settings.json").unlink(),
        (place / "settings.json").symlink_to("/dev/null"),
    ),
    "a fifo in its place": lambda place: (
        (place / "settings.json").unlink(),
        os.mkfifo(place / "settings.json"),
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_it_is_seen(config: Path, change: Callable[[Path], object]) -> None:
    before = fingerprint([str(config)])
    change(config)
    assert len(changed_settings(before, fingerprint([str(config)]))) == 1


def test_nothing_is_nothing(config: Path) -> None:
    before = fingerprint([str(config), str(config / "missing")])
    os.utime(config / "settings.json")
    assert changed_settings(before, fingerprint([str(config), str(config / "missing")])) == ()


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_BYTES_IN_ALL"])
def test_what_is_large_is_told_apart_by_size_and_time(
    config: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(agents, limit, 1)
    before = fingerprint([str(config)])
    assert changed_settings(before, fingerprint([str(config)])) == ()
    info = os.stat(config / "settings.json")
    (config / "settings.json").write_text("[]")
    os.utime(config / "settings.json", ns=(info.st_atime_ns, info.st_mtime_ns))
    assert changed_settings(before, fingerprint([str(config)])) == (f"{config}/settings.json",)


STATE = {
    "starts": 1,
    "mcpServers": {},
    "projects": {"/a": {"cost": 3, "mcpServers": {"x": {"command": "x"}}}},
}
HARMLESS = [
    {**STATE, "starts": 2},
    {**STATE, "projects": {**STATE["projects"], "/b": {"cost": 9, "mcpServers": {}}}},  # type: ignore[dict-item]
]
HARMFUL = [
    {**STATE, "mcpServers": {"new": {"command": "sh"}}},
    {**STATE, "projects": {"/a": {"cost": 3, "mcpServers": {"x": {"command": "y"}}}}},
    {**STATE, "projects": {"/b": {"mcpServers": {"x": {"command": "x"}}}}},
    {**STATE, "projects": [{"mcpServers": {"x": {"command": "x"}}}]},
]


@pytest.mark.parametrize(("after", "told"), [*((s, False) for s in HARMLESS), *((s, True) for s in HARMFUL)])
def test_of_state_and_settings_in_one_file_only_the_settings_count(
    tmp_path: Path, after: object, told: bool
) -> None:
    file = tmp_path / "state.json"
    mixed = [(str(file), ("mcpServers",))]
    file.write_text(json.dumps(STATE))
    before = fingerprint([], mixed)
    file.write_text(json.dumps(after, indent=3))
    assert bool(changed_settings(before, fingerprint([], mixed))) is told


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\xff"])
def test_what_is_no_json_counts_as_a_whole(tmp_path: Path, text: str) -> None:
    file = tmp_path / "state.json"
    file.write_text("{}")
    before = fingerprint([], [(str(file), ("x",))])
    file.write_text(text)
    assert changed_settings(before, fingerprint([], [(str(file), ("x",))])) == (str(file),)


def test_links_are_not_followed(config: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (config / "link").symlink_to(tmp_path / "elsewhere")
    before = fingerprint([str(config)])
    (tmp_path / "elsewhere/new").touch()
    assert changed_settings(before, fingerprint([str(config)])) == ()
