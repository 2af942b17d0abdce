"""The pages that are made from the code are current, and nothing is missing in them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import staddle

pytestmark = pytest.mark.same_for_everyone

TREE = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("reference", TREE / "scripts" / "reference.py")
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)


@pytest.mark.parametrize("name", sorted(reference.pages()))
def test_page_is_current(name: str) -> None:
    assert (TREE / "docs" / name).read_text() == reference.pages()[name], "run `make reference`"


def test_every_public_name_is_on_a_page() -> None:
    listed = [name for _, names in reference.TOPICS.values() for name in names]
    assert sorted([*listed, "PolicyNotEnforceable", "StaddleError"]) == sorted(staddle.__all__)


def test_every_error_has_advice() -> None:
    assert set(reference.ADVICE) == {kind.__name__ for kind in reference.error_classes()}
