r"""The lines that run a command in bash, and its answer: a run as a state machine. No I/O.

    \. STATUS && \:                                   only when `$?` has to be something for the text
    [NAME=value ...] \. TEXT <INPUT >OUTPUT 2>ERRORS
    ((0)) 2>DONE >"MISSING/NONCE.$?.$-.${!-}..." || _=

The last line is how a shell says that a command is over. MISSING does not exist, so the
redirection fails, and bash's message, with the path in it, goes to the DONE pipe. It needs no
builtin that a function or an alias may hide, no descriptor that a command may have closed, and no
DEBUG trap can veto it; `set -e` and ERR traps do not see it; it creates no file. An answer
without this run's nonce is noise.
"""

from __future__ import annotations

from functools import lru_cache

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


#: A step of ours among those that the agent takes: a shell that is interrupted while it reads forgets
#: the line, which may have been the question.
ASK_AGAIN = -1
#: The oldest bash that has all we say to it: `declare -p` of everything, `${!-}`, BASHOPTS.
OLDEST = (4, 4)
#: How a run is ended, and how long each step may take.
LADDER = (
    *((BRAKE, 0.02), (INTERRUPT, 0.02), (ASK_AGAIN, 0.11)),
    *((TERMINATE, 0.02), (ASK_AGAIN, 0.13)),
    *((KILL, 0.03), (ASK_AGAIN, 0.02)) * 10,
    *((KILL_SHELL, 0.5),) * 4,
)
#: Where the ladder begins when the shell is to end as well.
_LAST_STEPS = next(number for number, (step, _) in enumerate(LADDER) if step == KILL_SHELL)
#: As much of what came on the done pipe is kept, to look for the answer in it.
_LONGEST_NOISE = 64 << 10


class ShellAnswer:
    """The answer of the shell when a command is over."""

    __slots__ = ("cwd", "flags", "newest_job", "oldpwd", "status")

    def __init__(self, status: int, flags: bytes, newest_job: int, cwd: bytes, oldpwd: bytes) -> None:
        self.status, self.flags, self.newest_job = status, flags, newest_job
        self.cwd, self.oldpwd = cwd, oldpwd


class BuiltinAccess(Value):
    """The words that reach two builtins in a shell where functions may have their names."""

    source: bytes = b"\\."
    give_back: bytes = b"\\return"


#: In order of preference: the words, the names that must not be functions, and those that must be enabled.
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
#: Those to try when none is known to work.
ACCESSES = tuple(BuiltinAccess(words) for words, _, _ in _SOURCES)


def builtin_access(functions: frozenset[bytes], disabled: frozenset[bytes]) -> BuiltinAccess | None:
    """Return words that reach builtins past these functions and without those builtins, if there are any."""

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
    """Return the lines for the control pipe that run the text. `before` are whole lines of our own."""
    source = b"%b %b <%b >%b 2>%b" % (
        access.source,
        paths.text,
        paths.input if has_input else b"/dev/null",
        paths.output,
        b"&1" if merge else paths.errors,
    )
    if env:
        # `command`: in POSIX mode the variables of a special builtin would stay.
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


@lru_cache(maxsize=16)
def first_directory(directory: str) -> bytes:
    """The line by which a bash that has just started enters the directory of its session."""
    return b"%b; \\unset OLDPWD\n" % enter(_bytes(directory))


#: Of the directories above one, so many are tried.
_MOST_PLACES = 40


def enter(directory: bytes) -> bytes:
    """The command by which a shell enters a directory, or the nearest above it that is there."""
    places = [directory]
    while b"/" in places[-1].strip(b"/"):
        places.append(places[-1].rstrip(b"/").rpartition(b"/")[0])
    return b" || ".join(b"\\builtin cd -- %b 2>/dev/null" % quoted(place) for place in places[:_MOST_PLACES])


def back_to(cwd: bytes, oldpwd: bytes, *, or_above: bool = False) -> bytes:
    """The lines by which a shell goes back to a directory, and to having come from the other one.

    With `or_above`, it enters the nearest directory above if that one is not there any more.
    """
    there = enter(cwd) if or_above else b"\\builtin cd -- %b" % quoted(cwd)
    came_from = b"OLDPWD=" + quoted(oldpwd) if oldpwd else b"\\unset OLDPWD"
    return b"%b\n%b\n" % (there, came_from)


def question(paths: ShellPaths, nonce: bytes) -> bytes:
    """The line that has the shell answer."""
    return b'((0)) 2>%b >"%b/%b.$?.$-.${!-}.${PWD-}/%b.${OLDPWD-}/%b" || _=\n' % (
        *(paths.done, paths.missing_dir),
        *(nonce,) * 3,
    )


def answer(nonce: bytes, noise: bytes) -> ShellAnswer | None:
    """The answer with this nonce, if it is in there. Everything in it comes from inside."""
    parts = noise.split(b"/" + nonce)
    for number in range(1, len(parts) - 2):  # `set -v` has the question itself in there, before the answer
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
    """Raise BackendUnavailable if the bash that greeted so is too old."""
    numbers = tuple(int(part) for part in hello.split(b".")[:2] if part.isdigit())
    if numbers < OLDEST:
        raise BackendUnavailable(
            f"bash {'.'.join(map(str, numbers))} is too old for a session",
            why=f"it reports its state and restores it from bash {'.'.join(map(str, OLDEST))} on",
            fix="install a newer bash where the policy shows it",
        )


class Run:
    """One command, from its first byte until it is over.

    Fed with what came from the shell and with the time; says what to write, which step of the
    ladder to ask the agent for, and when to look again.
    """

    def __init__(self, nonce: bytes, unwritten: bytes, timeout: float | None = None) -> None:
        self.nonce, self._timeout = nonce, timeout
        self.unwritten = memoryview(unwritten)  # who writes to the control pipe leaves the rest here
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
        """Count its time from `now` on."""
        self.began = now
        if self._timeout is not None:
            self.deadline = now + self._timeout

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it: the shell has answered, or there is none."""
        return self.answer is not None or self.ended is not None or self.lost

    @property
    def was_ended(self) -> bool:
        """Whether the ladder was begun: the shell may be held, complain about it, and has to be let go."""
        return self._rung > 0

    def feed(self, data: bytes, paths: ShellPaths) -> None:
        """The shell said this on its done pipe."""
        self._noise = noise = (self._noise + data)[-_LONGEST_NOISE:]
        self.answer = answer(self.nonce, noise)
        if self.answer is not None:
            # An error about the files of the text comes instead of running it: the shell has no
            # descriptor left for them.
            self.refused = self.answer.status == 1 and (
                b": redirection error: " in noise
                or any(place + b": " in noise for place in (paths.output, paths.errors, paths.input))
            )
        else:
            # Nor for its answer; or it may not redirect.
            self.lost = paths.done + b": " in noise

    def shell_ended(self, status: int) -> None:
        """The process of the shell is gone; `status` is what waitpid says."""
        self.ended = status

    def interrupt(self, reason: str, now: float) -> None:
        """Begin to end it, because of `reason`. With "closed" its shell ends, too, at once."""
        if reason == "closed" and self.reason != "closed":
            self.reason, self.deadline = reason, now
            self._rung = max(self._rung, _LAST_STEPS)
        elif self.reason is None:
            self.reason, self.deadline = reason, now

    def step(self, now: float) -> int | None:
        """The step to ask the agent for now, if the time has come for one."""
        if self.over or self.deadline is None or now < self.deadline:
            return None
        if self.reason is None:
            self.reason = "timeout"
        if self._rung >= len(LADDER):
            self.lost = True  # killed, and its end is still not reported: there is no agent
            return None
        step, patience = LADDER[self._rung]
        self._rung += 1
        self.deadline = now + patience
        return step


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")
