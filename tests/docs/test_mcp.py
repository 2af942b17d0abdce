"""docs/mcp.md names the tools, hints and resources that the server has."""

from __future__ import annotations

import json
import re

import pytest

from staddle import Policy
from staddle.mcp.command_tools import OUTPUT_LIMIT, bash, write_stdin
from staddle.mcp.sandboxes import DEFAULT_TOOLS
from staddle.mcp.server import TEMPLATES, TOOLS
from tests.docs.test_facts import code, rows, text

pytestmark = pytest.mark.same_for_everyone


def test_tools_and_their_hints() -> None:
    table = {code(row[0])[0]: (row[1], [bool(cell) for cell in row[2:]]) for row in rows("mcp.md", "tool")}
    expected = {}
    for name, (_, title, hints) in TOOLS.items():
        marks = (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint)
        expected[name] = (title, [bool(mark) for mark in marks])
    assert table == expected


def test_resources() -> None:
    table = {code(row[0])[0]: row[1] for row in rows("mcp.md", "resource")}
    assert table == {address: description for address, (_, description, _) in TEMPLATES.items()}


def test_numbers_and_names() -> None:
    page = text("mcp.md")
    assert f"({OUTPUT_LIMIT})" in page
    assert f"is {Policy.agent().limits.timeout:g} seconds" in page
    for tool in (bash, write_stdin):
        assert "call_id" in tool.__annotations__


def test_the_setting_to_paste_is_json() -> None:
    [setting] = re.findall(r"```json\n(.*?)```", text("mcp.md"), re.DOTALL)
    assert json.loads(setting)["mcpServers"]["staddle"]["args"][0] == "mcp"


def test_the_tools_of_a_default_server() -> None:
    [sentence] = re.findall(
        r"a server has (\d+) by default: (.*?)\. `--tools all` offers all (\d+)", text("mcp.md"), re.DOTALL
    )
    assert (int(sentence[0]), set(code(sentence[1])), int(sentence[2])) == (
        len(DEFAULT_TOOLS),
        DEFAULT_TOOLS,
        len(TOOLS),
    )


def test_the_counts_of_the_conformance_package_add_up() -> None:
    listed = [
        row[2].split(", ") for row in rows("internals/mcp-conformance.md", "scenario that is not offered")
    ]
    table = rows("internals/mcp-conformance.md", "revision")
    assert len(table) == 4
    for revision, fixtures, *numbers in table:
        scenarios, passed, not_offered, failed = map(int, numbers)
        assert scenarios == passed + not_offered + failed
        assert not_offered == sum(revision in where for where in listed)
        assert fixtures == "without" or not failed
