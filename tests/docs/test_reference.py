"""The pages that are made from the code are current, and nothing is missing in them."""

from __future__ import annotations

import importlib.util
import re
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
    kinds = {kind.__name__ for kind in reference.error_classes()}
    assert set(reference.ADVICE) == set(reference.EXPLAINED) == kinds


def test_every_filtered_call_is_listed_with_its_reason() -> None:
    rows = set(re.findall(r"^\| (.+?) \| .+ \| (.+) \|$", reference.system_calls(), re.MULTILINE))
    rules = {rule for rules in reference.filter_rules.RULES.values() for rule in rules}
    assert {(", ".join(f"`{name}`" for name in rule.calls), rule.why) for rule in rules} <= rows
