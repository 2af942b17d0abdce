"""The landlock backend's share of a network: connections over TCP to the named addresses, and no more."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest

from staddle import Network, Policy, Sandbox, wrap
from staddle.errors import PolicyNotEnforceable

#: Tries every way to a port of the host's loopback that is named, and to one that is not.
ATTEMPTS = """
import json, socket, sys
named, other = map(int, sys.argv[1:])
FAST_OPEN = 0x20000000
def tried(do):
    try:
        do()
        return "done"
    except OSError as error:
        return error.errno
def connect(address, port, family=socket.AF_INET):
    with socket.socket(family) as s:
        s.settimeout(5)
        s.connect((address, port))
        assert s.recv(9) == b"hello"
def fast_open(port):
    with socket.socket() as s:
        s.sendto(b"x", FAST_OPEN, ("127.0.0.1", port))
def fast_open_by_message(port):
    with socket.socket() as s:
        s.sendmsg([b"x"], [], FAST_OPEN, ("127.0.0.1", port))
print(json.dumps({
    "named": tried(lambda: connect("127.0.0.1", named)),
    "named, mapped": tried(lambda: connect("::ffff:127.0.0.1", named, socket.AF_INET6)),
    "other": tried(lambda: connect("127.0.0.1", other)),
    "other, mapped": tried(lambda: connect("::ffff:127.0.0.1", other, socket.AF_INET6)),
    "any address": tried(lambda: connect("0.0.0.0", named)),
    "elsewhere": tried(lambda: connect("127.0.0.2", named)),
    "datagram": tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
    "raw": tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
    "multipath": tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)),
    "netlink": tried(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)),
    "fast open": tried(lambda: fast_open(other)),
    "fast open, by message": tried(lambda: fast_open_by_message(other)),
    "a port of the host": tried(lambda: socket.socket().bind(("127.0.0.1", 0))),
}))
"""
REFUSED = {
    **dict.fromkeys(("other", "other, mapped", "any address", "elsewhere", "a port of the host"), 13),
    **dict.fromkeys(("datagram", "raw"), 94),
    **dict.fromkeys(("fast open", "fast open, by message"), 95),
    "multipath": 93,
    "netlink": 97,
}


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """Two servers on the host's loopback that say hello."""
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]

    def serve(server: socket.socket) -> None:
        try:
            while True:
                with server.accept()[0] as connection:
                    connection.sendall(b"hello")
        except OSError:
            return  # it is closed

    for server in listening:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
    yield listening[0].getsockname()[1], listening[1].getsockname()[1]
    for server in listening:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


@pytest.mark.parametrize("kind", ["loopback", "allow"])
def test_the_named_address_is_reached_and_no_other_in_any_way(ports: tuple[int, int], kind: str) -> None:
    network = (
        Network.loopback([ports[0]])
        if kind == "loopback"
        else Network.allow(f"127.0.0.1:{ports[0]}", "name.example:443", "!10.0.0.0/8")
    )
    command = ["python3", "-c", ATTEMPTS, *map(str, ports)]
    wrapped = wrap(command, Policy.agent().with_network(network), backend="landlock", best_effort=True)
    done = wrapped.run(stdout=subprocess.PIPE)
    assert json.loads(done.stdout) == {"named": "done", "named, mapped": "done", **REFUSED}


def test_a_session_has_the_same(ports: tuple[int, int]) -> None:
    policy = Policy.agent().with_network(Network.loopback([ports[0]]))
    with Sandbox(policy=policy, backend="landlock", mode="bind", best_effort=True) as sandbox:
        read = "(exec 3<>/dev/tcp/127.0.0.1/{} && head -c 5 <&3)"
        assert sandbox.run(read.format(ports[0])).stdout == "hello"
        assert sandbox.run(read.format(ports[1])).exit_code != 0


def test_without_best_effort_it_says_what_does_not_hold_and_does_not_start() -> None:
    policy = Policy.agent().with_network(Network.allow("udp://10.0.0.1:53", "10.0.0.1:80"))
    with pytest.raises(PolicyNotEnforceable) as raised:
        wrap(["true"], policy, backend="landlock")
    assert [gap.why for gap in raised.value.gaps if gap.protection == "network"] == [
        "udp://10.0.0.1:53 cannot be reached: Landlock cannot restrict UDP",
    ]
