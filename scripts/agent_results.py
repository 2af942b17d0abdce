"""Write what `make test-agents` found into docs/coding-agents.md: agent_results.py DIRECTORY PACKAGE..."""

from __future__ import annotations

import datetime
import json
import platform
import re
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "coding-agents.md"
BEGIN, END = "<!-- results: begin, written by make test-agents -->", "<!-- results: end -->"


def main() -> None:
    top, packages = Path(sys.argv[1]), sys.argv[2:]
    found: dict[tuple[str, str, str], bool] = {}
    for name, who in (("results.json", ""), ("results-user.json", ", as an ordinary user")):
        lines = (top / name).read_text().splitlines() if (top / name).exists() else []
        for row in map(json.loads, lines):
            key = (row["agent"], row["way"], row["what"] + who)
            found[key] = found.get(key, True) and row["passed"]
    today = datetime.datetime.now(datetime.UTC).date()
    kernel = ".".join(platform.release().split(".")[:2])
    names = ", ".join(
        package.replace("==", " ").replace("@", " ").strip().replace(" ", "@", 0) for package in packages
    )
    lines = [BEGIN, "", f"On {today}, Linux {kernel}, Python {platform.python_version()}, with {names}.", ""]
    lines += ["| agent | way | what | result |", "| --- | --- | --- | --- |"]
    for (agent, way, what), passed in sorted(found.items()):
        lines.append(f"| {agent} | {way} | {what} | {'passed' if passed else '**failed**'} |")
    text = PAGE.read_text()
    if BEGIN not in text:
        sys.exit(f"{PAGE} has no place for results")
    part = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    PAGE.write_text(part.sub(lambda _: "\n".join([*lines, "", END]), text))


main()
