"""The file tools of a LocalEnvironment: exact, and off-limits stays off-limits."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

from staddle import ExecutionEnvironment, LocalEnvironment, Policy
from staddle.errors import PathEscape, PathNotAllowed, PolicyError


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_it_is_an_execution_environment(tmp_path: Path) -> None:
    assert isinstance(LocalEnvironment(tmp_path), ExecutionEnvironment)


def test_files_are_read_written_removed_and_listed(tmp_path: Path) -> None:
    env = LocalEnvironment(tmp_path)
    env.write_file("a/b.txt", "täxt\r\n")
    env.write_file("a/c.md", "")
    assert env.read_file("./a//b.txt") == "täxt\r\n"
    assert env.glob("**/*.md") == ["a/c.md"]
    assert env.glob("a/**") == ["a", "a/b.txt", "a/c.md"]
    assert env.glob("*") == ["a"]
    assert env.glob("none/**") == env.glob("a/b.txt/*") == []
    env.remove_file("a/b.txt")
    with pytest.raises(FileNotFoundError):
        env.read_file("a/b.txt")
    assert env.working_dir == str(tmp_path)


def test_any_bytes_survive_a_read_and_a_write(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(range(256)))
    env = LocalEnvironment(tmp_path)
    env.write_file("copy", env.read_file("raw"))
    assert (tmp_path / "copy").read_bytes() == bytes(range(256))


def test_a_file_larger_than_the_limit_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 40)
    env = LocalEnvironment(tmp_path)
    with pytest.raises(OSError, match="more than"):
        env.read_file("huge")
    env.write_file("ten", "0123456789")
    assert env.read_file("ten", limit=10) == "0123456789"


def test_only_what_a_glob_names_is_written_and_a_refusal_leaves_nothing(tmp_path: Path) -> None:
    env = LocalEnvironment(tmp_path, ["out.md", "docs/**/*.md"])
    env.write_file("out.md", "x")
    env.write_file("docs/new/a.md", "x")
    (tmp_path / "mine").write_text("x")
    before = tree(tmp_path)
    for path in ("other.md", "docs/new2/a.txt", "sub/out.md", "mine"):
        with pytest.raises(PathNotAllowed):
            env.write_file(path, "x")
        with pytest.raises(PathNotAllowed):
            env.remove_file(path)
    assert tree(tmp_path) == before
    assert env.read_file("mine") == "x"


def test_links_are_read_inward_and_never_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/x").write_text("x")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "etc").symlink_to("/etc")
    (tmp_path / "absolute").symlink_to(tmp_path / "real/x")
    env = LocalEnvironment(tmp_path)
    assert env.read_file("link/x") == "x"
    for path in ("absolute", "etc/passwd", "/etc/passwd", "../x"):
        with pytest.raises(PathEscape):
            env.read_file(path)
    for path in ("absolute", "link/x", "link/new"):
        with pytest.raises(PathEscape):
            env.write_file(path, "y")
    for pattern in ("etc/*", "link/*"):
        with pytest.raises(PathEscape):
            env.glob(pattern)
    assert env.glob("**") == ["absolute", "etc", "link", "real", "real/x"]


def test_a_link_to_what_is_denied_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/key").write_text("x")
    (tmp_path / "file").symlink_to("secrets/key")
    (tmp_path / "directory").symlink_to("secrets")
    with LocalEnvironment(tmp_path) as env:
        assert env.read_file("file") == env.read_file("directory/key") == "x"
    with LocalEnvironment(tmp_path, policy=Policy.agent().with_deny(str(tmp_path / "secrets"))) as env:
        for path in ("secrets/key", "file", "directory/key"):
            with pytest.raises(FileNotFoundError):
                env.read_file(path)


@pytest.mark.parametrize(
    "path",
    [
        *(".git/hooks/pre-commit", "sub/.git/config", ".bashrc", ".git", ".GIT/config"),
        *(".jj/repo", "git~1", ".git.", ".g\u200cit", ".ba\u017fhrc"),
    ],
)
def test_protected_names_are_protected_from_the_file_tools_too(tmp_path: Path, path: str) -> None:
    for env in (LocalEnvironment(tmp_path), LocalEnvironment(tmp_path, ["**"])):
        with pytest.raises(PathNotAllowed):
            env.write_file(path, "x")
        with pytest.raises(PathNotAllowed):
            env.remove_file(path)
    assert tree(tmp_path) == set()
    LocalEnvironment(tmp_path, [path]).write_file(path, "named in full")
    env = LocalEnvironment(tmp_path)
    assert env.read_file(path) == "named in full"


def test_unprotect_opens_a_name(tmp_path: Path) -> None:
    LocalEnvironment(tmp_path, policy=Policy.agent().with_unprotect(".bashrc")).write_file(".bashrc", "x")


def test_what_the_policy_denies_is_not_there_for_the_file_tools(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/a").write_text("secret")
    env = LocalEnvironment(tmp_path, policy=Policy.agent().with_deny(tmp_path / "keys"))
    for attempt in (env.read_file, env.remove_file, lambda path: env.write_file(path, "x")):
        with pytest.raises(FileNotFoundError):
            attempt("keys/a")
    assert env.glob("**") == []
    assert (tmp_path / "keys/a").read_text() == "secret"


def test_a_denied_path_that_is_not_there_yet_is_denied_too(tmp_path: Path) -> None:
    env = LocalEnvironment(tmp_path, policy=Policy.agent().with_deny(tmp_path / "later"))
    with pytest.raises(FileNotFoundError):
        env.write_file("later/a", "x")
    assert tree(tmp_path) == set()


def test_hooks_take_over_after_the_checks(tmp_path: Path) -> None:
    asked: list[object] = []

    def opener(path: str, mode: int) -> object:
        asked.append((path, mode))
        return open(tmp_path / "elsewhere", "wb")

    env = LocalEnvironment(tmp_path, ["a/*"], write_opener=opener, remover=asked.append)  # type: ignore[arg-type]
    env.write_file("a/b", "hooked")
    env.remove_file("a/b")
    for attempt in (env.remove_file, lambda path: env.write_file(path, "")):
        with pytest.raises(PathNotAllowed):
            attempt("c")
    assert asked == [(f"{tmp_path}/a/b", 0o644), f"{tmp_path}/a/b"]
    assert (tmp_path / "elsewhere").read_text() == "hooked"
    assert tree(tmp_path) == {"elsewhere"}


def test_what_cannot_be_meant_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        LocalEnvironment(tmp_path, [])
    with pytest.raises(PathEscape):
        LocalEnvironment(tmp_path, ["../x"])
    with pytest.raises(PolicyError):
        LocalEnvironment(tmp_path, on_unavailable="ignore")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        LocalEnvironment(tmp_path / "none")
    with pytest.raises(PolicyError):
        LocalEnvironment("/")
    (tmp_path / "file").touch()
    with pytest.raises((PolicyError, NotADirectoryError)):
        LocalEnvironment(tmp_path / "file")


def test_limits_say_where_commands_may_write_more_than_the_globs(tmp_path: Path) -> None:
    (tmp_path / "there.md").touch()
    exact = LocalEnvironment(tmp_path, ["there.md", "docs/**"], backend="landlock")
    assert exact.limits() == ()
    wider = LocalEnvironment(tmp_path, ["new.md", "docs/*.md", "**/x"], backend="landlock")
    assert [gap.protection for gap in wider.limits()] == ["write"] * 3
    assert "'docs'" in wider.limits()[1].why
    assert LocalEnvironment(tmp_path).limits() == ()


def test_a_closed_environment_says_so_and_holds_nothing(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with LocalEnvironment(tmp_path) as env:
        env.write_file("a", "x")
    assert len(os.listdir("/proc/self/fd")) <= before
    for attempt in (env.read_file, env.remove_file, env.glob, env.exec_command):
        with pytest.raises(ValueError, match="closed"):
            attempt("a")


def test_wrong_arguments_are_the_only_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unheard: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unheard.append)
    with pytest.raises(TypeError):
        LocalEnvironment(tmp_path, nonsense=1)  # type: ignore[call-arg]
    gc.collect()
    assert unheard == []
