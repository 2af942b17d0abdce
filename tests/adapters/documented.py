"""The examples of docs/adapters*.md: fenced as `python NAME`, run with the framework NAME."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
# Harbor reports its use at the end of a job, and waits for minutes where there is no internet.
os.environ["HARBOR_TELEMETRY"] = "off"


def examples(name: str) -> list[str]:
    """The examples of one framework, in the order of the pages."""
    pages = "\n".join(page.read_text() for page in sorted(DOCS.glob("adapters*.md")))
    found = re.findall(rf"^```python {name}\n(.*?)^```$", pages, re.MULTILINE | re.DOTALL)
    assert found, f"docs/ has no example for {name}"
    return found


def run_examples(name: str, directory: Path) -> None:
    """Run them as they are written."""
    for code in examples(name):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, f"{code}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
