"""The page's own files: complete, without markup or inline code, and its parts that need no browser."""

from __future__ import annotations

import difflib
import hashlib
import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from staddle.server.page_files import page_files

PAGE = Path(__file__).parents[3] / "src" / "staddle" / "server" / "page"
MODULES = sorted(PAGE.glob("*.js"))


def test_every_file_has_a_path_and_strict_headers() -> None:
    """The paths are fixed at the start, and lead to nothing else."""
    found = page_files()
    names = {path.relative_to(PAGE).as_posix() for path in PAGE.rglob("*") if path.is_file()}
    served = {name for name in names if not name.endswith((".txt", "VERSIONS", "index.html"))}
    assert set(found) == {"/", *(f"/page/{name}" for name in served)}
    for response in found.values():
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy


def test_nothing_of_ours_becomes_markup_or_code() -> None:
    markup = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc"
        r"|\beval\b|new Function|setTimeout\(['\"`]|javascript:|setHTML"
    )
    assert len(MODULES) > 10
    for path in MODULES:
        assert not markup.findall(path.read_text()), path.name
    assert markup.findall("place.innerHTML = name; eval(text)")
    page = (PAGE / "index.html").read_text()
    assert not re.search(r"<style|\son\w+=|\sstyle=|<script(?! type=\"module\" src=\"page/)", page)


def test_modules_and_styles_come_from_here() -> None:
    """No address of another site; every imported file exists."""
    for path in (*MODULES, PAGE / "index.html", PAGE / "page.css"):
        text = path.read_text().replace("http://www.w3.org/", "")
        assert not re.search(r"https?://|//cdn|@import|url\(", text), path.name
        for name in re.findall(r"^import (?:.* from )?\"\./([^\"]+)\"", text, re.MULTILINE):
            assert (PAGE / name).is_file(), f"{path.name}: {name}"


def test_vendored_files_are_those_of_their_packages() -> None:
    """By their hashes; `scripts/vendor_xterm` fetches them again. Their licences are beside them."""
    vendor = PAGE / "vendor"
    rows = [line.split() for line in (vendor / "VERSIONS").read_text().splitlines()]
    assert {row[1] for row in rows} == {path.name for path in vendor.iterdir()} - {"VERSIONS"}
    for digest, name, *_ in rows:
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest, name
    assert {row[2] for row in rows if row[1].startswith("LICENSE")} == {row[2] for row in rows}


def run_module(directory: Path, code: str, data: Any) -> Any:
    """Return what an expression says about `data`, with the modules of the page imported."""
    node = shutil.which("node")
    assert node, "install nodejs"
    if not (directory / "package.json").exists():
        shutil.copytree(PAGE, directory, dirs_exist_ok=True)
        (directory / "package.json").write_text('{"type": "module"}')
    script = (
        "import * as diff from './diff.js'; import * as dom from './dom.js'; import * as api from './api.js';"
        "import * as tree from './tree.js'; import {readFileSync} from 'node:fs';"
        f"const data = JSON.parse(readFileSync(0, 'utf8')); console.log(JSON.stringify({code}));"
    )
    done = subprocess.run(
        [node, "--input-type=module", "-e", script],
        input=json.dumps(data),
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_both_sides_of_a_diff_are_complete(tmp_path: Path) -> None:
    """Whatever the lines look like, also like heads of a diff."""
    words = ["a", "b", "", "--- x", "+++ y", "@@ -1 +1 @@", "\\ No newline", "-", "+", " "]
    choose = random.Random(7)  # noqa: S311 - texts, not secrets
    pairs = []
    for _ in range(200):
        old, new = ([choose.choice(words) for _ in range(choose.randrange(12))] for _ in range(2))
        lines = difflib.unified_diff([f"{x}\n" for x in old], [f"{x}\n" for x in new], "a/f", "b/f", n=99)
        pairs.append((old, new, "".join(lines)))
    found = run_module(tmp_path, "data.map((text) => diff.parsed(text))", [text for *_, text in pairs])
    for (old, new, text), drawn in zip(pairs, found, strict=True):
        if text:
            for name, lines in (("old", old), ("new", new)):
                sides = [row[name] for row in drawn["rows"] if row.get(name)]
                assert sides == [[number, line, False] for number, line in enumerate(lines, 1)], text


def test_hidden_letters_are_spelled_out(tmp_path: Path) -> None:
    """What turns the direction, is invisible, or is a byte that is no UTF-8. Other letters stay."""
    texts = ["a\u202eb", "zero\u200bwidth", "\x1b[31m", "\udcff", "ordinary ä 漢 🙂"]
    assert run_module(tmp_path, "data.map(dom.shown)", texts) == [
        *("a\\u{202e}b", "zero\\u{200b}width", "\\x1b[31m", "\\xff", "ordinary ä 漢 🙂")
    ]
    assert run_module(tmp_path, "dom.shownBlock(data)", "a\n\tb\r") == "a\n\tb\\x0d"
    assert run_module(tmp_path, "api.encoded(data)", "ä/\udcff?") == "%C3%A4%2F%ff%3F"


def test_branches_of_snapshots_have_lanes_of_their_own(tmp_path: Path) -> None:
    parents = {"a": None, "b": "a", "c": "a", "d": "c", "e": "a", "f": "b"}
    data = [{"id": name, "parent": parent} for name, parent in parents.items()]
    found = run_module(
        tmp_path,
        "{const made = tree.placed(data); return [[...made.lanes], made.width]}".join(("(() => ", ")()")),
        data,
    )
    assert found == [[["a", 0], ["b", 0], ["c", 1], ["d", 1], ["e", 2], ["f", 0]], 3]
