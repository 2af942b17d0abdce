"""What `make site` does beside the generator: navigation, links out of docs/, the check of every link."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.same_for_everyone

TREE = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("site_builder", TREE / "scripts" / "site.py")
site = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(site)


def test_every_page_is_in_the_navigation() -> None:
    index = (TREE / "docs/README.md").read_text()
    mended = site.for_the_site(index, Path("README.md"))
    shown = site.navigation(mended)
    pages = {page.relative_to(TREE / "docs").as_posix() for page in (TREE / "docs").rglob("*.md")}
    beside = {f"{name}.md" for name in site.BESIDE}
    assert {page for page in (pages | beside) - {"README.md"} if f'"{page}"' not in shown} == set()


def test_links_stay_on_the_site() -> None:
    links = {
        "[a](../SECURITY.md#reporting)": "[a](SECURITY.md#reporting)",
        "[b](../src/staddle/wrapping.py)": "b",
        "[c](README.md)": "[c](pages.md)",
        "![d](images/command.svg)": "![d](images/command.svg)",
        "[e](gone.md)": "[e](gone.md)",  # the build refuses it
        "```text\n[f](../SECURITY.md)\n```": "```text\n[f](../SECURITY.md)\n```",
    }
    assert {link: site.for_the_site(link, Path("policy.md")) for link in links} == links
    assert site.for_the_site("[g](../README.md)", Path("internals/x.md")) == "[g](../pages.md)"


def test_a_broken_link_and_a_foreign_script_are_problems(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h1 id="here">a</h1><a href="b.html#there">b</a><a href="#here">a</a>')
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1><a href="https://example.com/">out</a>')
    assert site.problems(tmp_path) == []
    (tmp_path / "b.html").write_text(
        '<h1>b</h1><a href="c.html">c</a><script src="https://a.example/x.js"></script>'
    )
    assert site.problems(tmp_path) == [
        "a.html: b.html#there",
        "b.html: c.html",
        "b.html: loads https://a.example/x.js",
    ]
