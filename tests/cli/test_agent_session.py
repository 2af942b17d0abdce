"""`staddle claude`: a whole agent on a copy of the project, and the review. The agents here are stand-ins.

`make test-agents` does the same with the real ones.
"""

from __future__ import annotations

import errno
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from staddle import places
from staddle.files.remove_tree import remove
from staddle.layers.undo import Undo
from tests.support.containers import TREE
from tests.support.pty_screen import PtyScreen
from tests.support.staddle_command import COMMAND, environment, gone
from tests.support.waiting import PATIENCE, unique_seconds, until, with_argument

#: Runs each argument that begins with "do:"; at a terminal without one, each line that is typed.
AGENT = r"""#!/bin/bash
printf 'words: %s\n' "$*"
for word; do [[ $word == do:* ]] && { bash -c "${word#do:}"; done=1; }; done
[[ $done ]] && exit 0
printf 'agent> '
while read -r line; do bash -c "$line"; printf 'agent> '; done
"""


class Desk:
    """A home with agents in it, and a project of git."""

    def __init__(self, top: Path, state: Path) -> None:
        self.home, self.state = top / "home", state
        self.project = self.home / "src" / "app"
        (self.home / "bin").mkdir(parents=True)
        for name in ("claude", "codex", "gemini", "opencode", "aider"):
            (self.home / "bin" / name).write_text(AGENT)
            (self.home / "bin" / name).chmod(0o755)
        (self.home / ".ssh").mkdir()
        (self.home / ".ssh/id_ed25519").write_text("the key")
        self.project.mkdir(parents=True)
        (self.project / "README").write_text("one\n")
        (self.project / "deep/er").mkdir(parents=True)
        (self.project / "deep/er/file").write_text("deep\n")
        self.env = {**environment(), "HOME": str(self.home), "XDG_STATE_HOME": str(state), "TERM": "xterm"}
        self.env |= {"PATH": f"{self.home}/bin:{os.environ['PATH']}", "PAGER": "cat", "GIT_PAGER": "cat"}
        for name in ("SSH_AUTH_SOCK", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
            self.env.pop(name, None)
        self.git("init", "-q", "-b", "main")
        self.git("config", "--global", "user.name", "Ada")
        self.git("config", "--global", "user.email", "ada@example.com")
        self.git("config", "--global", "alias.st", "status -s")
        self.git("config", "--global", "core.editor", "evil-editor")
        self.git("add", ".")
        self.git("commit", "-qm", "first")

    def git(self, *words: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["git", *words], cwd=cwd or self.project, env=self.env, capture_output=True, text=True, check=True
        )
        return done.stdout

    def run(
        self,
        *words: str,
        status: int = 0,
        cwd: Path | None = None,
        host: Sequence[str] = (),
        **env: str,
    ) -> str:
        """What `staddle WORDS` says, errors included; `host` starts it on another host."""
        done = subprocess.run(
            [*host, *COMMAND, *words],
            cwd=cwd or self.project,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    def at_a_terminal(self, *words: str, cwd: Path | None = None, **env: str) -> PtyScreen:
        return PtyScreen([*COMMAND, *words], {**self.env, **env}, str(cwd or self.project), rows=40)


@pytest.fixture
def desk(tmp_path: Path, state: Path) -> Desk:
    return Desk(tmp_path, state)


@pytest.fixture
def typed(desk: Desk) -> Iterator[list[PtyScreen]]:
    """Terminals that are closed at the end."""
    made: list[PtyScreen] = []
    yield made
    for screen in made:
        screen.close()


def test_the_agent_works_on_a_copy_at_the_projects_own_path_and_its_work_is_kept(desk: Desk) -> None:
    said = desk.run(
        "claude", "do:pwd; echo two >> ../README; cat ~/.ssh/id_ed25519", cwd=desk.project / "deep"
    )
    assert f"\n{desk.project}/deep\n" in said
    assert "the key" not in said
    assert "words: --permission-mode bypassPermissions --settings" in said
    assert "Claude Code works on a copy of app;" in said
    assert said.endswith("staddle: 1 file changed; kept: staddle review claude-app\n")
    assert (desk.project / "README").read_text() == "one\n"
    assert "claude-app  1 " in desk.run("ls")
    again = desk.run("claude", "do:cat README")
    assert "a copy of app, with 1 change from before" in again
    assert "one\ntwo\n" in again
    assert "--continue" in desk.run("claude", "--continue", "do:true").splitlines()[-2]


def test_each_run_is_a_point_of_the_history_and_can_be_undone(desk: Desk) -> None:
    desk.run("claude", "do:echo 1 > result")
    desk.run("claude", "do:echo 2 > result; mkdir new; touch new/file")
    points = json.loads(desk.run("log", "claude-app", "--json"))
    runs = [point for point in points if point["cause"] == "command"]
    assert [point["command"] for point in runs] == [
        "claude 'do:echo 1 > result'",
        "claude 'do:echo 2 > result; mkdir new; touch new/file'",
    ]
    last = {(change["kind"], change["path"].rpartition("/app/")[2]) for change in runs[-1]["changes"]}
    assert {("modified", "/workspace/result"), ("added", "/workspace/new/file")} <= last
    assert points[-1]["present"]
    assert "1 point taken back" in desk.run("undo", "claude-app")
    assert "1" in desk.run("claude", "do:cat result; ls").splitlines()
    assert "1 point taken back" in desk.run("undo", "claude-app")
    assert "result" not in desk.run("claude", "do:ls").splitlines()
    assert not (desk.project / "result").exists()


def test_nothing_is_prepared_for_a_second_sandbox_while_the_agent_runs(desk: Desk) -> None:
    seconds = unique_seconds()
    with subprocess.Popen(
        [*COMMAND, "claude", f"do:sleep {seconds}"],
        cwd=desk.project,
        env=desk.env,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert until(lambda: with_argument(seconds))
            time.sleep(2)  # other programs have a second gateway and more shells after one
            lines = command_lines(process.pid)
            assert sum("gateway/__main__.py" in line for line in lines) == 1, lines
            assert sum("--noediting" in line for line in lines) == 1, lines
        finally:
            process.terminate()


def command_lines(pid: int) -> list[str]:
    """The command lines of a process and all below it."""
    found = [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += command_lines(int(child))
    return found


def test_the_words_of_each_agent_switch_its_prompts_and_its_own_sandbox_off(desk: Desk) -> None:
    free = "--dangerously-bypass-approvals-and-sandbox"
    trusted = f'-c projects={{"{desk.project}"={{trust_level="trusted"}}}}'
    assert f"words: exec {free} {trusted} fix do:true\n" in desk.run("codex", "exec", "fix", "do:true")
    assert f"words: exec {trusted} --sandbox read-only do:true\n" in desk.run(
        "codex", "--", "exec", "--sandbox", "read-only", "do:true"
    )
    assert "words: --approval-mode=yolo do:true\n" in desk.run("gemini", "do:true")
    assert "words: --yes-always do:true\n" in desk.run("agent", "aider", "do:true")
    assert '{"*": "allow"}\n' in desk.run("opencode", "do:echo $OPENCODE_PERMISSION")


def test_a_home_is_not_a_project(desk: Desk) -> None:
    assert "your home is in it" in desk.run("claude", cwd=desk.home, status=125)
    assert "your home is in it" in desk.run("claude", "--workspace", "/", status=125)
    desk.git("init", "-q", str(desk.home))
    (desk.home / "other").mkdir()
    assert "your home is in it" in desk.run("claude", cwd=desk.home / "other", status=125)


# ---------------------------------------------------------------- the agent's home


def test_what_it_remembers_comes_back_and_what_it_obeys_does_not(desk: Desk) -> None:
    """On first use, nothing of it exists."""
    login = json.dumps({"claudeAiOauth": {"token": "t"}, "hooks": {"a": "evil"}})
    state = {"userID": "u", "mcpServers": {"evil": {"command": "evil"}}, "hooks": 1, "projects": {}}
    state["projects"] = {
        str(desk.project): {"lastSessionId": "s", "allowedTools": ["Bash"]},
        "/other": {"lastSessionId": "x"},
    }
    slug = "".join(letter if letter.isalnum() else "-" for letter in str(desk.project))
    desk.run(
        "claude",
        f"do:cd ~/.claude; echo '{login}' > .credentials.json; echo '{json.dumps(state)}' > ../.claude.json;"
        f" echo talk > projects/{slug}/talk.jsonl; ln -s ~/.bashrc projects/{slug}/link;"
        " mkfifo projects/*/fifo; echo evil > settings.json; mkdir hooks; echo evil > hooks/a",
    )
    assert json.loads((desk.home / ".claude/.credentials.json").read_text()) == {
        "claudeAiOauth": {"token": "t"}
    }
    assert (desk.home / ".claude/.credentials.json").stat().st_mode & 0o777 == 0o600
    assert json.loads((desk.home / ".claude.json").read_text()) == {
        "userID": "u",
        "projects": {str(desk.project): {"lastSessionId": "s"}},
    }
    assert [each.name for each in (desk.home / f".claude/projects/{slug}").iterdir()] == ["talk.jsonl"]
    assert sorted(each.name for each in (desk.home / ".claude").iterdir()) == [
        ".credentials.json",
        "projects",
    ]
    said = desk.run("claude", f"do:cat ~/.claude/projects/{slug}/talk.jsonl ~/.claude/.credentials.json")
    assert "talk" in said
    assert '"token": "t"' in said


def test_links_and_files_that_the_user_made_stay_as_they_are(desk: Desk) -> None:
    slug = "".join(letter if letter.isalnum() else "-" for letter in str(desk.project))
    memory = desk.home / ".claude/projects" / slug
    memory.mkdir(parents=True)
    (memory / "notes").symlink_to("/somewhere")
    (desk.home / ".claude.json").write_text('{"half": ')
    desk.run("claude", f"do:echo '{{}}' > ~/.claude.json; ln -s /etc ~/.claude/projects/{slug}/planted")
    assert [each.name for each in memory.iterdir()] == ["notes"]
    assert (desk.home / ".claude.json").read_text() == '{"half": '


def test_directories_of_any_depth_and_exchanged_ones_do_not_lead_out_of_the_memory(desk: Desk) -> None:
    """What is removed is below the memory, whatever its directories have become meanwhile."""
    slug = "".join(letter if letter.isalnum() else "-" for letter in str(desk.project))
    (desk.home / "mine").mkdir()
    (desk.home / "mine/x").symlink_to("precious")
    nest = "import os; [(os.mkdir(name), os.chdir(name)) for name in ['d'] * 1200]; os.symlink('/etc', 'x')"
    deep = f'python3 -c "{nest}"'
    exchange = f"cd; cd .claude/projects/{slug}; ln -s {desk.home}/mine a; mkdir b; ln -s /etc b/x"
    swap = "for i in {1..50}; do mv -T a t; mv -T b a; mv -T t b; done"
    said = desk.run("claude", f"do:cd ~/.claude/projects/{slug}; {deep}; {exchange}; {swap}; sleep 3")
    assert "staddle: this is a bug" not in said
    assert (desk.home / "mine/x").is_symlink()
    left = subprocess.run(
        ["find", str(desk.home / ".claude/projects" / slug), "-type", "l"],
        capture_output=True,
        text=True,
        check=True,
    )
    remove((os.fsencode(desk.home / ".claude"),))  # deeper than pytest can remove
    assert left.stdout == ""


def test_a_kept_shell_gets_the_variables_of_today(desk: Desk) -> None:
    desk.run("claude", "do:true", COLORTERM="yesterday")
    assert "is today\n" in desk.run("claude", "do:echo is $COLORTERM", COLORTERM="today")


def test_without_layers_it_is_refused_or_works_on_a_worktree_if_less_is_accepted(desk: Desk) -> None:
    host = [sys.executable, str(TREE / "tests/support/other_hosts.py"), "no-namespaces", "--"]
    said = desk.run("claude", "do:true", host=host, status=125)
    assert "add --nested, to work on a git worktree" in said
    if os.geteuid() == 0:  # whose sandbox owns nothing there
        desk.run("claude", "--nested", "do:true", host=host, status=125)
        assert desk.git("worktree", "list").count("\n") == 1
        return
    said = desk.run("claude", "--nested", "do:echo made > made; cat ~/.ssh/id_ed25519", host=host)
    assert "Claude Code works on a git worktree instead" in said
    assert "the key" not in said
    assert not (desk.project / "made").exists()
    assert desk.git("worktree", "list").count("\n") == 2


def test_settings_are_the_users_and_read_only(desk: Desk) -> None:
    (desk.home / ".claude/hooks").mkdir(parents=True)
    (desk.home / ".claude/settings.json").write_text('{"theme": "mine"}')
    (desk.home / ".claude.json").write_text('{"mcpServers": {"a": {"url": "https://a.example/x"}}}')
    (desk.home / ".codex").mkdir()
    (desk.home / ".codex/auth.json").write_text('{"tokens": "of codex"}')
    said = desk.run(
        "claude",
        "do:cd ~; cat .claude/settings.json; echo evil > .claude/settings.json; echo evil > .claude/hooks/x;"
        "mv .claude/hooks .claude/old; cat .codex/auth.json; ls .claude.json",
    )
    assert '"theme": "mine"' in said
    assert "of codex" not in said
    assert said.count("Read-only file system") == 2
    assert (desk.home / ".claude/settings.json").read_text() == '{"theme": "mine"}'
    assert list((desk.home / ".claude/hooks").iterdir()) == []
    assert "MCP servers that do not work in there: a (--allow a.example:443)" in said


def test_conversations_are_copied_out_and_never_replaced(desk: Desk) -> None:
    there = desk.home / ".codex/sessions/2026/rollout-a.jsonl"
    there.parent.mkdir(parents=True)
    there.write_text("of the host\n")
    desk.run(
        "codex",
        "do:mkdir -p ~/.codex/sessions/2026; cd ~/.codex/sessions/2026; echo evil > rollout-a.jsonl;"
        "echo new > rollout-b.jsonl; ln -s ~/.bashrc rollout-c.jsonl; echo x > other;"
        "echo y > $'rollout-\\n.jsonl'",
    )
    assert {each.name: each.read_text() for each in there.parent.iterdir()} == {
        "rollout-a.jsonl": "of the host\n",
        "rollout-b.jsonl": "new\n",
    }


def test_an_mcp_server_of_the_user_finds_its_files(desk: Desk) -> None:
    tool = desk.home / "tools/server"
    tool.mkdir(parents=True)
    (tool / "package.json").write_text("{}")
    (tool / "main.py").write_text("print('served')")
    entries = {
        "mine": {"command": "python3", "args": [str(tool / "main.py")]},
        "gone": {"command": "no-such-program"},
        "secret": {"command": "cat", "args": [str(desk.home / ".ssh/id_ed25519")]},
    }
    (desk.home / ".claude.json").write_text(json.dumps({"mcpServers": entries}))
    said = desk.run("claude", f"do:python3 {tool}/main.py; cat {desk.home}/.ssh/id_ed25519")
    assert "served\n" in said
    assert "the key" not in said
    assert "gone (no-such-program is not installed)" in said


def test_git_knows_the_user_and_none_of_the_users_programs(desk: Desk) -> None:
    said = desk.run("claude", "do:git config user.name; git st; git config core.editor; echo x > n; git st")
    assert "Ada\n" in said
    assert "evil-editor" not in said
    assert "?? n" in said


@pytest.mark.parametrize("kind", ["worktree", "submodule"])
def test_git_works_where_the_repository_is_elsewhere(desk: Desk, kind: str) -> None:
    place = desk.home / "src/tree"
    if kind == "worktree":
        desk.git("worktree", "add", "-q", str(place), "-b", "work")
    else:
        desk.git("clone", "-q", str(desk.project), str(place))
        allow = ("-c", "protocol.file.allow=always")
        desk.git(*allow, "submodule", "add", "-q", str(desk.project), "sub", cwd=place)
        place = place / "sub"
        desk.git("checkout", "-q", "-b", "work", cwd=place)
    said = desk.run(
        "claude", "do:git st; echo x > n; git add n; git commit -qm second; git log --oneline", cwd=place
    )
    assert " second\n" in said
    assert "1 file changed, 1 git commit; kept" in said
    assert desk.git("log", "--oneline", cwd=place).count("\n") == 1
    assert (place / ".git").is_file()


# ---------------------------------------------------------------- the review


def _ends_with(screen: PtyScreen, text: str) -> bool:
    return screen.text().rstrip().endswith(text)


def review(desk: Desk, *answers: str, name: str = "claude-app") -> str:
    screen = desk.at_a_terminal("review", name)
    try:
        for answer in answers:
            asked = "discard: " if len(answer) == 1 and answer in "cdkx" else "[y/N] "
            assert until(partial(_ends_with, screen, asked.strip()))
            screen.type(answer + "\n")
            time.sleep(0.2)
        screen.ended()
        return screen.text()
    finally:
        screen.close()


def test_git_commits_arrive_as_git_commits_and_files_as_files(desk: Desk) -> None:
    desk.run(
        "claude",
        "do:echo two >> README; git commit -qam 'agent: two'; echo three > three; git add three;"
        "git commit -qm 'agent: three'; echo plain > plain; echo evil > .git/hooks/post-commit;"
        "chmod +x .git/hooks/post-commit; git config core.fsmonitor evil",
    )
    said = review(desk, "c")
    assert "3 files changed, 2 git commits" in said
    assert "2 git commits added to your branch" in said
    assert desk.git("log", "--format=%an %s").splitlines() == [
        "Ada agent: three",
        "Ada agent: two",
        "Ada first",
    ]
    assert desk.git("st") == "?? plain\n"
    assert not (desk.project / ".git/hooks/post-commit").exists()
    assert "evil" not in (desk.project / ".git/config").read_text()
    undo = said.partition("undo: git ")[2].split()[:2]
    assert "0  " in desk.run("ls").splitlines()[1]
    assert "nothing changed" in review(desk)
    desk.run("commit", "--undo", "claude-app")
    desk.git(*undo)
    assert desk.git("st") == ""


@pytest.mark.parametrize(
    ("work", "shown"),
    [
        ("echo s >> README; git stash -q", "stash@{0}"),
        ("git checkout -q -b ü; git commit -q --allow-empty -m odd", "ü"),
        ("git commit -q --allow-empty -m tagged; git tag v1; git reset -q --hard @~", "v1"),
        ("git -C sub commit -q --allow-empty -m of-the-submodule", "of-the-submodule"),
    ],
)
def test_work_in_git_that_no_commit_takes_over_stays(desk: Desk, work: str, shown: str) -> None:
    if "sub" in work:
        (desk.home / "lib").mkdir()
        desk.git("init", "-q", cwd=desk.home / "lib")
        desk.git("commit", "-q", "--allow-empty", "-m", "lib", cwd=desk.home / "lib")
        desk.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", f"{desk.home}/lib", "sub")
        desk.git("commit", "-qm", "sub")
        desk.run("claude", "do:echo m > m; git add m; git commit -qm m")
        assert "is kept in" not in review(desk, "c")  # the control
    desk.run("claude", f"do:echo n > n; {work}")
    assert "its .git directory is kept in claude-app" in review(desk, "c")
    assert (desk.project / "n").exists()
    said = desk.run("claude", "do:git stash list; git branch; git tag; git -C sub log --format=%s")
    assert shown in said.partition("\nwords")[2].partition("\n")[2]


@pytest.mark.parametrize("unborn", [False, True])
def test_the_first_commits_of_a_project_arrive_as_git_commits(desk: Desk, unborn: bool) -> None:
    remove((os.fsencode(desk.project / ".git"),))
    if unborn:
        desk.git("init", "-q", "-b", "trunk")
    desk.run(
        "claude",
        "do:git init -q -b trunk; echo evil > .git/hooks/post-commit; chmod +x .git/hooks/post-commit;"
        "git config core.fsmonitor evil; git add README; git commit -qm 'the first'",
    )
    said = review(desk, "c")
    assert ("a new git repository" in said) is not unborn
    assert "1 git commit added to your branch" in said
    assert desk.git("log", "--format=%an %s", "trunk") == "Ada the first\n"
    assert desk.git("st") == "?? deep/\n"
    assert not (desk.project / ".git/hooks/post-commit").exists()
    assert "evil" not in (desk.project / ".git/config").read_text()
    assert "nothing changed" in review(desk)


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_new_repository_below_the_project_is_one_question(desk: Desk, answer: str) -> None:
    desk.run("claude", "do:git init -q vendor; echo x > vendor/x; touch .envrc")
    said = review(desk, "c", "y" if answer == "n" else "n", answer)
    assert ".envrc: .envrc is a protected name. Take it? [y/N]" in said
    assert "files of this git repository" in said
    assert said.count("[y/N]") == 2
    assert (desk.project / "vendor/x").exists()
    assert (desk.project / ".envrc").exists() is (answer == "n")
    assert (desk.project / "vendor/.git/objects").exists() is (answer == "y")
    assert (desk.project / "vendor/.git").exists() is (answer == "y")


def test_what_is_protected_and_a_conflict_needs_both_answers(desk: Desk) -> None:
    for answers in (("y", "n"), ("n", "y")):
        desk.run("claude", "do:echo theirs > .envrc; echo n >> n")
        (desk.project / ".envrc").write_text("mine")
        assert "committed to" in review(desk, "c", *answers)
        assert (desk.project / ".envrc").read_text() == "mine"
        desk.run("discard", "claude-app")


def test_the_users_own_stash_and_branches_keep_nothing(desk: Desk) -> None:
    (desk.project / "README").write_text("mine")
    desk.git("stash", "-q")
    desk.git("branch", "ü")
    desk.run("claude", "do:echo n > n; git add n; git commit -qm by-it")
    assert "is kept in" not in review(desk, "c")
    assert desk.git("log", "--format=%s") == "by-it\nfirst\n"


def test_commits_are_a_branch_where_the_user_went_on(desk: Desk) -> None:
    desk.run(
        "claude",
        "do:echo two >> README; git commit -qam 'agent'; git checkout -q -b side main~0; echo s > s;"
        "git add s; git commit -qm side; git checkout -q main",
    )
    (desk.project / "mine").write_text("mine")
    desk.git("add", "mine")
    desk.git("commit", "-qm", "mine")
    said = review(desk, "c")
    assert "git merge staddle/claude-app" in said
    assert desk.git("log", "--format=%s").splitlines() == ["mine", "first"]
    assert desk.git("log", "--format=%s", "staddle/claude-app").splitlines() == ["agent", "first"]
    assert desk.git("log", "--format=%s", "-1", "staddle/claude-app-side") == "side\n"


def test_what_could_run_something_and_what_the_user_changed_is_asked_one_by_one(desk: Desk) -> None:
    desk.run(
        "claude",
        "do:echo agent > README; echo evil > .envrc; echo '#!/bin/sh' > tool; chmod +x tool; echo n > n",
    )
    (desk.project / "README").write_text("the user's\n")
    said = review(desk, "c", "n", "y", "n")
    assert ".envrc" in said
    assert {each.name for each in desk.project.iterdir()} == {".git", "README", "deep", "n", "tool"}
    assert (desk.project / "README").read_text() == "the user's\n"
    assert "left out: .envrc" in said
    assert "claude-app  2 " in desk.run("ls")
    assert "2 files changed" in review(desk, "x")
    assert "claude-app  0 " in desk.run("ls")


def test_a_review_needs_a_terminal_and_says_what_to_do_without(desk: Desk) -> None:
    desk.run("claude", "do:echo n > n")
    assert "staddle commit claude-app --yes" in desk.run("review", status=125)
    desk.run("commit", "claude-app", "--yes")
    assert (desk.project / "n").exists()


def test_a_commit_can_be_undone_until_somebody_changes_its_files(desk: Desk) -> None:
    desk.run("claude", "do:echo two > README; rm deep/er/file; mkdir new; echo n > new/n; ln -s README link")
    desk.run("commit", "claude-app", "--yes")
    assert (desk.project / "README").read_text() == "two\n"
    assert "5 paths restored" in desk.run("commit", "--undo", "claude-app")
    assert desk.git("st") == ""
    desk.run("commit", "--undo", "claude-app")  # the commit once more
    assert (desk.project / "new/n").read_text() == "n\n"
    (desk.project / "new/n").write_text("the user's")
    assert "was changed since the commit" in desk.run("commit", "--undo", "claude-app", status=125)
    assert (desk.project / "README").read_text() == "two\n"
    assert "there is no commit to undo" in desk.run("commit", "--undo", _new(desk), status=125)


def _new(desk: Desk) -> str:
    desk.run("run", "--keep", "new", "-c", "true")
    return "new"


def test_an_undo_that_was_killed_goes_on_and_a_full_disk_keeps_no_copies(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, place = desk.project, desk.home / "undo"
    (target / "a").write_text("before")
    (target / "b").write_text("before")
    undo = Undo(str(place), str(target))
    assert undo.copy(["a", "b", "c"])
    for name in "abc":
        (target / name).write_text("after")
    undo.settle("abc")
    (target / "a").write_text("before")  # as far as the first try came
    assert Undo(str(place), str(target)).run() == ["a", "b", "c"]
    assert [(target / name).exists() and (target / name).read_text() for name in "abc"] == [
        "before",
        "before",
        False,
    ]
    monkeypatch.setattr("shutil.copy2", _no_room)
    assert not undo.copy(["a"])
    assert not Path(f"{place}.next").exists()


def _no_room(*_: object, **_options: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_git_commits_that_came_after_the_review_are_not_taken(desk: Desk, typed: list[PtyScreen]) -> None:
    desk.run("claude", "do:echo two >> README; git commit -qam seen")
    screen = desk.at_a_terminal("review", "claude-app")
    typed.append(screen)
    screen.until("1 git commit", "discard:")
    desk.run("run", "--keep", "claude-app", "-c", "git commit -q --allow-empty -m unseen")
    screen.type("c\n")
    screen.until("changed since the review")
    screen.ended()
    assert desk.git("log", "--format=%s", "--all") == "first\n"


def test_a_review_of_a_running_agent_shows_what_it_did_so_far(desk: Desk, typed: list[PtyScreen]) -> None:
    screen = desk.at_a_terminal("claude")
    typed.append(screen)
    screen.until("agent>")
    screen.type("echo so far > work; echo written\n")
    assert until(lambda: screen.text().count("written") >= 2)
    assert "A work\nin use: the agent still runs;" in desk.run("review", "claude-app")


def test_the_work_of_a_running_agent_is_reviewed_and_committed(desk: Desk, typed: list[PtyScreen]) -> None:
    """By `review` at a terminal and by `commit --yes`; the agent goes on. A held name is asked about."""
    agent = desk.at_a_terminal("claude")
    typed.append(agent)
    agent.until("agent>")
    agent.type(
        "echo 1 > first; mkdir .vscode; echo '{}' > .vscode/tasks.json; git add first; echo writ''ten\n"
    )
    agent.until("written")
    review = desk.at_a_terminal("review", "claude-app")
    typed.append(review)
    review.until("A first", "[k]eep:")
    assert "[x]" not in review.text()
    assert ".git" not in review.text()
    review.type("c\n")
    review.until(".vscode", "Take it? [y/N]")
    review.type("n\n")
    review.until("committed to", "the agent goes on")
    assert review.ended() == 0
    assert (desk.project / "first").read_text() == "1\n"
    assert not (desk.project / ".vscode").exists()
    top = f"{places.runtime()}/reviews"
    assert [name for name in os.listdir(top) if name.startswith("claude-app.")]  # the control
    agent.type(f"test -e {top} || echo no such''thing\n")
    agent.until("no suchthing")
    agent.type("echo 2 > second; echo 3 > third; echo mo''re\n")
    agent.until("more")
    assert "nothing was written" in desk.run("commit", "claude-app", "--yes", status=125)
    assert "committed" in desk.run("commit", "claude-app", "--yes", "second")
    assert (desk.project / "second").exists()
    assert not (desk.project / "third").exists()
    (desk.project / "third").write_text("mine\n")
    assert "also changed on the host" in desk.run("commit", "claude-app", "--yes", "third", status=125)
    assert (desk.project / "third").read_text() == "mine\n"
    desk.run("commit", "claude-app", "--yes", "--on-conflict", "overwrite", "third")
    assert (desk.project / "third").read_text() == "3\n"
    agent.type("\x04")
    agent.until("discard:")
    assert "first" not in agent.text().rsplit("agent>", 1)[1]
    agent.type("k\n")
    assert agent.ended() == 0
    assert not [name for name in os.listdir(top) if name.startswith("claude-app.")]
    assert desk.git("status", "--short").split() == ["??", "first", "??", "second", "??", "third"]
    assert "1 path restored" in desk.run("commit", "--undo", "claude-app")
    assert (desk.project / "third").read_text() == "mine\n"


def test_a_key_that_is_typed_right_after_a_commit_reaches_the_agent(
    desk: Desk, typed: list[PtyScreen]
) -> None:
    agent = desk.at_a_terminal("claude")
    typed.append(agent)
    agent.until("agent>")
    agent.type("echo 1 > first; echo writ''ten\n")
    agent.until("written")
    assert "committed" in desk.run("commit", "claude-app", "--yes", "first")
    agent.type("\x04")
    assert agent.ended() == 0


# ---------------------------------------------------------------- while it runs


def test_two_at_once_have_a_sandbox_each(desk: Desk, typed: list[PtyScreen]) -> None:
    first = desk.at_a_terminal("claude")
    typed.append(first)
    first.until("agent>")
    assert "kept: staddle review claude-app-2" in desk.run("claude", "do:echo two > second")
    first.type("echo one > first; ls\n")
    first.until("README")
    assert "second" not in first.text().split("ls", 1)[1]
    first.type("\x04")
    first.until("1 file changed", "discard:")
    first.type("c\n")
    assert first.ended() == 0
    assert (desk.project / "first").exists()


def test_a_server_inside_is_reached_from_the_host(desk: Desk, typed: list[PtyScreen]) -> None:
    screen = desk.at_a_terminal("claude", TERM="xterm")
    typed.append(screen)
    screen.until("agent>")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    screen.type(f"python3 -m http.server {port} --bind 127.0.0.1 > /dev/null 2>&1 &\n")

    def reached() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    assert until(reached)
    assert until(lambda: screen.text() and f"http://127.0.0.1:{port}".encode() in screen.raw)
    screen.type("exit\n\x04")
    screen.until(f"a server on port {port} was at http://127.0.0.1:{port}")


def test_a_host_is_allowed_from_another_terminal(desk: Desk, typed: list[PtyScreen]) -> None:
    screen = desk.at_a_terminal("claude")
    typed.append(screen)
    screen.until("agent>")
    screen.type("timeout 60 bash -c ': < /dev/tcp/new.example/443'; echo ended\n")
    assert until(lambda: "new.example:443" in desk.run("allow"))
    assert "no running agent asks for 'other.example'" in desk.run("allow", "other.example", status=125)
    screen.text()
    assert b"may it reach new.example:443?" in screen.raw
    assert "new.example:443 may be reached by claude-app" in desk.run("allow", "new.example")
    screen.until("ended")
    screen.type("\x04")
    screen.ended()
    assert "was refused" not in screen.text()
    assert desk.run("allow") == "no agent asks for a host\n"


def test_ctrl_z_stops_staddle_and_fg_goes_on(desk: Desk, typed: list[PtyScreen]) -> None:
    shell = PtyScreen(["bash", "--norc", "-i"], {**desk.env, "PS1": "host$ "}, str(desk.project))
    typed.append(shell)
    shell.until("host$")
    command = " ".join(COMMAND)
    shell.type(f"{command} claude\n")
    shell.until("agent>")
    shell.type("echo before\n")
    shell.until("before\r\n".strip(), "agent>")
    shell.type("\x1a")
    shell.until("Stopped")
    shell.type("echo on the host; fg\n")
    # Once the command has printed it: until then, bash takes what is typed for itself.
    assert until(lambda: shell.text().count("on the host") >= 2)
    shell.type("echo after-it\n")
    assert until(lambda: shell.text().count("after-it") >= 2)
    shell.type("\x04")
    shell.until("nothing changed")


def test_a_window_that_is_closed_and_a_kill_leave_the_work_and_no_process(desk: Desk) -> None:
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGKILL):
        seconds = unique_seconds()
        screen = desk.at_a_terminal("claude")
        try:
            screen.until("agent>")
            screen.type(f"echo {number.value} >> work; sleep {seconds} & echo started\n")
            screen.until("started\n".strip())
            time.sleep(0.3)
            screen.process.send_signal(number)
            screen.process.wait(PATIENCE)
        finally:
            screen.close()
        assert gone(str(seconds))
    assert "1\n15\n9\n" in desk.run("claude", "do:cat work")


@pytest.mark.needs_root  # ssh refuses a user without an account
def test_the_ssh_agent_lists_and_signs_and_nothing_else(desk: Desk) -> None:
    said = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    variables = dict(part.split("=", 1) for part in said.replace("\n", "").split(";") if "=" in part)
    try:
        agent = {"SSH_AUTH_SOCK": variables["SSH_AUTH_SOCK"]}
        key = desk.home / ".ssh/key"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ada-key", "-f", key], check=True
        )
        subprocess.run(["ssh-add", "-q", key], env={**desk.env, **agent}, check=True)
        for name, value in (
            ("gpg.format", "ssh"),
            ("user.signingkey", f"{key}.pub"),
            ("commit.gpgsign", "true"),
        ):
            desk.git("config", "--global", name, value)
        job = (
            "do:ssh-add -l; ssh-add -D; ssh-keygen -q -t ed25519 -N '' -f ~/k; ssh-add ~/k;"
            "echo x > x; git add x; git commit -qm signed; git cat-file commit HEAD"
        )
        found = desk.run("claude", "--ssh-agent", job, **agent)
        assert "ada-key" in found
        assert "BEGIN SSH SIGNATURE" in found
        assert "staddle: your ssh key ada-key signs for the agent" in found
        listed = subprocess.check_output(["ssh-add", "-l"], env={**desk.env, **agent}, text=True)
        assert listed.count("\n") == 1
        assert "ada-key" not in desk.run("claude", "do:ssh-add -l", **agent)
    finally:
        os.kill(int(variables["SSH_AGENT_PID"]), signal.SIGTERM)
    assert "there is no ssh-agent" in desk.run("claude", "--ssh-agent", status=125)


#: In namespaces of its own: an ssh server for root, whose home is the one of the desk.
PUSH = """
set -e
ip link set lo up
mount --bind {home} ~root
dropbearkey -t ed25519 -f {top}/host >/dev/null 2>&1
dropbear -F -E -s -r {top}/host -p 127.0.0.1:2222 -P {top}/pid 2>/dev/null &
server=$!
known=~/.ssh/known_hosts
until ssh-keyscan -p 2222 127.0.0.1 2>/dev/null > $known && [ -s $known ]; do sleep 0.1; done
eval $(ssh-agent -s) >/dev/null
ssh-add -q ~/.ssh/key
git init -q --bare -b main ~/remote.git
git remote add origin ssh://root@127.0.0.1:2222{root}/remote.git
{command} "do:git push origin HEAD:refused" </dev/null || true
job="do:echo x > x; git add x; git commit -qm new; git push origin HEAD:pushed"
{command} --ssh-agent --allow 127.0.0.1:2222 "$job" </dev/null
kill $server $SSH_AGENT_PID
git -C ~/remote.git log -1 --format='%D: %s' --all
"""


@pytest.mark.needs_root
@pytest.mark.slow
def test_an_agent_pushes_over_ssh_with_the_keys_of_the_ssh_agent_alone(desk: Desk, tmp_path: Path) -> None:
    """A real ssh server and a real ssh-agent; the key's file is not inside."""
    (desk.home / ".ssh").chmod(0o700)
    key = desk.home / ".ssh/key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ada-key", "-f", key], check=True)
    (desk.home / ".ssh/authorized_keys").write_bytes((desk.home / ".ssh/key.pub").read_bytes())
    command = " ".join([*COMMAND, "agent", "claude"])
    root = pwd.getpwuid(0).pw_dir
    script = PUSH.format(home=desk.home, root=root, top=tmp_path, command=command)
    done = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "bash", "-c", script],
        env={**desk.env, "HOME": root, "PATH": f"{root}/bin:/usr/sbin:{os.environ['PATH']}"},
        cwd=desk.project,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "pushed: new", done.stderr
    assert "your ssh key ada-key signs for the agent" in done.stderr
