"""Pages that messages name can be read where only the package is installed."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from staddle.cli import docs, main

pytestmark = pytest.mark.same_for_everyone

TREE = Path(__file__).parents[2]
SOURCE = TREE / "src" / "staddle"


@cache
def texts() -> list[tuple[str, str]]:
    """(file, text) of every text in the source that is no docstring."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text())
        about = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in about:
                found.append((file.relative_to(SOURCE).as_posix(), node.value))
    return found


def test_messages_name_pages_by_the_command_that_prints_them() -> None:
    named = [(file, name) for file, text in texts() for name in re.findall(r"`staddle docs ([\w/-]+)`", text)]
    assert len(named) > 3
    assert not [(file, name) for file, name in named if not (TREE / "docs" / f"{name}.md").is_file()]
    assert not [(file, text) for file, text in texts() if re.search(r"\bdocs/[\w/-]+\.md", text)]


def test_the_wheel_has_the_pages() -> None:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())
    beside = {f"{name}.md": f"staddle/{name}.md" for name in docs.BESIDE}
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {"docs": "staddle/docs", **beside}
    linked = {
        target
        for page in (TREE / "docs").rglob("*.md")
        for target in re.findall(r"\]\(((?:\.\./)+[^)#]+)\)", page.read_text())
        if (page.parent / target).resolve().parent == TREE
    }
    assert {Path(target).name for target in linked} <= set(beside)


def test_every_page_that_the_readme_names_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A package index shows the README alone, so a relative link there leads nowhere."""
    text = (TREE / "README.md").read_text()
    assert re.findall(r"\]\((?!https?:)[^)]+\)", text) == []
    names = set(re.findall(r"`staddle docs ([a-z-]+)`", text))
    assert len(names) > 10
    for name in names:
        assert main(["docs", name]) == 0, name
        assert capsys.readouterr().out == (TREE / "docs" / f"{name}.md").read_text()


def test_an_installed_package_prints_its_own_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "site-packages" / "staddle"
    (package / "docs").mkdir(parents=True)
    monkeypatch.setattr(docs, "__file__", str(package / "cli" / "docs.py"))
    assert main(["docs"]) == 125
    assert "not installed" in capsys.readouterr().err
    (package / "docs" / "README.md").write_text("# Here\n\ntext\n")
    assert main(["docs", "README"]) == 0
    assert capsys.readouterr().out == "# Here\n\ntext\n"


def test_pages_are_listed_printed_and_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    assert re.search(r"^network +Network: ", capsys.readouterr().out, re.MULTILINE)
    assert main(["docs", "docs/network.md"]) == 0
    assert capsys.readouterr().out == (TREE / "docs" / "network.md").read_text()
    assert main(["docs", "network", "--path"]) == 0
    assert capsys.readouterr().out == f"{TREE}/docs/network.md\n"
    for wrong, hint in (
        ("netwrk", "did you mean network?"),
        ("../../README", "did you mean"),
        ("/etc/passwd", "lists them"),
    ):
        assert main(["docs", wrong]) == 125
        assert hint in capsys.readouterr().err
