"""The documentation matches the code: names, numbers, defaults, options, links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from staddle import backends
from staddle.cli.options import RUNNING
from staddle.enforcement import PROTECTIONS

pytestmark = pytest.mark.same_for_everyone

TREE = Path(__file__).parents[2]
DOCS = TREE / "docs"
PAGES = [TREE / "README.md", TREE / "SECURITY.md", TREE / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def text(name: str) -> str:
    """One page of docs/."""
    return (DOCS / name).read_text()


def anchors(page: Path) -> set[str]:
    """The fragments that a page's headings have, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_protection_is_listed_in_its_own_words() -> None:
    page = text("security.md")
    for name, promise in PROTECTIONS.items():
        assert f"| `{name}` | {promise} |" in page


def test_rows_of_the_threat_model_name_tests() -> None:
    table = text("security.md").partition("| attacker |")[2].partition("\n\n")[0]
    cells = [line.rsplit("|", 2)[1].strip() for line in table.splitlines()[2:]]
    assert len(cells) > 12
    assert not [cell for cell in cells if cell != "-" and not (TREE / "tests" / cell.strip("`")).is_file()]


def test_every_backend_has_a_section_and_an_honest_one() -> None:
    headings = re.findall(r"^#+ (.+)$", text("backends.md"), re.MULTILINE)
    assert set(backends.NAMES) | {f"What `{name}` does not stop" for name in backends.NAMES} <= set(headings)


def test_every_option_is_documented() -> None:
    page = text("cli.md")
    for option in RUNNING:
        assert f"--{option.name}" in page


def test_links_lead_somewhere() -> None:
    lost = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, fragment = target.partition("#")
            there = page.parent / path if path else page
            if not there.exists() or (fragment and fragment not in anchors(there)):
                lost.append(f"{page.relative_to(TREE)} -> {target}")
    assert not lost, "\n".join(lost)


def test_messages_of_troubleshooting_are_in_the_code() -> None:
    page = text("troubleshooting.md")
    first = page[page.index("## staddle does not start") : page.index("## The program")]
    quoted = re.findall(r"^\| `([^`]+)` \|", first, re.MULTILINE)
    assert len(quoted) > 8
    # Adjacent literals of one message are joined: the code breaks long lines.
    source = "".join(re.sub(r'"\s*f?"', "", path.read_text()) for path in (TREE / "src").rglob("*.py"))
    lost = [words for words in quoted if not all(part in source for part in words.split("; "))]
    assert not lost


def test_samples_of_doctor_are_its_words() -> None:
    """Output in a page is not executed: its lines are compared with the texts that the code prints."""
    source = "".join(re.sub(r'"\s*f?"', "", path.read_text()) for path in (TREE / "src").rglob("*.py"))
    samples = {
        "install.md": ("enforces ", " protections", "systemd does not run this machine: ", "PID 1 is "),
        "containers.md": ("sandboxes lack here:", "they have everything:"),
    }
    for page, words in samples.items():
        assert not [part for part in words if part not in source or part not in text(page)]
    block = text("containers.md").partition("sandboxes lack here:\n")[2].partition("\n\n")[0]
    assert not [line for line in block.splitlines() if line.strip() not in source]
