"""`sb.snapshot(processes="interpreter")`: an interpreter that continues after a restore."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from staddle import Policy, Sandbox, Snapshot
from staddle.errors import InvalidCall

pytestmark = pytest.mark.both_users


@pytest.fixture
def sb(tmp_path: Path) -> Sandbox:
    (tmp_path / "lines").write_text("one\ntwo\nthree\n")
    with Sandbox(tmp_path) as made:
        yield made


def kept(sb: Sandbox, label: str = "") -> Snapshot:
    made = sb.snapshot(label, processes="interpreter")
    assert made.processes.kept == ("main",), made.processes
    return made


def value(sb: Sandbox, code: str, *, lost: bool = False) -> str | None:
    got = sb.python(code)
    assert got.error is None, got.error
    assert got.lost is lost
    return got.text


def test_variables_files_and_chance_come_back_as_often_as_asked(sb: Sandbox) -> None:
    value(sb, "import os, random; random.seed(1); x = [1]; os.chdir('/tmp')")
    value(sb, "read = open('/workspace/lines'); read.readline()")
    point = kept(sb)
    assert point.method == "swap"
    seen = [value(sb, "x.append(2); x, os.getcwd(), random.random(), read.readline()")]
    value(sb, "open('/workspace/lines', 'w').write('other')")
    for _ in range(3):
        done = sb.restore(point)
        assert (done.continued, done.lost, done.ended) == (("main",), {}, ())
        seen.append(value(sb, "x.append(2); x, os.getcwd(), random.random(), read.readline()"))
        assert value(sb, "open('/workspace/lines').read()") == "'one\\ntwo\\nthree\\n'"
    assert len(set(seen)) == 1, seen


def test_it_goes_on_where_it_was_after_the_snapshot_alone(sb: Sandbox) -> None:
    value(sb, "import os; os.mkdir('/workspace/sub'); os.chdir('/workspace/sub'); x = 1")
    value(sb, "read = open('/workspace/lines'); read.readline()")
    kept(sb)
    sb.run("echo > /workspace/sub/new")
    assert value(sb, "os.listdir('.'), read.readline(), x") == "(['new'], 'two\\n', 1)"


def test_a_file_that_is_open_for_writing_continues_at_its_place(sb: Sandbox) -> None:
    value(sb, "out = open('/workspace/log', 'w'); out.write('a'); out.flush()")
    point = kept(sb)
    value(sb, "out.write('b'); out.flush()")
    sb.restore(point)
    assert sb.files.read("log") == "a"
    value(sb, "out.write('c'); out.flush()")
    assert sb.files.read("log") == "ac"


def test_an_older_snapshot_and_a_newer_one_each_have_their_own(sb: Sandbox) -> None:
    points = []
    for number in range(4):
        value(sb, f"n = {number}")
        points.append(kept(sb))
    for number in (2, 0, 3, 1, 1):
        assert sb.restore(points[number]).continued == ("main",)
        assert value(sb, "n") == str(number)
        sb.run(f"echo {number} > changed")


def test_a_snapshot_between_is_not_slowed_down_by_twins(sb: Sandbox) -> None:
    value(sb, "x = 1")
    point = kept(sb)
    sb.restore(point)
    sb.python("import os; os._exit(0)")
    sb.run("echo > changed")
    assert sb.snapshot().method == "swap"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import threading; threading.Thread(target=__import__('time').sleep, args=(60,)).start()", "thread"),
        ("import subprocess; child = subprocess.Popen(['sleep', '60'])", "programs that it has started"),
        ("import mmap; shared = mmap.mmap(-1, 4096)", "shares memory"),
    ],
)
def test_the_reason_is_told_if_it_cannot_continue(sb: Sandbox, code: str, why: str) -> None:
    value(sb, code)
    point = sb.snapshot(processes="interpreter")
    assert point.processes.kept == ()
    assert why in point.processes.why_not["main"]
    done = sb.restore(point)
    assert done.continued == ()
    assert why in done.lost["main"]
    assert value(sb, "1", lost=True) == "1"


def test_a_cell_that_runs_is_not_waited_for(sb: Sandbox) -> None:
    value(sb, "import time")
    thread = threading.Thread(target=sb.python, args=("time.sleep(3)",))
    thread.start()
    time.sleep(0.5)
    assert sb.snapshot(processes="interpreter").processes.why_not == {"main": "a cell runs"}
    thread.join()


def test_a_killed_twin_is_lost_and_nothing_else(sb: Sandbox) -> None:
    value(sb, "import os; x = 1")
    point = kept(sb)
    sb.run(f"for p in $(pgrep python3); do [ $p = {value(sb, 'os.getpid()')} ] || kill -9 $p; done")
    time.sleep(0.2)
    assert point.processes.why_not == {"main": "its twin has ended"}
    done = sb.restore(point)
    assert done.lost == {"main": "its twin has ended"}
    assert value(sb, "2", lost=True) == "2"


def test_a_stopped_twin_is_lost_after_a_while(sb: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("staddle.sandbox.interpreter._TO_FORK", 0.5)
    value(sb, "import os; x = 1")
    point = kept(sb)
    sb.run(f"for p in $(pgrep python3); do [ $p = {value(sb, 'os.getpid()')} ] || kill -STOP $p; done")
    assert sb.restore(point).lost == {"main": "its twin did not answer"}
    assert value(sb, "2", lost=True) == "2"


def test_no_program_inside_can_read_or_change_a_twin(sb: Sandbox) -> None:
    value(sb, "import os; x = 1")
    kept(sb)
    script = f"""
    for p in $(pgrep python3); do
        [ $p = {value(sb, "os.getpid()")} ] && continue
        head -c 1 /proc/$p/mem; ls /proc/$p/fd; cat /proc/$p/environ
    done"""
    got = sb.run(script)
    assert got.stdout == ""
    assert got.stderr.count("denied") >= 3, got.stderr


def test_a_closed_snapshot_leaves_no_process(sb: Sandbox) -> None:
    value(sb, "x = 1")
    before = len(sb.ps())
    points = [kept(sb) for _ in range(3)]
    assert len(sb.ps()) == before + 3
    for point in points:
        point.close()
    until = time.monotonic() + 5
    while len([each for each in sb.ps() if each.state != "Z"]) > before and time.monotonic() < until:
        time.sleep(0.05)
    assert len([each for each in sb.ps() if each.state != "Z"]) == before
    kept(sb).close()  # which waits for those that have ended


def test_eight_are_kept_and_the_oldest_is_dropped(sb: Sandbox) -> None:
    value(sb, "n = 0")
    points = [kept(sb) for _ in range(9)]
    assert "8 at most" in points[0].processes.why_not["main"]
    assert [point.processes.kept for point in points[1:]] == [("main",)] * 8


def test_a_fork_begins_anew_and_says_so(sb: Sandbox) -> None:
    value(sb, "x = 1")
    point = kept(sb)
    [fork] = sb.fork()
    with fork:
        assert sb.python("x").text == "1"
        assert value(fork, "'x' in globals()", lost=True) == "False"
        assert value(fork, "1") == "1"
        done = fork.restore(point)
        assert done.continued == ()
        assert "another sandbox" in done.lost["main"]


def test_a_saved_snapshot_has_no_processes(sb: Sandbox, tmp_path: Path) -> None:
    value(sb, "x = 1")
    file = tmp_path.parent / f"{tmp_path.name}.snapshot"
    kept(sb).save(file)
    try:
        loaded = Snapshot.load(file)
        assert loaded.processes.kept == ()
        loaded.close()
    finally:
        file.unlink()


def test_programs_that_keep_running_keep_the_interpreter(sb: Sandbox) -> None:
    value(sb, "x = 1")
    point = kept(sb)
    value(sb, "x = 2")
    assert sb.restore(point, processes="keep").continued == ()
    assert value(sb, "x") == "2"


def test_twins_share_their_memory_within_the_limit(tmp_path: Path) -> None:
    with Sandbox(tmp_path, policy=Policy.agent().with_limits(memory="512M")) as sb:
        value(sb, "x = bytearray(150 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1")
        points = [kept(sb) for _ in range(6)]
        sb.restore(points[0])
        assert value(sb, "len(x) >> 20") == "150"


def test_an_event_loop_is_made_anew(sb: Sandbox) -> None:
    value(sb, "import asyncio; await asyncio.sleep(0); x = 1")
    point = kept(sb)
    for _ in range(2):
        sb.restore(point)
        assert value(sb, "await asyncio.sleep(0.01); x") == "1"


def test_several_sessions_continue(sb: Sandbox) -> None:
    for name in ("main", "b"):
        sb.python(f"x = {name!r}", session=name)
    point = sb.snapshot(processes="interpreter")
    assert set(point.processes.kept) == {"main", "b"}
    sb.python("x = 0", session="b")
    sb.restore(point)
    assert sb.python("x", session="b").text == "'b'"
    assert sb.python("x").text == "'main'"


def test_another_word_is_refused(sb: Sandbox) -> None:
    with pytest.raises(InvalidCall, match="processes"):
        sb.snapshot(processes="all")  # type: ignore[arg-type]


def test_a_sandbox_without_layers_keeps_it_too(tmp_path: Path) -> None:
    with Sandbox(tmp_path, mode="copy") as sb:
        value(sb, "x = 1")
        point = sb.snapshot(processes="interpreter")
        value(sb, "x = 2")
        sb.restore(point)
        assert sb.python("x").text == "1"
