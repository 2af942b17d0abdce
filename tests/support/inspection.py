"""The inspector as a process, between real clients and real servers of this machine.

`Inspected` plays the host program and the gateway: it accepts connections on the loopback, dials the server
and hands both over. Names are mapped to it by the client (`curl --connect-to`).
"""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import ssl
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.waiting import until

NAME = "api.example"
MAIN = Path(__file__).parents[2] / "src/staddle/network/inspection/__main__.py"


def authority(directory: Path, *names: str) -> tuple[Path, Path]:
    """An authority of the outside world, and a server's certificate with its key for `names`, as files."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, issuer = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)

    def builder(subject: str, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)])
        root = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "outside")])
        made = x509.CertificateBuilder().subject_name(name).issuer_name(root).public_key(public)
        made = made.serial_number(x509.random_serial_number())
        return made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))

    # Python 3.13 and later want to be told which key has signed, and what a key may sign.
    usages = "digital_signature content_commitment key_encipherment data_encipherment key_agreement"
    usages = f"{usages} key_cert_sign crl_sign encipher_only decipher_only"
    usage = x509.KeyUsage(**{each: each == "key_cert_sign" for each in usages.split()})
    identifier = x509.SubjectKeyIdentifier.from_public_key(issuer.public_key())
    signer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    root = builder("outside", issuer.public_key()).add_extension(constraints, critical=True)
    root = root.add_extension(usage, critical=True).add_extension(identifier, critical=False)
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    leaf = builder(names[0], key.public_key()).add_extension(alternatives, critical=False)
    leaf = leaf.add_extension(signer, critical=False)
    pem = serialization.Encoding.PEM
    (directory / "outside.pem").write_bytes(root.sign(issuer, hashes.SHA256()).public_bytes(pem))
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )  # fmt: skip
    (directory / "server.pem").write_bytes(leaf.sign(issuer, hashes.SHA256()).public_bytes(pem) + private)
    return directory / "outside.pem", directory / "server.pem"


class Inspected:
    """An inspector with its settings. `messages` are those that it has sent."""

    def __init__(
        self,
        rules: list[str],
        roots: Path | str = "",
        *,
        main: Path = MAIN,
        temp: Path | str = "",
        **settings: Any,
    ) -> None:
        self._closing = ExitStack()
        self.messages: list[dict[str, Any]] = []
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._gateway, gateway_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._gateway.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._host = ours
        path = sysconfig.get_paths()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(main), str(os.getpid()), path["purelib"], path["platlib"]],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            env={"LC_ALL": "C.UTF-8", "TMPDIR": str(temp)},
        )
        theirs.close()
        self.settings = {
            "rules": rules,
            "secrets": [],
            "roots": str(roots),
            "asks": 0,
            "limits": [],
            **settings,
        }
        first = json.dumps({"kind": "settings", **self.settings}).encode()
        socket.send_fds(ours, [first], [gateway_end.fileno()])
        gateway_end.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = self._host.recv(256 << 10)
            except OSError:
                return
            if not data:
                return
            self.messages.append(json.loads(data))

    def __enter__(self) -> Inspected:
        return self

    def __exit__(self, *_: object) -> None:
        self._host.shutdown(socket.SHUT_RDWR)
        self._closing.close()
        self.process.wait(10)
        self._reader.join(10)
        self._host.close()
        self._gateway.close()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The messages of one kind."""
        return [message for message in self.messages if message["kind"] == kind]

    def wait(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The message of this kind with this number, once it is there."""
        assert until(lambda: len(self.of(kind)) >= count or self.process.poll() is not None, 20), (
            self.messages
        )
        assert len(self.of(kind)) >= count, self.messages
        return self.of(kind)[count - 1]

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a message as the host program does."""
        self._host.send(json.dumps({"kind": kind, **fields}).encode())

    def change(self, **settings: Any) -> None:
        """Send other settings, and wait until they apply."""
        self.settings = {**self.settings, **settings}
        self.tell("change", **self.settings)
        self.flush()

    def flush(self) -> None:
        """Wait until everything so far is reported."""
        number = len(self.of("flushed")) + 1
        self.tell("flush", number=number)
        self.wait("flushed", number)

    def hand(
        self, client: socket.socket, server: socket.socket, name: str, port: int, opening: bytes
    ) -> None:
        """Hand two sockets over, as the gateway does."""
        head = b"connection 1\n" + f"{name} {port}\n".encode() + opening
        socket.send_fds(self._gateway, [head], [client.fileno(), server.fileno()])

    def door(self, to: int, name: str = NAME, port: int = 443) -> int:
        """A port of the loopback that leads to the server at port `to` through the inspector."""
        self.wait("ready")
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._closing.callback(listener.close)
        self._closing.callback(listener.shutdown, socket.SHUT_RDWR)

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=one, args=(client,), daemon=True).start()

        def one(client: socket.socket) -> None:
            with client, socket.create_connection(("127.0.0.1", to)) as server:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if select.select([client], [], [], 20)[0] and (opening := client.recv(16384)):
                    self.hand(client, server, name, port, opening)

        threading.Thread(target=serve, daemon=True).start()
        found: int = listener.getsockname()[1]
        return found

    def ca(self, directory: Path) -> Path:
        """The sandbox's authority as a file."""
        path = directory / "sandbox.pem"
        path.write_text(self.wait("ready")["ca"])
        return path

    def truststore(self) -> bytes:
        """The trust store for Java."""
        return base64.b64decode(self.wait("ready")["truststore"])


def curl(
    door: int, ca: Path, *arguments: str, name: str = NAME, port: int = 443
) -> subprocess.CompletedProcess[str]:
    """Run curl through a door."""
    to = ["--connect-to", f"{name}:{port}:127.0.0.1:{door}"]
    argv = ["curl", "-sS", "-m", "30", "--noproxy", "*", "--cacert", str(ca), *to, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def dialled(door: int, ca: Path | None, name: str = NAME, alpn: tuple[str, ...] = ()) -> socket.socket:
    """A connection through a door, over TLS if `ca` is given."""
    connection = socket.create_connection(("127.0.0.1", door), 20)
    if ca is None:
        return connection
    context = ssl.create_default_context(cafile=str(ca))
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context.wrap_socket(connection, server_hostname=name)


def exchanged(connection: socket.socket, data: bytes, patience: float = 5.0) -> bytes:
    """Send bytes, and read until the other side ends or is silent for `patience`."""
    out = b""
    connection.settimeout(patience)
    try:
        connection.sendall(data)
        while part := connection.recv(65536):
            out += part
    except (TimeoutError, OSError):
        pass
    return out


class Seen:
    """What a server has seen: the raw requests, as (method, path, headers, body)."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, list[tuple[str, str]], bytes]] = []


@contextmanager
def web_server(
    certificate: Path | None, answer: Callable[[BaseHTTPRequestHandler, bytes], None] | None = None
) -> Iterator[tuple[int, Seen]]:
    """An HTTP/1.1 server. Without `answer` it echoes the request as JSON."""
    seen = Seen()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def handle_any(self) -> None:
            body = b""
            if self.headers.get("Transfer-Encoding") == "chunked":
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                while self.rfile.readline().strip():
                    pass
            elif length := int(self.headers.get("Content-Length", 0)):
                body = self.rfile.read(length)
            seen.requests.append((self.command, self.path, self.headers.items(), body))
            if answer is not None:
                answer(self, body)
                return
            shown = {
                "method": self.command,
                "path": self.path,
                "headers": self.headers.items(),
                "body": len(body),
            }
            reply(self, 200, json.dumps(shown).encode())

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self.handle_any
            raise AttributeError(name)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        context.set_alpn_protocols(["http/1.1"])
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1], seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def reply(handler: BaseHTTPRequestHandler, status: int, body: bytes, *headers: tuple[str, str]) -> None:
    """Answer with a body of known length."""
    handler.send_response(status)
    for name, value in headers:
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


_NODE = """
const http2 = require('http2'), fs = require('fs'); const pem = fs.readFileSync(process.argv[1]);
const server = http2.createSecureServer({key: pem, cert: pem, allowHTTP1: false});
server.on('stream', (stream, headers) => {
  stream.on('error', () => {});
  const parts = []; stream.on('data', each => parts.push(each));
  const path = headers[':path'];
  if (path.startsWith('/big')) {
    stream.respond({':status': 200}); const block = Buffer.alloc(65536, 120); let left = +path.split('=')[1];
    const go = () => {
      while (left > 0) { left -= block.length; if (!stream.write(block)) return; }
      stream.end(); };
    stream.on('drain', go); go(); return;
  }
  stream.on('end', () => {
    const body = Buffer.concat(parts), trailers = path.startsWith('/grpc');
    if (path == '/stale' && headers.authorization != 'Bearer the-newer-value') {
      stream.respond({':status': 401}); stream.end('old'); return; }
    stream.respond({':status': 200, 'content-type': 'application/json'}, {waitForTrailers: trailers});
    if (trailers) stream.on('wantTrailers', () => stream.sendTrailers({'grpc-status': '0'}));
    stream.end(JSON.stringify({headers, body: body.length}));
  });
});
server.on('sessionError', () => {});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
"""


@contextmanager
def http2_server(certificate: Path) -> Iterator[int]:
    """An HTTP/2 server (node): echoes the request; /big?n=N sends N bytes, /grpc sends trailers."""
    process = subprocess.Popen(["node", "-e", _NODE, str(certificate)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def secret(value: str = "the-value-itself-0", **fields: Any) -> dict[str, Any]:
    """A secret for the settings."""
    return {
        "name": "token",
        "placeholder": "staddle-placeholder-1",
        "value": value,
        "hosts": [NAME],
        "header": "Authorization: Bearer {}",
        "query": "",
        "basic": "",
        "in_body": False,
        **fields,
    }


def quick_wait(seconds: float) -> None:
    """Wait a moment in which nothing is to happen."""
    time.sleep(seconds)
