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
from staddle.network.host.gateway_process import GatewayBounds, GatewayProcess, start
from staddle.policy.network import Network
from tests.support.in_a_child import ROOT, python
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


# ---------------------------------------------------------------- confinement


PROBES = {
    "open a file": "os.open('/etc/passwd', os.O_RDONLY)",
    "make a file": "os.open('/tmp/staddle-probe', os.O_RDWR | os.O_CREAT)",
    "list a directory": "os.listdir('/')",
    "start a program": "os.execv('/bin/true', ['true'])",
    "fork": "os.fork()",
    "a UNIX socket": "_socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)",
    "a netlink socket": "_socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, 0)",
    "a raw socket": "_socket.socket(_socket.AF_INET, _socket.SOCK_RAW, 1)",
    "signal its parent": "os.kill(os.getppid(), 0)",
    "another user": "os.setuid(0)",
    "a namespace": "call('unshare', 0x10000000)",
    "look into a process": "call('ptrace', 16, 1, 0, 0)",
    "a key": "call('keyctl', 0, -3, 0)",
    "a listener": "_socket.socket(_socket.AF_INET, _socket.SOCK_STREAM).bind(('127.0.0.1', 0))",
}
CODE = """
import _socket, socket
from staddle.linux.syscalls import call
{confine}
try:
    {probe}
    said = "through"
except OSError as error:
    said = errno.errorcode[error.errno]
os.write(1, said.encode())  # a descriptor that is there: all that is left
os._exit(0)
"""
CONFINE = "from staddle.network.gateway.confinement import confine; confine()"


@pytest.mark.parametrize("probe", PROBES)
def test_it_cannot(probe: str) -> None:
    assert python(CODE.format(confine=CONFINE, probe=PROBES[probe])) in ("EPERM", "EACCES")


@pytest.mark.parametrize(
    "probe",
    [
        "_socket.socket(_socket.AF_INET, _socket.SOCK_STREAM).connect_ex(('127.0.0.1', 1))",
        "_socket.socket(_socket.AF_INET6, _socket.SOCK_DGRAM).setblocking(False)",
        "os.urandom(8)",
        "bytearray(64 << 20)",
        "time.monotonic()",
    ],
)
def test_it_can_still(probe: str) -> None:
    assert python(CODE.format(confine=CONFINE, probe=probe)) == "through"


@pytest.mark.parametrize(
    "probe", ["open a file", "list a directory", "a UNIX socket", "a listener", "signal its parent"]
)
def test_the_probes_get_through_without_confinement(probe: str) -> None:
    assert python(CODE.format(confine="", probe=PROBES[probe])) == "through"


def test_nothing_was_made() -> None:
    assert not os.path.exists("/tmp/staddle-probe")
