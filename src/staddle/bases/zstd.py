"""Decompress zstd: with the standard library from Python 3.14 on, backports.zstd, or the program."""

from __future__ import annotations

import os
import threading

from ..errors import ArchiveRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class ClosableReader(Protocol):
        """A file to read from."""

        def read(self, size: int = -1, /) -> bytes: ...

        def close(self) -> None: ...


#: Never looked for where another user could have put it.
_PROGRAMS = ("/usr/bin/zstd", "/bin/zstd", "/usr/local/bin/zstd", "/opt/homebrew/bin/zstd")
_CHUNK = 1 << 18


def decompressing(source: ClosableReader) -> ClosableReader:
    """The bytes of `source`, decompressed. To be closed, if it has a `close`."""
    from ..layers.archive import zstd_module

    module = zstd_module()
    if module is not None:
        opened: ClosableReader = module.open(source, "rb")  # type: ignore[attr-defined]
        return opened
    program = next((path for path in _PROGRAMS if os.access(path, os.X_OK)), None)
    if program is None:
        raise ArchiveRefused(
            "the image is compressed with zstd",
            why="this Python has no module for it, and there is no program zstd",
            fix="install backports.zstd or zstd, or save the image without compression",
        )
    return ZstdProgram(program, source)


class ZstdProgram:
    """The zstd program as a reader: a thread feeds it, and the reader sets the pace."""

    def __init__(self, program: str, source: ClosableReader) -> None:
        import subprocess

        self._process = subprocess.Popen(
            [program, "--decompress", "--stdout", "--quiet"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
        )
        self._source = source
        self._feeder = threading.Thread(target=self._feed, name="staddle-zstd", daemon=True)
        self._feeder.start()

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; EOFError when the end is not one."""
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        data = self._process.stdout.read(size)
        if not data and size:
            self._feeder.join()
            if self._process.wait() != 0:
                raise EOFError("zstd does not understand it")
        return data

    def close(self) -> None:
        """End it, wherever it is."""
        self._process.kill()
        self._process.wait()
        self._feeder.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass

    def _feed(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None  # noqa: S101 - it is one
        try:
            while data := self._source.read(_CHUNK):
                pipe.write(data)
            pipe.close()
        except (BrokenPipeError, ValueError):
            pass  # it has ended, and says so by its status
