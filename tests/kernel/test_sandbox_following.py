"""Following a process in the background: what it prints, when its server is there, when its time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from staddle import AsyncSandbox, Network, Policy, Sandbox
from staddle.errors import InvalidCall, WaitTimeout
from tests.support.waiting import PATIENCE, until


@pytest.fixture(scope="module", params=["namespaces", "native"])
def sb(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(backend=request.param) as made:
        yield made


SERVER = """
import http.server as s
s.HTTPServer(("127.0.0.1", {}), s.SimpleHTTPRequestHandler).serve_forever()
"""


@pytest.mark.same_for_everyone
def test_output_from_an_offset_comes_in_order(sb: Sandbox) -> None:
    process = sb.start("read a; echo one; read a; echo two >&2; read a; echo three; read a")
    seen, text = 0, ""
    for number in range(3):
        process.send_stdin("\n")
        new = process.wait_for_output(offset=seen)
        seen, text = new.end, text + new
        assert (new.stdout, new.stderr) == [("one\n", ""), ("", "two\n"), ("three\n", "")][number]
    assert text == "one\ntwo\nthree\n" == process.output(0)
    assert process.output(seen) == ""
    assert process.output() == "one\nthree\ntwo\n"
    assert process.output().end == seen
    assert process.wait_for_output(0, offset=seen) == ""  # nothing came, and it still runs
    assert process.running
    process.send_stdin("\n")
    assert process.wait() == 0
    assert process.wait_for_output(offset=seen) == ""  # nothing will come
    with pytest.raises(InvalidCall, match="offset"):
        process.output(-1)


@pytest.mark.same_for_everyone
def test_merged_and_with_variables(sb: Sandbox) -> None:
    process = sb.start("echo a; echo b >&2; echo $X ${HOME-none}", merge=True, env={"X": "1", "HOME": None})
    process.wait()
    assert until(lambda: process.output().stdout == "a\nb\n1 none\n")
    assert process.output().stderr == ""
    assert "MY-NAME=v" in _whole(sb.start(["env"], env={"MY-NAME": "v"}))


def _whole(process: object) -> str:
    process.wait()  # type: ignore[attr-defined]
    return "".join(chunk.text for chunk in process.stream()) or process.output()  # type: ignore[attr-defined]


@pytest.mark.same_for_everyone
def test_text_is_waited_for(sb: Sandbox) -> None:
    process = sb.start("echo starting; echo ready on 8000 >&2; sleep 1000")
    assert "ready on" in process.wait_for_text("ready on")
    with pytest.raises(WaitTimeout, match="time is up"):
        process.wait_for_text("never", timeout=0.01)
    process.kill()
    with pytest.raises(WaitTimeout, match="ended with 137"):
        process.wait_for_text("never", timeout=PATIENCE)
    with pytest.raises(TimeoutError):
        sb.start("echo broken; exit 3").wait_for_text("ready")


def test_a_server_is_waited_for() -> None:
    with Sandbox(backend="namespaces") as sb:
        process = sb.start(["python3", "-c", SERVER.format(8123)])
        process.wait_for_port(8123)
        with sb.connect(8123) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert connection.recv(8) == b"HTTP/1.0"
        with pytest.raises(WaitTimeout, match="nothing listens at port 8124"):
            process.wait_for_port(8124, timeout=0.01)
        with pytest.raises(WaitTimeout, match="ended with 3"):
            sb.start("exit 3").wait_for_port(8124)
        with pytest.raises(InvalidCall):
            process.wait_for_port(0)


def test_with_an_open_network_ports_are_the_hosts() -> None:
    with Sandbox(policy=Policy.agent().with_network(Network.open()), backend="namespaces") as sb:
        script = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
server.accept()[0].sendall(b"in")
input()
"""
        process = sb.start(["python3", "-c", script])
        port = int(process.wait_for_text("\n"))
        assert sb.expose(port) == port
        with sb.connect(port) as connection:
            assert connection.recv(2) == b"in"
        with pytest.raises(InvalidCall):
            sb.expose(port, port + 1 if port < 65535 else 1)


@pytest.mark.same_for_everyone
def test_callbacks_hear_it_as_it_comes(sb: Sandbox) -> None:
    heard: list[tuple[str, str]] = []
    process = sb.start(
        "echo out; echo err >&2",
        on_stdout=lambda text: heard.append(("out", text)),
        on_stderr=lambda text: heard.append(("err", text)),
    )
    assert process.wait() == 0
    assert sorted(heard) == [("err", "err\n"), ("out", "out\n")]

    def fail(_: str) -> None:
        raise ZeroDivisionError

    process = sb.start("echo out; sleep 1000", on_stdout=fail)
    with pytest.raises(ZeroDivisionError):
        process.wait()
    with pytest.raises(InvalidCall, match="on_stdout"):
        sb.start("true", on_stdout=3)  # type: ignore[arg-type]


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("late", [False, True])
def test_a_stream_of_a_process_ends_with_it(sb: Sandbox, late: bool) -> None:
    process = sb.start("read a; echo one; echo two >&2")
    stream = process.stream()
    process.send_stdin("\n")
    if late:
        process.wait(60)  # it begins when it is asked for, not with its first piece
    chunks = sorted((chunk.stream, chunk.text) for chunk in stream)
    assert chunks == [("stderr", "two\n"), ("stdout", "one\n")]


@pytest.mark.same_for_everyone
def test_a_process_may_have_a_timeout(sb: Sandbox) -> None:
    process = sb.start("trap '' TERM; echo begun; sleep 1000", timeout=0.3)
    assert process.wait() == 124
    assert process.timed_out
    quick = sb.start("exit 3", timeout=1000)
    assert (quick.wait(), quick.timed_out) == (3, False)
    with pytest.raises(InvalidCall):
        sb.start("true", timeout=-1)


@pytest.mark.same_for_everyone
def test_the_end_of_a_terminal_is_told_from_nothing_yet(sb: Sandbox) -> None:
    with sb.terminal(["sh", "-c", "read a; echo over"]) as terminal:
        assert terminal.read(timeout=0) == b""
        assert not terminal.at_end
        terminal.write("\n")
        while terminal.read():
            pass
        assert terminal.at_end


@pytest.mark.same_for_everyone
def test_the_awaited_face_follows_too() -> None:
    async def work() -> None:
        async with AsyncSandbox(backend="native") as sb:
            process = await sb.start("echo ready; read a; echo more; exit 2", merge=True)
            assert await process.wait_for_text("ready") == "ready\n"
            with pytest.raises(WaitTimeout):
                await process.wait_for_text("never", timeout=0.01)
            waiting = asyncio.ensure_future(process.wait_for_text("never"))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await process.send_stdin("\n")
            assert await process.wait_for_output(offset=6) == "more\n"
            assert await process.wait() == 2
            assert process.output(6) == "more\n"

    asyncio.run(work())
