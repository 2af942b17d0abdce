#!/usr/bin/env python3
"""Build the site of the documentation into build/site: every warning is an error, and no link leads nowhere.

`make site` runs it. The pages are those of docs/, copied to build/pages, so nothing generated lies beside
them. The navigation is made from the tables of docs/README.md. Search works from the file system as well.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
PAGES, SITE = BUILD / "pages", BUILD / "site"
#: Pages beside docs/ that its pages link to.
BESIDE = ("SECURITY", "CONTRIBUTING", "CHANGELOG")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
SETTINGS = """\
[project]
site_name = "staddle"
site_description = "Run an AI agent's commands on your machine without giving it your machine"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = {nav}

[project.theme]
font = false
features = ["navigation.sections", "navigation.indexes", "navigation.top", "toc.follow", "search.highlight",
  "content.code.copy"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle = {{icon = "lucide/sun", name = "Use dark colours"}}

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle = {{icon = "lucide/moon", name = "Use light colours"}}

[project.plugins.offline]

[project.markdown_extensions.toc]
permalink = true
slugify = {{object = "pymdownx.slugs.slugify", kwds = {{case = "lower", normalize = "NFC"}}}}
[project.markdown_extensions.tables]
[project.markdown_extensions.md_in_html]
[project.markdown_extensions.pymdownx.highlight]
[project.markdown_extensions.pymdownx.superfences]
"""


def main() -> int:
    """Copy the pages, build the site, check it."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for name in BESIDE:
        shutil.copy(ROOT / f"{name}.md", PAGES)
    # README.md would be the page of its directory, as index.md is.
    (PAGES / "README.md").rename(PAGES / "pages.md")
    for page in PAGES.rglob("*.md"):
        page.write_text(for_the_site(page.read_text(), page.relative_to(PAGES)))
    settings = BUILD / "zensical.toml"
    settings.write_text(SETTINGS.format(nav=navigation((PAGES / "pages.md").read_text())))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(settings)]
    if done := subprocess.run(command, cwd=BUILD, check=False).returncode:
        return done
    own_worker()
    wrong = problems(SITE)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}, {len(wrong)} broken links")
    return bool(wrong)


def for_the_site(text: str, page: Path) -> str:
    """A page with links to pages of the site. Of a link to a file of the source tree the words stay."""

    def mend(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return match[0]
        found = (ROOT / page if page.stem in BESIDE else ROOT / "docs" / page).parent / path
        found = found.resolve()
        if found.suffix != ".md":
            return match[0] if "images/" in path else words
        if found.parent == ROOT:
            if found.stem not in BESIDE:
                return words
            there = Path(found.name)
        elif not found.is_relative_to(ROOT / "docs"):
            return words
        else:
            there = found.relative_to(ROOT / "docs")
            there = Path("pages.md") if there == Path("README.md") else there
        up = "../" * (len(page.parts) - 1)
        return f"[{words}]({up}{there}{'#' + anchor if anchor else ''})"

    parts, at = [], 0
    for block in [*FENCE.finditer(text), None]:
        end = block.start() if block else len(text)
        parts.append(re.sub(r"(?<!!)\[([^\]\[]+)\]\(([^)\s]+)\)", mend, text[at:end]))
        parts.append(re.sub(r"^( *)```(\w+) \w+$", r"\1```\2", block[0], flags=re.MULTILINE) if block else "")
        at = block.end() if block else end
    # Markdown on GitHub needs no blank line before a list, Python's does.
    return re.sub(r"(?m)^(?!\s*(?:[*|]|\d+\. |$))(.+)\n(?=(?:\* |1\. ))", r"\1\n\n", "".join(parts))


def navigation(index: str) -> str:
    """The sections and pages of the index, as a value in TOML."""
    sections = []
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        rows = re.findall(r"^\| \[([^\]]+)\]\(([^)]+)\)", section, re.MULTILINE)
        pages = ", ".join(f"{{{json.dumps(title)} = {json.dumps(page)}}}" for title, page in rows)
        sections.append(f"{{{json.dumps(section.partition(chr(10))[0])} = [{pages}]}}")
    return f'[{", ".join(sections)}, {{"All pages" = "pages.md"}}]'


def own_worker() -> None:
    """Replace the script that zensical's offline search would load from a server of others."""
    shutil.copy(ROOT / "scripts/site_worker.js", SITE / "assets/javascripts/worker.js")
    for file in SITE.rglob("*.html"):
        up = "../" * (len(file.relative_to(SITE).parts) - 1)
        there = f'src="{up}assets/javascripts/worker.js"'
        file.write_text(file.read_text().replace('src="https://unpkg.com/iframe-worker/shim"', there))


class Page(HTMLParser):
    """The places of a page that can be linked to, and its links."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.places.update(value for name in ("id", "name") if (value := given.get(name)))
        self.links += [value for name in ("href", "src") if (value := given.get(name))]


def problems(site: Path) -> list[str]:
    """Links to files and anchors that do not exist, and files that a page would load from elsewhere."""
    pages = {file: Page(file) for file in sorted(site.rglob("*.html")) if file.name != "404.html"}
    wrong = []
    for file, page in pages.items():
        for link in page.links:
            target, anchor = urldefrag(link)
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            there = (file.parent / unquote(target)).resolve() if target else file
            there = there / "index.html" if there.is_dir() else there
            lost = not there.is_file() or (
                anchor and there in pages and unquote(anchor) not in pages[there].places
            )
            if lost:
                wrong.append(f"{file.relative_to(site)}: {link}")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="(https?:[^"]+)"', file.read_text())
        loaded += re.findall(r'<link[^>]* rel="stylesheet"[^>]* href="(https?:[^"]+)"', file.read_text())
        wrong += [f"{file.relative_to(site)}: loads {address}" for address in loaded]
    return wrong


if __name__ == "__main__":
    sys.exit(main())
