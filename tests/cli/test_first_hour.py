"""Commands that people type in their first hour, and the answers that let them go on."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from staddle.cli import completion
from tests.support.staddle_command import environment, is_one_error, staddle


@pytest.mark.parametrize(
    ("name", "text", "executable", "printed"),
    [
        ("calc.py", "print(6 * 7)\n", False, "42\n"),
        ("calc.py", "print(6 * 7)\n", True, "42\n"),
        ("tool", "#!/usr/bin/env python3\nprint('by its first line')\n", False, "by its first line\n"),
        ("tool", "#!/usr/bin/python3 -O\nprint(__debug__)\n", False, "False\n"),
        ("script", 'echo "in $BASH_VERSION" | cut -c 1-2\n', False, "in\n"),
        ("mine.pl", 'print "perl\\n";', False, "perl\n"),
    ],
)
def test_a_file_is_run_by_what_it_is(
    tmp_path: Path, name: str, text: str, executable: bool, printed: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    file.chmod(0o755 if executable else 0o644)
    done = staddle("run", name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


def test_a_program_is_run_as_it_is(tmp_path: Path) -> None:
    shutil.copy("/bin/echo", tmp_path / "program.py")
    done = staddle("run", "program.py", "hello", cwd=tmp_path)
    assert done.stdout == "hello\n", done.stderr


@pytest.mark.same_for_everyone
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--memory", "5"), "5M or 5G"),
        (("--disk", "5", "--mode", "overlay"), "5M or 5G"),
        (("--socket", "/nope"), "No such file"),
        (("--socket", "/etc/passwd"), "not a UNIX socket"),
        (("--cmd", "x"), "did you mean --command?"),
        (("--mem", "1G"), "did you mean --memory?"),
        (("--net", "deny"), "did you mean --network?"),
    ],
)
def test_a_wrong_word_is_refused_with_the_right_one(words: tuple[str, ...], told: str) -> None:
    done = staddle("run", *words, "--", "true")
    assert done.returncode == 125
    assert is_one_error(done.stderr)
    assert told in done.stderr


def test_a_variable_that_is_not_set_is_told(tmp_path: Path) -> None:
    done = staddle("run", "--pass-env", "NOPE", "--", "true", cwd=tmp_path)
    assert done.returncode == 0
    assert "NOPE" in done.stderr
    env = {**environment(), "SOME": "value"}
    given = staddle("run", "--pass-env", "SOME", "--", "printenv", "SOME", cwd=tmp_path, env=env)
    assert (given.stdout, given.stderr) == ("value\n", "")


def test_a_socket_that_is_there_can_be_used(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        done = staddle("run", "--socket", str(tmp_path / "s"), "--", "true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


NETWORK = "the network is denied"
CURL = ("curl", "-sf", "--max-time", "3")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--", "pip", "download", "--no-cache-dir", "surely-not-installed"), True),
        (("-c", "curl -sf https://example.com"), True),
        (("--mode", "overlay", "--", *CURL, "https://example.com"), True),
        (("--", "python3", "fetch.py"), True),
        (("fetch.py",), True),
        (("--", "git", "ls-remote", "https://example.com/x"), True),
        (("--", *CURL, "http://localhost:9"), False),
        (("--", "false"), False),
        (("--", "sh", "-c", "exit 6"), False),
        (("--network", "open", "--", *CURL, "http://127.0.0.1:9"), False),
        (("--", "sh", "-c", "curl --version"), False),
    ],
)
def test_a_command_that_wanted_the_denied_network_is_told(
    tmp_path: Path, words: tuple[str, ...], said: bool
) -> None:
    (tmp_path / "fetch.py").write_text(
        "import urllib.request\nurllib.request.urlopen('https://example.com')\n"
    )
    done = staddle("run", *words, cwd=tmp_path)
    assert (NETWORK in done.stderr) == said, done.stderr
    if said:
        assert done.returncode != 0
        assert "--allow HOST" in done.stderr


def test_the_reason_is_in_the_report_too(tmp_path: Path) -> None:
    done = staddle("run", "--json", "--", *CURL, "https://example.com", cwd=tmp_path)
    assert NETWORK in done.stdout


def test_a_sandbox_in_a_sandbox_is_refused_as_what_it_is(tmp_path: Path) -> None:
    source = str(Path(completion.__file__).parents[2])
    inner = "import staddle.cli, sys; sys.exit(staddle.cli.main(['run', '--', 'true']))"
    words = ("--read", source, "--env", f"PYTHONPATH={source}", "--", "/usr/bin/python3", "-c", inner)
    done = staddle("run", *words, cwd=tmp_path)
    assert done.returncode == 125
    assert "runs in a sandbox of staddle already" in done.stderr
    assert "Docker" not in done.stderr.partition("fix:")[2]


# Help and completion


@pytest.mark.same_for_everyone
def test_a_help_names_only_options_that_the_command_has() -> None:
    for name, table in completion.tables().items():
        known = {f"--{option.name}" for option in table}
        for option in table:
            text = re.sub(r"`[^`]*`", "", option.help)
            assert set(re.findall(r"--[a-z][a-z-]+", text)) <= known, (name, option)


@pytest.mark.same_for_everyone
def test_no_help_names_what_is_for_our_own_processes() -> None:
    assert "--serve" not in staddle("agent", "--help").stdout
    assert "--names" not in staddle("completion", "--help").stdout


BASH = """
source <(staddle completion bash)
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _staddle; printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(words: tuple[str, ...], tmp_path: Path) -> list[str]:
    (tmp_path / "staddle").write_text(f'#!/bin/sh\nexec "{shutil.which("python3")}" -m staddle "$@"\n')
    (tmp_path / "staddle").chmod(0o755)
    env = {**environment(), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    argv = ["bash", "-c", BASH, "bash", *words]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.same_for_everyone
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("staddle", "comp"), ["completion"]),
        (("staddle", "run", "--memo"), ["--memory"]),
        (("staddle", "jail", "rea"), ["reap"]),
        (("staddle", "jail", "run", "--prompt-"), ["--prompt-file"]),
        (("staddle", "fleet", "status", "--addr"), ["--address"]),
        (("staddle", "run", "--", "--memo"), []),
    ],
)
def test_bash_completes(words: tuple[str, ...], offered: list[str], tmp_path: Path) -> None:
    assert completed(words, tmp_path) == offered


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_in_its_language(shell: str) -> None:
    script = staddle("completion", shell).stdout
    assert all(word in script for word in ("run", "jail", "network"))
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
    assert staddle("completion", "csh").returncode == 125
