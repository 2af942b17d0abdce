"""The network of a session: what the policy allows works for every client, and nothing else exists."""

from __future__ import annotations

import http.server
import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from staddle import Network, Policy, Sandbox
from staddle.errors import InvalidCall
from tests.kernel.waiting import until
from tests.kernel.zygotes import children


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"hello from outside\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a web server on the host's loopback."""
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made.server_address[1]
    made.shutdown()
    made.server_close()


def sandbox_with(network: Network) -> Sandbox:
    return Sandbox(policy=Policy.agent().with_network(network))


def fetch(sandbox: Sandbox, url: str) -> tuple[str, int]:
    done = sandbox.run(f"curl -sS -m 10 {url} 2>&1")
    return done.stdout, done.exit_code


def test_nothing_is_reached_but_its_own_loopback(server: int) -> None:
    with Sandbox() as sandbox:
        assert fetch(sandbox, f"http://127.0.0.1:{server}/")[1] == 7
        assert sandbox.run("getent hosts example.com").exit_code != 0
        sandbox.start("python3 -m http.server 8000 --bind 127.0.0.1")
        assert until(lambda: fetch(sandbox, "http://127.0.0.1:8000/")[1] == 0)


def test_exactly_the_named_ports_of_the_hosts_loopback_are_there(server: int) -> None:
    with sandbox_with(Network.loopback(ports=[server])) as sandbox:
        assert sandbox.enforced.gaps == ()
        assert fetch(sandbox, f"http://127.0.0.1:{server}/") == ("hello from outside\n", 0)
        assert fetch(sandbox, f"http://localhost:{server}/") == ("hello from outside\n", 0)
        assert fetch(sandbox, f"http://127.0.0.1:{server + 1}/")[1] == 7


def test_what_is_not_allowed_fails_at_once_and_is_told(server: int) -> None:
    with sandbox_with(Network.allow("allowed.example:443", "192.0.2.7:80")) as sandbox:
        assert sandbox.enforced.gaps == ()
        for url in (f"http://127.0.0.1:{server}/", "http://evil.example/", "http://192.0.2.8/"):
            assert fetch(sandbox, url)[1] in (6, 7)
        refused = {event.what for event in sandbox.events() if event.kind == "refused"}
        assert "evil.example" in refused
        assert "nameserver 127.0.0.53" in sandbox.run("cat /etc/resolv.conf").stdout


def test_a_name_of_the_list_resolves_and_no_other() -> None:
    with sandbox_with(Network.allow("allowed.example:443", "*.wild.example")) as sandbox:
        assert sandbox.run("getent ahostsv4 allowed.example").stdout.startswith("198.1")
        assert sandbox.run("getent ahostsv4 a.wild.example").ok
        assert not sandbox.run("getent ahostsv4 wild.example").ok
        assert not sandbox.run("getent ahostsv4 other.example").ok


def test_a_server_inside_is_reached_from_outside() -> None:
    with Sandbox() as sandbox:
        sandbox.run("echo inside > index.html")
        sandbox.start("python3 -m http.server 8000 --bind 127.0.0.1")
        assert until(lambda: fetch(sandbox, "http://127.0.0.1:8000/")[1] == 0)
        with sandbox.connect(8000) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert connection.recv(8) == b"HTTP/1.0"
        port = sandbox.expose(8000)
        for _ in range(40):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
                assert answer.read() == b"inside\n"
        with pytest.raises(ConnectionError):
            sandbox.connect(8001)
    with socket.socket() as after:
        assert after.connect_ex(("127.0.0.1", port)) != 0


def test_a_network_that_is_the_hosts_needs_no_way_in() -> None:
    with sandbox_with(Network.open()) as sandbox, pytest.raises(InvalidCall, match="host's"):
        sandbox.connect(80)


def test_the_gateway_ends_with_the_sandbox(server: int) -> None:
    sandbox = sandbox_with(Network.loopback(ports=[server]))
    before = len(children())
    sandbox.close()
    assert until(lambda: len(children()) < before)
    assert not any(b"staddle/network/__main__" in _command(pid) for pid in children())


def _command(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""
