"""A server of sandboxes: its clients, its ends, and its doors."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import staddle
from staddle.errors import CommandFailed, InvalidCall, PolicyError, SessionBusy, StaddleError
from staddle.json_values import decode, read_result
from staddle.server.access import SocketAccess
from staddle.server.client import Client
from staddle.server.events import EventLog
from staddle.server.process import connected_or_started, default_socket
from staddle.server.sandboxes import SandboxEntry
from staddle.server.server import unix_listener
from staddle.server.websocket import BINARY, TEXT
from tests.support.server_process import ROOT, CuttingRelay, ServerProcess
from tests.support.waiting import PATIENCE, unique_seconds, until, with_argument

pytestmark = pytest.mark.both_users
TOKEN = "a-token-of-the-tests-that-is-long-enough"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ("--listen", "127.0.0.1:0")
    with ServerProcess(tmp_path_factory.mktemp("server"), *options, STADDLE_SERVER_TOKEN=TOKEN) as found:
        yield found


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with staddle.connect(server.path) as found:
        yield found
        for sandbox in found.list():
            sandbox.close()


class Unix(http.client.HTTPConnection):
    """HTTP by the standard library, over a UNIX socket: not our client."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def asked(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str
) -> Any:
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
    with suppress(BrokenPipeError):  # the server refuses by the head, and may close before the body has come
        connection.request(
            method, path, data, {name.replace("_", "-"): value for name, value in headers.items()}
        )
    reply = connection.getresponse()
    content = reply.read()
    return reply.status, json.loads(content) if reply.headers[
        "Content-Type"
    ] == "application/json" else content


# ------------------------------------------------------------ what it does


def test_a_sandbox_has_the_names_and_types_of_a_local_one(client: Client, tmp_path: Path) -> None:
    """Commands, files, changes, snapshots, forks, sessions, processes and errors, as in this process."""
    (tmp_path / "f").write_text("before\n")
    with (
        client.create(tmp_path, name="one", labels={"for": "tests"}) as sb,
        staddle.Sandbox(tmp_path) as local,
    ):
        result, own = (
            each.run("echo out; echo err >&2; printf '\\377'; cd /tmp; exit 3") for each in (sb, local)
        )
        assert type(result) is type(own)
        assert result.stdout_bytes == own.stdout_bytes == b"out\n\xff"
        assert (result.exit_code, result.reason, result.stderr) == (3, own.reason, "err\n")
        assert sb.state.cwd == local.state.cwd
        assert sb.labels == {"for": "tests"}
        assert sb.policy == local.policy
        assert sb.exec(["printf", "a b"]).stdout == "a b"
        sb.run("cd /workspace; echo after > f; echo new > g")
        assert {(each.kind, each.path) for each in sb.diff()} == {
            ("modified", "/workspace/f"),
            ("added", "/workspace/g"),
        }
        assert "+after" in sb.text_diff()
        assert sb.files.read("f") == "after\n"
        with pytest.raises(FileNotFoundError):
            sb.files.read("nope")
        with pytest.raises(CommandFailed) as failed:
            sb.run("false", check=True)
        assert failed.value.result is not None
        point = sb.snapshot("point")
        sb.run("rm g; x=1")
        assert sb.restore("point").ended == ()
        assert sb.files.exists("g")
        assert sb.snapshots() == [point]
        (fork,) = sb.fork()
        assert fork.run("cat g").stdout == "new\n"
        assert client.get("one").id == sb.id
        second = sb.session("second")
        second.run("y=2")
        assert second.run("echo $y").stdout == "2\n"
        assert sb.run("echo [$y]").stdout == "[]\n"
        review = sb.review()
        assert [each.path for each in review.changes] == ["/workspace/f", "/workspace/g"]
        review.commit()
        assert (tmp_path / "f").read_text() == "after\n"
        assert sb.diff() == []


def test_a_background_process_reads_and_is_ended(client: Client) -> None:
    with client.create() as sb:
        process = sb.start("while read line; do echo got $line; done; exit 4")
        process.send_stdin("a\nb\n")
        process.close_stdin()
        assert process.wait(10) == 4
        assert b"".join(each.data for each in process.stream()) == b"got a\ngot b\n"
        long = sb.start(["sleep", unique_seconds()])
        assert long.running
        long.kill()
        assert long.wait(10) == 137
        assert [each.pid for each in sb.processes()] == [process.pid, long.pid]


def test_a_history_goes_back_and_forth(client: Client, tmp_path: Path) -> None:
    """With the same points as here; what needs this process says how to go on here."""
    name = f"history-{os.getpid()}-{os.getuid()}"
    try:
        with client.create(tmp_path, history=True, keep=name) as sb:
            sb.run("echo 1 > f")
            sb.run("echo 2 > f; echo new > g")
            first, second, third = sb.history()
            assert (second.command, second.changed, third.cause) == ("echo 1 > f", 1, "command")
            assert [each.path for each in third.diff(second)] == ["/workspace/f", "/workspace/g"]
            assert {each.kind for each in first.diff(third)} == {"deleted"}
            step = sb.undo()
            assert (step.point, step.points, step.ended) == (second, (third,), ())
            assert sb.files.read("f") == "1\n"
            assert sb.redo().point == third
            with pytest.raises(InvalidCall, match="undo"):
                sb.undo(0)
            with pytest.raises(FileNotFoundError):
                sb._request("GET", "/history/99/changes")
            for refused in ("at", "bisect", "blame", "merge", "best_of"):
                with pytest.raises(InvalidCall, match="use"):
                    getattr(sb, refused)("f")
        with staddle.Sandbox(tmp_path, keep=name, history=True) as local:
            assert [each.command for each in local.history()][1:3] == [
                "echo 1 > f",
                "echo 2 > f; echo new > g",
            ]
    finally:
        staddle.remove_kept(name)
    with client.create() as sb, pytest.raises(InvalidCall, match="history"):
        sb.undo()


def test_a_snapshot_continues_an_interpreter(client: Client) -> None:
    with client.create() as sb:
        sb.python("x = 1")
        point = sb.snapshot("p", processes="interpreter")
        assert point.processes == sb.snapshots()[0].processes
        assert len(point.processes.kept) == 1
        sb.python("x = 2")
        sb.restore(point)
        assert sb.python("print(x)").stdout == "1\n"


def test_options_that_cannot_travel_are_refused(client: Client) -> None:
    with pytest.raises(InvalidCall, match="ask=True"):
        client.create(on_connect=lambda _: True)
    with client.create() as sb:
        with pytest.raises(InvalidCall, match="no such option"):
            sb.run("true", colour="red")
        with pytest.raises(InvalidCall, match="nonsense"):
            sb._request("POST", "/commands", {"id": "x", "command": "true", "nonsense": 1})


def test_a_policy_travels_and_is_checked(server: ServerProcess, client: Client) -> None:
    """As a value from the client, and in the form of a policy file from curl."""
    with client.create(policy=staddle.Policy.agent().with_env(A="1").with_limits(timeout=7)) as sb:
        assert sb.run("echo $A").stdout == "1\n"
        assert sb.policy.limits.timeout == 7
    status, made = asked(
        Unix(server.path), "POST", "/v1/sandboxes", {"policy": {"env": {"B": "2"}, "limits": {"timeout": 5}}}
    )
    assert status == 201
    assert client.get(made["id"]).run("echo $B").stdout == "2\n"
    status, refused = asked(Unix(server.path), "POST", "/v1/sandboxes", {"policy": {"reed": ["/"]}})
    assert (status, refused["error"]["type"]) == (400, "PolicyError")
    assert "reed" in refused["error"]["what"] + refused["error"]["why"]
    with pytest.raises(PolicyError):
        client.create(policy=staddle.Policy(read=["/nonexistent-directory"]))


def test_an_interrupt_ends_a_command_and_only_that(client: Client) -> None:
    with client.create() as sb:
        stream = sb.stream(f"x=5; echo go; sleep {unique_seconds()}")
        assert next(stream).text == "go\n"
        status = threading.Thread(target=stream.close)
        status.start()
        status.join(20)
        assert stream.result is not None
        assert stream.result.reason == "cancelled"
        assert sb.run("echo $x").stdout == "5\n"


def test_a_question_waits_for_an_answer(client: Client) -> None:
    with client.create(ask=True, on_connect_timeout=20) as sb:
        if sb.enforced.backend != "namespaces":
            pytest.fail("the questions of a sandbox need its gateway")
        stream = sb.stream(
            "timeout 20 bash -c 'exec 3<>/dev/tcp/127.0.0.53/53'; curl -sm 10 http://host.invalid/"
        )
        assert until(sb.questions), "nobody was asked"
        (question,) = sb.questions()
        assert question["event"].what.startswith("host.invalid")
        sb.answer(question["id"], False)
        list(stream)
        kinds = [each["kind"] for each in client.events(sandbox=sb.id)["events"]]
        assert {"created", "command", "question", "answer", "result"} <= set(kinds)


# ------------------------------------------------------------ terminals


def test_a_terminal_goes_on_while_nobody_is_attached(client: Client) -> None:
    """A second attachment continues at the offset of the first, without loss or repetition."""
    with client.create() as sb:
        terminal = sb.terminal(["bash", "-c", "for ((i=0;;i++)); do echo line-$i; read -t 0.01; done"])
        seen = b""
        for _ in range(5):
            connection, messages = terminal.attach(len(seen))
            offset = None
            while len(seen) % 5000 < 4000:
                kind, data = messages.message()  # type: ignore[misc]
                if kind == TEXT:
                    offset = json.loads(data)["offset"]
                    assert offset == len(seen)
                else:
                    seen += data
            seen += messages.message()[1]  # type: ignore[index]
            connection.close()
        lines = seen.decode().split("\r\n")[:-1]
        assert lines == [f"line-{n}" for n in range(len(lines))]
        connection, messages = terminal.attach()
        messages.send(TEXT, b'{"rows":33,"cols":99}')
        assert until(lambda: sb.terminals()[0].rows == 33), "it was not resized"
        messages.send(BINARY, b"\x03")
        connection.close()


# ------------------------------------------------------------ connections that break


def cut(server: ServerProcess, tmp_path: Path, cuts: int) -> None:
    """Drive a sandbox through connections that break at random moments, until so many have."""
    relay = CuttingRelay(str(tmp_path / "relay"), server.path, seed=cuts, most=60_000)
    expected = b"".join(b"%d\n" % n for n in range(1, 1501))
    with staddle.connect(server.path) as straight, straight.create() as sb:
        with staddle.connect(relay.path) as client:
            remote = client.get(sb.id)
            count = 0
            while relay.cuts < cuts:
                count += 1
                assert remote.run(f"echo {count} >> /tmp/times; echo {count}").stdout == f"{count}\n"
                data = b"".join(
                    each.data for each in remote.stream("seq 1500; seq 100 >&2") if each.stream == "stdout"
                )
                assert data == expected
                remote.files.append("log", f"{count}\n")
                process = remote.start("cat > in")
                for n in range(3):
                    process.send_stdin(f"{n}" * 700)
                process.close_stdin()
                process.wait(10)
                assert remote.files.read("in") == "0" * 700 + "1" * 700 + "2" * 700
        numbers = "".join(f"{n}\n" for n in range(1, count + 1))
        assert sb.files.read("/tmp/times") == numbers
        assert sb.files.read("log") == numbers
    relay.close()


def test_cut_connections_lose_and_repeat_nothing(server: ServerProcess, tmp_path: Path) -> None:
    cut(server, tmp_path, 30)


def test_a_large_output_survives_cut_connections(server: ServerProcess, tmp_path: Path) -> None:
    """Its next piece is asked for before the last one is read."""
    relay = CuttingRelay(str(tmp_path / "relay"), server.path, seed=1, most=16_000_000)
    expected = b"".join(b"%d\n" % n for n in range(1, 800_001))
    with staddle.connect(relay.path) as client, client.create() as sb:
        while relay.cuts < 3:
            assert b"".join(each.data for each in sb.stream("seq 800000")) == expected
    relay.close()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_thousand_cut_connections_lose_and_repeat_nothing(server: ServerProcess, tmp_path: Path) -> None:
    cut(server, tmp_path, 1000)


def test_a_slow_reader_slows_only_its_own_command(client: Client) -> None:
    """Its command waits, bounded in the server; another command of the same sandbox does not."""
    with client.create() as sb:
        slow = sb.stream("head -c 60000000 /dev/zero")
        first = next(slow)
        began = time.monotonic()
        assert sb.session("other").run("seq 3").stdout == "1\n2\n3\n"
        assert time.monotonic() - began < 10
        time.sleep(1)
        (facts,) = [each for each in sb.commands() if each["id"] == slow.id]
        assert facts["output_end"] < 32 << 20
        assert len(first.data) + sum(len(each.data) for each in slow) == 60_000_000


# ------------------------------------------------------------ ends


def test_a_killed_client_harms_nothing(server: ServerProcess, client: Client) -> None:
    seconds = unique_seconds()
    code = (
        f"import staddle; c = staddle.connect({server.path!r}); sb = c.create(name='left');"
        f"sb.run('echo begun > state; sleep {seconds}; echo done >> state')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    assert until(lambda: with_argument(seconds)), "the command did not start"
    other.kill()
    other.communicate()
    sb = client.get("left")
    assert sb.alive
    assert with_argument(seconds), "the command ended with its client"
    assert sb.files.read("/workspace/state") == "begun\n"
    sb.interrupt()
    sb.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_server_leaves_nothing_but_what_is_kept(number: int, tmp_path: Path) -> None:
    """SIGTERM and SIGKILL; the next server continues the kept sandbox."""
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    seconds, name = unique_seconds(), f"kept-{os.getpid()}-{int(number)}"
    with ServerProcess(tmp_path) as server, staddle.connect(server.path) as client:
        kept = client.create(project, keep=name)
        kept.run("echo 1 > work")
        kept.start(["sleep", seconds])
        client.create().start(["sleep", seconds])
        assert until(lambda: len(with_argument(seconds)) >= 2), "the programs did not start"
        server.process.send_signal(number)
        server.process.wait(30)
        assert until(lambda: not with_argument(seconds)), "a program outlived the server"
    try:
        with ServerProcess(tmp_path) as server, staddle.connect(server.path) as client:
            assert name in client._transport.request("GET", "/v1/kept").json()
            with client.create(project, keep=name) as again:
                assert again.run("cat work").stdout == "1\n"
    finally:
        staddle.remove_kept(name)


def test_two_programs_start_one_server(tmp_path: Path) -> None:
    """Even if eight begin at the same time, without a server; and it ends when nobody uses it."""
    path = str(tmp_path / "socket")
    pids = []

    def use() -> None:
        connected_or_started(path, idle=1).close()
        with staddle.connect(path) as client:
            pids.append(client.about()["pid"])
            time.sleep(1)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(pids) == 8
    assert len(set(pids)) == 1
    assert until(lambda: not os.path.exists(f"/proc/{pids[0]}")), "the idle server did not end"
    assert not os.path.exists(path)


def test_a_sandbox_that_a_dead_client_left_ends(tmp_path: Path) -> None:
    """And with it a server that was started on first use. A label, a limit or a living client keeps it."""
    path, seconds = str(tmp_path / "socket"), unique_seconds()
    connected_or_started(path, idle=0.5, unused=1).close()
    with staddle.connect(path) as client:
        pid = client.about()["pid"]
        mine = client.create(name="mine")
        with staddle.connect(path) as other:
            other.create(name="left").start(["sleep", seconds])
            other.create(name="labelled", labels={"for": "tests"})
            other.create(name="limited", policy=staddle.Policy.agent().with_limits(max_lifetime=3600))
        assert until(lambda: {each.name for each in client.list()} == {"mine", "labelled", "limited"})
        assert until(lambda: not with_argument(seconds)), "its program goes on"
        assert mine.run("echo here").stdout == "here\n"
        for name in ("labelled", "limited"):
            client.get(name).close()
    assert until(lambda: not os.path.exists(f"/proc/{pid}")), "the server did not end"


# ------------------------------------------------------------ doors


def test_no_sandbox_reaches_the_server() -> None:
    """No policy grants its socket, and none shows it. Another socket can be granted."""
    path = default_socket()
    connected_or_started(path, idle=2).close()
    for policy in (
        staddle.Policy.agent().with_sockets(path),
        staddle.Policy.agent().with_write(Path(path).parent),
    ):
        with pytest.raises(PolicyError, match="cannot be granted"):
            staddle.Sandbox(policy=policy)
    code = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == 0
    open_network = staddle.Policy.agent().with_network(staddle.Network.open())
    for policy in (open_network, open_network.with_read(Path(path).parent)):
        with staddle.Sandbox(policy=policy) as sb:
            assert sb.exec(["python3", "-c", code, path]).exit_code == 1


@pytest.mark.needs_root
def test_another_user_is_refused_by_the_socket(tmp_path: Path) -> None:
    """Its directory refuses; opened for all, the peer's credentials do. As its own user it works."""
    setpriv = shutil.which("setpriv")
    assert setpriv, "install util-linux"
    with ServerProcess(tmp_path) as server:
        code = (
            "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
            "s.sendall(b'GET /v1 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'); print(s.recv(20))"
        )

        def seen(*prefix: str) -> str:
            done = subprocess.run(
                [*prefix, "/usr/bin/python3", "-c", code, server.path],
                capture_output=True,
                text=True,
                check=False,
            )
            return done.stdout + done.stderr

        other = (setpriv, "--reuid=12345", "--regid=12345", "--clear-groups")
        assert "200 OK" in seen()
        assert "PermissionError" in seen(*other)
        for directory in (tmp_path, *tmp_path.parents[:-2]):
            directory.chmod(0o755)
        os.chmod(server.path, 0o777)
        refused = seen(*other)
        assert "200 OK" not in refused
        assert "b''" in refused or "ConnectionResetError" in refused or "BrokenPipe" in refused


def tcp(server: ServerProcess) -> tuple[http.client.HTTPConnection, str]:
    netloc = server.facts["url"].removeprefix("http://")
    return http.client.HTTPConnection(netloc, timeout=20), netloc


def test_the_port_needs_the_token(server: ServerProcess) -> None:
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert asked(tcp(server)[0], "GET", "/v1", **right)[0] == 200
    for headers in (
        {},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Basic eA=="},
        {"Cookie": TOKEN},
    ):
        assert asked(tcp(server)[0], "GET", "/v1/sandboxes", **headers)[0] == 401
    assert asked(tcp(server)[0], "GET", f"/v1?token={TOKEN}")[0] == 401
    with staddle.connect(server.facts["url"], token=TOKEN) as client, client.create() as sb:
        assert sb.run("echo over tcp").stdout == "over tcp\n"
    with pytest.raises(StaddleError, match="token"):
        staddle.connect(server.facts["url"], token="x" * 40)


def test_a_web_page_of_another_site_is_refused(server: ServerProcess) -> None:
    """DNS rebinding has another Host, a form another Origin; the server's own names are accepted."""
    netloc = tcp(server)[1]
    right = {"Authorization": f"Bearer {TOKEN}"}
    port = netloc.rpartition(":")[2]
    for host, status in (
        (netloc, 200),
        (f"localhost:{port}", 200),
        (f"evil.example:{port}", 421),
        ("127.0.0.1", 421),
    ):
        assert asked(tcp(server)[0], "GET", "/v1", Host=host, **right)[0] == status
    for origin, status in ((f"http://{netloc}", 200), ("http://evil.example", 403), ("null", 403)):
        assert asked(tcp(server)[0], "GET", "/v1", Origin=origin, **right)[0] == status
    assert asked(tcp(server)[0], "GET", "/v1", Sec_Fetch_Site="cross-site", **right)[0] == 403
    assert asked(Unix(server.path), "GET", "/v1", Origin=f"http://{netloc}")[0] == 403
    assert asked(Unix(server.path), "GET", "/v1")[0] == 200


def test_nothing_but_loopback_is_served_without_tls(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "staddle", "serve", "--socket", str(tmp_path / "s"), "--listen", "0.0.0.0:0"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 125
    assert "TLS" in done.stderr


def test_the_port_speaks_tls_with_a_certificate(tmp_path: Path) -> None:
    """To who trusts it, by the name in it; neither to others, nor without TLS."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    openssl = shutil.which("openssl")
    assert openssl, "install openssl: it makes the certificate of this test"
    words = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    alternatives = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    done = subprocess.run(
        [openssl, "req", "-x509", *words, "-addext", alternatives, "-keyout", key, "-out", certificate],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    options = ("--listen", "127.0.0.1:0", "--cert", str(certificate), "--key", str(key))
    with ServerProcess(tmp_path, *options, STADDLE_SERVER_TOKEN=TOKEN) as server:
        url = server.facts["url"]
        assert url.startswith("https://")
        for name in (url, url.replace("127.0.0.1", "localhost")):
            with staddle.connect(name, token=TOKEN, cafile=str(certificate)) as client, client.create() as sb:
                size = sum(len(each.data) for each in sb.stream("head -c 3000000 /dev/zero"))
                assert size == 3_000_000
                terminal = sb.terminal(["cat"])
                connection, messages = terminal.attach()
                messages.send(BINARY, b"typed\r")
                seen = b""
                while b"typed" not in seen:
                    seen += messages.message()[1]  # type: ignore[index]
                connection.close()
        with pytest.raises(StaddleError, match="certificate"):
            staddle.connect(url, token=TOKEN)
        plain = http.client.HTTPConnection(url.removeprefix("https://"), timeout=20)
        with pytest.raises((OSError, http.client.HTTPException)):
            asked(plain, "GET", "/v1", Authorization=f"Bearer {TOKEN}")


# ------------------------------------------------------------ limits


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Client]:
    """A client of a server of this process, whose limits are small."""
    from staddle.server.server import SandboxServer

    server = SandboxServer()
    server.sandboxes.most = 2
    server.listen(unix_listener(str(tmp_path / "small")), SocketAccess())
    with staddle.connect(str(tmp_path / "small")) as client:
        yield client
    server.end()


def test_a_server_has_a_most_of_sandboxes(small: Client) -> None:
    """Forks count. A closed one makes room."""
    first = small.create()
    second = small.create()
    for work in (small.create, first.fork):
        with pytest.raises(SessionBusy, match="at most 2"):
            work()
    second.close()
    assert len(first.fork()) == 1


def test_a_sandbox_has_a_most_of_terminals_and_snapshots(
    small: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("staddle.server.sandboxes.MOST_TERMINALS", 1)
    monkeypatch.setattr("staddle.server.sandboxes.MOST_SNAPSHOTS", 1)
    with small.create() as sb:
        terminal = sb.terminal(["cat"])
        with pytest.raises(SessionBusy, match="terminals"):
            sb.terminal(["cat"])
        terminal.close()
        sb.terminal(["cat"]).close()
        snapshot = sb.snapshot()
        with pytest.raises(SessionBusy, match="snapshots"):
            sb.snapshot()
        snapshot.close()
        sb.snapshot("one")


def test_a_sandbox_has_a_most_of_commands(small: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that run, and of ended ones whose results are kept. No id runs twice, even a dropped one."""
    monkeypatch.setattr("staddle.server.commands.MOST_RUNNING", 1)
    monkeypatch.setattr("staddle.server.commands.KEPT_COMMANDS", 2)
    with small.create() as sb:
        process = sb.start("cat")
        with pytest.raises(SessionBusy, match="commands"):
            sb.run("true")
        process.kill()
        process.wait(PATIENCE)
        assert until(lambda: sb.describe()["commands"] == 0)
        again = {"id": "first", "command": "echo once >> times"}
        sb._request("POST", "/commands", again)
        for _ in range(3):
            sb.run("true")
        assert until(lambda: len(sb.commands()) == 2)
        with pytest.raises(InvalidCall, match="has run"):
            sb._request("POST", "/commands", again)
        assert sb.files.read("times") == "once\n"


def test_a_server_has_a_most_of_connections(small: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is closed. The others go on, and one that ends makes room."""
    monkeypatch.setattr("staddle.server.server.MOST_CONNECTIONS", 2)
    path = str(small._transport.where)
    second, third = Unix(path), Unix(path)
    assert asked(second, "GET", "/v1")[0] == 200
    with pytest.raises((OSError, http.client.HTTPException)):
        asked(third, "GET", "/v1")
    assert small.about()["sandboxes"] == 0
    second.close()

    def is_served() -> bool:
        try:
            return bool(asked(Unix(path), "GET", "/v1")[0] == 200)
        except (OSError, http.client.HTTPException):
            return False

    assert until(is_served), "no room was made"


def test_bodies_and_heads_have_a_limit(small: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, and the connection closed. A file may be larger than a JSON body."""
    path = str(small._transport.where)
    for headers, status in (({"X": "a" * (17 << 10)}, 431), ({f"X_{n}": "a" for n in range(70)}, 431)):
        assert asked(Unix(path), "GET", "/v1", **headers)[0] == status
    monkeypatch.setattr("staddle.server.http.HttpRequest.read.__defaults__", (1000,))
    with small.create() as sb:
        base = f"/v1/sandboxes/{sb.id}"
        status, refused = asked(Unix(path), "POST", f"{base}/commands", {"command": "#" * 2000})
        assert (status, refused["error"]["type"]) == (413, "InvalidCall")
        assert asked(Unix(path), "PUT", f"{base}/files/content?path=f", b"a" * 2000)[0] == 200
        assert asked(Unix(path), "POST", f"{base}/commands", {"command": "true"})[0] == 201


def test_questions_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A further one is refused at once; each waits for its time and no longer."""
    monkeypatch.setattr("staddle.server.sandboxes.MOST_QUESTIONS", 1)
    entry = SandboxEntry("one", EventLog(), {"on_connect_timeout": PATIENCE})
    event = staddle.Event("question", "a.example:443", "unlisted")
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(entry.on_connect(event)))
    waiting.start()
    assert until(lambda: entry.questions)
    assert entry.on_connect(event) is False
    entry.answer(next(iter(entry.questions)), True)
    waiting.join()
    assert answers == [True]
    entry.options["on_connect_timeout"] = 0.01
    assert entry.on_connect(event) is False


def test_files_are_streamed_in_ranges(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    with client.create() as sb:
        base = f"/v1/sandboxes/{sb.id}/files/content?path=big"
        content = os.urandom(3 << 20)
        assert asked(Unix(server.path), "PUT", base, content)[0] == 200
        assert asked(Unix(server.path), "GET", base)[1] == content
        status, part = asked(Unix(server.path), "GET", base, Range="bytes=1000-1999")
        assert (status, part) == (206, content[1000:2000])
        assert asked(Unix(server.path), "GET", base, Range="bytes=-5")[1] == content[-5:]
        assert asked(Unix(server.path), "GET", base, Range="bytes=99999999-")[0] == 416
        sb.files.download("big", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == content


def test_a_short_outcome_is_what_the_whole_answer_says(server: ServerProcess, client: Client) -> None:
    """Also to a request that is repeated, and later. Programs that do not ask for it get all fields."""
    with client.create() as sb:
        base = f"/v1/sandboxes/{sb.id}/commands"
        body = {"id": "c", "command": r"printf 'a\n\377'; echo b >&2; false"}
        for method, path in (("POST", base), ("POST", base), ("GET", f"{base}/c")):
            sent = body if method == "POST" else None
            whole = asked(Unix(server.path), method, path, sent)[1]
            short = asked(Unix(server.path), method, f"{path}?short=1", sent)[1]
            line, _, beside = short.partition(b"\n")
            found = json.loads(line)
            assert whole["stdout"] == "a\n\ufffd"
            assert found.keys() == {"id", "state", "result"}
            result = read_result(found["result"], beside)
            assert result == decode(whole["result"])
            assert (result.stdout_bytes, result.stderr_bytes, result.exit_code) == (b"a\n\xff", b"b\n", 1)


def test_the_description_describes_the_answers(server: ServerProcess, client: Client) -> None:
    """Every GET without further parts answers as its description says, and metrics are Prometheus' text."""
    import jsonschema

    connection = Unix(server.path)
    description = asked(connection, "GET", "/v1/openapi.json")[1]
    with client.create(history=True) as sb:
        sb.run("echo a > f")
        for path, operations in description["paths"].items():
            operation = operations.get("get")
            if (
                operation is None
                or path.count("{") > 1
                or any(each["required"] for each in operation["parameters"][1:])
            ):
                continue
            status, found = asked(connection, "GET", path.replace("{sandbox}", sb.id))
            assert status == 200, path
            for media in operation["responses"]["200"].get("content", {}).values():
                if media:
                    jsonschema.validate(found, media["schema"])
        status, failed = asked(connection, "GET", "/v1/sandboxes/nope")
        assert status == 404
        jsonschema.validate(failed, description["components"]["schemas"]["Error"])
        assert b"staddle_sandboxes 1" in asked(connection, "GET", "/metrics")[1]
