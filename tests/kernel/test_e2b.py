"""Programs written for E2B run with one import changed; each part as its documentation uses it."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import subprocess
import threading
import venv
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import staddle
from staddle import Network
from staddle.compat.e2b import (
    ALL_TRAFFIC,
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    PtySize,
    RateLimitException,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxQuery,
    SandboxState,
    TemplateException,
    TimeoutException,
    WriteEntry,
)
from tests.support.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.create(metadata={"made": "here"}, envs={"GREETING": "hello"}) as made:
        yield made


def test_commands(sandbox: Sandbox) -> None:
    heard: list[str] = []
    result = sandbox.commands.run("echo $GREETING $X; pwd", envs={"X": "1"}, on_stdout=heard.append)
    assert (result.stdout, result.exit_code) == ("hello 1\n/home/user\n", 0)
    assert "".join(heard) == result.stdout
    with pytest.raises(CommandExitException) as raised:
        sandbox.commands.run("echo out; echo err >&2; exit 3")
    assert (raised.value.exit_code, raised.value.stdout, raised.value.stderr) == (3, "out\n", "err\n")
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 600", timeout=0.5)


def test_commands_in_the_background(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("read x; echo got $x", background=True, stdin=True)
    assert handle.pid in [process.pid for process in sandbox.commands.list()]
    sandbox.commands.send_stdin(handle.pid, "input\n")
    heard: list[str] = []
    assert handle.wait(on_stdout=heard.append).stdout == "got input\n"
    assert "".join(heard) == "got input\n"
    late = sandbox.commands.run("sleep 600", background=True, timeout=0.3)
    with pytest.raises(TimeoutException):
        list(late)
    forever = sandbox.commands.run("sleep 600", background=True)
    assert sandbox.commands.connect(forever.pid).kill()
    with pytest.raises(CommandExitException):
        forever.wait()
    assert not sandbox.commands.kill(forever.pid)
    for _ in range(20):
        killed = sandbox.commands.run("sleep 600", background=True)
        assert sandbox.commands.kill(killed.pid)
        with pytest.raises(CommandExitException):  # it is gone when `kill` returns
            sandbox.commands.run(f"kill -0 {killed.pid}")


def test_input_in_pieces(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("read a b; echo $b $a", background=True, stdin=True)
    with pytest.raises(InvalidArgumentException, match="one piece"):
        sandbox.commands.stream_input(handle.pid, "text")
    sandbox.commands.stream_input(handle.pid, iter(["one ", b"two\n"]))
    assert handle.wait().stdout == "two one\n"
    terminal = sandbox.pty.create(PtySize(24, 80))
    sandbox.pty.stream_input(terminal.pid, ["exit ", b"4\n"])
    assert terminal.wait().exit_code == 4


def test_output_that_is_not_kept(sandbox: Sandbox) -> None:
    heard: list[str] = []
    result = sandbox.commands.run("echo out", on_stdout=heard.append, retain_output=False)
    assert (result.stdout, result.stderr, heard) == (None, None, ["out\n"])
    with pytest.raises(CommandExitException) as raised:
        sandbox.commands.run("echo out; exit 3", background=True, retain_output=False).wait()
    assert (raised.value.stdout, raised.value.exit_code) == (None, 3)


def test_a_connection_has_a_time_and_the_program_runs_on(sandbox: Sandbox) -> None:
    program = sandbox.commands.run("sleep 600", background=True, timeout=0)
    with pytest.raises(TimeoutException, match="runs on"):
        sandbox.commands.connect(program.pid, timeout=0.2).wait()
    with pytest.raises(TimeoutException, match="runs on"):
        list(sandbox.commands.connect(program.pid, timeout=0.2))
    assert program.kill()
    terminal = sandbox.pty.create(PtySize(24, 80))
    with pytest.raises(TimeoutException, match="runs on"):
        sandbox.pty.connect(terminal.pid, timeout=0.2).wait()
    assert terminal.kill()


def test_names_that_programs_catch() -> None:
    assert issubclass(RateLimitException, SandboxException)
    assert issubclass(TemplateException, SandboxException)
    assert not issubclass(AuthenticationException, SandboxException)
    ended = Sandbox.create()
    ended.kill()
    with pytest.raises(SandboxNotRunningException):
        ended.commands.run("true")
    with Sandbox.create(network={"deny_out": [ALL_TRAFFIC]}, allow_internet_access=True) as denied:
        assert denied.sandbox.policy.network == Network.deny()


PROGRAM = """
import sys
from staddle import Policy
from staddle.compat.e2b import Sandbox
denied = Policy.agent().with_deny(sys.prefix)
for given in ({}, {"policy": denied}, {"workspace": sys.argv[1]}, {"python": "/usr/bin/python3"}):
    with Sandbox.create(**given) as sandbox:
        cell = sandbox.run_code("import tabular; tabular.word")
        script = sandbox.commands.run("python3 -c 'import tabular; print(tabular.word)' || true").stdout
        print(cell.text, script.strip() or None)
with Sandbox.create() as sandbox:
    (fork,) = sandbox.fork()
    print(fork.run_code("import tabular; tabular.word").text)
    fork.kill()
    sandbox.files.write("/tmp/wheel.py", sys.argv[2])
    made = sandbox.run_code("%cd /tmp\\n!python3 wheel.py; pip install -q --no-index greeter*.whl")
    print(sandbox.run_code("import greeter; greeter.word").text or made)
"""
WHEEL = """
import zipfile
with zipfile.ZipFile("greeter-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("greeter.py", "word = 'hello'")
    about = "greeter-1.0.dist-info/"
    wheel.writestr(about + "METADATA", "Metadata-Version: 2.1\\nName: greeter\\nVersion: 1.0\\n")
    wheel.writestr(about + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr(about + "RECORD", "")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment, in a directory of its own, with a package and with staddle."""
    root = tmp_path_factory.mktemp("project") / ".venv"
    venv.create(root, with_pip=True, symlinks=True)
    (packages,) = root.glob("lib/python*/site-packages")
    (packages / "tabular.py").write_text("word = 'rows'")
    (packages / "staddle.pth").write_text(f"{Path(staddle.__file__).parent.parent}\n")
    return root


@pytest.mark.parametrize("search", ["/usr/bin:/bin", "{root}/bin:/usr/bin:/bin"], ids=["named", "activated"])
def test_code_has_the_packages_of_the_callers_virtual_environment(environment: Path, search: str) -> None:
    argv = [environment / "bin" / "python", "-c", PROGRAM, environment.parent, WHEEL]
    env = {"PATH": search.format(root=environment), "HOME": os.environ["HOME"]}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["rows rows", "None None", "rows rows", "None None", "rows", "hello"]


def test_another_interpreter_can_be_named() -> None:
    with Sandbox.create(python="/usr/bin/python3") as sandbox:
        assert sandbox.run_code("import sys; sys.executable").text == "/usr/bin/python3"
    missing = pytest.raises(SandboxException, match="/no/such/python did not start")
    with Sandbox.create(python="/no/such/python") as sandbox, missing:
        sandbox.run_code("1")


def test_cells_of_a_notebook(sandbox: Sandbox) -> None:
    execution = sandbox.run_code("!echo from a program\nimport asyncio\nawait asyncio.sleep(0, 'awaited')")
    assert (execution.logs.stdout, execution.text) == (["from a program\n"], "awaited")
    failed = sandbox.run_code("%nosuch").error
    assert failed is not None
    assert (failed.name, "there is no %nosuch" in failed.value) == ("MagicError", True)


def test_files(sandbox: Sandbox) -> None:
    info = sandbox.files.write("dir/a.txt", "text")
    assert (info.path, info.name) == ("/home/user/dir/a.txt", "a.txt")
    sandbox.files.write_files([{"path": "dir/b", "data": b"\xff"}, {"path": "/tmp/c", "data": "c"}])
    assert sandbox.files.read("dir/a.txt") == "text"
    assert sandbox.files.read("dir/b", format="bytes") == bytearray(b"\xff")
    assert b"".join(sandbox.files.read("/tmp/c", format="stream")) == b"c"
    listed = sandbox.files.list("dir")
    assert [(entry.name, entry.type, entry.size) for entry in listed] == [
        ("a.txt", FileType.FILE, 4),
        ("b", FileType.FILE, 1),
    ]
    assert (listed[0].owner, listed[0].permissions[0]) == ("user", "-")
    assert sandbox.files.rename("dir/a.txt", "dir/z.txt").name == "z.txt"
    assert not sandbox.files.exists("dir/a.txt")
    assert sandbox.files.make_dir("made/deep")
    assert not sandbox.files.make_dir("made/deep")
    sandbox.files.remove("dir")
    with pytest.raises(FileNotFoundException):
        sandbox.files.read("dir/z.txt")


def test_facts_about_files_and_streams(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("facts/sub/below")
    sandbox.files.write_files([WriteEntry(path="facts/a.txt", data=io.StringIO("text" * 50_000))])
    sandbox.commands.run("ln -s a.txt link", cwd="facts")
    assert [entry.name for entry in sandbox.files.list("facts", depth=None)] == ["a.txt", "link", "sub"]
    assert [entry.name for entry in sandbox.files.list("facts", depth=3)][-1] == "below"
    with pytest.raises(InvalidArgumentException, match="depth"):
        sandbox.files.list("facts", depth=0)
    link = sandbox.files.get_info("facts/link")
    assert (link.type, link.symlink_target) == (FileType.FILE, "/home/user/facts/a.txt")
    assert (link.owner, link.group) == ("user", "user")
    with sandbox.files.read("facts/a.txt", format="stream") as stream:
        assert next(stream).startswith(b"text")
    assert list(stream) == []
    sandbox.files.remove("facts")
    sandbox.files.remove("facts")  # as in E2B, no error


def test_a_watched_directory(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("watched/sub")
    watch = sandbox.files.watch_dir("watched", include_entry=True)
    sandbox.files.write("watched/a.txt", "x")
    sandbox.files.write("watched/sub/unseen.txt", "x")
    created, written = watch.get_new_events()
    assert (created.type, written.type) == (FilesystemEventType.CREATE, FilesystemEventType.WRITE)
    assert created.entry is not None
    assert (created.name, created.entry.path) == ("a.txt", "/home/user/watched/a.txt")
    sandbox.files.remove("watched/a.txt")
    (removed,) = watch.get_new_events()
    assert removed.type is FilesystemEventType.REMOVE
    watch.stop()
    found: list[str] = []
    below = sandbox.files.watch_dir("watched", lambda event: found.append(event.name), recursive=True)
    sandbox.files.write("watched/sub/seen.txt", "x")
    assert until(lambda: "sub/seen.txt" in found)
    below.stop()


def test_a_terminal(sandbox: Sandbox) -> None:
    seen, data = threading.Event(), bytearray()

    def heard(piece: bytes) -> None:
        data.extend(piece)
        if b"size 30 100" in data:
            seen.set()

    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), on_data=heard)
    sandbox.pty.resize(terminal.pid, PtySize(rows=30, cols=100))
    sandbox.pty.send_stdin(terminal.pid, b"echo size $(stty size)\n")
    assert seen.wait(PATIENCE), data
    assert sandbox.pty.kill(terminal.pid)
    again = sandbox.pty.create(PtySize(24, 80), envs={"ABC": "123"})
    sandbox.pty.send_stdin(again.pid, b"echo $ABC\nexit\n")
    later = bytearray()
    assert sandbox.pty.connect(again.pid).wait(on_pty=later.extend).exit_code == 0
    assert b"123" in later
    assert (again.exit_code, again.stderr) == (0, "")
    third = sandbox.pty.create(PtySize(24, 80))
    third.disconnect()
    told = bytearray()
    sandbox.pty.connect(third.pid, on_data=told.extend).send_stdin("echo a$((1+1))b; exit 3\n")
    assert third.wait().exit_code == 3
    assert b"a2b" in told


def test_code_keeps_its_variables_and_has_rich_results(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 1")
    execution = sandbox.run_code("print('out'); x += 1; x")
    assert (execution.text, execution.logs.stdout, execution.error) == ("2", ["out\n"], None)
    code = "class T:\n  def _repr_html_(self): return '<b>x</b>'\ndisplay(T())\nT()"
    results = sandbox.run_code(code).results
    assert [(each.html, each.is_main_result) for each in results] == [("<b>x</b>", False), ("<b>x</b>", True)]
    failed = sandbox.run_code("1 / 0").error
    assert failed is not None
    assert (failed.name, failed.value) == ("ZeroDivisionError", "division by zero")
    apart = sandbox.create_code_context()
    assert sandbox.run_code("x", context=apart).error is not None
    assert sandbox.list_code_contexts()[-1].id == apart.id
    sandbox.run_code("y = 1", context=apart)
    sandbox.restart_code_context(apart)
    assert sandbox.run_code("y", context=apart).error is not None
    sandbox.remove_code_context(apart.id)
    with pytest.raises(TimeoutException):
        sandbox.run_code("import time; time.sleep(600)", timeout=0.5)
    assert sandbox.run_code("x").text == "2"
    look = "import os; os.environ.get('GREETING')"
    assert sandbox.run_code(look, envs={"GREETING": "other"}).text == "other"
    assert sandbox.run_code(look).text == "hello"
    assert "execution_count" in execution.to_json()
    with pytest.raises(InvalidArgumentException):
        sandbox.run_code("console.log(1)", language="javascript")


def test_ids_lifetimes_and_pauses(sandbox: Sandbox) -> None:
    assert Sandbox.connect(sandbox.sandbox_id) is sandbox
    assert sandbox.sandbox_id in [info.sandbox_id for info in Sandbox.list().next_items()]
    assert sandbox.get_info().metadata == {"made": "here"}
    Sandbox.pause(sandbox.sandbox_id)
    assert not sandbox.is_running()
    paused = SandboxQuery(metadata={"made": "here"}, state=[SandboxState.PAUSED])
    assert [info.sandbox_id for info in Sandbox.list(paused).next_items()] == [sandbox.sandbox_id]
    assert Sandbox.connect(sandbox.sandbox_id, timeout=600).is_running()
    assert Sandbox.get_info(sandbox.sandbox_id).state is SandboxState.RUNNING
    for refused in (
        {"auto_resume": True},
        {"other": 1},
        {"on_timeout": {"action": "kill", "keep_memory": 0}},
    ):
        with pytest.raises(InvalidArgumentException, match="lifecycle"):
            Sandbox.create(lifecycle=refused)
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect("another")
    short = Sandbox.create(timeout=0.2)
    assert until(lambda: not short.is_running())
    with pytest.raises(TimeoutException):
        short.commands.run("true")
    assert not short.kill()
    assert not Sandbox.kill(short.sandbox_id)
    ended = Sandbox.create()
    running = ended.commands.run("sleep 600", background=True)
    ended.kill()
    with pytest.raises(TimeoutException, match="the sandbox was killed"):
        running.wait()


def test_a_sandbox_pauses_when_its_time_is_up_if_asked_to() -> None:
    lifecycle = {"on_timeout": {"action": "pause", "keep_memory": False}}
    with Sandbox.create(lifecycle=lifecycle) as sandbox:
        sandbox.files.write("left.txt", "text")
        ended = sandbox.commands.run("sleep 600", background=True)
        sandbox.set_timeout(0)
        assert until(lambda: sandbox.get_info().state is SandboxState.PAUSED)
        assert sandbox.connect() is sandbox
        assert sandbox.get_info().end_at > sandbox.get_info().started_at + timedelta(seconds=200)
        assert sandbox.files.read("left.txt") == "text"
        assert ended.pid not in [process.pid for process in sandbox.commands.list()]
        (metrics,) = sandbox.get_metrics()
        assert 0 < metrics.mem_used < metrics.mem_total
        assert 0 < metrics.disk_used < metrics.disk_total
        assert sandbox.get_metrics(end=metrics.timestamp - timedelta(hours=1)) == []


def test_lists_come_in_pages_and_in_order() -> None:
    with Sandbox.create(metadata={"of": "pages"}) as old, Sandbox.create(metadata={"of": "pages"}) as new:
        query = SandboxQuery(metadata={"of": "pages"}, template="base")
        pages = Sandbox.list(query, limit=1)
        (first,) = pages.next_items()
        assert (first.sandbox_id, pages.has_next) == (new.sandbox_id, True)
        (later,) = Sandbox.list(query, next_token=pages.next_token).next_items()
        assert later.sandbox_id == old.sandbox_id
        assert pages.next_items()[0].sandbox_id == old.sandbox_id
        assert (pages.has_next, pages.next_token) == (False, None)
        ids = [info.sandbox_id for info in Sandbox.list(query, order="asc").next_items()]
        assert ids == [old.sandbox_id, new.sandbox_id]
        after = SandboxQuery(started_after=first.started_at + timedelta(seconds=1))
        assert new.sandbox_id not in [info.sandbox_id for info in Sandbox.list(after).next_items()]


def test_network_rules_are_translated_or_refused() -> None:
    allowed = {"allow_out": ["example.com"], "deny_out": lambda context: [context.all_traffic]}
    with Sandbox.create(network=allowed, allow_internet_access=True) as sandbox:
        assert sandbox.sandbox.policy.network == Network.allow("example.com")
        sandbox.update_network({"deny_out": ["0.0.0.0/0"], "allow_out": ["example.org:443"]})
    refused: list[dict[str, object]] = [
        {"deny_out": ["192.0.2.1"]},
        {"mask_request_host": "x"},
        {"allow_public_traffic": False},
    ]
    for rules in refused:
        with pytest.raises(InvalidArgumentException, match="network"):
            Sandbox.create(network=rules, allow_internet_access=True)
    with Sandbox.create(network={"deny_out": ["192.0.2.1"]}) as sandbox:  # denied with all the others
        assert sandbox.sandbox.policy.network == Network.deny()


def test_metadata_of_files(sandbox: Sandbox) -> None:
    about = {"author": "someone", "stage": "1"}
    assert sandbox.files.write("meta/a.txt", "x", metadata=about).metadata == about
    assert sandbox.files.get_info("meta/a.txt").metadata == about
    assert sandbox.files.rename("meta/a.txt", "meta/b.txt").metadata == about
    assert [entry.metadata for entry in sandbox.files.list("meta")] == [about]
    sandbox.files.write("meta/b.txt", "y")
    assert sandbox.files.get_info("meta/b.txt").metadata is None
    for wrong in ({"": "x"}, {"a b": "x"}, {"a": "x\n"}):
        with pytest.raises(InvalidArgumentException):
            sandbox.files.write("meta/c.txt", "x", metadata=wrong)
    assert not sandbox.files.exists("meta/c.txt")


def test_snapshots_and_forks(sandbox: Sandbox) -> None:
    sandbox.files.write("state.txt", "before")
    point = sandbox.create_snapshot("point")
    fork, another = sandbox.fork(60, 2)  # a lifetime first, as in E2B
    another.kill()
    with pytest.raises(InvalidArgumentException, match="count"):
        Sandbox.fork("no-such-sandbox", count=0)
    fork.files.write("state.txt", "forked")
    sandbox.files.write("state.txt", "after")
    with Sandbox.create(point.snapshot_id) as again:
        assert again.files.read("state.txt") == "before"
    assert fork.files.read("state.txt") == "forked"
    fork.kill()
    listed = Sandbox.list_snapshots(sandbox_id=sandbox.sandbox_id, name="point").next_items()
    assert [info.snapshot_id for info in listed] == [point.snapshot_id]
    assert [info.names for info in sandbox.list_snapshots().next_items()] == [["point"]]
    assert fork.list_snapshots().next_items() == []
    assert Sandbox.delete_snapshot(point.snapshot_id)
    with pytest.raises(InvalidArgumentException):
        Sandbox.create("no-such-template")


def test_a_port_is_reachable(sandbox: Sandbox) -> None:
    sandbox.commands.run("python3 -m http.server 3000 --bind 127.0.0.1", background=True)
    host, _, port = sandbox.get_host(3000).partition(":")

    def answered() -> bool:
        try:
            with socket.create_connection((host, int(port)), timeout=PATIENCE) as made:
                made.sendall(b"GET / HTTP/1.0\r\n\r\n")
                return made.recv(100).startswith(b"HTTP/1.0 200")
        except OSError:
            return False

    assert until(answered)


def test_awaited() -> None:
    heard: list[str] = []

    async def hear(piece: str) -> None:
        heard.append(piece)

    async def use() -> None:
        sandbox = await AsyncSandbox.create()
        async with sandbox:
            assert (await sandbox.commands.run("echo hi", on_stdout=hear)).stdout == "hi\n"
            assert heard == ["hi\n"]
            assert (await AsyncSandbox.get_info(sandbox.sandbox_id)).sandbox_id == sandbox.sandbox_id
            handle = await sandbox.commands.run("echo bye", background=True)
            assert (await handle.wait()).stdout == "bye\n"
            told = await sandbox.commands.run("read a b; echo $b $a", background=True, stdin=True)
            async with sandbox.commands.stream_input(told.pid) as piped:
                await piped.send("one ")
                await piped.send(b"two\n")
            assert (await told.wait()).stdout == "two one\n"
            with pytest.raises(SandboxException, match="closed"):
                await piped.send("more")
            await sandbox.files.write("a", "1")
            assert (await sandbox.run_code("open('a').read()")).text == "1"
            assert await sandbox.is_running()
            stream = await sandbox.files.read("a", format="stream")
            assert [piece async for piece in stream] == [b"1"]
            async with await sandbox.files.read("a", format="stream") as again:
                assert await anext(again) == b"1"
            # A function is called on the loop, where it may use what belongs to the loop.
            told, loops = asyncio.Event(), []

            def tell(_: str) -> None:
                loops.append(asyncio.get_running_loop())
                told.set()

            echo = await sandbox.commands.run("cat", background=True, on_stdout=tell, stdin=True)
            await sandbox.commands.send_stdin(echo.pid, "x")
            await asyncio.wait_for(told.wait(), PATIENCE)
            assert loops[0] is asyncio.get_running_loop()
            with pytest.raises(ZeroDivisionError):
                await sandbox.commands.run("echo x", on_stdout=lambda _: 1 / 0)
            assert (await AsyncSandbox.list_snapshots(sandbox.sandbox_id).next_items()) == []

    asyncio.run(use())
