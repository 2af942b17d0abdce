"""The groups that workers are given name files that exist, and all that ask for a machine are in them."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conftest import LONG, ON_A_MACHINE, group_of

HERE = Path(__file__).parent


def test_every_group_has_a_file() -> None:
    for name in (*LONG, *ON_A_MACHINE):
        path, _, part = name.partition(": ")
        assert (HERE / path).exists(), f"tests/conftest.py speaks of {path}"
        assert not part or part == "machine" or path == "containment/test_mutations.py"


def test_whoever_asks_for_the_machine_is_in_its_group() -> None:
    for path in (HERE / "kernel").glob("test_*.py"):
        tree = ast.parse(path.read_text())
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        asked = {"machine", "sandbox"} - own  # the fixtures of tests/kernel/conftest.py
        asking = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
            if asked & {argument.arg for argument in node.args.args}
        }
        assert not asking or group_of(f"tests/kernel/{path.name}::test") == "kernel: machine", path
