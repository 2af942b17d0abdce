"""docs/mcp.md names the tools, hints and resources that the server has."""

from __future__ import annotations

import json
import re

import pytest

from staddle import Policy
from staddle.mcp.command_tools import OUTPUT_LIMIT, bash, write_stdin
from staddle.mcp.resources import TEMPLATES
from staddle.mcp.server import TOOLS
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
