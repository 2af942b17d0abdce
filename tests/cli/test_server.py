"""`staddle ps`, `attach`, `run --in`, `logs` and `stop`, with a server of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import staddle
from staddle.server.client import Client
from tests.support.pty_screen import PtyScreen
from tests.support.server_process import ROOT, ServerProcess
from tests.support.waiting import until

pytestmark = pytest.mark.both_users
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm"}
STADDLE = (sys.executable, "-m", "staddle")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path) as found:
        yield found


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with staddle.connect(server.path) as found:
        yield found


def staddle_command(server: ServerProcess, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    name, *rest = words
    return subprocess.run(
        [*STADDLE, name, "--server", server.path, *rest],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )


def test_commands_find_a_sandbox_by_its_name(server: ServerProcess, client: Client) -> None:
    """They list it, run in its session with its exit status, print its output, and close it."""
    client.create(name="work")
    done = staddle_command(server, "run", "--in", "work", "-c", "cd /tmp; echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert staddle_command(server, "run", "--in", "work", "--", "printf", "%s", "a  b").stdout == "a  b"
    assert (
        staddle_command(server, "run", "--in", "work", "--stdin", "--", "cat", stdin="x\ny").stdout == "x\ny"
    )
    assert (
        staddle_command(server, "run", "--in", "work", "--timeout", "0.3", "--", "sleep", "9").returncode
        == 124
    )
    assert "work" in staddle_command(server, "ps").stdout
    (facts,) = json.loads(staddle_command(server, "ps", "--json").stdout)
    assert (facts["name"], facts["state"]) == ("work", "running")
    assert "exit 3" in staddle_command(server, "ps", "work").stdout
    logs = staddle_command(server, "logs", "work")
    assert logs.stdout == "out\nerr\na  bx\ny"
    assert "$ printf %s 'a  b'" in logs.stderr
    assert staddle_command(server, "stop", "work").returncode == 0
    missing = staddle_command(server, "run", "--in", "work", "--", "true")
    assert missing.returncode == 125
    assert "no sandbox 'work'" in missing.stderr


def test_what_comes_from_inside_is_shown_harmless(server: ServerProcess, client: Client) -> None:
    with client.create() as sb:
        sb.run("true '\x1b]0;title\x07'")
        for words in (("ps",), ("ps", sb.id)):
            assert "\x1b" not in staddle_command(server, *words).stdout
        assert "\x1b" not in staddle_command(server, "logs", sb.id).stderr


def test_stop_all_ends_the_server(server: ServerProcess, client: Client) -> None:
    client.create()
    assert staddle_command(server, "stop").returncode == 125
    assert staddle_command(server, "stop", "--all").returncode == 0
    server.process.wait(20)
    assert staddle_command(server, "ps").returncode == 125


def test_a_terminal_is_left_and_found_again(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    """Ctrl-P Ctrl-Q leaves it; its program goes on; the next attachment shows what was there."""
    with client.create(name="work") as sb:
        argv = [*STADDLE, "attach", "--server", server.path, "work"]
        first = PtyScreen(argv, ENVIRONMENT, str(tmp_path))
        assert until(lambda: "$" in first.text()), first.text()
        first.type("x=left; stty size\r")
        assert until(lambda: "32 120" in first.text()), first.text()
        first.type(b"\x10\x11")
        assert until(lambda: first.process.poll() is not None), first.text()
        assert first.process.poll() == 0
        assert len(sb.terminals()) == 1
        second = PtyScreen(argv, ENVIRONMENT, str(tmp_path), rows=20, cols=70)
        assert until(lambda: "32 120" in second.text()), second.text()
        second.type("echo [$x]; stty size; exit 6\r")
        assert until(lambda: second.process.poll() is not None), second.text()
        assert "[left]" in second.text()
        assert "20 70" in second.text()
        assert second.process.poll() == 6
