"""A server of sandboxes in a process of its own, and a relay that cuts its clients' connections."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]


class ServerProcess:
    """`staddle serve` at a socket of its own, until the end of the `with` block."""

    def __init__(self, directory: Path, *options: str, **variables: str) -> None:
        self.path = str(directory / "socket")
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **variables}
        command = [sys.executable, "-m", "staddle", "serve", "--socket", self.path, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert self.process.stdout is not None
        self.facts: dict[str, Any] = json.loads(self.process.stdout.readline() or b"{}")

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


class CuttingRelay:
    """A socket that passes connections on to another one, and cuts each after a random number of bytes."""

    def __init__(self, path: str, target: str, seed: int, *, most: int) -> None:
        self.path, self._target, self._random, self._most = path, target, random.Random(seed), most  # noqa: S311 - moments, not secrets
        self.cuts = 0
        self.is_cutting = True
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                left = [self._random.randrange(1, self._most)]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(source, sink, left), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, left: list[int]) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self.is_cutting:
                    if left[0] <= len(data):
                        sink.sendall(data[: max(left[0], 0)])
                        if left[0] > -(1 << 60):
                            left[0] = -(1 << 61)
                            self.cuts += 1
                        break
                    left[0] -= len(data)
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
