"""Shells that wait inside for the next command of a shim.

To start a program in a sandbox takes some milliseconds: a fork of the agent, limits, namespace, filter. That
is done before a command comes. A spare reads the command from its standard input, item by item (bash reads
no byte too many from a pipe), and becomes the bash that was asked for; what follows there is the command's
own input.
"""

from __future__ import annotations

import os
import threading

from .._value import Value
from ..errors import StaddleError
from ..launch.running import give_pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..ipc.agent_client import SpawnedProcess
    from ..sandbox.sandbox import Sandbox

#: How many wait.
SPARES = 2
#: Longer commands are not read by a spare: it reads one byte at a time.
LONGEST = 16 << 10
#: Variables, directory and arguments, each ended by a NUL, the lists after their length.
_WAIT = """\
IFS= read -r -d '' n || exit
while ((n--)); do IFS= read -r -d '' a; export "$a"; done
IFS= read -r -d '' d; IFS= read -r -d '' n; set --
while ((n--)); do IFS= read -r -d '' a; set -- "$@" "$a"; done
cd -- "$d" || exit 125
unset n a d OLDPWD
exec -a bash -- "$BASH" "$@"
"""


class CommandPipes:
    """Three pipes for a program inside, or two, where its output and errors are one stream."""

    def __init__(self, uid: int | None, *, merged: bool) -> None:
        self.merged = merged
        self.ours: list[int] = []
        self._theirs: list[int] = []
        try:
            for inward in (True, False) if merged else (True, False, False):
                read, write = os.pipe2(os.O_CLOEXEC)
                self._theirs.append(read if inward else write)
                self.ours.append(write if inward else read)
                os.set_blocking(self.ours[-1], False)
            give_pipes(uid, self._theirs)
        except BaseException:
            self.close()
            raise

    @property
    def theirs(self) -> tuple[int, int, int]:
        """Standard input, output and error of the program."""
        return (self._theirs[0], self._theirs[1], self._theirs[-1])

    def started(self) -> None:
        """The program has its ends: ours of them must close, or no end would ever show."""
        while self._theirs:
            os.close(self._theirs.pop())

    def close(self) -> None:
        """Close all."""
        self.started()
        while self.ours:
            os.close(self.ours.pop())


class SpareShell(Value):
    """A shell that waits, and its pipes."""

    spawned: SpawnedProcess
    pipes: CommandPipes


class SpareShells:
    """The shells of one sandbox that wait, some for each kind of output."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._lock = threading.Lock()
        self._waiting: dict[bool, list[SpareShell]] = {True: [], False: []}
        self._closed = False

    def take(
        self, argv: Sequence[str], directory: str, variables: Mapping[str, str], *, merged: bool
    ) -> SpareShell | None:
        """A spare that has become bash with these arguments; None if there is none, or for long commands."""
        pairs = [f"{name}={value}" for name, value in variables.items()]
        items = [str(len(pairs)), *pairs, directory, str(len(argv)), *argv]
        order = b"".join(os.fsencode(item) + b"\0" for item in items)
        if len(order) > LONGEST:
            return None
        while True:
            with self._lock:
                if not self._waiting[merged]:
                    return None
                spare = self._waiting[merged].pop(0)
            try:
                if spare.spawned.poll() is None and os.write(spare.pipes.ours[0], order) == len(order):
                    return spare
            except OSError:
                pass  # it was killed
            _end(spare)

    def refill(self, merged: bool) -> None:
        """Have as many of this kind as are to wait."""
        while True:
            with self._lock:
                if self._closed or len(self._waiting[merged]) >= SPARES:
                    return
            try:
                made = self._made(merged)
            except (StaddleError, OSError):
                return  # the next command is started without one, and says why it cannot be
            with self._lock:
                if not self._closed:
                    self._waiting[merged].append(made)
                    continue
            _end(made)

    def _made(self, merged: bool) -> SpareShell:
        inside = self._sandbox._now()
        pipes = CommandPipes(inside.uid, merged=merged)
        try:
            context = inside.main._exec_context
            argv = (inside.bash, "-c", _WAIT)
            spawned = inside.agent.spawn(argv, context.env, "/", stdio=pipes.theirs)
        except BaseException:
            pipes.close()
            raise
        pipes.started()
        return SpareShell(spawned, pipes)

    def close(self) -> None:
        """End those that wait."""
        with self._lock:
            self._closed = True
            ended = [*self._waiting[True], *self._waiting[False]]
            self._waiting = {True: [], False: []}
        for spare in ended:
            _end(spare)


def _end(spare: SpareShell) -> None:
    """Close its input, at which it exits."""
    spare.pipes.close()
    spare.spawned.close()
