"""Write the shipped filters anew from the rule table: `python -m staddle.linux.seccomp`."""

from __future__ import annotations

import os
import sys

from .. import syscalls
from . import PROFILES, prebuilt_path
from .compiler import compile_filter
from .rules import RULES


def main() -> int:
    """Compile every profile for every architecture, and say which files changed."""
    for machine in syscalls.COLUMN:
        for profile in PROFILES:
            path = prebuilt_path(profile, machine)
            program = compile_filter(RULES[profile], machine)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            changed = not os.path.exists(path) or _read(path) != program
            if changed:
                _replace(path, program)
            state = "written" if changed else "unchanged"
            print(f"{os.path.basename(path)}: {len(program) // 8} instructions, {state}")
    return 0


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _replace(path: str, content: bytes) -> None:
    """Whole or not at all: a run that reads meanwhile gets the old filter or the new one."""
    beside = f"{path}.new"
    with open(beside, "wb") as file:
        file.write(content)
    os.replace(beside, path)


if __name__ == "__main__":
    sys.exit(main())
