"""Options of one command, as a harness gives them; names of a sandbox, and where its workspace is seen."""

from __future__ import annotations

import asyncio
import errno
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from staddle import AsyncPool, AsyncSandbox, Identity, Network, Policy, Reason, Sandbox
from staddle.errors import CommandFailed, InvalidCall, SandboxClosed
from tests.support.waiting import until


@pytest.fixture(scope="module", params=["namespaces", "native"])
def sb(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(backend=request.param) as made:
        yield made


MIXED = "echo a; echo b >&2; echo c; echo d >&2"


# ---------------------------------------------------------------- one stream


@pytest.mark.same_for_everyone
def test_merged_output_is_one_stream_in_order(sb: Sandbox) -> None:
    for got in (sb.run(MIXED, merge=True), sb.exec(["sh", "-c", MIXED], merge=True)):
        assert (got.stdout, got.stderr, got.exit_code) == ("a\nb\nc\nd\n", "", 0)


@pytest.mark.same_for_everyone
def test_what_bash_itself_says_is_in_the_merged_stream(sb: Sandbox) -> None:
    got = sb.run("echo before\nif; then", merge=True)
    assert "syntax error" in got.stdout
    assert (got.stderr, got.exit_code) == ("", 2)
    got = sb.run("pwd", merge=True, cwd="/nowhere")
    assert "/nowhere: No such file" in got.stdout
    assert got.stderr == ""
    assert "nope" in sb.run("nope", merge=True).stdout
    assert sb.run("echo out; echo err >&2").stderr == "err\n"  # the next one has two again


@pytest.mark.same_for_everyone
def test_a_merged_stream_and_callback_get_it_as_it_comes(sb: Sandbox) -> None:
    heard: list[str] = []
    sb.run(MIXED, merge=True, on_stdout=heard.append, on_stderr=lambda _: heard.append("never"))
    assert "".join(heard) == "a\nb\nc\nd\n"
    with sb.stream(MIXED, merge=True) as stream:
        chunks = list(stream)
    assert {chunk.stream for chunk in chunks} == {"stdout"}
    assert "".join(chunk.text for chunk in chunks) == "a\nb\nc\nd\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_merged_command_that_is_ended_leaves_a_usable_shell(sb: Sandbox) -> None:
    got = sb.run("echo begun >&2; while :; do /bin/true; done", merge=True, timeout=0.5)
    assert got.reason is Reason.timeout
    assert got.stdout == "begun\n"
    assert sb.run("echo on", merge=True).stdout == "on\n"


# ---------------------------------------------------------------- a limit of its own


@pytest.mark.same_for_everyone
def test_a_command_can_have_an_output_limit_of_its_own(sb: Sandbox) -> None:
    for got in (
        sb.run("seq 10000", output_limit="1K"),
        sb.exec(["seq", "10000"], output_limit=1024),
    ):
        assert len(got.stdout_bytes) == 1024
        assert got.stdout_bytes_dropped == 48894 - 1024
    assert not sb.run("seq 300000", output_limit=None).stdout_truncated
    for wrong in (0, -1, True, "much", 1.5):
        with pytest.raises(InvalidCall, match="output_limit"):
            sb.run("true", output_limit=wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- not started


def test_a_program_that_was_not_started_is_told_from_one_that_ends_so(sb: Sandbox) -> None:
    missing = sb.exec(["nope"])
    assert (missing.reason, missing.exit_code, missing.errno) == (Reason.not_started, 127, errno.ENOENT)
    assert "'nope' cannot be run: No such file" in missing.why
    unfit = sb.exec(["/etc/passwd"])
    assert (unfit.reason, unfit.exit_code, unfit.errno) == (Reason.not_started, 126, errno.EACCES)
    nowhere = sb.exec(["true"], cwd="/nowhere")
    assert (nowhere.reason, nowhere.exit_code, nowhere.errno) == (Reason.not_started, 125, errno.ENOENT)
    own = sb.exec(["sh", "-c", "exit 127"])
    assert (own.reason, own.exit_code, own.errno, own.why) == (Reason.exited, 127, None, "")
    assert missing.as_dict()["reason"] == "not_started"
    assert not missing.ok
    with pytest.raises(CommandFailed, match="was not started"):
        sb.exec(["nope"], check=True)
    assert "cannot be run" in sb.exec(["nope"], merge=True).stdout


# ---------------------------------------------------------------- cancelled


@pytest.mark.same_for_everyone
def test_an_event_cancels_one_command(sb: Sandbox) -> None:
    for run in (
        lambda cancel: sb.run("echo begun; sleep 1000", cancel=cancel, on_stdout=lambda _: cancel.set()),
        lambda cancel: sb.exec(
            ["sh", "-c", "echo begun; sleep 1000"], cancel=cancel, on_stdout=lambda _: cancel.set()
        ),
    ):
        got = run(threading.Event())
        assert (got.reason, got.stdout) == (Reason.cancelled, "begun\n")
    assert sb.run("echo on", cancel=threading.Event()).stdout == "on\n"


@pytest.mark.same_for_everyone
def test_a_command_that_is_cancelled_before_its_turn_does_not_run(sb: Sandbox) -> None:
    cancel = threading.Event()
    cancel.set()
    assert sb.run("echo ran", cancel=cancel).reason is Reason.cancelled
    cancel.clear()
    waiting: list[object] = []

    def second() -> None:
        waiting.append(sb.run("echo ran", cancel=cancel))

    thread = threading.Thread(target=second)
    with sb.stream("echo first; sleep 1000") as stream:
        next(stream)
        thread.start()
        cancel.set()
        thread.join()
    (got,) = waiting
    assert (got.reason, got.stdout, got.exit_code) == (Reason.cancelled, "", 130)  # type: ignore[attr-defined]


# ---------------------------------------------------------------- variables, input, time


@pytest.mark.same_for_everyone
def test_a_variable_that_is_none_is_not_set_for_one_command(sb: Sandbox) -> None:
    sb.run("export GONE='a b'; list=(1 2); readonly FIXED=1")
    got = sb.run(
        'echo "${GONE-unset} ${list-unset} $MORE"; GONE=other',
        env={"GONE": None, "list": None, "MORE": "m", "NEVER_SET": None},
    )
    assert got.stdout == "unset unset m\n"
    assert sb.run('echo "$GONE ${list[1]} ${MORE-unset}"; declare -p GONE').stdout == (
        'a b 2 unset\ndeclare -x GONE="a b"\n'
    )
    assert "GONE=" not in sb.exec(["env"], env={"GONE": None}).stdout
    sb.run("unset GONE list")


@pytest.mark.same_for_everyone
def test_a_program_may_have_variables_that_no_shell_can_set(sb: Sandbox) -> None:
    assert "INPUT_MY-NAME=v\n" in sb.exec(["env"], env={"INPUT_MY-NAME": "v"}).stdout
    with pytest.raises(InvalidCall, match="a shell cannot set"):
        sb.run("env", env={"INPUT_MY-NAME": "v"})
    with pytest.raises(InvalidCall):
        sb.exec(["env"], env={"A=B": "v"})


@pytest.mark.same_for_everyone
def test_standard_input_may_be_a_file(sb: Sandbox) -> None:
    assert sb.run("cat", stdin=io.BytesIO(b"filed")).stdout == "filed"
    assert sb.exec(["cat"], stdin=io.BytesIO(b"filed")).stdout == "filed"
    with pytest.raises(InvalidCall, match="stdin"):
        sb.run("cat", stdin=3)  # type: ignore[arg-type]


@pytest.mark.same_for_everyone
def test_a_timeout_may_be_months(sb: Sandbox) -> None:
    assert sb.run("/bin/true; echo on", timeout=10**7).stdout == "on\n"
    assert sb.exec(["echo", "on"], timeout=10**7).stdout == "on\n"
    with sb.terminal(["true"]) as terminal:
        while terminal.read(timeout=10**7):
            pass


@pytest.mark.same_for_everyone
def test_the_awaited_face_has_them_too() -> None:
    async def work() -> None:
        async with AsyncSandbox(backend="native") as sb:
            assert (await sb.run(MIXED, merge=True)).stdout == "a\nb\nc\nd\n"
            assert (await sb.exec(["sh", "-c", MIXED], merge=True, output_limit=4)).stdout_bytes == b"a\nd\n"
            assert (await sb.exec(["nope"])).reason is Reason.not_started
            assert (await sb.run("echo ${HOME-none}", env={"HOME": None})).stdout == "none\n"
            async with sb.stream(MIXED, merge=True) as stream:
                assert [chunk.stream async for chunk in stream].count("stderr") == 0

    asyncio.run(work())


# ---------------------------------------------------------------- names and places


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "a.txt").write_text("a\n")
    return made


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["overlay", "bind"])
def test_the_workspace_can_be_seen_elsewhere(mode: str, work: Path) -> None:
    for place in ("/app", "/testbed/deep", str(work)):
        with Sandbox(work, mode=mode, workspace_at=place, backend="namespaces") as sb:
            assert sb.run(f"pwd; cat a.txt {place}/a.txt /workspace/a.txt").stdout == f"{place}\na\na\na\n"
            assert sb.exec(["cat", "a.txt"]).stdout == "a\n"
            assert sb.session("other").run("pwd").stdout == f"{place}\n"
            assert sb.files.read(f"{place}/a.txt") == "a\n"


@pytest.mark.parametrize("uid", [0, 1000])
def test_the_workspace_is_mounted_at_its_own_path_in_the_home(uid: int, tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "home" / "deep" / "my work"
    work.mkdir(parents=True)
    (work / "a.txt").write_text("a\n")
    with Sandbox(
        work, workspace_at=work, identity=Identity(uid=uid, home=str(home)), backend="namespaces"
    ) as sb:
        assert sb.run("pwd -P; realpath a.txt; echo one > new").stdout == f"{work}\n{work}/a.txt\n"
        sb.snapshot("first")
        sb.run("mkdir sub; cd sub; echo two > ../new; touch ~/other").check()
        assert [change.path for change in sb.diff([f"{work}/new"])] == ["/workspace/new"]
        sb.restore("first")
        assert sb.run(f"pwd -P; cat new /workspace/new; ls '{home}'").stdout == f"{work}\none\none\ndeep\n"
        sb.discard()
        assert sb.run("pwd; ls").stdout == f"{work}\na.txt\n"


def test_layers_and_forks_keep_it(work: Path) -> None:
    with Sandbox(work, workspace_at="/app", backend="namespaces") as sb:
        sb.run("echo one > new")
        sb.snapshot("first")
        sb.run("echo two > new")
        sb.snapshot("second")
        sb.restore("first")
        assert sb.run("pwd; cat /app/new").stdout == "/app\none\n"
        (fork,) = sb.fork(1)
        with fork:
            assert fork.run("pwd; cat new").stdout == "/app\none\n"
            assert fork.id != sb.id
        sb.commit()
        with pytest.raises(InvalidCall, match="'first', 'second'"):
            sb.restore("third")
    assert (work / "new").read_text() == "one\n"


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("place", ["/usr/x", "app", "/", "/etc", "/a/../b", "/home", 5])
def test_a_place_that_is_the_systems_is_refused(place: object) -> None:
    with pytest.raises(InvalidCall, match="workspace_at"):
        Sandbox(workspace_at=place)  # type: ignore[arg-type]


@pytest.mark.same_for_everyone
def test_a_sandbox_has_an_id_a_name_and_labels() -> None:
    with Sandbox(backend="native", name="mine", labels={"run": "7"}) as sb:
        assert (sb.name, sb.labels) == ("mine", {"run": "7"})
        assert len(sb.id) == 16
        assert "'mine'" in repr(sb)
    for wrong in ({"name": ""}, {"name": "a\nb"}, {"labels": [1]}, {"labels": {"a": 1}}):
        with pytest.raises(InvalidCall):
            Sandbox(backend="native", **wrong)  # type: ignore[arg-type]


@pytest.mark.same_for_everyone
def test_an_option_of_something_else_is_told_where_it_belongs() -> None:
    for name, said in (
        ("timeout", "sb.run"),
        ("network", "with_network"),
        ("envs", "env="),
        ("worspace", "did you mean 'workspace'"),
        ("netwrk", "'network' belongs to a policy"),
    ):
        with pytest.raises(TypeError, match=said):
            Sandbox(**{name: 1})  # type: ignore[arg-type]


@pytest.mark.same_for_everyone
def test_it_can_be_given_another_time_to_live() -> None:
    with Sandbox(backend="native") as sb:
        sb.set_timeout(1000)
        sb.set_timeout(None)
        sb.set_timeout(0.2)
        assert until(lambda: not sb.alive)
        with pytest.raises(SandboxClosed, match="max_lifetime"):
            sb.run("true")


@pytest.mark.same_for_everyone
def test_the_reason_of_a_timeout_is_a_sentence() -> None:
    with Sandbox(backend="native") as sb:
        assert sb.run("sleep 1000", timeout=0.2).why.startswith("it was ended after 0.2 seconds")
        assert sb.exec(["sleep", "1000"], timeout=0.2).why.startswith("it was ended after 0.2 seconds")


@pytest.mark.same_for_everyone
def test_a_pool_can_be_awaited() -> None:
    async def work() -> None:
        async with AsyncPool(2, minimum=1, backend="native") as pool:
            async with pool.sandbox() as sb:
                assert isinstance(sb, AsyncSandbox)
                assert (await sb.run("echo on")).stdout == "on\n"
                assert pool.in_use == 1
                other = await pool.acquire(timeout=60)
                assert await other.files.exists("/tmp")
                await pool.release(other)
            assert pool.in_use == 0

    asyncio.run(work())


def _refused(call: Callable[[], object]) -> str:
    with pytest.raises(TypeError) as error:
        call()
    return str(error.value)


def test_an_option_that_a_command_does_not_have_is_told_with_the_one_that_was_meant() -> None:
    with Sandbox(backend="namespaces") as sb:
        wrong: dict[str, Any] = {"timeot": 1}
        calls: tuple[Callable[[], object], ...] = (
            lambda: sb.run("true", **wrong),
            lambda: sb.run("true", user="root", **wrong),
            lambda: sb.exec(["true"], **wrong),
            lambda: sb.stream("true", **wrong),
            lambda: sb.start("true", **wrong),
            lambda: sb.session("s").run("true", **wrong),
        )
        for call in calls:
            assert _refused(call) == "a command has no 'timeot'; did you mean 'timeout'?"
        assert "sb.start" in _refused(lambda: sb.run("true", background=True))  # type: ignore[call-arg]
        assert "with_limits" in _refused(lambda: sb.exec(["true"], memory="1G"))  # type: ignore[call-arg]
        assert "sb.run()" in _refused(lambda: sb.start("true", stdin="x"))  # type: ignore[call-arg]
        assert not sb.processes()

    async def work() -> None:
        async with AsyncSandbox(backend="namespaces") as awaited:
            for call in (awaited.run, lambda word, **o: awaited.exec([word], **o), awaited.start):
                with pytest.raises(TypeError, match="did you mean 'timeout'"):
                    await call("true", timeot=1)

    asyncio.run(work())


def test_changes_and_events_are_short_to_read() -> None:
    with Sandbox(backend="namespaces") as sb:
        sb.run("echo 1 > f")
        assert list(map(str, sb.diff())) == ["added /workspace/f"]
        sb.run("mv f g")
        assert list(map(str, sb.diff())) == ["added /workspace/g"]
        event = sb.run("curl -s http://192.0.2.1/").violations[-1]
        assert str(event).startswith("refused: network: the network is denied by the policy")


@pytest.mark.slow
def test_names_and_places_beyond_a_list_of_addresses_are_told() -> None:
    lookup = "curl -sS --max-time 20 http://example.com"
    with Sandbox(policy=Policy.agent().with_network(Network.allow("192.0.2.9:80"))) as sb:
        got = sb.run(f"{lookup}; curl -s http://192.0.2.77/")
        assert [event.what for event in got.violations] == ["example.com", "192.0.2.77:80"]
    with Sandbox(policy=Policy.agent().with_network(Network.loopback([9]))) as sb:
        for line in (lookup, "curl -s http://192.0.2.77/"):
            got = sb.run(line)
            assert "ports of the loopback only" in got.why
            assert [event.what for event in got.violations] == ["network"]
        assert sb.run("curl -s http://127.0.0.1:1/").violations == ()


def test_a_denied_network_is_told() -> None:
    with Sandbox(backend="namespaces") as sb:
        for line in (
            "curl -sS --max-time 20 https://example.com",
            "python3 -c 'import urllib.request as u; u.urlopen(\"http://example.com\")'",
            "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80))'",
            "curl -s http://192.0.2.1/",
            "curl -s https://example.com > /dev/null 2>&1",
            "wget -q http://example.com",
        ):
            got = sb.run(line)
            assert not got.ok
            assert "the network is denied" in got.why, got.stderr
            assert "Network.packages()" in got.violations[-1].allow
        assert sb.run("false").why == ""
        assert sb.run("curl -s http://127.0.0.1:1/").why == ""
        assert sb.run("echo 'Could not resolve host'").why == ""
        assert "the network is denied" in sb.exec(["curl", "-sS", "http://example.com"]).why
