"""A fleet on three Ray nodes of this machine: real keepers, real sandboxes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Policy, Sandbox, Snapshot
from staddle.errors import (
    CommandFailed,
    CommitRefused,
    FleetBusy,
    FleetError,
    FleetLost,
    InvalidCall,
    SandboxClosed,
    SandboxLost,
    StaddleError,
)
from staddle.fleet import AsyncFleet, Fleet, FleetLimits
from tests.fleet.ray_nodes import NODE, Nodes, leftovers
from tests.support.waiting import PATIENCE, unique_seconds, until


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    made = Nodes(2)
    made.connect()
    yield made
    made.close()


@pytest.fixture(scope="module")
def fleet(nodes: Nodes) -> Iterator[Fleet]:
    with Fleet(lease=120) as made:
        assert until(lambda: len(made.status()["nodes"]) == 3 and made.status()["capacity"] == 384)
        yield made


def test_gpus_on_a_cluster_without_any(nodes: Nodes) -> None:
    with pytest.raises(FleetError, match="no node of the cluster has a GPU"):
        Fleet(gpus=1)


def test_each_sandbox_asks_for_a_gpu_that_ray_reserved(nodes: Nodes) -> None:
    node = nodes.cluster.add_node(num_gpus=2, **NODE)
    try:
        with Fleet(gpus=8) as made:
            assert made.status()["capacity"] == 2
            with pytest.raises(StaddleError, match=r"nvidia:[01]"):
                made.create()
            assert made.status()["in_use"] == 0
    finally:
        nodes.cluster.remove_node(node)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "sub").mkdir(parents=True)
    (made / "a.txt").write_text("hello\n")
    (made / "sub" / "x.sh").write_text("echo hi\n")
    (made / "link").symlink_to("a.txt")
    return made


def test_a_sandbox_remembers(fleet: Fleet) -> None:
    with fleet.create() as sb:
        assert sb.run("cd /tmp && export A=1").ok
        assert sb.run("pwd; echo $A").stdout == "/tmp\n1\n"
        assert sb.exec(["printf", "%s", "a b"]).stdout == "a b"
        assert sb.session("dev").run("pwd").stdout == "/workspace\n"
        assert sb.run("cat", stdin=b"in").stdout == "in"
        assert sb.state().cwd == "/tmp"
        assert sb.alive()
        assert sb.enforced().backend == "namespaces"
    with pytest.raises(SandboxClosed):
        sb.run("true")
    assert not sb.alive()


def test_errors_are_those_of_a_local_sandbox(fleet: Fleet) -> None:
    with fleet.create() as sb:
        with pytest.raises(CommandFailed) as failed:
            sb.run("echo no >&2; exit 3", check=True)
        assert failed.value.result.exit_code == 3
        with pytest.raises(FileNotFoundError):
            sb.files.read("missing")
        with pytest.raises(InvalidCall):
            sb.run("true", timeout=-1)
        with pytest.raises(InvalidCall, match="does not work in a fleet"):
            sb.run("true", spill="/tmp/x")
        assert sb.run("sleep 1000", timeout=1).timed_out


def test_output_is_heard_as_it_comes(fleet: Fleet) -> None:
    with fleet.create() as sb:
        heard: list[str] = []
        result = sb.run("echo out; echo err >&2", on_stdout=heard.append)
        assert ("".join(heard), result.stderr) == ("out\n", "err\n")
        stream = sb.stream("echo one; echo two >&2; exit 4")
        assert sorted((chunk.stream, chunk.data) for chunk in stream) == [
            ("stderr", b"two\n"),
            ("stdout", b"one\n"),
        ]
        assert stream.result is not None
        assert stream.result.exit_code == 4


def test_a_process_in_the_background(fleet: Fleet) -> None:
    with fleet.create() as sb:
        process = sb.start("read line; echo got $line; sleep 1000")
        process.send_stdin("it\n")
        assert until(lambda: process.output()["stdout"] == "got it\n")
        assert process.poll() is None
        process.kill(signal.SIGKILL)
        assert process.wait(PATIENCE) == 137


def test_servers_inside_are_reached_from_the_driver(fleet: Fleet) -> None:
    import socket

    serve = "import socket; s=socket.create_server(('127.0.0.1', 8000)); print('up', flush=True)\n"
    serve += "while True:\n c=s.accept()[0]; c.sendall(b'hello ' + c.recv(100)); c.close()"
    with fleet.create() as sb:
        server = sb.start(["python3", "-c", serve])
        assert "up" in str(server.wait_for_text("up", PATIENCE))
        for number in range(3):
            with sb.connect(8000) as peer:
                peer.sendall(b"world")
                assert peer.makefile("rb").read() == b"hello world", number
        port = sb.expose(8000)
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as peer:
            peer.sendall(b"all")
            assert peer.makefile("rb").read() == b"hello all"
        with pytest.raises(StaddleError, match="nothing listens"):
            sb.connect(8001)
        assert [process.pid for process in sb.processes()] == [server.pid]
        assert server.running()
        assert sb.kill(server.pid)
        assert server.wait(PATIENCE) is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()


def test_a_terminal(fleet: Fleet) -> None:
    with fleet.create() as sb:
        terminal = sb.terminal(["sh", "-c", "read a; stty size; echo got $a"], rows=30, cols=90)
        terminal.resize(31, 91)
        terminal.write("it\n")
        seen = b""
        while b"got it" not in seen and (data := terminal.read(PATIENCE)):
            seen += data
        assert b"31 91" in seen
        assert b"got it" in seen
        assert terminal.wait(PATIENCE) == 0
        terminal.close()


def test_names_that_are_simply_forwarded(fleet: Fleet, tmp_path: Path) -> None:
    with fleet.create() as sb:
        sb.files.write_many({"a": "one\n", "d/b": "two\n"})
        sb.files.append("a", "more\n")
        assert sb.files.edit("a", "one", "1") == 1
        assert [match.text for match in sb.files.grep("mor")] == ["more"]
        sb.files.copy("a", "c")
        sb.files.chmod("c", 0o600)
        assert sb.files.realpath("c") == "/workspace/c"
        assert sb.files.download("c", tmp_path / "c") == len("1\nmore\n")
        sb.files.upload(tmp_path / "c", "e/c")
        assert sb.files.read("e/c") == "1\nmore\n"
        assert sb.python("a = 1; a + 1").text == "2"
        assert sb.code("python", "a").text == "1"
        assert any(process.pid for process in sb.ps())
        sb.set_timeout(1000)
        assert (sb.extend(10) or 0) > 1000
        assert sb.labels() == {}
        assert sb.name == sb.id
        first = sb.snapshot("first")
        assert [(each.number, each.label) for each in sb.snapshots()] == [(first.number, "first")]
        stream = sb.stream("echo begun; sleep 1000")
        assert next(stream).data == b"begun\n"
        stream.close()
        assert sb.run("echo after", timeout=PATIENCE).stdout == "after\n"
        with pytest.raises(InvalidCall, match="no environment"):
            sb.environment()


def test_commands_take_the_direct_way_and_do_without_it(fleet: Fleet) -> None:
    with fleet.create() as sb:
        keeper = sb._calls.keeper
        assert sb.run("echo direct").stdout == "direct\n"
        assert keeper.channel is not None
        assert keeper.channel._idle
        away, keeper.channel = keeper.channel, None
        try:
            assert sb.run("echo through Ray").stdout == "through Ray\n"
            with pytest.raises(FleetError, match="cannot be reached"):
                sb.connect(8000)
        finally:
            keeper.channel = away


def test_files_and_archives(fleet: Fleet) -> None:
    with fleet.create() as sb:
        sb.files.write("d/f", b"\x80\x04cos\nsystem\n", parents=True)  # a pickle is bytes like any others
        assert sb.files.read_bytes("d/f") == b"\x80\x04cos\nsystem\n"
        assert [entry.name for entry in sb.files.list("d")] == ["f"]
        out = io.BytesIO()
        sb.download_tar(out, "d")
        with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
            assert [name for name in tar.getnames() if name.endswith("f")] != []
        sb.upload_tar(io.BytesIO(out.getvalue()), "copy")
        assert sb.files.exists("copy")


def test_changes_come_back_and_are_committed(fleet: Fleet, project: Path) -> None:
    with fleet.create(workspace=project) as sb:
        assert sb.run("cat a.txt; sh sub/x.sh; readlink link").stdout == "hello\nhi\na.txt\n"
        sb.run("echo changed > a.txt; echo new > sub/n; rm link").check()
        changes = {(change.kind, change.path) for change in sb.diff()}
        assert changes == {
            ("modified", "/workspace/a.txt"),
            ("added", "/workspace/sub/n"),
            ("deleted", "/workspace/link"),
        }
        assert "+changed" in sb.text_diff()
        assert (project / "a.txt").read_text() == "hello\n"
        sb.commit()
        assert (project / "a.txt").read_text() == "changed\n"
        assert not (project / "link").exists()
        sb.run("echo twice > a.txt").check()
        sb.commit(["a.txt"])
        assert (project / "a.txt").read_text() == "twice\n"


def test_what_the_host_changed_meanwhile_is_a_conflict(fleet: Fleet, project: Path) -> None:
    with fleet.create(workspace=project) as sb:
        (project / "a.txt").write_text("the user's\n")
        sb.run("echo agent > a.txt; echo new > b.txt").check()
        with pytest.raises(CommitRefused) as refused:
            sb.commit()
        assert [change.path for change in refused.value.conflicts] == ["/workspace/a.txt"]
        assert (project / "a.txt").read_text() == "the user's\n"
        assert not (project / "b.txt").exists()
        sb.commit(on_conflict="overwrite")
        assert (project / "a.txt").read_text() == "agent\n"


def test_protected_names_are_not_committed_unasked(fleet: Fleet, project: Path) -> None:
    with fleet.create(workspace=project) as sb:
        sb.run(
            "mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit"
        ).check()
        with pytest.raises(CommitRefused):
            sb.commit()
        assert not (project / ".git").exists()


def test_forks_on_one_node_are_merged(fleet: Fleet, project: Path) -> None:
    with fleet.create(workspace=project) as sb:
        sb.run("seq 9 > n; cd sub").check()
        first, second = sb.fork(2, spread=False)
        first.run("sed -i s/2/two/ /workspace/n; echo 1 > /workspace/a").check()
        second.run("sed -i s/8/eight/ /workspace/n").check()
        refused = sb.merge(first, second, test="! grep eight /workspace/n")
        assert (refused.ok, refused.written, refused.before) == (False, False, None)
        assert not refused.test.ok
        done = sb.merge(first, second, test=lambda box: box.files.exists("/workspace/a"))
        assert (done.ok, done.written, done.test) == (True, True, True)
        assert {each.path for each in done.changes} == {"/workspace/n", "/workspace/a"}
        assert sb.run("tr '\\n' ' ' < /workspace/n").stdout == "1 two 3 4 5 6 7 eight 9 "
        sb.restore(done.before)
        assert not sb.files.exists("/workspace/a")
        first.run("echo one > /workspace/n").check()
        second.run("echo another > /workspace/n").check()
        clash = sb.merge(first, second)
        assert not clash.written
        (conflict,) = clash.conflicts
        assert (conflict.path, conflict.kind, conflict.fork) == ("/workspace/n", "content", 1)
        assert (conflict.ours(), conflict.theirs()) == (b"one\n", b"another\n")
        assert b"<<<<<<<" in (conflict.marked() or b"")
        assert sb.merge(first, second, on_conflict="theirs").written
        assert sb.files.read("/workspace/n") == "another\n"
        (elsewhere,) = [fork for fork in sb.fork(4) if fork.node != sb.node][:1]
        with pytest.raises(InvalidCall, match="another node"):
            sb.merge(elsewhere)


def test_forks_are_on_several_nodes_and_continue_from_here(fleet: Fleet, project: Path) -> None:
    with fleet.create(workspace=project) as sb:
        sb.run("cd sub; export A=here; echo mine > f").check()
        forks = sb.fork(6)
        assert len({fork.node for fork in forks}) == 3
        assert {fork.run("cat f; echo $A; pwd").stdout for fork in forks} == {"mine\nhere\n/workspace/sub\n"}
        forks[0].run("echo other > f").check()
        assert forks[1].run("cat f").stdout == "mine\n"
        here = sb.fork(2, spread=False)
        assert {fork.node for fork in here} == {sb.node}
        for fork in (*forks, *here):
            fork.close()


def test_snapshots_travel(fleet: Fleet, tmp_path: Path) -> None:
    with fleet.create() as sb:
        sb.run("echo one > f").check()
        taken = sb.snapshot("one")
        sb.run("echo two > f").check()
        with fleet.create(snapshot=taken) as other:
            assert other.run("cat f").stdout == "one\n"
        sb.restore(taken)
        assert sb.run("cat f").stdout == "one\n"
        sb.save(tmp_path / "saved", taken)
    with Sandbox.from_snapshot(tmp_path / "saved") as local:
        assert local.run("cat f").stdout == "one\n"
    with fleet.create(snapshot=Snapshot.load(tmp_path / "saved")) as again:
        assert again.run("cat f").stdout == "one\n"
    (tmp_path / "bad").write_bytes(b"no snapshot at all")
    with pytest.raises(Exception, match=r"archive|snapshot"):
        fleet.create(snapshot=tmp_path / "bad")


def test_a_workspace_is_fetched_once_by_each_node(fleet: Fleet, project: Path) -> None:
    (project / "big").write_bytes(os.urandom(6 << 20))
    before = fleet.status()["sent_bytes"]
    tree = fleet.put(project)
    sent = fleet.status()["sent_bytes"] - before
    assert sent > 6 << 20
    same = fleet.put(project)
    assert same.digest == tree.digest
    assert fleet.status()["sent_bytes"] - before == sent
    made = [fleet.create(workspace=tree) for _ in range(4)]
    assert {sb.run("sha256sum < big").stdout for sb in made} != {""}
    for sb in made:
        sb.close()
    tree.close()
    same.close()


def test_map_in_order_and_as_completed(fleet: Fleet) -> None:
    seen: list[tuple[int, int, int | None]] = []
    outcomes = list(fleet.map("echo got $ITEM", range(30), progress=lambda *now: seen.append(now)))
    assert [outcome.get().stdout for outcome in outcomes] == [f"got {number}\n" for number in range(30)]
    assert seen[-1] == (30, 0, 30)

    def double(sandbox: Sandbox, item: int) -> int:
        if item == 3:
            raise ValueError("three")
        return int(sandbox.run(f"echo $(( {item} * 2 ))").stdout)

    found = {outcome.item: outcome for outcome in fleet.map(double, range(10), ordered=False)}
    assert isinstance(found.pop(3).error, ValueError)
    assert {item: outcome.get() for item, outcome in found.items()} == {item: item * 2 for item in found}
    variables = [{"A": "1", "B": "x y"}]
    assert next(iter(fleet.map('echo "$A$B"', variables))).get().stdout == "1x y\n"


def test_endless_items_and_an_early_end(fleet: Fleet) -> None:
    import itertools

    outcomes = fleet.map("echo $ITEM", itertools.count(), concurrency=2)
    assert next(outcomes).get().stdout == "0\n"
    assert outcomes.board.given <= 32
    outcomes.close()
    assert until(lambda: fleet.status()["in_use"] == 0)


def test_tenants_and_room(nodes: Nodes) -> None:
    limits = FleetLimits(per_node=2, tenant=2, waiting=1)
    with Fleet(limits=limits, lease=120) as small:
        assert until(lambda: small.status()["capacity"] == 6)
        first, second = (small.create(tenant="a") for _ in range(2))
        with pytest.raises(FleetBusy):
            small.create(tenant="a", timeout=0.2)
        with small.create(tenant="b") as other:
            assert other.run("true").ok
        waiting = threading.Thread(target=lambda: small.create(tenant="a").close())
        waiting.start()
        assert until(lambda: small.status()["waiting"] == 1)
        with pytest.raises(FleetBusy, match="wait already"):
            small.create(tenant="a")
        first.close()
        waiting.join(PATIENCE)
        assert small.status()["tenants"] == {"a": 1}
        second.close()


def test_a_policy_is_enforced_on_the_node(fleet: Fleet) -> None:
    with fleet.create(policy=Policy.agent().with_limits(processes=20)) as sb:
        assert not sb.run("cat /etc/shadow").ok
        assert sb.policy().limits.processes == 20
    with pytest.raises(InvalidCall, match="share one copy"):
        fleet.create(mode="bind")
    with pytest.raises(InvalidCall, match="no option"):
        fleet.create(keep="name")


def test_awaited(nodes: Nodes, project: Path) -> None:
    async def scenario() -> None:
        async with AsyncFleet(lease=120) as fleet:
            async with await fleet.create(workspace=project) as sb:
                assert (await sb.run("cat a.txt")).stdout == "hello\n"
                sleeping = asyncio.ensure_future(sb.run(f"touch began; sleep {unique_seconds()}"))
                while not await sb.files.exists("began"):
                    await asyncio.sleep(0.05)
                sleeping.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sleeping
                assert (await asyncio.wait_for(sb.run("echo after"), PATIENCE)).stdout == "after\n"
                assert [chunk.data async for chunk in sb.stream("echo s")] == [b"s\n"]
                forks = await sb.fork(2)
                assert [(await fork.run("ls began")).ok for fork in forks] == [True, True]
                for fork in forks:
                    await fork.close()
            found = [outcome.get().stdout async for outcome in fleet.map("echo $ITEM", "ab")]
            assert found == ["a\n", "b\n"]

    asyncio.run(scenario())


def test_a_killed_keeper_loses_its_sandboxes_and_leaves_nothing(
    nodes: Nodes, project: Path, tmp_path: Path
) -> None:
    mark, before = unique_seconds(), set(leftovers())
    with Fleet(lease=120, logs=tmp_path / "logs") as fleet:
        sandboxes = [fleet.create(workspace=project) for _ in range(6)]
        for sb in sandboxes:
            sb.start(f"exec sleep {mark}")
        victim = sandboxes[0].node
        pid = next(node["pid"] for node in fleet.status()["nodes"] if node["node"] == victim)
        assert until(lambda: len([name for name in leftovers(mark) if name.isdigit()]) == 6)
        os.kill(pid, signal.SIGKILL)
        for sb in sandboxes:
            if sb.node == victim:
                with pytest.raises(SandboxLost, match="was lost"):
                    sb.run("true")
            else:
                assert sb.run("true").ok
        lost = sum(sb.node == victim for sb in sandboxes)
        assert fleet.status()["lost_sandboxes"] == lost
        assert until(lambda: len([name for name in leftovers(mark) if name.isdigit()]) == 6 - lost)
        assert any(event.kind == "sandbox lost" for event in fleet.events())
        log = (tmp_path / "logs" / f"{sandboxes[0].id}.jsonl").read_text().splitlines()
        assert [json.loads(line)["what"] for line in log] == ["created", "lost"]
        # The node is used again, by another keeper.
        assert until(lambda: any(n["node"] == victim and n["ready"] for n in fleet.status()["nodes"]))
    assert until(lambda: set(leftovers(mark)) <= before)


def test_metrics_are_exported(fleet: Fleet) -> None:
    import urllib.request

    import ray

    fleet.create().close()
    ports = [node["MetricsExportPort"] for node in ray.nodes() if node["Alive"]]
    address = ray.nodes()[0]["NodeManagerAddress"]

    def exported() -> bool:
        texts = []
        for port in ports:
            try:
                with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=30) as answer:
                    texts.append(answer.read().decode())
            except OSError:
                continue
        return all(f"staddle_fleet_{name}" in "".join(texts) for name in ("sandboxes", "created", "commands"))

    assert until(exported)


def test_the_status_of_every_fleet_is_seen_from_another_process(fleet: Fleet, nodes: Nodes) -> None:
    import subprocess
    import sys

    with fleet.create(tenant="alice") as sb:
        command = [sys.executable, "-m", "staddle", "fleet", "status", "--address", nodes.address]
        for more in (["--json"], []):
            done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stderr
            if more:
                found = json.loads(done.stdout)
                keepers = [keeper for keeper in found["keepers"] if keeper["fleet"] == fleet.id]
                assert len(keepers) == 3
                assert [keeper["sandboxes"][sb.id]["tenant"] for keeper in keepers if keeper["open"]] == [
                    "alice"
                ]
            else:
                assert f"fleet {fleet.id}" in done.stdout


def test_a_closed_fleet_says_so(nodes: Nodes) -> None:
    before = set(leftovers())
    fleet = Fleet(lease=120)
    sb = fleet.create()
    fleet.close()
    fleet.close()
    with pytest.raises(FleetLost, match="is closed"):
        sb.run("true")
    with pytest.raises(FleetLost):
        fleet.create()
    assert until(lambda: set(leftovers()) <= before)


#: A keeper to which no driver ever speaks.
SILENT = """
import time
from staddle.fleet.keeper import Keeper
keeper = Keeper("fleet", "node", capacity=2, warm=1, lease=2)
print(keeper.files.path, flush=True)
time.sleep(600)
"""


def test_a_keeper_whose_driver_never_says_hello_ends_with_its_lease() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=PATIENCE * 2, check=False
    )
    assert done.returncode == 0, done.stderr
    assert until(lambda: not Path(done.stdout.strip()).exists())
