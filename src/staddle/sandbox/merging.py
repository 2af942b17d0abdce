"""Merge the work of forks into a sandbox: three-way, tested in a fork, and written as one step.

    merge        the changes of forks since they and the sandbox were one
    best_of      attempts in forks of their own, in parallel, and a merge of those that pass a test

A merge is a layer. It is mounted over the sandbox's files in a fork, for the test, and then in the sandbox.
So the sandbox has all of it or nothing, whatever happens, and the files that were tested are those it gets.
"""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from queue import SimpleQueue

from .. import check
from .._value import Value
from ..background import start_thread
from ..errors import InvalidCall, LayerError
from ..interrupts import interruptible, owned, uninterrupted, unmistaken
from ..layers.baseline import Baseline
from ..layers.changes import diff
from ..layers.differences import Selection
from ..layers.merged_view import LayerView
from ..layers.stack import LayerSnapshot
from ..layers.store import no_room
from ..layers.three_way import Clash, OpenSides, ThreeWay, write_layer
from ..paths import WORKSPACE_PATH
from . import changes
from .arguments import arguments
from .workspace.fork_point import common_point
from .workspace.snapshot import Snapshot, change, come_back, history, take

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from threading import Thread
    from typing import Any, Literal, Protocol, Self

    from ..layers.changes import Change
    from ..layers.store import Layer
    from ..layers.three_way import ConflictKind, Version
    from .open.settings import SandboxSettings
    from .open_sandbox import OpenSandbox
    from .result import Result
    from .session import Session
    from .workspace.workspace import SandboxWorkspace

    class ForkableSandbox(Protocol):
        """The part of a Sandbox that merges use."""

        _settings: SandboxSettings
        _history: Any  # its recorder, or None

        def _now(self) -> OpenSandbox: ...
        @classmethod
        def _continued(cls, settings: SandboxSettings, snapshot: Snapshot) -> Self: ...
        def run(self, command: str) -> Result: ...
        def exec(self, argv: Sequence[str]) -> Result: ...
        def fork(self, n: int = 1) -> list[Self]: ...
        def close(self) -> None: ...
        def __enter__(self) -> Self: ...
        def __exit__(self, *_: object) -> None: ...

    #: A command, or a function that gets a sandbox with the merge and returns whether it is good.
    Test = str | Sequence[str] | Callable[[Any], object]
    Answer = bytes | Literal["ours", "theirs", "refuse"]
    OnMergeConflict = Literal["refuse", "ours", "theirs"] | Callable[["MergeConflict"], Answer]

_ANSWERS = ("refuse", "ours", "theirs")
#: The most bytes of a content that a conflict returns.
CONTENT = 16 << 20
#: Seconds to wait for each attempt when its fork was closed.
_PATIENCE = 5.0


class MergeConflict(Value):
    """A path that the sandbox and a fork changed, each in its own way.

    `kind` is "content" (of a file or the target of a link), "binary", "mode", "type" (a file here and a
    directory there) or "delete" (deleted on one side, changed on the other). `fork` is the index of the fork
    in the call; "ours" is the sandbox with the forks before it. `path` is the path inside.
    """

    path: str
    kind: ConflictKind
    why: str
    fork: int = 0

    def base(self) -> bytes | None:
        """Return the content before both changes; None if there was no file."""
        return self._content("base")

    def ours(self) -> bytes | None:
        """Return the content in the sandbox; None if there is no file."""
        return self._content("ours")

    def theirs(self) -> bytes | None:
        """Return the content in the fork; None if there is no file."""
        return self._content("theirs")

    def marked(self) -> bytes | None:
        """Return the text with git's conflict markers; None if it was not merged by line."""
        from ..layers.line_merge import joined

        merged = self.__dict__["_clash"].merged
        return None if merged is None else joined(merged)

    def _content(self, side: str) -> bytes | None:
        version: Version | None = getattr(self.__dict__["_clash"], side)
        return None if version is None or version.type == "directory" else version.again(CONTENT)

    def __str__(self) -> str:
        """Kind, path and reason, for people."""
        from ..display import shown

        return f"{self.kind} {shown(self.path)}: {shown(self.why)}"


class Merge(Value):
    """Result of a merge. Nothing was written unless `written` is True.

    `changes` are the changes to the sandbox's files. `conflicts` are the paths that prevented it. `left_out`
    are pipes, sockets and devices of forks, which are never merged. `test` is the result of the test: a
    `Result`, or the answer of a function; None if it was not run. `before` is the snapshot to restore to undo
    the merge; None if nothing was written.
    """

    changes: tuple[Change, ...] = ()
    conflicts: tuple[MergeConflict, ...] = ()
    left_out: tuple[str, ...] = ()
    test: Result | bool | None = None
    written: bool = False
    before: Snapshot | None = None

    @property
    def ok(self) -> bool:
        """Whether there is no conflict, and the test passed if there was one."""
        return not self.conflicts and is_good(self.test)

    def check(self) -> Self:
        """Return it, or raise LayerError with the reasons if it could not be written."""
        if self.ok:
            return self
        from ..display import shown_block

        listed = "; ".join(map(str, self.conflicts[:5])) + ("; …" if len(self.conflicts) > 5 else "")
        output = "" if self.test is None or isinstance(self.test, bool) else shown_block(self.test.text())
        raise LayerError(
            "the forks were not merged",
            why=listed or f"the test failed{': ' + output[-1000:] if output else ''}",
            fix="pass on_conflict=, or merge other forks or paths"
            if listed
            else "mend a fork, and merge again",
        )

    def __repr__(self) -> str:
        state = "written" if self.written else "not written"
        test = "" if self.test is None else f", test {'passed' if is_good(self.test) else 'failed'}"
        return f"<Merge {state}: {len(self.changes)} changes, {len(self.conflicts)} conflicts{test}>"


def is_good(answer: object) -> bool:
    """Whether a test passed, or there was none."""
    return answer is None or bool(getattr(answer, "ok", answer))


class PlannedMerge:
    """A merge as a layer that is not yet mounted. It holds what the merge needs until `close`."""

    merge = Merge()
    layer: Layer
    _open = False

    def __init__(self, before: Snapshot, others: list[Snapshot]) -> None:
        self.before, self._others = before, others
        self.paths: frozenset[str] = frozenset()

    def close(self, result: Merge | None = None) -> None:
        """Release the layer, and the snapshots that `result` does not use."""
        if self._open:
            self._open = False
            self.layer.drop()
        if result is None or not result.conflicts:
            for each in self._others:
                each.close()
            if result is None or not result.changes:
                self.before.close()

    def __del__(self) -> None:
        if self._open:
            uninterrupted(self.close)


def merge(
    into: ForkableSandbox,
    forks: Sequence[ForkableSandbox],
    test: Test | None,
    on_conflict: OnMergeConflict,
    paths: Collection[str] | None,
    *,
    write: bool = True,
) -> Merge:
    """Merge `forks` into `into`; see `Sandbox.merge`. Without `write`, only find out what it would do."""
    if not callable(on_conflict) and on_conflict not in _ANSWERS:
        raise InvalidCall(
            f"on_conflict is {on_conflict!r}",
            why="there is no such answer",
            fix='use "refuse", "ours", "theirs" or a function',
        )
    checked_test(test)
    plan = unmistaken(lambda: owned(lambda: _planned(into, forks, on_conflict, paths)))
    result: Merge | None = None
    try:
        found = plan.merge
        if test is not None and not found.conflicts:
            found = found.replace(test=_tested(into, plan, test))
        if write and found.ok and found.changes:
            unmistaken(lambda: owned(lambda: _write(into, plan)))
            found = found.replace(written=True, before=plan.before)
        result = found
        return found
    finally:
        unmistaken(lambda: uninterrupted(partial(plan.close, result)))


def checked_test(test: object) -> None:
    """Raise InvalidCall unless it is a command or a function."""
    if test is None or callable(test):
        return
    if not isinstance(test, str):
        arguments(test)  # type: ignore[arg-type]
    elif not test.strip():
        raise InvalidCall("test is empty", why="it is no command", fix='pass a command, as test="make test"')


def run_test(sandbox: ForkableSandbox, test: Test) -> Result | bool:
    """Run a test in a sandbox."""
    if callable(test):
        answer = test(sandbox)
        if answer is None:
            raise InvalidCall(
                "test returned None",
                why="it does not tell whether it passed",
                fix="return True, False or a Result",
            )
        return answer if hasattr(answer, "stdout_bytes") else bool(answer)  # type: ignore[return-value]
    return sandbox.run(test) if isinstance(test, str) else sandbox.exec(test)


def _planned(
    into: ForkableSandbox,
    forks: Sequence[ForkableSandbox],
    on_conflict: OnMergeConflict,
    paths: Collection[str] | None,
) -> PlannedMerge:
    """Compare snapshots of all sides, and write the result into a layer."""
    inside = into._now()
    workspace = changes.workspace_of(inside)
    chosen = Selection(_chosen(into, paths))
    bases = [_base(into, fork) for fork in forks]
    points = [_frozen(fork) for fork in forks]
    plan = PlannedMerge(_frozen(into), [*points, *bases])
    before = plan.before.tree
    pairs = [(1 + 2 * index, 2 + 2 * index) for index in range(len(forks))]
    sides = [plan.before, *(each for pair in zip(bases, points, strict=True) for each in pair)]
    at = workspace.mounted_at.rstrip("/")

    def resolve(path: str, index: int, clash: Clash) -> Version | Clash | None:
        told = _conflict(at, path, index, clash, plan)
        answer = interruptible(partial(on_conflict, told)) if callable(on_conflict) else on_conflict
        return _resolved(clash, answer)

    try:
        with OpenSides([_view(each.tree) for each in sides]) as opened:
            work = ThreeWay(opened, pairs, resolve, chosen)
            outcomes = work.run()
            conflicts = tuple(_conflict(at, *each, plan) for each in work.conflicts)
            left_out = tuple(f"{at}/{path}" for path in work.left_out)
            plan.merge = Merge(conflicts=conflicts, left_out=left_out)
            if conflicts:
                return plan
            plan.layer, plan._open = before.store.layer(like=before.bases[0]).hold(), True
            write_layer(opened, outcomes, plan.layer.upper, None if before.is_copy else _owner())
            plan.paths = frozenset(outcomes)
    except OSError as error:
        raise no_room(error, before.store.path) from error
    found = _view(before)
    view = LayerView((plan.layer.upper,), (*found.layers, *found.bases))
    plan.merge = plan.merge.replace(changes=tuple(diff(view, at=at)))
    kept = LayerSnapshot(before.store, (), (plan.layer,))
    merged = Snapshot("", "swap", {WORKSPACE_PATH: kept}, Baseline(), {})
    for each in plan.merge.changes:
        each._set("_held", (plan.before, merged))  # for text_diff
    return plan


def _frozen(sandbox: ForkableSandbox) -> Snapshot:
    """Return a snapshot that its list of snapshots does not have."""
    return changes.at_rest(sandbox._now(), partial(take, label="", listed=False))


def _owner() -> tuple[int, int] | None:
    from ..forkserver.client import mounter

    return mounter()


def _chosen(into: ForkableSandbox, paths: Collection[str] | None) -> list[str] | None:
    if paths is None:
        return None
    found = changes.at_rest(
        into._now(), lambda workspace, sessions: changes._by_tree(workspace, paths, sessions) or {}
    )
    if found.keys() - {WORKSPACE_PATH}:
        raise InvalidCall(
            "only files of the workspace can be merged",
            why=f"paths has {sorted(found.keys() - {WORKSPACE_PATH})[0]!r}",
            fix="name paths in the workspace",
        )
    return found.get(WORKSPACE_PATH, [])


def _base(into: ForkableSandbox, fork: ForkableSandbox) -> Snapshot:
    """Return the files from which both sandboxes continued."""
    if not hasattr(fork, "_now") or fork is into:
        raise InvalidCall(
            f"{fork!r} cannot be merged",
            why="it is the sandbox itself" if fork is into else "it is no sandbox",
            fix="pass forks: a, b = sb.fork(2); sb.merge(a, b)",
        )
    tree = common_point(changes.workspace_of(into._now()), changes.workspace_of(fork._now()))
    if tree is None:
        raise InvalidCall(
            f"{fork!r} cannot be merged",
            why="no fork() connects it with this sandbox, so there is no common snapshot",
            fix="merge forks of this sandbox, or of a sandbox that it is a fork of",
        )
    return Snapshot("", "swap", {WORKSPACE_PATH: tree.again()}, Baseline(), {})


def _view(tree: LayerSnapshot) -> LayerView:
    """Return the whole files of a tree, as one side."""
    return LayerView((tree.layers[0].upper,), (), plain=True) if tree.is_copy else tree.view()


def _conflict(at: str, path: str, index: int, clash: Clash, plan: PlannedMerge) -> MergeConflict:
    made = MergeConflict(f"{at}/{path}", clash.kind, clash.why, index)
    made._set("_clash", clash)
    made._set("_held", (plan.before, plan._others))  # its contents are in their layers
    return made


def _resolved(clash: Clash, answer: object) -> Version | Clash | None:
    if isinstance(answer, bytes) and (there := clash.ours or clash.theirs or clash.base) is not None:
        return there.having(text=answer)
    if answer == "ours":
        return clash.choice("ours")
    if answer == "theirs":
        return clash.choice("theirs")
    if answer != "refuse":
        raise InvalidCall(
            f"on_conflict returned {answer!r}",
            why="there is no such answer",
            fix='return bytes, "ours", "theirs" or "refuse"',
        )
    return clash


def _tested(into: ForkableSandbox, plan: PlannedMerge, test: Test) -> Result | bool:
    """Run the test in a fork that has the merge."""

    def opened() -> ForkableSandbox:
        workspace = changes.workspace_of(into._now())
        tree = workspace.on_top(plan.before.tree, plan.layer, plan.paths)
        point = plan.before.having(tree)
        tree.close()
        try:
            return type(into)._continued(into._settings.replace(history=False), point)
        finally:
            point.close()

    with unmistaken(lambda: owned(opened)) as trial:
        return run_test(trial, test)


def _write(into: ForkableSandbox, plan: PlannedMerge) -> None:
    """Mount the layer in the sandbox. Its shells and processes continue."""
    inside, history_of = into._now(), into._history

    def written(workspace: SandboxWorkspace, sessions: list[Session]) -> None:
        now = take(workspace, sessions, "", listed=False)
        try:
            _check_unchanged(plan, now)
            tree = workspace.on_top(now.tree, plan.layer, plan.paths)
            try:
                following = workspace.continuing(tree)
            finally:
                tree.close()
        finally:
            now.close()
        change(workspace, following, partial(come_back, sessions, at_once=True))
        history(workspace).add(plan.before)

    work = partial(changes.at_rest, inside, written, exchanges=True)
    if history_of is None:
        work()
    else:
        history_of.around("merge", "", work)
    inside.record("merged", changes=[f"{each.kind} {each.path}" for each in plan.merge.changes])


def _check_unchanged(plan: PlannedMerge, now: Snapshot) -> None:
    """Raise LayerError if a program has changed merged paths since the merge began."""
    if now.tree.layers == plan.before.tree.layers and not now.tree.is_copy:
        return
    with OpenSides([_view(plan.before.tree), _view(plan.before.tree), _view(now.tree)]) as opened:
        work = ThreeWay(opened, [(1, 2)], lambda *_: None, Selection(None))
        changed = work.run()
    above = {path[:at] for path in plan.paths for at in range(len(path)) if path[at] == "/"}
    for path in changed:
        parents = {path[:at] for at in range(len(path)) if path[at] == "/"}
        if path in plan.paths or path in above or parents & plan.paths:
            raise LayerError(
                f"the sandbox changed {path!r} while it was merged",
                why="a command, or a program in the background, wrote to it",
                fix="merge again, while nothing writes there",
            )


# ---------------------------------------------------------------- attempts in parallel


class ForkAttempt(Value):
    """One attempt of `best_of`. `passed` is whether its test did, `changes` is what it changed.

    `error` is the exception of the attempt or of its test. `test` is the result of the test. `left_out` is
    the reason why an attempt that passed is not in the merge; empty if it is.
    """

    index: int
    passed: bool
    changes: tuple[Change, ...] = ()
    error: BaseException | None = None
    test: Result | bool | None = None
    left_out: str = ""

    @property
    def output(self) -> str:
        """The output of the test command; empty if there was none."""
        return "" if self.test is None or isinstance(self.test, bool) else self.test.text()


class BestOf(Value):
    """Result of `best_of`: every attempt in order, and the merge of those that passed."""

    attempts: tuple[ForkAttempt, ...]
    merge: Merge

    @property
    def merged(self) -> tuple[int, ...]:
        """The indices of the attempts in the merge."""
        return tuple(each.index for each in self.attempts if each.passed and not each.left_out)


def best_of(
    into: ForkableSandbox,
    n: int,
    attempt: Callable[[Any, int], object],
    test: Test,
    *,
    keep: Literal["all", "first"],
    progress: Callable[[ForkAttempt], object] | None,
) -> BestOf:
    """Run `n` attempts in forks, and merge those that pass; see `Sandbox.best_of`."""
    checked_best_of(attempt, test, keep)
    forks = into.fork(n)
    told: SimpleQueue[ForkAttempt] = SimpleQueue()
    threads: list[Thread] = []
    try:
        for index, fork in enumerate(forks):
            work = partial(
                _attempted, into, fork, ForkAttempt(index, passed=False), partial(attempt, fork, index), test
            )
            run = partial(copy_context().run, lambda work: told.put(work()), work)
            threads.append(start_thread(run, "staddle-attempt"))
        rows: list[ForkAttempt] = []
        while len(rows) < n:
            rows.append(told.get())
            if progress is not None:
                progress(rows[-1])
        rows.sort(key=lambda row: row.index)
        return chosen(into, forks, rows, test, keep)
    finally:
        unmistaken(lambda: uninterrupted(partial(_end, forks, threads)))


def checked_best_of(attempt: object, test: object, keep: object) -> None:
    """Raise InvalidCall unless these arguments are valid."""
    check.one_of("keep", keep, ("all", "first"))
    if not callable(attempt):
        raise InvalidCall(
            f"attempt is {attempt!r}",
            why="it is no function",
            fix="pass a function of a sandbox and an index",
        )
    if test is None:
        raise InvalidCall("test is None", why="it decides between the attempts", fix='pass test="make test"')
    checked_test(test)


def _end(forks: Sequence[ForkableSandbox], threads: Sequence[Thread]) -> None:
    """Close the forks, which ends the commands in them. An attempt that ignores that is not waited for."""
    for fork in forks:
        fork.close()
    for thread in threads:
        thread.join(_PATIENCE)


def _attempted(
    into: ForkableSandbox, fork: ForkableSandbox, row: ForkAttempt, attempt: Callable[[], object], test: Test
) -> ForkAttempt:
    try:
        attempt()
        row = row.replace(changes=changed_by(fork, into))
        answer = in_fork(fork, test)
        row = row.replace(passed=is_good(answer), test=answer)
    except BaseException as error:
        row = row.replace(error=error)
    return row


def changed_by(fork: ForkableSandbox, into: ForkableSandbox) -> tuple[Change, ...]:
    """Return the changes that merging this fork alone would make."""
    return merge(into, [fork], None, "theirs", None, write=False).changes


def in_fork(fork: ForkableSandbox, test: Test) -> Result | bool:
    """Run the test of an attempt in a fork of its own, so that files of the test are not merged."""
    with fork.fork()[0] as trial:
        return run_test(trial, test)


def chosen(
    into: ForkableSandbox,
    forks: Sequence[ForkableSandbox],
    rows: Sequence[ForkAttempt],
    test: Test,
    keep: Literal["all", "first"],
) -> BestOf:
    """Merge as many of the attempts that passed as go together, the earlier ones first."""
    found = list(rows)
    taken: list[int] = []
    for row in rows:
        if not row.passed:
            continue
        if keep == "first" and taken:
            found[row.index] = row.replace(left_out="an earlier attempt passed")
        elif conflicts := _try(into, forks, [*taken, row.index], None).conflicts:
            found[row.index] = row.replace(left_out=f"it conflicts with those before it: {conflicts[0]}")
        else:
            taken.append(row.index)
    merged = merge(into, [forks[index] for index in taken], test if taken else None, "refuse", None)
    if merged.ok or len(taken) < 2:
        return BestOf(tuple(found), merged)
    # They pass one by one, but not together: add one at a time.
    good = taken[:1]
    for index in taken[1:]:
        if _try(into, forks, [*good, index], test).ok:
            good.append(index)
        else:
            found[index] = found[index].replace(
                left_out="the test fails when it is merged with those before it"
            )
    return BestOf(tuple(found), merge(into, [forks[index] for index in good], test, "refuse", None))


def _try(
    into: ForkableSandbox, forks: Sequence[ForkableSandbox], indices: Sequence[int], test: Test | None
) -> Merge:
    return merge(into, [forks[index] for index in indices], test, "refuse", None, write=False)
