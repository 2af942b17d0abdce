"""The protocol's own conformance package, and its inspector, against `staddle mcp`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from staddle.mcp.sandboxes import DEFAULT_TOOLS
from tests.support.waiting import PATIENCE

from .conftest import AGENTS, STADDLE

TREE = Path(__file__).parents[2]
NODE = f"{AGENTS}/node_modules/.bin/node"
CONFORMANCE = f"{AGENTS}/node_modules/@modelcontextprotocol/conformance/dist/index.js"
NOT_OFFERED = {
    "logging-set-level": "logging is not offered: it is deprecated",
    "tools-call-with-logging": "logging is not offered: it is deprecated",
    "completion-complete": "completion is not offered",
    "tools-call-sampling": "sampling is not offered: it is deprecated",
    "elicitation-sep1330-enums": "no question of staddle is a choice among several",
    "resources-subscribe": "resources do not announce changes",
    "resources-unsubscribe": "resources do not announce changes",
    "prompts-get-simple": "there are no prompts",
    "prompts-get-with-args": "there are no prompts",
    "prompts-get-embedded-resource": "there are no prompts",
    "prompts-get-with-image": "there are no prompts",
    "json-schema-2020-12": "no tool of staddle has such a schema, and there is no fixture for it",
    "server-sse-polling": "streams are not resumed",
    "input-required-result-basic-sampling": "sampling is not offered: it is deprecated",
    "input-required-result-basic-list-roots": "roots are not asked for: they are deprecated",
    "input-required-result-multiple-input-requests": "one question at a time",
    "input-required-result-non-tool-request": "only tools ask",
    "input-required-result-capability-check": "its fixture asks by sampling",
    "http-custom-header-server-validation": "no argument of a tool is a header",
    "server-stateless": "two of its 28 checks ask for a tool that samples; the others pass",
    "tasks": "the extension is not offered",
}


def reason(scenario: str) -> str:
    """Why staddle does not offer what a scenario asks for; empty if it does."""
    return next((why for name, why in NOT_OFFERED.items() if scenario.startswith(name)), "")


@pytest.fixture(scope="module", params=["without", "with"])
def url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """(address of a server without a token, with or without the fixtures)"""
    app = [sys.executable, "-m", "tests.agents.conformance_app", str(tmp_path_factory.mktemp("work"))]
    with subprocess.Popen(
        [*app, *(["fixtures"] if request.param == "with" else ())],
        cwd=TREE,
        env={**os.environ, "PYTHONPATH": f"{TREE}:{TREE}/src"},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip(), request.param
        server.terminate()


#: Scenarios that need no fixture: these judge the server itself.
ITSELF = {
    "2025-11-25": {
        *("server-initialize", "ping", "tools-list", "resources-list", "prompts-list"),
        *("dns-rebinding-protection", "server-session-lifecycle", "server-sse-multiple-streams"),
    },
    "2026-07-28": {
        *("tools-list", "resources-list", "prompts-list", "dns-rebinding-protection", "caching"),
        *("sep-2164-resource-not-found", "http-header-validation", "server-sse-multiple-streams"),
    },
}


@pytest.mark.row("conformance {revision}", "mcp", "scenarios {url} fixtures")
@pytest.mark.parametrize("revision", ITSELF)
def test_conformance(
    revision: str, url: tuple[str, str], record_property: Callable[[str, object], None]
) -> None:
    address, fixtures = url
    words = [NODE, CONFORMANCE, "server", "--url", address, "--requirements", revision]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, check=False)
    summary = done.stdout.partition("=== SUMMARY ===")[2]
    passed = set(re.findall(r"^✓ ([\w-]+):", summary, re.MULTILINE))
    failed = set(re.findall(r"^✗ ([\w-]+):", summary, re.MULTILINE))
    assert len(passed | failed) > 20, done.stdout[-2000:]
    assert ITSELF[revision] <= passed, ITSELF[revision] - passed
    record_property("passed", len(passed))
    record_property("scenarios", len(passed | failed))
    record_property("not offered", {name: reason(name) for name in sorted(failed) if reason(name)})
    if fixtures == "with":
        unexpected = {name for name in failed if not reason(name)}
        assert not unexpected, (
            unexpected,
            re.findall(r".*(?:rror|xpected).*", done.stdout + done.stderr)[:20],
        )


@pytest.mark.row("inspector", "mcp", "tools/list and a call of bash by its command line")
def test_the_inspector(tmp_path: Path) -> None:
    command = [f"{AGENTS}/node_modules/.bin/mcp-inspector", "--cli", *STADDLE, "mcp", str(tmp_path)]
    environment = {**os.environ, "PATH": f"{AGENTS}/node_modules/.bin:{os.environ['PATH']}"}

    def ask(*words: str) -> dict[str, object]:
        done = subprocess.run(
            [*command, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE * 4,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    assert len(ask("--method", "tools/list")["tools"]) == len(DEFAULT_TOOLS)  # type: ignore[arg-type]
    ran = ask("--method", "tools/call", "--tool-name", "bash", "--tool-arg", "command=echo hi")
    assert "hi" in str(ran)
