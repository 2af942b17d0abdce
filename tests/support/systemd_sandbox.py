"""Commands on the systemd backend of a private machine, for the tests that start them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.private_systemd import SOURCE_INSIDE, PrivateSystemd

DRIVER_HERE = Path(__file__).parent / "inside_systemd.py"
DRIVER = f"{SOURCE_INSIDE}/inside_systemd.py"

#: The pids whose command line has in it what is given on standard input.
PROCESSES = """
import os, sys
mark = sys.stdin.buffer.read()
for pid in os.listdir("/proc"):
    try:
        if pid.isdigit() and mark in open(f"/proc/{pid}/cmdline", "rb").read():
            print(pid)
    except OSError:
        pass
"""


def boot(machine: PrivateSystemd) -> None:
    """Put what these tests need into a started machine."""
    machine.copy_in(DRIVER_HERE, DRIVER)
    newer = machine.run(
        ["/usr/bin/python3", "-c", "import sys; print(sys.version_info >= (3, 11))"], user=False
    )
    assert newer.stdout == b"True\n", "these tests need a /usr/bin/python3 of 3.11 or newer"
    machine.run(["/usr/bin/python3", "-m", "compileall", "-q", SOURCE_INSIDE], user=False)


def wait_for(what: str, condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until `condition` holds, and fail when it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.02)


class Sandbox:
    """Commands on the systemd backend of a private machine, as one of its two users."""

    def __init__(self, machine: PrivateSystemd, user: bool) -> None:
        self.machine, self.user = machine, user
        self._places = 0

    def place(self) -> str:
        """A new directory, writable by the one who starts the sandbox."""
        self._places += 1
        who = "user" if self.user else "root"
        return self.machine.work_place(
            f"{who}-{os.getpid()}-{self._places}-{time.monotonic_ns()}", user=self.user
        )

    def unconfined(self, argv: list[str], **kw: object) -> subprocess.CompletedProcess[bytes]:
        """Run it unconfined, as the same user."""
        return self.machine.run(argv, user=self.user, **kw)  # type: ignore[arg-type]

    def words(self, command: list[str] | None = None, **asked: object) -> list[str]:
        return ["/usr/bin/python3", DRIVER, json.dumps({"command": command, **asked})]

    def run(
        self, command: list[str] | None = None, *, input: bytes = b"", **asked: object
    ) -> subprocess.CompletedProcess[bytes]:
        """Run it confined, to its end."""
        return self.machine.run(self.words(command, **asked), user=self.user, input=input, timeout=240)

    def popen(self, command: list[str], **asked: object) -> subprocess.Popen[bytes]:
        return self.machine.popen(self.words(command, **asked), user=self.user)

    def python(self, code: str, *words: str, **asked: object) -> subprocess.CompletedProcess[bytes]:
        return self.run(["python3", "-c", code, *words], **asked)

    def units(self) -> list[str]:
        """The units of ours that the manager knows."""
        told = self._systemctl("--no-legend", "--plain", "--all", "list-units", "staddle-*")
        names = [line.split()[0].decode() for line in told.stdout.splitlines() if line.split()]
        return [name for name in names if name.endswith(".scope")]

    def end(self, units: list[str]) -> None:
        """End these, and let the manager forget them."""
        for verb in ("stop", "reset-failed") if units else ():
            self._systemctl(verb, *units)

    def _systemctl(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return self.unconfined(["systemctl", *(["--user"] if self.user else []), *words])

    def processes(self, mark: str) -> list[int]:
        """Every process of the machine with `mark` in its command line."""
        told = self.machine.run(["python3", "-c", PROCESSES], user=False, input=os.fsencode(mark))
        return [int(word) for word in told.stdout.split()]
