"""The figures of `make bench`: who takes part, what is made of the numbers, and what is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.field import check, page, peers, run, works
from benchmarks.field.peers import CannotRun, Job, Peer, Place

pytestmark = pytest.mark.same_for_everyone

PROJECT = Path(__file__).parents[2]


def standing_in(name: str, *before: str, **more: object) -> Peer:
    """A peer that starts the command by other words, and confines nothing."""
    return Peer(name, "", lambda _: ["true"], lambda _, job: [*before, *job.command], **more)  # type: ignore[arg-type]


@pytest.fixture
def field() -> Iterator[works.Field]:
    made = {
        "plain": standing_in("plain"),
        "by env": standing_in("by env", "env"),
        "broken": standing_in("broken", "sh", "-c", "echo 'error: no rights here' >&2; exit 3"),
    }
    with works.Field(Place(Path("/nonexistent")), made, quick=True) as field:
        yield field


def figure(median: float, **more: float) -> dict[str, float]:
    return {"median": median, "low": median, "high": median, "rounds": 3, **more}


def test_cells_take_turns_and_a_peer_that_cannot_run_says_its_own_error(field: works.Field) -> None:
    order: list[str] = []

    def cells(field: works.Field) -> Iterator[tuple[str, int, works.Cell]]:
        for name, _, cell in works.starts(field):
            yield name, 0, lambda name=name, cell=cell: order.append(name) or cell()  # type: ignore[misc]

    work = works.Work("start", "", "ms", cells, 1)
    figures, refused = run.turns(field, work, 1.0, lambda _: None)
    assert set(figures) == {"plain", "by env"}
    assert refused == {"broken": "error: no rights here"}
    assert order[:6] == ["plain", "by env", "broken", "plain", "by env", "plain"]
    assert figures["plain"]["0"]["rounds"] >= run.LEAST


def test_a_crowd_is_measured_and_nothing_of_it_is_left(field: works.Field) -> None:
    known: dict[str, tuple[int, float, float]] = {}
    mebibytes = works._crowd(field, field.peers["plain"], 3, known)()
    assert 0 < mebibytes < 100
    ((count, seconds),) = [(key[2], values[0]) for key, values in field.beside.items()]
    assert (count, seconds > 0) == (3, True)
    assert waiting_for_end(str(field.workspace)) == []


def _directory(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("before", "count", "why"),
    [((10, 0.1, 1e9), 11, "MiB"), ((10, 3.0, 1.0), 100, "would take 30 s"), ((10, 0.1, 1.0), 100, "")],
)
def test_a_crowd_is_bounded_by_memory_and_time(
    before: tuple[int, float, float], count: int, why: str
) -> None:
    if why:
        with pytest.raises(CannotRun, match=why):
            works._bounded("x", count, {"x": before})
    else:
        works._bounded("x", count, {"x": before})


def test_what_does_not_end_is_ended(field: works.Field) -> None:
    with pytest.raises(CannotRun, match="not finished"):
        field.run(["sh", "-c", "setsid sleep 60 & sleep 60 & sleep 60"], timeout=0.5)
    assert waiting_for_end(str(field.workspace)) == []


def waiting_for_end(directory: str) -> list[str]:
    """Processes that are still in this directory; a killed one may take a moment."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if not (
            left := [pid for pid in filter(str.isdigit, os.listdir("/proc")) if _directory(pid) == directory]
        ):
            break
        time.sleep(0.02)
    return left


def test_a_driver_answers_and_one_that_fails_says_why(field: works.Field) -> None:
    assert len(field.driver(sys.executable, "serve(lambda: None)")(3)) == 3
    with pytest.raises(CannotRun, match="ModuleNotFoundError"):
        field.driver(sys.executable, "import a_module_that_nobody_has")


def test_a_download_arrives_whole(field: works.Field) -> None:
    assert field.place
    with works._serving(3 << 20) as host:
        done = subprocess.run(["curl", "-sS", "-f", f"http://{host}/"], capture_output=True, check=True)
    assert len(done.stdout) == 3 << 20


def test_exponents_are_those_of_the_curve() -> None:
    assert page.exponent({1: 3.0, 10: 30.0, 100: 300.0}) == pytest.approx(1)
    assert page.exponent({1: 3.0, 10: 300.0, 100: 30000.0}) == pytest.approx(2)
    assert page.exponent({1: 5.0, 10: 5.0, 100: 5.0}) == pytest.approx(0)
    assert page.exponent({1: 5.0, 10: 5.0}) is None
    assert page.exponent({0: 5.0, 2: 5.0, 4: 5.0}) is None


def test_a_peer_that_wins_is_named_for_each_way_of_ours() -> None:
    figures = {
        "staddle": {"0": figure(80)},
        "staddle, library": {"0": figure(8)},
        "bubblewrap": {"0": figure(4)},
        "srt": {"0": figure(40)},
        "nothing": {"0": figure(1)},
    }
    said = page.ahead(works.WORKS["start"], figures).splitlines()
    assert said == [
        "* ahead of **staddle**: bubblewrap (20.0 times), srt (2.0 times)",
        "* ahead of **staddle, library**: bubblewrap (2.0 times)",
    ]
    assert "no peer" in page.ahead(
        works.WORKS["rate"], {"staddle": {"1": figure(9)}, "srt": {"1": figure(3)}}
    )


def test_names_with_a_comma_are_names() -> None:
    assert set(page.names("start, staddle, library,srt")) == {"start", "staddle, library", "srt"}
    assert page.names("unknown") == ["unknown"]
    with pytest.raises(SystemExit, match="no peer is called unknown"):
        peers.chosen(["unknown"])


def test_the_page_is_replaced_between_its_markers_only(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    made = {
        "date": "2026-01-01",
        "command": "make bench",
        "machine": "a machine",
        "versions": {"staddle": "1"},
        "missing": {"srt": "no `node` | here\x1b[31m"},
        "figures": {"start": {"staddle": {"0": figure(1234.5)}}},
        "refused": {"start": {"podman": "threads 1: error"}},
    }
    page.write(made, file)
    text = file.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| staddle | 1,234 (1,234\N{EN DASH}1,234) |" in text
    assert "cannot run here: `no  node    here [31m`" in text
    assert "* podman stopped at: `threads 1: error`" in text


def test_quartiles() -> None:
    assert run.spread([1, 2, 3, 4, 5]) == {"median": 3, "low": 2, "high": 4, "rounds": 5}
    assert run.spread([7]) == {"median": 7, "low": 7, "high": 7, "rounds": 1}


def made(staddle: float, bubblewrap: float, *, rate: float = 10) -> dict[str, object]:
    start = {"staddle": {"0": figure(staddle)}, "bubblewrap": {"0": figure(bubblewrap)}}
    rates = {"staddle": {"1": figure(rate)}, "bubblewrap": {"1": figure(100)}}
    return {"figures": {"start": start, "rate": rates}}


def test_a_loss_counts_only_in_every_run() -> None:
    kept = check.ratios(made(50, 5))
    assert kept == {("start", "staddle"): 10, ("rate", "staddle"): 10}
    slower, busy = check.ratios(made(64, 5)), check.ratios(made(100, 10))
    assert check.losses(kept, [slower, slower, busy]) == []
    (said,) = check.losses(kept, [slower] * 3)
    assert said == "start, staddle: 10.00 times bubblewrap was kept, now it is 12.80, 12.80, 12.80"
    assert check.losses(kept, [check.ratios(made(62, 5))] * 3) == []
    assert len(check.losses(kept, [check.ratios(made(50, 5, rate=7))] * 3)) == 1
    assert len(check.losses(kept, [{}] * 3)) == 2


def test_the_check_fails_without_figures_to_compare_with(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.field.check", "--kept"]
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps({"figures": {}}))
    for file in (empty, tmp_path / "missing.json"):
        assert (
            subprocess.run([*words, str(file)], cwd=PROJECT, capture_output=True, check=False).returncode == 2
        )


def test_the_place_is_used_again_and_never_that_of_another(tmp_path: Path) -> None:
    root = peers.root_in(tmp_path)
    root.mkdir(mode=0o755)
    for name, packages in (("python", peers.PIP), ("npm", peers.NPM)):
        (root / f"{name}.stamp").write_text("\n".join(packages))
    said: list[str] = []
    assert peers.install(tmp_path, said.append) == Place(root)
    assert said == []
    root.chmod(0o777)
    with pytest.raises(SystemExit, match="only this user can write"):
        peers.install(tmp_path)
    root.chmod(0o755)
    root.rename(tmp_path / "elsewhere")
    root.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SystemExit, match="only this user can write"):
        peers.install(tmp_path)


def test_every_peer_has_a_purpose_and_a_line_or_a_session() -> None:
    for name, peer in peers.PEERS.items():
        assert name == peer.name
        assert peer.purpose
        assert peer.line or name in works.SESSIONS or name in works.LIBRARIES


def test_lines_hide_what_is_denied_and_show_what_is_granted(tmp_path: Path) -> None:
    job = Job(str(tmp_path), ["true"], str(tmp_path), ("/granted",), (str(tmp_path / "denied"),))
    (tmp_path / "denied").mkdir()
    for name in ("staddle", "bubblewrap", "sandlock", "firejail"):
        line = peers.PEERS[name].line
        assert line
        assert str(tmp_path / "denied") in " ".join(line(Place(tmp_path), job))
    assert json.loads(Path(peers._srt(Place(tmp_path), job)[2]).read_text())["filesystem"] == {
        "denyRead": [str(tmp_path / "denied")],
        "allowWrite": [str(tmp_path)],
        "denyWrite": [],
    }


def test_the_error_of_a_peer_is_one_line_and_short() -> None:
    assert peers.first_line("a\nError: no such thing\nsee the manual\n") == "Error: no such thing"
    assert peers.first_line("") == ""
    assert len(peers.first_line("error " + "x" * 1000)) == 200


def test_the_extra_is_what_is_installed() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["bench"] == [name for name in peers.PIP if "matplotlib" in name]
