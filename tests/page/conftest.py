"""Writes what was run in the browser into docs/server.md, if all passed. `make test-page` asks for it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "server.md"
BEGIN, END = "<!-- written by make test-page -->", "<!-- end -->"
_passed: list[tuple[str, str]] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    report = yield
    if report.when == "call" and report.passed:
        promise = item.name.removeprefix("test_").replace("_", " ")
        _passed.append((promise[0].upper() + promise[1:], item.function.__doc__ or ""))  # type: ignore[attr-defined]
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    ours = [item for item in session.items if item.path.parent == Path(__file__).parent]
    is_all = len(_passed) == len(ours) and not session.config.option.keyword
    if not os.environ.get("STADDLE_PAGE_PICTURES") or not is_all:
        return
    told = subprocess.run(["chromium", "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"Chromium [0-9.]+", told)
    rows = [f"| {promise} | {' '.join(text.split())} |" for promise, text in _passed]
    table = [
        f"In {version[0] if version else 'chromium'} of Debian, without a window:",
        "",
        "| promise | how |",
        "| --- | --- |",
    ]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    text = "\n".join([BEGIN, *table, *rows, END])
    PAGE.write_text(before + text + rest.partition(END)[2])
