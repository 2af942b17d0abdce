"""Remove secret values from output, events and errors.

This prevents accidents: a program that prints its settings, a traceback with a token, a key in base64. A
program that can read a value can still print it in a spelling that this module does not recognise.
"""

from __future__ import annotations

import os

from ..hostinfo.secrets import Secret, is_secret
from ..linux.fileio import write_all
from ..policy.environment import is_encodable
from .output import HeadTail, Tail

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Mapping
    from typing import Self

    from ..errors import StaddleError
    from ..events import Event
    from ..policy.plan import Plan

#: Replaces a value.
MARK = b"(hidden)"
#: Minimum length of a value whose name only looks like a secret: `AUTH=1` is a switch.
SHORTEST_GUESS = 8
#: A shorter value is searched only as it is, because its other spellings would match by accident.
SHORTEST_SPELLED = 6
#: Minimum length of a line that is hidden alone, in a value with several lines.
_SHORTEST_LINE = 16
#: Usual line lengths of base64 and PEM.
_WRAPPED_AT = (76, 64)
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_JSON = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"}


def secret_values(layers: Iterable[Mapping[str, str]], declared: Iterable[str]) -> tuple[str, ...]:
    """Return the values to hide: of type `Secret`, of declared names, and of names that look like secrets."""
    named = frozenset(declared)
    found = set()
    for layer in layers:
        for name, value in layer.items():
            if not isinstance(value, str):
                continue  # refused elsewhere, with a reason
            bare = str(value).strip()  # a key file ends with a newline, its variable does not
            is_declared = name in named or isinstance(value, Secret)
            if bare and (is_declared or (len(bare) >= SHORTEST_GUESS and is_secret(name, bare))):
                found.add(bare)
    return tuple(sorted(found))


def secrets_of(plan: Plan) -> Secrets | None:
    """Return the values that a plan's command must not print; None if redaction is off."""
    if not plan.redact:
        return None
    found: Secrets | None = plan.derived.get(secrets_of)
    if found is None:
        hidden = {variable.name: variable.value for variable in plan.variables if variable.secret}
        found = Secrets(secret_values((hidden,), ())) if hidden else NONE
        plan.derived[secrets_of] = found
    return found


def spellings(value: bytes) -> set[bytes]:
    """Return the usual spellings of a value: escaped, quoted, in base64, as part of a URL, in hex."""
    # By hand, because importing base64, html, json and urllib.parse takes longer than a command.
    from binascii import b2a_base64

    if len(value) < SHORTEST_SPELLED:
        return {value}
    text = os.fsdecode(value)
    in_json = "".join(map(_JSON.get, text, text))
    texts = {repr(text)[1:-1], in_json, in_json.replace("/", "\\/"), ascii(text)[1:-1]}
    texts |= {text.replace("'", quoted) for quoted in ("'\\''", "'\"'\"'")}
    texts |= {"".join(f"\\{c}" if c in '"$`\\' else c for c in text)}
    texts |= {"".join(map(_HTML.get, text, text)), text.replace("&", "&amp;").replace("<", "&lt;")}
    texts |= {"".join(c if ord(c) < 127 else f"\\u{ord(c):04x}" for c in in_json)}
    found = {value, *(os.fsencode(each) for each in texts if is_encodable(each))}
    found |= {value.hex().encode(), value.hex().upper().encode()}
    for safe in (_UNRESERVED, _UNRESERVED | frozenset(b"/")):
        for escape in ("%{:02X}", "%{:02x}"):
            spelled = "".join(chr(byte) if byte in safe else escape.format(byte) for byte in value)
            found |= {spelled.encode(), spelled.replace("%20", "+").encode()}
    encoded: set[bytes] = set()
    for before in range(3):  # also inside a longer text, such as "user:password"
        whole = b2a_base64(bytes(before) + value, newline=False)
        # The characters that depend only on the value, not on the text around it.
        part = whole[-(-before * 8 // 6) : (before + len(value)) * 8 // 6]
        encoded |= {part, *((whole, whole.rstrip(b"=")) if not before else ())}
        encoded |= {_wrapped(part, width) for width in _WRAPPED_AT if not before}
    found |= encoded | {each.translate(_URL_SAFE) for each in encoded}
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) > 1:
        found |= {line for line in lines if len(line) >= _SHORTEST_LINE and not line.startswith(b"-----")}
    return {each for each in found if len(each) >= SHORTEST_SPELLED}


def _wrapped(data: bytes, width: int) -> bytes:
    return b"\n".join(data[at : at + width] for at in range(0, len(data), width))


class Redactor:
    """Replaces values in a stream, even if they span chunks.

    It holds back bytes that could begin a value until that is decided, at most the length of the longest
    value.
    """

    def __init__(self, values: Iterable[bytes]) -> None:
        # `Secrets` passes a tuple without an empty value, because each command has two redactors.
        is_ready = isinstance(values, tuple) and b"" not in values
        self._values = values if is_ready else tuple(sorted({value for value in values if value}))
        self._held = b""
        self._covered = 0  # held bytes of a match whose mark was already written
        self._released = 0  # held bytes that were already returned

    def feed(self, data: bytes) -> bytes:
        """Add the next bytes. Returns the bytes that are decided."""
        if not self._values:
            return data
        data = self._held + data
        return self._emit(data, len(data) - self._begun(data))

    def finish(self) -> bytes:
        """Return the bytes that were held back."""
        return self._emit(self._held, len(self._held))

    @property
    def holds(self) -> bool:
        """Whether bytes are held back."""
        return len(self._held) > self._released

    def release(self) -> bytes:
        """Return the held bytes, for a reader that does not wait.

        If they turn out to begin a value, the rest of it is hidden.
        """
        at = max(self._released, min(self._covered, len(self._held)))
        self._released = len(self._held)
        return self._held[at:]

    def _emit(self, data: bytes, cut: int) -> bytes:
        """Return everything before `cut`, redacted; keep the rest."""
        out, at = bytearray(), 0
        released, self._released = self._released, 0
        before = [(0, self._covered)] if self._covered else []
        for start, end in _joined([*before, *self._occurrences(data)]):
            if before and start == 0:
                at = end  # its mark was already written
                continue
            if start >= cut:
                break
            out += data[max(at, released) : start]
            if end > released:
                out += MARK
            at = end
        out += data[max(at, released) : cut]
        self._covered = max(0, at - cut)
        self._released = max(0, released - cut)
        self._held = data[cut:]
        return bytes(out)

    def _occurrences(self, data: bytes) -> list[tuple[int, int]]:
        found = []
        for value in self._values:
            start = at = data.find(value)
            while at >= 0:
                end = at + len(value)
                # `aaaa` overlaps itself in a long run of `a`, so continue from the last match.
                at = data.rfind(value, at + 1, end - 1 + len(value))
                if at < 0:
                    found.append((start, end))
                    start = at = data.find(value, end)
        return found

    def _begun(self, data: bytes) -> int:
        """Return the number of bytes at the end that could begin a value."""
        most = 0
        for value in self._values:
            at = data.find(value[:1], max(0, len(data) - len(value) + 1))
            while at >= 0 and not value.startswith(data[at:]):
                at = data.find(value[:1], at + 1)
            most = max(most, len(data) - at if at >= 0 else 0)
        return most


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort ranges, and merge those that overlap."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


class RedactedTail(Tail):
    """A Tail that never contains a value, not even in part: values are removed before bytes are dropped.

    It counts the bytes after redaction.
    """

    def __init__(self, limit: int | None, values: Iterable[bytes]) -> None:
        super().__init__(limit)
        self._redactor = Redactor(values)

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the stream; empty at its end."""
        super().feed(self._redactor.feed(data) if data else self._redactor.finish())

    def value(self) -> bytes:
        """Return the kept bytes."""
        self.feed(b"")
        return super().value()


class RedactedHeadTail(HeadTail):
    """A HeadTail that never contains a value, not even in part."""

    def __init__(self, limit: int | None, values: Iterable[bytes]) -> None:
        super().__init__(limit)
        self._redactor = Redactor(values)

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the stream; empty at its end."""
        super().feed(self._redactor.feed(data) if data else self._redactor.finish())


class RedactedRelay(HeadTail):
    """Writes a stream without the values to a descriptor, and keeps nothing."""

    is_relay = True

    def __init__(self, fd: int, values: Iterable[bytes]) -> None:
        super().__init__(0)
        self._fd, self._redactor = fd, Redactor(values)

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the stream; empty at its end."""
        from ..linux.fileio import write_all

        write_all(self._fd, self._redactor.feed(data) if data else self._redactor.finish())


class Secrets:
    """Values to hide, and functions that remove them from text."""

    def __init__(self, values: Iterable[str]) -> None:
        self.values = tuple(os.fsencode(value) for value in values)
        self._spelled: tuple[bytes, ...] | None = None

    @property
    def spelled(self) -> tuple[bytes, ...]:
        """All spellings of the values."""
        if self._spelled is None:
            self._spelled = tuple(sorted({each for value in self.values for each in spellings(value)}))
        return self._spelled

    def with_variables(self, variables: Mapping[str, str | None]) -> Secrets:
        """Return these values, and the secrets among the variables of one command."""
        given = {name: value for name, value in variables.items() if value is not None}
        more = [os.fsencode(value) for value in secret_values((given,), ())]
        if all(value in self.values for value in more):
            return self
        return Secrets(os.fsdecode(value) for value in {*self.values, *more})

    def bytes(self, data: bytes) -> bytes:
        """Return `data` without the values."""
        if not self.values:
            return data
        for value in self.spelled:
            if value in data:
                redactor = Redactor(self.spelled)
                return redactor.feed(data) + redactor.finish()
        return data

    def text(self, text: str) -> str:
        """Return `text` without the values."""
        if not self.values:
            return text
        return self.bytes(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def command(self, command: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """Return a command without the values."""
        if not self.values:
            return command
        return self.text(command) if isinstance(command, str) else tuple(map(self.text, command))

    def event(self, event: Event) -> Event:
        """Return `event` without the values, because names from inside may contain them."""
        if not self.values:
            return event
        return event.replace(
            what=self.text(event.what), rule=self.text(event.rule), allow=self.text(event.allow)
        )

    def strip(self, error: StaddleError) -> None:
        """Remove the values from the texts of `error`."""
        if self.values:
            error.what, error.why, error.fix = map(self.text, (error.what, error.why, error.fix))
            error.args = (error.what, error.why, error.fix)

    def kept(self, limit: int | None) -> HeadTail:
        """Return a buffer for a stream."""
        return RedactedHeadTail(limit, self.spelled) if self.values else HeadTail(limit)


#: No values.
NONE = Secrets(())

# Our standard output and error, for a program that must not print secrets there.
#
# A stream that is a terminal is not redacted: the person there owns the secrets.


#: Seconds for which a leftover process can keep a stream open after the program's end.
_PATIENCE = 0.5


class RedactedStreams:
    """Has `stdout` and `stderr` for a program: our own descriptors, or pipes that are relayed to them."""

    def __init__(self, secrets: Secrets | None) -> None:
        self.stdout, self.stderr = 1, 2
        self._pipes: list[int] = []
        self._relays: list[threading.Thread] = []
        if secrets is None or not secrets.values:
            return
        from functools import partial

        from ..background import start_thread

        for name, fd in (("stdout", 1), ("stderr", 2)):
            if is_relayed(fd):
                ours, theirs = os.pipe2(os.O_CLOEXEC)
                self._pipes.append(theirs)
                setattr(self, name, theirs)
                self._relays.append(start_thread(partial(_relay, ours, fd, secrets.spelled), "staddle-relay"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._pipes:
            os.close(self._pipes.pop())
        for relay in self._relays:
            relay.join(_PATIENCE)


def is_relayed(fd: int) -> bool:
    """Whether this descriptor is open, and not a terminal."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return not os.isatty(fd)


def _relay(ours: int, fd: int, values: tuple[bytes, ...]) -> None:
    redactor = Redactor(values)
    try:
        while data := os.read(ours, 65536):
            write_all(fd, redactor.feed(data))
        write_all(fd, redactor.finish())
    except OSError:
        pass  # the reader is gone; closing the pipe tells the program
    finally:
        os.close(ours)
