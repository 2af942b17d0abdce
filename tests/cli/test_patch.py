"""`staddle diff --patch` is a patch that git applies: the other directory is then as the sandbox has it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.kept_sandboxes import Run

CHANGES = r"""
printf 'one\ntwo\nthree' > text; printf '#!/bin/sh\n' > tool; chmod +x tool
rm -r gone; mv before after; ln -s text link; ln -sfn elsewhere turned
printf '\0\1\2binary' > bin; head -c 100000 /dev/urandom > big; chmod +x plain
: > empty; mkdir -p deep/er; echo x > 'deep/er/with space'; echo y > $'odd\tname"\\'
rm kind; ln -s text kind; seq 30000 | sed 's/^9/nine/' > many
"""


def facts(tree: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(tree.rglob("*")):
        if ".git" in path.parts or (path.is_dir() and not path.is_symlink()):
            continue
        name = str(path.relative_to(tree))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found


def test_git_applies_it(command: Run, project: Path, tmp_path: Path) -> None:
    work, other = project, tmp_path / "other"
    (work / "text").write_text("one\ntwo\n")
    (work / "gone").write_text("bye\n")
    (work / "before").write_text("the same\n")
    (work / "turned").symlink_to("text")
    (work / "bin").write_bytes(b"\0old")
    (work / "plain").write_text("plain\n")
    (work / "kind").write_text("a file\n")
    (work / "many").write_text("".join(f"{number}\n" for number in range(1, 30_001)))
    subprocess.run(["cp", "-a", work, other], check=True)
    command("run", "--keep", "patched", "-c", CHANGES)
    shown: Any = command("diff", "patched", "--patch", text=False)
    patch: bytes = shown.stdout
    subprocess.run(["git", "apply", "--check"], input=patch, cwd=other, check=True)
    subprocess.run(["git", "apply"], input=patch, cwd=other, check=True)
    command("commit", "patched", "--yes", "--allow-protected")
    assert facts(other) == facts(work)
    assert facts(other)["tool"] == (b"#!/bin/sh\n", True)


def test_it_is_not_for_a_terminal_and_goes_with_nothing_else(command: Run) -> None:
    command("run", "--keep", "patched", "-c", "echo x > made")
    wrong = command("diff", "patched", "--patch", "--stat", status=125)
    assert "contradict" in wrong.stderr
