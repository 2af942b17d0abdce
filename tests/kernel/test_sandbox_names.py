"""Where the workspace is seen, what a sandbox is called, and words that people bring from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from staddle import AsyncPool, AsyncSandbox, Network, Policy, Sandbox
from staddle.errors import InvalidCall, SandboxClosed
from tests.support.waiting import until


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
