"""The gateway process: what it serves, what it cannot do, and that nothing outlives its line."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from staddle.linux.process import SIGKILL
from staddle.network.host import forward
from staddle.network.host.gateway_process import GatewayBounds, GatewayProcess, start
from staddle.policy.network import Network
from tests.support.in_a_child import ROOT
from tests.support.network_servers import echo, http_server
from tests.support.network_world import OTHER, PUBLIC, in_a_world, network_of, sandbox, status
from tests.support.waiting import until

HOSTS = {"api.example.com": PUBLIC}


def settled(gateway: GatewayProcess) -> bool:
    return until(lambda: status(gateway.pid)["Seccomp"] == "2")


# Without nftables.


@pytest.mark.slow
@in_a_world
def test_without_nftables_listeners_do_the_same() -> None:
    http_server(PUBLIC, 80)
    hosts = {"api.example.com": PUBLIC, "x.wild.example": PUBLIC}
    with sandbox(
        "api.example.com", "*.wild.example:80", f"{PUBLIC}:80", hosts=hosts, redirect=False
    ) as inside:
        assert inside.ready[0] is False
        for host in hosts:
            assert inside.run("curl", "-sS", f"http://{host}/")[1] == f"hello from {host}"
            assert inside.run("curl", "-6sS", f"http://{host}/")[1] == f"hello from {host}"
        assert inside.run("curl", "-sS", f"http://{PUBLIC}/")[1] == f"hello from {PUBLIC}"
        for url in ("http://evil.com", f"http://{OTHER}/", "http://api.example.com:81/"):
            assert inside.run("curl", "-sS", url)[0] in (6, 7)


# The host's loopback, and the sandbox's.


@in_a_world
def test_loopback_has_the_hosts_ports_that_are_named_and_no_other() -> None:
    http_server("127.0.0.1", 8000)
    http_server("127.0.0.1", 8001)
    with network_of(Network.loopback([8000])) as inside:
        assert inside.run("curl", "-sS", "http://127.0.0.1:8000/")[1] == "hello from 127.0.0.1:8000"
        assert inside.run("curl", "-sS", "http://localhost:8000/")[1] == "hello from localhost:8000"
        for url in (
            "http://127.0.0.1:8001/",
            "http://127.0.0.2:8000/",
            f"http://{PUBLIC}/",
            "http://[::1]:8001/",
        ):
            assert inside.run("curl", "-sS", url)[0] == 7
        own = "a = ('127.0.0.1', 8001); s = socket.create_server(a); socket.create_connection(a); print(1)"
        assert inside.python(f"import socket; {own}") == "1"


@in_a_world
def test_ports_inside_can_be_reached_from_the_host() -> None:
    with network_of(Network.deny()) as inside:
        assert inside.gateway is not None
        line = inside.descriptors.fileno()
        with pytest.raises(forward.ForwardFailed, match="nothing listens"):
            forward.connect(line, 8000)
        server = "python3 -I -m http.server --bind 127.0.0.1 8000 --directory /usr/share/common-licenses"
        inside.run("bash", "-c", f"exec timeout 20 {server} >/dev/null 2>&1 &")
        assert until(lambda: _answers(line, 8000))
        exposed = forward.ExposedPort(8000)
        exposed.serve(inside.gateway, line)
        port = exposed.host_port
        for _ in range(40):  # more than were handed out at first
            with socket.create_connection(("127.0.0.1", port), 5) as s:
                s.sendall(b"GET / HTTP/1.0\r\n\r\n")
                assert s.recv(15) == b"HTTP/1.0 200 OK"
            inside.gateway.attempts()
            forward.feed(inside.gateway, line)
        exposed.close()
        inside.gateway.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)


def _answers(line: int, port: int) -> bool:
    try:
        with socket.socket(fileno=forward.connect(line, port)) as made:
            made.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return made.recv(8) == b"HTTP/1.0"
    except forward.ForwardFailed:
        return False


# What no entry speaks of.


@pytest.mark.same_for_everyone
@in_a_world
def test_somebody_may_be_asked_and_anything_but_yes_is_no() -> None:
    echo(PUBLIC, 9000)
    echo(OTHER, 9000)
    answers = {"yes.example.com": True, "no.example.com": False, "odd.example.com": "yes", PUBLIC: True}
    hosts = dict.fromkeys(
        ["yes.example.com", "no.example.com", "odd.example.com", "denied.example.com"], PUBLIC
    )
    asked: list[tuple[str, int]] = []
    network = Network.allow("api.example.com", "!denied.example.com")
    with network_of(network, hosts, bounds=GatewayBounds(asks=2)) as inside:
        gateway = inside.gateway
        assert gateway is not None
        told = []
        done = threading.Event()

        def decide() -> None:
            while not done.is_set():
                told.extend(gateway.attempts())
                for question in gateway.questions():
                    asked.append((question.host, question.port))
                    if question.host in answers:
                        gateway.decide(question, answers[question.host])
                time.sleep(0.01)

        deciding = threading.Thread(target=decide, daemon=True)
        deciding.start()
        code = """
import socket
def ask(host):
    try:
        s = socket.create_connection((host, 9000), 8); s.sendall(b"\\0hi"); return s.recv(9) == b"\\0hi"
    except OSError as error:
        return type(error).__name__
for host in {hosts!r}: print(ask(host))
""".replace("{hosts!r}", repr([*hosts, PUBLIC, OTHER, "yes.example.com"]))
        lines = inside.python(code).split("\n")
        done.set()
        deciding.join()
        reset = "ConnectionResetError"
        assert lines == ["True", reset, reset, "gaierror", "True", reset, "True"]
        assert asked == [
            (host, 9000) for host in ("yes.example.com", "no.example.com", "odd.example.com", PUBLIC, OTHER)
        ]
        told.extend(inside.attempts())
        assert {a.host for a in told if a.outcome == "refused"} >= {
            "no.example.com",
            OTHER,
            "denied.example.com",
        }


# The process.


@in_a_world
def test_when_the_gateway_dies_nothing_goes_out() -> None:
    echo(PUBLIC, 9000)
    with sandbox("api.example.com:9000", hosts=HOSTS) as inside:
        assert inside.gateway is not None
        address = inside.run("getent", "ahostsv4", "api.example.com")[1].split()[0]
        os.kill(inside.gateway.pid, SIGKILL)
        assert until(inside.gateway.ended)
        began = time.monotonic()
        code = f"socket.create_connection(({address!r}, 9000), 90)"
        assert "ConnectionRefusedError" in inside.run(sys.executable, "-Ic", f"import socket; {code}")[2]
        patient = ("env", "RES_OPTIONS=timeout:30", "getent", "ahostsv4")  # with a nameserver that is silent
        assert inside.run(*patient, "api.example.com")[0] == 2
        assert time.monotonic() - began < 50


def test_it_is_confined_and_gone_after_close() -> None:
    with start(Network.loopback([1])) as gateway:
        assert settled(gateway)
        facts = status(gateway.pid)
        assert facts["NoNewPrivs"] == "1"
        assert int(facts["CapEff"], 16) == int(facts["CapPrm"], 16) == 0
        assert facts["Threads"] == "1"
        if ROOT:
            assert set(facts["Uid"].split()) == {"65534"}
            assert facts["Groups"] == ""
            fds = Path(f"/proc/{gateway.pid}/fd").iterdir()
            kinds = sorted(os.readlink(fd).partition(":")[0] for fd in fds)
            assert kinds == ["/dev/null"] * 3 + [
                "anon_inode",
                "anon_inode",
                "socket",
                "socket",
            ]  # one asks for routes
        pid = gateway.pid
    assert not Path(f"/proc/{pid}").exists()


def test_it_ends_when_whoever_started_it_is_killed() -> None:
    said, say = os.pipe()
    child = os.fork()
    if child == 0:
        gateway = start(Network.loopback([1]))
        settled(gateway)
        os.write(say, str(gateway.pid).encode())
        os.close(say)
        signal.pause()
    os.close(say)
    with os.fdopen(said) as file:
        pid = int(file.read())
    assert Path(f"/proc/{pid}").exists()
    os.kill(child, SIGKILL)
    os.waitpid(child, 0)
    # Somebody else's child now: it may stay a zombie where nobody reaps.
    assert until(lambda: not Path(f"/proc/{pid}").exists() or status(pid)["State"].startswith("Z"))


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("nonsense", [b"nonsense", b"sockets 1\n", b"settings 1\n" + b"x" * 100])
def test_nonsense_on_its_line_ends_it(nonsense: bytes) -> None:
    with start(Network.loopback([1])) as gateway:
        gateway.pass_on(nonsense, [])
        assert until(gateway.ended)


@pytest.mark.same_for_everyone
def test_descriptors_without_labels_end_it() -> None:
    with socket.socket() as one, start(Network.loopback([1])) as gateway:
        gateway.pass_on(b"sockets 1\n", [one.fileno()])
        assert until(gateway.ended)


def test_one_that_hangs_is_ended() -> None:
    gateway = start(Network.loopback([1]))
    assert settled(gateway)
    pid = gateway.pid
    os.kill(pid, signal.SIGSTOP)
    gateway.close()
    assert not Path(f"/proc/{pid}").exists()
