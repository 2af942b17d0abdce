"""The broker: opens a sandbox for a coding agent, and runs the shim's commands in it.

Requests come through a FIFO in a directory that only the user can enter and no sandbox sees. A request is a
few numbers. The broker reads arguments, variables, directory and streams of the command from /proc of the
shim that wrote it.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import tempfile
import threading

from .. import places
from .._value import Value
from ..errors import InvalidCall, StaddleError
from ..sandbox.execution import Streams
from ..sandbox.sandbox import Sandbox
from ..sandbox.spawn import check_rules
from .relay import RelayedCommand, ShimStreams, StreamFlow, open_streams
from .shim import BROKER, INTERPRETER_WORDS, PREFIX, REQUESTS, fixed_shim, start_ticks, write_shims

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from ..ipc.agent_client import SpawnedProcess

#: Variables that a command gets from the agent, if the agent's shell would have them. None is a secret.
PASSED = (
    *("AI_AGENT", "CLAUDECODE", "GEMINI_CLI", "OPENCODE", "CODEX_CI", "CI", "NO_COLOR", "FORCE_COLOR"),
    *("TERM", "COLORTERM", "COLUMNS", "LINES", "PAGER", "GIT_PAGER", "GIT_EDITOR", "EDITOR", "TZ"),
)
#: Claude Code reads its shell's directory from this file. The command writes it inside; we copy it out.
_DIRECTORY_FILE = re.compile(r"pwd -P >\| (/tmp/claude-[0-9a-f]{4,16}-cwd)\s*$")
#: Gemini CLI writes to this directory, which it made outside.
_SCRATCH = re.compile(r"(/tmp/gemini-shell-[A-Za-z0-9_-]{1,64})/")
_MOST_COMMANDS = 256
#: Seconds for commands to end when the broker is closed.
_PATIENCE = 5.0
_LONGEST_PATH = 4096
#: Characters of a reason, so that one atomic write to the pipe can send the answer.
_LONGEST_WHY = 1000


class ShimRequest(Value):
    """One call of a shim: its arguments, directory, environment and streams."""

    pid: int
    argv: tuple[str, ...]
    directory: str
    variables: Mapping[str, str]
    streams: ShimStreams


def read_request(line: bytes, requests: os.stat_result) -> ShimRequest:
    """The request that a shim wrote. OSError or ValueError if its streams cannot be used."""
    pid, stdin, stdout, stderr, reply = map(int, line.split())
    streams = open_streams(pid, (stdin, stdout, stderr, reply))
    try:
        if any(
            os.path.samestat(os.fstat(each), requests)
            for each in (streams.stdin, streams.stdout, streams.stderr)
        ):
            raise ValueError("what a command prints would be taken for requests")
        words = _strings(pid, "cmdline")
        script, arguments = words[INTERPRETER_WORDS - 1], words[INTERPRETER_WORDS:]
        given = (word.partition("=") for word in _strings(pid, "environ"))
        variables = {name: value for name, _, value in given if name in PASSED}
        argv = ("-c", " ".join(arguments)) if os.path.basename(script) == PREFIX else tuple(arguments)
        return ShimRequest(pid, ("bash", *argv), os.readlink(f"/proc/{pid}/cwd"), variables, streams)
    except BaseException:
        streams.close()
        raise


def _strings(pid: int, name: str) -> list[str]:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


class ShellBroker:
    """Runs the commands of shims in one sandbox. `heard` is called with the pid of each shim."""

    def __init__(
        self, sandbox: Sandbox, home: str | None = None, heard: Callable[[int], object] | None = None
    ) -> None:
        self.sandbox, self._heard = sandbox, heard
        self._temporary = home is None
        self.home = home or tempfile.mkdtemp(prefix="agent-", dir=places.make_private(places.runtime()))
        try:
            os.mkfifo(f"{self.home}/{REQUESTS}", 0o600)
            # Open for both, so that reading does not end when a shim closes its end.
            self._requests = os.open(f"{self.home}/{REQUESTS}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            if self._temporary:
                write_shims(self.home, fixed_shim(self.home))
            with open(f"{self.home}/{BROKER}", "w") as file:
                file.write(f"{os.getpid()} {start_ticks(os.getpid())}\n")
        except BaseException:
            self._remove()
            raise
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._threads: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._serve, name="staddle-broker", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a command runs."""
        return any(thread.is_alive() for thread in list(self._threads))

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._requests, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        pending = b""
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            if self._stop in ready:
                return
            *lines, pending = (pending + os.read(self._requests, 1 << 16)).split(b"\n")
            for line in lines:
                self._threads = {thread for thread in self._threads if thread.is_alive()}
                thread = threading.Thread(target=self._attend, args=(line,), daemon=True)
                self._threads.add(thread)
                thread.start()

    def _attend(self, line: bytes) -> None:
        """Serve one shim. Always answers, because the shim waits."""
        try:
            pid, *_, number = map(int, line.split())
            reply = os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return  # the shim was killed; or it is not ours, and does not wait
        why = "this is a bug, please report it"
        try:
            self._answer(read_request(line, os.fstat(self._requests)))
            why = ""
        except (StaddleError, OSError, ValueError, IndexError) as error:
            why = str(error)
        finally:
            if why:
                _say(reply, f"125 drained {' '.join(why.split())[:_LONGEST_WHY]}\n")
            os.close(reply)

    def _answer(self, request: ShimRequest) -> None:
        streams = request.streams
        try:
            if self._heard is not None:
                self._heard(request.pid)
            if len(self._threads) > _MOST_COMMANDS:
                raise InvalidCall(
                    f"more than {_MOST_COMMANDS} commands at once",
                    why="each has a process and its output",
                    fix="wait for some to end, or end some",
                )
            self._prepare(request)
            spawned, flows = self._start(request)
            RelayedCommand(streams, spawned, flows, lambda _: self._bring_out(request)).attend()
        finally:
            streams.close()

    def _start(
        self, request: ShimRequest
    ) -> tuple[SpawnedProcess, tuple[list[StreamFlow], list[StreamFlow]]]:
        inside, streams = self.sandbox._now(), request.streams
        argv = (inside.bash, *request.argv[1:])
        check_rules(inside, argv)
        variables = {**inside.main._exec_context.env, **request.variables}
        if streams.on_terminal:
            size = streams.size or (24, 80)
            spawned = inside.agent.spawn(argv, variables, request.directory, terminal=size)
            os.set_blocking(spawned.master, False)
            flows = (
                [StreamFlow(streams.stdin, spawned.master)],
                [StreamFlow(spawned.master, streams.stdout)],
            )
            return spawned, flows
        pipes = Streams(inside.uid, with_stdin=True, merge=streams.merged)
        try:
            spawned = inside.agent.spawn(argv, variables, request.directory, stdio=pipes.theirs, waits=True)
        except BaseException:
            pipes.close()
            raise
        pipes.started()
        outputs = [StreamFlow(pipes.stdout, streams.stdout, owns_source=True)]
        if not streams.merged:
            outputs.append(StreamFlow(pipes.stderr, streams.stderr, owns_source=True))
        return spawned, ([StreamFlow(streams.stdin, pipes.stdin, owns_target=True)], outputs)

    def _prepare(self, request: ShimRequest) -> None:
        """Make a directory inside that the agent made outside for its command."""
        for place in set(_SCRATCH.findall(" ".join(request.argv))):
            self.sandbox.files.mkdir(place, parents=True)

    def _bring_out(self, request: ShimRequest) -> None:
        """Copy out the file from which an agent reads its shell's directory.

        The agent's temporary directory is not shared with the sandbox: a link there would be followed with
        the user's rights. So this writes only one new file with a known name, which contains one path.
        """
        found = _DIRECTORY_FILE.search(request.argv[-1]) if request.argv else None
        if found is None:
            return
        path = found[1]
        try:
            content = self.sandbox.files.read_bytes(path, limit=_LONGEST_PATH)
            self.sandbox.files.remove(path)
        except (StaddleError, OSError):
            return  # the command ended before it wrote the file
        if not content.startswith(b"/") or b"\0" in content or content.count(b"\n") > 1:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(path, flags, 0o600), "wb") as file:
                file.write(content)
        except OSError:
            return  # the name exists already

    def close(self) -> None:
        """Stop taking requests, end running commands, close the sandbox and remove the directory."""
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        self.sandbox.close()
        for thread in list(self._threads):
            thread.join(_PATIENCE)
        os.close(self._requests)
        os.close(self._stop)
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _say(descriptor: int, text: str) -> None:
    try:
        os.write(descriptor, text.encode("utf-8", "replace"))
    except OSError:
        pass  # the reader is gone
