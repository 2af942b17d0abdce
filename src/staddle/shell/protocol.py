r"""Lines that run a command in bash, and its answer: a run as a state machine. No I/O.

    \. STATUS && \:                                   only if `$?` must have a value for the text
    [NAME=value ...] \. TEXT <INPUT >OUTPUT 2>ERRORS
    ((0)) 2>DONE >"MISSING/NONCE.$?.$-.${!-}..." || _=

With the last line the shell reports that a command is over. MISSING does not exist, so the redirection fails,
and bash's message, which contains the path, goes to the DONE pipe. This needs no builtin that a function or
an alias may hide, and no descriptor that a command may have closed. No DEBUG trap can veto it, `set -e` and
ERR traps do not see it, and it creates no file. Answers without this run's nonce are ignored.
"""

from __future__ import annotations

from .._value import Value
from ..errors import BackendUnavailable
from ..ipc.agent_messages import BRAKE, INTERRUPT, KILL, KILL_SHELL, TERMINATE
from .quoting import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypedDict

    from ..ipc.opened_shell import ShellPaths

    class RunSettings(TypedDict, total=False):
        """Options of one text that bash runs; see `lines`."""

        status: int
        env: Mapping[str, str] | None
        cwd: bytes | None
        has_input: bool
        merge: bool


#: Our own step among the agent's: a shell that is interrupted while it reads drops the line, which may have
#: been the question.
ASK_AGAIN = -1
#: The oldest bash that supports our lines: `declare -p` of everything, `${!-}`, BASHOPTS.
OLDEST = (4, 4)
#: Steps that end a run, and the seconds for each.
LADDER = (
    *((BRAKE, 0.02), (INTERRUPT, 0.02), (ASK_AGAIN, 0.11)),
    *((TERMINATE, 0.02), (ASK_AGAIN, 0.13)),
    *((KILL, 0.03), (ASK_AGAIN, 0.02)) * 10,
    *((KILL_SHELL, 0.5),) * 4,
)
#: Start of the ladder when the shell must end as well.
_LAST_STEPS = next(number for number, (step, _) in enumerate(LADDER) if step == KILL_SHELL)
#: Bytes of the done pipe kept in search of the answer.
_LONGEST_NOISE = 64 << 10


class ShellAnswer:
    """Answer of the shell when a command is over."""

    __slots__ = ("cwd", "flags", "newest_job", "oldpwd", "status")

    def __init__(self, status: int, flags: bytes, newest_job: int, cwd: bytes, oldpwd: bytes) -> None:
        self.status, self.flags, self.newest_job = status, flags, newest_job
        self.cwd, self.oldpwd = cwd, oldpwd


class BuiltinAccess(Value):
    """Words that reach two builtins even if functions have their names."""

    source: bytes = b"\\."
    give_back: bytes = b"\\return"


#: In order of preference: the words, names that must not be functions, names that must be enabled.
_SOURCES = (
    (b"\\.", {b"."}, {b"."}),
    (b"\\source", {b"source"}, {b"source"}),
    (b"\\builtin .", {b"builtin"}, {b"builtin", b"."}),
    (b"\\builtin source", {b"builtin"}, {b"builtin", b"source"}),
    (b"\\command .", {b"command"}, {b"command", b"."}),
    (b"\\command source", {b"command"}, {b"command", b"source"}),
)
_RETURNS = (
    (b"\\return", {b"return"}, {b"return"}),
    (b"\\builtin return", {b"builtin"}, {b"builtin", b"return"}),
    (b"\\command return", {b"command"}, {b"command", b"return"}),
)
#: Words to try when none is known to work.
ACCESSES = tuple(BuiltinAccess(words) for words, _, _ in _SOURCES)


def builtin_access(functions: frozenset[bytes], disabled: frozenset[bytes]) -> BuiltinAccess | None:
    """Return words that reach builtins despite these functions and disabled builtins, if any."""

    def first(choices: tuple[tuple[bytes, set[bytes], set[bytes]], ...]) -> bytes | None:
        for words, hidden, needed in choices:
            if not hidden & functions and not needed & disabled:
                return words
        return None

    source, give_back = first(_SOURCES), first(_RETURNS)
    return BuiltinAccess(source, give_back) if source and give_back else None


def lines(
    paths: ShellPaths,
    nonce: bytes,
    access: BuiltinAccess,
    *,
    status: int = 0,
    env: Mapping[str, str] | None = None,
    cwd: bytes | None = None,
    has_input: bool = False,
    merge: bool = False,
    before: bytes = b"",
) -> bytes:
    """Return the lines for the control pipe that run the text, after our own lines `before`."""
    source = b"%b %b <%b >%b 2>%b" % (
        access.source,
        paths.text,
        paths.input if has_input else b"/dev/null",
        paths.output,
        b"&1" if merge else paths.errors,
    )
    if env:
        # `command`: in POSIX mode the variables of a special builtin would persist.
        assignments = b" ".join(name.encode() + b"=" + quoted(_bytes(value)) for name, value in env.items())
        special = access.source[1:]
        source = b"%b \\command %b%b" % (assignments, special, source[len(access.source) :])
    restore = b"%b %b" % (access.source, paths.status)
    if cwd is not None:
        inner = b"%b || %b" % (restore, source) if status else source
        complaints = paths.output if merge else paths.errors
        source = b"\\builtin cd -- %b 2>%b && { %b; }" % (quoted(cwd), complaints, inner)
    elif status:
        source = b"%b && \\:\n%b" % (restore, source)
    return b"%b%b\n%b" % (before, source, question(paths, nonce))


def first_directory(directory: str) -> bytes:
    """Return the line with which a new bash enters the directory of its session."""
    return b"%b; \\unset OLDPWD\n" % enter(_bytes(directory))


#: The most parent directories that are tried.
_MOST_PLACES = 40


def enter(directory: bytes) -> bytes:
    """Return the command that enters a directory, or the nearest existing one above it."""
    places = [directory]
    while b"/" in places[-1].strip(b"/"):
        places.append(places[-1].rstrip(b"/").rpartition(b"/")[0])
    return b" || ".join(b"\\builtin cd -- %b 2>/dev/null" % quoted(place) for place in places[:_MOST_PLACES])


def back_to(cwd: bytes, oldpwd: bytes, *, or_above: bool = False) -> bytes:
    """Return the lines that return to a directory and restore OLDPWD.

    With `or_above` the shell enters the nearest existing directory above if `cwd` is gone.
    """
    there = enter(cwd) if or_above else b"\\builtin cd -- %b" % quoted(cwd)
    came_from = b"OLDPWD=" + quoted(oldpwd) if oldpwd else b"\\unset OLDPWD"
    return b"%b\n%b\n" % (there, came_from)


def question(paths: ShellPaths, nonce: bytes) -> bytes:
    """Return the line that makes the shell answer."""
    return b'((0)) 2>%b >"%b/%b.$?.$-.${!-}.${PWD-}/%b.${OLDPWD-}/%b" || _=\n' % (
        *(paths.done, paths.missing_dir),
        *(nonce,) * 3,
    )


def answer(nonce: bytes, noise: bytes) -> ShellAnswer | None:
    """Find the answer with this nonce. All of its content comes from inside."""
    parts = noise.split(b"/" + nonce)
    for number in range(1, len(parts) - 2):  # `set -v` prints the question before the answer
        words = parts[number].split(b".", 4)
        if len(words) != 5:
            continue
        nothing, status, flags, job, cwd = words
        is_job = not job or (job.isdigit() and len(job) <= 9)
        if not nothing and status.isdigit() and len(status) <= 3 and is_job:
            oldpwd = parts[number + 1][1:4097]
            return ShellAnswer(int(status), flags[:64], int(job or 0), cwd[:4096], oldpwd)
    return None


def check_version(hello: bytes) -> None:
    """Raise BackendUnavailable if the bash that sent `hello` is too old."""
    numbers = tuple(int(part) for part in hello.split(b".")[:2] if part.isdigit())
    if numbers < OLDEST:
        raise BackendUnavailable(
            f"bash {'.'.join(map(str, numbers))} is too old for a session",
            why=f"it reports its state and restores it from bash {'.'.join(map(str, OLDEST))} on",
            fix="install a newer bash where the policy shows it",
        )


class Run:
    """One command, from its first byte to its end.

    It is fed with the shell's output and the time. It returns what to write, which step to request from the
    agent, and when to look again.
    """

    def __init__(self, nonce: bytes, unwritten: bytes, timeout: float | None = None) -> None:
        self.nonce, self._timeout = nonce, timeout
        self.unwritten = memoryview(unwritten)  # the writer of the control pipe leaves the rest here
        self.began = 0.0
        self.deadline: float | None = None
        self.answer: ShellAnswer | None = None
        self.lost = False
        self.refused = False
        self.ended: int | None = None
        self.reason: str | None = None
        self._rung = 0
        self._noise = b""

    def begin_at(self, now: float) -> None:
        """Measure its time from `now` on."""
        self.began = now
        if self._timeout is not None:
            self.deadline = now + self._timeout

    @property
    def over(self) -> bool:
        """Whether it is over: the shell has answered, or is gone."""
        return self.answer is not None or self.ended is not None or self.lost

    @property
    def was_ended(self) -> bool:
        """Whether ending it has begun: the shell may be stopped and print errors, and must be released."""
        return self._rung > 0

    def feed(self, data: bytes, paths: ShellPaths) -> None:
        """Process the shell's output on its done pipe."""
        self._noise = noise = (self._noise + data)[-_LONGEST_NOISE:]
        self.answer = answer(self.nonce, noise)
        if self.answer is not None:
            # An error about the text's files means that it did not run: the shell has no free descriptor.
            self.refused = self.answer.status == 1 and (
                b": redirection error: " in noise
                or any(place + b": " in noise for place in (paths.output, paths.errors, paths.input))
            )
        else:
            # It has no descriptor for its answer, or may not redirect.
            self.lost = paths.done + b": " in noise

    def shell_ended(self, status: int) -> None:
        """Record that the shell's process is gone, with its wait status."""
        self.ended = status

    def interrupt(self, reason: str, now: float) -> None:
        """Begin to end it for `reason`. With "closed" its shell ends at once as well."""
        if reason == "closed" and self.reason != "closed":
            self.reason, self.deadline = reason, now
            self._rung = max(self._rung, _LAST_STEPS)
        elif self.reason is None:
            self.reason, self.deadline = reason, now

    def step(self, now: float) -> int | None:
        """Return the step to request from the agent now, if one is due."""
        if self.over or self.deadline is None or now < self.deadline:
            return None
        if self.reason is None:
            self.reason = "timeout"
        if self._rung >= len(LADDER):
            self.lost = True  # killed, but its end is not reported: the agent is gone
            return None
        step, patience = LADDER[self._rung]
        self._rung += 1
        self.deadline = now + patience
        return step


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")
