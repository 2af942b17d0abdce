"""`jail-exec`: confined or not started, and nothing survives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from staddle.ipc.exec_spec import encode
from staddle.launch import contract
from staddle.launch.contract import helper_command, helper_launch
from staddle.linux import seccomp
from tests.support.helper_runs import READ, ROOT, Started, marked, order, run
from tests.support.in_a_child import captured
from tests.support.waiting import until

pytestmark = pytest.mark.both_users

HELPER = helper_command("0")[:4]
#: Where a process of its own finds staddle and these tests.
PATHS = [str(Path(contract.__file__).parents[2]), str(Path(__file__).parents[2])]


@pytest.fixture
def mark() -> str:
    """An argument of `sleep` that no other process has."""
    return f"{1000 + int.from_bytes(os.urandom(4), 'little') / 1e6:.6f}"


# Exit codes.


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["jail-exec"],
        ["something", "0"],
        ["jail-exec", "0", "1"],
        ["jail-exec", "999"],
        ["jail-exec", "-1"],
        ["jail-exec", "x"],
        ["jail-exec", "/nowhere"],
        ["jail-exec", "/dev/zero"],
        ["jail-exec", "/etc/hostname"],
        ["jail-exec", "relative"],
    ],
)
def test_arguments_that_mean_nothing_are_2(words: list[str]) -> None:
    done = captured([*HELPER, *words], stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert done.stderr.startswith("staddle: ")
    assert len(done.stderr.splitlines()) == 1


def test_instructions_that_are_cut_short_are_2(tmp_path: Path) -> None:
    whole = encode(order("true"))
    file = tmp_path / "instructions"
    for length in (0, 1, 100, len(whole) - 1):
        file.write_bytes(whole[:length])
        done = subprocess.run([*HELPER, "jail-exec", str(file)], capture_output=True, check=False)
        assert done.returncode == 2, length


def test_instructions_are_not_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(encode(order("true")))
    (tmp_path / "link").symlink_to("real")
    done = subprocess.run([*HELPER, "jail-exec", str(tmp_path / "link")], capture_output=True, check=False)
    assert done.returncode == 2


FAILING = {
    "a granted path that is missing": {"rules": ((b"/nowhere", READ, 0),)},
    "a directory that is missing": {"directory": b"/nowhere"},
    "a filter the kernel refuses": {"filter": b"\xff" * 8},
    "rights the kernel does not know": {"handled_fs": 1 << 60},
    "a private directory that exists": {"scratch": (b"/usr",)},
    "a private directory in a place that is missing": {"scratch": (b"/nowhere/a",)},
}


@pytest.mark.parametrize("change", FAILING.values(), ids=FAILING.keys())
def test_confinement_that_fails_is_3_and_the_command_does_not_run(
    change: dict[str, object], tmp_path: Path
) -> None:
    started = Started(order("echo", "it ran", **change))
    assert started.end() == (3, "", "")
    assert started.said


def test_a_link_that_was_planted_on_the_way_is_3(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    rule = (os.fsencode(tmp_path / "link"), READ, 0)
    empty: dict[str, object] = {"empty": ()} if ROOT else {}
    started = Started(order("echo", "it ran", rules=(rule,), **empty))
    assert started.end() == (3, "", "")
    assert "link" in (started.said or "")


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("no-such-program", "No such file"),
        ("/usr", "Permission denied"),
        ("/etc/passwd", "Permission denied"),
    ],
)
def test_a_command_that_cannot_be_run_is_4(command: str, word: str) -> None:
    started = Started(order(command))
    assert started.end() == (4, "", "")
    assert word in (started.said or "")
    assert command in (started.said or "")


def test_a_failure_is_said_aloud_when_nobody_listens() -> None:
    launch = helper_launch(order("no-such-program"))
    assert launch.status is not None
    os.close(launch.status)
    done = captured(launch.argv, env=launch.env, pass_fds=launch.pass_fds)
    launch.close()
    assert done.returncode == 4
    assert done.stderr == "staddle: 'no-such-program' cannot be run: No such file or directory\n"


# What the command finds.


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143)],
)
def test_the_exit_status_is_the_commands(script: str, status: int) -> None:
    assert run(order("sh", "-c", script))[0] == status


def test_only_the_standard_streams_are_open() -> None:
    extra = os.open("/", os.O_RDONLY)
    os.set_inheritable(extra, True)
    launch = helper_launch(order("sh", "-c", "ls /proc/self/fd | wc -l"))
    try:
        done = subprocess.run(
            launch.argv, env=launch.env, pass_fds=(*launch.pass_fds, extra), capture_output=True, check=False
        )
    finally:
        launch.close()
        os.close(launch.status or -1)
        os.close(extra)
    assert done.stdout == b"4\n"  # 0, 1, 2, and the directory that ls reads


def test_the_environment_is_what_was_said() -> None:
    odd = (b"A=1", b"B=x=y", b"C=\xff", b"D=two\nlines", b"E=")
    status, out, _ = run(order("/usr/bin/env", "-0", environment=odd))
    assert status == 0
    assert set(os.fsencode(out).split(b"\0")) - {b""} == set(odd)


def test_arguments_arrive_as_they_are() -> None:
    words = ["--bind", "-c", "", "a b", "$HOME", "two\nlines", "*", "x" * 100_000]
    status, out, _ = run(order("printf", "%s\\0", *words))
    assert status == 0
    assert out.split("\0")[:-1] == words


def test_the_process_has_nothing_it_could_use() -> None:
    _, out, _ = run(order("cat", "/proc/self/status"))
    status = dict(line.split(":\t", 1) for line in out.splitlines() if ":\t" in line)
    assert {status[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
    if ROOT:
        assert status["CapBnd"] == "0" * 16
        assert "0" not in status["Uid"].split()
        assert status["Groups"].strip() == ""
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert status["SigIgn"] == status["SigBlk"] == "0" * 16
    assert status["Umask"] == "0022"


def test_it_has_a_session_of_its_own() -> None:
    _, out, _ = run(order("sh", "-c", "cut -d' ' -f1,6,7 /proc/$$/stat"))
    pid, session, terminal = out.split()
    assert pid == session
    assert terminal == "0"


def test_signals_ignored_outside_are_not_ignored_inside() -> None:
    code = "trap '' HUP TERM PIPE; exec \"$@\""
    launch = helper_launch(order("grep", "SigIgn", "/proc/self/status"))
    done = subprocess.run(
        ["sh", "-c", code, "sh", *launch.argv],
        env=launch.env,
        pass_fds=launch.pass_fds,
        capture_output=True,
        check=False,
    )
    launch.close()
    os.close(launch.status or -1)
    assert done.stdout.split() == [b"SigIgn:", b"0" * 16]


def test_files_can_be_moved_and_linked_between_directories(work: Path) -> None:
    script = "mkdir a b; echo x > a/f; mv a/f b/g; ln b/g a/h; mv b a/; cat a/b/g a/h"
    assert run(order("sh", "-c", script, work=work)) == (0, "x\nx\n", "")


def test_limits_hold_even_very_low_ones() -> None:
    status, out, err = run(
        order("sh", "-c", "ulimit -n; ulimit -f", rlimits=((7, 4, 4), (1, 1 << 20, 1 << 20)))
    )
    assert (status, out.split()[0]) == (0, "4"), err


def test_streams_are_let_go_of() -> None:
    """Whoever feeds the command notices when it does not want any more."""
    read, write = os.pipe()
    started = Started(order("sh", "-c", "exec 0<&-; sleep 10"), stdin=read)
    os.close(read)

    def feed() -> None:
        while True:
            os.write(write, b"x" * 65536)

    with pytest.raises(BrokenPipeError):
        feed()
    os.close(write)
    started.process.terminate()
    assert started.end()[0] == 143


def test_a_file_as_a_stream_can_be_opened_by_its_other_name(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("wb") as file:
        os.fchmod(file.fileno(), 0o666)
        tmp_path.chmod(0o755)
        run(order("sh", "-c", "echo one > /dev/stdout; cat /dev/stdin >> /dev/stdout"), stdout=file)
    assert path.read_text().startswith("one")


def test_a_file_without_a_place_can_be_a_stream() -> None:
    fd = os.memfd_create("x")
    os.write(fd, b"from memory")
    os.lseek(fd, 0, 0)
    assert run(order("cat"), stdin=fd)[1] == "from memory"
    os.close(fd)


# Without a supervisor.


def test_the_helper_becomes_the_command() -> None:
    instructions = order(
        "sh", "-c", "echo $$; kill -9 $$", supervise=0, brokered=0, filter=seccomp.program("namespaces")
    )
    started = Started(instructions, start_new_session=True)
    status, out, _ = started.end()
    assert (status, int(out)) == (-9, started.process.pid)


def test_it_does_not_keep_a_terminal() -> None:
    """A group leader cannot leave its session; then nothing starts."""
    started = Started(
        order("echo", "it ran", supervise=0, brokered=0, filter=b""), preexec_fn=lambda: os.setpgid(0, 0)
    )
    assert started.end()[:2] == (3, "")
    assert "terminal" in (started.said or "")


def test_instructions_and_status_may_be_files(tmp_path: Path) -> None:
    fifo = tmp_path / "status"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for command, code, said in (("true", 0, b""), ("no-such-program", 4, b"4 'no-such-program'")):
            file = tmp_path / command
            file.write_bytes(encode(order(command, status=os.fsencode(fifo))))
            done = subprocess.run([*HELPER, "jail-exec", str(file)], capture_output=True, check=False)
            assert done.returncode == code
            assert os.read(reader, 4096).startswith(said)
    finally:
        os.close(reader)


# Signals.

LOUD = """
import os, signal, sys, time
def loud(number, frame):
    os.write(1, b"%s got %d\\n" % (sys.argv[1].encode(), number))
    os._exit(0)
for number in (1, 2, 3, 15):
    signal.signal(number, loud)
os.write(1, b"ready\\n")
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_signals_reach_everything_the_command_started(number: signal.Signals, work: Path) -> None:
    (work / "loud.py").write_text(LOUD)
    (work / "loud.py").chmod(0o644)
    script = "python3 loud.py child & setsid python3 loud.py daemon & exec python3 loud.py command"
    started = Started(order("sh", "-c", script, work=work))
    out = started.process.stdout
    assert out is not None
    assert [out.readline() for _ in range(3)] == [b"ready\n"] * 3
    started.process.send_signal(number)
    heard = {out.readline() for _ in range(3)}
    # The command may end, and with it everything, before the others have found their words.
    assert b"command got %d\n" % number in heard
    assert heard <= {b"%s got %d\n" % (who, number) for who in (b"child", b"daemon", b"command")} | {b""}
    assert started.end()[0] == 0


def test_a_command_that_dies_of_a_passed_signal_says_so() -> None:
    started = Started(order("sleep", "60"))
    started.process.terminate()
    assert started.end()[0] == 143


def test_a_signal_before_the_command_has_started_is_not_lost() -> None:
    launch = helper_launch(order("sleep", "60"))
    process = subprocess.Popen(launch.argv, env=launch.env, pass_fds=launch.pass_fds)
    launch.close()
    time.sleep(0.03)
    process.terminate()
    assert process.wait(60) in (143, -15)
    os.close(launch.status or -1)


# Nothing survives.

DAEMONS = "sleep {0} & setsid sleep {0} & (setsid sleep {0} &) ; sh -c 'trap \"\" TERM HUP INT; sleep {0}' & "


def test_what_a_command_leaves_behind_is_ended(mark: str) -> None:
    assert run(order("sh", "-c", DAEMONS.format(mark) + "exit 5"))[0] == 5
    assert marked(mark) == []


def test_a_chain_of_forks_is_ended(mark: str) -> None:
    code = (
        f"import os; mark = {mark!r}\nif os.fork(): os._exit(6)\nwhile True:\n    if os.fork(): os._exit(0)"
    )
    assert run(order("python3", "-I", "-S", "-c", code))[0] == 6
    assert marked(mark) == []


def test_without_a_scope_the_tree_is_walked(mark: str) -> None:
    """An old kernel: signals are not scoped, so nothing may be sent to everybody."""
    assert run(order("sh", "-c", DAEMONS.format(mark) + "exit 5", scoped=0))[0] == 5
    assert marked(mark) == []


@pytest.mark.parametrize("scoped", [True, False])
def test_private_directories_are_removed(work: Path, scoped: bool) -> None:
    top = "/tmp/staddle-test-" + os.urandom(4).hex()
    scratch = (os.fsencode(top), os.fsencode(top + "/0"))
    rules = order("true").rules
    changes: dict[str, object] = {} if scoped else {"scoped": 0}
    instructions = order(
        *(
            "sh",
            "-c",
            f"mkdir -p {top}/0/a/b; echo x > {top}/0/a/b/c; chmod 0 {top}/0/a {top}/0; stat -c %a {top}",
        ),
        scratch=scratch,
        rules=(*rules, (scratch[1], 0x7FBF, 0)),
        **changes,
    )
    assert run(instructions)[:2] == (0, "700\n")
    assert not os.path.exists(top)


def started_sleeping(mark: str, **how: object) -> tuple[Started, str]:
    """A helper whose command and its children sleep, with a private directory."""
    top = "/tmp/staddle-test-" + os.urandom(4).hex()
    started = Started(order("sh", "-c", DAEMONS.format(mark) + "wait", scratch=(os.fsencode(top),)), **how)
    assert until(lambda: len(marked(mark)) >= 5)
    return started, top


def test_nothing_survives_the_launcher(mark: str) -> None:
    started, top = started_sleeping(mark)
    started.process.kill()
    assert started.end()[0] == -9
    assert until(lambda: not marked(mark))
    assert until(lambda: not os.path.exists(top))


def test_nothing_survives_the_launchers_process_group(mark: str) -> None:
    started, top = started_sleeping(mark, start_new_session=True)
    os.killpg(started.process.pid, signal.SIGKILL)
    started.end()
    assert until(lambda: not marked(mark))
    assert until(lambda: not os.path.exists(top))


def test_nothing_survives_the_supervisor(mark: str) -> None:
    started, top = started_sleeping(mark)
    os.kill(started.supervisor(), signal.SIGKILL)
    assert started.end()[0] == 137
    assert until(lambda: not marked(mark))
    assert not os.path.exists(top)


def test_nothing_survives_whoever_started_it(mark: str) -> None:
    code = f"""
import sys, time
sys.path[:0] = {PATHS!r}
from tests.kernel.test_helper import started_sleeping
print(started_sleeping({mark!r})[1], flush=True)
time.sleep(60)
"""
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    top = starter.stdout.readline().strip()
    assert marked(mark)
    starter.kill()
    starter.wait()
    assert until(lambda: not marked(mark))
    assert until(lambda: not os.path.exists(top))
    starter.stdout.close()


def test_it_survives_the_thread_that_started_it(mark: str) -> None:
    found: list[Started] = []
    thread = threading.Thread(target=lambda: found.append(started_sleeping(mark)[0]))
    thread.start()
    thread.join()
    time.sleep(0.3)
    assert found[0].process.poll() is None
    assert marked(mark)
    found[0].process.terminate()
    found[0].end()
    assert marked(mark) == []


def test_it_does_not_start_for_a_dead_starter(mark: str) -> None:
    """The starter dies while the interpreter is still loading."""
    code = f"""
import os, sys
sys.path[:0] = {PATHS!r}
from tests.support.helper_runs import order
from staddle.launch.contract import helper_launch
launch = helper_launch(order("sleep", {mark!r}))
for fd in launch.pass_fds:
    os.set_inheritable(fd, True)
os.posix_spawn(launch.argv[0], launch.argv, launch.env)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    time.sleep(0.5)
    assert marked(mark) == []


# As root.


@pytest.mark.needs_root
def test_root_sees_its_files_as_its_own(work: Path) -> None:
    (work / "secret").write_text("of root")
    (work / "secret").chmod(0o600)
    status, out, err = run(
        order("sh", "-c", "cat secret; echo new > made; stat -c %u made; id -u", work=work)
    )
    assert status == 0, err
    secret, *ids = out.replace("of root", "of root\n").split("\n")[:3]
    assert secret == "of root"
    assert ids[0] == ids[1] != "0"
    assert (work / "made").stat().st_uid == 0


@pytest.mark.needs_root
def test_nothing_is_mounted_outside(work: Path) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    run(order("true", work=work))
    assert Path("/proc/self/mountinfo").read_text() == before


@pytest.mark.needs_root
def test_made_up_files_and_links() -> None:
    instructions = order(
        *("sh", "-c", "cat /etc/a/b; readlink /etc/c; ls /etc"),
        empty=((b"/tmp", 0o1777, 0), (b"/etc", 0o755, 0)),
        texts=((b"/etc/a/b", b"made up\n"), (b"/usr/share/never", b"not in a tree of the host")),
        links=((b"/etc/c", b"/usr"),),
    )
    assert run(instructions)[:2] == (0, "made up\n/usr\na\nc\n")
    assert not os.path.exists("/usr/share/never")


@pytest.mark.needs_root
def test_more_trees_than_descriptors(work: Path) -> None:
    import resource

    names = [work / str(number) for number in range(100)]
    for name in names:
        name.mkdir()
    trees = tuple((os.fsencode(name), -1, -1, 0) for name in names)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))  # noqa: E731
    assert run(order("sh", "-c", "ulimit -n", trees=trees), preexec_fn=few)[:2] == (0, "64\n")
