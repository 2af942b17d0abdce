"""UNIX sockets in a granted directory: those that are named can be connected to, and no others."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Policy, Sandbox, wrap

#: What becomes of a connection to each of these paths.
CONNECT = """
import json, os, socket, sys
def connected(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5)
        try:
            s.connect(path)
            return s.recv(9).decode()
        except OSError as error:
            return type(error).__name__
print(json.dumps({path: connected(path) for path in sys.argv[1:]}))
"""
REFUSED = ("ConnectionRefusedError", "PermissionError", "FileNotFoundError")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with two servers in it, at `a.sock` and `sub/named.sock`. Such a path may not be long."""
    with tempfile.TemporaryDirectory(prefix="sockets-", dir="/tmp") as made:
        Path(made, "sub").mkdir(mode=0o755)
        Path(made).chmod(0o755)
        servers = [_server(Path(made, name)) for name in ("a.sock", "sub/named.sock")]
        yield Path(made)
        for server in servers:
            server.close()


def _server(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    path.chmod(0o666)
    made.listen()

    def serve() -> None:
        try:
            while True:
                with made.accept()[0] as connection:
                    connection.sendall(b"hello")
        except OSError:
            return

    threading.Thread(target=serve, daemon=True).start()
    return made


def ask(*paths: object) -> list[str]:
    return ["python3", "-c", CONNECT, *map(str, paths)]


@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("backend", ["namespaces", "bwrap", "landlock"])
def test_only_those_that_are_named_can_be_connected_to(place: Path, backend: str, access: str) -> None:
    other, named = place / "a.sock", place / "sub/named.sock"
    policy = getattr(Policy.agent(), f"with_{access}")(place).with_sockets(named)
    done = wrap(ask(other, named), policy, backend=backend).run(capture_output=True)
    answers = json.loads(done.stdout)
    assert answers[str(named)] == "hello"
    assert answers[str(other)] in REFUSED


@pytest.mark.parametrize("mode", ["overlay", "readonly", "bind"])
def test_a_session_has_none_of_its_workspace(place: Path, mode: str) -> None:
    with Sandbox(place, mode=mode) as sandbox:
        done = sandbox.exec(ask("/workspace/a.sock", "/workspace/sub/named.sock"), check=True)
        assert set(json.loads(done.stdout).values()) <= set(REFUSED)
        # What it makes itself, it can use.
        own = (
            "import socket; s = socket.socket(socket.AF_UNIX); s.bind('/tmp/own'); s.listen();"
            "socket.socket(socket.AF_UNIX).connect('/tmp/own')"
        )
        assert sandbox.exec(["python3", "-c", own]).ok


def test_one_that_is_started_anew_is_covered_in_the_next_sandbox(tmp_path: Path) -> None:
    """Although it shares a view with the one before, in which what covered the old one is gone."""
    tmp_path.chmod(0o755)
    policy = Policy.agent().with_read(tmp_path)
    for _ in range(2):
        server = _server(tmp_path / "a.sock")
        with Sandbox(policy=policy) as sandbox:
            done = sandbox.exec(ask(tmp_path / "a.sock"), check=True)
            assert set(json.loads(done.stdout).values()) <= set(REFUSED)
            server.close()
            (tmp_path / "a.sock").unlink()


def test_one_that_is_gone_by_the_time_of_the_start_is_no_problem(place: Path) -> None:
    policy = Policy.agent().with_write(place)
    for backend in ("namespaces", "bwrap"):
        wrapped = wrap(["ls", str(place)], policy, backend=backend)
        assert [item.path for item in wrapped.plan.closed] == [
            str(place / "a.sock"),
            str(place / "sub/named.sock"),
        ]
        os.rename(place / "a.sock", place / "sub/moved")
        done = wrapped.run(capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "sub\n"), done.stderr
        os.rename(place / "sub/moved", place / "a.sock")
    assert sorted(os.listdir(place)) == ["a.sock", "sub"]


def test_it_is_said_what_is_covered(place: Path) -> None:
    from staddle.backends import get

    wrapped = wrap(["true"], Policy.agent().with_read(place), backend="namespaces")
    steps = [str(step.action) for step in get("namespaces").steps(wrapped.plan)]
    assert f"hide the file {place}/a.sock" in steps
    wrapped.close()
