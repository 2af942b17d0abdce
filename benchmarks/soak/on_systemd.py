"""The part of the systemd backend, where systemd does not run: in a private machine that it has booted."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_HERE = Path(__file__).parent
_INSIDE = "/opt/soak"


def is_needed(part: str) -> bool:
    """Whether this part needs systemd, it does not run here, and we may start one."""
    return part == "cancel-systemd" and os.geteuid() == 0 and not os.path.isdir("/run/systemd/system")


@contextlib.contextmanager
def started(words: list[str], user: str) -> Iterator[list[str]]:
    """A private machine; the command line that runs the soak with these words in it."""
    sys.path.insert(0, str(_HERE.parents[1]))
    from tests.support.private_systemd import SOURCE_INSIDE, PrivateSystemd

    with PrivateSystemd() as machine:
        machine.outside(_INSIDE).mkdir(mode=0o755)
        for file in _HERE.glob("*.py"):
            machine.copy_in(file, f"{_INSIDE}/{file.name}")
        yield machine.enter(
            ["/usr/bin/python3", _INSIDE, *words],
            user=user == "user",
            env={"PYTHONPATH": SOURCE_INSIDE, "PYTHONDONTWRITEBYTECODE": "1"},
        )
