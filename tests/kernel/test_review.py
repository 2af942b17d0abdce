"""A review is what is committed: its content, not only its names, whatever happens in between."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Literal

import pytest

from staddle import AsyncSandbox, Sandbox
from staddle.errors import CommitRefused, InvalidCall
from staddle.layers.review import Review
from tests.support.waiting import until

Mode = Literal["overlay", "copy"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for up in (tmp_path, *tmp_path.parents[:2]):
        up.chmod(0o755)
    made = tmp_path / "project"
    made.mkdir()
    (made / "old").write_text("old\n")
    (made / "gone").write_text("gone\n")
    return made


@pytest.fixture(params=["overlay", "copy"])
def mode(request: pytest.FixtureRequest) -> Mode:
    found: Mode = request.param
    return found


def content(project: Path) -> dict[str, str]:
    return {
        str(path.relative_to(project)): path.read_text()
        for path in sorted(project.rglob("*"))
        if path.is_file()
    }


WORK = "echo new > new; echo changed > old; rm gone; mkdir d; echo f > d/f; ln -s old link"
BEFORE = {"old": "old\n", "gone": "gone\n"}
AFTER = {"new": "new\n", "old": "changed\n", "d/f": "f\n", "link": "changed\n"}

#: What a sandbox, or the person on the host, can do to a reviewed change: each is noticed.
MEDDLING: dict[str, str] = {
    "content": "echo evil > new",
    "content of the same size and time": "touch -r new /tmp/t; echo NEW > new; touch -r /tmp/t new",
    "deleted": "rm new",
    "changed back": "echo old > old",
    "another kind": "rm new; mkdir new",
    "a link instead": "rm new; ln -s old new",
    "another target": "ln -sf /etc/passwd link",
    "permissions": "chmod 755 new",
    "a directory replaced": "rm -r d; echo x > d",
    "what was deleted is back": "echo gone > gone",
    "moved": "mv new newer",
}


@pytest.mark.parametrize("how", MEDDLING)
def test_a_change_after_the_review_is_refused(project: Path, mode: Mode, how: str) -> None:
    with Sandbox(project, mode=mode) as sandbox:
        sandbox.run(WORK)
        review = sandbox.review()
        sandbox.run(MEDDLING[how])
        with pytest.raises(CommitRefused, match="since the review") as refused:
            review.commit(allow_protected=True)
        assert refused.value.conflicts
        assert content(project) == BEFORE
        with pytest.raises(CommitRefused):
            sandbox.commit(review=review, allow_protected=True)
        assert sandbox.review().digest != review.digest
        sandbox.review().commit(allow_protected=True)


def test_what_was_reviewed_is_written_and_what_came_later_stays(project: Path, mode: Mode) -> None:
    with Sandbox(project, mode=mode) as sandbox:
        sandbox.run(WORK)
        review = sandbox.review()
        assert sorted(change.path for change in review.changes) == [
            *("/workspace/d", "/workspace/d/f", "/workspace/gone"),
            *("/workspace/link", "/workspace/new", "/workspace/old"),
        ]
        sandbox.run("echo later > later; mkdir e; echo later > d/later")
        assert len(review.commit().changes) == 6
        assert content(project) == AFTER
        assert sorted(change.path for change in sandbox.diff()) == [
            *("/workspace/d/later", "/workspace/e", "/workspace/later"),
        ]


def test_a_part_of_it_can_be_committed_and_nothing_that_it_lacks(project: Path, mode: Mode) -> None:
    with Sandbox(project, mode=mode) as sandbox:
        sandbox.run(WORK)
        review = sandbox.review()
        sandbox.run("echo later > later; echo evil > old")
        with pytest.raises(CommitRefused, match="not in the review"):
            review.commit(["later"])
        review.commit(["new", "d"])
        assert content(project) == {**BEFORE, "new": "new\n", "d/f": "f\n"}
        with pytest.raises(CommitRefused, match="old"):
            review.commit(["old"])


def test_the_host_is_part_of_what_was_reviewed(project: Path, mode: Mode) -> None:
    with Sandbox(project, mode=mode) as sandbox:
        sandbox.run(WORK)
        (project / "old").write_text("my own edit\n")
        review = sandbox.review()
        assert [item.path for item in review.conflicts] == ["old"]
        assert [change.path for change in review.changes if change.conflict] == ["/workspace/old"]
        (project / "old").write_text("my later edit, which nobody was asked about\n")
        with pytest.raises(CommitRefused, match="since the review"):
            review.commit(on_conflict="overwrite")
        assert (project / "old").read_text().startswith("my later")


#: Flips the content of a file by a mapping, again and again, with no trace in its times.
FLIP = """
import mmap, sys, time
with open("flipping", "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
    print("begun", flush=True)
    while True:
        mapped[:5] = b"evil!"
        mapped[:5] = b"good!"
"""


def test_a_program_in_the_background_cannot_show_one_thing_and_commit_another(project: Path) -> None:
    with Sandbox(project) as sandbox:
        sandbox.files.write("flip.py", FLIP)
        sandbox.run("printf 'good!' > flipping")
        flipping = sandbox.start("exec python3 flip.py")
        flipping.wait_for_text("begun", 20)
        for _ in range(30):
            review = sandbox.review(["flipping"])
            (change,) = review.changes
            shown = change.text_diff()
            try:
                review.commit(on_conflict="overwrite")
            except CommitRefused:
                continue
            committed = (project / "flipping").read_text()
            if "since the review" not in shown:
                assert f"+{committed}" in shown
            break


def test_a_diff_of_a_review_shows_only_what_was_reviewed(project: Path, mode: Mode) -> None:
    with Sandbox(project, mode=mode) as sandbox:
        sandbox.run(WORK)
        review = sandbox.review()
        change = next(change for change in review.changes if change.path.endswith("/new"))
        assert "+new" in change.text_diff()
        sandbox.run("echo benign > new")
        assert change.text_diff() == "The content has changed since the review\n"


def test_two_looks_at_the_same_have_one_digest_and_any_difference_another(project: Path, mode: Mode) -> None:
    with Sandbox(project, mode=mode) as sandbox:
        sandbox.run(WORK)
        first = sandbox.review()
        assert first.digest == sandbox.review().digest
        sandbox.run("echo NEW > new")
        assert first.digest != sandbox.review().digest
        assert repr(first).startswith(f"<Review {first.digest[:12]}: 6 changes")


def test_large_and_sparse_files(project: Path) -> None:
    with Sandbox(project) as sandbox:
        sandbox.run("truncate -s 2T sparse; dd if=/dev/urandom of=sparse bs=1M seek=70 count=3 conv=notrunc")
        begun = time.monotonic()
        review = sandbox.review()
        assert review.digest == sandbox.review().digest
        sandbox.run("printf x | dd of=sparse bs=1 seek=1T conv=notrunc")
        assert review.digest != sandbox.review().digest
        assert time.monotonic() - begun < 60, "holes are not read"


def test_an_empty_review_commits_nothing(project: Path, mode: Mode) -> None:
    with Sandbox(project, mode=mode) as sandbox:
        review = sandbox.review()
        assert (review.changes, review.commit().changes) == ((), ())


def test_an_awaited_review_has_an_awaited_commit(project: Path) -> None:
    async def main() -> None:
        async with AsyncSandbox(project) as sandbox:
            await sandbox.run(WORK)
            review = await sandbox.review()
            assert len((await review.commit()).changes) == 6

    asyncio.run(main())
    assert content(project) == AFTER


def test_a_review_belongs_to_the_workspace(project: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with Sandbox(project) as sandbox:
        sandbox.run(WORK)
        with pytest.raises(InvalidCall):
            sandbox.commit(review=sandbox.review(), to=tmp_path / "elsewhere")
        with pytest.raises(InvalidCall):
            sandbox.commit(review=Review((), (), (), ()))


def test_a_review_is_of_one_moment(project: Path) -> None:
    """A program that writes two files in turn is never seen in the middle by the digest and the diff."""
    with Sandbox(project) as sandbox:
        writing = "i=0; while :; do i=$((i+1)); echo $i > a; echo $i > b; done"
        sandbox.start(f"exec bash -c '{writing}'")
        assert until(lambda: sandbox.files.exists("b"))
        for _ in range(5):
            review = sandbox.review()
            assert {change.path for change in review.changes} <= {"/workspace/a", "/workspace/b"}
            time.sleep(0.05)
            with pytest.raises(CommitRefused, match="since the review"):
                review.commit()
            assert content(project) == BEFORE
