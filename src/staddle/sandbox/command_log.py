"""The audit log of a sandbox: the two lines of each command are written in few steps.

They are on every command's path, just after a wait, when code is slow: a usual command's line takes one
frame, one text and one system call. It has the fields that `AuditLog.write` would give it.
"""

from __future__ import annotations

from itertools import count
from json.encoder import encode_basestring_ascii as quoted
from time import time_ns

from ..launch.audit import MOST_LETTERS, AuditLog
from .result import Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..events import Event
    from ..launch.redaction import Secrets
    from .capture import CapturedCommand
    from .result import Result

_EXITED = Reason.exited
#: Fields of a command that succeeded.
_SUCCEEDED = b'"ok":true,"exit_code":0,"reason":"exited"'


class CommandLog(AuditLog):
    """An audit log of the commands of a sandbox."""

    def __init__(self, secrets: Secrets | None) -> None:
        super().__init__(secrets)
        #: The numbers of commands.
        self.numbers = count(1)
        self._secrets = secrets if secrets is not None and secrets.values else None
        self._acquire, self._release = self._lock.acquire, self._lock.release  # in fewer steps than `with`
        self._command = f'{self._head}"command","id":%d%b%b}}\n'.encode()
        self._result = (
            f'{self._head}"result","id":%d,%b,"duration":%de-6,"stdout":%d,"stderr":%d%b}}\n'.encode()
        )
        self._sessions: dict[str, bytes] = {}  # their names, as a line has them
        #: User time and memory of a command before, and these as a line has them.
        self._used: tuple[float | None, int | None, bytes] = (None, None, b"")

    def begin(self, spec: CapturedCommand, session: str) -> None:
        """Give a command its number, and write that it is about to start."""
        spec.number = number = next(self.numbers)
        command, named = spec.command, self._sessions.get(session)
        if (
            named is None
            or spec.secrets is not self._secrets
            or spec.account is not None
            or spec.cwd is not None
            or spec.env
            or type(command) is not str
            or len(command) > MOST_LETTERS
        ):
            self._begin(spec, session)
            return
        text = quoted(command if self._texts is None else self._texts(command)).encode()
        self._acquire()
        try:
            self._number = line = self._number + 1
            data = self._command % (line, time_ns(), number, named, text)
            if self._put(data) != len(data):
                self._tear()
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self._release()

    def _begin(self, spec: CapturedCommand, session: str) -> None:
        """Write that a command is about to start, whichever it is."""
        shown = spec.command if spec.secrets is None else spec.secrets.command(spec.command)
        more: dict[str, object] = {}
        if spec.account is not None:
            more["user"] = spec.account.name
        if spec.cwd is not None:
            more["cwd"] = str(spec.cwd)
        if spec.env:
            more["env"] = sorted(spec.env)
        if self._function is None:
            self._sessions[session] = self._fields({"session": session}) + b',"command":'
            self.write("command", id=spec.number, session=session, command=shown, **more)
            return
        record: dict[str, object] = {
            "log": self.name,
            "n": 0,
            "at": 0.0,
            "what": "command",
            "id": spec.number,
            "session": self._plain(session),
            "command": self._plain(shown),
        }
        self._pass(record | {name: self._plain(fact) for name, fact in more.items()} if more else record)

    def end(self, spec: CapturedCommand, result: Result) -> None:
        """Write that a command is over: what it was refused, then its result."""
        if self._function is not None:
            for event in result.violations:
                self.refuse(event, spec.number)
            self._pass(self._record(spec, result))
            return
        of = result.__dict__  # each field by one look
        usage, ended = of["usage"].__dict__, _SUCCEEDED
        user_time, memory, used = self._used
        if usage["user"] != user_time or usage["memory"] != memory:
            used = self._use(usage["user"], usage["memory"])
        if of["exit_code"] or of["reason"] is not _EXITED:
            ok = b"true" if result.ok else b"false"
            ended = b'"ok":%b,"exit_code":%d,"reason":"%b"' % (ok, of["exit_code"], of["reason"].encode())
        if of["violations"] or of["changes"] or of["why"]:
            for event in result.violations:
                self.refuse(event, spec.number)
            used += self._fields(_rare(result))
        out = len(of["stdout_bytes"]) + of["stdout_bytes_dropped"]
        err = len(of["stderr_bytes"]) + of["stderr_bytes_dropped"]
        time = int(of["duration"] * 1000000)
        self._acquire()
        try:
            self._number = line = self._number + 1
            data = self._result % (line, time_ns(), spec.number, ended, time, out, err, used)
            if self._put(data) != len(data):
                self._tear()
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self._release()

    def _use(self, user_time: float | None, memory: int | None) -> bytes:
        """Fields of what a command used."""
        if user_time is not None and memory is not None:
            used = b',"user_time":%de-6,"memory":%d' % (int(user_time * 1000000), memory)
        else:
            used = self._fields({"user_time": user_time, "memory": memory})
        self._used = (user_time, memory, used)
        return used

    def _record(self, spec: CapturedCommand, result: Result) -> dict[str, object]:
        """Record of a result, for a function."""
        usage = result.usage
        made: dict[str, object] = {
            "log": self.name,
            "n": 0,
            "at": 0.0,
            "what": "result",
            "id": spec.number,
            "ok": result.ok,
            "exit_code": result.exit_code,
            "reason": result.reason.value,
            "duration": result.duration,
            "stdout": len(result.stdout_bytes) + result.stdout_bytes_dropped,
            "stderr": len(result.stderr_bytes) + result.stderr_bytes_dropped,
        }
        if usage.user is not None:
            made["user_time"] = usage.user
        if usage.memory is not None:
            made["memory"] = usage.memory
        if result.changes or result.why:
            made |= {name: self._plain(fact) for name, fact in _rare(result).items() if fact is not None}
        return made

    def refuse(self, event: Event, number: int | None = None) -> None:
        """Write what was refused; to the command with this number, if that is known."""
        self.write("refused", id=number, host=event.what, rule=event.rule, allow=event.allow)


def _rare(result: Result) -> dict[str, object]:
    """Facts that most results do not have."""
    changes = [f"{each.kind} {each.path}" for each in result.changes or ()]
    return {"changes": changes or None, "why": result.why or None}
