"""Interpreters in snapshots: which a snapshot keeps, and how they continue after a restore.

An interpreter is a program of the sandbox, and may be hostile. A twin of it is spared when a restore ends all
other processes, as an idle shell is. So a hostile interpreter can let another process of its sandbox survive
a restore, with the rights that it had: nothing more.
"""

from __future__ import annotations

from contextlib import ExitStack

from .workspace.snapshot import take

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .interpreter import Interpreter, Twin
    from .open_sandbox import OpenSandbox
    from .session import Session
    from .workspace.snapshot import InterpreterTwin, Snapshot
    from .workspace.workspace import SandboxWorkspace

#: The most twins of a sandbox. The oldest is dropped for another.
MOST = 8
#: Seconds to wait for an interpreter whose cell a restore has ended.
_PATIENCE = 10.0


def spare(inside: OpenSandbox, *more: int) -> None:
    """Have the agent treat the twins, and these processes, as idle shells."""
    inside.twins = [twin for twin in inside.twins if twin.is_there]
    inside.agent.spared = (*(twin.pid for twin in inside.twins), *more)


def snapshot_with(
    inside: OpenSandbox,
    label: str,
    workspace: SandboxWorkspace,
    sessions: list[Session],
    *,
    automatic: bool = False,
) -> Snapshot:
    """Take a snapshot with a twin of each idle interpreter. For `changes.at_rest`.

    `automatic`: for the history.
    """
    twins: dict[str, Twin] = {}
    why: dict[str, str] = {}
    with ExitStack() as held:
        idle: dict[str, Interpreter] = {}
        for name, interpreter in inside.interpreters.items():
            if not interpreter.turn.acquire(blocking=False):
                why[name] = "a cell runs"
                continue
            held.callback(interpreter.turn.release)
            if inside.agent.is_paused:
                why[name] = "the sandbox is paused"
            elif interpreter.is_started:
                idle[name] = interpreter

        def forked() -> None:
            for name, twin in list(twins.items()):
                if reason := idle[name].end_twin(twin):
                    why[name] = reason
                    del twins[name]
                else:
                    inside.twins.append(twin)
            spare(inside, *(idle[name].pid for name in twins))

        try:
            for name, interpreter in idle.items():
                twins[name] = interpreter.begin_twin()
            taken = take(workspace, sessions, label, automatic=automatic, before_files=forked)
        except BaseException:
            for twin in twins.values():
                twin.close("no snapshot was taken")
            raise
        finally:
            for name in twins:
                idle[name].enter_again()
            for twin in [twin for twin in inside.twins if not twin.has_ended][:-MOST]:
                twin.close(f"a sandbox keeps {MOST} at most, and newer ones were made")
            spare(inside)
    taken.twins, taken.without_twin = twins, why
    return taken


class Continuation:
    """The interpreters of a snapshot that is being restored. `held` keeps their turns until it is closed."""

    def __init__(self, inside: OpenSandbox, point: Snapshot, held: ExitStack) -> None:
        self._inside, self._point, self._held = inside, point, held
        self._why: dict[str, str] = {}  # why it is not woken, or an empty text

    def wake(self, patience: float = 0) -> None:
        """Wake the twins, once the snapshot's files are mounted. They fork while the shells are restored.

        An interpreter whose cell runs is left out after `patience` seconds.
        """
        for name, twin in self._point.twins.items():
            if name not in self._why:
                self._wake(name, twin, patience)

    def _wake(self, name: str, twin: InterpreterTwin, patience: float) -> None:
        interpreter = self._inside.interpreters.get(name)
        if twin.agent is not self._inside.agent:
            self._why[name] = "its twin is in another sandbox"
        elif interpreter is not None and interpreter.turn.acquire(timeout=patience):
            self._held.callback(interpreter.turn.release)
            self._why[name] = interpreter.wake(twin)

    def end(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return which interpreters continue, and why each other one does not."""
        self.wake(_PATIENCE)  # a cell of it may have been ended only now
        lost = dict(self._point.without_twin)
        for name, twin in self._point.twins.items():
            why = self._why.get(name, "a cell runs")
            if why or (why := self._inside.interpreters[name].go_on(twin)):
                lost[name] = why
        return tuple(name for name in self._point.twins if name not in lost), lost
