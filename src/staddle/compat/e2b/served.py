"""Parts of a sandbox that your server has: its commands, terminals, files and interpreters.

The server's labels have everything that another process needs: `e2b` is JSON about the sandbox, and
`e2b.KEY` its metadata. The id is the server's own.
"""

from __future__ import annotations

import codecs
import io
import json
import tempfile
import threading
from contextlib import suppress
from datetime import UTC, datetime

from staddle import connect
from staddle.errors import SandboxClosed, StaddleError

from ...adapters._common import OUTPUT_LIMIT, READ_LIMIT
from .commands import Commands, Pty, PtyHandle
from .filesystem import Filesystem
from .info import (
    NotFoundException,
    SandboxInfo,
    SandboxState,
    server_said,
    translated,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .commands import Heard

LABEL = "e2b"
_SPOOLED = 16 << 20
#: Ends an interpreter: its next cell starts another one.
_EXIT, _TO_EXIT = "import os; os._exit(0)", 5.0
#: Seconds for the last output of a program that has ended.
_LAST_OUTPUT = 5.0
#: The clients of this process, by the server's name and whether they start it.
_CLIENTS: dict[tuple[str, bool], Any] = {}


def client(*, start: bool) -> Any:
    """A client of the server. Without `start` None if none runs."""
    said = server_said()
    try:
        found = _CLIENTS.get((said, start))
        if found is None:
            found = _CLIENTS[said, start] = connect(None if said in ("", "1") else said, start=start)
        else:
            found.about()
    except (StaddleError, OSError):
        if start:
            raise
        return None
    return found


def infos() -> list[SandboxInfo]:
    """The sandboxes of the server that E2B programs made, if a server runs."""
    server = client(start=False)
    found = []
    try:
        for sandbox in [] if server is None else server.list():
            try:
                facts = sandbox.describe()
            except SandboxClosed:
                continue  # it has ended since
            if LABEL in facts["labels"] and facts["state"] != "ended":
                found.append(info_of(facts))
    except StaddleError:
        if client(start=False) is not None:
            raise
        return []  # the server has ended since
    return found


def info_of(facts: dict[str, Any]) -> SandboxInfo:
    """Information about a sandbox that the server describes."""
    prefix = f"{LABEL}."
    metadata = {
        name[len(prefix) :]: value for name, value in facts["labels"].items() if name.startswith(prefix)
    }
    state = SandboxState.PAUSED if facts["state"] == "paused" else SandboxState.RUNNING
    ends = facts["ends"]
    return SandboxInfo(
        facts["id"],
        json.loads(facts["labels"][LABEL])["template"],
        metadata,
        datetime.fromtimestamp(facts["opened"], UTC),
        datetime.max.replace(tzinfo=UTC) if ends is None else datetime.fromtimestamp(ends, UTC),
        state,
    )


class ServedInterpreter:
    """An interpreter in the server, by the name of its session."""

    def __init__(self, sandbox: Any, name: str, python: str, cwd: str) -> None:
        self._sandbox, self._options = sandbox, {"session": name, "program": python, "cwd": cwd}

    def run(self, code: str, *, timeout: float | None, env: dict[str, str] | None = None) -> Any:
        """Run a cell."""
        return self._sandbox.python(code, timeout=timeout, env=env, **self._options)

    def restart(self) -> None:
        """End it; the next cell starts a new one."""
        with translated():
            self._sandbox.python(_EXIT, timeout=_TO_EXIT, **self._options)

    close = restart


# ---------------------------------------------------------------- commands


class ReadProcess:
    """A background program in the server, with the output that was read of it so far."""

    def __init__(self, process: Any) -> None:
        self._process, self._offset, self._size = process, 0, 0
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in self._STREAMS}
        self._texts: dict[str, list[str]] = {name: [] for name in self._STREAMS}
        self._lock = threading.Lock()

    _STREAMS = ("stdout", "stderr")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end, and for its output."""
        code: int | None = self._process.wait(timeout)
        if code is not None:
            self.output(_LAST_OUTPUT)
        return code

    def output(self, timeout: float = 0.0) -> ReadProcess:
        """Read what is new; `stdout` and `stderr` have it all. Wait for more, unless it has ended."""
        with self._lock:
            while True:
                chunks, self._offset, is_end = self._process.read(self._offset, timeout)
                for chunk in chunks:
                    if self._size < OUTPUT_LIMIT:
                        self._texts[chunk.stream].append(self._decoders[chunk.stream].decode(chunk.data))
                        self._size += len(chunk.data)
                if is_end or not chunks:
                    return self

    @property
    def stdout(self) -> str:
        """Standard output that was read."""
        return "".join(self._texts["stdout"])

    @property
    def stderr(self) -> str:
        """Standard error that was read."""
        return "".join(self._texts["stderr"])


class ServedCommands(Commands):
    """The commands in the server, including those that other programs started."""

    _sandbox: Any
    _readable = ReadProcess

    def _every(self) -> dict[int, tuple[Any, str]]:
        with translated():
            found = self._sandbox.processes()
        return {each.pid: (self._readable(each), each.command[-1]) for each in found if each.pid}

    def run(
        self,
        cmd: str,
        background: bool | None = None,
        envs: dict[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        on_stdout: Heard = None,
        on_stderr: Heard = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        """Run shell text; see `Commands.run`."""
        if on_stdout is None and on_stderr is None:
            return super().run(cmd, background, envs, user, cwd, None, None, *args, **options)
        handle = super().run(cmd, True, envs, user, cwd, None, None, *args, **options)
        if not background:
            return handle.wait(on_stdout=on_stdout, on_stderr=on_stderr)
        threading.Thread(target=_follow, args=(handle, on_stdout, on_stderr), daemon=True).start()
        return handle


def _follow(handle: Any, on_stdout: Heard, on_stderr: Heard) -> None:
    with suppress(Exception):  # the caller's own wait() raises it
        handle.wait(on_stdout=on_stdout, on_stderr=on_stderr)


class ServedPty(Pty):
    """The terminals in the server, including those that other programs opened."""

    _sandbox: Any

    def create(self, *args: Any, **options: Any) -> PtyHandle:
        """A terminal; see `Pty.create`."""
        with translated():
            for each in self._sandbox.terminals():
                if each.poll() is not None and each.pid not in self._terminals:
                    each.close()  # nobody reads it any more, and a sandbox has 16 at most
        return super().create(*args, **options)

    def _terminal(self, pid: int) -> Any:
        if pid not in self._terminals:
            with translated():
                found = [each for each in self._sandbox.terminals() if each.pid == pid]
            if not found:
                raise NotFoundException(f"there is no terminal {pid}")
            self._terminals[pid], self._handles[pid] = found[0], PtyHandle(found[0], None)
        return self._terminals[pid]


class ServedFilesystem(Filesystem):
    """The files in the server."""

    _may_have_metadata = True

    def _opened(self, path: str, user: str | None) -> Any:
        files = self._files(user)
        if user:
            return io.BytesIO(files.read_bytes(path, limit=READ_LIMIT))
        data = tempfile.SpooledTemporaryFile(max_size=_SPOOLED)  # noqa: SIM115 - the stream closes it
        files.download(path, data)
        data.seek(0)
        return data
