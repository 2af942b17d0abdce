"""`staddle NAME` with the real agents and their default options: a copy, a review, the user's own home."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle.agents.scripted_model import ScriptedModel, ToolCall
from staddle.agents.table import CODING_AGENTS
from staddle.files.remove_tree import remove
from tests.support.staddle_command import gone
from tests.support.terminal_pictures import picture
from tests.support.tmux import Tmux
from tests.support.waiting import unique_seconds, until, with_argument

from .conftest import STADDLE, Bench, Found

AGENTS = ["claude", "codex", "opencode", "gemini"]
WRITES = {
    "claude": lambda path: ToolCall("Write", file_path=path, content="mine\n"),
    "codex": lambda path: f"echo mine > {path}",  # its patch tool is not offered to an unknown model
    "opencode": lambda path: ToolCall("write", filePath=path, content="mine\n"),
    "gemini": lambda path: ToolCall("write_file", file_path=path, content="mine\n"),
}
#: Text at the prompt of Claude Code.
READY = "bypass permissions on"
SLOW = 90.0


def opened(bench: Bench, name: str, url: str, words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command line and the variables with which a user starts it: only its model is on this machine."""
    check = CODING_AGENTS[name].check
    assert check is not None
    given, variables = check(url)
    options = [word for item in variables.items() for word in ("--env", "=".join(item))]
    options += ["--allow", f"127.0.0.1:{url.rpartition(':')[2]}"]
    # Claude Code and Gemini CLI have variables for the address of their model.
    options = [] if name in ("claude", "gemini") else options
    return [*STADDLE, name, *words, *options, "--", *given], {**bench.environment, **variables}


def run(bench: Bench, name: str, script: list[str | ToolCall], *words: str) -> Found:
    """Run it without a terminal."""
    with ScriptedModel(script) as model:
        argv, variables = opened(bench, name, model.url, list(words))
        done = subprocess.run(
            argv,
            cwd=bench.project,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=240,
            check=False,
        )
        return Found(done.returncode, done.stdout, model)


@pytest.fixture
def desk(bench: Bench) -> Iterator[Bench]:
    """A project with a git repository, a key in the home, and sandboxes kept in a place of its own."""
    state = Path(tempfile.mkdtemp(prefix="staddle-kept-", dir="/var/tmp"))
    state.chmod(0o711)  # the sandboxes of root are another user's
    bench.environment["XDG_STATE_HOME"] = str(state)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@a.example"]
    (bench.project / "README").write_text("one\n")
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], cwd=bench.project, env=bench.environment, check=True)
    (bench.home / ".ssh").mkdir()
    (bench.home / ".ssh/id_ed25519").write_text("the secret of the host")
    (bench.home / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@a.example\n")
    yield bench
    remove((os.fsencode(state),))


def tree(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


@pytest.mark.row(
    "{name}", "inside", "`staddle {name}`: a command, its own file tool, a key, planted hooks, a commit"
)
@pytest.mark.parametrize("name", AGENTS)
def test_its_work_is_a_copy_until_the_review(name: str, desk: Bench) -> None:
    if name == "gemini":  # gives its git none of the user's settings
        for key, value in (("user.name", "Ada"), ("user.email", "ada@a.example")):
            subprocess.run(["git", "config", key, value], cwd=desk.project, check=True)
    before = tree(desk.project)
    plants = "echo evil | tee ~/.claude/settings.json ~/.codex/config.toml .git/hooks/post-commit"
    script = [
        f"cat ~/.ssh/id_ed25519 {desk.secret}; echo confined=$STADDLE_SANDBOX; pwd; git config user.name",
        WRITES[name](str(desk.project / "by-tool")),
        f"mkdir -p ~/.claude ~/.codex; {plants}; chmod +x .git/hooks/post-commit; echo two >> README;"
        "git add README; git commit -qm 'by the agent'; git log --oneline",
        "cat by-tool",
    ]
    found = run(desk, name, script)
    assert found.status == 0, found
    assert "confined=1" in found.results[0], found
    assert str(desk.project) in found.results[0], found
    assert "Ada" in found.results[0], found
    assert "the secret of the host" not in found.results[0], found
    assert "by the agent" in found.results[2], found
    assert "mine" in found.results[3], found
    assert tree(desk.project) == before
    assert f"2 files changed, 1 git commit; kept: staddle review {name}-project" in found.output
    for place in (".claude/settings.json", ".codex/config.toml"):
        assert not (desk.home / place).exists()
    desk.staddle("commit", f"{name}-project", "--yes", "by-tool")
    assert (desk.project / "by-tool").read_text() == "mine\n"
    assert not (desk.project / ".git/hooks/post-commit").exists()


@pytest.mark.row(
    "{name}", "inside", "`staddle {name} --continue` goes on with the conversation and the files"
)
@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
def test_tomorrow(name: str, desk: Bench) -> None:
    first = run(desk, name, ["echo marked > made; echo the first answer"])
    assert "the first answer" in first.results[0], first
    found = run(desk, name, ["unused", "cat made", "cat made"], "--continue")
    assert "the first answer" in found.results[0], found
    assert any("marked" in result for result in found.results), found


@pytest.fixture
def claude(desk: Bench) -> Iterator[tuple[Bench, ScriptedModel, list[Tmux]]]:
    """Claude Code that has been used before, for a terminal."""
    known = {"hasCompletedOnboarding": True, "theme": "dark"}
    known["customApiKeyResponses"] = {"approved": ["none-0123456789"]}
    (desk.home / ".claude.json").write_text(json.dumps(known))
    made: list[Tmux] = []
    with ScriptedModel([]) as model:
        yield desk, model, made
    for tmux in made:
        tmux("kill-server")


def started(claude: tuple[Bench, ScriptedModel, list[Tmux]], *script: str) -> Tmux:
    """Claude Code at its prompt on a terminal, with a model that asks for these commands."""
    desk, model, made = claude
    model.script[:] = ScriptedModel.of(script)
    _, variables = opened(desk, "claude", model.url, [])
    tmux = Tmux(desk.home.parent, [*STADDLE, "claude"], variables, str(desk.project))
    made.append(tmux)
    tmux.until(READY, patience=SLOW)
    return tmux


@pytest.mark.row(
    "claude", "inside", "in tmux: a prompt, Ctrl-Z and fg, the review, a commit with its git commit"
)
def test_on_a_terminal(claude: tuple[Bench, ScriptedModel, list[Tmux]]) -> None:
    desk, model, made = claude
    model.script[:] = ScriptedModel.of(
        ["echo two >> README; git commit -qam 'by the agent'; echo plain > plain"]
    )
    _, variables = opened(desk, "claude", model.url, [])
    tmux = Tmux(desk.home.parent, ["env", "PS1=host$ ", "bash", "--norc", "-i"], variables, str(desk.project))
    made.append(tmux)
    tmux.until("host$")
    tmux.keys(f"{' '.join(STADDLE)} claude", "Enter")
    tmux.until(READY, patience=SLOW)
    tmux.keys("go", "Enter")
    tmux.until("done")
    tmux.keys("C-z")
    tmux.until("Stopped")
    tmux.keys("echo on the host; fg", "Enter")
    tmux.until(READY)
    tmux("resize-window", "-x", "100", "-y", "30")
    tmux.until(READY)
    tmux.keys("C-c", "C-c")
    tmux.until("2 files changed, 1 git commit", "discard:", patience=SLOW)
    assert (desk.project / "README").read_text() == "one\n"
    tmux.keys("c", "Enter")
    tmux.until("1 git commit added to your branch")
    if pictures := os.environ.get("STADDLE_AGENTS_PICTURES"):
        seen = tmux("capture-pane", "-e", "-p", "-J").replace(" ".join(STADDLE), "staddle")
        seen = seen.replace(str(desk.project), "/home/user/project")
        Path(pictures, "terminal-agent.svg").write_text(picture("staddle claude", seen))
    assert (desk.project / "README").read_text() == "one\ntwo\n"
    told = ["git", "log", "-1", "--format=%an %s"]
    said = subprocess.run(
        told, cwd=desk.project, env=desk.environment, capture_output=True, text=True, check=True
    )
    assert said.stdout == "Ada by the agent\n"


#: What the others show when they are ready, and their words for the scripted model.
PROMPTS = {"codex": "Ask Codex", "opencode": "Ask anything", "gemini": "Type your message"}


@pytest.mark.row("{name}", "inside", "in tmux: no question before the prompt, a command, the review")
@pytest.mark.parametrize("name", PROMPTS)
def test_the_others_on_a_terminal(name: str, desk: Bench) -> None:
    with ScriptedModel(["echo two >> README"]) as model:
        argv, variables = opened(desk, name, model.url, [])
        left_out = ("exec", "run", "go", "-p", "--yolo", "--skip-git-repo-check")
        tmux = Tmux(
            desk.home.parent, [word for word in argv if word not in left_out], variables, str(desk.project)
        )
        try:
            tmux.until(PROMPTS[name], patience=SLOW)
            leave = ["C-c"] * (2 if name == "gemini" else 1)  # which wants both within a second
            tmux.keys("go")
            assert until(lambda: tmux.keys("Enter") or until(lambda: bool(model.results), 3), SLOW), (
                tmux.screen()
            )
            assert until(lambda: tmux.keys(*leave) or until(lambda: "discard:" in tmux.screen(), 3), SLOW), (
                tmux.screen()
            )
            assert (desk.project / "README").read_text() == "one\n"
            tmux.keys("c", "Enter")
            tmux.until("1 file committed")
            assert (desk.project / "README").read_text() == "one\ntwo\n"
        finally:
            tmux("kill-server")


@pytest.mark.row("aider", "inside", "in tmux: its own edit and commit, a command, a key, the review")
def test_aider_on_a_terminal(desk: Bench) -> None:
    with ScriptedModel([], text="README\n```\none\ntwo\n```\n") as model:
        own = {"OPENAI_API_BASE": f"{model.url}/v1", "OPENAI_API_KEY": "x", "AIDER_MODEL": "openai/scripted"}
        tmux = Tmux(desk.home.parent, [*STADDLE, "aider"], {**desk.environment, **own}, cwd=str(desk.project))

        def prompt(after: str) -> None:
            assert until(lambda: tmux.screen().rpartition(after)[2].rstrip().endswith("\n>"), SLOW), (
                tmux.screen()
            )

        try:
            prompt("───")
            tmux.keys("/add README", "Enter")
            prompt("Added README to the chat")
            tmux.keys("add a line", "Enter")
            tmux.until("Applied edit to README", "Commit ", patience=SLOW)
            prompt("Commit ")
            tmux.keys(f"/run cat ~/.ssh/id_ed25519 {desk.secret}; echo confined=$STADDLE_SANDBOX", "Enter")
            prompt("confined=1")
            assert "the secret of the host" not in tmux.screen()
            assert (desk.project / "README").read_text() == "one\n"
            time.sleep(1)  # after a command, Aider's terminal may drop what is typed at once
            tmux.keys("/exit", "Enter")
            tmux.until("1 git commit", "discard:")
            tmux.keys("c", "Enter")
            tmux.until("1 git commit added to your branch")
            assert (desk.project / "README").read_text() == "one\ntwo\n"
        finally:
            tmux("kill-server")


@pytest.mark.row("claude", "inside", "in tmux: a server that it starts is reached from the host")
def test_a_server_of_the_agent(claude: tuple[Bench, ScriptedModel, list[Tmux]]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tmux = started(
        claude, f"(setsid python3 -m http.server {port} > /dev/null 2>&1 &); sleep 1; echo started"
    )
    tmux.keys("go", "Enter")

    def reached() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    assert until(reached, SLOW), tmux.screen()


@pytest.mark.row("claude", "inside", "in tmux: a file that the user changed as well is asked about")
def test_a_conflict(claude: tuple[Bench, ScriptedModel, list[Tmux]]) -> None:
    desk = claude[0]
    tmux = started(claude, "echo agent > README; echo n > new")
    tmux.keys("go", "Enter")
    tmux.until("done")
    (desk.project / "README").write_text("the user's\n")
    tmux.keys("C-c", "C-c")
    tmux.until("discard:", patience=SLOW)
    tmux.keys("c", "Enter")
    tmux.until("Replace yours? [y/N]")
    tmux.keys("n", "Enter")
    tmux.until("left out: README")
    assert (desk.project / "README").read_text() == "the user's\n"
    assert (desk.project / "new").exists()


@pytest.mark.row("claude", "inside", "in tmux: SIGKILL of staddle leaves no process, and the work is kept")
def test_a_kill(claude: tuple[Bench, ScriptedModel, list[Tmux]]) -> None:
    desk, seconds = claude[0], unique_seconds()
    tmux = started(claude, f"echo kept > work; (setsid sleep {seconds} &); tail -f /dev/null")
    tmux.keys("go", "Enter")
    assert until(lambda: with_argument(seconds), SLOW), tmux.screen()
    (pid,) = [int(word) for word in tmux("list-panes", "-F", "#{pane_pid}").split()]
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    assert gone(str(seconds))
    assert "claude-project" in desk.staddle("ls")
    assert "/workspace/work" in desk.staddle("diff", "claude-project", "--names")


@pytest.mark.needs_root
@pytest.mark.row(
    "claude", "inside", "a full disk of layers: the project is as it was, and the sandbox can be dropped"
)
def test_a_full_disk(desk: Bench) -> None:
    state = Path(desk.environment["XDG_STATE_HOME"])
    before = tree(desk.project)
    with ScriptedModel(["head -c 64M /dev/zero > big; echo status=$?"]) as model:
        argv, variables = opened(desk, "claude", model.url, [])
        line = 'mount -t tmpfs -o size=24M none "$0" && cd "$1" && shift && "$@"; echo status $?'
        drop = f"{' '.join(STADDLE)} rm --force claude-project && echo dropped"
        script = f"{line}; {drop}"
        done = subprocess.run(
            ["unshare", "-m", "bash", "-c", script, str(state), str(desk.project), *argv],
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    said = done.stdout + done.stderr
    assert "No space left" in str(model.results), said
    assert "dropped" in said
    assert tree(desk.project) == before
