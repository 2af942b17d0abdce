"""A server of sandboxes: very many one after the other, and very many at once whose output is read."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from part import Part, Run

import staddle
from staddle.server.commands import KEPT_COMMANDS

#: Sandboxes that are open at once, and those whose output is read all the time.
_CROWD, _READ = 500, 200
_TICKER = "while :; do echo tick; sleep 0.5; done"


@contextlib.contextmanager
def _client(run: Run) -> Iterator[staddle.Client]:
    """A server in a process of its own, which ends with the block."""
    path = str(run.place / "socket")
    command = [sys.executable, "-m", "staddle", "serve", "--socket", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ}) as process:
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        try:
            with staddle.connect(path) as client:
                yield client
        finally:
            process.terminate()
            process.wait(60)


def cycles(run: Run) -> None:
    with _client(run) as client:
        for number in run.steps():
            with run.step():
                sandbox = client.create()
                run.expect(sandbox.run(f"echo {number} | tee mine").stdout, f"{number}\n", "output")
                sandbox.close()
        run.expect(client.list(), [], "sandboxes at the end")


def crowd(run: Run) -> None:
    """Open them all, read the output of some, and run commands in all meanwhile."""
    crowd, read = min(_CROWD, run.count), min(_READ, run.count)
    ticks = [0] * read

    def follow(number: int, stream: Iterator[object]) -> None:
        with contextlib.suppress(staddle.StaddleError, FileNotFoundError):  # closed
            for _ in stream:
                ticks[number] += 1

    with _client(run) as client:
        sandboxes = [client.create() for _ in range(crowd)]
        # The server keeps so many results for each: of the size that the steps have, before they count.
        for number, sandbox in enumerate(sandboxes * KEPT_COMMANDS):
            sandbox.run(f"echo {number}")
        readers = []
        for number, sandbox in enumerate(sandboxes[:read]):
            stream = iter(sandbox.start(_TICKER, timeout=None).stream())
            readers.append(threading.Thread(target=follow, args=(number, stream), daemon=True))
            readers[-1].start()
        time.sleep(1)
        before = list(ticks)
        for number in run.steps():
            with run.step():
                sandbox = sandboxes[number % crowd]
                run.expect(sandbox.run(f"echo {number}").stdout, f"{number}\n", "output")
        time.sleep(1)
        silent = [number for number in range(read) if ticks[number] <= before[number]]
        run.expect(silent, [], "readers without output")
        run.notes.append(f"{crowd} sandboxes, {read} readers")
        for sandbox in sandboxes:
            sandbox.close()
    for reader in readers:
        reader.join(20)


PARTS = (
    Part("serve-cycles", 10_000, "opened, used and closed through one server", cycles),
    Part(
        "serve-crowd", 10_000, "commands in 500 sandboxes of a server, 200 of which are read", crowd, least=40
    ),
)
