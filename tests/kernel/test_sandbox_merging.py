"""Forks are merged into a sandbox: all of it or nothing, tested, and with nothing left behind."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from staddle import AsyncSandbox, Policy, Sandbox, remove_kept
from staddle.errors import InvalidCall, LayerError, SandboxClosed
from staddle.layers.layer_writer import LayerWriter
from staddle.sandbox.merging import MergeConflict
from tests.support.waiting import until

pytestmark = pytest.mark.both_users

LINES = "".join(f"{number}\n" for number in range(1, 21))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    (directory / "dir").mkdir(parents=True)
    (directory / "f").write_text(LINES)
    (directory / "dir" / "x").write_text("x\n")
    (directory / "run").write_text("true\n")
    return directory


@pytest.fixture(params=["overlay", "copy"])
def sandbox(project: Path, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(project, mode=request.param) as made:
        yield made


@pytest.fixture
def layered(project: Path) -> Iterator[Sandbox]:
    with Sandbox(project) as made:
        yield made


def replace(sandbox: Sandbox, line: int, text: str) -> None:
    sandbox.run(f"sed -i 's/^{line}$/{text}/' f").check()


def files(sandbox: Sandbox) -> dict[str, str]:
    script = 'find . -type f -exec sh -c \'for f; do printf "%s\\0%s\\0" "$f" "$(cat "$f")"; done\' - {} +'
    words = sandbox.run(f"cd /workspace; {script}" if sandbox.run("test -d /workspace").ok else script).stdout
    found = words.split("\0")[:-1]
    return dict(zip(found[::2], found[1::2], strict=True))


def close(*forks: Sandbox) -> None:
    for fork in forks:
        fork.close()


def test_three_forks_are_merged_with_a_test(sandbox: Sandbox, project: Path) -> None:
    sandbox.run("echo mine > mine; mood=red")
    before = files(sandbox)
    a, b, c = sandbox.fork(3)
    replace(a, 3, "three")
    replace(b, 13, "thirteen")
    b.run("rm run; mkdir -p new/dir; echo n > new/dir/n; chmod 755 new/dir/n")
    c.run("mv dir/x dir/y; ln -s y dir/link")
    done = sandbox.merge(a, b, c, test="grep -q three f && grep -q thirteen f && touch made-by-the-test")

    assert (done.ok, done.written, done.conflicts) == (True, True, ())
    assert sandbox.run("sed -n '3p;13p' f; ls; cat new/dir/n; readlink dir/link; echo $mood").stdout == (
        "three\nthirteen\ndir\nf\nmine\nnew\nn\ny\nred\n"
    )
    assert sandbox.run("test -x new/dir/n -a ! -x f").ok
    names = {change.path.rpartition("/")[2] for change in done.changes}
    assert {"f", "run", "n", "y", "link"} <= names
    assert "three" in "".join(change.text_diff() for change in done.changes)
    assert (project / "f").read_text() == LINES
    assert a.run("sed -n 13p f").stdout == "13\n"  # forks stay as they are
    assert done.before is not None
    sandbox.restore(done.before)
    assert files(sandbox) == before
    close(a, b, c)


def test_a_merge_is_committed(layered: Sandbox, project: Path) -> None:
    a, b = layered.fork(2)
    replace(a, 3, "three")
    b.run("rm -r dir; echo n > n")
    layered.merge(a, b).check()
    layered.commit()
    assert (project / "f").read_text() == LINES.replace("3\n", "three\n", 1)
    assert sorted(os.listdir(project)) == ["f", "n", "run"]
    close(a, b)


def test_a_kept_sandbox_has_the_merge_when_it_is_opened_again(project: Path) -> None:
    name = f"merged-{os.getpid()}"
    try:
        with Sandbox(project, keep=name) as sandbox:
            a, b = sandbox.fork(2)
            replace(a, 3, "three")
            b.run("echo b > b")
            assert sandbox.merge(a, b, test="cat b").written
            close(a, b)
        with Sandbox(project, keep=name) as sandbox:
            assert sandbox.run("sed -n 3p f; cat b").stdout == "three\nb\n"
    finally:
        remove_kept(name)


@pytest.mark.parametrize("options", [{"freeze": False}, {"freeze": True}])
def test_forks_of_a_live_and_of_a_copied_directory_are_merged(layered: Sandbox, options: Any) -> None:
    (a,) = layered.fork(**options)
    replace(a, 3, "three")
    a.run("rm -r dir")
    assert layered.merge(a).written
    assert layered.run("sed -n 3p f; ls").stdout == "three\nf\nrun\n"
    a.discard()  # the fork is as on the host again: nothing is left to merge
    assert not layered.merge(a).written
    close(a)


def test_an_edit_on_the_host_is_a_change_of_the_sandbox(layered: Sandbox, project: Path) -> None:
    (a,) = layered.fork()
    (project / "run").write_text("edited\n")
    a.run("rm run")
    replace(a, 3, "three")
    (project / "f").write_text(LINES.replace("13\n", "host\n"))
    done = layered.merge(a)
    assert [(conflict.kind, conflict.path) for conflict in done.conflicts] == [("delete", "/workspace/run")]
    assert layered.merge(a, on_conflict="ours").written
    assert layered.run("cat run; sed -n '3p;13p' f").stdout == "edited\nthree\nhost\n"
    close(a)


def test_a_conflict_is_a_value_and_writes_nothing(sandbox: Sandbox) -> None:
    a, b = sandbox.fork(2)
    replace(a, 3, "three")
    replace(b, 3, "THREE")
    b.run("echo b > b")
    before = files(sandbox)
    done = sandbox.merge(a, b)

    assert (done.ok, done.written, done.before) == (False, False, None)
    (conflict,) = done.conflicts
    assert (conflict.kind, conflict.fork, conflict.path.rpartition("/")[2]) == ("content", 1, "f")
    assert conflict.base() == LINES.encode()
    assert b"three" in (conflict.ours() or b"")
    assert b"THREE" in (conflict.theirs() or b"")
    assert b"<<<<<<< ours\nthree\n||||||| base\n3\n=======\nTHREE\n" in (conflict.marked() or b"")
    assert files(sandbox) == before
    with pytest.raises(LayerError, match="not merged"):
        done.check()
    close(a, b)
    assert conflict.theirs()  # also when the fork is closed


def test_conflicts_are_resolved_by_the_caller(sandbox: Sandbox) -> None:
    a, b = sandbox.fork(2)
    replace(a, 3, "three")
    a.run("rm run; echo a > both")
    replace(b, 3, "THREE")
    replace(b, 13, "THIRTEEN")
    b.run("echo more >> run; echo b > both")
    seen: list[str] = []

    def resolve(conflict: MergeConflict) -> Any:
        name = conflict.path.rpartition("/")[2]
        seen.append(name)
        return {"f": "ours", "run": "theirs", "both": b"resolved\n"}[name]

    assert sandbox.merge(a, b, on_conflict=resolve).written
    assert sorted(seen) == ["both", "f", "run"]
    found = files(sandbox)
    assert found["./both"] == "resolved"
    assert found["./run"] == "true\nmore"
    assert found["./f"].split("\n")[2::10] == ["three", "THIRTEEN"]
    close(a, b)


@pytest.mark.parametrize("answer", [None, "mine", 3])
def test_an_unknown_answer_is_refused(layered: Sandbox, answer: Any) -> None:
    a, b = layered.fork(2)
    replace(a, 3, "three")
    replace(b, 3, "THREE")
    with pytest.raises(InvalidCall, match="on_conflict"):
        layered.merge(a, b, on_conflict=lambda conflict: answer)
    close(a, b)


def test_a_failing_test_prevents_the_merge(sandbox: Sandbox) -> None:
    (a,) = sandbox.fork()
    a.run("echo broken > broken")
    before = files(sandbox)
    done = sandbox.merge(a, test="echo told; exit 3")

    assert (done.ok, done.written) == (False, False)
    assert done.test.exit_code == 3  # type: ignore[union-attr]
    with pytest.raises(LayerError, match="told"):
        done.check()
    assert files(sandbox) == before
    done = sandbox.merge(a, test=lambda trial: trial.files.exists("broken"))
    assert done.written
    close(a)


def test_a_test_that_returns_nothing_or_raises_writes_nothing(layered: Sandbox) -> None:
    (a,) = layered.fork()
    a.run("echo a > a")
    with pytest.raises(InvalidCall, match="None"):
        layered.merge(a, test=lambda trial: None)
    with pytest.raises(ZeroDivisionError):
        layered.merge(a, test=lambda trial: 1 / 0)
    assert not layered.files.exists("a")
    close(a)


def test_a_fork_of_a_fork_brings_both(sandbox: Sandbox) -> None:
    (a,) = sandbox.fork()
    a.run("echo a > a")
    (b,) = a.fork()
    b.run("echo b > b")
    replace(b, 3, "three")
    assert sandbox.merge(b).written
    assert sandbox.run("cat a b; sed -n 3p f").stdout == "a\nb\nthree\n"
    close(a, b)


def test_siblings_and_the_parent_are_merged(layered: Sandbox) -> None:
    (a,) = layered.fork()
    layered.run("echo s > s")
    (b,) = layered.fork()
    a.run("echo a > a")
    b.run("echo b > b")
    assert a.merge(b).written  # from the older of the two points
    assert a.run("cat a b s").stdout == "a\nb\ns\n"
    layered.run("echo later > later")
    assert b.merge(layered).written
    assert b.run("cat b later").stdout == "b\nlater\n"
    close(a, b)


def test_the_sandbox_changed_meanwhile(sandbox: Sandbox) -> None:
    (a,) = sandbox.fork()
    replace(a, 3, "three")
    replace(sandbox, 13, "thirteen")
    sandbox.run("echo s > s; rm run")
    assert sandbox.merge(a).written
    assert sandbox.run("sed -n '3p;13p' f; cat s; ls run").stdout == "three\nthirteen\ns\n"
    close(a)


def test_a_second_merge_of_the_same_changes_nothing(sandbox: Sandbox) -> None:
    (a,) = sandbox.fork()
    replace(a, 3, "three")
    assert sandbox.merge(a).written
    again = sandbox.merge(a)
    assert (again.ok, again.written, again.changes) == (True, False, ())
    close(a)


def test_a_fork_with_a_running_program_is_merged(layered: Sandbox) -> None:
    (a,) = layered.fork()
    process = a.start("echo job > job; exec sleep 60")
    while not a.files.exists("job"):
        time.sleep(0.01)
    assert layered.merge(a).written
    assert layered.run("cat job").stdout == "job\n"
    assert process.poll() is None
    close(a)


def test_programs_of_the_sandbox_continue(layered: Sandbox) -> None:
    (a,) = layered.fork()
    a.run("echo a > a")
    process = layered.start("while :; do date >> log; sleep 0.01; done")
    assert layered.merge(a).written
    assert layered.run("cat a").stdout == "a\n"
    assert process.poll() is None
    process.kill()
    close(a)


def test_a_change_while_the_test_runs_is_not_lost(layered: Sandbox) -> None:
    (a,) = layered.fork()
    replace(a, 3, "three")

    def test(trial: Sandbox) -> bool:
        layered.run("echo late > late")
        return True

    assert layered.merge(a, test=test).written
    assert layered.run("cat late; sed -n 3p f").stdout == "late\nthree\n"
    replace(a, 13, "thirteen")

    def clashes(trial: Sandbox) -> bool:
        layered.run("echo late >> f")
        return True

    with pytest.raises(LayerError, match="while it was merged"):
        layered.merge(a, test=clashes)
    assert layered.run("sed -n 13p f").stdout == "13\n"
    close(a)


def test_only_forks_are_merged(layered: Sandbox, project: Path) -> None:
    with Sandbox(project) as other, pytest.raises(InvalidCall, match="cannot be merged"):
        layered.merge(other)
    with pytest.raises(InvalidCall, match="itself"):
        layered.merge(layered)
    with pytest.raises(InvalidCall):
        layered.merge("a")  # type: ignore[arg-type]
    (a,) = layered.fork()
    with pytest.raises(InvalidCall, match="on_conflict"):
        layered.merge(a, on_conflict="mine")  # type: ignore[arg-type]
    with pytest.raises(InvalidCall):
        layered.merge(a, test="")
    with pytest.raises(InvalidCall, match="workspace"):
        layered.merge(a, paths=["/tmp/x"])
    a.close()
    with pytest.raises(SandboxClosed):
        layered.merge(a)
    with Sandbox(project, mode="readonly") as plain, pytest.raises(LayerError):
        plain.merge(a)


def test_hostile_files_of_a_fork_are_merged_as_files(layered: Sandbox) -> None:
    (a,) = layered.fork()
    a.run(
        "ln -s /etc/passwd link; ln -s / root; mkfifo pipe; chmod 000 run; chmod 4777 f; "
        "mkdir closed; echo c > closed/c; chmod 000 closed; rm -r dir; ln -s /etc dir; "
        "printf x > \"$(printf 'odd\\n\\377')\"; truncate -s 5G sparse; python3 -c 'import os\n"
        'for n in range(300): os.mkdir("d" * 50); os.chdir("d" * 50)\''
    )
    done = layered.merge(a)

    assert done.written
    assert [path.rpartition("/")[2] for path in done.left_out] == ["pipe"]
    assert layered.run("readlink link root dir; stat -c %a run f closed; stat -c %s sparse").stdout == (
        "/etc/passwd\n/\n/etc\n0\n777\n0\n5368709120\n"
    )
    assert layered.run("chmod 755 closed; cat closed/c; cat odd*").stdout == "c\nx"
    layered.run("rm -rf ./*")
    close(a)


def test_a_full_disk_writes_nothing(project: Path) -> None:
    policy = Policy.agent().with_limits(disk="40M")
    with Sandbox(project, policy=policy) as sandbox:
        (a,) = sandbox.fork()
        a.run("head -c 30M /dev/urandom > big; echo a > a").check()
        sandbox.run("head -c 30M /dev/urandom > mine")
        try:
            done = sandbox.merge(a)
        except LayerError:
            done = None
        there = {change.path for change in sandbox.diff()}  # a command would be ended by the limit
        written = {f"/workspace/{name}" in there for name in ("a", "big")}
        assert written == {bool(done and done.written)}
        close(a)


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("mode", ["overlay", "copy"])
def test_a_full_file_system_writes_nothing(
    project: Path, mode: Any, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Sandbox(project, mode=mode) as sandbox:
        (a,) = sandbox.fork()
        a.run("for n in 1 2 3 4; do echo $n > n$n; done; rm run")
        before, real, calls = files(sandbox), LayerWriter.copy, count()

        def full(self: LayerWriter, *arguments: Any, **options: Any) -> None:
            if next(calls) == step:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(self, *arguments, **options)

        with monkeypatch.context() as patched:
            patched.setattr(LayerWriter, "copy", full)
            with pytest.raises(LayerError):
                sandbox.merge(a)
        assert files(sandbox) == before
        assert sandbox.merge(a).written
        close(a)


class Stop(Exception):
    pass


# Python drops what a handler raises while an object is deleted, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("test", [None, "test -e b"])
@pytest.mark.parametrize("mode", ["overlay", "copy"])
def test_interrupted_at_any_moment_it_writes_all_or_nothing(project: Path, mode: Any, test: Any) -> None:
    def stop(*_: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with Sandbox(project, mode=mode) as sandbox:
            store = sandbox._now().workspace.stack.store.path  # type: ignore[union-attr]
            layers, descriptors = len(os.listdir(store)), len(os.listdir("/proc/self/fd"))
            a, b = sandbox.fork(2)
            replace(a, 3, "three")
            b.run("echo b > b; rm run; mkdir -p d/e; echo e > d/e/f")
            start = sandbox.snapshot("start")
            for _ in range(25):
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.08))  # noqa: S311
                    sandbox.merge(a, b, test=test)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Stop:
                    pass
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                told = sandbox.run("sed -n 3p f; ls").stdout
                assert told in ("3\ndir\nf\nrun\n", "three\nb\nd\ndir\nf\n")
                sandbox.restore(start)
            gc.collect()
            if mode == "overlay" and test is None:
                # The sandbox's, the snapshot's and the forks', each with a home, and prewarmed ones.
                assert until(lambda: len(os.listdir(store)) < layers + 15), os.listdir(store)
            close(a, b)
            start.close()
            del start
    finally:
        signal.signal(signal.SIGALRM, before)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < descriptors + 50


# ---------------------------------------------------------------- attempts in parallel


def test_the_best_of_some_attempts_are_merged(sandbox: Sandbox) -> None:
    told: list[int] = []

    def attempt(fork: Sandbox, index: int) -> None:
        if index == 1:
            raise ValueError("no idea")
        fork.run(
            f"sed -i 's/^{3 if index == 4 else index * 3 + 3}$/new {index}/' f; echo {index} > made{index}"
        )
        if index == 2:
            fork.run("rm run")

    found = sandbox.best_of(
        5, attempt, "sh run && touch of-the-test", progress=lambda row: told.append(row.index)
    )

    assert sorted(told) == [0, 1, 2, 3, 4]
    assert [row.passed for row in found.attempts] == [True, False, False, True, True]
    assert isinstance(found.attempts[1].error, ValueError)
    assert "run" in found.attempts[2].output
    assert found.attempts[4].left_out.startswith("it conflicts")
    assert found.merged == (0, 3)
    assert sandbox.run("sed -n '3p;12p' f; ls").stdout == "new 0\nnew 3\ndir\nf\nmade0\nmade3\nrun\n"


def test_attempts_that_fail_together_are_left_out(layered: Sandbox) -> None:
    found = layered.best_of(3, lambda fork, index: fork.run(f"touch m{index}"), "test $(ls m* | wc -l) -le 2")
    assert found.merged == (0, 1)
    assert "fails" in found.attempts[2].left_out
    assert found.merge.written
    assert layered.run("ls m*").stdout == "m0\nm1\n"


def test_only_the_first_that_passes_is_merged_if_asked(layered: Sandbox) -> None:
    found = layered.best_of(
        3,
        lambda fork, index: fork.run(f"touch m{index}"),
        lambda fork: not fork.files.exists("m0"),
        keep="first",
    )
    assert found.merged == (1,)
    assert layered.run("ls m*").stdout == "m1\n"


def test_no_attempt_passes(layered: Sandbox) -> None:
    found = layered.best_of(2, lambda fork, index: None, "false")
    assert (found.merged, found.merge.written) == ((), False)


def test_an_interrupted_best_of_leaves_no_fork_open(layered: Sandbox) -> None:
    forks: list[Sandbox] = []

    def attempt(fork: Sandbox, index: int) -> None:
        forks.append(fork)
        fork.run("sleep 60")

    def stop(*_: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.7)
        with pytest.raises(Stop):
            layered.best_of(3, attempt, "true")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(forks) == 3
    assert not any(fork.alive for fork in forks)
    assert not [thread for thread in threading.enumerate() if thread.name == "staddle-attempt"]
    assert layered.run("echo on").stdout == "on\n"


def test_the_arguments_are_checked_before_anything_runs(layered: Sandbox) -> None:
    for arguments in ((2, None, "true"), (2, print, None), (2, print, ""), (0, print, "true")):
        with pytest.raises(InvalidCall):
            layered.best_of(*arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidCall):
        layered.best_of(2, print, "true", keep="last")  # type: ignore[arg-type]


def test_the_awaited_sandbox_merges_too(project: Path) -> None:
    async def work() -> None:
        async with AsyncSandbox(project, policy=Policy.agent().with_limits(timeout=60)) as sandbox:
            a, b = await sandbox.fork(2)
            await a.run("echo a > a")
            await b.run("echo b > b")

            async def good(trial: AsyncSandbox) -> bool:
                return (await trial.run("cat a b")).stdout == "a\nb\n"

            done = await sandbox.merge(a, b, test=good)
            assert done.written
            await a.close()
            await b.close()

            async def attempt(fork: AsyncSandbox, index: int) -> None:
                if index == 1:
                    raise ValueError
                await fork.run(f"echo {index} > m{index}")

            found = await sandbox.best_of(3, attempt, "ls a")
            assert found.merged == (0, 2)
            assert (await sandbox.run("ls m*")).stdout == "m0\nm2\n"

            async def slow(fork: AsyncSandbox, index: int) -> None:
                await fork.run("sleep 60")

            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(sandbox.best_of(2, slow, "true"), 0.7)
            assert (await sandbox.run("echo on")).stdout == "on\n"

    asyncio.run(work())


def test_a_limit_of_the_policy_holds_in_attempts(project: Path) -> None:
    policy = Policy.agent().with_limits(timeout=0.3)
    with Sandbox(project, policy=policy) as sandbox:
        found = sandbox.best_of(1, lambda fork, index: fork.run("echo x > x"), "sleep 60")
        assert not found.attempts[0].passed


def test_a_merge_is_a_point_of_the_history(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("one\ntwo\n")
    with Sandbox(tmp_path, history=True) as sb:
        [fork] = sb.fork()
        with fork:
            fork.run("sed -i s/one/1/ file")
            assert sb.merge(fork, test="grep -q 1 file").written
        assert [point.cause for point in sb.history()] == ["start", "merge"]
        sb.undo()
        assert sb.files.read("file") == "one\ntwo\n"
        sb.redo()
        assert sb.files.read("file") == "1\ntwo\n"
