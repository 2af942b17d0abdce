"""Servers of the made-up host, each in a process of its own, listening when the function returns."""

from __future__ import annotations

import http.server
import selectors
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

from staddle.network.rules import dns
from tests.support.network_world import PUBLIC, apart, at, come_home
from tests.support.web import Answering


def listening(host: str, port: int, serve: Callable[[socket.socket], None]) -> int:
    """A TCP server that calls `serve` with every connection, one at a time in children of its own."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with at(host):
        listener = socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=False)

    def work() -> None:
        while True:
            connection, _ = listener.accept()
            apart(lambda: serve(connection))  # noqa: B023 - forked at once
            connection.close()

    child = apart(work)
    listener.close()
    return child


def http_server(host: str, port: int = 80, certificate: Path | None = None) -> int:
    """Says which Host it was asked for, over TLS when there is a certificate."""

    class Handler(Answering):
        protocol_version = "HTTP/1.1"

        def body(self) -> bytes:
            return f"hello from {self.headers['Host']}".encode()

    def serve(connection: socket.socket) -> None:
        connection = _over(connection, certificate)
        Handler(connection, ("", 0), None)  # type: ignore[arg-type]
        connection.close()

    return listening(host, port, serve)


def _over(connection: socket.socket, certificate: Path | None) -> socket.socket:
    """The same over TLS, when there is a certificate."""
    if certificate is None:
        return connection
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context.wrap_socket(connection, server_side=True)


def web_server(host: str, port: int, directory: Path, certificate: Path | None = None) -> int:
    """Serves the files of a directory, over TLS when there is a certificate."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

    def serve(connection: socket.socket) -> None:
        connection = _over(connection, certificate)
        Handler(connection, ("", 0), None, directory=str(directory))  # type: ignore[arg-type]
        connection.close()

    return listening(host, port, serve)


def echo(host: str, port: int, greeting: bytes = b"") -> int:
    """Sends back what it gets, after a greeting, and ends when the other side has ended."""

    def serve(connection: socket.socket) -> None:
        if greeting:
            connection.sendall(greeting)
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.close()

    return listening(host, port, serve)


def published(port: int) -> int:
    """On the internet, the server that listens on the host's loopback at this port."""

    def serve(connection: socket.socket) -> None:
        come_home()
        with socket.create_connection(("127.0.0.1", port)) as there, selectors.DefaultSelector() as ready:
            ready.register(connection, selectors.EVENT_READ, there)
            ready.register(there, selectors.EVENT_READ, connection)
            while ready.get_map():
                for key, _ in ready.select():
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    key.data.sendall(data)
                    if not data:
                        ready.unregister(key.fileobj)
                        key.data.shutdown(socket.SHUT_WR)

    with at(PUBLIC):
        return listening("0.0.0.0", port, serve)


def udp_echo(host: str, port: int) -> int:
    """Sends every datagram back, in capital letters."""
    with at(host):
        served = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        served.bind((host, port))

    def work() -> None:
        while True:
            data, sender = served.recvfrom(65536)
            served.sendto(data.upper(), sender)

    child = apart(work)
    served.close()
    return child


def nameserver(host: str, names: dict[str, str], log: Path, *, truncate: bool = False) -> int:
    """A DNS server on port 53 that knows these names, and writes down every name it is asked for."""
    with at(host):
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind((host, 53))

    def answer(packet: bytes, over_tcp: bool) -> bytes:
        question = dns.parse(packet, over_tcp)
        with log.open("a") as file:
            file.write(f"{question.name}\n")
        if truncate and not over_tcp:
            return dns.error_answer(question, dns.OK)[:2] + b"\x83\x80" + packet[4:]
        address = names.get(question.name or "")
        if address is None:
            return dns.error_answer(question, dns.NO_SUCH_NAME)
        return dns.address_answer(question, socket.inet_aton(address), None)

    def work() -> None:
        while True:
            packet, sender = datagrams.recvfrom(4096)
            datagrams.sendto(answer(packet, False), sender)

    def serve(connection: socket.socket) -> None:
        size = int.from_bytes(connection.recv(2, socket.MSG_WAITALL), "big")
        connection.sendall(dns.framed(answer(connection.recv(size, socket.MSG_WAITALL), True)))
        connection.recv(1)

    apart(work)
    datagrams.close()
    return listening(host, 53, serve)


def certificate_for(directory: Path, *names: str, addresses: tuple[str, ...] = ()) -> Path:
    """A throw-away certificate with its key in one file; it is its own authority."""
    key, made = directory / "key.pem", directory / "cert.pem"
    alternatives = ",".join([f"DNS:{name}" for name in names] + [f"IP:{text}" for text in addresses])
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=staddle"
    )
    subprocess.run(
        [
            *command.split(),
            "-addext",
            f"subjectAltName={alternatives}",
            "-keyout",
            str(key),
            "-out",
            str(made),
        ],
        check=True,
        capture_output=True,
    )
    both = directory / "both.pem"
    both.write_bytes(made.read_bytes() + key.read_bytes())
    return both
