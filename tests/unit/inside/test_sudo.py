"""What a line of sudo or su asks for, as people type it."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from pathlib import Path

import pytest

from staddle.inside.agent.agent import SandboxAgent
from staddle.inside.agent.processes import Child, SpawnSpec
from staddle.inside.agent.starter import ProgramStarter
from staddle.inside.agent.sudo import PIPE, NotUnderstood, SudoRequests, parse_su, parse_sudo
from staddle.inside.agent.usage import Count


def words(line: str) -> list[bytes]:
    return line.encode().split()


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("apt-get install -y x", "apt-get install -y x"),
        ("-E apt-get update", "apt-get update"),
        ("-n -H id", "id"),
        ("-nE id -u", "id -u"),
        ("-u root id", "id"),
        ("--user=root -- id -u root", "id -u root"),
        ("-p prompt id", "id"),
        ("--preserve-env=PATH,HOME id", "id"),
        ("DEBIAN_FRONTEND=noninteractive apt-get install x", "apt-get install x"),
        ("-nu root id", "id"),
        ("-Hu root -- id", "id"),
        ("-k", ""),
        ("-s", "/bin/bash"),
    ],
)
def test_a_line_of_sudo(line: str, argv: str) -> None:
    assert parse_sudo(words(line)).argv == tuple(words(argv))


def test_variables_and_shells() -> None:
    command = parse_sudo(words("A=1 B_2=x=y env"))
    assert command.variables == {b"A": b"1", b"B_2": b"x=y"}
    at_home = (b"/bin/sh", b"-c", b'cd; exec "$0" -l "$@"', b"/bin/bash")
    assert parse_sudo(words("-i")).argv == at_home
    assert parse_sudo(words("-iu root id")).argv == (*at_home, b"-c", b"'id'")
    assert parse_sudo(words("-i echo it's")).argv == (*at_home, b"-c", b"'echo' 'it'\\''s'")
    assert parse_sudo(words("-v")).argv == ()


#: Options that would change what is run: they are refused, never left out.
IGNORED = (
    "-b sleep 1",
    "--background id",
    "-D /tmp pwd",
    "-g users id",
    "-R /mnt id",
    "-T 5 id",
    "-h other id",
)


@pytest.mark.parametrize("line", ["", "-E", "-u bob id", "--user=bob id", "-Z id", "--what id", *IGNORED])
def test_what_is_not_understood_is_said(line: str) -> None:
    with pytest.raises(NotUnderstood, match="sudo: "):
        parse_sudo(words(line))


def test_a_line_of_su() -> None:
    assert parse_su([b"-c", b"id -u"]).argv == (b"/bin/bash", b"-c", b"id -u")
    assert parse_su([b"-", b"root", b"-c", b"id"]).argv[2:] == (
        *(b'cd; exec "$0" -l "$@"', b"/bin/bash", b"-c", b"id"),
    )
    assert parse_su([]).argv == (b"/bin/bash",)
    assert parse_su([b"-s", b"/bin/sh", b"-c", b"id"]).argv == (b"/bin/sh", b"-c", b"id")
    assert parse_su([b"-p", b"-c", b"id"]).argv == (b"/bin/bash", b"-c", b"id")
    with pytest.raises(NotUnderstood):
        parse_su([b"bob", b"-c", b"id"])
    with pytest.raises(NotUnderstood, match="su: the option -g"):
        parse_su([b"-g", b"users", b"-c", b"id"])


@pytest.mark.parametrize("ours", [True, False])
def test_a_process_of_our_own_is_never_asked_about(tmp_path: Path, ours: bool) -> None:
    """Its streams lead to the host, so that nothing may run with them, whatever descriptors it has."""

    started = []

    def start(spec: SpawnSpec) -> tuple[Child, socket.socket]:
        started.append(spec.argv)
        raise OSError  # as if it could not be started

    directory = os.open(tmp_path, os.O_RDONLY)
    script = ["sh", "-c", "exec 9>&1; echo ready >&9; read line", "id"]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        requests = SudoRequests(directory, select.poll(), start, lambda pid: ours, (1000, 1000))
        (tmp_path / PIPE).write_text(f"{process.pid}\n")
        assert requests.serve(requests._pipe)
        assert len(started) == (0 if ours else 1)
        process.stdin.close()
    os.close(requests._pipe)
    os.close(directory)


def test_the_starter_of_programs_is_our_own() -> None:
    """Nothing runs with its streams either: it is a fork of the agent."""
    agent = SandboxAgent.__new__(SandboxAgent)
    agent._children = {}
    agent._starter = ProgramStarter(None, Count(own_numbers=False), select.poll())
    agent._starter.pid = 7
    assert 7 in agent._ours()
