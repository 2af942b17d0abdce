"""The verdicts of `make scorecard`, and that it tells a line that confines from one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.field.peers import ROOT, Job
from benchmarks.scorecard import forks, page, session
from benchmarks.scorecard.__main__ import in_namespaces


def answer(outcome: str, why: str = "") -> dict[str, str]:
    return {"outcome": outcome, "why": why, "detail": ""}


@pytest.mark.parametrize(
    ("name", "said", "damage", "leaks", "verdict"),
    [
        ("read-outside", answer("refused", "EACCES"), {}, [], page.CONFINED),
        ("read-outside", answer("killed", "SIGSYS"), {}, [], page.CONFINED),
        ("read-outside", answer("through"), {}, ["read-outside"], page.THROUGH),
        ("read-outside", answer("broken"), {}, [], page.UNKNOWN),
        ("read-outside", None, {}, [], page.UNKNOWN),
        ("plant-a-git-hook", answer("through"), {"guard": ["x"]}, [], page.THROUGH),
        ("plant-a-git-hook", answer("through"), {}, [], page.COPY),
        ("call-bpf", answer("through"), {}, [], page.THROUGH),
        ("leave-something-in-tmp", answer("through"), {}, [], page.CONFINED),
        ("leave-something-in-tmp", answer("through"), {"tmp": ["x"]}, [], page.THROUGH),
    ],
)
def test_verdicts(name: str, said: Any, damage: Any, leaks: list[str], verdict: str) -> None:
    assert page.verdict(name, said, damage, leaks) == verdict


def test_only_what_its_control_shows_is_counted() -> None:
    control = {
        "answers": {"read-outside": answer("through"), "list-outside": answer("refused")},
        "damage": [],
        "cases": [{"a": [0, "h", ""], "b": [0, "1", ""], "c": [-1, "", ""]}] * 2,
    }
    control["cases"][1] = {**control["cases"][0], "b": [0, "2", ""]}  # type: ignore[index]
    made = {"answers": {}, "damage": {}, "leaks": [], "cases": {"a": [0, "other", ""]}}
    judged = page.judged(control, made)
    assert judged["probes"] == {"read-outside": {"verdict": page.UNKNOWN}}
    assert judged["cases"] == {"a": False}
    assert page.judged(control, {"cannot": "no rights"}) == {"cannot": "no rights"}


def test_a_line_is_filled_in_word_by_word() -> None:
    job = Job("/a place", ["sh", "-c", "echo {workspace}"], "/scratch")
    line = session.templated("bwrap --bind {workspace} '{workspace}' -- {command}")(job)
    assert line == ["bwrap", "--bind", "/a place", "/a place", "--", "sh", "-c", "echo {workspace}"]
    with pytest.raises(SystemExit, match="has no word"):
        session.templated("bwrap --bind {workspace} {workspace}")


def test_what_is_shown_of_others_is_text() -> None:
    made = {
        "date": "d",
        "machine": "m",
        "versions": {},
        "missing": {"nono": "`|\x1b"},
        "subjects": {"evil `|` {command}": {"probes": {}, "twins": {}, "cases": {}, "damage": {}}},
        "forks": [dict.fromkeys(("hazard", "way", "policy", "seen", "status", "test"), "x")],
    }
    text = page.tables(made)
    assert "\x1b" not in text
    assert "`evil     {command}`" in text


def test_rows_of_forks_name_tests_that_exist() -> None:
    for hazard in forks.HAZARDS:
        if hazard.test:
            file, name = hazard.test.split("::")
            assert f"def {name}(" in (ROOT / file).read_text(), hazard


def test_the_page_has_its_markers(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text((ROOT / "docs/scorecard.md").read_text())
    page.write({"date": "d", "machine": "m", "versions": {}, "missing": {}, "subjects": {}}, file)
    assert f"{page.BEGIN}\nTried on d by `make scorecard`: m" in file.read_text()


@pytest.mark.slow
def test_it_tells_what_confines_from_what_does_not() -> None:
    place = {"place": "/nonexistent"}
    control = in_namespaces({"control": True, **place})
    assert "cannot" not in control
    bwrap = (
        "bwrap --ro-bind / / --dev /dev --proc /proc --bind {workspace} {workspace} --unshare-all {command}"
    )
    found = {}
    for line in ("env {command}", bwrap, "false {command}"):
        judged = page.judged(control, in_namespaces({"with": line, **place}))
        found[line] = [said["verdict"] for said in judged.get("probes", {}).values()]
    assert found["env {command}"].count(page.THROUGH) > 0.8 * len(found["env {command}"])
    assert found[bwrap].count(page.CONFINED) > 0.4 * len(found[bwrap])
    assert found[bwrap].count(page.THROUGH) > 0
    assert found["false {command}"] == []
