"""Protected names: found wherever they are, held, opened only on purpose, reported when they appear."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from staddle import Policy
from staddle.errors import PathEscape, PolicyError
from staddle.hostinfo import protected
from staddle.hostinfo.protected import NAMES, POINTERS, find_protected, pointer_name, protected_name
from staddle.launch.view import appeared
from staddle.policy.plan import Plan
from tests.support.protected_spellings import HARMLESS, SPELLED
from tests.unit.policy.tree import make, names, own, plan


def guarded(policy: Policy, root: Path) -> set[str]:
    return names(plan(policy, root).guards, root)


def new_names(made: Plan) -> set[str]:
    return {event.what for event in appeared(made)}


def git(*words: str, cwd: Path) -> None:
    clean = {"PATH": os.environ["PATH"], "HOME": str(cwd), "GIT_CONFIG_NOSYSTEM": "1"}
    settings = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *settings, *words], cwd=cwd, env=clean, check=True, capture_output=True)


def test_what_runs_commands_is_guarded_below_a_write_grant(tmp_path: Path) -> None:
    make(
        tmp_path,
        "ws/.git/config",
        "ws/.git/hooks/pre-commit",
        "ws/.git/HEAD",
        "ws/.bashrc",
        "ws/src/.vscode/x",
    )
    made = plan(Policy(write=["ws"]), tmp_path)
    assert names(made.guards, tmp_path) == {"ws/.git/config", "ws/.git/hooks", "ws/.bashrc", "ws/src/.vscode"}
    assert made.access(f"{tmp_path}/ws/.git/config") == "read"
    assert made.access(f"{tmp_path}/ws/.git/hooks/new") == "read"
    assert made.access(f"{tmp_path}/ws/.git/HEAD") == "write"
    assert {guard.path: guard.directory for guard in made.guards}[f"{tmp_path}/ws/.git/hooks"]
    assert {guard.origin for guard in made.guards} >= {"protected .git/config", "protected .vscode"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in POINTERS])
def test_every_name_of_the_list_is_found_in_any_depth_and_case(name: str, tmp_path: Path) -> None:
    make(tmp_path, f"ws/{name}", f"ws/a/b/{name}")
    assert guarded(Policy(write=["ws"]), tmp_path) == {f"ws/{name}", f"ws/a/b/{name}"}
    assert find_protected(f"{tmp_path}/ws") == {f"{tmp_path}/ws/{name}", f"{tmp_path}/ws/a/b/{name}"}
    assert guarded(Policy(write=["ws"], unprotect=[name]), tmp_path) == set()
    assert protected_name(f"/x/{name}") == name


WRITE = Policy(write=["ws"])
BY_NAME = Policy(write=["ws/.claude", "ws/.git/hooks", "ws/.envrc"])
LOOK_ALIKE = ".gitignore .gitattributes AGENTS.md Makefile config hooks/x .config/other/x bashrc"
LOOK_ALIKE += " .github/workflows/x HEAD info/attributes"
BARE = ["x/HEAD", "x/objects/", "x/refs/", "x/config", "x/hooks/", "x/info/attributes", "y/HEAD", "y/config"]
IN_BARE = {"x/config", "x/hooks", "x/info/attributes"}
IN_GIT = [".git/info/attributes", ".git/config", ".config/fish/x"]
LINKS = ["w/link -> ../other", "other/.git/config", "w/self -> .", "w/.config -> empty", "w/empty/"]
OPENED = [".claude/plugins/p/.git/config", ".claude/plugins/p/.mcp.json", ".git/hooks/x", ".envrc"]
ODD_CASE = [".BashRC", ".VSCode/x", ".claude\u200d/x", ".GIT/config"]


@pytest.mark.parametrize(
    ("tree", "policy", "found"),
    [
        pytest.param(ODD_CASE, WRITE, {name.removesuffix("/x") for name in ODD_CASE}, id="odd case"),
        pytest.param(LOOK_ALIKE.split(), WRITE, set(), id="nothing that only looks alike"),
        pytest.param([".git/config"], Policy(read=["ws"]), set(), id="nothing below a read grant"),
        pytest.param([".vscode -> x", "x/"], WRITE.with_unprotect(".vscode"), set(), id="no opened link"),
        pytest.param(LINKS, Policy(write=["ws/w"]), set(), id="nothing behind a link to a directory"),
        pytest.param(OPENED, BY_NAME, set(), id="nothing in what is granted by its name"),
        pytest.param(IN_GIT, Policy(write=["ws/.git"]), set(IN_GIT[:2]), id="in a git directory"),
        pytest.param(IN_GIT, Policy(write=["ws/.git/info"]), {IN_GIT[0]}, id="in a part of one"),
        pytest.param(IN_GIT, Policy(write=["ws/.config"]), {".config/fish"}, id="the rest of a longer name"),
        pytest.param(BARE, WRITE, IN_BARE, id="a bare repository by its contents"),
        pytest.param(BARE, Policy(write=["ws/x"]), IN_BARE, id="a bare repository that is granted itself"),
    ],
)
def test_guarded_is(tree: list[str], policy: Policy, found: set[str], tmp_path: Path) -> None:
    make(tmp_path / "ws", *tree)
    assert names(plan(policy, tmp_path).guards, tmp_path / "ws") == found


@pytest.mark.parametrize(("path", "name"), SPELLED.items())
def test_every_spelling_of_a_name_is_found(path: str, name: str, tmp_path: Path) -> None:
    make(tmp_path, f"ws/{path}", f"ws/a/{path}")
    found = guarded(Policy(write=["ws"]), tmp_path)
    assert len(found) == 2
    assert all(f"ws/a/{path}".startswith(place) or f"ws/{path}".startswith(place) for place in found)
    assert {origin for guard in plan(Policy(write=["ws"]), tmp_path).guards if (origin := guard.origin)} == {
        f"protected {name}"
    }
    assert guarded(Policy(write=["ws"], unprotect=[name]), tmp_path) == set()
    parts = path.split("/")
    above = ["/x/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    assert name in [*map(protected_name, above), pointer_name(f"/x/{path}")]


@pytest.mark.parametrize("path", HARMLESS)
def test_a_harmless_path_is_left_alone(path: str, tmp_path: Path) -> None:
    make(tmp_path, f"ws/{path}")
    assert guarded(Policy(write=["ws"]), tmp_path) == set()
    assert protected_name(f"/x/{path}") is None


def test_the_repository_of_jj_is_written_and_a_pointer_to_another_one_is_not(tmp_path: Path) -> None:
    make(tmp_path, "ws/a/.jj/repo/store/x", "ws/a/.jj/repo/config.toml", "ws/b/.jj/repo")
    assert guarded(Policy(write=["ws"]), tmp_path) == {"ws/a/.jj/repo/config.toml", "ws/b/.jj/repo"}
    make(tmp_path, "ws/c/.jj/repo -> ../../a/.jj/repo")
    with pytest.raises(PathEscape):
        plan(Policy(write=["ws"]), tmp_path)


# --- repositories of every kind


def test_real_repositories_submodules_and_worktrees(tmp_path: Path) -> None:
    ws = make(tmp_path, "ws/main/file", "ws/lib/file") / "ws"
    for repository in ("main", "lib"):
        git("init", "-q", cwd=ws / repository)
        git("add", ".", cwd=ws / repository)
        git("commit", "-qm", "x", cwd=ws / repository)
    git("submodule", "--quiet", "add", "../lib", "sub", cwd=ws / "main")
    git("worktree", "add", "-q", "../tree", cwd=ws / "main")
    git("clone", "-q", "--bare", "lib", "bare", cwd=ws)
    found = {path.removeprefix("ws/") for path in guarded(Policy(write=["ws"]), tmp_path)}
    assert found >= {
        "main/.git/config",
        "main/.git/hooks",
        "main/.gitmodules",
        "main/sub/.git",
        "main/.git/modules/sub/config",
        "main/.git/modules/sub/hooks",
        "main/.git/worktrees/tree/commondir",
        "tree/.git",
        "bare/config",
        "bare/hooks",
        "lib/.git/config",
    }
    # Where only the working tree is granted, its pointer is what could lead git elsewhere.
    assert guarded(Policy(write=["ws/tree"]), tmp_path) == {"ws/tree/.git"}
    # Committing from a worktree needs the main repository's git directory.
    needed = guarded(Policy(write=["ws/tree", "ws/main/.git"]), tmp_path)
    assert {"ws/tree/.git", "ws/main/.git/config", "ws/main/.git/hooks"} <= needed


def test_hooks_are_held_where_they_really_are(tmp_path: Path) -> None:
    make(tmp_path, "ws/.git/hooks/pre-commit -> ../../tools/check", "ws/tools/check", "ws/tools/other")
    assert guarded(Policy(write=["ws"]), tmp_path) == {"ws/.git/hooks", "ws/tools/check"}
    make(tmp_path, "elsewhere/check")
    (tmp_path / "ws/.git/hooks/pre-commit").unlink()
    make(tmp_path, "ws/.git/hooks/pre-commit -> ../../../elsewhere/check")
    assert guarded(Policy(write=["ws"]), tmp_path) == {"ws/.git/hooks"}


def test_what_a_repositorys_config_names_is_held_too(tmp_path: Path) -> None:
    make(tmp_path, "ws/.git/", "ws/scripts/hooks/x", "ws/.settings/shared", "ws/more")
    (tmp_path / "ws/.git/config").write_text(
        '[core]\n\thooksPath = "scripts/hooks" # ours\n[include]\n\tpath = ../.settings/shared\n'
        '[includeIf "gitdir:~/x"]\n path = /no/such\n'
    )
    (tmp_path / "ws/.settings/shared").write_text("[include] path = ../more\n")
    assert guarded(Policy(write=["ws"]), tmp_path) == {
        "ws/.git/config",
        "ws/scripts/hooks",
        "ws/.settings/shared",
        "ws/more",
    }
    assert "ws/scripts/hooks" not in guarded(Policy(write=["ws"], unprotect=[".git/hooks"]), tmp_path)


def test_a_worktree_follows_its_pointer_to_the_config_it_shares(tmp_path: Path) -> None:
    make(tmp_path, "main/.git/worktrees/w/", "w/ours/x", "main/.git/hooks/")
    (tmp_path / "main/.git/config").write_text("[core]\nhooksPath = ours\n")
    (tmp_path / "main/.git/worktrees/w/commondir").write_text("../..\n")
    (tmp_path / "w/.git").write_text(f"gitdir: {tmp_path}/main/.git/worktrees/w\n")
    assert guarded(Policy(write=["w"]), tmp_path) == {"w/.git", "w/ours"}


def test_a_config_cannot_make_the_whole_grant_read_only(tmp_path: Path) -> None:
    make(tmp_path, "ws/.git/")
    (tmp_path / "ws/.git/config").write_text("[core]\nhooksPath = .\n")
    with pytest.raises(PolicyError, match="unprotect"):
        plan(Policy(write=["ws"]), tmp_path)


def test_a_config_that_is_no_config_is_no_problem(tmp_path: Path) -> None:
    make(tmp_path, "ws/a/.git/", "ws/b/.git/config/", "ws/c/.git/")
    (tmp_path / "ws/a/.git/config").write_bytes(
        b"\xff\0[core\nhooksPath=\\\n]]==\n[include]path=" + b"x" * 9000
    )
    os.mkfifo(tmp_path / "ws/c/.git/config")
    assert guarded(Policy(write=["ws"]), tmp_path) == {
        "ws/a/.git/config",
        "ws/b/.git/config",
        "ws/c/.git/config",
    }


# --- links


@pytest.mark.parametrize(
    "link",
    [
        ".git -> real",
        ".git/hooks -> ../real",
        ".git/info -> ../real",
        ".vscode -> real",
        ".bashrc -> nowhere",
        ".config -> real",
        "a/b/.envrc -> /etc/passwd",
    ],
)
def test_a_protected_name_behind_a_link_cannot_be_held_and_is_refused(link: str, tmp_path: Path) -> None:
    make(tmp_path / "ws", "real/attributes", "real/fish/", link)
    with pytest.raises(PathEscape) as caught:
        plan(Policy(write=["ws"]), tmp_path)
    assert "unprotect" in caught.value.fix
    assert find_protected(f"{tmp_path}/ws") != set()
    # Hidden, it cannot be reached; outside every write grant, it does not matter.
    assert plan(Policy(write=["ws"], deny=["ws"]), tmp_path)
    assert plan(Policy(read=["ws"]), tmp_path)


# --- opened on purpose


def test_naming_a_protected_path_opens_exactly_that(tmp_path: Path) -> None:
    make(tmp_path, "ws/.git/config", "ws/.git/hooks/x", "ws/.vscode/x", "ws/.bashrc")
    made = plan(Policy(write=["ws", "ws/.git/hooks", "ws/.bashrc"]), tmp_path)
    assert names(made.guards, tmp_path) == {"ws/.git/config", "ws/.vscode"}
    assert made.access(f"{tmp_path}/ws/.git/hooks/x") == "write"
    assert made.access(f"{tmp_path}/ws/.bashrc") == "write"
    assert new_names(made) == set()


def test_a_grant_inside_a_guarded_directory_opens_that_part(tmp_path: Path) -> None:
    make(tmp_path, "ws/.claude/projects/deep/.git/config", "ws/.claude/settings.json", "ws/plain/")
    made = plan(Policy(write=["ws", "ws/.claude/projects", "ws/plain"]), tmp_path)
    assert own(made, tmp_path) == {"ws": "write", "ws/.claude/projects": "write"}
    assert made.access(f"{tmp_path}/ws/.claude/settings.json") == "read"
    assert made.access(f"{tmp_path}/ws/.claude/projects/x") == "write"
    assert made.access(f"{tmp_path}/ws/.claude/projects/deep/.git/config") == "read"
    assert new_names(made) == set()


# --- what cannot be searched


def test_hidden_and_private_directories_are_not_searched(tmp_path: Path) -> None:
    make(tmp_path, "ws/hidden/.git/config", "ws/home/.bashrc", "ws/.vscode/x")
    policy = Policy.coding_agent("ws/home").with_write("ws").with_deny("ws/hidden", "ws/.vscode")
    assert guarded(policy, tmp_path) == set()


def test_a_directory_that_cannot_be_read_is_refused_if_the_sandbox_could_open_it(tmp_path: Path) -> None:
    make(tmp_path, "ws/closed/.git/config")
    (tmp_path / "ws/closed").chmod(0)
    try:
        if os.geteuid() == 0:
            assert guarded(Policy(write=["ws"]), tmp_path) == {"ws/closed/.git/config"}
        else:
            with pytest.raises(PolicyError, match="cannot be searched"):
                plan(Policy(write=["ws"]), tmp_path)
            assert guarded(Policy(write=["ws"], deny=["ws/closed"]), tmp_path) == set()
            assert find_protected(f"{tmp_path}/ws") == set()
    finally:
        (tmp_path / "ws/closed").chmod(0o700)


def test_a_tree_too_large_to_search_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, *(f"ws/{number}" for number in range(20)))
    monkeypatch.setattr(protected, "MOST_ENTRIES", 20)
    assert guarded(Policy(write=["ws"]), tmp_path) == set()
    make(tmp_path, "ws/one-more")
    with pytest.raises(PolicyError, match="more than 20") as caught:
        plan(Policy(write=["ws"]), tmp_path)
    assert caught.value.fix
    assert find_protected(f"{tmp_path}/ws") == set()


def test_depth_is_no_hiding_place(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    try:
        make(tmp_path, "ws/")
        deep = "ws/" + "/".join(["d" * 10] * 300)
        (tmp_path / deep).mkdir(parents=True)
        make(tmp_path, f"{deep}/.git/config")
        assert guarded(Policy(write=["ws"]), tmp_path) == {f"{deep}/.git/config"}
    finally:
        os.close(here)


# --- what appears during a run


def test_what_appears_is_found_and_what_was_there_is_not_reported(tmp_path: Path) -> None:
    make(tmp_path, "ws/.git/config", "ws/.claude/x", "ws/opened/.vscode/x")
    made = plan(Policy(write=["ws", "ws/opened/.vscode"]), tmp_path)
    assert new_names(made) == set()
    make(
        tmp_path,
        "ws/.git/hooks/post-commit",
        "ws/new/.git/config",
        "ws/.envrc -> /x",
        "ws/plain",
        "ws/.claude/y",
    )
    assert new_names(made) == {
        f"{tmp_path}/ws/{name}" for name in (".git/hooks", "new/.git/config", ".envrc")
    }


def test_only_what_can_be_seen_can_appear(tmp_path: Path) -> None:
    make(tmp_path, "ws/hidden/", "ws/home/", "ws/home/inner/")
    policy = Policy.coding_agent("ws/home").with_write("ws", "ws/home/inner").with_deny("ws/hidden")
    made = plan(policy.with_unprotect(".envrc"), tmp_path)
    make(tmp_path, "ws/hidden/.bashrc", "ws/home/.bashrc", "ws/home/inner/.bashrc", "ws/.envrc")
    assert new_names(made) == {f"{tmp_path}/ws/home/inner/.bashrc"}


def test_looking_again_never_raises(tmp_path: Path) -> None:
    assert find_protected(f"{tmp_path}/gone") == set()
    make(tmp_path, "file", "ws/.git -> ws", "ws/.bashrc -> .bashrc")
    assert find_protected(f"{tmp_path}/file") == set()
    assert find_protected(f"{tmp_path}/ws") == {f"{tmp_path}/ws/.git", f"{tmp_path}/ws/.bashrc"}
