"""The landlock backend's share of a network: connections over TCP to the named addresses, and no more."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import staddle
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
    "listening": tried(lambda: socket.socket().listen()),
    "listening, IPv6": tried(lambda: socket.socket(socket.AF_INET6).listen()),
}))
"""
REFUSED = {
    **dict.fromkeys(("other", "other, mapped", "any address", "elsewhere", "a port of the host"), 13),
    **dict.fromkeys(("listening", "listening, IPv6"), 13),
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


#: Tries to have a socket of the Internet listen, and to put one where a UNIX socket was in the call.
LISTENING = """
import json, os, socket, threading
found = {}
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    for name in (f"socket-{kind:d}", f"\\0staddle-{os.getpid()}-{kind:d}"):
        server, client = socket.socket(socket.AF_UNIX, kind), socket.socket(socket.AF_UNIX, kind)
        server.bind(name); server.listen(-1); client.connect(name)
        connection = server.accept()[0]
        client.sendall(b"x")
        found[repr(name[:7]) + str(int(kind))] = connection.recv(1).decode()
for what, number in (("no descriptor", 999), ("no socket", os.open(".", os.O_RDONLY))):
    try: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=number).listen()
    except OSError as error: found[what] = error.errno
unix, internet = socket.socket(socket.AF_UNIX), socket.socket()
unix.bind("raced")
number, stop = os.dup(unix.fileno()), False
def swap():
    while not stop:
        os.dup2(internet.fileno(), number); os.dup2(unix.fileno(), number)
swapping = threading.Thread(target=swap); swapping.start()
raced = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=number)
for _ in range(300):
    try: raced.listen()
    except OSError: pass
stop = True
swapping.join(); raced.detach()
found["took a port"] = internet.getsockname()[1]
print(json.dumps(found))
"""


@pytest.mark.both_users
def test_own_unix_sockets_listen_and_no_other_however_fast_it_is_swapped(ports: tuple[int, int]) -> None:
    network = Network.allow(f"127.0.0.1:{ports[0]}")
    code = "import os; os.chdir(os.environ['TMPDIR'])\n" + LISTENING
    policy = Policy.agent().with_network(network)
    done = wrap(["python3", "-c", code], policy, backend="landlock").run(stdout=subprocess.PIPE)
    assert json.loads(done.stdout) == {
        **dict.fromkeys(("'socket-'1", "'socket-'5", "'\\x00staddl'1", "'\\x00staddl'5"), "x"),
        "no descriptor": 9,
        "no socket": 88,
        "took a port": 0,
    }


def test_the_same_program_listens_where_it_has_a_loopback_of_its_own(ports: tuple[int, int]) -> None:
    policy = Policy.agent().with_network(Network.allow(f"127.0.0.1:{ports[0]}"))
    code = "import socket; s = socket.socket(); s.listen(); print(s.getsockname()[1] > 0)"
    done = wrap(["python3", "-c", code], policy, backend="namespaces").run(stdout=subprocess.PIPE)
    assert done.stdout == b"True\n"


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


#: A program that knows of no proxy: names are asked for, and connected to, by calls of the C library.
BY_NAME = """
import errno, json, socket, sys
def tried(do):
    try:
        return do()
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
def connect(address, port=443, seconds=None, family=socket.AF_INET):
    with socket.socket(family) as s:
        s.settimeout(seconds)
        s.connect((address, port))
        return "connected"
def again():
    with socket.socket() as s:
        first = tried(lambda: s.connect((known, 80)))
        return [first, tried(lambda: s.connect((known, 443)))]
known = tried(lambda: socket.gethostbyname("name.example"))
print(json.dumps({
    "known": known,
    "unknown": tried(lambda: socket.gethostbyname("other.example")),
    "another port": tried(lambda: connect(known, 80)),
    "another port, with a timeout": tried(lambda: connect(known, 80, 9)),
    "not there": tried(lambda: connect(known)),
    "mapped": tried(lambda: connect("::ffff:" + known, 80, None, socket.AF_INET6)),
    "of no name": tried(lambda: connect("198.19.9.9")),
    "again": again(),
    "datagram": tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
}))
"""


def test_names_are_asked_for_and_connected_to_by_programs_that_know_of_no_proxy() -> None:
    """What is reached is in test_network_matrix: every client does so."""
    network = Network.allow("name.example:443", dns=["127.0.0.77"])  # nobody answers there
    command = ["python3", "-c", BY_NAME]
    wrapped = wrap(command, Policy.agent().with_network(network), backend="landlock", best_effort=True)
    done = wrapped.run(stdout=subprocess.PIPE)
    found = json.loads(done.stdout)
    assert found.pop("known").startswith("198.18.")
    assert found == {
        "unknown": "gaierror",
        **dict.fromkeys(("another port", "another port, with a timeout", "mapped"), "EACCES"),
        **dict.fromkeys(("not there", "of no name"), "EHOSTUNREACH"),
        "again": ["EACCES", "EHOSTUNREACH"],
        "datagram": "ESOCKTNOSUPPORT",
    }


def test_without_a_list_of_hosts_nothing_is_led_anywhere() -> None:
    code = """
import socket
for place in (("198.18.1.0", 443), ("127.0.0.1", 53), ("10.0.0.1", 53)):
    print(socket.socket().connect_ex(place))
"""
    policy = Policy.agent().with_network(Network.loopback([9]))
    wrapped = wrap(["python3", "-c", code], policy, backend="landlock", best_effort=True)
    assert wrapped.run(stdout=subprocess.PIPE, text=True).stdout == "13\n" * 3


@pytest.mark.needs_root
def test_the_proxy_needs_no_file_of_a_package_that_only_root_can_read() -> None:
    """It becomes the sandbox's user before its first connection, and has imported all of its code by then."""
    ask = (
        "import os, socket, urllib.parse as parse\n"
        "at = parse.urlsplit(os.environ['http_proxy'])\n"
        "with socket.create_connection((at.hostname, at.port), 5) as proxy:\n"
        "    proxy.sendall(b'GET http://other.test/ HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n')\n"
        "    print(proxy.recv(8))\n"
    )
    program = (
        "from staddle import Network, Policy, wrap\n"
        "policy = Policy.agent().with_network(Network.allow('example.test'))\n"
        f"command = wrap(['/usr/bin/python3', '-c', {ask!r}], policy, backend='landlock')\n"
        "raise SystemExit(command.run().returncode)\n"
    )
    with tempfile.TemporaryDirectory(dir=Path.home()) as top:
        os.chmod(top, 0o700)
        shutil.copytree(Path(staddle.__file__).parent, f"{top}/staddle")
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": top},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stdout == "b'HTTP/1.1'\n", done.stderr
