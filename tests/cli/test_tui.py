"""`staddle tui` on a real terminal: what reaches it, keys, sizes, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from staddle.cli import tui
from staddle.errors import ExtraMissing
from tests.cli.test_agent_session import Desk
from tests.support.pty_screen import PtyScreen
from tests.support.staddle_command import COMMAND, environment, staddle
from tests.support.waiting import unique_seconds, until, with_argument

pytestmark = pytest.mark.same_for_everyone
PROMPT = "/workspace$"
#: What a program could make a terminal do: set the clipboard and the title, query, paint, print, type back.
ATTACKS = (
    b"\x1b]52;c;c3RhZGRsZQ==\x07",
    b"\x1b]52;c;c3RhZGRsZQ==\x1b\\",
    b"\x1b]0;a title\x07",
    b"\x1b]2;a title\x1b\\",
    b"\x1b]8;;http://evil.example\x07link\x1b]8;;\x07",
    b"\x1b]9;a message\x07",
    b"\x1b]1337;SetUserVar=x=eA==\x07",
    b"\x1bP$qm\x1b\\",
    b"\x1bPq#0;2;0;0;0#0~~\x1b\\",
    b"\x1b_Gi=1,a=q;AAAA\x1b\\",
    b"\x1b^pm\x1b\\",
    b"\x1b[21t",
    b"\x1b[5i",
    b"\x1b[c",
    b"\x1b[6n",
    b"\x1b[?2004l",
    b"\x1b[?1006l",
    b"\x1b[>5u",
    b"\x1b[99999999;99999999H",
    b"\x1b[" + b"9;" * 1000 + b"m",
    b"\x9b21t",
    b"\xc2\x9d52;c;c3RhZGRsZQ==\xc2\x9c",
    b"\x1b[201~",
    b"\xe2\x80\xae",
)

Start = Callable[..., PtyScreen]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


@pytest.fixture
def start(work: Path) -> Iterator[Start]:
    """Start `staddle ...` on a terminal in a directory; it has ended after the test."""
    made: list[PtyScreen] = []

    def begin(*words: str, **options: int) -> PtyScreen:
        env = {**environment(), "TERM": "xterm-256color", "COLORTERM": ""}
        # As from a shell, which stays: who leads a session takes the terminal with it when it ends.
        script = '"$@"; status=$?; [ -z "$STAYS" ] || read line; exit $status'
        argv = ["sh", "-c", script, "sh", *COMMAND, *words]
        made.append(PtyScreen(argv, env, str(work), **options))
        return made[-1]

    yield begin
    for screen in made:
        screen.close()


@pytest.mark.slow
def test_nothing_that_acts_on_a_terminal_gets_through(start: Start, work: Path) -> None:
    (work / "evil").write_bytes(b"\r\nfirst\r\n" + b"".join(ATTACKS) + b"\r\n\x1b[0mlast\r\n")
    (work / "\x1b]0;a name\x07").write_text("")
    plain = start("shell")
    plain.until(PROMPT)
    plain.type(b"cat evil; ls --show-control-chars -N; printf 'do%s\\n' ne-here\r")
    plain.until("done-here")
    assert [attack for attack in ATTACKS if attack not in plain.raw] == []  # the control: these are passed on
    assert b"\x1b]0;a name\x07" in plain.raw
    plain.close()

    screen = start("tui", "--no-ask")
    screen.until(PROMPT)
    screen.type(b"cat evil; ls --show-control-chars -N; printf 'do%s\\n' ne-here\r")
    screen.until("done-here")
    screen.type(b"\x15touch $(printf 'n\\033]52;c;AA\\007')\r")
    screen.until("A n\\x1b]52;c;AA\\x07")
    ours = {b"\x1b[?2004l", b"\x1b[?1006l"}  # textual sets and resets these itself
    assert [attack for attack in ATTACKS if attack in screen.raw and attack not in ours] == []
    assert set(re.findall(rb"\x1b\](\d+)", screen.raw)) <= {b"22"}  # the shape of the mouse pointer
    assert not re.search(rb"\x1b[P_^X]|\x1b\[[\d;]*[tin]", screen.raw.replace(b"\x1b[?2026$p", b""))
    screen.type(b"\x1b[21~")  # F10
    screen.until("Leave?")
    screen.type(b"y")
    assert screen.ended() == 0


@pytest.mark.slow
def test_keys_sizes_and_the_end(start: Start, work: Path) -> None:
    seconds = unique_seconds()
    screen = start("tui", "--no-ask", "--network", "deny", rows=30, cols=110)
    screen.until(PROMPT, "no changes")
    screen.type(b"stty size; echo $TERM\r")
    screen.until("29 65", "xterm-256color")
    screen.resize(24, 80)
    screen.type(b"until [ \"$(stty size)\" = '23 80' ]; do sleep 0.1; done; echo re''sized\r")
    screen.until("resized")
    screen.type(f"sleep {seconds}\r".encode())
    assert until(lambda: with_argument(seconds))
    screen.type(b"\x03")  # is the agent's
    assert until(lambda: not with_argument(seconds))
    at_prompt(screen)
    screen.type(b"echo ex''it $?\r")
    screen.until("exit 130")
    # It asks the terminal nothing: an answer that comes while it inserts would be taken for Esc and commands.
    screen.type(b"vi -u NONE -N --cmd 'set showmode t_RV= t_u7=' file\r")
    screen.until("[New")
    screen.type(b"i")
    screen.until("-- INSERT --")
    screen.type(b"written in vi")
    screen.until("written in vi")
    screen.type(b"\x1b")
    assert until(lambda: "-- INSERT --" not in screen.text())
    screen.type(b":wq\r")
    at_prompt(screen)  # until it has ended, vi reads what is typed
    screen.type(b"cat file | tr a-z A-Z\r")
    screen.until("WRITTEN IN VI")
    screen.type(b"\x1bOR")  # F3
    screen.until("A file")
    screen.type(b"q")
    screen.until("Leave?", "1 uncommitted change")
    screen.type(b"y")
    assert screen.ended() == 0
    assert screen.modes_now() == screen.modes
    assert not screen._emulator.is_alternate
    assert list(work.iterdir()) == []


def at_prompt(screen: PtyScreen) -> None:
    """Wait until the shell reads a line, on a terminal that shows nothing beside it."""
    assert until(lambda: re.search(rf"{re.escape(PROMPT)} *$", screen.text(), re.MULTILINE)), screen.text()


@pytest.mark.slow
def test_on_leaving_uncommitted_changes_can_be_kept_under_a_name(
    start: Start, work: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    (work / "file").write_text("one\n")
    screen = start("tui", "--no-ask")
    screen.until(PROMPT)
    screen.type(b"echo two >> file; mkdir d; cd d; echo do''ne\r")
    screen.until("done", "M file")
    screen.type(b"\x1b[21~")  # F10
    screen.until("2 uncommitted changes will be lost", "Keep as")
    screen.type(b"k")
    screen.until("a name to keep the changes under")
    screen.type(b"mine\r")
    assert screen.ended() == 0
    screen.until("kept: staddle diff mine")
    env = {**environment(), "XDG_STATE_HOME": str(state)}
    assert (
        staddle("diff", "mine", "--names", cwd=work, env=env).stdout == "A /workspace/d/\nM /workspace/file\n"
    )
    done = staddle("run", "--keep", "mine", "--", "cat", "/workspace/file", cwd=work, env=env)
    assert done.stdout == "one\ntwo\n"
    assert (work / "file").read_text() == "one\n"
    assert staddle("rm", "--force", "mine", env=env).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_kill_leaves_the_terminal_sane_and_kept_work_whole(
    start: Start, work: Path, state: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setenv("STAYS", "1")
    screen = start("tui", "--keep", "mine", "--no-ask")
    screen.until(PROMPT)
    screen.type(b"echo precious > file; echo do''ne\r")
    screen.until("done", "A file")
    os.kill(int(Path(f"/proc/{screen.process.pid}/task/{screen.process.pid}/children").read_text()), number)

    def is_sane() -> bool:
        screen.text()
        emulator = screen._emulator
        is_usual = emulator.shows_cursor and not (emulator.is_alternate or emulator.mouse)
        return is_usual and not emulator.wants_bracketed_paste and screen.modes_now() == screen.modes

    assert until(is_sane)
    screen.type(b"\r")
    assert screen.ended() == 128 + number
    done = staddle("diff", "mine", cwd=work, env={**environment(), "XDG_STATE_HOME": str(state)})
    assert "precious" in done.stdout
    assert (
        staddle("rm", "--force", "mine", env={**environment(), "XDG_STATE_HOME": str(state)}).returncode == 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP])
def test_when_it_continues_after_a_stop_it_draws_again_and_reads_every_key(start: Start, number: int) -> None:
    screen = start("tui", "--no-ask")
    screen.until(PROMPT, "no changes")
    (pid,) = map(
        int, Path(f"/proc/{screen.process.pid}/task/{screen.process.pid}/children").read_text().split()
    )
    for word in ("once", "twice"):
        os.kill(pid, number)
        assert until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        termios.tcsetattr(screen._follower, termios.TCSANOW, screen.modes)  # as a shell with job control does
        os.write(screen._follower, b"\x1b[?1049l\x1b[2J\x1b[H[1]+ Stopped\r\n$ fg\r\n")
        assert until(lambda: "no changes" not in screen.text())
        os.kill(pid, signal.SIGCONT)
        screen.until(PROMPT, "no changes")
        assert screen._emulator.is_alternate
        screen.type(f"echo all of these keys are read {word} | tr a-z A-Z\r".encode())
        screen.until(f"ALL OF THESE KEYS ARE READ {word.upper()}")
    screen.type(b"\x1b[21~")  # F10
    assert screen.ended() == 0
    assert screen.modes_now() == screen.modes


def log_of(screen: PtyScreen) -> str:
    """The log, in the columns on the right, without times and line ends."""
    text = "".join(line[72:].ljust(48)[9:-2] for line in screen.text().splitlines())
    return re.sub(" +", " ", text)


@pytest.mark.slow
def test_an_agent_runs_beside_its_changes_and_its_state_comes_back(tmp_path: Path, state: Path) -> None:
    desk = Desk(tmp_path, state)
    seconds = unique_seconds()
    screen = desk.at_a_terminal("tui", "deep", "--", "claude", "hello")
    try:
        screen.until("agent>", "words: --permission-mode", "hello")
        screen.type("""pwd; echo two >> ../README; echo '{"userID": "u"}' > ~/.claude.json\r""")
        screen.until("app/deep", "M README", "running")
        screen.type("echo n > ../n; git add ../n; git commit -qm of-the-agent\r")
        screen.until("2 changes: 1 added, 1 modified", "A n")
        assert ".git" not in screen.text()
        screen.type(b"\x1b[20~")  # F9
        screen.until("Commit 2 changes to", "+two")
        screen.type(b"nc")  # nothing is chosen, so nothing is written
        screen.until("nothing is chosen")
        screen.type(b"\x1b")
        screen.until("agent>")
        assert "committed" in desk.run("commit", "claude-app", "--yes", "README")  # from another terminal
        screen.until("1 change: 1 added")
        screen.type(f"python3 -m http.server 4321 & exec sleep {seconds}\r")
        assert until(lambda: "a server inside is at http://127.0.0.1:" in log_of(screen)), screen.text()
        assert "your home and keys are not there" in log_of(screen)
        screen.type(b"\x1a")  # does not leave it stopped
        assert until(lambda: screen.type(b"\x03") or not with_argument(seconds))
        screen.until("Claude Code has ended; Enter starts a shell")
        screen.type(b"\r")
        screen.until("app$")
        screen.type(b"\x1bOS")  # F4
        screen.until("no snapshots; s takes one")
        screen.type(b"s")
        screen.until("a label for the snapshot")
        screen.type(b"before\r")
        screen.until("1 snapshot", "before")
        screen.type(b"\x1b[20~")  # F9
        screen.until("Commit 1 change to")
        screen.type(b"c")
        assert until((desk.project / "n").exists)
        screen.type(b"\x1b[21~")  # F10 asks nothing: it is kept
        assert screen.ended() == 0
        screen.until("staddle: 0 files changed, 1 git commit; kept: staddle review claude-app")
    finally:
        screen.close()
    assert json.loads((desk.home / ".claude.json").read_text()) == {"userID": "u"}
    assert (desk.project / "README").read_text() == "one\ntwo\n"
    assert "of-the-agent" not in desk.git("log", "--format=%s")
    assert "--continue" in desk.run("claude", "--continue", "do:true")


@pytest.mark.slow
def test_an_agent_s_connections_wait_for_an_answer_in_the_network_pane(tmp_path: Path, state: Path) -> None:
    desk = Desk(tmp_path, state)
    screen = desk.at_a_terminal("tui", "--", "claude")
    try:
        screen.until("agent>")
        screen.type("curl -sS -m 90 http://192.0.2.1/ 2>&1 | tr a-z A-Z\r")
        screen.until("192.0.2.1:80 waits for an answer", "ask (")
    finally:
        screen.close()


def test_without_a_terminal_without_textual_and_with_wrong_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, said in (
        ((), "needs a terminal"),
        (("a", "b"), "takes one directory"),
        (("--ask", "--no-ask"), "contradict"),
        (("--continue",), "is for an agent"),
    ):
        done = staddle("tui", *words)
        assert done.returncode == 125
        assert said in done.stderr
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ExtraMissing, match=r"pip install 'staddle\[tui\]'"):
        tui._require_textual()


@pytest.mark.slow
def test_colours_can_be_switched_off(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = start("tui", "--no-ask")
    screen.until(PROMPT, "no changes")
    colours = set(re.findall(rb"[34]8;2;(\d+);(\d+);(\d+)", screen.raw))
    assert all(red == green == blue for red, green, blue in colours)
