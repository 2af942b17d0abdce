"""The page of a server: who gets its files, who may use it, and the requests that it needs."""

from __future__ import annotations

import base64
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import staddle
from staddle.errors import InvalidCall
from staddle.server.access import PROTOCOL
from staddle.server.client import Client
from tests.support.server_process import ROOT, ServerProcess

pytestmark = pytest.mark.both_users
TOKEN = "a token, of the tests: long enough".replace(" ", "-")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("page"), "--page", STADDLE_SERVER_TOKEN=TOKEN) as found:
        yield found


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with staddle.connect(server.path) as found:
        yield found
        for sandbox in found.list():
            sandbox.close()


def asked(server: ServerProcess, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(server.facts["url"].removeprefix("http://"), timeout=20)
    connection.request("GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()})
    reply = connection.getresponse()
    status, facts = reply.status, reply.headers
    body = b"" if status == 101 else reply.read()
    connection.close()
    return status, facts, body


def test_the_files_of_the_page_need_no_token_and_nothing_else_is_a_file(server: ServerProcess) -> None:
    netloc = server.facts["url"].removeprefix("http://")
    for path, kind in (
        ("/", "text/html"),
        ("/page/main.js", "text/javascript"),
        ("/page/vendor/xterm.mjs", "text/javascript"),
    ):
        status, headers, body = asked(server, path)
        assert (status, headers["Content-Type"].partition(";")[0]) == (200, kind)
        assert TOKEN.encode() not in body
        assert asked(server, path, Origin=f"http://{netloc}", Sec_Fetch_Site="same-origin")[0] == 200
        # As every request: not by another name (DNS rebinding), and not for a page of another site.
        assert asked(server, path, Host="evil.example")[0] == 421
        assert asked(server, path, Origin="http://evil.example")[0] == 403
        assert asked(server, path, Sec_Fetch_Site="cross-site")[0] == 403
    right = {"Authorization": f"Bearer {TOKEN}"}
    for path in (
        "/page/",
        "/page/../server.py",
        "/page/%2e%2e/server.py",
        "/page/vendor/VERSIONS",
        "/index.html",
        "/page//etc/passwd",
    ):
        assert asked(server, path)[0] == 401
        assert asked(server, path, **right)[0] == 404
    assert asked(server, "/v1/sandboxes")[0] == 401
    assert asked(server, "/v1/sandboxes", **right)[0] == 200


def test_a_terminal_takes_the_token_as_a_subprotocol(server: ServerProcess, client: Client) -> None:
    """Only of a WebSocket, and only with the Origin of this server. The reply does not repeat it."""
    with client.create() as sb:
        terminal = sb.terminal(["cat"])
        path = f"/v1/sandboxes/{sb.id}/terminals/{terminal.id}/attach"
        netloc = server.facts["url"].removeprefix("http://")

        def attach(token: str, origin: str = f"http://{netloc}", **more: str) -> tuple[int, str]:
            key = base64.b64encode(os.urandom(16)).decode()
            words = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
            upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Key": key}
            headers = {**upgrade, "Sec_WebSocket_Version": "13", "Origin": origin}
            headers["Sec_WebSocket_Protocol"] = f"{PROTOCOL}, staddle.token.{words}"
            status, facts, _ = asked(server, path, **{**headers, **more})
            return status, facts["Sec-WebSocket-Protocol"]

        assert attach(TOKEN) == (101, PROTOCOL)
        assert attach(TOKEN + "x")[0] == 401
        assert attach("")[0] == 401
        assert attach("ä")[0] == 401
        assert attach(TOKEN, Sec_WebSocket_Protocol=PROTOCOL)[0] == 401
        assert attach(TOKEN, Sec_WebSocket_Protocol=f"{PROTOCOL}, staddle.token.*")[0] == 401
        assert attach(TOKEN, "http://evil.example")[0] == 403
        assert attach(TOKEN, Host="evil.example")[0] == 421
        assert attach(TOKEN, Upgrade="h2c")[0] == 401


def test_the_page_of_a_running_server_is_opened(tmp_path: Path) -> None:
    """It listens then, once, at loopback only. Before, no port was open."""
    with ServerProcess(tmp_path) as server, staddle.connect(server.path) as client:
        assert "page" not in server.facts
        sb = client.create(name="here")
        words = [sys.executable, "-m", "staddle", "serve", "--page", "--socket", server.path]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        found = []
        for _ in range(2):
            done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
            assert done.returncode == 0, done.stderr
            found.append(json.loads(done.stdout))
            assert f"the page: {found[0]['page']}" in done.stderr
        assert found[0] == found[1]
        assert found[0]["pid"] == server.pid
        assert found[0]["page"].startswith("http://127.0.0.1:")
        with staddle.connect(found[0]["url"], token=found[0]["page"].partition("#token=")[2]) as other:
            assert other.get("here").id == sb.id
    refused = subprocess.run(
        [*words, "--detach"], capture_output=True, text=True, check=False, env=environment
    )
    assert refused.returncode == 125
    assert "token" in refused.stderr


def test_a_server_within_a_program_has_no_page(tmp_path: Path) -> None:
    from staddle.server.access import SocketAccess
    from staddle.server.server import SandboxServer, unix_listener

    server = SandboxServer()
    server.listen(unix_listener(str(tmp_path / "s")), SocketAccess())
    with staddle.connect(str(tmp_path / "s")) as client, pytest.raises(InvalidCall, match="staddle serve"):
        client.open_page()
    server.end()


# ------------------------------------------------------------ what the page asks for


def requested(client: Client, method: str, at: str, data: Any = None, **query: object) -> Any:
    return client._transport.request(method, at, data, query=query).json()


def test_one_change_has_its_diff(client: Client, tmp_path: Path) -> None:
    """Of the workspace as it is now; of a review as it was seen."""
    (tmp_path / "f").write_text("one\n")
    with client.create(tmp_path) as sb:
        sb.run("echo two > f; echo new > g")
        base = f"/v1/sandboxes/{sb.id}"
        (change,) = requested(client, "GET", f"{base}/changes", diff=1, path="/workspace/f")
        assert "-one\n+two\n" in change["diff"]
        review = requested(client, "POST", f"{base}/review", {})
        path = f"{base}/reviews/{review['id']}/changes"
        (seen,) = requested(client, "GET", path, diff=1, path="/workspace/f")
        assert seen["diff"] == change["diff"]
        sb.run("echo three > f")
        (seen,) = requested(client, "GET", path, diff=1, path="/workspace/f")
        assert "changed since the review" in seen["diff"]
        with pytest.raises(FileNotFoundError):
            requested(client, "GET", f"{base}/reviews/none/changes")


def test_snapshots_are_compared_and_forked(client: Client, tmp_path: Path) -> None:
    """Both ways, also between two branches; the list tells which one the sandbox continues from."""
    (tmp_path / "f").write_text("one\n")
    (tmp_path / "old").write_text("old\n")
    with client.create(tmp_path) as sb:
        first = sb.snapshot("first")
        sb.run("echo two > f; mv old moved")
        second = sb.snapshot("second")
        assert sb._request("GET", "/snapshots")[1]["current"]
        sb.restore(first)
        sb.run("echo three > g")
        third = sb.snapshot("third")
        sb.restore(first)
        assert [each["current"] for each in sb._request("GET", "/snapshots")] == [True, False, False]
        for new, old, expected in (
            (second, first, {("modified", "/workspace/f"), ("renamed", "/workspace/moved")}),
            (first, second, {("modified", "/workspace/f"), ("renamed", "/workspace/old")}),
            (
                third,
                second,
                {("modified", "/workspace/f"), ("added", "/workspace/g"), ("renamed", "/workspace/old")},
            ),
        ):
            assert {(each.kind, each.path) for each in new.diff(old)} == expected
        path = f"/snapshots/{first.id}/changes"
        (turned,) = sb._request("GET", path, query={"since": "second", "diff": 1, "path": "/workspace/f"})
        assert "-two\n+one\n" in turned["diff"]
        (fork,) = sb._request("POST", "/fork", {"snapshot": "second"})
        assert client.get(fork["id"]).files.read("f") == "two\n"
        assert sb.files.read("f") == "one\n"
        count = len(client.list())
        with pytest.raises(FileNotFoundError):
            sb._request("POST", "/fork", {"snapshot": "none"})
        assert len(client.list()) == count
