"""A made-up host with web servers, on which a test opens sandboxes with HTTP rules and secrets.

    @on_a_host
    def test_something(world: World) -> None: ...

The test's body runs in a program of its own, in network and mount namespaces that nobody else sees. Its
nameserver is the only one, and its authority is the only one that clients and the inspector trust.
"""

from __future__ import annotations

import functools
import http.client
import http.server
import importlib
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from staddle.linux.process import SIGKILL, death_signal
from tests.support import network_offers
from tests.support.network_host import _become, _tentative
from tests.support.network_servers import certificate_for, listening, nameserver
from tests.support.network_world import OTHER, PUBLIC
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
#: The inspected host, one that no rule mentions, and one for which no secret is.
NAME, PLAIN, ANOTHER = "api.example.com", "plain.example.com", "other.example.com"
#: Hosts of agents' models, and another one that a person could choose. They serve what listens on the port
#: in the file `model`, if there is one.
MODEL, GATEWAY = "api.anthropic.com", "models.example.com"
MODELS = (MODEL, GATEWAY, "api.openai.com", "generativelanguage.googleapis.com")
NAMES = {NAME: PUBLIC, PLAIN: PUBLIC, ANOTHER: OTHER, **dict.fromkeys(MODELS, PUBLIC)}
SECONDS = 120
_INSIDE = "STADDLE_EGRESS_WORLD"


class World:
    """The host, as a test sees it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def requests(self) -> list[dict[str, Any]]:
        """What the servers were asked for, in order."""
        path = self.directory / "requests"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def on_a_host(test: Callable[..., None]) -> Callable[[Path], None]:
    """The test, whose body runs on the made-up host."""

    @functools.wraps(test)
    def run(tmp_path: Path) -> None:
        if os.environ.get(_INSIDE):
            test(World(tmp_path))
            return
        words = [sys.executable, "-m", "tests.support.egress_world", test.__module__, test.__name__]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", _INSIDE: "1"}
        environment.pop("SSL_CERT_FILE", None)
        done = subprocess.run(
            [*words, str(tmp_path)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    del run.__wrapped__  # pytest would read its parameters
    return run


def main(module: str, name: str, directory: Path) -> None:
    death_signal(SIGKILL)
    (directory / "workspace").mkdir()
    www, trusted = directory / "www", directory / "certificates"
    www.mkdir()
    trusted.mkdir()
    network_offers.page(www)
    network_offers.repository(www, directory / "work")
    network_offers.wheel(www)
    network_offers.npm_package(www, NAME)
    certificate = certificate_for(directory, *NAMES, addresses=(PUBLIC, OTHER))
    public = directory / "cert.pem"
    found = ["openssl", "x509", "-noout", "-hash", "-in", str(public)]
    number = subprocess.run(found, check=True, capture_output=True, text=True).stdout.strip()
    for file in ("ca-certificates.crt", f"{number}.0"):
        (trusted / file).write_bytes(public.read_bytes())
    _become(directory)
    nameserver(PUBLIC, NAMES, directory / "names")
    for host in (PUBLIC, OTHER):
        for port, with_tls in ((80, None), (443, certificate)):
            _server(host, port, directory, with_tls)
    assert until(lambda: not _tentative())
    getattr(importlib.import_module(module), name)(directory)


def _server(host: str, port: int, directory: Path, certificate: Path | None) -> None:
    """Serves files below /www, git repositories below /git, and tells what it was asked for elsewhere."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            if len(body) < length:
                return  # the inspector has cut the request
            if self.headers.get("Transfer-Encoding") == "chunked":
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            about = {"method": self.command, "path": self.path, "headers": dict(self.headers), "port": port}
            with (directory / "requests").open("a") as file:
                file.write(json.dumps(about) + "\n")
            if self.headers.get("Upgrade") == "websocket":
                self.send_response(101)
                self.send_header("Upgrade", "websocket")
                self.send_header("Connection", "Upgrade")
                self.end_headers()
                self.wfile.write(self.rfile.readline())
                self.close_connection = True
                return
            if self.path.startswith("/git/"):
                self.git(body)
                return
            if (directory / "model").exists() and self.headers["Host"] in MODELS:
                self.model(body)
                return
            place = directory / "www" / self.path.removeprefix("/www/").partition("?")[0]
            if self.path.startswith("/www/") and place.is_dir():
                names = "".join(f'<a href="{each.name}">{each.name}</a>' for each in place.iterdir())
                self.say(200, names.encode(), "text/html")
            elif self.path.startswith("/www/"):
                self.say(200 if place.is_file() else 404, place.read_bytes() if place.is_file() else b"")
            else:
                status = 401 if "expired" in str(self.headers) else 200
                self.say(status, json.dumps({**about, "body": body.decode("latin-1")}).encode())

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

        def say(self, status: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def model(self, body: bytes) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", int((directory / "model").read_text()))
            connection.request(self.command, self.path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            self.say(answer.status, answer.read(), answer.headers["Content-Type"] or "text/plain")
            connection.close()

        def git(self, body: bytes) -> None:
            path, _, query = self.path.partition("?")
            environment = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(directory / "www"),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path.removeprefix("/git"),
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "REMOTE_USER": "me",
                "GIT_CONFIG_COUNT": "2",
                "GIT_CONFIG_KEY_0": "http.receivepack",
                "GIT_CONFIG_VALUE_0": "true",
                "GIT_CONFIG_KEY_1": "safe.directory",
                "GIT_CONFIG_VALUE_1": "*",
            }
            done = subprocess.run(
                ["git", "http-backend"], input=body, capture_output=True, env=environment, check=True
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            lines = [line.partition(b": ") for line in head.split(b"\r\n")]
            fields = {key.decode(): value.decode() for key, _, value in lines}
            self.say(int(fields.get("Status", "200")[:3]), content, fields.get("Content-Type", "text/plain"))

    def serve(connection: Any) -> None:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            try:
                connection = context.wrap_socket(connection, server_side=True)
            except OSError:
                return
        try:
            Handler(connection, ("", 0), None)  # type: ignore[arg-type]
        except OSError:
            pass
        connection.close()

    listening(host, port, serve)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
