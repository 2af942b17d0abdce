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


def continued(inside: OpenSandbox, point: Snapshot) -> tuple[tuple[str, ...], dict[str, str]]:
    """Continue the interpreters of a restored snapshot; return which, and why each other one does not."""
    lost = dict(point.without_twin)
    for name, twin in point.twins.items():
        why = "its twin is in another sandbox" if twin.agent is not inside.agent else ""
        if why or (why := _continued(inside, name, twin)):
            lost[name] = why
    return tuple(name for name in point.twins if name not in lost), lost


def _continued(inside: OpenSandbox, name: str, twin: InterpreterTwin) -> str:
    interpreter = inside.interpreters.get(name)
    if interpreter is None or not interpreter.turn.acquire(timeout=_PATIENCE):
        return "a cell runs"
    try:
        return interpreter.go_on(twin)
    finally:
        interpreter.turn.release()
