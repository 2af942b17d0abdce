"""Run pytest; run what failed once more, one test after the other, and name what passed only then.

Ten thousand tests side by side on a busy machine meet moments that none of them meets alone. A test that
fails alone as well is a failure. One that passes then is named at the end: it has to be made steady, or
it has found a fault that depends on the moment.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

#: More failures than this are no chance: they are not run again.
_CHANCES = 40
_SOME_FAILED = 1


def main(arguments: list[str]) -> int:
    cache = Path(".pytest_cache")
    pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}"]
    first = _status([*pytest, "--cache-clear", *arguments])
    failed = _failed(cache)
    if first != _SOME_FAILED or not 0 < len(failed) <= _CHANCES:
        return first
    print(f"once more, one after the other: {len(failed)} that failed", flush=True)
    second = _status([*pytest, *failed])
    still = set(_failed(cache))
    for test in failed:
        print(
            f"passed only the second time: {test}" if test not in still else f"failed twice: {test}",
            flush=True,
        )
    return second


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
