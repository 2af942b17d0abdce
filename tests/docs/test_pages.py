"""The documentation says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from staddle import backends
from staddle.cli.settings import RUNNING
from staddle.enforcement import PROTECTIONS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]


def test_every_protection_is_listed_in_its_own_words() -> None:
    page = (ROOT / "docs/security.md").read_text()
    for name, promise in PROTECTIONS.items():
        assert f"| `{name}` | {promise} |" in page


def test_every_backend_has_a_section_and_an_honest_one() -> None:
    for page in ("docs/backends.md", "docs/security.md"):
        headings = re.findall(r"^#+ (\w+)$", (ROOT / page).read_text(), re.MULTILINE)
        assert set(backends.NAMES) <= set(headings), page


def test_every_option_is_documented() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    for option in RUNNING:
        assert f"--{option.name}" in page


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"
