"""Whatever is done in an overlay, the layers tell it all: against a plain picture of before and after."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from staddle.errors import CommitRefused
from staddle.layers import commit as commits
from staddle.layers import commit_dir, trash
from staddle.layers.archive import load, save
from staddle.layers.baseline import Baseline
from staddle.layers.change_watch import ChangeWatch
from staddle.layers.changes import diff
from staddle.layers.commit import commit
from staddle.layers.merge import copy_of
from staddle.layers.merged_view import LayerView
from staddle.layers.review import Conflict
from staddle.layers.stack import LayerSnapshot, Stack
from staddle.layers.store import Store, home_for
from tests.support.layers_overlay import MEMORY, Picture, fill, inside, naive_changes, picture

pytestmark = pytest.mark.usefixtures("state_elsewhere")

NAMES = ["a", "b", "c", "d e", "caf\udce9", "new\nline"]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
CONTENT = st.sampled_from([b"", b"one\n", b"two\n", b"three" * 1000, b"\0\1\2"])
MODES = st.sampled_from([0o644, 0o755, 0o600])

TREE = st.lists(
    st.one_of(
        st.tuples(PATHS, CONTENT),
        st.tuples(PATHS, st.none()),
        st.tuples(PATHS, st.sampled_from(["-> a", "-> ../b", "-> nowhere/there"])),
    ),
    max_size=8,
)
OPERATION = st.one_of(
    st.tuples(st.just("write"), PATHS, CONTENT),
    st.tuples(st.just("append"), PATHS, CONTENT),
    st.tuples(st.just("mkdir"), PATHS),
    st.tuples(st.just("remove"), PATHS),
    st.tuples(st.just("remove"), PATHS),
    st.tuples(st.just("rename"), PATHS, PATHS),
    st.tuples(st.just("symlink"), PATHS, st.sampled_from(["a", "../b", "c"])),
    st.tuples(st.just("link"), PATHS, PATHS),
    st.tuples(st.just("chmod"), PATHS, MODES),
    st.tuples(st.just("replace"), PATHS, CONTENT),
)
OPERATIONS = st.lists(OPERATION, max_size=10)
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def state_elsewhere() -> Iterator[None]:
    """Commits keep their records out of the user's home."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir=MEMORY) as state:
        patch.setenv("XDG_STATE_HOME", state)
        patch.setattr(commit_dir, "homes", lambda: iter([f"{state}/staddle/commits"]))
        yield
        trash.wait()
        assert os.listdir(state) == []


def do(operations: list[tuple]) -> Callable[[Path], None]:  # type: ignore[type-arg]
    def work(root: Path) -> None:
        for what, *args in operations:
            try:
                _do(root, what, *args)
            except (OSError, shutil.Error):
                pass  # a directory in the way, or nothing there: the same for every file system

    return work


def _do(root: Path, what: str, path: str, argument: object = None) -> None:
    place = root / path
    if not os.path.realpath(place.parent).startswith(os.path.realpath(root)):
        return  # through a link of the tree's own
    if what == "write":
        place.write_bytes(argument)
    elif what == "append":
        with place.open("ab") as file:
            file.write(argument)
    elif what == "mkdir":
        place.mkdir(parents=True)
    elif what == "remove":
        shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
    elif what == "rename":
        shutil.move(place, root / argument) if place.is_dir() else place.rename(root / argument)
    elif what == "symlink":
        place.symlink_to(argument)
    elif what == "link":
        os.link(place, root / argument, follow_symlinks=False)
    elif what == "chmod" and not place.is_symlink():
        place.chmod(argument | (0o700 if place.is_dir() else 0))
    elif what == "replace":
        temporary = root / "temporary"
        temporary.write_bytes(argument)
        temporary.rename(place)


class World:
    """A host directory and a stack over it, in a directory that goes away."""

    def __init__(self, tree: list[tuple]) -> None:  # type: ignore[type-arg]
        self.top = Path(tempfile.mkdtemp(prefix="layers", dir=MEMORY))
        self.host = self.top / "host"
        self.host.mkdir()
        for item in tree:
            try:
                fill(self.host, [item])
            except (OSError, shutil.Error):
                pass
        self.store = Store(home_for([os.fspath(self.host)]))
        self.stack = Stack.new(self.store, [os.fspath(self.host)])
        self.before = picture(self.host)

    def run(self, operations: list[tuple], stack: Stack | None = None) -> Picture:  # type: ignore[type-arg]
        return inside(stack or self.stack, do(operations), self.top / "mount")

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()
        trash.wait()
        shutil.rmtree(self.top)


def told(what: Stack | LayerView) -> set[tuple[str, str]]:
    """The change list with a rename told as what it is made of."""
    found = set()
    for change in diff(what.view() if isinstance(what, Stack) else what):
        if change.kind == "renamed":
            assert change.old_path
            found |= {("added", change.path), ("deleted", change.old_path)}
        else:
            found.add((change.kind, change.path))
    return found


@pytest.mark.slow
@FEW
@given(TREE, OPERATIONS)
def test_the_change_list_is_the_difference_of_what_was_and_what_is(tree: list, operations: list) -> None:  # type: ignore[type-arg]
    with World(tree) as world:
        after = world.run(operations)
        assert told(world.stack) == naive_changes(world.before, after)
        assert picture(world.host) == world.before


@pytest.mark.slow
@FEW
@given(TREE, OPERATIONS, OPERATIONS, OPERATIONS)
def test_frozen_layers_squashed_or_not_mean_the_same(
    tree: list,
    first: list,
    second: list,
    third: list,  # type: ignore[type-arg]
) -> None:
    with World(tree) as world:
        world.run(first)
        one = world.stack.freeze().stack()
        world.run(second, one)
        two = one.freeze().stack()
        after = world.run([], two)
        assert told(two) == naive_changes(world.before, after)
        copy = one.copy().stack()
        assert world.run([], copy) == after
        squashed = two.freeze().squashed().stack()
        assert len(squashed.frozen) == 1
        assert world.run([], squashed) == after
        assert told(squashed) == naive_changes(world.before, after)
        last = world.run(third, squashed)
        assert told(squashed) == naive_changes(world.before, last)
        assert world.run([], two) == after  # what is linked is never written


@pytest.mark.slow
@FEW
@given(TREE, OPERATIONS, OPERATIONS, st.sets(st.sampled_from(NAMES), min_size=1, max_size=3))
def test_what_is_dropped_is_as_it_was_and_the_rest_as_it_is(
    tree: list,
    first: list,
    second: list,
    dropped: set,  # type: ignore[type-arg]
) -> None:
    with World(tree) as world:
        world.run(first)
        stack = world.stack.freeze().stack()
        after = world.run(second, stack)
        rest = stack.without(dropped)
        seen = world.run([], rest)

        def is_dropped(path: str) -> bool:
            return path.partition("/")[0] in dropped

        expected = {path: what for path, what in after.items() if not is_dropped(path)}
        expected |= {path: what for path, what in world.before.items() if is_dropped(path)}
        assert seen == expected
        assert told(rest) == naive_changes(world.before, expected)


@pytest.mark.slow
@FEW
@given(TREE, OPERATIONS, OPERATIONS, st.booleans())
def test_a_commit_makes_the_host_what_was_seen_inside(
    tree: list,  # type: ignore[type-arg]
    first: list,  # type: ignore[type-arg]
    second: list,  # type: ignore[type-arg]
    on_overlay: bool,
) -> None:
    with World(tree) as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "is_overlay", lambda _: on_overlay)
        baseline = Baseline()
        world.run(first)
        stack = world.stack.freeze().stack()
        after = world.run(second, stack)
        expected = {(change.kind, change.path) for change in diff(stack.view())}
        done = commit(stack.view(), baseline=baseline, allow_protected=True)
        assert {(change.kind, change.path) for change in done.changes} == expected
        assert picture(world.host) == after
        assert diff(stack.view()) == []
        assert world.run([], stack) == after


@pytest.mark.slow
@FEW
@given(TREE, OPERATIONS, st.sets(st.sampled_from(NAMES), max_size=3))
def test_a_commit_of_some_paths_leaves_the_others(tree: list, operations: list, chosen: set) -> None:  # type: ignore[type-arg]
    with World(tree) as world:
        after = world.run(operations)
        changes = diff(world.stack.view())
        tops = {path.partition("/")[0] for one in changes for path in (one.path, one.old_path) if path}
        chosen &= tops
        done = commit(world.stack.view(), paths=chosen, allow_protected=True)
        taken = {path for one in done.changes for path in (one.path, one.old_path) if path}
        for one in changes:
            either = {path.partition("/")[0] for path in (one.path, one.old_path) if path} & chosen
            assert not either or one.path in taken
        expected = {
            path: what
            for path in world.before.keys() | after.keys()
            if (what := (after if path in taken else world.before).get(path))
        }
        assert picture(world.host) == expected


@pytest.mark.slow
@FEW
@given(TREE, OPERATIONS, OPERATIONS)
def test_a_file_that_both_sides_changed_is_a_conflict_and_nothing_is_written(
    tree: list,  # type: ignore[type-arg]
    operations: list,  # type: ignore[type-arg]
    meanwhile: list,  # type: ignore[type-arg]
) -> None:
    with World(tree) as world:
        baseline = Baseline()
        world.run(operations)
        time.sleep(0.011)  # one tick of the clock that stamps files, at the slowest
        do(meanwhile)(world.host)
        now = picture(world.host)
        # What the host has, and the sandbox would replace or delete, must not have changed.
        lost = {
            change.old_path or change.path for change in diff(world.stack.view()) if change.old_type == "file"
        }
        changed = {path for _, path in naive_changes(world.before, now)} & lost
        refused: tuple[Conflict, ...] = ()
        try:
            commit(world.stack.view(), baseline=baseline, allow_protected=True)
        except CommitRefused as error:
            refused = error.conflicts
        assert changed <= {conflict.path for conflict in refused}
        assert not refused or picture(world.host) == now


@pytest.mark.slow
@FEW
@given(TREE, OPERATIONS, OPERATIONS)
def test_what_is_saved_and_loaded_is_the_same(tree: list, first: list, second: list) -> None:  # type: ignore[type-arg]
    with World(tree) as world:
        world.run(first)
        stack = world.stack.freeze().stack()
        after = world.run(second, stack)
        path = str(world.top / "saved")
        save({"workspace": stack.freeze()}, path)
        layers, _ = load(path, world.store)
        loaded = LayerSnapshot(world.store, stack.bases, [layers["workspace"]]).stack()
        assert world.run([], loaded) == after
        assert told(loaded) == told(stack)


@FEW
@given(TREE, OPERATIONS)
def test_a_copy_without_overlayfs_tells_and_commits_the_same(tree: list, operations: list) -> None:  # type: ignore[type-arg]
    with World(tree) as world:
        copy = world.top / "copy"
        copy.mkdir()
        copy_of(str(world.host), str(copy))
        assert picture(copy) == world.before
        do(operations)(copy)
        after = picture(copy)
        view = LayerView((str(copy),), (str(world.host),), plain=True)
        expected = naive_changes(world.before, after)
        assert told(view) == expected
        commit(view, allow_protected=True)
        assert picture(world.host) == after


@pytest.mark.slow
@FEW
@given(TREE, OPERATIONS, OPERATIONS, OPERATIONS)
def test_two_looks_tell_what_one_command_did(tree: list, first: list, second: list, third: list) -> None:  # type: ignore[type-arg]
    with World(tree) as world:
        watch = ChangeWatch(world.stack.view())
        before = world.before
        rewritten: set[str] = set()
        for operations in (first, second, third):
            after = world.run(operations)
            seen = {(change.kind, change.path) for change in watch.look() or ()}
            exact = naive_changes(before, after)
            assert exact <= seen
            assert all(kind == "modified" and path in rewritten for kind, path in seen - exact)
            rewritten |= {path for _, path in exact} | {
                path for path, what in after.items() if what[0] == "file"
            }
            before = after
        assert watch.look() == ()
