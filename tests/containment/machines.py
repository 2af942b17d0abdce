"""Sessions inside a private systemd."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import subprocess
import termios
import tty
from typing import Any

from tests.support.private_systemd import SOURCE_INSIDE, PrivateSystemd

from . import session

_places = itertools.count()


def place(machine: PrivateSystemd, user: bool) -> str:
    """A new directory whose file system can translate owners, and which everyone can pass."""
    made = machine.work_place(f"world-{next(_places)}", user=user)
    machine.outside(made).chmod(0o755)
    return made


def run(
    machine: PrivateSystemd,
    user: bool,
    arguments: dict[str, Any],
    *,
    source: str = SOURCE_INSIDE,
    stdin: int | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """One session inside, as the ordinary user or as root."""
    asked = json.dumps({"place": place(machine, user), **arguments})

    def take_terminal() -> None:
        if stdin is not None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    return subprocess.run(
        machine.enter(
            ["/usr/bin/python3", "-m", "containment.session", asked],
            user=user,
            env={"PYTHONPATH": f"{source}:{SOURCE_INSIDE}", "PYTHONDONTWRITEBYTECODE": "1"},
        ),
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        capture_output=True,
        start_new_session=True,
        preexec_fn=take_terminal,
        timeout=session.SECONDS * 2,
        check=False,
    )


def report(machine: PrivateSystemd, user: bool, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The report of that session."""
    done = run(machine, user, arguments, **options)
    assert done.stdout, f"the session ended with {done.returncode}: {done.stderr.decode()[-3000:]}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def in_a_terminal(machine: PrivateSystemd, user: bool, arguments: dict[str, Any]) -> dict[str, Any]:
    """The same, with a controlling terminal as standard input."""
    main, other = pty.openpty()
    try:
        tty.setraw(other)
        return report(machine, user, {**arguments, "terminal": True}, stdin=other)
    finally:
        os.close(main)
        os.close(other)
