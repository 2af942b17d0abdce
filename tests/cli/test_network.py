"""`staddle run --allow`: what was refused is told once, with the option that would allow it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from staddle.cli.report import say_violations
from staddle.events import Event
from tests.support.staddle_command import staddle

TWICE = (
    "getent hosts evil.example; getent hosts evil.example; (echo > /dev/tcp/192.0.2.8/80) 2>/dev/null; exit 4"
)


@pytest.mark.same_for_everyone
def test_each_refused_destination_is_one_line(tmp_path: Path) -> None:
    done = staddle("run", "--allow", "allowed.example:443", "-c", TWICE, cwd=tmp_path)
    assert done.returncode == 4
    assert sorted(done.stderr.splitlines()) == [
        "staddle: 192.0.2.8:80 was refused: no entry allows it; --allow 192.0.2.8:80",
        "staddle: evil.example was refused: no entry allows it; --allow evil.example",
    ]


@pytest.mark.same_for_everyone
def test_json_has_them_as_events(tmp_path: Path) -> None:
    done = staddle("run", "--json", "--allow", "allowed.example:443", "-c", TWICE, cwd=tmp_path)
    report = json.loads(done.stdout)
    assert (done.returncode, report["exit_code"], report["backend"]) == (4, 4, "namespaces")
    assert report["enforced"]["gaps"] == []
    told = {(e["kind"], e["what"], e["rule"], e["allow"]) for e in report["violations"]}
    assert told == {
        ("refused", "evil.example", "no entry allows it", "evil.example"),
        ("refused", "192.0.2.8:80", "no entry allows it", "192.0.2.8:80"),
    }


@pytest.mark.same_for_everyone
def test_what_an_entry_refuses_is_told_without_a_way_to_allow_it(tmp_path: Path) -> None:
    words = ["--allow", "*.example", "--allow", "!evil.example"]
    done = staddle("run", *words, "-c", "getent hosts evil.example", cwd=tmp_path)
    assert done.stderr == "staddle: evil.example was refused: refused by !evil.example\n"


@pytest.mark.same_for_everyone
def test_nothing_is_said_when_nothing_was_refused(tmp_path: Path) -> None:
    done = staddle("run", "--allow", "allowed.example", "-c", "getent hosts allowed.example", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.same_for_everyone
def test_what_comes_from_inside_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[31mred\nstaddle: all is well"
    say_violations((Event("refused", hostile, hostile, hostile), Event("note", hostile, hostile)))
    said = capsys.readouterr().err
    assert "red" in said
    assert "\x1b" not in said
    assert len(said.splitlines()) == 2


def test_a_backend_without_a_gateway_says_what_it_cannot_hold(tmp_path: Path) -> None:
    words = ("explain", "--backend", "landlock", "--allow", "allowed.example:443", "--", "true")
    done = staddle(*words, cwd=tmp_path)
    assert "names are resolved over TCP only" in done.stdout


@pytest.mark.parametrize("backend", ["namespaces", "bwrap"])
def test_explain_lists_what_is_made(tmp_path: Path, backend: str) -> None:
    words = ("explain", "--verbose", "--backend", backend, "--allow", "allowed.example:443", "--", "true")
    done = staddle(*words, cwd=tmp_path)
    assert "start the network gateway" in done.stdout
    assert "route to the gateway: allowed.example:443" in done.stdout
