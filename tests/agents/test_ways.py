"""Every agent in every way: its commands run in a sandbox, and what is documented to be closed is closed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from staddle.agents.scripted_model import ScriptedModel, ToolCall
from staddle.agents.table import CODING_AGENTS
from tests.support.waiting import unique_seconds, until, with_argument

from .conftest import AGENTS, STADDLE, Bench

SHELL = ["claude", "codex", "opencode", "gemini"]
MCP = ["claude", "opencode", "gemini"]


def canary(bench: Bench) -> str:
    """A command that only a sandbox answers with `confined`."""
    return f"cat {bench.secret} || echo confined=$STADDLE_SANDBOX; pwd"


@pytest.mark.row("{name}", "shell", "a command, an escape that is refused, a file in the workspace")
@pytest.mark.parametrize("name", SHELL)
def test_shell_commands_run_in_a_sandbox(name: str, bench: Bench) -> None:
    outside = bench.home / "outside"
    found = bench.run(name, [canary(bench), f"touch {outside} || echo refused; echo hi > made"], way="shell")
    assert "confined=1" in found.results[0], found
    assert str(bench.project) in found.results[0], found
    assert "refused" in found.results[1], found
    assert (bench.project / "made").read_text() == "hi\n"
    assert not outside.exists()


@pytest.mark.row("claude", "shell", "the directory of one command is that of the next")
def test_claude_follows_its_shell(bench: Bench) -> None:
    (bench.project / "sub").mkdir()
    found = bench.run("claude", ["cd sub && pwd", "pwd"], way="shell")
    assert [str(bench.project / "sub") in result for result in found.results] == [True, True], found


WRITES = {
    "claude": lambda path: ToolCall("Write", file_path=path, content="mine\n"),
    "opencode": lambda path: ToolCall("write", filePath=path, content="mine\n"),
    "gemini": lambda path: ToolCall("write_file", file_path=path, content="mine\n"),
}


@pytest.mark.row("{name}", "shell", "its own file tool works, and is outside")
@pytest.mark.parametrize("name", WRITES)
def test_file_tools_stay_outside_with_the_shell_way(name: str, bench: Bench) -> None:
    path = bench.project / "by-tool"
    found = bench.run(name, [WRITES[name](str(path)), f"cat {path}"], way="shell")
    assert "mine" in found.results[1], found
    assert path.read_text() == "mine\n"


@pytest.mark.row("{name}", "mcp", "no tool but those of staddle; nothing reaches the project")
@pytest.mark.parametrize("name", MCP)
def test_tools_over_mcp_are_all_there_is(name: str, bench: Bench) -> None:
    (bench.project / "there").write_text("from the host\n")
    write = ToolCall(
        *("mcp__staddle__write_file", "staddle_write_file", "mcp_staddle_write_file"),
        path="made",
        content="new\n",
    )
    found = bench.run(name, [f"{canary(bench)}; cat there", write, "cat made"], way="mcp")
    assert "confined=1" in found.results[0], found
    assert "from the host" in found.results[0], found
    assert "new" in found.results[2], found
    assert not (bench.project / "made").exists()
    others = [tool for tool in found.offers if "staddle" not in tool]
    assert set(others) <= {"write_todos"}, others


#: Settings of a project that would open the sandbox: (agent, way, file, its text).
OPENING = [
    ("claude", "shell", ".claude/settings.json", '{"env": {"CLAUDE_CODE_SHELL_PREFIX": ""}}'),
    ("claude", "mcp", ".claude/settings.json", '{"permissions": {"allow": ["Bash", "Read"]}}'),
    ("opencode", "shell", "opencode.json", '{"shell": "/bin/bash"}'),
    ("opencode", "mcp", "opencode.json", '{"permission": {"*": "ask", "bash": "allow"}}'),
    ("gemini", "mcp", ".gemini/settings.json", '{"tools": {"core": ["run_shell_command"]}}'),
]


@pytest.mark.row("{name}", "{way}", "settings of the project do not open the sandbox")
@pytest.mark.parametrize(("name", "way", "file", "text"), OPENING)
def test_settings_of_a_project_do_not_open_the_sandbox(
    name: str, way: str, file: str, text: str, bench: Bench
) -> None:
    place = bench.project / file
    place.parent.mkdir(exist_ok=True)
    place.write_text(text)
    found = bench.run(name, [canary(bench)], way=way)
    if name == "gemini":  # there is no other way to be sure
        assert not found.results
        assert "sets 'tools'" in found.output
        return
    assert "confined=1" in found.results[0], found
    if way == "mcp":
        assert {tool for tool in found.offers if "staddle" not in tool} <= {"write_todos"}, found.offers


@pytest.mark.row("{name}", "inside", "a command, an escape that is refused, a file in the workspace")
@pytest.mark.parametrize("name", SHELL)
def test_the_whole_agent_inside(name: str, bench: Bench) -> None:
    found = bench.run(name, [f"{canary(bench)}; echo hi > made"], way="inside")
    assert "confined=1" in found.results[0], found
    assert (bench.project / "made").read_text() == "hi\n"


@pytest.mark.row("{name}", "inside", "its own file tool is inside as well")
@pytest.mark.parametrize("name", WRITES)
def test_file_tools_are_inside_with_the_agent(name: str, bench: Bench) -> None:
    outside = bench.home / "outside"
    found = bench.run(name, [WRITES[name](str(outside)), "echo next"], way="inside")
    assert found.results, found
    assert not outside.exists(), found


def variables_of(model: ScriptedModel) -> list[str]:
    """Options that let Claude Code inside use this model."""
    port = model.url.rpartition(":")[2]
    modules = f"{AGENTS}/node_modules"
    given = {
        "ANTHROPIC_BASE_URL": model.url,
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    given["PATH"] = f"{modules}/.bin:/usr/bin:/bin"
    options = [word for item in given.items() for word in ("--env", "=".join(item))]
    return [*options, "--pass-env", "ANTHROPIC_API_KEY", "--read", modules, "--network", f"loopback={port}"]


@pytest.mark.row("claude", "inside", "`staddle run -- claude`, with a policy of one's own")
def test_claude_in_a_run_of_ones_own(bench: Bench) -> None:
    def run(model: ScriptedModel, argv: list[str]) -> list[str]:
        return [*STADDLE, "run", "--mode", "bind", "--timeout", "none", *variables_of(model), "--", *argv]

    found = bench.run("claude", [f"{canary(bench)}; echo hi > made"], command=run)
    assert "confined=1" in found.results[0], found
    assert (bench.project / "made").read_text() == "hi\n"


@pytest.mark.row("claude", "inside", "`staddle jail run --agent claude`, on a worktree")
def test_claude_in_a_jail(bench: Bench) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@a.example"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], cwd=bench.project, env=bench.environment, check=True)
    name = bench.staddle("jail", "create", ".").strip()

    def run(model: ScriptedModel, _: list[str]) -> list[str]:
        return [*STADDLE, "jail", "run", name, "--agent", "claude", "--prompt", "go", *variables_of(model)]

    found = bench.run("claude", [f"{canary(bench)}; echo hi > made"], command=run)
    assert found.results, found
    assert "confined=1" in found.results[0], found
    assert "made" in bench.staddle("jail", "diff", name)


@pytest.mark.row("{name}", "shell", "Ctrl-C ends the agent and its command")
@pytest.mark.parametrize("name", SHELL)
def test_ctrl_c_leaves_nothing(name: str, bench: Bench) -> None:
    seconds = unique_seconds()

    def interrupt(process: subprocess.Popen[str]) -> None:
        assert until(lambda: with_argument(seconds), 120), "the command did not start"
        for _ in range(3):  # some agents want it twice
            os.killpg(process.pid, signal.SIGINT)
            if until(lambda: process.poll() is not None, 10):
                return
        os.killpg(process.pid, signal.SIGTERM)

    # Claude Code refuses a bare sleep.
    bench.run(name, [f"tail -s {seconds} -f /dev/null"], way="shell", during=interrupt)
    assert until(lambda: not with_argument(seconds))


@pytest.mark.row("{name}", "shell", "installed; a missing shim is as documented; removed")
@pytest.mark.parametrize("name", ["claude", "codex", "opencode"])
def test_installed_settings_hold_and_are_open_or_closed_as_documented(name: str, bench: Bench) -> None:
    way = CODING_AGENTS[name].ways["shell"]
    bench.staddle("agent", name, "--install", "--yes")
    assert f"{name}: confined" in bench.staddle("agent", name, "--check")
    shims = bench.home / ".local/share/staddle/agents" / name
    moved = shims.with_name("moved")
    shims.rename(moved)
    found = bench.run(name, [canary(bench)])
    ran_outside = any("the secret of the host" in result for result in found.results)
    assert ran_outside is not way.closed, found
    moved.rename(shims)
    removed = bench.staddle("agent", name, "--remove")
    assert "as it was" in removed or name == "opencode", removed  # which adds its schema when it starts
    after = bench.run(name, [canary(bench)])
    assert "the secret of the host" in after.results[0], after


@pytest.mark.row("{name}", "mcp", "installed in its settings, and removed")
@pytest.mark.parametrize("name", MCP)
def test_installed_mcp_settings_hold(name: str, bench: Bench) -> None:
    bench.staddle("agent", name, "--way", "mcp", "--install", "--yes")
    # Claude Code does not wait for its servers, unless it is told to, and has their tools looked up.
    waits = {"MCP_CONNECTION_NONBLOCKING": "0", "ENABLE_TOOL_SEARCH": "false"}
    waits |= dict.fromkeys(("MCP_TIMEOUT", "MCP_STARTUP_WAIT_MS", "MCP_CONNECT_TIMEOUT_MS"), "60000")
    found = bench.run(name, [canary(bench)], variables=waits)
    assert found.results, found
    assert "confined=1" in found.results[0], found
    bench.staddle("agent", name, "--remove")


@pytest.mark.row("{name}", "shell", "a shim that fails: the command is not run")
@pytest.mark.parametrize("name", ["claude", "codex"])
def test_a_broken_shim_is_closed(name: str, bench: Bench) -> None:
    bench.staddle("agent", name, "--install", "--yes")
    for shim in (bench.home / ".local/share/staddle/agents" / name).glob("*"):
        if shim.name in ("bash", "prefix"):
            shim.write_text("#!/bin/bash\nexit 125\n")
    found = bench.run(name, [canary(bench)])
    assert not any("the secret of the host" in result for result in found.results), found


def aider(bench: Bench, *words: str, terminal: bool = False) -> str:
    """The output of Aider running one command with /run."""
    quiet = ["--no-git", "--no-check-update", "--no-show-release-notes", "--no-analytics", "--no-stream"]
    known = [*quiet, "--no-show-model-warnings", "--no-gitignore", "--no-pretty", "--yes-always"]
    model = [
        "--model",
        "openai/scripted",
        "--openai-api-base",
        "http://127.0.0.1:9/v1",
        "--openai-api-key",
        "x",
    ]
    # Aider's pexpect drops output that it has not read when the command ends.
    line = ["--message", f"/run {canary(bench)}; sleep 0.5"]
    argv = [*STADDLE, "agent", "aider", *words, "--", *known, *model, *line]
    if terminal:
        argv = ["script", "-qec", " ".join(map(_quoted, argv)), "/dev/null"]
    done = subprocess.run(
        argv,
        cwd=bench.project,
        env={**bench.environment, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.stdout + done.stderr


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


@pytest.mark.row("aider", "{way}", "a command by /run{how}")
@pytest.mark.parametrize(("way", "how"), [("inside", ""), ("shell", ", on a terminal")])
def test_aider(way: str, how: str, bench: Bench) -> None:
    if not Path(AGENTS, "aider/bin/aider").exists():
        pytest.skip("aider-chat could not be installed")
    said = aider(bench, "--way", way, terminal=way == "shell")
    assert "confined=1" in said, said
    assert "the secret of the host" not in said


@pytest.mark.row("aider", "shell", "refused without a terminal, where Aider would use /bin/sh")
def test_aider_without_a_terminal_is_refused(bench: Bench) -> None:
    assert "only on a terminal" in aider(bench, "--way", "shell")
