"""What the inspector costs: a gigabyte and a kept-alive request over HTTP/1.1 with TLS, and HTTP/2.

curl fetches directly and through the inspector, in turns, from the same server. Python's client measures the
latency of requests on one connection. The server is Python's http.server. mitmproxy is measured alike if
MITMDUMP names its program.
"""

from __future__ import annotations

import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from measure import Claim, ms

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.support.inspection import NAME, Inspected, authority, curl, http2_server, secret

_GIGABYTE, _BLOCK = 1 << 30, 256 << 10
_ROUNDS, _QUICK_ROUNDS, _REQUESTS = 3, 12, 300


class _Handler(BaseHTTPRequestHandler):
    """/big is a gigabyte, anything else two bytes."""

    protocol_version, disable_nagle_algorithm, wbufsize = "HTTP/1.1", True, _BLOCK

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        size = _GIGABYTE if self.path.startswith("/big") else 2
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        block = b"x" * min(size, _BLOCK)
        for _ in range(size // len(block)):
            self.wfile.write(block)


def _serve(listener: socket.socket, certificate: Path) -> None:
    """Run http.server, in a process of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler, bind_and_activate=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.set_alpn_protocols(["http/1.1"])
    server.socket = context.wrap_socket(listener, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


def _fetch(port: int, ca: Path, path: str = "/big", *more: str) -> float:
    began = time.perf_counter()
    found = curl(port, ca, f"https://{NAME}{path}", "-o", "/dev/null", *more)
    if found.returncode:
        raise RuntimeError(found.stderr)
    return time.perf_counter() - began


def _latency(port: int, ca: Path) -> float:
    """The median seconds of a request on a kept-alive connection."""
    request = f"GET /small HTTP/1.1\r\nHost: {NAME}\r\nAuthorization: Bearer x\r\n\r\n".encode()
    raw = socket.create_connection(("127.0.0.1", port), 20)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    with ssl.create_default_context(cafile=str(ca)).wrap_socket(raw, server_hostname=NAME) as connection:
        for _ in range(_REQUESTS):
            began, got = time.perf_counter(), b""
            connection.sendall(request)
            while not got.endswith((b"\r\n\r\nxx", b"0\r\n\r\n")):  # an answer that is searched has chunks
                got += connection.recv(65536)
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def _turns(
    jobs: dict[str, Callable[[], float]],
    rounds: int = _ROUNDS,
    chosen: Callable[[list[float]], float] = statistics.median,
) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            found[name].append(job())
    return {name: chosen(times) for name, times in found.items()}


def _mitmproxy(stack: ExitStack, program: str, port: int, directory: Path, roots: Path) -> tuple[int, Path]:
    """Start mitmproxy in front of the server; return its port and authority."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        own = free.getsockname()[1]
    argv = [program, "-q", "-p", str(own), "--mode", f"reverse:https://{NAME}:{port}"]
    argv += ["--set", f"confdir={directory}"]
    argv += ["--set", f"ssl_verify_upstream_trusted_ca={roots}", "--set", "stream_large_bodies=1"]
    script = directory / "local.py"
    script.write_text(
        "def server_connect(data): data.server.address = ('127.0.0.1', data.server.address[1])\n"
    )
    process = subprocess.Popen([*argv, "-s", str(script)])
    stack.callback(process.wait)
    stack.callback(process.kill)
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", own)).close()
            break
        except OSError:
            time.sleep(0.1)
    return own, directory / "mitmproxy-ca-cert.pem"


def measure() -> list[Claim]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        roots, certificate = authority(directory, NAME)
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        port = listener.getsockname()[1]
        child = os.fork()
        if child == 0:
            try:
                _serve(listener, certificate)
            finally:
                os._exit(1)
        stack.callback(os.waitpid, child, 0)
        stack.callback(os.kill, child, 9)
        rules = [f"GET {NAME}/**"]
        inspected = stack.enter_context(Inspected(rules, roots))
        guarded = stack.enter_context(Inspected(rules, roots, secrets=[secret()]))
        places = {"direct": (port, roots), "inspected": (inspected.door(port), inspected.ca(directory))}
        (directory / "guarded").mkdir()
        places["with a secret"] = (guarded.door(port), guarded.ca(directory / "guarded"))
        if program := os.environ.get("MITMDUMP"):
            places["mitmproxy"] = _mitmproxy(stack, program, port, directory, roots)
        big = _turns({name: lambda at=at: _fetch(*at) for name, at in places.items()})
        # The best of the rounds: other work on the machine can only add to it.
        small = _turns({name: lambda at=at: _latency(*at) for name, at in places.items()}, _QUICK_ROUNDS, min)
        port2 = stack.enter_context(http2_server(certificate))
        two = {"direct": (port2, roots), "inspected": (inspected.door(port2), places["inspected"][1])}
        h2 = _turns(
            {name: lambda at=at: _fetch(*at, "/big?n=200000000", "--http2") for name, at in two.items()}
        )
    rates = ", ".join(f"{name} {1024 / seconds:.0f} MiB/s" for name, seconds in big.items())
    times = ", ".join(f"{name} {ms(seconds)}" for name, seconds in small.items())
    rates2 = ", ".join(f"{name} {200 / seconds:.0f} MB/s" for name, seconds in h2.items())
    return [
        Claim("a gigabyte over inspected HTTP/1.1", big["inspected"] / big["direct"], 1 / 0.35, rates),
        Claim("a request on a kept-alive connection", small["inspected"] / small["direct"], 4, times),
        Claim("200 MB over inspected HTTP/2", h2["inspected"] / h2["direct"], 15, rates2),
    ]


if __name__ == "__main__":
    for claim in measure():
        print(claim)
