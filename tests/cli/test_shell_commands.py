"""`staddle shell`: its own commands, and a shell whose state comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import backends
from staddle.cli.shell_commands import HELP, NAMES, is_command
from staddle.cli.shell_input import InputLines
from staddle.cli.terminal import TypedLine
from tests.support.in_a_child import captured
from tests.support.staddle_command import COMMAND, environment, staddle

TYPIST = Path(__file__).parents[1] / "support/typing_at_a_terminal.py"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o755)
    place = tmp_path / "project"
    place.mkdir()
    (place / "a").write_text("one\n")
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def name() -> Iterator[str]:
    made = f"commands-{os.urandom(6).hex()}"
    yield made
    staddle("rm", "--force", made)


def shell(script: str, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = staddle("shell", *(words or ("--mode", "overlay")), input=script)
    assert done.returncode == status, done.stderr
    return done


def typed(*lines: str, words: tuple[str, ...] = ("--mode", "overlay")) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(TYPIST), json.dumps(lines), *COMMAND, "shell", *words]
    return captured(argv, env=environment(), stdin=subprocess.DEVNULL)


# From a pipe


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_moment_is_remembered_and_gone_back_to() -> None:
    script = """
x=1; f() { echo fun; }; cd /tmp; shopt -s nullglob; set -u
echo one > /workspace/n
%snapshot first
x=2; echo two > /workspace/n; cd /; unset -f f; shopt -u nullglob; set +u
%snapshot second
%restore first
echo "$x $PWD"; f; cat /workspace/n; shopt nullglob; echo $-
%restore second
echo "$x $PWD"; cat /workspace/n
%restore
%reset
echo "${x-none} $PWD"; ls
exit 4
"""
    lines = shell(script, status=4).stdout.splitlines()
    assert lines[:2] == ["snapshot first", "snapshot second"]
    assert lines[2:6] == ["restored first", "1 /tmp", "fun", "one"]
    assert lines[6].split() == ["nullglob", "on"]
    assert "u" in lines[7]
    assert lines[8:11] == ["restored second", "2 /", "two"]
    assert lines[11:] == ["restored second", "everything is as at the start", "none /workspace", "a"]


@pytest.mark.slow
@pytest.mark.same_for_everyone
@pytest.mark.parametrize("backend", [name for name in backends.candidates() if name != "systemd"])
def test_on_every_backend(backend: str) -> None:
    script = (
        "x=1; cd ..; echo 1 > ~-/n\n%snapshot\nx=2; cd /\n%restore\necho $x $OLDPWD\n%reset\necho ${x-none}\n"
    )
    done = shell(script, "--mode", "overlay", "--backend", backend)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["snapshot 1", "restored 1"], done.stderr
    assert lines[2].startswith("1 /")
    assert lines[3:] == ["everything is as at the start", "none"]


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_what_came_before_a_command_is_done_before_it(project: Path) -> None:
    done = shell("for i in 1 2 3; do sleep 0.2; done; echo late > late\n%diff\necho after\n")
    assert "A /workspace/late" in done.stdout
    assert "+late" in done.stdout
    assert done.stdout.endswith("after\n")


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_changes_are_shown_and_committed_where_the_shell_is(project: Path) -> None:
    done = shell("mkdir sub; cd sub; echo x > f; echo y > g\n%diff f\n%commit f\n%diff nothing\n%commit\n")
    assert "A /workspace/sub/f" in done.stdout
    assert "/sub/g" not in done.stdout.partition("written")[0]
    assert "no changes" in done.stdout
    assert (project / "sub/f").read_text() == "x\n"
    assert (project / "sub/g").read_text() == "y\n"
    held = shell("echo evil > .envrc\n%commit\n")
    assert ".envrc" in held.stderr
    assert not (project / ".envrc").exists()


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_what_is_no_command_of_ours_is_bashs() -> None:
    done = shell("cat <<'X'\n%1\n %help\n%helpme\nX\necho %snapshot\n")
    assert done.stdout == "%1\n %help\n%helpme\n%snapshot\n"
    done = shell("%snapshot\necho on\n", "--mode", "overlay", "--no-commands")
    assert done.stdout == "on\n"
    assert "snapshot" not in done.stdout
    assert shell("%help").stdout == HELP + "\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_frozen_workspace_does_not_see_edits_on_the_host(project: Path) -> None:
    words = [*COMMAND, "shell", "--freeze"]
    with subprocess.Popen(
        words, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("cat a\n")
        assert process.stdout.readline() == "one\n"
        (project / "a").write_text("two\n")
        process.stdin.write("cat a\n")
        assert process.stdout.readline() == "one\n"
        process.stdin.close()
    assert "--mode bind" in shell("", "--freeze", "--mode", "bind", status=125).stderr
    assert "--keep" in shell("", "--freeze", "--keep", "x", status=125).stderr


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_an_error_is_told_and_the_shell_goes_on() -> None:
    done = shell("x=5\n%restore nowhere\necho $x\n")
    assert done.stdout == "5\n"
    assert "no snapshot 'nowhere'" in done.stderr
    nothing = shell("%snapshot\necho on\n", "--mode", "bind")
    assert "staddle: " in nothing.stderr
    assert nothing.stdout == "on\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_shell_that_ends_before_a_command_ends_all() -> None:
    assert shell("exit 3\n%help\n", status=3).stdout == ""


@pytest.mark.same_for_everyone
def test_lines_come_as_they_are_written(project: Path) -> None:
    """A program that waits for each answer is not kept waiting for the end of the input."""
    process = subprocess.Popen(
        [*COMMAND, "shell", "--mode", "overlay"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for line, answer in (("echo one", "one"), ("%snapshot a", "snapshot a"), ("echo $((1+1))", "2")):
        process.stdin.write(line + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == answer + "\n"
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()


@pytest.mark.same_for_everyone
def test_as_json() -> None:
    done = shell(
        "x=1\n%snapshot s\nx=2\n%restore s\necho $x\n%restore t\n", "--mode", "overlay", "--json", status=125
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["exit_code"], one["stdout"]) for one in told[:5]] == [
        (0, ""),
        (0, "snapshot s"),
        (0, ""),
        (0, "restored s"),
        (0, "1\n"),
    ]
    assert told[5]["exit_code"] == 125


# At a terminal


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_at_the_prompt_of_a_terminal(project: Path) -> None:
    done = typed(
        "x=1; cd /tmp; echo one > /workspace/n",
        "%snapshot s",
        "x=2; rm /workspace/n",
        "%restore s",
        'echo "<$x $PWD $(cat /workspace/n)>"',
        "%commit",
        "n",
        "%commit",
        "y",
        "cat",
        "%help",  # a program has the terminal, and gets it
        "\x03",
        "exit 5",
    )
    assert done.returncode == 5, done.stdout
    for part in ("snapshot s", "restored s", "<1 /tmp one>", "nothing was done", "1 change written"):
        assert part in done.stdout
    assert "this list" not in done.stdout
    assert (project / "n").read_text() == "one\n"
    # It looks like a command of the shell: the prompt before it, its output on the next line, and no more.
    assert "builtin" not in done.stdout
    assert "$ %snapshot s\nsnapshot s\n" in done.stdout.replace("\r", "")
    assert "is a copy: changes end with the shell" in done.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "is read-only"),
        (("--mode", "bind"), "is written directly"),
        (("--network", "open"), "network: open"),
    ],
)
def test_a_shell_on_a_terminal_says_what_may_be_changed(options: tuple[str, ...], told: str) -> None:
    done = typed("exit", words=options)
    assert told in done.stdout


def test_a_label_is_not_taken_for_a_file() -> None:
    done = shell("%snapshot /tmp/base\necho on\n", "--mode", "overlay")
    assert "is no label" in done.stderr
    assert done.stdout == "on\n"


@pytest.mark.same_for_everyone
def test_only_text_and_enter_make_a_line() -> None:
    def lines(keys: bytes) -> list[str]:
        line = TypedLine()
        return [found for at in range(len(keys)) if (found := line.add(keys[at : at + 1])) is not None]

    assert lines(b"%helq\x7fp\r%a\x15%b\r\x1b[A\r%c\r%d\t\r\r") == ["%help", "%b", "%c", ""]
    assert lines(b"\x1b[200~%commit\r") == []  # pasted


@pytest.mark.same_for_everyone
def test_what_is_a_command() -> None:
    assert all(is_command(f"%{name} x") and f"%{name}" in HELP for name in NAMES)
    assert not any(map(is_command, ("", "%", "%1", "% help", " %help", "help", "%helps")))


@pytest.mark.same_for_everyone
def test_input_is_split_wherever_it_was_cut() -> None:
    data = b"a\n%help\nb%help\n%snapsh\n%diff x"
    whole: list[tuple[bytes, str | None]] = []
    lines = InputLines()
    for at in range(len(data) + 1):
        lines._data += data[at : at + 1]
        lines.is_over = at == len(data)
        while (found := lines.next()) != (b"", None):
            whole.append(found)
    given = b"".join(part for part, _ in whole)
    assert given == b"a\nb%help\n%snapsh\n"
    assert [command for _, command in whole if command] == ["%help", "%diff x"]


# A state that comes back


STATE = "v=7; g() { echo gg; }; alias k='echo kk'; cd /tmp; umask 027"
ASK = 'echo "$v $PWD"; g; alias k; umask; ls -A /tmp\n'
ANSWER = "7 /tmp\ngg\nalias k='echo kk'\n0027\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_script_is_run_and_its_end_saved_and_continued(project: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "moment")
    done = staddle("snapshot", "-c", f"{STATE}; echo new > /workspace/f; echo said", "--save", file)
    assert (done.returncode, done.stdout) == (0, "said\n"), done.stderr
    assert os.listdir(project) == ["a"]
    found = shell("cat /workspace/f; " + ASK, "--load", file).stdout
    assert found.startswith("new\n" + ANSWER)
    assert shell("ls /workspace\n%reset\necho ${v-none}\n", "--load", file).stdout.endswith("none\n")
    failed = staddle("snapshot", "-c", "exit 6", "--save", str(tmp_path / "no"))
    assert failed.returncode == 6
    assert not (tmp_path / "no").exists()
    assert "--save" in staddle("snapshot", "-c", "true").stderr
    assert "contradict" in staddle("shell", "--load", file, "--mode", "bind", input="").stderr


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_kept_sandbox_remembers_the_shell_of_a_person(project: Path, name: str) -> None:
    keep = ("--keep", name)
    shell(f"{STATE}\nexit 3\n", *keep, status=3)
    assert shell(ASK, *keep).stdout.startswith(ANSWER)
    assert shell("echo $TERM/$-\n", *keep).stdout == shell("echo $TERM/$-\n").stdout
    there = typed('v=8; echo "<$(g)>"', "exit", words=keep)
    assert "<gg>" in there.stdout, there.stdout
    assert shell("echo $v\n", *keep).stdout == "8\n"
    told = staddle("diff", name, "--all", "--names").stdout
    assert ".staddle" not in told  # nothing of ours stays in it
