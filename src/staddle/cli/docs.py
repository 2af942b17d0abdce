"""`staddle docs`: print a page of the documentation, which is installed with the program."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError
from .kept import begin, print_paged
from .options import HELP, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: Pages in the parent of the directory.
BESIDE = ("SECURITY", "CONTRIBUTING", "CHANGELOG")
_OPTIONS = (Option("path", "", "print where the page is, instead of what is in it"), HELP)
_HELP = """\
Print a page of the documentation, on a terminal with $PAGER. Without a name, list the pages.

usage: staddle docs [PAGE] [--path]

{options}

  staddle docs                         the pages
  staddle docs network                 how to allow hosts
  staddle docs SECURITY                how to report a vulnerability
  staddle docs --path                  the directory that has them
"""


def main(words: Sequence[str]) -> int:
    """Print a page, or list all pages."""
    parsed = begin(words, _OPTIONS, "docs", _HELP)
    if parsed is None:
        return 0
    if len(parsed.words) > 1:
        raise UsageError(f"staddle docs prints one page, not {len(parsed.words)}", fix="name one")
    place = directory()
    pages = _pages(place)
    if not parsed.words:
        lines = [str(place)] if parsed.on("path") else _listed(place, pages)
    else:
        chosen = _chosen(parsed.words[0], pages)
        found = (place.parent if chosen in BESIDE else place) / f"{chosen}.md"
        lines = [str(found)] if parsed.on("path") else found.read_text().splitlines()
    print_paged(lines)
    return 0


def directory() -> Path:
    """Return the directory of the pages, in the source tree or in the installed package."""
    package = Path(__file__).resolve().parents[1]
    tree = package.parents[1] / "docs"
    place = tree if package.parent.name == "src" else package / "docs"
    if not (place / "README.md").is_file():
        raise UsageError(
            "the documentation is not installed",
            why=f"{str(place)!r} does not exist",
            fix="install the wheel",
        )
    return place


def _pages(place: Path) -> list[str]:
    found = [page.relative_to(place).with_suffix("").as_posix() for page in place.rglob("*.md")]
    return sorted([*found, *(name for name in BESIDE if (place.parent / f"{name}.md").is_file())])


def _listed(place: Path, pages: list[str]) -> list[str]:
    files = {name: (place.parent if name in BESIDE else place) / f"{name}.md" for name in pages}
    titles = {name: file.read_text().partition("\n")[0].lstrip("# ") for name, file in files.items()}
    width = max(map(len, pages))
    return [f"{name:<{width}}  {title}" for name, title in titles.items()]


def _chosen(name: str, pages: list[str]) -> str:
    from difflib import get_close_matches

    asked = name.partition("#")[0].removeprefix("../").removeprefix("docs/").removesuffix(".md")
    if asked in pages:
        return asked
    near = get_close_matches(asked, pages, 1)
    fix = f"did you mean {near[0]}?" if near else "`staddle docs` lists them"
    raise UsageError(f"there is no page {name!r}", fix=fix)
