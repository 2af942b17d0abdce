"""Run pytest; run what failed again, one test after the other, and name what passed only then.

Ten thousand tests side by side on a busy machine meet moments that none of them meets alone. A test that
fails alone as well is a failure. One that passes then is named at the end: it has to be made steady, or
it has found a fault that depends on the moment.

With `--quiet FILE` first, what failed is run again only when nobody else runs tests with the same FILE.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

#: More failures than this are no chance: they are not run again.
_CHANCES = 40
#: How often what failed is run again.
_AGAIN = 2
_SOME_FAILED = 1


def main(arguments: list[str]) -> int:
    lock = -1
    if arguments[:1] == ["--quiet"]:
        lock = os.open(arguments[1], os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_SH)
        arguments = arguments[2:]
    cache = Path(".pytest_cache")
    pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}"]
    status = _status([*pytest, "--cache-clear", *arguments])
    failed = still = _failed(cache)
    if lock >= 0:
        fcntl.flock(lock, fcntl.LOCK_UN)
    if status != _SOME_FAILED or not 0 < len(failed) <= _CHANCES:
        return status
    if lock >= 0:
        fcntl.flock(lock, fcntl.LOCK_EX)
    for _ in range(_AGAIN):
        print(f"again, one after the other: {len(still)} that failed", flush=True)
        status = _status([*pytest, *still])
        still = _failed(cache)
        if status != _SOME_FAILED or not still:
            break
    for test in failed:
        print(f"{'failed again' if test in still else 'passed only alone'}: {test}", flush=True)
    return status


def _status(command: list[str]) -> int:
    """Run `command`, which is told when we are to end."""
    with subprocess.Popen(command) as process:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: process.send_signal(signal.SIGINT))
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                pass  # the terminal has told it, too


def _failed(cache: Path) -> list[str]:
    try:
        return sorted(json.loads((cache / "v/cache/lastfailed").read_text()))
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
