"""A parent reaches a server in the command that it wrapped, by `connect` and by `expose`."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from staddle import Network, Policy, wrap
from staddle.errors import InvalidCall
from staddle.linux.process_tree import descendants
from staddle.wrapping import WrappedCommand
from tests.support.waiting import next_line, until

pytestmark = pytest.mark.both_users

NETWORKS = {
    "deny": Network.deny(),
    "loopback": Network.loopback(),
    "allow": Network.allow("example.com:443"),
}
#: Echoes what each connection sends, in capitals; as many connections as come.
SERVER = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 8000), family=family)
print("listening", flush=True)
while True:
    with server.accept()[0] as connection:
        connection.sendall(connection.recv(100).upper())
"""


@contextmanager
def serving(
    backend: str, network: Network, address: str = "127.0.0.1"
) -> Iterator[tuple[WrappedCommand, subprocess.Popen[bytes]]]:
    wrapped = wrap(
        ["python3", "-c", SERVER, address],
        Policy.agent().with_network(network),
        backend=backend,  # type: ignore[arg-type]
        best_effort=backend == "landlock",
    )
    process = wrapped.popen(stdout=subprocess.PIPE)
    try:
        assert next_line(process) == b"listening\n"
        yield wrapped, process
    finally:
        process.kill()
        process.communicate()


def exchange(connection: socket.socket) -> bytes:
    with connection:
        connection.settimeout(10)
        connection.sendall(b"hello")
        return connection.recv(100)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("backend", ["namespaces", "bwrap"])
def test_a_parent_dials_a_server_in_the_command(backend: str, network: str) -> None:
    with serving(backend, NETWORKS[network]) as (wrapped, _):
        with pytest.raises(OSError, match="refused"):  # its loopback is not the host's
            socket.create_connection(("127.0.0.1", 8000))
        assert exchange(wrapped.connect(8000)) == b"HELLO"
        assert exchange(wrapped.connect(8000)) == b"HELLO"
        with pytest.raises(ConnectionError, match="nothing listens"):
            wrapped.connect(8001)


@pytest.mark.parametrize("backend", ["namespaces", "bwrap"])
def test_a_port_of_the_host_leads_to_the_command_until_it_ends(backend: str) -> None:
    with serving(backend, Network.loopback(), "::1") as (wrapped, process):
        before = {*descendants(os.getpid())}
        port = wrapped.expose(8000)
        for _ in range(40):  # more than the sockets that are handed out at first
            assert exchange(socket.create_connection(("127.0.0.1", port))) == b"HELLO"
        second = wrapped.expose(8000)
        assert second != port
        assert exchange(socket.create_connection(("127.0.0.1", second))) == b"HELLO"
        assert exchange(wrapped.connect(8000)) == b"HELLO"
        process.kill()
        process.wait()
        assert until(lambda: _is_refused(port) and _is_refused(second))
        # The helper and the gateway have ended too; one gateway more may wait for the next caller.
        assert until(lambda: not {*descendants(os.getpid())} - before, seconds=20)
        with pytest.raises(ConnectionError, match="has ended"):
            wrapped.connect(8000)


def _is_refused(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("backend", ["namespaces", "bwrap"])
def test_the_helper_in_the_commands_network_has_no_capability(backend: str) -> None:
    with serving(backend, Network.loopback()) as (wrapped, process):
        inside = {process.pid, *descendants(process.pid)}
        wrapped.connect(8000).close()
        (helper,) = (
            pid
            for pid in {*descendants(os.getpid())} - inside
            if b"forwarder" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        with open(f"/proc/{helper}/status") as file:
            status = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[name], 16) == 0, name
        assert status["NoNewPrivs"] == "1"


@pytest.mark.parametrize("backend", ["namespaces", "bwrap"])
def test_each_command_is_reached_in_its_own_network(backend: str) -> None:
    with (
        serving(backend, Network.loopback()) as (one, _),
        serving(backend, Network.loopback(), "::1") as (two, _),
    ):
        assert one.connect(8000).getpeername()[0] == "127.0.0.1"
        assert two.connect(8000).getpeername()[0] == "::1"


@pytest.mark.parametrize("backend", ["namespaces", "bwrap"])
def test_a_command_can_be_exposed_as_soon_as_it_is_started(backend: str) -> None:
    wrapped = wrap(["python3", "-c", SERVER, "127.0.0.1"], Policy.agent(), backend=backend)  # type: ignore[arg-type]
    process = wrapped.popen(stdout=subprocess.PIPE)
    try:
        port = wrapped.expose(8000)
        assert next_line(process) == b"listening\n"
        assert exchange(socket.create_connection(("127.0.0.1", port))) == b"HELLO"
    finally:
        process.kill()
        process.communicate()


def test_a_command_that_is_not_started_cannot_be_connected_to() -> None:
    wrapped = wrap(["true"], Policy.agent(), backend="namespaces")
    for way in (wrapped.connect, wrapped.expose):
        with pytest.raises(InvalidCall, match="popen"):
            way(8000)
    wrapped.close()


def test_with_an_open_network_the_port_is_the_hosts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        wrapped = wrap(["true"], Policy.agent().with_network(Network.open()), backend="namespaces")
        wrapped.connect(port).close()
        assert wrapped.expose(port) == port
        with pytest.raises(InvalidCall, match="host's"):
            wrapped.expose(port, port + 1)
        wrapped.close()


def test_landlock_says_that_it_has_no_way_into_a_commands_network() -> None:
    wrapped = wrap(["true"], Policy.agent(), backend="landlock")
    for way in (wrapped.connect, wrapped.expose):
        with pytest.raises(InvalidCall, match="landlock has no way into its network"):
            way(8000)
    wrapped.close()
