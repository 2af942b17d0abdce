"""Root file systems for the tests of bases: a few of this machine's programs and their libraries."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PROGRAMS = ("bash", "cat", "id", "ls", "readlink", "getent", "env", "touch")


def small_root(root: Path) -> Path:
    """A Linux of eight programs in `root`, whose /bin and /lib are links."""
    for name in PROGRAMS:
        found = shutil.which(name, path="/usr/bin:/bin")
        assert found, f"this machine has no {name}"
        _copy(root, os.path.realpath(found), f"usr/bin/{name}")
        listed = subprocess.run(["ldd", found], capture_output=True, text=True, check=True).stdout
        for path in (word for word in listed.split() if word.startswith("/")):
            _copy(root, path, "usr" + path.removeprefix("/usr"))
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "etc").mkdir()
    (root / "etc/os-release").write_text('NAME="Tiny"\n')
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/bash\nwww:x:33:33::/:/bin/bash\n")
    return root


def _copy(root: Path, source: str, place: str) -> None:
    target = root / place
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(source, target)
