"""The network of a session: what the policy allows works for every client, and nothing else exists."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from staddle import Network, Policy, Sandbox
from staddle.errors import InvalidCall
from staddle.linux.process_tree import descendants
from staddle.network.host import gateway_process, prewarm
from staddle.network.host.gateway_log import GatewayLog
from staddle.network.host.prewarm import GATEWAYS
from staddle.sandbox.open import network
from tests.support.staddle_command import environment
from tests.support.waiting import command_line, next_line, until
from tests.support.web import serving


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a web server on the host's loopback."""
    with serving(lambda _: b"hello from outside\n") as port:
        yield port


def sandbox_with(network: Network, backend: str = "namespaces") -> Sandbox:
    return Sandbox(policy=Policy.agent().with_network(network), backend=backend, mode="bind")


each_backend = pytest.mark.parametrize("backend", ["namespaces", "bwrap"])


def fetch(sandbox: Sandbox, url: str) -> tuple[str, int]:
    done = sandbox.run(f"curl -sS -m 10 {url} 2>&1")
    return done.stdout, done.exit_code


@pytest.mark.slow
def test_nothing_is_reached_but_its_own_loopback(server: int) -> None:
    with Sandbox() as sandbox:
        assert fetch(sandbox, f"http://127.0.0.1:{server}/")[1] == 7
        assert sandbox.run("getent hosts example.com").exit_code != 0
        sandbox.start("python3 -m http.server 8000 --bind 127.0.0.1")
        assert until(lambda: fetch(sandbox, "http://127.0.0.1:8000/")[1] == 0)


@pytest.mark.slow
@each_backend
def test_exactly_the_named_ports_of_the_hosts_loopback_are_there(server: int, backend: str) -> None:
    with sandbox_with(Network.loopback(ports=[server]), backend) as sandbox:
        assert all(gap.documented for gap in sandbox.enforced.gaps)
        assert fetch(sandbox, f"http://127.0.0.1:{server}/") == ("hello from outside\n", 0)
        assert fetch(sandbox, f"http://localhost:{server}/") == ("hello from outside\n", 0)
        assert fetch(sandbox, f"http://127.0.0.1:{server + 1}/")[1] == 7


@pytest.mark.slow
@each_backend
def test_what_is_not_allowed_fails_at_once_and_is_told(server: int, backend: str) -> None:
    with sandbox_with(Network.allow("allowed.example:443", "192.0.2.7:80"), backend) as sandbox:
        assert all(gap.documented for gap in sandbox.enforced.gaps)
        for url in (f"http://127.0.0.1:{server}/", "http://evil.example/", "http://192.0.2.8/"):
            assert fetch(sandbox, url)[1] in (6, 7)
        refused = [event for event in sandbox.events() if event.kind == "refused"]
        assert {event.what for event in refused} == {"evil.example", "192.0.2.8:80"}
        assert {event.who.partition(" ")[0] for event in refused} == {"curl"}
        for _ in range(2):  # each command has its own, however soon after another
            result = sandbox.run("curl -sS -m 10 http://evil.example/ http://192.0.2.8/ http://192.0.2.8/")
            assert [event.what for event in result.violations] == ["evil.example", "192.0.2.8:80"]
            assert {event.who for event in result.violations} == {result.command}
            assert [event.allow for event in result.violations] == ["evil.example", "192.0.2.8:80"]
        assert "nameserver 127.0.0.53" in sandbox.run("cat /etc/resolv.conf").stdout


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("exec 3<>/dev/tcp/192.0.2.9/80", "192.0.2.9:80"),
        ("getent hosts evil.example", "evil.example"),
        ("true", None),
    ],
)
def test_the_first_command_is_told_what_it_was_refused(script: str, what: str | None) -> None:
    """The gateway may not be there yet when the command has ended."""
    for _ in range(3):
        with sandbox_with(Network.allow("allowed.example")) as sandbox:
            assert [event.what for event in sandbox.run(f"({script})").violations] == ([what] if what else [])
            assert sandbox.run("true").violations == ()


def test_a_name_of_the_list_resolves_and_no_other() -> None:
    with sandbox_with(Network.allow("allowed.example:443", "*.wild.example")) as sandbox:
        assert sandbox.run("getent ahostsv4 allowed.example").stdout.startswith("198.1")
        assert sandbox.run("getent ahostsv4 a.wild.example").ok
        assert not sandbox.run("getent ahostsv4 wild.example").ok
        assert not sandbox.run("getent ahostsv4 other.example").ok


@pytest.mark.slow
@each_backend
@pytest.mark.parametrize("network", [Network.deny(), Network.allow("allowed.example:443")], ids=str)
def test_a_server_inside_is_reached_from_outside(backend: str, network: Network) -> None:
    with sandbox_with(network, backend) as sandbox:
        sandbox.run("echo inside > index.html")
        sandbox.start("python3 -m http.server 8000 --bind 127.0.0.1")
        assert until(lambda: fetch(sandbox, "http://127.0.0.1:8000/")[1] == 0)
        with sandbox.connect(8000) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert connection.recv(8) == b"HTTP/1.0"
        port = sandbox.expose(8000)
        assert sandbox.expose(8000, port) == port, "who was interrupted may ask again"
        for _ in range(40):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
                assert answer.read() == b"inside\n"
        with pytest.raises(ConnectionError):
            sandbox.connect(8001)
    with socket.socket() as after:
        assert after.connect_ex(("127.0.0.1", port)) != 0


def test_a_server_on_the_other_loopback_is_reached_too() -> None:
    with sandbox_with(Network.deny()) as sandbox:
        sandbox.run("echo inside > index.html")
        server = sandbox.start("python3 -m http.server 5173 --bind ::1")
        server.wait_for_port(5173)
        port = sandbox.expose(5173)
        for _ in range(3):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
                assert answer.read() == b"inside\n"


def test_a_network_that_is_the_hosts_needs_no_way_in() -> None:
    with sandbox_with(Network.open()) as sandbox:
        assert sandbox.expose(80) == 80
        with pytest.raises(InvalidCall, match="host's"):
            sandbox.expose(80, 81)


@pytest.mark.slow
@each_backend
def test_the_gateway_ends_with_the_sandbox(server: int, backend: str) -> None:
    sandbox = sandbox_with(Network.loopback(ports=[server]), backend)
    assert _gateways()
    sandbox.close()
    assert until(lambda: not _gateways())  # nor one that waits for the next


@pytest.mark.slow
def test_the_next_sandbox_finds_a_gateway_that_waits(server: int) -> None:
    url = f"http://127.0.0.1:{server}/"
    with sandbox_with(Network.loopback(ports=[server])) as first:
        assert fetch(first, url)[1] == 0
        assert until(lambda: len(_gateways()) == 2)
        before = _gateways()
        with sandbox_with(Network.loopback(ports=[server])) as second:
            assert fetch(second, url) == ("hello from outside\n", 0)
        with sandbox_with(Network.allow("allowed.example")) as other:  # it knows nothing of the others' lists
            assert fetch(other, url)[1] != 0
        assert until(lambda: len(_gateways()) == 2)
        assert len({*before, *_gateways()}) == 3
        assert until(lambda: len(_gateways()) == 2)
        assert until(lambda: GATEWAYS._waiting is not None)
        assert GATEWAYS._waiting is not None
        line, pid = GATEWAYS._waiting
        os.kill(pid, signal.SIGKILL)
        assert until(lambda: select.select([line], [], [], 0)[0])
        with sandbox_with(Network.loopback(ports=[server])) as third:
            assert fetch(third, url) == ("hello from outside\n", 0)


@pytest.mark.slow
def test_a_gateway_that_waits_is_confined_and_for_nobody_else(
    server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sandbox_with(Network.loopback(ports=[server])) as first:
        assert fetch(first, f"http://127.0.0.1:{server}/")[1] == 0
        assert until(lambda: GATEWAYS._waiting is not None)
        assert GATEWAYS._waiting is not None
        _, waiting = GATEWAYS._waiting

        def status() -> str:
            with open(f"/proc/{waiting}/status") as file:
                return file.read()

        assert until(lambda: "Seccomp:\t2\n" in status())  # it may have been started just now
        assert "NoNewPrivs:\t1\n" in status()
        assert "CapEff:\t0000000000000000\n" in status()
        monkeypatch.setattr(prewarm, "_surroundings", lambda: "elsewhere")
        with sandbox_with(Network.loopback(ports=[server])) as second:
            assert fetch(second, f"http://127.0.0.1:{server}/")[1] == 0
            assert waiting not in _gateways()


HOST_PROGRAM = """
import sys, time
from staddle import Network, Policy, Sandbox
policy = Policy.agent().with_network(Network.allow("allowed.example"))
sandbox = Sandbox(policy=policy, backend=sys.argv[1], mode="bind")
sandbox.start("sleep 1000")
sandbox.expose(8000)
print("open", flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
@each_backend
def test_nothing_is_left_when_the_host_program_is_killed(backend: str) -> None:
    words = [sys.executable, "-c", HOST_PROGRAM, backend]
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True) as program:
        assert next_line(program) == "open\n"
        everything = descendants(program.pid)
        assert any(b"network/gateway/__main__" in command_line(pid) for pid in everything)
        program.kill()
    assert until(lambda: not any(command_line(pid) for pid in everything))


def test_where_a_gateway_cannot_be_started_again_nothing_goes_out_any_more(
    server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GatewayLog, "take_copies", lambda _: None)  # as if none had come
    with sandbox_with(Network.loopback(ports=[server]), "bwrap") as sandbox:
        url = f"http://127.0.0.1:{server}/"
        assert fetch(sandbox, url) == ("hello from outside\n", 0)
        _kill_gateways()
        assert until(lambda: not sandbox.alive)
        result = sandbox.run(f"curl -s {url}")
        assert result.exit_code == 7
        told = [event for event in result.violations if event.kind == "note"]
        assert ["it was killed: nothing goes out" in event.rule for event in told] == [True]
        again = sandbox.run("echo still there")
        assert (again.stdout, again.violations) == ("still there\n", ())
        assert sandbox.events()[-1].what == "the network gateway"


@pytest.mark.slow
@each_backend
def test_a_gateway_that_was_killed_is_started_again_with_its_listeners_and_ports(
    server: int, backend: str
) -> None:
    """Also in the middle of a command, and more than once."""
    policy = Policy.agent().with_network(Network.loopback(ports=[server]))
    with Sandbox(policy=policy, on_connect=lambda _: False, backend=backend) as sandbox:  # type: ignore[arg-type]
        url = f"http://127.0.0.1:{server}/"
        sandbox.start("echo inside > index.html; exec python3 -m http.server 8000").wait_for_port(8000)
        port = sandbox.expose(8000)
        for _ in range(2):
            _kill_gateways()
            assert sandbox.run(f"until curl -sf {url}; do sleep 0.01; done", timeout=20).ok
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
                assert answer.read() == b"inside\n"
            refused = sandbox.run("curl -sS http://other.example/").violations
            assert [event.what for event in refused if event.kind == "refused"] == ["other.example:80"]
            assert sandbox.alive
        told = [event.rule for event in sandbox.events() if event.what == "the network gateway"]
        assert len(told) >= 2  # one that waited for the next sandbox may have been killed as well
        assert all(rule.startswith("it was killed, and another one was started") for rule in told)


@pytest.mark.slow
def test_a_gateway_that_is_started_again_goes_by_the_network_that_was_set() -> None:
    policy = Policy.agent().with_network(Network.allow("a.example:80", "b.example:80"))
    with Sandbox(policy=policy) as sandbox:
        sandbox.set_network(Network.allow("b.example:80"))
        _kill_gateways()
        assert sandbox.alive
        assert sandbox.run("until getent hosts b.example; do :; done", timeout=20).ok
        assert not sandbox.run("getent hosts a.example").ok


def test_the_end_of_a_gateway_is_told_by_the_next_result_and_by_alive(server: int) -> None:
    with sandbox_with(Network.loopback(ports=[server])) as sandbox:
        _kill_gateways()
        assert sandbox.alive
        told = sandbox.run("true").violations
        assert [(event.kind, event.what) for event in told] == [("note", "the network gateway")]
        assert sandbox.run("true").violations == ()


@pytest.mark.slow
def test_a_gateway_that_ends_again_and_again_is_given_up(
    server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_RESTARTS_WITHIN", 1e9)
    with sandbox_with(Network.loopback(ports=[server])) as sandbox:
        for _ in range(network._MOST_RESTARTS + 1):
            _kill_gateways()
            sandbox.alive  # noqa: B018 - it is looked at, and another one is started
        assert not sandbox.alive
        assert sandbox.run(f"curl -s http://127.0.0.1:{server}/").exit_code == 7
        assert "nothing goes out of this sandbox any more" in sandbox.events()[-1].rule


@each_backend
def test_a_gateway_that_is_stopped_is_told_and_waited_for_once(
    server: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_process, "_MOMENT", 200)
    with sandbox_with(Network.loopback(ports=[server]), backend) as sandbox:
        assert fetch(sandbox, f"http://127.0.0.1:{server}/") == ("hello from outside\n", 0)
        gateways = _gateways()  # another one may be prewarmed
        for gateway in gateways:
            os.kill(gateway, signal.SIGSTOP)
        try:
            told = [event.rule for event in sandbox.run("true").violations]
            assert told == ["it does not answer: it is stopped, or has too much to do"]
            monkeypatch.setattr(gateway_process, "_MOMENT", 1_000_000)
            assert sandbox.run("true").violations == ()
        finally:
            for gateway in gateways:
                os.kill(gateway, signal.SIGCONT)
        assert until(lambda: "it answers again" in [event.rule for event in sandbox.run("true").violations])


def _kill_gateways() -> None:
    """Kill all gateways of this program one after the other, those that wait first.

    One that waits must have ended before: it would take the place of the sandbox's, and end there.
    """
    for gateway in sorted(_gateways(), reverse=True):
        os.kill(gateway, signal.SIGKILL)
        assert until(lambda gateway=gateway: gateway not in _gateways())


def _gateways() -> list[int]:
    return [
        pid for pid in descendants(os.getpid()) if b"staddle/network/gateway/__main__" in command_line(pid)
    ]
