"""A hostile program inside: whatever it sends, no server hears a request for another host."""

from __future__ import annotations

import http.server
import os
import resource
import socket
from pathlib import Path

import pytest

from staddle.network.host.gateway_process import GatewayBounds
from tests.support.network_servers import echo, http_server, listening
from tests.support.network_world import PUBLIC, in_a_world, sandbox, status
from tests.support.waiting import until

HOSTS = {"api.example.com": PUBLIC}
OPENINGS = r"""
GOOD = b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
LIES = [
    b"GET / HTTP/1.1\r\nHost: evil.com\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.com\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: evil.com\r\nHost: api.example.com\r\n\r\n",
    b"\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: evil.com\r\n\r\n",
    b"GET / HTTP/1.1\nHost: evil.com\n\n",
    b"GET\t/\tHTTP/1.1\r\nHost:\tevil.com\r\n\r\n",
    b" GET / HTTP/1.1\r\nhost:evil.com\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: y\r\n Host: api.example.com\r\nHost: evil.com\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: api.example.com.evil.com\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: api.example.com\0.evil.com\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: api.example.com@evil.com\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: evil.com\r\nContent-Length: 0\r\n\r\n",
    b"CONNECT evil.com:443 HTTP/1.1\r\nHost: evil.com:443\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost : evil.com\r\n\r\n",
    b"GET / HTTP/1.1\r\n\tHost: evil.com\r\nHost: api.example.com\r\n\r\n",
    b"HEAD / HTTP/1.0\r\nHost:evil.com\r\n\r\n",
]
"""


@pytest.mark.slow
@pytest.mark.same_for_everyone
@in_a_world
def test_no_split_of_a_lie_reaches_the_server() -> None:
    heard = Path(f"/dev/shm/staddle-heard-{os.getpid()}")
    heard.touch()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with heard.open("a") as file:
                file.write(f"{self.headers.get_all('Host')}\n")
            self.send_response(200)
            self.end_headers()

        do_POST = do_HEAD = do_CONNECT = do_GET  # noqa: N815 - the names are http.server's

        def log_message(self, *_: object) -> None:
            pass

    def serve(connection: socket.socket) -> None:
        connection.settimeout(30)
        Handler(connection, ("", 0), None)  # type: ignore[arg-type]

    listening(PUBLIC, 80, serve)
    code = (
        OPENINGS
        + """
import random, socket, sys
choose = random.Random(7)
def send(data, cuts):
    s = socket.create_connection(("api.example.com", 80), 30)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        for a, b in zip([0, *cuts], [*cuts, len(data)]): s.sendall(data[a:b])
        s.shutdown(1)
        return s.recv(1000)
    except OSError:
        return b""
    finally:
        s.close()
answered = 0
for lie in LIES:
    for _ in range(6):
        answered += bool(send(lie, sorted(choose.sample(range(1, len(lie)), choose.randint(0, 4)))))
print(answered, send(GOOD, [1, 5, 20])[9:12].decode())
"""
    )
    try:
        with sandbox("api.example.com:80", hosts=HOSTS) as inside:
            assert inside.python(code) == "0 200"
            inside.attempts()
        assert heard.read_text() == "['api.example.com']\n"
    finally:
        heard.unlink()


@pytest.mark.slow
@pytest.mark.same_for_everyone
@in_a_world
def test_random_openings_neither_pass_for_tls_nor_hurt_the_gateway() -> None:
    http_server(PUBLIC, 80)
    with sandbox("api.example.com", hosts=HOSTS) as inside:
        code = """
import os, random, socket, ssl
choose = random.Random(11)
context = ssl.create_default_context()
out = ssl.MemoryBIO(); tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="api.example.com")
try: tls.do_handshake()
except ssl.SSLWantReadError: pass
hello = out.read()
for turn in range(150):
    data = bytearray(hello if turn % 2 else b"GET / HTTP/1.1\\r\\nHost: api.example.com\\r\\n\\r\\n")
    for _ in range(choose.randint(1, 8)): data[choose.randrange(len(data))] = choose.randrange(256)
    s = socket.create_connection(("api.example.com", 80), 5)
    try: s.sendall(bytes(data[:choose.randint(1, len(data))])); s.shutdown(1); s.settimeout(5); s.recv(100)
    except OSError: pass
    s.close()
import urllib.request
print(urllib.request.urlopen("http://api.example.com/").read().decode())
"""
        assert inside.python(code) == "hello from api.example.com"
        inside.attempts()


@pytest.mark.same_for_everyone
@in_a_world
def test_an_opening_in_single_bytes_ends_soon() -> None:
    http_server(PUBLIC, 80)
    with sandbox("api.example.com", hosts=HOSTS) as inside:
        code = """
import socket, time
s = socket.create_connection(("api.example.com", 80), 5)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
sent = 0
try:
    for byte in b"GET / HTTP/1.1\\r\\nX: " + b"a" * 4000:
        s.send(bytes([byte])); sent += 1; time.sleep(0.0005)
except OSError: pass
print(256 <= sent < 4000)
"""
        assert inside.python(code) == "True"
        assert any("too many pieces" in a.why for a in inside.attempts())


@pytest.mark.slow
@in_a_world
def test_running_out_of_descriptors_is_survived() -> None:
    echo(PUBLIC, 9000)
    most = max(64, len(os.listdir("/proc/self/fd")) + 24)  # less than two for each connection
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with sandbox("api.example.com:9000", hosts=HOSTS, bounds=GatewayBounds(connections=500)) as inside:
        code = """
import socket
many = []
for _ in range(50):
    s = socket.socket(); s.setblocking(False)
    try: s.connect(("198.18.1.0", 9000))
    except BlockingIOError: pass
    many.append(s)
for s in many: s.close()
s = socket.create_connection(("api.example.com", 9000), 60); s.settimeout(60)
s.sendall(b"\\0after"); print(s.recv(9))
"""
        assert inside.python(code) == "b'\\x00after'"
        inside.attempts()
        assert inside.gateway is not None
        gateway = inside.gateway.pid
        assert until(lambda: status(gateway)["State"].startswith("S")), "it does not come to rest"


@in_a_world
def test_the_gateways_own_addresses_lead_nowhere() -> None:
    with sandbox("api.example.com", "0.0.0.0/0", "::/0", hosts=HOSTS) as inside:
        code = """
import socket
for where in "198.18.0.1 1", "198.18.0.2 80", "198.18.77.77 80", "2001:2::1 1", "2001:2::9:9 80":
    host, port = where.split()
    try:
        s = socket.create_connection((host, port), 5); s.sendall(b"x"); print(s.recv(9))
    except ConnectionError as error: print("no")
"""
        assert set(inside.python(code).split("\n")) == {"no"}
