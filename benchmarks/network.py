"""What the gateway costs: a gigabyte, a small request, a name, setting it up, 10,000 connections.

Everything is measured by the same client, in a sandbox and beside it. The server is on the host's
loopback; inside, it is reached by a name, so that all of the gateway is on the way.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from measure import Claim, first_result, ms
from staddle import Network, Policy, Sandbox
from staddle.network.host import gateway_process

_NAME = "bench.example"
_GIGABYTE, _BLOCK = 1 << 30, 1 << 20
#: What a client begins with. Nothing that could become HTTP: the gateway would wait for the rest of it.
_FETCH, _SEND, _SMALL, _WAIT = b"\1", b"\2", b"\3", b"\4"
_CLIENT = r"""
import socket, statistics, sys, time
what, host, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
clock = time.perf_counter
def fetch(where, size):
    s = socket.create_connection(where)
    s.sendall(b"\1"); left, block = size, bytearray(1 << 20)
    while left: left -= s.recv_into(block)
    s.close()
def send(where, size):
    s = socket.create_connection(where)
    s.sendall(b"\2"); left, block = size, bytes(1 << 20)
    while left: s.sendall(block); left -= len(block)
    s.shutdown(1); assert s.recv(1) == b"!"; s.close()
def small(where, _):
    s = socket.create_connection(where)
    s.sendall(b"\3"); assert s.recv(200); s.close()
def name(_, __): socket.gethostbyname(host)
work = {"fetch": fetch, "send": send, "small": small, "name": name}[what]
where = (socket.gethostbyname(host), port)
times = []
for _ in range(count):
    began = clock(); work(where, 1 << 30); times.append(clock() - began)
print(statistics.median(times))
"""
#: 10,000 connections by eight threads, each with a byte there and back, while others trickle.
_STORM = r"""
import socket, sys, threading, time
where = (socket.gethostbyname(sys.argv[1]), int(sys.argv[2]))
slow = [socket.create_connection(where) for _ in range(200)]
def work():
    for _ in range(1250):
        with socket.create_connection(where) as s:
            s.sendall(b"\3"); assert s.recv(200)
threads = [threading.Thread(target=work) for _ in range(8)]
began = time.perf_counter()
for t in threads: t.start()
while any(t.is_alive() for t in threads):
    for s in slow: s.sendall(b"\4")
    time.sleep(0.05)
print(time.perf_counter() - began)
"""


def _serve(listener: socket.socket) -> None:
    """In a process of its own: FETCH is sent a gigabyte, SEND sends one, SMALL gets an answer, WAIT none."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    waiting = select.epoll()
    waiting.register(listener, select.EPOLLIN)
    known: dict[int, socket.socket] = {}
    while True:
        for fd, _ in waiting.poll():
            if fd == listener.fileno():
                connection, _ = listener.accept()
                known[connection.fileno()] = connection
                waiting.register(connection, select.EPOLLIN)
                continue
            connection = known[fd]
            asked = connection.recv(1)
            if asked == _WAIT:
                continue
            if asked == _SMALL:
                connection.sendall(bytes(100))
            elif asked and os.fork() == 0:
                _transfer(connection, asked)
            waiting.unregister(connection)
            del known[fd]
            connection.close()


def _transfer(connection: socket.socket, asked: bytes) -> NoReturn:
    left = _GIGABYTE
    if asked == _FETCH:
        block = bytes(_BLOCK)
        while left:
            connection.sendall(block)
            left -= len(block)
    else:
        room = bytearray(_BLOCK)
        while left:
            left -= connection.recv_into(room)
        connection.sendall(b"!")
    os._exit(0)


@contextmanager
def _server() -> Iterator[int]:
    """The port of the server, on 127.0.0.1."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port: int = listener.getsockname()[1]
    child = os.fork()
    if child == 0:
        try:
            _serve(listener)
        finally:
            os._exit(1)
    listener.close()
    try:
        yield port
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@contextmanager
def _sandbox(port: int) -> Iterator[Sandbox]:
    """A sandbox that reaches the server by a name."""
    found = gateway_process.host_names
    gateway_process.host_names = lambda: ((_NAME, "127.0.0.1"),)  # as if it were in /etc/hosts
    try:
        network = Network.allow(f"{_NAME}:{port}", f"127.0.0.1:{port}")
        with Sandbox(policy=Policy.agent().with_network(network)) as sandbox:
            sandbox.files.write("client.py", _CLIENT)
            sandbox.files.write("storm.py", _STORM)
            _inside(sandbox, "small", port, 1)  # and the gateway is there
            yield sandbox
    finally:
        gateway_process.host_names = found


def _inside(sandbox: Sandbox, what: str, port: int, count: int) -> float:
    done = sandbox.run(f"python3 client.py {what} {_NAME} {port} {count}", timeout=300, check=True)
    return float(done.stdout)


def _beside(what: str, port: int, count: int) -> float:
    words = [sys.executable, "-c", _CLIENT, what, "127.0.0.1", str(port), str(count)]
    return float(subprocess.run(words, check=True, capture_output=True, text=True, timeout=300).stdout)


def _alternately(sandbox: Sandbox, what: str, port: int, rounds: int, count: int) -> tuple[float, float]:
    """The median seconds through the gateway and beside it, by turns."""
    through, direct = [], []
    for _ in range(rounds):
        direct.append(_beside(what, port, count))
        through.append(_inside(sandbox, what, port, count))
    return statistics.median(through), statistics.median(direct)


def gateway() -> list[Claim]:
    with _server() as port, _sandbox(port) as sandbox:
        claims = []
        for what, said in (("fetch", "1 GB to a sandbox"), ("send", "1 GB from a sandbox")):
            through, direct = _alternately(sandbox, what, port, 9, 1)
            rates = f"{1 / through:.1f} GB/s against {1 / direct:.1f} GB/s"
            claims.append(Claim(f"{said} / the same over loopback, time", through / direct, 2, rates))
        through, direct = _alternately(sandbox, "small", port, 9, 200)
        detail = f"{through * 1e6:.0f} µs against {direct * 1e6:.0f} µs"
        claims.append(Claim("connect and a small request / the same without", through / direct, 5, detail))
        name = _inside(sandbox, "name", port, 2000)
        claims.append(Claim("a name resolved, ms", name * 1000, 0.2, ""))
        return [*claims, _storm(sandbox, port)]


def _storm(sandbox: Sandbox, port: int) -> Claim:
    """10,000 connections, and 200 that trickle: what the gateway has grown by."""
    (pid,) = _gateways()
    before = _resident(pid)
    seconds = float(sandbox.run(f"python3 storm.py {_NAME} {port}", timeout=300, check=True).stdout)
    still = _inside(sandbox, "small", port, 50)
    detail = f"{seconds:.1f} s for all, {still * 1e6:.0f} µs for a request after them"
    return Claim("10,000 connections: the gateway grows by, MB", (_resident(pid) - before) / 1024, 8, detail)


def _gateways() -> list[int]:
    """The gateways that this process has started."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")[:-1]
        except OSError:
            continue
        if len(words) > 1 and words[-2].endswith(b"staddle/network/gateway/__main__.py"):
            found += [int(name)] if words[-1] == b"%d" % os.getpid() else []
    return found


def _resident(pid: int) -> int:
    """KiB of memory that a process had at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def setting_up() -> list[Claim]:
    """A session with an allow list beside one without a network, each with a spare ready."""
    networks = {"deny": Network.deny(), "allow": Network.allow("api.example.com:443", "*.github.com")}
    times: dict[str, list[float]] = {name: [] for name in networks}

    for number in range(41):
        for name, network in networks.items():
            seconds = first_result(0.06, policy=Policy.agent().with_network(network))
            if number:
                times[name].append(seconds)
    took = {name: statistics.median(values) for name, values in times.items()}
    added = took["allow"] - took["deny"]
    detail = f"{ms(took['allow'])} against {ms(took['deny'])}"
    return [Claim("an allow list adds to a session, ms", added * 1000, 1.5, detail)]


CLAIMS = (gateway, setting_up)
