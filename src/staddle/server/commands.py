"""Commands of a sandbox of the server, each under an id that its client chose.

A command is started once for its id, however often the request is repeated. It runs whether or not a client
is connected. `run` is shell text in a session, `exec` a program, `start` a background process.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from staddle import Result, Sandbox
from staddle.errors import InvalidCall, SessionBusy
from staddle.json_values import encode, encode_error, write_json, write_result

from .output import STDERR, STDOUT, OutputLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from .events import EventLog

#: Bytes of output kept for each command, and for all ended commands of a sandbox together.
KEPT_OUTPUT, KEPT_OUTPUTS = 8 << 20, 32 << 20
#: Unread bytes of a held output for which its command waits: few, so that they stay in the processor's cache.
HELD_OUTPUT = 2 << 20
#: Ended commands that are listed, and ids that are remembered so that no request starts one again.
KEPT_COMMANDS, KEPT_IDS = 64, 4_000
#: The most commands of a sandbox that run or wait at a time.
MOST_RUNNING = 64
#: Stands for the event of commands that wait for none, because an Event takes most of a kilobyte.
_SET = threading.Event()
_SET.set()
_STREAMS = {"stdout": STDOUT, "stderr": STDERR}
#: Seconds for the output of a background process in one step.
_STEP = 1.0


class ServedCommand:
    """A command: its request, its output, and its result once it has ended."""

    def __init__(self, command_id: str, body: dict[str, Any]) -> None:
        self.id, self.body = command_id, body
        #: "run", "exec" or "start".
        self.kind: str = body.get("kind", "run")
        self.began = time.time()
        self._output: OutputLog | None = None
        self.state = "waiting"
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.exit_code: int | None = None
        self.process: Any = None
        self.sent = 0  # bytes written to its standard input
        self.size = 0  # bytes of memory that its output takes, once it has ended
        self.stdin = threading.Lock()
        self._interrupt: Callable[[], object] | None = None
        self._is_cancelled = False
        self._lock = threading.Lock()
        #: A background process has started, or ended.
        self.started = threading.Event() if self.kind == "start" else _SET

    @property
    def output(self) -> OutputLog:
        """The log of its output, which is made on first use: many commands print nothing."""
        with self._lock:
            if self._output is None:
                is_held = bool(self.body.get("hold"))
                self._output = OutputLog(HELD_OUTPUT if is_held else KEPT_OUTPUT, hold=is_held)
                if self.state == "ended":
                    self._output.close()
            return self._output

    def work(self, sandbox: Sandbox, events: EventLog) -> None:
        """Run the command to its end, in this thread. An error is stored, and sent with the outcome."""
        events.hold_back()  # they are added while bash works
        try:
            getattr(self, f"_{self.kind}")(sandbox, events.catch_up)
        except BaseException as error:
            self.error = error
        finally:
            events.catch_up()
            with self._lock:
                self.state = "ended"
                if self._output is not None:
                    self._output.close()
                    self.size = self._output.size
            if self.result is not None:
                self.size += len(self.result.stdout_bytes) + len(self.result.stderr_bytes)
            if self.started is not _SET:
                self.started.set()
                self.started = _SET

    def _options(self, *names: str) -> dict[str, Any]:
        return {name: self.body[name] for name in names if name in self.body}

    def _run(self, sandbox: Sandbox, begun: Callable[[], None]) -> None:
        options = self._options("timeout", "cwd", "env", "stdin", "merge", "output_limit")
        session = self.body.get("session") or "main"
        is_ours = "user" in self.body  # a session of its own
        if is_ours:
            options["user"] = self.body["user"]
        where: Any = sandbox if is_ours or session == "main" else sandbox.session(session)
        stream = where.stream(self.body["command"], **options)
        begun()
        with self._lock:
            self.state = "running"
            self._interrupt = stream.close if is_ours else partial(self._interrupt_session, sandbox, session)
            if self._is_cancelled:
                self._interrupt()
        output: OutputLog | None = None
        for chunk in stream:
            output = output or self.output
            output.add(_STREAMS[chunk.stream], chunk.data)
        with self._lock:
            self._interrupt = None  # the next command of the session is another's
        self.result = result = stream.result
        self.exit_code = None if result is None else result.exit_code

    @staticmethod
    def _interrupt_session(sandbox: Sandbox, session: str) -> None:
        sandbox.session(session).interrupt()

    def _exec(self, sandbox: Sandbox, begun: Callable[[], None]) -> None:
        begun()
        options = self._options("timeout", "cwd", "env", "stdin", "merge", "output_limit", "user")
        cancel = threading.Event()
        with self._lock:
            self.state, self._interrupt = "running", cancel.set
            if self._is_cancelled:
                cancel.set()
        result = sandbox.exec(self.body["argv"], cancel=cancel, **options)
        self.result, self.exit_code = result, result.exit_code
        for stream, data in ((STDOUT, result.stdout_bytes), (STDERR, result.stderr_bytes)):
            if data:
                self.output.add(stream, data)

    def _start(self, sandbox: Sandbox, begun: Callable[[], None]) -> None:
        begun()
        what = self.body["argv"] if "argv" in self.body else self.body["command"]
        process = sandbox.start(what, **self._options("timeout", "cwd", "env", "merge", "user"))
        with self._lock:
            self.process, self.state = process, "running"
            self._interrupt = process.kill
            if self._is_cancelled:
                process.kill()
        self.started.set()
        offset = 0
        while True:
            found = process.wait_for_output(_STEP, offset=offset)
            offset = found.end
            if found.stdout_bytes_dropped:
                self.output.skip(found.stdout_bytes_dropped)
            for stream, data in ((STDOUT, found.stdout_bytes), (STDERR, found.stderr_bytes)):
                if data:
                    self.output.add(stream, data)
            if not found.stdout_bytes and not found.stderr_bytes:
                self.exit_code = process.poll()
                if self.exit_code is not None:
                    return

    def interrupt(self) -> None:
        """End it, or keep it from starting. Does nothing after its end."""
        with self._lock:
            self._is_cancelled = True
            if self._interrupt is not None:
                self._interrupt()

    def send_stdin(self, data: bytes, offset: int | None) -> int:
        """Write to a background process. Returns the number of bytes written in its life.

        `offset` is the position of `data` in its input: bytes that were written before are left out.
        """
        self.started.wait()
        if self.process is None:
            raise InvalidCall(
                f"the command {self.id!r} reads no further input",
                why="it is no background process, or it was not started",
                fix='start it with "kind": "start", or give "stdin" with the command',
            )
        with self.stdin:
            if offset is not None:
                if offset > self.sent:
                    raise InvalidCall(
                        f"the input begins at {offset}",
                        why=f"only {self.sent} bytes came before",
                        fix="send these",
                    )
                data = data[self.sent - offset :]
            self.process.send_stdin(data)
            self.sent += len(data)
            return self.sent

    def describe(self, *, text: bool = True, result: bool = True) -> dict[str, Any]:
        """Return its state, as data for JSON; with `result` that, and with `text` its output as text."""
        output = self._output
        found: dict[str, Any] = {
            "kind": self.kind,
            "command": self.body.get("argv", self.body.get("command")),
            "session": self.body.get("session") or "main",
            "began": self.began,
            "output_start": 0 if output is None else output.start,
            "output_end": 0 if output is None else output.end,
            "exit_code": self.exit_code,
            **self.outcome(result=result),
        }
        if self.result is not None and result and text:
            found["stdout"], found["stderr"] = self.result.stdout, self.result.stderr
        return found

    def short(self) -> list[bytes]:
        """Return its id, its state, and its error or result as a line of JSON, and the bytes beside it."""
        if self.result is None:
            return [f"{write_json(self.outcome())}\n".encode()]
        row, result = write_result(self.result), self.result
        line = f'{{"id":{write_json(self.id)},"state":"{self.state}","result":{row}}}\n'
        return [line.encode(), result.stdout_bytes, result.stderr_bytes]

    def outcome(self, *, result: bool = True) -> dict[str, Any]:
        """Return its id, its state, and its error or result."""
        found: dict[str, Any] = {"id": self.id, "state": self.state}
        if self.process is not None:
            found["pid"], found["timed_out"] = self.process.pid, self.process.timed_out
        if self.error is not None:
            found["error"] = encode_error(self.error)
        if self.result is not None and result:
            found["result"] = encode(self.result)
        return found


class UsedIds:
    """The newest ids that were used, eight bytes of each: a set would take ten times the memory."""

    def __init__(self, most: int) -> None:
        #: Digests by their first four bits: a search goes through a sixteenth of them. Each list has room for
        #: half as many again as its share, because they are not equally long.
        self._digests = [bytearray() for _ in range(16)]
        self._most = 8 * (most * 3 // 32)

    def add(self, name: str) -> None:
        """Remember an id, and forget the oldest ones that are too many."""
        digest = hash(name).to_bytes(8, "little", signed=True)  # with a key of this process
        found = self._digests[digest[0] >> 4]
        found += digest
        if len(found) > 2 * self._most:
            del found[: -self._most]

    def __contains__(self, name: str) -> bool:
        digest = hash(name).to_bytes(8, "little", signed=True)
        return digest in self._digests[digest[0] >> 4]


class CommandTable:
    """The commands of one sandbox, by id. Thread-safe."""

    def __init__(self, sandbox: Sandbox, events: EventLog) -> None:
        self.sandbox, self._events = sandbox, events
        self._all: dict[str, ServedCommand] = {}
        self._ended: deque[ServedCommand] = deque()
        self._running = self._size = 0
        self._gone = UsedIds(KEPT_IDS)
        self._lock = threading.Lock()
        self.count = 0

    def begin(
        self, command_id: str, body: dict[str, Any], *, afterwards: list[Callable[[], None]] | None
    ) -> tuple[ServedCommand, bool]:
        """Return the command of this id, and whether this call has started it.

        With `afterwards`, this call runs the command to its end, and adds a function to that list. The caller
        calls the function once the response is sent.
        """
        with self._lock:
            found = self._all.get(command_id)
            if found is not None:
                if found.body != body:
                    raise SessionBusy(
                        f"the command {command_id!r} is another one",
                        why="a request with this id asked for something else",
                        fix="choose a new id for each command",
                    )
                return found, False
            if command_id in self._gone:
                raise InvalidCall(
                    f"the command {command_id!r} has run",
                    why="its result is not kept any more",
                    fix="ask for results sooner; for a new command choose a new id",
                )
            if self._running >= MOST_RUNNING:
                raise SessionBusy(
                    "the sandbox runs too many commands",
                    why=f"{MOST_RUNNING} run or wait",
                    fix="wait for one of them",
                )
            made = self._all[command_id] = ServedCommand(command_id, body)
            self.count += 1
            self._running += 1
        if afterwards is not None:
            made.work(self.sandbox, self._events)
            afterwards.append(partial(self._settle, made))
        else:
            threading.Thread(target=self._work, args=(made,), daemon=True).start()
        return made, True

    def _work(self, command: ServedCommand) -> None:
        command.work(self.sandbox, self._events)
        self._settle(command)

    def _settle(self, command: ServedCommand) -> None:
        """Count a command as ended, and drop the oldest ended ones that are too many."""
        with self._lock:
            self._running -= 1
            self._ended.append(command)
            self._size += command.size
            if len(self._ended) > KEPT_COMMANDS or self._size > KEPT_OUTPUTS:
                self._forget()

    def _forget(self) -> None:
        while len(self._ended) > KEPT_COMMANDS or (self._size > KEPT_OUTPUTS and len(self._ended) > 1):
            oldest = self._ended.popleft()
            self._size -= oldest.size
            del self._all[oldest.id]
            self._gone.add(oldest.id)

    def get(self, command_id: str) -> ServedCommand:
        """Return the command of this id."""
        found = self._all.get(command_id)
        if found is None:
            raise FileNotFoundError(2, f"the sandbox has no command {command_id!r}")
        return found

    def listed(self) -> list[ServedCommand]:
        """Return the commands, oldest first."""
        with self._lock:
            return list(self._all.values())
