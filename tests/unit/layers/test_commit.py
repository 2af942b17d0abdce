"""A commit takes over content and names, and nothing that could harm; or it takes nothing."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from staddle import Policy, places
from staddle.errors import CommitFailed, CommitRefused, InvalidCall, LayerError, PolicyError
from staddle.files import remove_tree
from staddle.layers import commit_dir, trash
from staddle.layers.baseline import Baseline
from staddle.layers.change_watch import ChangeWatch
from staddle.layers.changes import diff
from staddle.layers.commit import Committed, Staging, commit
from staddle.layers.commit_dir import recover
from staddle.layers.differences import MOST_DEPTH
from staddle.layers.merged_view import LayerView
from staddle.layers.review import Conflict
from staddle.policy.compiler import compile as compile_policy
from tests.support.protected_spellings import HARMLESS, SPELLED
from tests.unit.layers.layer import Ground, whiteout, write


def taken(done: Committed) -> list[tuple[str, str]]:
    return [(change.kind, change.path) for change in done.changes]


def tick() -> None:
    """Let the clock that stamps files go on."""
    time.sleep(0.011)


class TestWhatIsTakenOver:
    def test_content_names_permissions_and_times(self, ground: Ground) -> None:
        write(ground.host / "changed", "old")
        write(ground.host / "gone/deep", "x")
        os.utime(write(ground.layer / "changed", "new", 0o640), (5, 7))
        write(ground.layer / "new/file", "y", 0o600)
        (ground.layer / "new").chmod(0o750)
        (ground.layer / "new/link").symlink_to("../changed")
        whiteout(ground.layer / "gone")
        done = commit(ground.view)
        assert taken(done) == [
            *(("modified", "changed"), ("deleted", "gone"), ("deleted", "gone/deep")),
            *(("added", "new"), ("added", "new/file"), ("added", "new/link")),
        ]
        assert sorted(os.listdir(ground.host)) == ["changed", "new"]
        status = (ground.host / "changed").stat()
        assert (status.st_mtime, stat.S_IMODE(status.st_mode)) == (7, 0o640)
        assert stat.S_IMODE((ground.host / "new").stat().st_mode) == 0o750
        assert stat.S_IMODE((ground.host / "new/file").stat().st_mode) == 0o600
        assert (ground.host / "new/link").readlink() == Path("../changed")
        assert diff(ground.view) == []

    def test_only_some_paths_with_the_way_to_them(self, ground: Ground) -> None:
        write(ground.layer / "d/e/wanted", "1")
        write(ground.layer / "d/e/other", "2")
        write(ground.layer / "f", "3")
        done = commit(ground.view, paths=["d/e/wanted"])
        assert taken(done) == [("added", "d"), ("added", "d/e"), ("added", "d/e/wanted")]
        assert [path.name for path in ground.host.rglob("*")] == ["d", "e", "wanted"]

    def test_a_path_without_a_change_is_a_mistake_and_nothing_happens(self, ground: Ground) -> None:
        write(ground.layer / "a", "1")
        with pytest.raises(InvalidCall, match="there is no change at 'b'"):
            commit(ground.view, paths=["a", "b"])
        assert os.listdir(ground.host) == []

    def test_either_name_of_a_rename_takes_both(self, ground: Ground) -> None:
        for number, chosen in enumerate(("old0", "new1")):
            write(ground.host / f"old{number}", f"content {number}")
            whiteout(ground.layer / f"old{number}")
            write(ground.layer / f"new{number}", f"content {number}")
            assert len(commit(ground.view, paths=[chosen]).changes) == 1
        assert sorted(os.listdir(ground.host)) == ["new0", "new1"]

    def test_hard_links_among_new_files_stay_links(self, ground: Ground) -> None:
        write(ground.layer / "a", "x")
        (ground.layer / "d").mkdir()
        os.link(ground.layer / "a", ground.layer / "d/b")
        commit(ground.view)
        assert (ground.host / "a").samefile(ground.host / "d/b")

    def test_two_names_of_one_file_of_the_host_go_and_are_replaced(self, ground: Ground) -> None:
        for name in ("a", "b", "c", "d"):
            write(ground.host / name, name)
        os.link(ground.host / "a", ground.host / "a2")
        os.link(ground.host / "b", ground.host / "b2")
        for name in ("a", "a2"):
            whiteout(ground.layer / name)
        for name in ("b", "b2"):
            write(ground.layer / name, "new")
        commit(ground.view)
        assert sorted(os.listdir(ground.host)) == ["b", "b2", "c", "d"]
        assert (ground.host / "b2").read_text() == "new"

    def test_holes_stay_holes(self, ground: Ground) -> None:
        with open(ground.layer / "sparse", "wb") as file:
            file.seek(8 << 20)
            file.write(b"end")
        commit(ground.view)
        status = (ground.host / "sparse").stat()
        assert status.st_size == (8 << 20) + 3
        assert status.st_blocks * 512 < 1 << 20
        assert (ground.host / "sparse").read_bytes()[-4:] == b"\0end"

    def test_a_directory_is_opened_up_before_and_closed_after(self, ground: Ground) -> None:
        write(ground.host / "opened/f", "old")
        (ground.host / "opened").chmod(0o555)
        write(ground.layer / "opened/f", "new")
        write(ground.host / "closed/f", "old")
        write(ground.layer / "closed/f", "new")
        (ground.layer / "closed").chmod(0o555)
        commit(ground.view)
        assert (ground.host / "opened/f").read_text() == (ground.host / "closed/f").read_text() == "new"
        assert stat.S_IMODE((ground.host / "closed").stat().st_mode) == 0o555

    def test_closed_directories_come_go_and_are_replaced(self, ground: Ground) -> None:
        for name in ("gone", "replaced"):
            write(ground.host / name / "below/f", "old")
            (ground.host / name / "below").chmod(0o555)
            (ground.host / name).chmod(0o555)
        whiteout(ground.layer / "gone")
        write(ground.layer / "replaced", "a file now")
        write(ground.layer / "new/below/f", "new")
        (ground.layer / "new/below").chmod(0o555)
        (ground.layer / "new").chmod(0o500)
        commit(ground.view)
        assert sorted(os.listdir(ground.host)) == ["new", "replaced"]
        assert stat.S_IMODE((ground.host / "new").stat().st_mode) == 0o500
        assert stat.S_IMODE((ground.host / "new/below").stat().st_mode) == 0o555
        assert diff(ground.view) == []

    def test_nothing_to_do_is_nothing_done(self, ground: Ground) -> None:
        write(ground.host / "same", "x")
        write(ground.layer / "same", "x")
        before = (ground.host / "same").stat()
        assert commit(ground.view) == Committed(())
        assert (ground.host / "same").stat() == before

    def test_progress_is_told(self, ground: Ground) -> None:
        for number in range(200):
            write(ground.layer / f"f{number}")
        told: list[tuple[int, int]] = []
        commit(ground.view, progress=lambda done, total: told.append((done, total)))
        assert told[0] == (0, 200)
        assert told[-1] == (200, 200)
        assert told == sorted(told)


class TestWhatIsNot:
    def test_set_id_bits(self, ground: Ground) -> None:
        write(ground.host / "had", "old")
        (ground.host / "had").chmod(0o4755)
        for name in ("had", "new"):
            write(ground.layer / name, "evil")
            (ground.layer / name).chmod(0o6755)
        (ground.layer / "dir").mkdir()
        (ground.layer / "dir").chmod(0o2777)
        commit(ground.view, allow_protected=True)
        assert stat.S_IMODE((ground.host / "had").stat().st_mode) == 0o755
        assert stat.S_IMODE((ground.host / "new").stat().st_mode) == 0o755
        assert stat.S_IMODE((ground.host / "dir").stat().st_mode) == 0o777

    def test_pipes_and_sockets_and_what_they_replaced_stays(self, ground: Ground) -> None:
        write(ground.host / "d/f", "kept")
        os.mkfifo(ground.layer / "d")
        os.mkfifo(ground.layer / "pipe")
        here = os.getcwd()
        os.chdir(ground.layer)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
        os.chdir(here)
        done = commit(ground.view)
        assert done.left_out == ("d", "pipe", "socket")
        assert (ground.host / "d/f").read_text() == "kept"
        assert os.listdir(ground.host) == ["d"]

    def test_marks_of_overlayfs_and_other_attributes(self, ground: Ground) -> None:
        for name in ("file", "dir/file"):
            os.setxattr(write(ground.layer / name), "user.overlay.origin", b"x")
            os.setxattr(ground.layer / name, "user.mine", b"x")
        os.setxattr(ground.layer / "dir", "user.overlay.opaque", b"y")
        commit(ground.view)
        for name in ("file", "dir", "dir/file"):
            assert os.listxattr(ground.host / name) == []

    def test_the_attributes_of_what_is_replaced_stay(self, ground: Ground) -> None:
        os.setxattr(write(ground.host / "f", "old"), "user.mine", b"kept")
        write(ground.layer / "f", "new")
        commit(ground.view)
        assert os.getxattr(ground.host / "f", "user.mine") == b"kept"

    def test_another_name_of_the_same_file_is_not_written(self, ground: Ground) -> None:
        write(ground.host / "one", "old")
        os.link(ground.host / "one", ground.top / "other")
        write(ground.layer / "one", "new", 0o600)
        commit(ground.view)
        assert (ground.host / "one").read_text() == "new"
        assert (ground.top / "other").read_text() == "old"
        assert stat.S_IMODE((ground.top / "other").stat().st_mode) == 0o644

    def test_a_link_that_leads_out_is_replaced_not_followed(self, ground: Ground) -> None:
        outside = write(ground.top / "outside/f", "outside")
        (ground.host / "d").symlink_to(outside.parent)
        (ground.host / "f").symlink_to(outside)
        write(ground.layer / "d/f", "inside")
        write(ground.layer / "f", "inside")
        commit(ground.view)
        assert outside.read_text() == "outside"
        assert os.listdir(outside.parent) == ["f"]
        assert not (ground.host / "d").is_symlink()
        assert (ground.host / "d/f").read_text() == "inside"

    @pytest.mark.needs_root
    def test_foreign_owners(self, ground: Ground) -> None:
        os.chown(ground.host, 1234, 5678)
        os.chown(write(ground.host / "theirs", "old"), 77, 88)
        for name in ("theirs", "new/deep"):
            os.chown(write(ground.layer / name, "new"), 101000, 101000)
        (ground.layer / "link").symlink_to("new")
        os.chown(ground.layer / "link", 101000, 101000, follow_symlinks=False)
        commit(ground.view)

        def owner(name: str) -> tuple[int, int]:
            status = (ground.host / name).lstat()
            return status.st_uid, status.st_gid

        assert owner("theirs") == (77, 88)
        assert owner("new") == owner("new/deep") == owner("link") == (1234, 5678)

    def test_nothing_else_appears_beside_it(self, ground: Ground) -> None:
        write(ground.layer / "a", "x")
        seen: set[str] = set()
        commit(ground.view, progress=lambda *_: seen.update(os.listdir(ground.host)))
        assert seen == set()
        assert os.listdir(ground.host) == ["a"]

    def test_on_another_file_system_the_slots_are_hidden_in_it_for_the_time(
        self, ground: Ground, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(commit_dir, "_mount_of", lambda path: (0, ""))
        write(ground.layer / "a", "x")
        seen: set[str] = set()
        commit(ground.view, progress=lambda *_: seen.update(os.listdir(ground.host)))
        assert len(seen) == 1
        assert seen.pop().startswith(".staddle-commit-")
        assert os.listdir(ground.host) == ["a"]


class TestSecondLook:
    @pytest.mark.parametrize(
        ("path", "name"),
        [
            (".git/hooks/pre-commit", ".git/hooks"),
            (".git/config", ".git/config"),
            ("sub/repo/.git/hooks/post-checkout", ".git/hooks"),
            (".GIT/Config", ".git/config"),
            (".git", ".git"),
            ("deep/.git", ".git"),
            (".bashrc", ".bashrc"),
            (".vscode/tasks.json", ".vscode"),
            (".claude/settings.json", ".claude"),
            (".config/fish/config.fish", ".config/fish"),
            (".envrc", ".envrc"),
            *SPELLED.items(),
        ],
    )
    def test_protected_names_are_held(self, ground: Ground, path: str, name: str) -> None:
        write(ground.layer / path, "x")
        write(ground.layer / "harmless", "x")
        with pytest.raises(CommitRefused, match="is a protected name") as refused:
            commit(ground.view)
        assert refused.value.held[-1].path == path
        assert refused.value.held[-1].why == f"{name} is a protected name"
        assert os.listdir(ground.host) == []
        commit(ground.view, paths=["harmless"])
        assert os.listdir(ground.host) == ["harmless"]
        commit(ground.view, allow_protected=True)
        assert (ground.host / path).read_text() == "x"

    @pytest.mark.parametrize("path", HARMLESS)
    def test_a_harmless_path_is_not_held(self, ground: Ground, path: str) -> None:
        write(ground.layer / path, "x")
        commit(ground.view)
        assert (ground.host / path).read_text() == "x"

    def test_deleting_one_is_held_too(self, ground: Ground) -> None:
        write(ground.host / ".git/hooks/pre-push", "x")
        whiteout(ground.layer / ".git")
        with pytest.raises(CommitRefused):
            commit(ground.view)

    def test_a_bare_repository_in_the_tree(self, ground: Ground) -> None:
        for name in ("HEAD", "objects/x", "refs/x", "config", "hooks/post-update"):
            write(ground.layer / "planted" / name, "x")
        with pytest.raises(CommitRefused) as refused:
            commit(ground.view)
        held = {item.path for item in refused.value.held}
        assert {"planted/config", "planted/hooks", "planted/hooks/post-update"} <= held

    def test_a_bare_repository_in_two_commits(self, ground: Ground) -> None:
        write(ground.layer / "planted/config", "x")
        write(ground.layer / "planted/objects/x", "x")
        write(ground.layer / "planted/refs/x", "x")
        commit(ground.view)
        write(ground.layer / "planted/HEAD", "x")
        with pytest.raises(CommitRefused) as refused:
            commit(ground.view)
        assert [item.path for item in refused.value.held] == ["planted/HEAD"]

    def test_a_repository_that_a_rename_completes(self, ground: Ground) -> None:
        for name in ("config", "objects/x", "refs/x", "notes.txt"):
            write(ground.host / "data" / name, f"{name} says something")
        whiteout(ground.layer / "data/notes.txt")
        write(ground.layer / "data/HEAD", "notes.txt says something")
        with pytest.raises(CommitRefused) as refused:
            commit(ground.view)
        assert [(item.path, item.kind) for item in refused.value.held] == [("data/HEAD", "renamed")]

    def test_a_repository_that_another_kind_of_file_completes(self, ground: Ground) -> None:
        for name in ("config", "objects/x", "refs/x", "HEAD/x"):
            write(ground.host / "data" / name, "x")
        write(ground.layer / "data/HEAD", "ref: refs/heads/main")
        with pytest.raises(CommitRefused) as refused:
            commit(ground.view)
        assert ("data/HEAD", "type") in [(item.path, item.kind) for item in refused.value.held]

    @pytest.mark.parametrize("name", ["rebase-merge/git-rebase-todo", "rebase-apply/x", "sequencer/todo"])
    @pytest.mark.parametrize("where", [".git", "bare.git", "deep/er/.git"])
    def test_what_git_is_in_the_middle_of(self, ground: Ground, where: str, name: str) -> None:
        for part in ("HEAD", "objects/x", "refs/x"):
            write(ground.host / where / part, "x")
        write(ground.host / where / name, "pick 1")
        write(ground.layer / where / name, "exec evil")
        with pytest.raises(CommitRefused, match="is a protected name"):
            commit(ground.view)
        os.unlink(ground.layer / where / name)
        whiteout(ground.layer / where / name)
        commit(ground.view)  # it was finished
        assert not (ground.host / where / name).exists()

    @pytest.mark.parametrize(
        "path",
        [
            ".npmrc",
            "pkg/.yarnrc.yml",
            ".cargo/config.toml",
            "mise.toml",
            ".gdbinit",
            "x.code-workspace",
            ".local/bin/tool",
            ".config/Code/User/settings.json",
            ".Rprofile",
            ".kube/config",
            ".docker/config.json",
        ],
    )
    def test_names_that_other_programs_obey(self, ground: Ground, path: str) -> None:
        write(ground.layer / path, "x")
        with pytest.raises(CommitRefused, match="is a protected name"):
            commit(ground.view)

    def test_ordinary_work_is_free(self, ground: Ground) -> None:
        for path in (".github/workflows/ci.yml", "Justfile", "conftest.py", "Makefile", "code-workspace.md"):
            write(ground.layer / path, "x")
        commit(ground.view)

    @pytest.mark.parametrize(
        ("path", "target"),
        [
            ("out.log", "/home/me/.ssh/authorized_keys"),
            ("dist", "/home/me"),
            ("deep/out", "../../x"),
            ("out", "inner/../../x"),
            ("out", "turn/x"),
        ],
    )
    def test_links_that_lead_out_are_held(self, ground: Ground, path: str, target: str) -> None:
        write(ground.host / "inner/deep/x", "x")
        os.symlink("..", ground.host / "inner/up")
        os.symlink("inner/up/..", ground.host / "turn")
        os.makedirs((ground.layer / path).parent, exist_ok=True)
        os.symlink(target, ground.layer / path)
        with pytest.raises(CommitRefused, match="points out of the tree") as refused:
            commit(ground.view)
        assert [item.path for item in refused.value.held] == [path]
        commit(ground.view, allow_protected=True)
        assert os.readlink(ground.host / path) == target

    def test_links_that_stay_inside_are_free(self, ground: Ground) -> None:
        write(ground.host / "inner/deep/x", "x")
        for path, target in (
            ("a", "inner/deep/x"),
            ("inner/b", "../inner/./deep"),
            ("dangling", "nothing/here"),
            ("c", "inner/b/../x"),
        ):
            os.makedirs((ground.layer / path).parent, exist_ok=True)
            os.symlink(target, ground.layer / path)
        commit(ground.view)

    @pytest.mark.parametrize(
        ("link", "file"),
        [(".hg", "x/hgrc"), (".config", "x/fish/config.fish"), (".jj/repo", "x/config.toml")],
    )
    def test_a_link_at_the_beginning_of_a_protected_name(self, ground: Ground, link: str, file: str) -> None:
        write(ground.layer / file, "x")
        os.makedirs((ground.layer / link).parent, exist_ok=True)
        os.symlink("x" if "/" not in link else "../x", ground.layer / link)
        with pytest.raises(CommitRefused, match="is a protected name") as refused:
            commit(ground.view)
        assert link in [item.path for item in refused.value.held]

    @pytest.mark.parametrize(
        ("link", "target", "file"),
        [
            (".bashrc", "dots/rc", "dots/rc"),
            (".config", "dots", "dots/fish/config.fish"),
            (".bashrc", "one", "dots/rc"),
        ],
    )
    def test_a_protected_name_that_a_link_of_the_host_gives_to_a_file(
        self, ground: Ground, link: str, target: str, file: str
    ) -> None:
        write(ground.host / "dots/rc", "x")
        write(ground.host / "dots/fish/config.fish", "x")
        os.symlink("dots/rc", ground.host / "one")
        os.symlink(target, ground.host / link)
        write(ground.layer / file, "changed")
        with pytest.raises(CommitRefused, match="is a protected name"):
            commit(ground.view)
        os.unlink(ground.layer / file)
        write(ground.layer / "dots/other", "changed")
        commit(ground.view)

    def test_ordinary_work_of_git_and_a_config_of_something_else_are_not(self, ground: Ground) -> None:
        for name in (
            ".git/index",
            ".git/objects/ab/cd",
            ".git/refs/heads/main",
            "config",
            "hooks/useState.js",
        ):
            write(ground.layer / name, "x")
        assert len(commit(ground.view).changes) > 5

    def test_new_executables(self, ground: Ground) -> None:
        write(ground.host / "was", "x", 0o755)
        write(ground.host / "becomes", "x", 0o644)
        write(ground.layer / "was", "y", 0o755)
        write(ground.layer / "becomes", "x", 0o755)
        write(ground.layer / "new", "x", 0o755)
        with pytest.raises(CommitRefused) as refused:
            commit(ground.view)
        assert [item.path for item in refused.value.held] == ["becomes", "new"]
        assert refused.value.held[0].why == "it is a new executable"
        commit(ground.view, paths=["was"])
        commit(ground.view, allow_protected=True)
        assert (ground.host / "new").stat().st_mode & 0o111


class TestConflicts:
    def test_a_file_that_the_host_changed_meanwhile(self, ground: Ground) -> None:
        write(ground.host / "both", "old")
        write(ground.host / "mine", "old")
        baseline = Baseline()
        write(ground.layer / "both", "sandbox")
        write(ground.layer / "mine", "sandbox")
        tick()
        write(ground.host / "both", "host")
        with pytest.raises(CommitRefused, match="both: it was changed on the host since then") as refused:
            commit(ground.view, baseline=baseline)
        assert refused.value.conflicts == (
            Conflict("both", "modified", "it was changed on the host since then"),
        )
        assert (ground.host / "mine").read_text() == "old"
        commit(ground.view, baseline=baseline, on_conflict="overwrite")
        assert (ground.host / "both").read_text() == "sandbox"

    def test_a_file_that_the_host_changed_and_the_sandbox_deleted(self, ground: Ground) -> None:
        write(ground.host / "d/f", "old")
        baseline = Baseline()
        whiteout(ground.layer / "d")
        tick()
        write(ground.host / "d/new", "host")
        with pytest.raises(CommitRefused) as refused:
            commit(ground.view, baseline=baseline)
        assert [item.path for item in refused.value.conflicts] == ["d/new"]

    def test_each_can_be_decided(self, ground: Ground) -> None:
        for name in ("a", "b", "d/c", "d/e"):
            write(ground.host / name, "old")
        baseline = Baseline()
        for name in ("a", "b"):
            write(ground.layer / name, "sandbox")
        whiteout(ground.layer / "d")
        tick()
        for name in ("a", "b", "d/c"):
            write(ground.host / name, "host")
        asked = []

        def decide(conflict: Conflict) -> str:
            asked.append(conflict.path)
            return "overwrite" if conflict.path == "a" else "keep"

        done = commit(ground.view, baseline=baseline, on_conflict=decide)  # type: ignore[arg-type]
        assert asked == ["a", "b", "d/c"]
        assert done.kept == ("b", "d/c")
        assert (ground.host / "a").read_text() == "sandbox"
        assert (ground.host / "b").read_text() == "host"
        assert os.listdir(ground.host / "d") == ["c"]

    @pytest.mark.parametrize("answer", [True, None, "yes", 1])
    def test_any_other_answer_is_a_mistake(self, ground: Ground, answer: object) -> None:
        write(ground.host / "a", "old")
        baseline = Baseline(0)
        write(ground.layer / "a", "sandbox")
        with pytest.raises(InvalidCall):
            commit(ground.view, baseline=baseline, on_conflict=lambda _: answer)  # type: ignore[arg-type, return-value]
        assert (ground.host / "a").read_text() == "old"

    def test_what_was_looked_at_after_a_command_is_known_exactly(self, ground: Ground) -> None:
        for name in ("deleted", "replaced"):
            write(ground.host / name, "old")
        baseline = Baseline()
        watch = ChangeWatch(ground.view, baseline=baseline)
        for name in ("deleted", "replaced", "created"):
            write(ground.layer / name, "sandbox")
        assert [change.kind for change in watch.look() or ()] == ["added", "modified", "modified"]
        (ground.host / "deleted").unlink()
        write(ground.host / "created", "host")
        write(ground.host / "replaced", "HOST")
        with pytest.raises(CommitRefused) as refused:
            commit(ground.view, baseline=baseline)
        assert [(item.path, item.why) for item in refused.value.conflicts] == [
            ("created", "it was created on the host since then"),
            ("deleted", "it was deleted on the host since then"),
            ("replaced", "it was changed on the host since then"),
        ]

    def test_the_same_change_on_both_sides_is_none(self, ground: Ground) -> None:
        baseline = Baseline()
        write(ground.layer / "a", "same")
        tick()
        write(ground.host / "a", "same")
        assert commit(ground.view, baseline=baseline).changes == ()

    def test_what_was_committed_is_not_the_sandboxs_change_any_more(self, ground: Ground) -> None:
        write(ground.host / "a", "old")
        write(ground.host / "gone", "old")
        baseline = Baseline()
        write(ground.layer / "a", "sandbox")
        whiteout(ground.layer / "gone")
        commit(ground.view, baseline=baseline)
        tick()
        write(ground.host / "a", "host, later")
        write(ground.host / "gone", "host, again")
        write(ground.layer / "b", "sandbox, later")
        assert [change.path for change in diff(ground.view)] == ["a", "b", "gone"]
        assert [change.path for change in diff(ground.view, baseline=baseline)] == ["b"]
        assert taken(commit(ground.view, baseline=baseline)) == [("added", "b")]
        assert (ground.host / "a").read_text() == "host, later"
        tick()
        write(ground.layer / "a", "sandbox, at last")
        with pytest.raises(CommitRefused):
            commit(ground.view, baseline=baseline)

    def test_back_to_a_point_before_a_commit_of_our_own(self, ground: Ground) -> None:
        write(ground.host / "a", "old")
        write(ground.host / "b", "old")
        then = Baseline()
        now = then.copy()
        write(ground.layer / "a", "sandbox")
        tick()
        commit(ground.view, baseline=now)
        write(ground.layer / "a", "sandbox again")
        restored = then.with_commits_of(now)
        assert len(commit(ground.view, baseline=restored).changes) == 1
        write(ground.host / "b", "host")
        write(ground.layer / "b", "sandbox")
        with pytest.raises(CommitRefused):
            commit(ground.view, baseline=restored)

    def _created_by_another_commit(self, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Baseline:
        """Two sandboxes create one file, and the other one's commit comes in the middle of ours."""
        write(ground.layer / "a", "1")
        write(ground.layer / "shared", "ours")
        baseline = Baseline()
        tick()
        real = Staging.stage

        def stage(self: Staging, *args: object) -> object:
            steps = real(self, *args)  # type: ignore[arg-type]
            if not (ground.host / "shared").exists():
                write(ground.host / "shared", "theirs")
            return steps

        monkeypatch.setattr(Staging, "stage", stage)
        return baseline

    def test_a_file_that_another_commit_creates_is_a_conflict(
        self, ground: Ground, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        baseline = self._created_by_another_commit(ground, monkeypatch)
        with pytest.raises(CommitRefused) as refused:
            commit(ground.view, baseline=baseline)
        assert [conflict.path for conflict in refused.value.conflicts] == ["shared"]
        assert os.listdir(ground.host) == ["shared"]
        assert (ground.host / "shared").read_text() == "theirs"

    def test_a_function_is_asked_about_it(self, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
        baseline = self._created_by_another_commit(ground, monkeypatch)
        asked = []

        def on_conflict(conflict: Conflict) -> Literal["keep"]:
            asked.append(conflict.path)
            return "keep"

        done = commit(ground.view, baseline=baseline, on_conflict=on_conflict)
        assert (asked, done.kept, taken(done)) == (["shared"], ("shared",), [("added", "a")])
        assert (ground.host / "shared").read_text() == "theirs"
        assert (ground.host / "a").read_text() == "1"

    def test_without_a_baseline_it_is_not_overwritten_either(
        self, ground: Ground, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._created_by_another_commit(ground, monkeypatch)
        with pytest.raises(CommitRefused, match="during the commit"):
            commit(ground.view)
        assert (ground.host / "shared").read_text() == "theirs"
        assert not (ground.host / "a").exists()

    def test_a_change_on_the_host_during_the_commit_takes_everything_back(self, ground: Ground) -> None:
        for name in ("a", "z"):
            write(ground.host / name, "old")
            write(ground.layer / name, "sandbox")

        def meanwhile(done: int, total: int) -> None:
            if done == total:
                tick()
                write(ground.host / "z", "host")

        with pytest.raises(CommitRefused, match="during the commit"):
            commit(ground.view, progress=meanwhile)
        assert (ground.host / "a").read_text() == "old"
        assert (ground.host / "z").read_text() == "host"

    def test_a_file_that_appears_in_a_directory_that_goes_takes_everything_back(self, ground: Ground) -> None:
        write(ground.host / "d/e/f", "old")
        whiteout(ground.layer / "d")

        def meanwhile(done: int, total: int) -> None:
            if done == total:
                tick()
                write(ground.host / "d/e/new", "host")

        with pytest.raises(CommitRefused, match="d/e"):
            commit(ground.view, progress=meanwhile)
        assert sorted(os.listdir(ground.host / "d/e")) == ["f", "new"]


class TestRefusals:
    def test_a_directory_that_we_may_not_write(self, ground: Ground) -> None:
        if os.geteuid() == 0:
            pytest.skip("root may write anywhere; the run as an ordinary user tells")
        write(ground.host / "closed/f", "old")
        write(ground.layer / "a", "new")
        write(ground.layer / "closed/f", "new")
        (ground.layer / "closed").chmod(0o555)
        (ground.host / "closed").chmod(0o555)
        try:
            with pytest.raises(CommitFailed, match="nothing was changed"):
                commit(ground.view)
            assert sorted(os.listdir(ground.host)) == ["closed"]
            assert (ground.host / "closed/f").read_text() == "old"
        finally:
            (ground.host / "closed").chmod(0o755)

    def test_no_room_for_the_directory_of_a_commit(
        self, ground: Ground, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/host/.staddle-commit")

        write(ground.layer / "a", "new")
        monkeypatch.setattr(commit_dir, "_claimed", full)
        with pytest.raises(
            CommitFailed, match=r"/host/.staddle-commit: No space left on device; nothing was"
        ):
            commit(ground.view)
        assert os.listdir(ground.host) == []

    def test_several_bases_are_nothing_to_commit_to(self, ground: Ground) -> None:
        with pytest.raises(LayerError, match="no single directory"):
            commit(LayerView((str(ground.layer),), (str(ground.host), str(ground.host))))

    def test_a_file_that_is_being_written(self, ground: Ground) -> None:
        place_ = write(ground.layer / "growing", b"x" * (4 << 20))
        stop = threading.Event()

        def grow() -> None:
            with open(place_, "ab") as file:
                while not stop.is_set():
                    file.write(b"x" * 1000)
                    file.flush()

        thread = threading.Thread(target=grow)
        thread.start()
        refusals = 0
        try:
            for _ in range(20):
                try:
                    commit(ground.view)
                    (ground.host / "growing").unlink()  # the writer slept
                except LayerError as error:
                    refusals += "changed while it was copied" in str(error)
                    break
        finally:
            stop.set()
            thread.join()
        assert refusals > 0
        assert os.listdir(ground.host) == []

    def test_no_descriptor_is_left_open(self, ground: Ground) -> None:
        write(ground.layer / "a/b", "x")
        commit(ground.view)
        trash.wait()
        before = len(os.listdir("/proc/self/fd"))
        write(ground.layer / "a/c", "x")
        write(ground.layer / "a/b", "y")
        commit(ground.view)
        with pytest.raises(InvalidCall):
            commit(ground.view, paths=["nothing"])
        trash.wait()
        assert len(os.listdir("/proc/self/fd")) <= before


def test_a_chain_of_directories_that_is_too_deep_is_refused_at_once(ground: Ground) -> None:
    here = os.getcwd()
    os.makedirs(ground.layer, exist_ok=True)
    os.chdir(ground.layer)
    try:
        for _ in range(MOST_DEPTH + 2):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)
    try:
        for look in (lambda: diff(ground.view), lambda: commit(ground.view)):
            with pytest.raises(LayerError, match="too deep") as refused:
                look()
            assert "'d'" in refused.value.fix
        assert os.listdir(ground.host) == []
    finally:  # shutil.rmtree goes as deep as Python's stack, and no deeper
        remove_tree.remove([os.fsencode(ground.layer / "d")])


class TestRecords:
    """Recovery does what a record says: only records that no sandbox can have written count."""

    def test_they_are_not_in_the_state_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path))
        for home in commit_dir.homes():
            assert os.path.dirname(home) in {"/var/tmp", "/tmp", "/dev/shm"}
            assert places.is_shared(home)
            for path in (home, f"{home}/x", f"{home}/x/slots"):
                os.makedirs(path, 0o700, exist_ok=True)
                with pytest.raises(PolicyError, match=" own"):
                    compile_policy(Policy(write=[path]), cwd="/")
            for path in (f"{home}/x/slots", f"{home}/x"):
                Path(path).rmdir()
            with suppress(OSError):  # another test commits
                Path(home).rmdir()

    def test_a_forged_one_in_a_workspace_deletes_and_places_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        precious, target = tmp_path / "precious", tmp_path / "target"
        write(precious / "file", "x")
        target.mkdir()
        forged = tmp_path / "staddle/commits/0123456789abcdef"
        where = {"format": 1, "target": str(target), "slots": str(precious), "inode": target.stat().st_ino}
        write(forged / "lock", "")
        write(forged / "where", json.dumps(where))
        for directory in (forged, forged.parent, forged.parent.parent):
            directory.chmod(0o700)
        assert str(target) not in recover()
        assert (precious / "file").read_text() == "x"
        put = [["put", "hook", "file", (precious / "file").stat().st_ino, 0, 0]]
        write(forged / "record", json.dumps({"format": 1, "steps": put}))
        assert str(target) not in recover()
        assert os.listdir(target) == []

    def test_the_slots_are_in_the_state_directory_where_the_record_is_on_another_file_system(
        self, ground: Ground, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record = f"/dev/shm/staddle-test-commits-{os.getpid()}"
        monkeypatch.setattr(commit_dir, "homes", lambda: iter([record]))
        write(ground.layer / "a", "x")
        state = ground.host.parent / "state/staddle/commits"
        seen: set[str] = set()
        commit(ground.view, progress=lambda *_: seen.update(os.listdir(state)))
        trash.wait()
        assert len(seen) == 1
        assert os.listdir(ground.host) == ["a"]
        assert not os.path.exists(record)
