"""The history of a sandbox: points, steps between them, looks back, bisect and blame."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from staddle import AsyncSandbox, Policy, Result, Sandbox
from staddle.errors import InvalidCall, LayerError
from staddle.observe.audit import KINDS, AuditLine, read
from staddle.sandbox.history import bisect, blame, point, recorder
from staddle.sandbox.workspace.persistent import PersistentWorkspace
from tests.support.in_a_child import ROOT, python
from tests.support.waiting import until

pytestmark = pytest.mark.both_users


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "a project, with: odd\nname"
    (directory / "sub").mkdir(parents=True)
    (directory / "file").write_text("of the host\n")
    return directory


@pytest.fixture
def sandbox(project: Path) -> Iterator[Sandbox]:
    with Sandbox(project, history=True) as made:
        yield made


def told(sandbox: Sandbox) -> list[tuple[str, str]]:
    return [(each.cause, each.command) for each in sandbox.history()]


# ---------------------------------------------------------------- points


def test_a_point_follows_each_command_that_changed_files_and_no_other(sandbox: Sandbox) -> None:
    before = time.time()
    sandbox.run("echo 1 > new; exit 3")
    sandbox.run("cat file; x=1; cd sub")
    sandbox.exec(["rm", "/workspace/file"])
    for _ in sandbox.stream("echo 2 > /tmp/elsewhere"):
        pass
    sandbox.session("dev").run("mkdir dir")
    points = sandbox.history()
    assert [each.command for each in points] == [
        "",
        "echo 1 > new; exit 3",
        "rm /workspace/file",
        "echo 2 > /tmp/elsewhere",
        "mkdir dir",
    ]
    assert [each.number for each in points] == [0, 1, 2, 3, 4]
    assert [each.exit_code for each in points] == [None, 3, 0, 0, 0]
    changed = [str(change) for each in points for change in each.changes or ()]
    assert changed == [
        "added /workspace/new",
        "deleted /workspace/file",
        "added /tmp/elsewhere",
        "added /workspace/dir",
    ]
    assert all(before - 1 < each.time < time.time() + 1 for each in points)
    assert sandbox.history() == points
    assert sandbox.snapshots() == []


def test_writes_of_the_file_tools_between_two_commands_are_one_point(sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/a", "1")
    sandbox.files.mkdir("/workspace/d")
    sandbox.run("true")
    sandbox.files.remove("/workspace/a")
    assert [each.cause for each in sandbox.history()] == ["start", "files", "files"]
    assert len(sandbox.undo().points) == 1
    assert sandbox.files.exists("/workspace/a")


def test_a_cell_of_the_interpreter_has_a_point(sandbox: Sandbox) -> None:
    sandbox.python("open('cell', 'w').write('1')")
    sandbox.python("1 / 0")
    found = sandbox.history()[-1]
    assert (found.cause, found.exit_code) == ("command", 0)
    assert found.command == "open('cell', 'w').write('1')"
    sandbox.undo()
    assert not sandbox.files.exists("/workspace/cell")


def test_without_a_history_there_is_no_point_and_an_error_that_says_so(project: Path) -> None:
    with Sandbox(project) as sb:
        sb.run("echo 1 > new")
        for call in (sb.history, sb.undo, sb.redo, lambda: sb.at(0), lambda: sb.bisect("true")):
            with pytest.raises(InvalidCall, match="history=True"):
                call()


@pytest.mark.parametrize("mode", ["bind", "readonly", "copy"])
def test_a_mode_without_layers_is_refused(project: Path, mode: str) -> None:
    with pytest.raises(InvalidCall, match="layers"):
        Sandbox(project, mode=mode, history=True)  # type: ignore[arg-type]


def test_a_backend_without_layers_is_refused(project: Path) -> None:
    with pytest.raises(LayerError, match="namespaces"):
        Sandbox(project, backend="native", best_effort=True, history=True)


def test_a_long_command_is_cut_and_many_changes_are_counted(sandbox: Sandbox) -> None:
    sandbox.run("touch {1..150} #" + "x" * 50_000)
    (_, found) = sandbox.history()
    assert len(found.command) == point.MOST_LETTERS
    assert found.changed == 150
    assert len(found.changes or ()) == point.MOST_CHANGES
    sandbox.run("touch more{1..1500}")
    found = sandbox.history()[-1]
    assert found.changed is None
    assert found.changes is None
    assert len(found.diff(sandbox.history()[-2])) == 1500


def test_secrets_and_bytes_that_are_not_text(project: Path) -> None:
    policy = Policy.agent().with_env(API_TOKEN="s3cr3t-value-of-a-token")
    with Sandbox(project, policy, history=True) as sb:
        sb.run("echo s3cr3t-value-of-a-token > kept")
        sb.run("touch $'caf\\xe9'")
        (_, kept, odd) = sb.history()
        assert "s3cr3t" not in kept.command
        assert "s3cr3t" not in repr(kept)
        assert (odd.changes or ())[0].path == "/workspace/caf\udce9"
        with sb.at(odd) as past:
            assert past.exists("/workspace/caf\udce9")


# ---------------------------------------------------------------- steps


def test_undo_and_redo_restore_files_and_shells(sandbox: Sandbox) -> None:
    sandbox.run("x=1; echo 1 > a")
    sandbox.run("x=2; echo 2 > a; rm file")
    step = sandbox.undo()
    assert [each.command for each in step.points] == ["x=2; echo 2 > a; rm file"]
    assert step.point.command == "x=1; echo 1 > a"
    assert sandbox.run("echo $x; cat a file").stdout == "1\n1\nof the host\n"
    assert sandbox.redo().point.number == 2
    assert sandbox.run("echo $x; cat a; test -e file").stdout == "2\n2\n"
    with pytest.raises(InvalidCall, match="nothing is undone"):
        sandbox.redo()
    sandbox.undo(2)
    assert sandbox.run("ls").stdout == "file\nsub\n"
    with pytest.raises(InvalidCall, match="nothing was changed"):
        sandbox.undo()


def test_a_change_after_an_undo_drops_the_branch_and_a_look_does_not(sandbox: Sandbox) -> None:
    sandbox.run("echo 1 > a")
    sandbox.undo()
    sandbox.run("ls")
    sandbox.redo()
    sandbox.undo()
    sandbox.run("echo 2 > b")
    with pytest.raises(InvalidCall):
        sandbox.redo()
    assert told(sandbox) == [("start", ""), ("command", "echo 2 > b")]


def test_an_undo_loses_nothing_that_a_background_program_wrote(sandbox: Sandbox) -> None:
    process = sandbox.start("echo 1 > late; sleep 60")
    until(lambda: sandbox.files.exists("/workspace/late"))
    step = sandbox.undo()
    assert [each.cause for each in step.points] == ["background"]
    assert [each.command for each in step.ended]
    assert process.wait(10) != 0
    assert not sandbox.files.exists("/workspace/late")
    sandbox.redo()
    assert sandbox.files.exists("/workspace/late")


def test_an_undo_while_a_program_writes(sandbox: Sandbox) -> None:
    sandbox.run("echo before > kept")
    sandbox.start("while :; do date +%N > busy; done")
    for number in range(5):
        sandbox.run(f"echo {number} > step")
    until(lambda: len(sandbox.history()) > 2)
    while len(sandbox.history()) > 2:
        sandbox.undo()
    assert sandbox.run("cat kept; ls").stdout == "before\nfile\nkept\nsub\n"


def test_points_beside_a_background_program_are_points_of_their_moment(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_SHARE", 0)
    sandbox.start("sleep 100")
    sandbox.run("echo 1 > a")
    sandbox.run("echo 2 > a")
    assert [each.snapshot.method for each in sandbox.history()] == ["swap", "copy", "copy"]
    sandbox.undo()
    assert sandbox.run("cat a").stdout == "1\n"
    sandbox.redo()
    assert sandbox.run("cat a").stdout == "2\n"


def test_commands_at_one_time_become_one_point(sandbox: Sandbox) -> None:
    dev = sandbox.session("dev")
    begun = threading.Thread(target=dev.run, args=("echo 1 > one; until test -e go; do sleep 0.01; done",))
    begun.start()
    until(lambda: sandbox.files.exists("/workspace/one"))
    sandbox.run("echo 2 > two")  # does not wait for the other
    sandbox.run("touch go")
    begun.join()
    assert [each.cause for each in sandbox.history()] == ["start", "command"]
    sandbox.undo()
    assert sandbox.run("ls").stdout == "file\nsub\n"


def test_two_threads_undo_and_run_at_one_time(sandbox: Sandbox) -> None:
    for number in range(10):
        sandbox.run(f"echo {number} > f{number}")
    failures: list[BaseException] = []

    def work(call: object) -> None:
        try:
            for number in range(5):
                call(number)  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)

    dev = sandbox.session("dev")
    threads = [
        threading.Thread(target=work, args=(call,))
        for call in (
            lambda _: sandbox.undo(),
            lambda _: sandbox.undo(),
            lambda n: dev.run(f"echo {n} > dev{n}", check=True),
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    points = sandbox.history()
    for each in reversed(points[:-1]):  # every point that is listed can be gone back to
        assert sandbox.undo().point is each
        assert not sandbox.diff() if each.number == 0 else sandbox.diff()


def test_a_command_that_ends_the_shell_or_is_killed_has_its_point(sandbox: Sandbox) -> None:
    sandbox.run("echo 1 > a; exit")
    assert sandbox.run("echo 2 > b; sleep 100", timeout=0.3).timed_out
    assert [each.command for each in sandbox.history()][1:] == ["echo 1 > a; exit", "echo 2 > b; sleep 100"]
    sandbox.undo(2)
    assert sandbox.run("ls").stdout == "file\nsub\n"


# ---------------------------------------------------------------- beside the other calls


def test_a_merge_is_a_point_with_its_changes(sandbox: Sandbox) -> None:
    a, b = sandbox.fork(2)
    a.files.write("/workspace/a", "1\n")
    b.run("rm /workspace/file")
    merge = sandbox.merge(a, b)
    point = sandbox.history()[-1]
    assert (point.cause, point.changes) == ("merge", merge.changes)
    assert "(merge)" in str(sandbox.blame("/workspace/a")[0])


def test_restore_and_discard_can_be_undone(sandbox: Sandbox) -> None:
    sandbox.run("echo 1 > a")
    sandbox.snapshot("one")
    sandbox.run("echo 2 > a")
    sandbox.restore("one")
    sandbox.discard()
    points = sandbox.history()
    assert [each.cause for each in points] == ["start", "command", "command", "restore", "discard"]
    for before, after in pairwise(points):
        assert after.changes == tuple(after.diff(before)) != ()
    sandbox.undo()
    assert sandbox.files.read("/workspace/a") == "1\n"
    sandbox.undo()
    assert sandbox.files.read("/workspace/a") == "2\n"


def test_an_undo_does_not_go_back_over_a_commit(sandbox: Sandbox, project: Path) -> None:
    sandbox.run("echo 1 > a")
    sandbox.commit()
    assert told(sandbox) == [("commit", "")]
    with pytest.raises(InvalidCall, match="commit"):
        sandbox.undo()
    sandbox.run("echo 2 > a")
    sandbox.undo()
    assert sandbox.files.read("/workspace/a") == "1\n" == (project / "a").read_text()


def test_a_frozen_workspace_has_points_before_a_commit(project: Path) -> None:
    with Sandbox(project, freeze=True, history=True) as sb:
        sb.run("echo 1 > a")
        sb.commit()
        sb.undo()
        assert not sb.files.exists("/workspace/a")
        assert (project / "a").exists()


def test_a_reset_begins_anew_and_a_fork_has_its_own(sandbox: Sandbox) -> None:
    sandbox.run("echo 1 > a")
    (fork,) = sandbox.fork()
    with fork:
        assert len(fork.history()) == 1
        fork.run("echo 2 > a")
        fork.undo()
        assert fork.files.read("/workspace/a") == "1\n"
    sandbox.reset()
    assert told(sandbox) == [("start", "")]
    sandbox.run("echo 3 > a")
    sandbox.undo()
    assert not sandbox.files.exists("/workspace/a")


def test_a_paused_sandbox_takes_its_point_after_it(sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/a", "1")
    sandbox.pause()
    sandbox.resume()
    sandbox.run("echo 2 > b")
    assert [each.cause for each in sandbox.history()] == ["start", "files", "command"]


def test_a_point_is_saved_and_loaded_as_any_snapshot(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.run("echo 1 > a")
    sandbox.history()[-1].snapshot.save(tmp_path / "saved")
    with Sandbox.from_snapshot(tmp_path / "saved", history=True) as other:
        assert other.run("cat a").stdout == "1\n"


# ---------------------------------------------------------------- looking back


def test_files_as_they_were_are_read_and_the_present_stays(sandbox: Sandbox) -> None:
    sandbox.run("echo 1 > a; mkdir d; echo x > d/x.py")
    sandbox.run("rm -r a d")
    with sandbox.at(1) as past:
        assert past.read("/workspace/a") == "1\n"
        assert past.read_bytes("a") == b"1\n"
        assert past.glob("**/*.py") == ["d/x.py"]
        assert past.exists("d")
        assert past.stat("a").size == 2
        assert [each.name for each in past.list("/workspace")] == ["a", "d", "file", "sub"]
        assert past.grep("1", "a")[0].line == 1
        assert not hasattr(past, "write")
    assert sandbox.run("ls").stdout == "file\nsub\n"
    with pytest.raises(InvalidCall, match="no point 77"):
        sandbox.at(77)


def test_denied_files_are_denied_in_the_past_too(project: Path) -> None:
    (project / "secret").write_text("x")
    policy = Policy.agent().with_deny(str(project / "secret"))
    with Sandbox(project, policy, history=True) as sb:
        sb.run("echo 1 > a")
        with sb.at(0) as past, pytest.raises((PermissionError, FileNotFoundError)):
            past.read("/workspace/secret")
        with pytest.raises((PermissionError, FileNotFoundError)):
            sb.blame("/workspace/secret")


def test_two_points_are_compared_in_both_directions_whatever_was_squashed(sandbox: Sandbox) -> None:
    for number in range(80):
        sandbox.run(f"echo {number} > counter; echo {number} > f{number}; rm -f f{number - 3}")
    points = sandbox.history()
    forth = {(each.kind, each.path) for each in points[70].diff(points[5])}
    back = {(each.kind, each.path) for each in points[5].diff(points[70])}
    turned = {"added": "deleted", "deleted": "added", "modified": "modified"}
    assert ("modified", "/workspace/counter") in forth
    assert len(forth) == 7
    assert {(turned[kind], path) for kind, path in forth} == back
    assert points[5].diff(points[5]) == []


def test_blame_names_the_command_of_each_line(sandbox: Sandbox) -> None:
    sandbox.run("echo two >> file")
    sandbox.run("echo elsewhere > other")
    sandbox.run("{ echo zero; cat file; echo three; } > new; mv new file")
    found = [(each.text, each.point.number) for each in sandbox.blame("file")]
    assert found == [("zero", 3), ("of the host", 0), ("two", 1), ("three", 3)]
    sandbox.undo(2)
    assert [each.point.number for each in sandbox.blame("/workspace/file")] == [0, 1]
    with pytest.raises(FileNotFoundError):
        sandbox.blame("nothing")
    sandbox.run("mkdir -p a/b/a; echo 1 > a/b/a/b; ln -s a/b/a/b link")
    assert [each.text for each in sandbox.blame("link")] == ["1"]


def test_blame_refuses_a_file_that_is_too_large(sandbox: Sandbox) -> None:
    sandbox.run(f"head -c {blame.MOST_BYTES + 1} /dev/zero > big")
    with pytest.raises(InvalidCall, match="too large"):
        sandbox.blame("big")


# ---------------------------------------------------------------- bisect


def test_bisect_finds_the_command_in_a_few_tests_and_changes_nothing(sandbox: Sandbox) -> None:
    for number in range(1, 41):
        sandbox.run(f"echo {number} > f{number}" + ("; echo bad > state" if number == 23 else ""))
    found = sandbox.bisect("echo looked > /workspace/trace; ! test -e state || { echo broken; exit 1; }")
    assert found.point.number == 23
    assert found.before.number == 22
    assert found.suspects == (found.point,)
    assert found.result is not None
    assert found.result.stdout == "broken\n"
    assert found.result.exit_code == 1
    assert found.tests <= 8
    assert "echo bad" in str(found)
    assert not sandbox.files.exists("/workspace/trace")
    assert len(sandbox.history()) == 41
    assert sandbox.bisect(["test", "!", "-e", "/workspace/state"]).point is found.point
    assert sandbox.bisect(lambda sb: not sb.files.exists("/workspace/state")).point is found.point
    assert sandbox.bisect(lambda sb: sb.run("test ! -e state"), good=10, bad=30).point is found.point


def test_bisect_skips_points_that_the_test_cannot_judge(sandbox: Sandbox) -> None:
    for number in range(1, 9):
        sandbox.run(f"echo {number} > n")
    found = sandbox.bisect("n=$(cat n || echo 0); case $n in 4|5) exit 125;; esac; test $n -lt 4")
    assert found.point.number == 6
    assert [each.number for each in found.suspects] == [4, 5, 6]
    assert [each.number for each in found.skipped] == [4, 5]


def test_bisect_repeats_a_test_that_fails_sometimes(sandbox: Sandbox) -> None:
    for number in range(1, 9):
        sandbox.run(f"echo {number} > n")
    calls = 0

    def flaky(sb: Sandbox) -> Result | bool:
        nonlocal calls
        calls += 1
        return int(sb.run("cat n || echo 0").stdout) < 5 or calls % 3 != 0

    assert sandbox.bisect(flaky, repeat=3).point.number == 5


def test_bisect_says_when_there_is_nothing_to_find(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidCall, match="nothing to bisect"):
        sandbox.bisect("true")
    sandbox.run("echo 1 > a")
    with pytest.raises(InvalidCall, match="does not fail at the newest"):
        sandbox.bisect("true")
    with pytest.raises(InvalidCall, match=r"does not pass at the oldest(.|\n)*exit code 1\)"):
        sandbox.bisect("false")
    with pytest.raises(InvalidCall, match="ended with 137"):
        sandbox.bisect("(kill -9 $BASHPID)")
    with pytest.raises(InvalidCall, match="no verdict"):
        sandbox.bisect(lambda _: "yes")
    with pytest.raises(InvalidCall, match="repeat"):
        sandbox.bisect("true", repeat=0)
    assert bisect.SKIP == 125


# ---------------------------------------------------------------- bounds


def test_old_points_are_thinned_and_the_rest_can_be_gone_back_to(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sandbox._history is not None
    monkeypatch.setattr(sandbox._history, "_most_points", 20)
    for number in range(1, 101):
        sandbox.run(f"echo {number} > n")
    points = sandbox.history()
    assert len(points) == 20
    assert [each.number for each in points[-10:]] == list(range(91, 101))  # every recent one
    assert points[0].number == 0
    assert sum(each.merged + 1 for each in points) == 101
    for each in reversed(points[1:-1]):
        sandbox.undo()
        assert sandbox.files.read("/workspace/n") == f"{each.number}\n"


def test_bytes_are_bounded(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sandbox._history is not None
    monkeypatch.setattr(sandbox._history, "_most_bytes", 8 << 20)
    for number in range(40):
        sandbox.run(f"head -c 1M /dev/urandom > big; echo {number} > n")
    points = sandbox.history()
    assert 2 <= len(points) <= 30
    assert points[-1].command.endswith("echo 39 > n")
    sandbox.undo()
    assert sandbox.files.read("/workspace/n") == "38\n"


@pytest.mark.slow
def test_a_history_does_not_fill_the_disk_limit(project: Path) -> None:
    policy = Policy.agent().with_limits(disk="100M")
    with Sandbox(project, policy, history=True) as sb:
        sb.run("head -c 40M /dev/urandom > live", check=True)
        for number in range(25):
            sb.run(f"head -c 10M /dev/urandom > over; echo {number} > n", check=True)
            time.sleep(0.1)  # in which the limit is looked at
        sb.undo()
        assert sb.run("cat n").stdout == "23\n"


@pytest.mark.slow
def test_a_thousand_points_are_flat(sandbox: Sandbox) -> None:
    def timed(first: int, last: int) -> float:
        took = []
        for number in range(first, last):
            begun = time.perf_counter()
            sandbox.run(f"echo {number} > n; echo {number} > f{number % 50}")
            took.append(time.perf_counter() - begun)
        return sorted(took)[len(took) // 2]

    early = timed(0, 100)
    timed(100, 900)
    late = timed(900, 1000)
    assert len(sandbox.history()) == recorder.MOST_POINTS
    assert late < 2.5 * early, (early, late)
    begun = time.perf_counter()
    sandbox.undo(990)
    assert time.perf_counter() - begun < 0.1
    sandbox.redo(990)
    assert sandbox.files.read("/workspace/n") == "999\n"


_FULL = """
import subprocess
from staddle import Sandbox
from staddle.errors import LayerError

place = os.path.join({place!r}, "layers")
os.mkdir(place)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,mode=755", "none", place], check=True)
os.environ["STADDLE_LAYERS"] = place
with Sandbox(history=True) as sb:
    sb.run("echo 1 > a")
    full = sb.run("head -c 16M /dev/zero > big")
    assert full.exit_code == 1 and "No space left" in full.stderr, full
    for number in range(20):
        assert sb.run("echo still here").stdout == "still here\\n"
    sb.run("rm -f big")
    sb.run("echo 2 > b")
    steps = 0
    while True:
        try:
            sb.undo()
            steps += 1
        except Exception as error:
            last = error
            break
    assert sb.run("ls").stdout in ("", "a\\n"), (sb.run("ls"), last, steps)
print("fine")
"""


@pytest.mark.slow
def test_a_full_disk_fails_no_command() -> None:
    around = ["unshare", *([] if ROOT else ["--user", "--map-current-user", "--keep-caps"]), "--mount"]
    with tempfile.TemporaryDirectory(prefix="full-") as place:
        os.chmod(place, 0o755)
        assert python(_FULL.format(place=place), around=around) == "fine"


@pytest.mark.slow
def test_a_signal_at_any_moment_loses_no_point(tmp_path: Path) -> None:
    found = python(
        f"""
import random, signal
from staddle import Sandbox

class Rung(Exception): pass

def ring(*_): raise Rung

random.seed(1)
signal.signal(signal.SIGALRM, ring)
hits = 0
with Sandbox({str(tmp_path)!r}, history=True) as sb:
    for number in range(150):
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0002, 0.006))
            try:
                sb.run(f"echo {{number}} > n")
                if number % 5 == 4:
                    sb.undo()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Rung:
            hits += 1
    points = sb.history()
    now = sb.run("cat n").stdout
    step = sb.undo()
    sb.redo()
    assert sb.run("cat n").stdout == now
    for point in reversed(sb.history()[:-1]):
        assert sb.undo().point is point
    assert not sb.files.exists("/workspace/n") and sb.diff() == []
assert hits > 20, hits
print("fine")
""",
        timeout=100,
    )
    assert found == "fine"


# ---------------------------------------------------------------- asyncio


def test_the_awaited_face_has_the_same_history(project: Path) -> None:
    async def main() -> None:
        async with AsyncSandbox(project, history=True) as sb:
            await sb.run("echo 1 > a")
            await sb.exec(["touch", "/workspace/b"])
            async for _ in sb.stream("echo 2 > a"):
                pass
            await sb.files.write("/workspace/c", "3")
            assert [each.cause for each in await sb.history()] == ["start", *["command"] * 3, "files"]
            assert (await sb.undo(2)).point.number == 2
            assert await sb.files.read("/workspace/a") == "1\n"
            assert (await sb.redo()).point.number == 3
            async with await sb.at(1) as past:
                assert await past.read("/workspace/a") == "1\n"
                assert not await past.exists("/workspace/b")
            assert [each.point.number for each in await sb.blame("/workspace/a")] == [3]
            assert (await sb.bisect("grep 1 a || test ! -e a")).point.number == 3

    asyncio.run(main())


def test_undo_and_redo_continue_the_interpreter_of_a_point(project: Path) -> None:
    with Sandbox(project, history="interpreter") as sb:
        sb.python("x = 1; open('a', 'w').write('1')")
        sb.python("x = 2; open('a', 'w').write('2')")
        sb.run("echo 3 > a")
        sb.python("x = 3")  # changes no file: no point
        assert [each.cause for each in sb.history()] == ["start", *["command"] * 3]
        assert {each.snapshot.method for each in sb.history()} == {"swap"}, (
            "an idle interpreter copies nothing"
        )
        step = sb.undo()
        assert (step.continued, step.lost, step.ended) == (("main",), {}, ())
        result = sb.python("(x, open('a').read())")
        assert (result.text, result.lost) == ("(2, '2')", False)
        assert sb.undo().continued == ("main",)
        assert sb.python("(x, open('a').read())").text == "(1, '1')"
        assert sb.redo(2).continued == ("main",)
        assert sb.python("(x, open('a').read())").text == "(2, '3\\n')"
        step = sb.undo(3)  # before there was an interpreter
        assert step.continued == ()
        result = sb.python("'x' in globals()")
        assert (result.text, result.lost) == ("False", True)


def test_only_the_newest_points_continue_an_interpreter(project: Path) -> None:
    with Sandbox(project, history="interpreter") as sb:
        for number in range(11):
            sb.python(f"x = {number}; open('a', 'w').write('{number}')")
        step = sb.undo(9)
        assert step.continued == ()
        assert "a sandbox keeps 8 at most" in step.lost["main"]
        result = sb.python("open('a').read()")
        assert (result.text, result.lost) == ("'1'", True)
        with sb.fork()[0] as fork:
            assert fork.python("1").lost
    with Sandbox(project, history=True) as sb:
        sb.python("x = 1; open('a', 'w').write('1')")
        sb.run("echo 2 > a")
        assert sb.undo().continued == ()
        assert sb.python("'x' in globals()").lost
    with pytest.raises(InvalidCall, match="neither True, False nor 'interpreter'"):
        Sandbox(project, history="all")  # type: ignore[arg-type]


def test_points_and_blame_are_in_the_audit_log(project: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Sandbox(project, history=True, audit=log) as sb:
        sb.run(":")
        sb.run("printf 'one\\ntwo\\nthree\\n' > a")
        sb.exec(["sed", "-i", "s/two/2/", "a"])
        sb.files.write("/workspace/b", "")
        sb.blame("/workspace/a")
        sb.blame("/workspace/a", audit=True)
        sb.undo()
    found = [each for each in read(log.read_bytes().splitlines()) if isinstance(each, AuditLine)]
    assert len(found) == len(log.read_bytes().splitlines()), "a whole chain"
    points = [each.facts for each in found if each.what == "point"]
    assert [(point["point"], point.get("id"), point["cause"]) for point in points] == [
        (0, None, "start"),
        (1, 2, "command"),
        (2, 3, "command"),
        (3, None, "files"),
    ]
    (blamed,) = (each.facts for each in found if each.what == "blame")
    assert blamed == {"path": "/workspace/a", "points": {"1": "1 3", "2": "2"}}
    assert {each.what for each in found} <= set(KINDS)
    with Sandbox(project, history=True) as sb, pytest.raises(InvalidCall, match="no audit log"):
        sb.blame("/workspace/a", audit=True)


# ---------------------------------------------------------------- kept sandboxes


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="kept-", dir="/var/tmp") as state:
        os.chmod(state, 0o755)
        monkeypatch.setenv("XDG_STATE_HOME", state)
        yield "fix"


def test_the_history_of_a_kept_sandbox_outlives_its_process(project: Path, kept: str) -> None:
    with Sandbox(project, keep=kept, history=True) as sb:
        sb.run("x=1; echo 1 > a")
        sb.run("x=2; echo 2 > a; exit 3")
    with Sandbox(project, keep=kept) as sb:  # without a history: seen as one change by the next with one
        sb.run("echo b > b")
    with Sandbox(project, keep=kept, history=True) as sb:
        points = sb.history()
        assert [each.cause for each in points] == ["start", "command", "command", "background"]
        assert points[2].command == "x=2; echo 2 > a; exit 3"
        assert points[2].exit_code == 3
        assert [str(change) for change in points[2].changes or ()] == ["modified /workspace/a"]
        assert [str(change) for change in points[2].diff(points[1])] == ["modified /workspace/a"]
        sb.undo(2)
        assert sb.run("cat a; echo $x").stdout == "1\n1\n"
    with Sandbox(project, keep=kept, history=True) as sb:
        assert len(sb.history()) == 2
        assert sb.redo().point.number == 2
        assert [each.point.number for each in sb.blame("/workspace/a")] == [2]
        assert sb.bisect("test $(cat a) = 1", good=1).point.number == 2
        sb.commit()
        assert told(sb) == [("commit", "")]
    with Sandbox(project, keep=kept, history=True) as sb:
        assert told(sb) == [("commit", "")]


def test_old_kept_points_are_dropped_with_their_files(
    project: Path, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MOST_KEPT", 10)
    with Sandbox(project, keep=kept, history=True) as sb:
        for number in range(30):
            sb.run(f"echo {number} > n")
        assert len(sb.history()) == 10
    home = Path(os.environ["XDG_STATE_HOME"], "staddle/sessions", kept)
    assert len(list((home / "history").iterdir())) == 11  # and the file for the next
    with Sandbox(project, keep=kept, history=True) as sb:
        points = sb.history()
        assert len(points) == 10
        assert sum(1 + point.merged for point in points) == 31
        sb.undo(5)
        assert sb.run("cat n").stdout == "24\n"
    assert (home / "history/at").read_text() == str(points[4].number)
    with Sandbox(project, keep=kept, history=True) as sb:
        assert sb.history()[-1].number == points[4].number
        sb.run("echo new > n")  # drops the points that were undone
        assert not (home / "history/at").exists()
    with Sandbox(project, keep=kept, history=True) as sb:
        assert [point.command for point in sb.history()][-2:] == ["echo 24 > n", "echo new > n"]
    assert not any(b"echo 29" in file.read_bytes() for file in (home / "history").glob("[0-9]*"))
    with closing(PersistentWorkspace(kept)) as workspace:
        workspace.forget_history()
    assert not any((home / "history").iterdir())


def test_a_damaged_point_is_left_out(project: Path, kept: str) -> None:
    with Sandbox(project, keep=kept, history=True) as sb:
        for number in range(4):
            sb.run(f"echo {number} > n")
    home = Path(os.environ["XDG_STATE_HOME"], "staddle/sessions", kept)
    (home / "history/1").write_text("{")
    (home / "history/2").write_text('{"format": 1, "number": 2, "facts": {}, "snapshot": {}, "shells": {}}')
    (home / "history/at").write_text("nothing")
    with Sandbox(project, keep=kept, history=True) as sb:
        assert [each.number for each in sb.history()] == [0, 3, 4]
        sb.undo()
        assert sb.run("cat n").stdout == "2\n"


@pytest.mark.slow
def test_a_kill_at_any_moment_loses_no_point_of_a_command_that_returned(tmp_path: Path, kept: str) -> None:
    place = str(tmp_path)
    for seed in range(4):
        python(
            f"""
import random, signal, subprocess, sys
from staddle import Sandbox
code = '''
import sys
from staddle import Sandbox
sb = Sandbox({place!r}, keep={kept + str(seed)!r}, history=True)
for number in range(1000):
    sb.run(f"echo {{{{number}}}} > n")
    print(number, flush=True)
'''.format()
random.seed({seed})
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
for _ in range(random.randrange(2, 12)):
    last = int(child.stdout.readline())
import time
time.sleep(random.uniform(0, 0.02))
child.kill()
rest = child.stdout.read().split()
last = int(rest[-1]) if rest else last
child.wait()
with Sandbox({place!r}, keep={kept + str(seed)!r}, history=True) as sb:
    points = sb.history()
    commands = [point.command for point in points if point.cause == "command"]
    assert commands[: last + 1] == [f"echo {{n}} > n" for n in range(last + 1)], (last, points)
    while sb.run("cat n").stdout != f"{{last}}\\n":
        sb.undo()
    for number in range(last, 0, -1):
        sb.undo()
        assert sb.run("cat n").stdout == f"{{number - 1}}\\n"
    sb.redo(last)
    assert sb.run("cat n").stdout == f"{{last}}\\n"
""",
            timeout=60,
        )


def test_a_discard_in_a_directory_for_everybody_leaves_the_directory_as_it_is() -> None:
    with Sandbox(history=True) as sb:
        before = sb.run("stat -c '%a %U' /tmp").stdout
        sb.run("echo t > /tmp/t; echo h > ~/h")
        sb.discard(["/tmp/t"])
        assert [change.path for change in sb.diff(everything=True)] == ["/home/user/h"]
        assert sb.run("stat -c '%a %U' /tmp").stdout == before
