"""`staddle run`: the work is done, the status is the command's, and everything else is a sentence."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import staddle as staddle_package
from staddle.cli.report import say_violations
from staddle.events import Event
from tests.support.in_a_child import captured
from tests.support.kept_sandboxes import Run
from tests.support.staddle_command import COMMAND, environment, is_one_error, staddle


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("status", [0, 1, 2, 3, 4, 42, 124, 125, 126, 127, 255])
def test_the_exit_status_is_the_commands(status: int, tmp_path: Path) -> None:
    assert staddle("run", "--", "sh", "-c", f"exit {status}", cwd=tmp_path).returncode == status


@pytest.mark.same_for_everyone
def test_a_signal_is_128_and_its_number(tmp_path: Path) -> None:
    assert staddle("run", "--", "sh", "-c", "kill -TERM $$", cwd=tmp_path).returncode == 128 + 15


@pytest.mark.same_for_everyone
def test_streams_pass_through(tmp_path: Path) -> None:
    done = staddle("run", "--", "sh", "-c", "cat; echo to-stderr >&2", input="from stdin\n", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("from stdin\n", "to-stderr\n")


@pytest.mark.parametrize("backend", ["namespaces", "bwrap", "landlock"])
def test_streams_can_be_opened_by_name(backend: str, tmp_path: Path) -> None:
    script = "echo out > /dev/stdout; echo err > /dev/stderr; cat /dev/stdin"
    done = staddle("run", "--backend", backend, "-c", script, input="in\n", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("out\nin\n", "err\n")
    done = staddle(
        "run", "--backend", backend, "--output-cap", "1K", "-c", script, input="in\n", cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("out\nin\n", "err\n")


def test_a_run_loads_few_modules(tmp_path: Path) -> None:
    src = str(Path(staddle_package.__file__).parents[1])
    code = f"import sys; sys.path.append({src!r}); from staddle.cli import main; main(['run', '--', 'true'])"
    words = [sys.executable, "-I", "-S", "-X", "importtime", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=True)
    lines = [line.split("|") for line in done.stderr.splitlines()]
    loaded = {line[2].strip() for line in lines if len(line) == 3}
    assert "staddle.inside.namespace_init" in loaded
    ours = {name for name in loaded if name.startswith("staddle")}
    assert len(ours) <= 90, sorted(ours)
    # Each costs milliseconds: `tests/unit/test_imports.py` names more.
    assert not loaded & {"threading", "functools", "collections", "re", "signal", "staddle.limits.usage"}


@pytest.mark.same_for_everyone
def test_any_bytes_pass_through(tmp_path: Path) -> None:
    data = bytes(range(256)) * 300
    done = staddle("run", "--", "cat", input=data, text=False, cwd=tmp_path)
    assert done.stdout == data  # type: ignore[comparison-overlap]


@pytest.mark.same_for_everyone
def test_the_commands_flags_are_untouched(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x\ny\nx\n")
    assert staddle("run", "--", "grep", "-c", "x", "f", cwd=tmp_path).stdout == "2\n"
    assert (
        staddle("run", "--", "echo", "--read", "--", "-h", "--json", cwd=tmp_path).stdout
        == "--read -- -h --json\n"
    )


@pytest.mark.same_for_everyone
def test_arguments_arrive_byte_for_byte(tmp_path: Path) -> None:
    odd = ["", " ", "a b", "'", '"', "$HOME", "%h", "a\nb", "\\", "é", "--", b"\xff\xfe"]
    done = staddle("run", "--", "printf", r"[%s]\n", *odd, text=False, cwd=tmp_path)
    expected = b"".join(b"[" + os.fsencode(word) + b"]\n" for word in odd)
    assert done.stdout == expected  # type: ignore[comparison-overlap]


@pytest.mark.same_for_everyone
def test_a_line_of_shell_with_arguments(tmp_path: Path) -> None:
    assert (
        staddle("run", "-c", 'echo "$#: $1"; [[ x == x ]]', "one", "two", cwd=tmp_path).stdout == "2: one\n"
    )


def test_a_script_file(tmp_path: Path) -> None:
    script = tmp_path / "a script.sh"
    script.write_text('echo "run with $1 and $2"\n')
    assert staddle("run", str(script), "-c", "--json", cwd=tmp_path).stdout == "run with -c and --json\n"
    script.write_text("#!/usr/bin/env python3\nimport sys\nprint(sys.argv[1:])\n")
    script.chmod(0o755)
    assert staddle("run", str(script), "x", cwd=tmp_path).stdout == "['x']\n"


def test_the_current_directory_is_readable_and_not_writable(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("content\n")
    assert staddle("run", "--", "cat", "here", cwd=tmp_path).stdout == "content\n"
    done = staddle("run", "--", "sh", "-c", "echo x > new; echo y > here; rm here; mkdir d", cwd=tmp_path)
    assert done.returncode != 0
    assert [p.name for p in tmp_path.iterdir()] == ["here"]
    assert (tmp_path / "here").read_text() == "content\n"


@pytest.mark.parametrize("place", ["/", "/tmp", "/proc"])
def test_standing_where_nothing_can_be_granted_is_no_error(place: str) -> None:
    assert staddle("run", "--", "echo", "ran", cwd=place).stdout == "ran\n"
    assert staddle("run", "--workspace", place, "--", "true", cwd="/usr").returncode == 125


def test_write_says_where(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = staddle(
        "run", "--write", "out", "--", "sh", "-c", "echo x > out/new && echo y > other", cwd=tmp_path
    )
    assert done.returncode != 0
    assert (tmp_path / "out/new").read_text() == "x\n"
    assert (tmp_path / "out/new").stat().st_uid == os.geteuid()
    assert not (tmp_path / "other").exists()


@pytest.mark.same_for_everyone
@pytest.mark.parametrize(
    "name",
    [
        "with space",
        "quote'",
        'double"',
        "colon:",
        "comma,",
        "new\nline",
        "é",
        "$HOME",
        "%s",
        "back\\slash",
        "-dash",
    ],
)
def test_directories_of_any_name(name: str, tmp_path: Path) -> None:
    place = tmp_path / name
    (place / "out").mkdir(parents=True)
    done = staddle("run", "--write", "out", "--", "sh", "-c", "pwd; echo ok > out/f", cwd=place)
    assert (done.returncode, done.stdout) == (0, f"{place}\n"), done.stderr
    assert (place / "out/f").read_text() == "ok\n"


def test_a_directory_that_is_not_utf8(tmp_path: Path) -> None:
    place = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(place)
    done = staddle("run", "--mode", "bind", "--", "sh", "-c", "echo ok > f", cwd=place)
    assert done.returncode == 0, done.stderr
    with open(place + b"/f", "rb") as file:
        assert file.read() == b"ok\n"


def test_the_environment_is_built_from_nothing(tmp_path: Path) -> None:
    from tests.support.staddle_command import environment

    env = {**environment(), "SECRET_TOKEN": "hunter2", "PASSED": "yes", "LD_PRELOAD_X": "1"}
    done = staddle("run", "--env", "A=1 2", "--pass-env", "PASSED", "--", "env", "-0", cwd=tmp_path, env=env)
    inside = dict(item.split("=", 1) for item in done.stdout.split("\0") if item)
    assert inside["A"] == "1 2"
    assert inside["PASSED"] == "yes"
    assert "hunter2" not in done.stdout
    assert set(inside) <= {
        "A",
        "PASSED",
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LC_ALL",
        "HOSTNAME",
        "STADDLE_SANDBOX",
        "TMPDIR",
        "TERM",
        "PWD",
        "SHLVL",
    }


def test_a_timeout_is_124_and_says_so(tmp_path: Path) -> None:
    done = staddle("run", "--timeout", "2", "--", "sh", "-c", "echo before; sleep 60", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (124, "before\n")
    assert "--timeout" in done.stderr


@pytest.mark.same_for_everyone
def test_the_output_cap_drops_and_counts(tmp_path: Path) -> None:
    done = staddle(
        "run", "--output-cap", "1K", "--", "sh", "-c", "head -c 5000 /dev/zero | tr '\\0' x", cwd=tmp_path
    )
    assert done.stdout == "x" * 1024
    assert "3976 bytes of standard output were dropped" in done.stderr


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_json_carries_everything(tmp_path: Path) -> None:
    done = staddle("run", "--json", "-c", "echo out; echo err >&2; exit 3", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert done.returncode == 3
    assert (report["exit_code"], report["stdout"], report["stderr"]) == (3, "out\n", "err\n")
    assert report["backend"]
    assert report["violations"] == []
    timed = json.loads(staddle("run", "--json", "--timeout", "0.3", "--", "sleep", "60", cwd=tmp_path).stdout)
    assert (timed["exit_code"], timed["reason"]) == (124, "timeout")


@pytest.mark.same_for_everyone
def test_json_carries_refusals_too(tmp_path: Path) -> None:
    done = staddle("run", "--json", "--read", "/no/such", "--", "true", cwd=tmp_path)
    assert done.returncode == 125
    assert json.loads(done.stdout)["error"]["what"]


def test_a_hidden_program_says_that_it_is_hidden(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "ws").mkdir()
    elsewhere.mkdir()
    (elsewhere / "tool").write_text("#!/bin/sh\n")
    (elsewhere / "tool").chmod(0o755)
    done = staddle("run", "--", str(elsewhere / "tool"), cwd=tmp_path / "ws")
    assert done.returncode == 127
    assert "--read" in done.stderr


def test_new_protected_names_are_reported(tmp_path: Path) -> None:
    done = staddle(
        "run", "--mode", "bind", "--", "sh", "-c", "git init -q nested 2>&1; echo ok", cwd=tmp_path
    )
    assert done.stdout.endswith("ok\n")
    assert "nested/.git" in done.stderr
    assert "protected name appeared" in done.stderr


REFUSED = [
    [],
    ["--"],
    ["--read"],
    ["--read", "", "--", "true"],
    ["--read", "/", "--", "true"],
    ["--write", "/", "--", "true"],
    ["--read", "../x", "--", "true"],
    ["--read", "/nowhere/at/all", "--", "true"],
    ["--write", "/proc", "--", "true"],
    ["--read", "x" * 5000, "--", "true"],
    ["--read", "~nobody/x", "--", "true"],
    ["--backend", "docker", "--", "true"],
    ["--network", "sometimes", "--", "true"],
    ["--allow", "*", "--", "true"],
    ["--allow", "exa mple.com", "--", "true"],
    ["--allow", "127.1", "--", "true"],
    ["--network", "open", "--allow", "example.com", "--", "true"],
    ["--timeout", "0", "--", "true"],
    ["--timeout", "-1", "--", "true"],
    ["--timeout", "nan", "--", "true"],
    ["--timeout", "soon", "--", "true"],
    ["--memory", "lots", "--", "true"],
    ["--memory", "0", "--", "true"],
    ["--output-cap", "1Q", "--", "true"],
    ["--env", "novalue", "--", "true"],
    ["--env", "=x", "--", "true"],
    ["--workspace", "/nowhere", "--", "true"],
    ["--mode", "sideways", "--", "true"],
    ["--policy", "/nowhere.toml", "--", "true"],
    ["--unknown", "--", "true"],
    ["true"],
]


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("words", REFUSED, ids=lambda words: " ".join(words)[:40] or "nothing")
def test_bad_input_is_an_error_and_125(words: list[str], tmp_path: Path) -> None:
    done = staddle("run", *words, cwd=tmp_path)
    assert done.returncode == 125, done
    assert done.stdout == ""
    assert done.stderr.startswith("staddle: ")
    assert is_one_error(done.stderr)
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr


def test_what_cannot_be_held_is_refused_and_best_effort_says_so(tmp_path: Path) -> None:
    done = staddle("run", "--disk", "100M", "--", "true", cwd=tmp_path)
    assert done.returncode == 125
    assert "disk" in done.stderr
    done = staddle("run", "--disk", "100M", "--best-effort", "--", "echo", "ran", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "not enforced" in done.stderr


def test_a_policy_file_in_the_workspace_cannot_widen_it(tmp_path: Path) -> None:
    (tmp_path / "staddle.toml").write_text('preset = "agent"\nread = ["/root"]\n')
    done = staddle("run", "--policy", "staddle.toml", "--", "true", cwd=tmp_path)
    assert done.returncode == 125
    assert "workspace" in done.stderr


@pytest.mark.same_for_everyone
def test_help_teaches(tmp_path: Path) -> None:
    for words in (["--help"], ["run", "--help"], ["explain", "--help"], ["doctor", "--help"]):
        done = staddle(*words, cwd=tmp_path)
        assert done.returncode == 0
        assert "usage:" in done.stdout
    assert staddle(cwd=tmp_path).returncode == 125
    assert staddle("frobnicate", cwd=tmp_path).returncode == 125


@pytest.mark.same_for_everyone
@pytest.mark.same_for_everyone
def test_output_that_nobody_reads_on_is_no_failure_of_ours() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*COMMAND, "doctor"], env=environment(), stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_change_nothing_else(closed: str, tmp_path: Path) -> None:
    words = " ".join(map(shlex.quote, [*COMMAND, "run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]))
    done = captured(["sh", "-c", f"{words} {closed}"], env=environment(), cwd=tmp_path)
    assert done.returncode == 7
    assert done.stdout == ("" if ">&-" in closed.replace("2>&-", "") else "out\n")
    assert done.stderr == ("" if "2>&-" in closed else "err\n")


@pytest.mark.same_for_everyone
def test_what_belongs_to_a_shell_is_said_to(tmp_path: Path) -> None:
    for words in (["ls -la"], ["cd", "/"]):
        done = staddle("run", "--", *words, cwd=tmp_path)
        assert done.returncode == 127
        assert f"staddle run -c {words[0]!r}" in done.stderr
    assert staddle("help", "run").stdout == staddle("run", "--help").stdout


@pytest.mark.slow
@pytest.mark.same_for_everyone
@pytest.mark.parametrize("options", [(), ("--mode", "overlay")])
@pytest.mark.parametrize("start", ["", "#!/bin/sh -e\n", "#!/usr/bin/env -S bash -e\n"])
def test_command_rules_are_applied_to_a_script_file(
    tmp_path: Path, options: tuple[str, ...], start: str
) -> None:
    policy, project = tmp_path / "policy.toml", tmp_path / "project"
    policy.write_text('[rules]\ndeny = ["git push"]\n')
    project.mkdir()
    script = project / "publish"
    script.write_text(f"{start}cd / && git push\n")
    script.chmod(0o755)
    run = ("run", "--policy", str(policy), *options)
    done = staddle(*run, "publish", cwd=project)
    assert done.returncode == 125
    assert "'git push' should not be run here" in done.stderr
    script.write_text(f"{start}echo git push\n")
    assert staddle(*run, "publish", cwd=project).stdout == "git push\n"
    script.write_text("#!/usr/bin/env python3\nprint(1); ('git push')\n")  # another language is not read
    assert staddle(*run, "publish", cwd=project).stdout == "1\n"


@pytest.mark.same_for_everyone
def test_nothing_is_kept_for_a_command_that_rules_refuse(tmp_path: Path) -> None:
    policy, project, state = tmp_path / "policy.toml", tmp_path / "project", tmp_path / "state"
    policy.write_text('[rules]\ndeny = ["git push"]\n')
    project.mkdir()
    env = environment() | {"XDG_STATE_HOME": str(state)}
    run = ("run", "--policy", str(policy), "--keep", "work")
    done = staddle(*run, "-c", "git push", cwd=project, env=env)
    assert done.returncode == 125
    assert "'git push' should not be run here" in done.stderr
    assert not state.exists()


# ---------------------------------------------------------------- limits


HOG = "import time\na = bytearray(150 << 20)\ntime.sleep(20)"
BOMB = "import os, time\nfor _ in range(100):\n    if not os.fork(): time.sleep(20); os._exit(0)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "program", "status", "reason", "said"),
    [
        ("--memory=64M", HOG, 137, "memory", "64 MiB of memory (limits.memory)"),
        ("--processes=20", BOMB, 1, "processes", "there were 20 (limits.processes)"),
        ("--timeout=1", "import time; time.sleep(20)", 124, "timeout", "--timeout gives it more"),
    ],
    ids=["memory", "processes", "timeout"],
)
def test_a_command_that_ran_into_a_limit_is_told_so(
    option: str, program: str, status: int, reason: str, said: str
) -> None:
    words = (option, "--backend=namespaces", "--", "python3", "-c", program)
    done = staddle("run", *words)
    assert (done.returncode, said in done.stderr) == (status, True)
    told = json.loads(staddle("run", "--json", *words).stdout)
    assert (told["exit_code"], told["reason"]) == (status, reason)
    assert f"limits.{reason}" in told["why"]


@pytest.mark.slow
def test_a_command_in_a_kept_sandbox_is_told_so(command: Run) -> None:
    done = command("run", "--keep=limited", "--memory=64M", "--", "python3", "-c", HOG, status=137)
    assert "64 MiB of memory (limits.memory)" in done.stderr


def test_what_holds_each_limit_is_told() -> None:
    told = json.loads(staddle("run", "--json", "--memory=64M", "--", "true").stdout)
    assert (told["reason"], told["why"]) == ("exited", "")
    assert "memory" in [item["limit"] for item in told["enforced"]["limits"]]


# ---------------------------------------------------------------- the network


TWICE = (
    "getent hosts evil.example; getent hosts evil.example; (echo > /dev/tcp/192.0.2.8/80) 2>/dev/null; exit 4"
)


@pytest.mark.same_for_everyone
def test_each_refused_destination_is_one_line(tmp_path: Path) -> None:
    done = staddle("run", "--allow", "allowed.example:443", "-c", TWICE, cwd=tmp_path)
    assert done.returncode == 4
    assert sorted(done.stderr.splitlines()) == [
        "staddle: 192.0.2.8:80 was refused: no entry allows it; --allow 192.0.2.8:80",
        "staddle: evil.example was refused: no entry allows it; --allow evil.example",
    ]


@pytest.mark.same_for_everyone
def test_json_has_them_as_events(tmp_path: Path) -> None:
    done = staddle("run", "--json", "--allow", "allowed.example:443", "-c", TWICE, cwd=tmp_path)
    report = json.loads(done.stdout)
    assert (done.returncode, report["exit_code"], report["backend"]) == (4, 4, "namespaces")
    assert report["enforced"]["gaps"] == []
    told = {(e["kind"], e["what"], e["rule"], e["allow"]) for e in report["violations"]}
    assert told == {
        ("refused", "evil.example", "no entry allows it", "evil.example"),
        ("refused", "192.0.2.8:80", "no entry allows it", "192.0.2.8:80"),
    }


@pytest.mark.same_for_everyone
def test_what_an_entry_refuses_is_told_without_a_way_to_allow_it(tmp_path: Path) -> None:
    words = ["--allow", "*.example", "--allow", "!evil.example"]
    done = staddle("run", *words, "-c", "getent hosts evil.example", cwd=tmp_path)
    assert done.stderr == "staddle: evil.example was refused: refused by !evil.example\n"


@pytest.mark.same_for_everyone
def test_nothing_is_said_when_nothing_was_refused(tmp_path: Path) -> None:
    done = staddle("run", "--allow", "allowed.example", "-c", "getent hosts allowed.example", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.same_for_everyone
def test_what_comes_from_inside_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[31mred\nstaddle: all is well"
    say_violations((Event("refused", hostile, hostile, hostile), Event("note", hostile, hostile)))
    said = capsys.readouterr().err
    assert "red" in said
    assert "\x1b" not in said
    assert len(said.splitlines()) == 2


def test_a_backend_without_a_gateway_says_what_it_cannot_hold(tmp_path: Path) -> None:
    words = ("explain", "--backend", "landlock", "--allow", "allowed.example:443", "--", "true")
    done = staddle(*words, cwd=tmp_path)
    assert "names are resolved over TCP only" in done.stdout


@pytest.mark.parametrize("backend", ["namespaces", "bwrap"])
def test_explain_lists_what_is_made(tmp_path: Path, backend: str) -> None:
    words = ("explain", "--verbose", "--backend", backend, "--allow", "allowed.example:443", "--", "true")
    done = staddle(*words, cwd=tmp_path)
    assert "start the network gateway" in done.stdout
    assert "route to the gateway: allowed.example:443" in done.stdout


# ---------------------------------------------------------------- secrets


KEY = "sk-live-0123456789abcdef"
PRINT = "echo $SERVICE_API_KEY; echo $SERVICE_API_KEY >&2"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", KEY)


@pytest.mark.same_for_everyone
def test_run_hides_it_in_both_streams_unless_told(tmp_path: Path) -> None:
    done = staddle("run", "--pass-env", "SERVICE_API_KEY", "-c", f"{PRINT}; exit 3", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, "(hidden)\n", "(hidden)\n")
    done = staddle("run", "--pass-env", "SERVICE_API_KEY", "--no-redact", "-c", PRINT, cwd=tmp_path)
    assert (done.stdout, done.stderr) == (f"{KEY}\n", f"{KEY}\n")


@pytest.mark.same_for_everyone
def test_what_is_relayed_is_whole_and_a_reader_that_leaves_ends_it(tmp_path: Path) -> None:
    words = ("run", "--pass-env", "SERVICE_API_KEY", "--output-cap", "1M")
    done = staddle(*words, "-c", "head -c 300000 /dev/zero | tr '\\0' s; printf sk-", cwd=tmp_path)
    assert done.stdout == "s" * 300000 + "sk-"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_json_overlays_and_shells_hide_it_too(tmp_path: Path) -> None:
    passed = ("--pass-env", "SERVICE_API_KEY")
    done = staddle("run", "--json", *passed, "-c", PRINT, cwd=tmp_path)
    report = json.loads(done.stdout)
    assert (report["stdout"], report["stderr"]) == ("(hidden)\n", "(hidden)\n")
    script = "echo $SERVICE_API_KEY | tee f"
    done = staddle("run", "--mode", "overlay", "--diff", *passed, "-c", script, cwd=tmp_path)
    assert done.stdout == "(hidden)\n"
    assert "+(hidden)" in done.stderr
    assert KEY not in done.stderr
    assert staddle("shell", *passed, input=PRINT, cwd=tmp_path).stdout == "(hidden)\n"
