"""Write what `make test-agents` found into the documentation: agent_results.py DIRECTORY PACKAGE...

The table of whole runs goes into docs/internals/agents-tested.md. The counts of the conformance package,
and the scenarios that staddle does not offer, go into mcp-conformance.md beside it. With `conformance` as
the first package, the script writes only these counts; with `rows`, only the results of rows that the table
of the last whole run has.
"""

from __future__ import annotations

import datetime
import json
import platform
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs" / "internals"
WHOLE_RUN, CONFORMANCE = "agents-tested.md", "mcp-conformance.md"
BEGIN, END = "<!-- results: begin, written by make test-agents -->", "<!-- results: end -->"


def main() -> None:
    top, packages = Path(sys.argv[1]), sys.argv[2:]
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for name, who in (("results.json", ""), ("results-user.json", ", as an ordinary user")):
        lines = (top / name).read_text().splitlines() if (top / name).exists() else []
        for row in map(json.loads, lines):
            key = (row["agent"], row["way"], row["what"] + who)
            passed = row["passed"] and rows.get(key, row)["passed"]
            rows[key] = {**row, "passed": passed}
    if packages[:1] == ["rows"]:
        write(WHOLE_RUN, with_results(current(WHOLE_RUN), rows))
        return
    if packages[:1] != ["conformance"]:
        write(WHOLE_RUN, whole_run(rows, packages))
    counted = {key: row["found"] for key, row in rows.items() if "scenarios" in row.get("found", {})}
    if counted:
        version = next(word for word in packages if "conformance@" in word).rpartition("@")[2]
        write(CONFORMANCE, conformance(counted, version))


def whole_run(rows: dict[tuple[str, str, str], dict[str, Any]], packages: list[str]) -> list[str]:
    """The machine and the versions, and a table with a row for each result that has no counts."""
    today = datetime.datetime.now(datetime.UTC).date()
    kernel = ".".join(platform.release().split(".")[:2])
    names = ", ".join(
        package.replace("==", " ").replace("@", " ").strip().replace(" ", "@", 0) for package in packages
    )
    lines = [f"On {today}, Linux {kernel}, Python {platform.python_version()}, with {names}.", ""]
    lines += ["| agent | way | what | result |", "| --- | --- | --- | --- |"]
    for key, row in sorted(rows.items()):
        if "found" not in row or not row["passed"]:
            lines.append(table_row(key, row))
    return lines


def table_row(key: tuple[str, str, str], row: dict[str, Any]) -> str:
    """A line of the table."""
    return f"| {' | '.join(key)} | {'passed' if row['passed'] else '**failed**'} |"


def with_results(lines: list[str], rows: dict[tuple[str, str, str], dict[str, Any]]) -> list[str]:
    """The lines of a whole run's table, with the results of these rows instead of theirs."""
    known = {f"| {' | '.join(key)} ": table_row(key, row) for key, row in rows.items()}
    return [known.get(line.removesuffix("|").rpartition("|")[0], line) for line in lines]


def current(name: str) -> list[str]:
    """What is between the marks of a page."""
    text = (DOCS / name).read_text()
    return text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()


def conformance(found: dict[tuple[str, str, str], dict[str, Any]], version: str) -> list[str]:
    """Tables of the counts, and of the scenarios that ask for something that staddle does not offer."""
    today = datetime.datetime.now(datetime.UTC).date()
    lines = [f"On {today}, with version {version} of the package:", ""]
    lines += ["| revision | fixtures | scenarios | passed | not offered | failed |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    reasons: dict[str, list[str]] = {}
    for (agent, _, what), counts in sorted(found.items()):
        total, passed, missing = counts["scenarios"], counts["passed"], counts["not offered"]
        revision, fixtures = agent.split()[-1], what.split()[1]
        others = total - passed - len(missing)
        lines += [f"| {revision} | {fixtures} | {total} | {passed} | {len(missing)} | {others} |"]
        for scenario, reason in missing.items():
            if revision not in reasons.setdefault(f"| `{scenario}` | {reason} |", []):
                reasons[f"| `{scenario}` | {reason} |"].append(revision)
    lines += ["", "| scenario that is not offered | reason | revisions |", "| --- | --- | --- |"]
    return [*lines, *(f"{row} {', '.join(where)} |" for row, where in sorted(reasons.items()))]


def write(name: str, lines: list[str]) -> None:
    """Put the lines between the marks of a page."""
    page = DOCS / name
    text = page.read_text()
    if BEGIN not in text:
        sys.exit(f"{page} has no place for results")
    part = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    page.write_text(part.sub(lambda _: "\n".join([BEGIN, "", *lines, "", END]), text))


if __name__ == "__main__":
    main()
