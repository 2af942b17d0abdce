"""The inspector as a process, between real clients and real servers."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.inspection import (
    NAME,
    Inspected,
    Seen,
    authority,
    curl,
    dialled,
    exchanged,
    http2_server,
    reply,
    secret,
    web_server,
)
from tests.support.waiting import until

HELD, VALUE = secret()["placeholder"], secret()["value"]
RULES = [f"GET {NAME}/**", f"POST {NAME}/up/**", f"!* {NAME}/**/no"]
URL = f"https://{NAME}"
HOST = f"Host: {NAME}\r\n"
BEARER = ("-H", f"Authorization: Bearer {HELD}")


class World(NamedTuple):
    """An inspector with an HTTP/1.1 server (`door`) and an HTTP/2 server (`door2`) behind it."""

    inspected: Inspected
    door: int
    door2: int
    ca: Path
    seen: Seen

    def curl(self, *arguments: str) -> str:
        return curl(self.door, self.ca, *arguments).stdout

    def raw(self, data: bytes) -> bytes:
        with dialled(self.door, self.ca) as connection:
            return exchanged(connection, data, 0.7)


def answer(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    """The server's paths; anything else is echoed."""
    path = handler.path.partition("?")[0]
    shown = json.dumps({"path": handler.path, "headers": handler.headers.items(), "body": len(body)}).encode()
    if path == "/big":
        handler.send_response(200)
        handler.send_header("Content-Length", str(20 << 20))
        handler.end_headers()
        for _ in range(320):
            handler.wfile.write(b"x" * 65536)
    elif path == "/redirect":
        token = str(handler.headers["Authorization"]).removeprefix("Bearer ")
        reply(handler, 302, b"", ("Location", f"https://other.example/?t={token}"), ("X-Echo", token))
    elif path == "/gzip":
        reply(handler, 200, gzip.compress(shown), ("Content-Encoding", "gzip"))
    elif path == "/brotli":
        reply(handler, 200, shown, ("Content-Encoding", "br"))
    elif path == "/slow-echo":
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        token = handler.headers["Authorization"].encode()
        for at in range(len(token)):
            handler.wfile.write(b"1\r\n" + token[at : at + 1] + b"\r\n")
            handler.wfile.flush()
        handler.wfile.write(b"0\r\nX-Last: " + token + b"\r\nContent-Length: 7\r\n\r\n")
    elif path in ("/stale", "/up/stale") and handler.headers["Authorization"] != "Bearer the-newer-value":
        reply(handler, 401, b"old")
    elif path in ("/until-close", "/cut"):
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"the rest")
        handler.wfile.flush()
        if path == "/until-close":
            with suppress(OSError):
                handler.connection.unwrap()  # type: ignore[attr-defined]
        handler.close_connection = True
    elif path == "/ws":
        key = handler.headers["Sec-WebSocket-Key"]
        handler.send_response(101)
        handler.send_header("Upgrade", "websocket")
        handler.send_header("Connection", "Upgrade")
        handler.send_header("Sec-WebSocket-Accept", hashlib.sha1(key.encode()).hexdigest())  # noqa: S324
        handler.end_headers()
        handler.wfile.flush()
        while data := handler.connection.recv(65536):
            handler.connection.sendall(data[::-1])
        handler.close_connection = True
    else:
        reply(handler, 200, shown)


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return authority(tmp_path_factory.mktemp("outside"), NAME, "other.example")


@pytest.fixture(scope="module")
def world(outside: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    roots, certificate = outside
    with (
        web_server(certificate, answer) as (port, seen),
        http2_server(certificate) as port2,
        Inspected(RULES, roots, secrets=[secret()]) as inspected,
    ):
        ca = inspected.ca(tmp_path_factory.mktemp("inspected"))
        yield World(inspected, inspected.door(port), inspected.door(port2), ca, seen)


def last(inspected: Inspected) -> dict[str, Any]:
    """The newest report."""
    inspected.flush()
    return inspected.of("request")[-1]


# Requests that pass.


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_a_request_passes_and_is_reported(world: World, version: str) -> None:
    door = world.door if version == "--http1.1" else world.door2
    found = curl(door, world.ca, version, f"{URL}/a%2fb?c=d", "-w", " %{http_code} %{http_version}")
    assert found.stdout.endswith("200 1.1" if door == world.door else "200 2"), found
    report = last(world.inspected)
    assert (report["method"], report["path"], report["status"]) == ("GET", "/a%2fb?c=d", 200)
    assert (report["outcome"], report["rule"], report["host"]) == ("allowed", f"GET {NAME}/**", NAME)
    assert report["protocol"] == ("HTTP/1.1" if door == world.door else "HTTP/2")


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_a_refusal_says_why_and_the_connection_goes_on(world: World, version: str) -> None:
    door = world.door if version == "--http1.1" else world.door2
    urls = (f"{URL}/x/no", f"{URL}/yes", "-w", "%{http_code} %{num_connects}\n")
    found = curl(door, world.ca, version, *urls).stdout.splitlines()
    assert found[0] == f"staddle: the rule '!* {NAME}/**/no' refuses it"
    assert found[1] == "403 1"
    assert found[2].endswith("200 0")  # on the same connection


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_bodies_of_any_size_pass_in_both_directions(world: World, version: str, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(bytes(5 << 20))
    door, big = (world.door, "/big") if version == "--http1.1" else (world.door2, f"/big?n={20 << 20}")
    size = curl(door, world.ca, version, f"{URL}{big}", "-o", "/dev/null", "-w", "%{size_download}").stdout
    assert size == str(20 << 20)
    upload = ("--data-binary", f"@{tmp_path / 'body'}", f"{URL}/up/x")
    assert json.loads(curl(door, world.ca, version, *upload).stdout)["body"] == 5 << 20
    chunked = ("-T", str(tmp_path / "body"), "-X", "POST", "-H", "Transfer-Encoding: chunked", f"{URL}/up/x")
    chunked = chunked if version == "--http1.1" else upload
    assert json.loads(curl(door, world.ca, version, *chunked).stdout)["body"] == 5 << 20
    assert last(world.inspected)["sent"] == 5 << 20


def test_expect_continue_and_an_end_by_closing(world: World) -> None:
    posted = world.curl("-H", "Expect: 100-continue", "-d", "hello", f"{URL}/up/x")
    assert json.loads(posted)["body"] == 5
    assert world.curl(f"{URL}/until-close") == "the rest"
    cut = curl(world.door, world.ca, f"{URL}/cut")  # without TLS's own end
    assert cut.returncode == 56
    assert last(world.inspected)["why"] == "the server cut the connection"
    assert world.curl("-I", f"{URL}/x").startswith("HTTP/1.1 200")
    assert "x" in world.curl("--http1.0", f"{URL}/x")


def test_grpc_has_its_trailers(world: World) -> None:
    script = """
const http2 = require('http2'), fs = require('fs');
const client = http2.connect('https://api.example', {ca: fs.readFileSync(process.argv[1]),
  createConnection: () => require('tls').connect({host: '127.0.0.1', port: +process.argv[2],
    servername: 'api.example', ALPNProtocols: ['h2'], ca: fs.readFileSync(process.argv[1])})});
const stream = client.request({':method': 'POST', ':path': '/up/grpc', te: 'trailers'}, {endStream: false});
const other = client.request({':path': '/grpc'}); let trailers;
other.on('trailers', each => trailers = each['grpc-status']); other.resume();
let body = ''; stream.on('data', each => body += each);
stream.on('end', () => {
  console.log(JSON.parse(body).headers.te, JSON.parse(body).body, trailers); client.close() });
stream.write('first'); setTimeout(() => stream.end('second'), 200);
"""
    argv = ["node", "-e", script, str(world.ca), str(world.door2)]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert found.stdout.strip() == "trailers 11 0", found


def test_a_websocket_is_relayed_after_its_upgrade(world: World) -> None:
    head = f"GET /ws HTTP/1.1\r\n{HOST}Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n"
    with dialled(world.door, world.ca) as connection:
        connection.settimeout(10)
        connection.sendall(head.encode() + b"Sec-WebSocket-Version: 13\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 101")
        connection.sendall(b"\x81\x03abc")
        assert connection.recv(4096) == b"cba\x03\x81"
    assert until(lambda: last(world.inspected)["protocol"] == "websocket", 10)
    assert last(world.inspected)["outcome"] == "allowed"


@pytest.mark.parametrize("client", ["urllib", "node"])
def test_other_clients_trust_the_authority(world: World, client: str) -> None:
    if client == "node":
        code = (
            "require('https').get({host:'127.0.0.1',port:+process.argv[1],servername:'api.example',"
            "headers:{host:'api.example'},path:'/n'},r=>{console.log(r.statusCode);r.resume()})"
        )
        argv = ["node", "-e", code, str(world.door)]
        found = subprocess.run(
            argv,
            env={**os.environ, "NODE_EXTRA_CA_CERTS": str(world.ca)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.stdout.strip() == "200", found
    else:
        with dialled(world.door, world.ca) as connection:
            assert connection.version() == "TLSv1.3"  # type: ignore[attr-defined]
            assert b" 200 " in exchanged(connection, f"GET /n HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode(), 1.0)


# Attacks. Each is refused, and the server sees nothing of it.

POST = f"POST /up/a HTTP/1.1\r\n{HOST}"
CHUNKED = "POST /up/a HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n"
ATTACKS = {
    "another host": "GET /a HTTP/1.1\r\nHost: other.example\r\n\r\n",
    "two hosts": f"GET /a HTTP/1.1\r\n{HOST}{HOST}\r\n",
    "no host": "GET /a HTTP/1.1\r\n\r\n",
    "another port": f"GET /a HTTP/1.1\r\nHost: {NAME}:8443\r\n\r\n",
    "absolute form": f"GET http://other.example/a HTTP/1.1\r\n{HOST}\r\n",
    "a user in the host": f"GET /a HTTP/1.1\r\nHost: other.example@{NAME}\r\n\r\n",
    "CONNECT": f"CONNECT {NAME}:443 HTTP/1.1\r\n{HOST}\r\n",
    "TRACE": f"TRACE /a HTTP/1.1\r\n{HOST}\r\n",
    "length and chunks": f"{POST}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": f"POST /up/a HTTP/1.1\r\n{HOST}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length with a sign": f"POST /up/a HTTP/1.1\r\n{HOST}Content-Length: +1\r\n\r\na",
    "another coding": f"POST /up/a HTTP/1.1\r\n{HOST}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding in disguise": f"POST /up/a HTTP/1.1\r\n{HOST}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": f"POST /up/a HTTP/1.1\r\n{HOST}Content-Length : 1\r\n\r\na",
    "a control character": f"GET /a HTTP/1.1\r\n{HOST}X-A: a\0b\r\n\r\n",
    "a bare return": f"GET /a HTTP/1.1\r\n{HOST}X-A: a\rX-B: b\r\n\r\n",
    "an upgrade to h2c": f"GET /a HTTP/1.1\r\n{HOST}Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "a listed header": f"GET /a HTTP/1.1\r\n{HOST}Connection: close, authorization\r\n\r\n",
    "another path in a header": f"GET /a HTTP/1.1\r\n{HOST}X-Original-URL: /x/no\r\n\r\n",
    "another path in a header with underscores": f"GET /a HTTP/1.1\r\n{HOST}X_Original_URL: /x/no\r\n\r\n",
    "another method with underscores": f"GET /a HTTP/1.1\r\n{HOST}X_HTTP_Method-Override: DELETE\r\n\r\n",
    "a length with underscores": f"{POST}Content_Length: 4\r\nContent-Length: 1\r\n\r\na",
    "a destination that no rule allows": f"GET /a HTTP/1.1\r\n{HOST}Destination: /x/no\r\n\r\n",
    "a whole destination": f"GET /a HTTP/1.1\r\n{HOST}Destination: https://{NAME}/x/no\r\n\r\n",
    "a destination at another host": f"GET /a HTTP/1.1\r\n{HOST}Destination: https://other.example/a\r\n\r\n",
    "a destination without a path": f"GET /a HTTP/1.1\r\n{HOST}Destination: https://{NAME}\r\n\r\n",
    "a length of more than 64 bits": f"{POST}Content-Length: 18446744073709551617\r\n\r\na",
    "a length in octal": f"{POST}Content-Length: 010\r\n\r\n12345678",
    "many short headers": f"GET /a HTTP/1.1\r\n{HOST}" + "a:b\r\n" * 12_000 + "\r\n",
    "another method in a header": f"GET /a HTTP/1.1\r\n{HOST}X-HTTP-Method-Override: DELETE\r\n\r\n",
    "HTTP/2 as text": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a long head": f"GET /a HTTP/1.1\r\n{HOST}X-A: {'a' * 100_000}\r\n\r\n",
    "a path with dots": f"GET /a/../x/no HTTP/1.1\r\n{HOST}\r\n",
    "the placeholder for another header": f"GET /a HTTP/1.1\r\n{HOST}X-Token: {HELD}\r\n\r\n",
    "the placeholder in the path": f"GET /{HELD} HTTP/1.1\r\n{HOST}\r\n",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused(world: World, attack: str) -> None:
    before = len(world.seen.requests)
    found = world.raw(ATTACKS[attack].encode())
    assert found.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501")), found
    assert b"staddle: " in found
    assert len(world.seen.requests) == before
    assert last(world.inspected)["outcome"] == "refused"


def test_the_benign_twin_of_the_attacks_passes(world: World) -> None:
    for header in (
        "X-A: a",
        "x_a: a",
        "Destination: /b",
        f"Destination: https://{NAME}/b",
        "a:b\r\n" * 90 + "a:b",
    ):
        head = f"GET /a HTTP/1.1\r\n{HOST}{header}\r\nConnection: close\r\n\r\n"
        assert world.raw(head.encode()).startswith(b"HTTP/1.1 200"), header[:40]


@pytest.mark.parametrize(
    ("sent", "paths"),
    [
        # What would be a second request to a server that reads lengths in another way is a body here.
        (CHUNKED + "1c\r\nGET /x/no HTTP/1.1\r\nA: b\r\n\r\n\r\n0\r\n\r\n", ["/up/a"]),
        (CHUNKED + '1;a="\n"\r\na\r\n0\r\n\r\n', None),
        ("GET /a HTTP/1.1\r\n{host}X-A: a\r\n b\r\n\r\n", ["/a"]),
        ("GET /a HTTP/1.1\n{host}X-A: a\n\n", ["/a"]),
        ("".join(f"GET {path} HTTP/1.1\r\n{{host}}\r\n" for path in ("/a", "/x/no", "/b")), ["/a", "/b"]),
    ],
)
def test_the_server_sees_requests_as_they_were_decided(
    world: World, sent: str, paths: list[str] | None
) -> None:
    before = len(world.seen.requests)
    world.raw(sent.format(host=HOST).encode())
    seen = world.seen.requests[before:]
    if paths is not None:
        assert [path for _, path, _, _ in seen] == paths
    assert not any(path.endswith("/no") for _, path, _, _ in seen)
    for _, _, headers, _ in seen:
        assert not any(value.startswith((" ", "\t")) or "\n" in value for _, value in headers)


def test_trailers_change_nothing(world: World) -> None:
    head = f"POST /up/a HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n"
    assert b" 200 " in world.raw(
        head.encode() + b"1\r\na\r\n0\r\nHost: evil\r\nContent-Length: 9\r\nX-T: t\r\n\r\n"
    )
    assert last(world.inspected)["outcome"] == "allowed"


def h2_client() -> Any:
    import h2.config
    import h2.connection

    # Without checks, so that it sends what is not valid.
    return h2.connection.H2Connection(
        h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
    )


H2_GOOD = [(":method", "GET"), (":scheme", "https"), (":authority", NAME), (":path", "/a")]
H2_ATTACKS = {
    "another authority": [*H2_GOOD[:2], (":authority", "other.example"), H2_GOOD[3]],
    "another host": [*H2_GOOD, ("host", "other.example")],
    "another scheme": [H2_GOOD[0], (":scheme", "http"), *H2_GOOD[2:]],
    "a path with a line": [*H2_GOOD[:3], (":path", "/a HTTP/1.1\r\nX: y")],
    "an absolute path": [*H2_GOOD[:3], (":path", "https://other.example/")],
    "a refused path": [*H2_GOOD[:3], (":path", "/x/no")],
    "CONNECT": [(":method", "CONNECT"), (":authority", NAME)],
    "two paths": [*H2_GOOD, (":path", "/b")],
    "an unknown pseudo-header": [*H2_GOOD, (":evil", "x")],
    "a header of HTTP/1.1": [*H2_GOOD, ("transfer-encoding", "chunked")],
    "a line in a value": [*H2_GOOD, ("x-a", "a\r\nx-b: b")],
    "a capital name": [*H2_GOOD, ("X-A", "a")],
    "the placeholder elsewhere": [*H2_GOOD, ("cookie", HELD)],
}


@pytest.mark.parametrize("attack", ["", *H2_ATTACKS])
def test_an_attack_over_http2_is_refused(world: World, attack: str) -> None:
    import h2.events
    import h2.exceptions

    client = h2_client()
    client.initiate_connection()
    statuses: list[bytes | str] = []
    with dialled(world.door2, world.ca, alpn=("h2",)) as connection:
        connection.settimeout(5)
        client.send_headers(1, H2_ATTACKS.get(attack, H2_GOOD), end_stream=True)
        connection.sendall(client.data_to_send())
        with suppress(OSError, h2.exceptions.ProtocolError):
            while not statuses and (data := connection.recv(65536)):
                for event in client.receive_data(data):
                    if isinstance(event, h2.events.ResponseReceived):
                        statuses.append(dict(event.headers or ())[b":status"])
                    elif isinstance(event, h2.events.ConnectionTerminated | h2.events.StreamReset):
                        statuses.append("ended")
    if not attack:
        assert statuses == [b"200"]
        return
    assert statuses in ([], ["ended"], [b"400"], [b"403"], [b"421"]), statuses
    assert last(world.inspected)["outcome"] != "allowed"


@pytest.mark.parametrize("seed", range(4))
def test_frames_cut_anywhere_are_read(world: World, seed: int) -> None:
    import random

    import h2.events

    cuts, client = random.Random(seed), h2_client()  # noqa: S311
    client.initiate_connection()
    client.send_headers(1, [(":method", "POST"), *H2_GOOD[1:3], (":path", "/up/x")])
    client.send_data(1, bytes(10_000), end_stream=True)
    data, body = client.data_to_send(), b""
    with dialled(world.door2, world.ca, alpn=("h2",)) as connection:
        connection.settimeout(10)
        while data:
            size = cuts.choice((1, 3, 9, 1000))
            connection.sendall(data[:size])
            data = data[size:]
        ended = False
        while not ended:
            for event in client.receive_data(connection.recv(65536)):
                body += event.data or b"" if isinstance(event, h2.events.DataReceived) else b""
                ended = ended or isinstance(event, h2.events.StreamEnded)
    assert json.loads(body)["body"] == 10_000


# Secrets.


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_the_server_sees_the_value_and_the_client_only_the_placeholder(world: World, version: str) -> None:
    door = world.door if version == "--http1.1" else world.door2
    found = curl(door, world.ca, version, *BEARER, f"{URL}/echo")
    assert f"Bearer {HELD}" in found.stdout
    assert VALUE not in found.stdout
    if version == "--http1.1":
        assert dict(world.seen.requests[-1][2])["authorization"] == f"Bearer {VALUE}"
    report = last(world.inspected)
    assert report["secrets"] == ["token"]
    assert VALUE not in json.dumps(world.inspected.messages)


@pytest.mark.parametrize("path", ["/redirect", "/gzip", "/slow-echo"])
def test_the_value_never_comes_back(world: World, path: str) -> None:
    found = world.curl("-i", "--raw", *BEARER, f"{URL}{path}")
    assert VALUE not in found.replace("\r\n1\r\n", "")
    assert HELD in found
    assert dict(world.seen.requests[-1][2])["authorization"] == f"Bearer {VALUE}"
    assert "content-length: 7" not in found.lower()


def test_an_answer_that_cannot_be_searched_is_refused(world: World) -> None:
    assert "cannot be read" in world.curl(*BEARER, f"{URL}/brotli")


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_a_placeholder_in_a_body_is_refused(world: World, version: str) -> None:
    door = world.door if version == "--http1.1" else world.door2
    found = curl(door, world.ca, version, "-d", f"a={HELD}", f"{URL}/up/x").stdout
    assert found == "staddle: the placeholder of the secret token is in the body of the request\n"
    report = last(world.inspected)
    assert (report["outcome"], report["secrets"]) == ("refused", ["token"])


def test_a_placeholder_for_another_inspected_host_is_refused(
    outside: tuple[Path, Path], tmp_path: Path
) -> None:
    roots, certificate = outside
    with (
        web_server(certificate) as (port, seen),
        Inspected(["GET other.example/**"], roots, secrets=[secret()]) as inspected,
    ):
        ca, door = inspected.ca(tmp_path), inspected.door(port, "other.example")
        found = curl(door, ca, *BEARER, "https://other.example/", name="other.example").stdout
        assert "which is none of its hosts" in found
        assert not seen.requests
        assert curl(door, ca, "https://other.example/", name="other.example").stdout  # the control


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
@pytest.mark.parametrize("newer", [True, False])
def test_a_stale_secret_is_refreshed(
    outside: tuple[Path, Path], tmp_path: Path, version: str, newer: bool
) -> None:
    roots, certificate = outside
    server: Any = web_server(certificate, answer) if version == "--http1.1" else http2_server(certificate)
    with server as found, Inspected([f"* {NAME}/**"], roots, secrets=[secret()]) as inspected:
        door = inspected.door(found[0] if isinstance(found, tuple) else found)
        ca = inspected.ca(tmp_path)

        def refresh() -> None:
            inspected.wait("stale")
            if newer:
                inspected.tell("secret", name="token", value="the-newer-value")

        thread = threading.Thread(target=refresh)
        thread.start()
        body = ("-d", "small") if newer and version == "--http1.1" else ()
        path = "/up/stale" if body else "/stale"
        got = curl(door, ca, version, *BEARER, *body, f"{URL}{path}", "-w", " %{http_code}").stdout
        thread.join()
        assert got.endswith("200" if newer else "old 401"), got
        assert "the-newer-value" not in got
        assert [each["name"] for each in inspected.of("stale")] == ["token"]


# Questions, limits, changes.


@pytest.mark.parametrize("allowed", [True, False, None])
def test_a_person_is_asked_about_an_undecided_request(
    outside: tuple[Path, Path], tmp_path: Path, allowed: bool | None
) -> None:
    roots, certificate = outside
    with web_server(certificate) as (port, _), Inspected([f"GET {NAME}/a"], roots, asks=2) as inspected:
        ca, door = inspected.ca(tmp_path), inspected.door(port)

        def reply_to() -> None:
            asked = inspected.wait("ask")
            assert (asked["method"], asked["path"]) == ("GET", "/b?c")
            if allowed is not None:
                inspected.tell("answer", id=asked["id"], allow=allowed)

        thread = threading.Thread(target=reply_to)
        thread.start()
        found = curl(door, ca, "-w", "%{http_code}", f"{URL}/b?c").stdout
        thread.join()
        assert found.endswith("200" if allowed else "403"), found


@pytest.mark.parametrize("header", ["X-HTTP-Method-Override: DELETE", "Destination: /c"])
def test_a_person_who_allows_a_request_allows_no_other_one_in_its_headers(
    outside: tuple[Path, Path], tmp_path: Path, header: str
) -> None:
    roots, certificate = outside
    with web_server(certificate) as (port, seen), Inspected([f"GET {NAME}/a"], roots, asks=2) as inspected:
        ca, door = inspected.ca(tmp_path), inspected.door(port)
        assert curl(door, ca, "-w", "%{http_code}", "-H", header, f"{URL}/b").stdout.endswith("403")
        assert not inspected.of("ask")
        assert not seen.requests


def test_limits(outside: tuple[Path, Path], tmp_path: Path) -> None:
    roots, certificate = outside
    limit = {"host": NAME, "requests": 0, "bytes": 0, "rate": 0}
    with (
        web_server(certificate, answer) as (port, _),
        Inspected([f"GET {NAME}/**"], roots, limits=[{**limit, "requests": 2}]) as inspected,
    ):
        ca, door = inspected.ca(tmp_path), inspected.door(port)
        code = ("-o", "/dev/null", "-w", "%{http_code} ")
        urls = [argument for _ in range(3) for argument in (f"{URL}/a", *code[:2])]
        assert curl(door, ca, *urls, "-w", code[3]).stdout == "200 200 429 "
        assert last(inspected)["why"] == f"the limit of 2 requests to {NAME} is reached"
        inspected.change(limits=[{**limit, "rate": 1}])
        assert curl(door, ca, *urls, "-w", code[3]).stdout.split()[-2:] == ["429", "429"]
        inspected.change(limits=[{**limit, "bytes": 1 << 20}])
        found = curl(door, ca, f"{URL}/big", *code)
        assert found.returncode != 0  # cut in the middle
        assert curl(door, ca, f"{URL}/a", *code).stdout == "429 "


def test_a_change_applies_to_open_connections(outside: tuple[Path, Path], tmp_path: Path) -> None:
    roots, certificate = outside
    with web_server(certificate) as (port, _), Inspected([f"GET {NAME}/**"], roots) as inspected:
        ca, door = inspected.ca(tmp_path), inspected.door(port)
        get = f"GET /a HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode()
        with dialled(door, ca) as connection:
            assert b" 200 " in exchanged(connection, get, 1.0)
            inspected.change(rules=[f"GET {NAME}/b"])
            assert b" 403 " in exchanged(connection, get, 1.0)
            inspected.change(rules=["GET other.example/b"])
            assert exchanged(connection, get, 5.0) == b""


# TLS.


def test_a_server_that_fails_verification_is_a_502(
    world: World, outside: tuple[Path, Path], tmp_path: Path
) -> None:
    _, foreign = authority(tmp_path, NAME)  # of another authority
    with web_server(foreign) as (port, seen):
        found = curl(world.inspected.door(port), world.ca, "-w", "%{http_code}", f"{URL}/a").stdout
        assert found.startswith(f"staddle: TLS with {NAME} failed: its certificate is refused")
        assert found.endswith("502")
        assert not seen.requests
    with web_server(outside[1]) as (port, _):  # a certificate of another name
        door = world.inspected.door(port, "localhost")
        assert curl(door, world.ca, "https://localhost/", name="localhost").returncode != 0
    with web_server(None) as (port, _):  # no TLS at all
        assert "failed" in curl(world.inspected.door(port), world.ca, f"{URL}/a").stdout


def test_a_client_that_does_not_trust_is_reported(world: World, outside: tuple[Path, Path]) -> None:
    assert curl(world.door, outside[0], f"{URL}/a").returncode == 60
    assert until(lambda: "it may pin its own" in last(world.inspected)["why"], 10)


def test_a_client_that_asks_for_another_name_is_cut(world: World) -> None:
    with pytest.raises((ssl.SSLError, OSError)):
        dialled(world.door, world.ca, "other.example")
    assert until(lambda: "asks for 'other.example'" in last(world.inspected)["why"], 10)


def test_a_client_hello_in_pieces(world: World) -> None:
    context = ssl.create_default_context(cafile=str(world.ca))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=NAME)
    with socket.create_connection(("127.0.0.1", world.door)) as connection:
        connection.settimeout(10)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                data = outgoing.read()
                for at in range(0, len(data), 100):
                    connection.sendall(data[at : at + 100])
                    time.sleep(0.01)
                incoming.write(connection.recv(65536))
        assert tls.version() == "TLSv1.3"


def test_plain_http_is_inspected_alike(tmp_path: Path) -> None:
    with (
        web_server(None) as (port, seen),
        Inspected([f"GET {NAME}/a", f"!* {NAME}/b"], secrets=[secret()]) as inspected,
    ):
        door = inspected.door(port, NAME, 80)
        get = "GET /{} HTTP/1.1\r\nHost: api.example\r\n{}\r\n"
        with dialled(door, None) as connection:
            assert b" 200 " in exchanged(connection, get.format("a", "").encode(), 1.0)
            assert b" 403 " in exchanged(connection, get.format("b", "").encode(), 1.0)
        with dialled(door, None) as connection:  # the value never travels unencrypted
            token = f"Authorization: Bearer {HELD}\r\n"
            assert b"placeholder of the secret" in exchanged(connection, get.format("a", token).encode(), 1.0)
        assert len(seen.requests) == 1
        with dialled(door, None) as connection:
            assert exchanged(connection, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 5.0) == b""


# The process.


def test_it_has_no_rights(world: World) -> None:
    status = Path(f"/proc/{world.inspected.process.pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (fields["Seccomp"], fields["NoNewPrivs"], fields["CapEff"]) == ("2", "1", "0" * 16)
    assert fields["Uid"].split()[0] == (str(os.geteuid()) if os.geteuid() else "65534")


def test_it_exits_with_its_socket_and_leaves_nothing() -> None:
    with Inspected([f"GET {NAME}/**"]) as inspected:
        inspected.wait("ready")
        inspected.tell("nonsense")
        inspected.process.wait(10)
    assert inspected.process.returncode == 0


def test_hostile_handovers_are_ignored(world: World) -> None:
    left, right = socket.socketpair()
    with left, right:
        for name, port, opening in (
            ("evil.example", 443, b"GET / HTTP/1.1\r\n"),
            ("a b c", 1, b"x"),
            (NAME, 443, b""),
        ):
            world.inspected.hand(left, right, name, port, opening)
    assert json.loads(world.curl(f"{URL}/still-there"))["path"] == "/still-there"


def test_many_reports_are_merged(world: World) -> None:
    head = f"GET /x/no HTTP/1.1\r\n{HOST}\r\n".encode()
    world.inspected.flush()
    before = len(world.inspected.of("request"))
    world.raw(head * 1000)
    world.inspected.flush()
    reports = world.inspected.of("request")[before:]
    assert sum(report["count"] for report in reports) == 1000
    assert len(reports) < 700


@pytest.mark.parametrize("call", ["socket", "open", "connect", "execve", "executable memory"])
def test_the_confined_process_has_no_call(call: str) -> None:
    code = {
        "socket": "socket.socket()",
        "open": "open('/etc/passwd')",
        "connect": "s.connect('/run/nothing')",
        "execve": "os.execv('/bin/true', ['true'])",
        "executable memory": "mmap.mmap(-1, 4096, prot=7)",
    }[call]
    program = (
        "import mmap, os, socket\nfrom staddle.network.inspection.confinement import confine\n"
        "s = socket.socket(socket.AF_UNIX)\n{}\n"
        f"try:\n    {code}\nexcept PermissionError:\n    os._exit(7)\n"
        "except OSError:\n    os._exit(8)\nos._exit(9)"
    )
    source = str(Path(__file__).parents[4] / "src")

    def status(confine: str) -> int:
        argv = [sys.executable, "-c", program.format(confine)]
        return subprocess.run(argv, env={"PYTHONPATH": source}, check=False).returncode

    assert status("confine()") == 7
    assert status("") in (0, 8, 9)  # the control
