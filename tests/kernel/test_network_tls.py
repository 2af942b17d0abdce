"""TLS passes through: clients verify the server itself, and the gateway reads only whom they ask for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.network_servers import certificate_for, echo, http_server
from tests.support.network_world import PUBLIC, Sandbox, apart, at, in_a_world, sandbox
from tests.support.waiting import until
from tests.unit.network.rules.hellos import extended, extension, real

NAME = "api.example.com"
HOSTS = {NAME: PUBLIC, "front.example.com": PUBLIC}
#: What curl says to a connection that is reset, at the moment it sees that; and to a stranger's certificate.
RESET, STRANGER = (7, 35, 52, 55, 56), 60
NODE = "fetch({url!r}).then(r => r.text()).then(t => console.log(t), e => process.exit(7))"
#: A handshake whose first flight is sent in so many pieces, or in records of so many bytes.
HANDSHAKE = """
import socket, ssl, sys, time
name, pieces, record = (sys.argv[1] or None), int(sys.argv[2]), int(sys.argv[3])
context = ssl.create_default_context(cafile=sys.argv[4])
context.check_hostname = name is not None
inc, out = ssl.MemoryBIO(), ssl.MemoryBIO()
tls = context.wrap_bio(inc, out, server_hostname=name)
s = socket.create_connection(("api.example.com", 443), timeout=10)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def cut(data):
    if not record: return data
    head, body = data[:3], data[5:]
    parts = [body[at:at + record] for at in range(0, len(body), record)]
    return b"".join(head + len(part).to_bytes(2, "big") + part for part in parts)
first = True
def talk(call):
    global first
    while True:
        try: result = call()
        except ssl.SSLWantReadError: result = None
        data = out.read()
        if first: data, first = cut(data), False
        size = max(1, len(data) // pieces)
        for at in range(0, len(data), size):
            s.sendall(data[at:at + size]); time.sleep(0.001 if pieces > 1 else 0)
        if result is not None: return result
        more = s.recv(65536)
        if not more: sys.exit("ended")
        inc.write(more)
try:
    talk(lambda: tls.do_handshake() or True)
    talk(lambda: tls.write(b"GET / HTTP/1.0\\r\\nHost: api.example.com\\r\\n\\r\\n"))
    print(talk(lambda: tls.read(10000)).decode().split("\\r\\n")[0])
except ConnectionResetError:
    print("reset")
"""
#: What the server, or the gateway, says to an opening that was made by hand.
OPENING = """
import socket, sys
s = socket.create_connection(("api.example.com", 443), timeout=10)
s.sendall(bytes.fromhex(sys.argv[1]))
try: print(s.recv(1).hex())
except ConnectionResetError: print("reset")
"""


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return certificate_for(tmp_path, *HOSTS)


def why(inside: Sandbox) -> list[str]:
    return [attempt.why for attempt in inside.attempts() if attempt.outcome == "refused"]


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_the_client_verifies_the_servers_own_certificate(certificate: Path, tmp_path: Path) -> None:
    trusted = certificate.parent / "cert.pem"
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    other = certificate_for(stranger, "other.example.com")

    @in_a_world
    def world() -> None:
        http_server(PUBLIC, 443, certificate)
        http_server(PUBLIC, 444, other)
        with sandbox(f"{NAME}:443,444", hosts=HOSTS) as inside:
            curl = ("curl", "-sS", "--cacert", str(trusted))
            assert inside.run(*curl, f"https://{NAME}/")[1] == f"hello from {NAME}"
            env = {"NODE_EXTRA_CA_CERTS": str(trusted)}
            node = inside.run("node", "-e", NODE.format(url=f"https://{NAME}/"), env=env)
            assert node[1].strip() == f"hello from {NAME}"
            # Nobody in between vouches for anybody: not trusted, and for another name.
            assert inside.run("curl", "-sS", f"https://{NAME}/")[0] == STRANGER
            named = ("curl", "-sS", "--cacert", str(stranger / "cert.pem"))
            assert inside.run(*named, f"https://{NAME}:444/")[0] == STRANGER
            assert why(inside) == []

    world()


@pytest.mark.same_for_everyone
def test_another_name_than_the_one_that_was_dialled_is_refused(certificate: Path) -> None:
    trusted = certificate.parent / "cert.pem"

    @in_a_world
    def world() -> None:
        http_server(PUBLIC, 443, certificate)
        with sandbox(f"{NAME}:443", "front.example.com:443", hosts=HOSTS) as inside:
            address = inside.run("getent", "ahostsv4", NAME)[1].split()[0]
            curl = ("curl", "-sS", "--cacert", str(trusted))
            there = ("--resolve", f"front.example.com:443:{address}")
            assert inside.run(*curl, *there, "https://front.example.com/")[0] in RESET
            assert why(inside) == [f"TLS is for front.example.com, not for {NAME}"]

    world()


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_openings_that_hide_or_stretch_the_name(certificate: Path) -> None:
    trusted = certificate.parent / "cert.pem"

    @in_a_world
    def world() -> None:
        http_server(PUBLIC, 443, certificate)
        with sandbox(f"{NAME}:443", hosts=HOSTS) as inside:

            def client(name: str, pieces: int = 1, record: int = 0) -> str:
                words = (sys.executable, "-I", "-c", HANDSHAKE, name, str(pieces), str(record), str(trusted))
                return inside.run(*words)[1].strip()

            assert client(NAME) == "HTTP/1.1 200 OK"
            assert client(NAME, pieces=60) == "HTTP/1.1 200 OK"
            assert client(NAME, record=20) == "HTTP/1.1 200 OK"
            assert client(NAME, pieces=9, record=7) == "HTTP/1.1 200 OK"
            assert client("") == "reset"
            assert client("evil.com", pieces=60) == "reset"
            assert client("evil.com", record=3) == "reset"
            assert set(why(inside)) == {
                "TLS does not name the host it is for",
                f"TLS is for evil.com, not for {NAME}",
            }

    world()


#: A warning that is no reason to end, for servers that drop one before the ClientHello.
ALERT = b"\x15\3\1\0\2\1\x5a"


@pytest.mark.same_for_everyone
@in_a_world
def test_what_only_some_servers_read_is_not_passed_on() -> None:
    echo(PUBLIC, 443)  # takes whatever it is sent
    with sandbox(f"{NAME}:443", hosts=HOSTS) as inside:

        def said(opening: bytes) -> str:
            return inside.run(sys.executable, "-I", "-c", OPENING, opening.hex())[1].strip()

        evil = real("front.example.com")
        assert said(real(NAME)) == "16"
        assert said(ALERT + evil) == "reset"
        assert said(evil[:1] + b"\2\0" + evil[3:]) == "reset"
        assert said(b"GET http://front.example.com/\r\n") == "reset"
        assert set(why(inside)) == {
            "TLS: another record comes before the end of its ClientHello",
            "TLS: its opening is malformed",
            "HTTP: its request line is malformed",
        }


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_the_outer_name_of_an_encrypted_opening_is_the_one_that_counts(certificate: Path) -> None:
    encrypted = extension(0xFE0D, b"\0\0\1\0\1\x07\0\x20" + bytes(32) + b"\0\x90" + bytes(144))

    @in_a_world
    def world() -> None:
        http_server(PUBLIC, 443, certificate)
        with sandbox(f"{NAME}:443", hosts=HOSTS) as inside:

            def said(opening: bytes) -> str:
                return inside.run(sys.executable, "-I", "-c", OPENING, opening.hex())[1].strip()

            assert said(extended(real(NAME), encrypted)) == "16"  # a handshake of the server
            assert said(extended(real("front.example.com"), encrypted)) == "reset"
            assert said(extended(real(None), encrypted)) == "reset"
            # A browser asks for the keys of an encrypted opening first. There are none to be had.
            asked = inside.python(KEYS)
            assert asked == "0 answers"

    world()


#: The HTTPS record, type 65, in which those keys would be.
KEYS = """
import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(10); s.connect(("127.0.0.53", 53))
name = b"\\3api\\7example\\3com\\0"
s.send(struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + name + struct.pack(">HH", 65, 1))
print(struct.unpack(">H", s.recv(4096)[6:8])[0], "answers")
"""


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_http2_and_websockets_pass(certificate: Path) -> None:
    server = """
const http2 = require("http2"), http = require("http"), https = require("https");
const pem = require("fs").readFileSync(process.argv[1]);
const one = http2.createSecureServer({key: pem, cert: pem});
one.on("stream", (s, h) => { s.respond({":status": 200}); s.end("h2 for " + h[":authority"]); });
const upgrade = (request, socket) => {
  socket.write("HTTP/1.1 101 Go on\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n");
  socket.pipe(socket);
};
const two = http.createServer().on("upgrade", upgrade);
const three = https.createServer({key: pem, cert: pem}).on("upgrade", upgrade);
one.listen(443, "HOST"); two.listen(80, "HOST"); three.listen(8443, "HOST");
""".replace("HOST", PUBLIC)
    trusted = certificate.parent / "cert.pem"
    client = f"""
import socket, ssl
context = ssl.create_default_context(cafile={str(trusted)!r})
def chat(s):
    s.sendall(b"GET /chat HTTP/1.1\\r\\nHost: {NAME}\\r\\n")
    s.sendall(b"Upgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n")
    assert s.recv(1000).startswith(b"HTTP/1.1 101")
    for frame in (b"\\x81\\x02hi", bytes(70000)):
        s.sendall(frame)
        got = b""
        while len(got) < len(frame): got += s.recv(65536)
        assert got == frame
chat(socket.create_connection(({NAME!r}, 80)))
chat(context.wrap_socket(socket.create_connection(({NAME!r}, 8443)), server_hostname={NAME!r}))
print("frames")
"""

    @in_a_world
    def world() -> None:
        with at(PUBLIC):
            apart(lambda: os.execvp("node", ["node", "-e", server, str(certificate)]))  # noqa: S606
        with sandbox(f"{NAME}:80,443,8443", hosts=HOSTS) as inside:
            curl = ("curl", "-sS", "--http2", "--cacert", str(trusted), f"https://{NAME}/")
            assert until(lambda: inside.run(*curl)[1] == f"h2 for {NAME}")
            assert inside.python(client) == "frames"

    world()
