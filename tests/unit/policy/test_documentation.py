"""docs/ says what the code does about policies: files load, lists are complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from staddle import Policy
from staddle.policy.protected import NAMES

DOCS = Path(__file__).parents[3] / "docs"
PAGE = "".join((DOCS / name).read_text() for name in ("policy.md", "policy-file.md", "protected-names.md"))


def blocks(language: str) -> list[str]:
    return [part.partition("\n```")[0] for part in PAGE.split(f"```{language}\n")[1:]]


@pytest.mark.parametrize("text", blocks("toml"))
def test_every_policy_file_on_the_page_loads(text: str, tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "staddle.toml").write_text(text)
    assert Policy.from_file(tmp_path / "staddle.toml", workspace=tmp_path / "ws")


def test_every_protected_name_is_on_the_page() -> None:
    assert [name for name in NAMES if f"`{name}`" not in PAGE] == []
