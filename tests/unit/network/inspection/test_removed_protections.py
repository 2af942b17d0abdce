"""Each protection is removed from a copy of the inspector. Then its attack succeeds, and only then."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import NamedTuple

import pytest

import staddle
from tests.containment.switches.base import Edit
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

HELD, VALUE = secret()["placeholder"], secret()["value"]
RULES = [f"GET {NAME}/**", f"POST {NAME}/up/**", f"!* {NAME}/**/no", "GET other.example/**"]
HOST = f"Host: {NAME}\r\n"
POST = f"POST /up/a HTTP/1.1\r\n{HOST}Content-Length: "
HERE = "network/inspection/"


class Servers(NamedTuple):
    """Real servers, and the authority of their certificates."""

    roots: Path
    port: int
    port2: int
    foreign: int  # its certificate is from another authority
    seen: Seen


class Attacker:
    """A client behind one inspector."""

    def __init__(self, servers: Servers, inspected: Inspected, ca: Path) -> None:
        self.servers, self.inspected, self.ca = servers, inspected, ca

    def sends(self, request: str, name: str = NAME) -> list[tuple[str, bytes]]:
        """The paths and bodies that a server gets then."""
        before = len(self.servers.seen.requests)
        with dialled(self.inspected.door(self.servers.port, name), self.ca, name) as connection:
            exchanged(connection, request.encode(), 0.5)
        return [(path, body) for _, path, _, body in self.servers.seen.requests[before:]]

    def reads(self, path: str) -> bool:
        """Whether an answer has the value."""
        bearer = ("-H", f"Authorization: Bearer {HELD}")
        url = f"https://{NAME}{path}"
        return VALUE in curl(self.inspected.door(self.servers.port), self.ca, "-i", *bearer, url).stdout

    def sends_over_http2(self, *more: tuple[str, str]) -> bool:
        """Whether an HTTP/2 server answers this request."""
        import h2.config
        import h2.connection
        import h2.events

        client = h2.connection.H2Connection(h2.config.H2Configuration(validate_outbound_headers=False))
        client.initiate_connection()
        head = {":method": "GET", ":scheme": "https", ":authority": NAME, ":path": "/a", **dict(more)}
        door = self.inspected.door(self.servers.port2)
        with dialled(door, self.ca, alpn=("h2",)) as connection, suppress(OSError):
            connection.settimeout(5)
            client.send_headers(1, list(head.items()), end_stream=True)
            connection.sendall(client.data_to_send())
            while data := connection.recv(65536):
                for event in client.receive_data(data):
                    if isinstance(event, h2.events.ResponseReceived):
                        return dict(event.headers or ())[b":status"] == b"200"
        return False

    def reaches_an_impostor(self) -> bool:
        """Whether a server whose certificate is of another authority gets the request."""
        door = self.inspected.door(self.servers.foreign)
        return (
            "200" in curl(door, self.ca, "-o", "/dev/null", "-w", "%{http_code}", f"https://{NAME}/a").stdout
        )


#: The protection, what is changed in the copy, and the attack.
REMOVED: dict[str, tuple[Edit, Callable[[Attacker], object]]] = {
    "the authority of a request": (
        Edit(HERE + "request.py", "if not authority or any(", "if not authority and any("),
        lambda it: it.sends("GET /a HTTP/1.1\r\nHost: other.example\r\n\r\n"),
    ),
    "the authority of a request over HTTP/2": (
        Edit(HERE + "request.py", "if not authority or any(", "if not authority and any("),
        lambda it: it.sends_over_http2((":authority", "other.example")),
    ),
    "refusals win": (
        Edit(HERE + "decisions.py", "if rule.refuses(readings, queries):", "if False:"),
        lambda it: it.sends(f"GET /x/no HTTP/1.1\r\n{HOST}\r\n"),
    ),
    "refusals win over HTTP/2": (
        Edit(HERE + "decisions.py", "if rule.refuses(readings, queries):", "if False:"),
        lambda it: it.sends_over_http2((":path", "/x/no")),
    ),
    "escapes are read": (
        Edit(HERE + "decisions.py", "raw = unquote_to_bytes(", "raw = str.encode("),
        lambda it: it.sends(f"GET /x/%6eo HTTP/1.1\r\n{HOST}\r\n"),
    ),
    "parameters of a path are read": (
        Edit(HERE + "decisions.py", 're.sub(r";[^/]*", "", each) for each', "each for each"),
        lambda it: it.sends(f"GET /x/no;a HTTP/1.1\r\n{HOST}\r\n"),
    ),
    "segments of dots": (
        Edit(HERE + "decisions.py", 'part.strip() in (".", "..")', 'part.strip() in ("",) and False'),
        lambda it: it.sends(f"GET /a/../b HTTP/1.1\r\n{HOST}\r\n"),
    ),
    "headers that name another path": (
        Edit(HERE + "request.py", "if name in _REROUTING:", "if False:"),
        lambda it: it.sends(f"GET /a HTTP/1.1\r\n{HOST}X-Original-URL: /x/no\r\n\r\n"),
    ),
    "a body ends where its length says": (
        Edit(HERE + "http1.py", "data[: self._to_come], data[self._to_come :]", 'data, b""'),
        lambda it: [
            each for each in it.sends(f"{POST}1\r\n\r\naGET /x/no HTTP/1.1\r\n{HOST}\r\n") if "no" in each[0]
        ],
    ),
    "a placeholder in another header": (
        Edit(HERE + "substitution.py", "        _check(secret, host, port, target, headers)\n", ""),
        lambda it: it.sends(f"GET /a HTTP/1.1\r\n{HOST}X-Token: {HELD}\r\n\r\n"),
    ),
    "a placeholder in a body": (
        Edit(HERE + "substitution.py", "            if placeholder in seen:\n", "            if False:\n"),
        lambda it: [each for each in it.sends(f"{POST}{len(HELD)}\r\n\r\n{HELD}") if each[1]],
    ),
    "a secret for its hosts only": (
        Edit(
            HERE + "messages.py",
            "return any(rule.matches(host, port) and (encrypted or bool(rule.ports)) for rule in self.hosts)",
            "return True",
        ),
        lambda it: it.sends(
            f"GET /a HTTP/1.1\r\nHost: other.example\r\nAuthorization: Bearer {HELD}\r\n\r\n", "other.example"
        ),
    ),
    "values in bodies": (
        Edit(HERE + "request.py", "else self._wiper.feed(data)", "else data"),
        lambda it: it.reads("/echo"),
    ),
    "values in headers": (
        Edit(
            HERE + "request.py",
            "values.wiped(value)) for name, value in headers",
            "value) for name, value in headers",
        ),
        lambda it: it.reads("/header"),
    ),
    "the server's certificate": (
        Edit(
            HERE + "endpoint.py",
            "        self._context.minimum_version =",
            "        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE\n"
            "        self._context.minimum_version =",
        ),
        lambda it: it.reaches_an_impostor(),
    ),
}


def answer(handler: BaseHTTPRequestHandler, _: bytes) -> None:
    """The server shows the request's credentials in the body or in a header."""
    token = str(handler.headers["Authorization"])
    if handler.path == "/header":
        reply(handler, 200, b"", ("X-Echo", token))
    else:
        reply(handler, 200, token.encode())


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    roots, certificate = authority(tmp_path_factory.mktemp("outside"), NAME, "other.example")
    _, foreign = authority(tmp_path_factory.mktemp("foreign"), NAME)
    with (
        web_server(certificate, answer) as (port, seen),
        http2_server(certificate) as port2,
        web_server(foreign) as (impostor, _),
    ):
        yield Servers(roots, port, port2, impostor, seen)


@pytest.fixture(scope="module")
def whole(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacker]:
    """The client behind the inspector as it is."""
    with Inspected(RULES, servers.roots, secrets=[secret()]) as inspected:
        yield Attacker(servers, inspected, inspected.ca(tmp_path_factory.mktemp("whole")))


def copied(target: Path, edit: Edit) -> Path:
    """A copy of staddle with one change; its path is for PYTHONPATH."""
    source = Path(staddle.__file__).parent
    shutil.copytree(
        source, target / "staddle", copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__")
    )
    edit.apply(target)
    return target


@pytest.mark.parametrize("protection", REMOVED)
def test_an_attack_succeeds_without_its_protection_only(
    protection: str, servers: Servers, whole: Attacker, tmp_path: Path
) -> None:
    edit, attack = REMOVED[protection]
    assert not attack(whole)
    main = copied(tmp_path / "src", edit) / "staddle" / HERE / "__main__.py"
    with Inspected(RULES, servers.roots, main=main, secrets=[secret()]) as inspected:
        assert attack(Attacker(servers, inspected, inspected.ca(tmp_path)))


def test_benign_requests_pass(whole: Attacker) -> None:
    assert whole.sends(f"GET /a HTTP/1.1\r\n{HOST}\r\n")
    assert whole.sends_over_http2()
    assert whole.sends(f"POST /up/a HTTP/1.1\r\n{HOST}Content-Length: 1\r\n\r\na")


CONFINED = (
    "from staddle.network.inspection.confinement import confine\nimport socket\nconfine()\nsocket.socket()"
)
FOREIGN_LEAF = """
import sys
from cryptography.hazmat.primitives.serialization import Encoding
from staddle.hostnames import parse
from staddle.network.inspection.certificates import Authority
made = Authority([parse("api.example")])
open("ca.pem", "w").write(made.pem())
open("leaf.pem", "wb").write(made.leaf("evil.example").public_bytes(Encoding.PEM))
import subprocess
sys.exit(subprocess.run(["openssl", "verify", "-CAfile", "ca.pem", "leaf.pem"]).returncode)
"""


@pytest.mark.parametrize(
    ("edit", "program"),
    [
        (Edit(HERE + "confinement.py", "    load(program())\n", ""), CONFINED),
        (
            Edit(HERE + "certificates.py", ".add_extension(constraints, critical=True)", ""),
            FOREIGN_LEAF,
        ),
    ],
    ids=["no socket", "name constraint"],
)
def test_a_program_succeeds_without_its_protection_only(edit: Edit, program: str, tmp_path: Path) -> None:
    changed = copied(tmp_path / "src", edit)
    for source, succeeds in ((Path(staddle.__file__).parents[1], False), (changed, True)):
        found = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (found.returncode == 0) == succeeds, found
