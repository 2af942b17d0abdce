"""What a kept sandbox changed, looked at, taken over and written as a patch on the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.kept_sandboxes import Run, at_a_terminal, names

# ---------------------------------------------------------------- diff


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_the_diff_is_text_without_colours_in_a_pipe(command: Run) -> None:
    command("run", "--keep", "fix", "-c", "sed -i s/teh/the/ README; rm gone; chmod 600 src/code")
    text = command("diff", "fix").stdout
    assert "-teh end\n+the end\n" in text
    assert "D /workspace/gone" in text
    assert "new mode 0600" in text
    assert "\x1b" not in text
    assert names(command, "src", "/workspace/gone") == ["D /workspace/gone", "m /workspace/src/code"]
    assert command("diff").stdout == text  # the one of this directory
    assert "not in the workspace" in command("diff", "fix", "/etc", status=125).stderr


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_the_home_is_told_about_when_asked_for(command: Run) -> None:
    command("run", "--keep", "fix", "-c", "echo w > w; echo h > ~/h; echo t > /tmp/t")
    assert command("diff", "fix", "--names").stdout == "A /workspace/w\n"
    said = command("diff", "fix", "--all", "--names").stdout
    assert said == "A /workspace/w\nA /home/user/h\nA /tmp/t\n"
    assert "+h" in command("diff", "fix", "/home/user/h").stdout
    assert command("discard", "fix", "/tmp/t").stdout == "1 change dropped\n"
    assert command("diff", "fix", "--all", "--names").stdout == "A /workspace/w\nA /home/user/h\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_how_much_was_changed(command: Run) -> None:
    command("run", "--keep", "fix", "-c", "seq 100 > many; printf 'a\\0b' > binary; sed -i s/teh/the/ README")
    text = command("diff", "fix", "--stat").stdout
    assert re.search(r"^M /workspace/README +\| 2 \+-$", text, re.MULTILINE)
    assert re.search(r"^A /workspace/binary +\| 0 -> 3 bytes$", text, re.MULTILINE)
    assert "3 changes (2 added, 1 modified), 101 lines added, 1 line deleted" in text


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_the_diff_as_data_has_names_as_they_are(command: Run) -> None:
    command("run", "--keep", "fix", "-c", r"touch $'odd\nname\033[31m\xff'")
    (change,) = json.loads(command("diff", "fix", "--json").stdout)
    assert (change["kind"], change["path"]) == ("added", "/workspace/odd\nname\x1b[31m\udcff")


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_names_and_text_from_inside_are_shown_harmless(command: Run) -> None:
    script = r"""printf 'evil\033]0;title\a\r\n+++ b/forged\n' > $'x\n+++ b\033[2J'; ln -s $'a\nb' link"""
    command("run", "--keep", "fix", "-c", script)
    for words in (["diff", "fix"], ["diff", "fix", "--stat"], ["diff", "fix", "--names"]):
        text = command(*words).stdout
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)
        assert "\n+++ b\\x1b" not in text
    assert "\n++++ b/forged" in command("diff", "fix").stdout


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_on_a_terminal_it_is_coloured_and_paged(command: Run, state: Path, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "seq 200 > many")
    pager = "sh -c 'echo PAGED; cat'"
    seen, status = at_a_terminal(state, project, ["diff", "fix"], PAGER=pager)
    assert status == 0
    assert "PAGED" in seen
    assert "\x1b[32m+200\x1b[0m" in seen
    seen, _ = at_a_terminal(state, project, ["diff", "fix", "--stat"], PAGER=pager)
    assert "PAGED" not in seen  # it is short
    seen, _ = at_a_terminal(state, project, ["diff", "fix"], PAGER="cat", NO_COLOR="1")
    assert "+200" in seen
    assert "\x1b" not in seen


# ---------------------------------------------------------------- commit


@pytest.mark.slow
def test_a_commit_takes_everything_over_and_begins_anew(command: Run, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "sed -i s/teh/the/ README; rm gone; mkdir -p a/b; echo n > a/b/c")
    assert "4 changes" not in command("diff", "fix").stdout
    assert "committed to" in command("commit", "fix", "--yes").stdout
    assert (project / "README").read_text() == "one\nthe end\n"
    assert not (project / "gone").exists()
    assert (project / "a/b/c").read_text() == "n\n"
    assert os.stat(project / "a/b/c").st_uid == os.geteuid()
    assert command("diff", "fix").stdout == ""
    (project / "README").write_text("of the host\n")
    assert command("diff", "fix").stdout == ""
    assert command("run", "--keep", "fix", "--", "cat", "README").stdout == "of the host\n"
    assert command("commit", "fix", "--yes").stdout == "nothing to commit\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_only_some_paths_can_be_committed(command: Run, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "echo 1 > one; echo 2 > src/two; echo 3 > three")
    report = json.loads(command("commit", "fix", "--yes", "--json", "one", "/workspace/src").stdout)
    assert {change["path"] for change in report["changes"]} == {"one", "src/two"}
    assert sorted(os.listdir(project)) == ["README", "gone", "one", "src"]
    assert names(command) == ["A /workspace/three"]
    assert "no change" in command("commit", "fix", "--yes", "nowhere", status=125).stderr


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_what_was_committed_and_then_changed_on_the_host_is_no_change_of_the_sandboxes(
    command: Run, project: Path
) -> None:
    command("run", "--keep", "fix", "-c", "echo 1 > one; echo 2 > two")
    command("commit", "fix", "--yes", "one")
    time.sleep(0.05)
    (project / "one").write_text("of the host\n")
    command("run", "--keep", "fix", "--", "true")
    assert names(command) == ["A /workspace/two"]
    command("commit", "fix", "--yes")
    assert (project / "one").read_text() == "of the host\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_without_a_terminal_nobody_is_asked_and_nothing_is_done(command: Run, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "echo 1 > one")
    assert "--yes" in command("commit", "fix", status=125).stderr
    assert not (project / "one").exists()


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_on_a_terminal_it_lists_and_asks(command: Run, state: Path, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "echo 1 > one; rm gone")
    seen, status = at_a_terminal(state, project, ["commit", "fix"], answer=b"n\n")
    assert status == 1
    assert "A /workspace/one" in seen
    assert "D /workspace/gone" in seen
    assert "these 2 changes" in seen
    assert not (project / "one").exists()
    seen, status = at_a_terminal(state, project, ["commit", "fix"], answer=b"y\n")
    assert status == 0
    assert (project / "one").exists()


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_what_changed_on_both_sides_is_listed_and_refused(command: Run, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "echo inside > README; echo fine > other")
    time.sleep(0.05)
    (project / "README").write_text("outside\n")
    refused = command("commit", "fix", "--yes", status=125)
    assert "README: it was changed on the host since then" in refused.stderr
    assert "--on-conflict overwrite" in refused.stderr
    assert not (project / "other").exists()
    command("run", "--keep", "fix", "--", "true")  # another start does not make it forget
    command("commit", "fix", "--yes", status=125)
    command("commit", "fix", "--yes", "--on-conflict", "overwrite")
    assert (project / "README").read_text() == "inside\n"
    command("commit", "fix", "--on-conflict", "ask", status=125)


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_what_the_host_changed_before_the_sandbox_did_is_no_conflict(command: Run, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "echo 1 > one")
    time.sleep(0.05)
    (project / "README").write_text("newer\n")
    time.sleep(0.05)
    command("run", "--keep", "fix", "-c", "echo more >> README")
    command("commit", "fix", "--yes")
    assert (project / "README").read_text() == "newer\nmore\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_deleted_directory_that_the_host_goes_on_with_is_a_conflict(command: Run, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "rm -r src")
    time.sleep(0.05)
    (project / "src" / "code").write_text("more code\n")
    command("run", "--keep", "fix", "--", "true")
    assert "src/code" in command("commit", "fix", "--yes", status=125).stderr
    assert (project / "src" / "code").read_text() == "more code\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_protected_names_and_new_programs_need_a_second_look(command: Run, project: Path) -> None:
    script = "git init -q .; echo x > .git/hooks/pre-commit; echo x > tool; chmod +x tool; echo fine > file"
    command("run", "--keep", "fix", "-c", script)
    refused = command("commit", "fix", "--yes", status=125)
    assert "tool: it is a new executable" in refused.stderr
    assert ".git/hooks/pre-commit: .git/hooks is a protected name" in refused.stderr
    assert not (project / "file").exists()
    command("commit", "fix", "--yes", "file")
    assert (project / "file").exists()
    refused = command("commit", "fix", "--yes", "--allow", "tool", "--allow", "tol", status=125)
    assert "--allow NAME takes one over" in refused.stderr
    assert "--allow tol: nothing of that name was refused" in refused.stderr
    assert "tool: it is a new executable" not in refused.stderr
    assert not (project / "tool").exists()
    command("commit", "fix", "--yes", "--allow", "tool", "tool")
    assert os.access(project / "tool", os.X_OK)
    assert not (project / ".git").exists()
    command("commit", "fix", "--yes", "--allow-protected")
    assert (project / ".git/hooks/pre-commit").exists()


# ---------------------------------------------------------------- patches


CHANGES = r"""
printf 'one\ntwo\nthree' > text; printf '#!/bin/sh\n' > tool; chmod +x tool
rm -r gone; mv before after; ln -s text link; ln -sfn elsewhere turned
printf '\0\1\2binary' > bin; head -c 100000 /dev/urandom > big; chmod +x plain
: > empty; mkdir -p deep/er; echo x > 'deep/er/with space'; echo y > $'odd\tname"\\'
rm kind; ln -s text kind; seq 30000 | sed 's/^9/nine/' > many
"""


def facts(tree: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(tree.rglob("*")):
        if ".git" in path.parts or (path.is_dir() and not path.is_symlink()):
            continue
        name = str(path.relative_to(tree))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found


def test_git_applies_it(command: Run, project: Path, tmp_path: Path) -> None:
    work, other = project, tmp_path / "other"
    (work / "text").write_text("one\ntwo\n")
    (work / "gone").write_text("bye\n")
    (work / "before").write_text("the same\n")
    (work / "turned").symlink_to("text")
    (work / "bin").write_bytes(b"\0old")
    (work / "plain").write_text("plain\n")
    (work / "kind").write_text("a file\n")
    (work / "many").write_text("".join(f"{number}\n" for number in range(1, 30_001)))
    subprocess.run(["cp", "-a", work, other], check=True)
    command("run", "--keep", "patched", "-c", CHANGES)
    shown: Any = command("diff", "patched", "--patch", text=False)
    patch: bytes = shown.stdout
    subprocess.run(["git", "apply", "--check"], input=patch, cwd=other, check=True)
    subprocess.run(["git", "apply"], input=patch, cwd=other, check=True)
    command("commit", "patched", "--yes", "--allow-protected")
    assert facts(other) == facts(work)
    assert facts(other)["tool"] == (b"#!/bin/sh\n", True)


def test_it_is_not_for_a_terminal_and_goes_with_nothing_else(command: Run) -> None:
    command("run", "--keep", "patched", "-c", "echo x > made")
    wrong = command("diff", "patched", "--patch", "--stat", status=125)
    assert "contradict" in wrong.stderr
