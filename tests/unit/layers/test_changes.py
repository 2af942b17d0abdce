"""The change list says what was done, by which path, and shows it."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from staddle.errors import LayerError
from staddle.layers import differences
from staddle.layers.changes import Change, diff
from staddle.layers.differences import Selection, without_collection
from staddle.layers.merged_view import LayerView
from tests.unit.layers.layer import Ground, whiteout, write


def kinds(ground: Ground, **options: object) -> list[tuple[str, str]]:
    return [(change.kind, change.path) for change in diff(ground.view, **options)]  # type: ignore[arg-type]


class TestKinds:
    def test_each_is_told_in_the_order_of_paths(self, ground: Ground) -> None:
        for name in ("changed", "deleted", "kept", "mode", "type"):
            write(ground.host / name, f"{name}\n")
        (ground.host / "link").symlink_to("kept")
        write(ground.layer / "added/deep", "new\n")
        write(ground.layer / "changed", "other\n")
        write(ground.layer / "mode", "mode\n", 0o600)
        (ground.layer / "type").mkdir()
        (ground.layer / "link").symlink_to("changed")
        whiteout(ground.layer / "deleted")
        assert kinds(ground) == [
            ("added", "added"),
            ("added", "added/deep"),
            ("modified", "changed"),
            ("deleted", "deleted"),
            ("link", "link"),
            ("mode", "mode"),
            ("type", "type"),
        ]

    def test_a_file_rewritten_with_the_same_content_is_no_change(self, ground: Ground) -> None:
        write(ground.host / "same", "x" * 600_000)
        os.utime(write(ground.layer / "same", "x" * 600_000), (1, 1))
        assert kinds(ground) == []

    def test_the_last_byte_counts_and_times_do_not(self, ground: Ground) -> None:
        os.utime(write(ground.host / "f", "x" * 600_000 + "a"), (1, 1))
        os.utime(write(ground.layer / "f", "x" * 600_000 + "b"), (1, 1))
        assert kinds(ground) == [("modified", "f")]

    def test_a_deleted_directory_is_told_with_all_that_was_in_it(self, ground: Ground) -> None:
        write(ground.host / "d/e/f", "f\n")
        whiteout(ground.layer / "d")
        assert kinds(ground) == [("deleted", "d"), ("deleted", "d/e"), ("deleted", "d/e/f")]

    def test_an_opaque_directory_hides_what_was_in_it(self, ground: Ground) -> None:
        write(ground.host / "d/old", "old\n")
        write(ground.host / "d/both", "both\n")
        write(ground.layer / "d/both", "both\n")
        os.setxattr(ground.layer / "d", "user.overlay.opaque", b"y")
        assert kinds(ground) == [("deleted", "d/old")]

    def test_a_whiteout_by_attribute_is_one_only_where_the_directory_says_so(self, ground: Ground) -> None:
        write(ground.host / "d/f", "f\n")
        os.setxattr(write(ground.layer / "d/f"), "user.overlay.whiteout", b"")
        assert kinds(ground) == [("modified", "d/f")]
        os.setxattr(ground.layer / "d", "user.overlay.opaque", b"x")
        assert kinds(ground) == [("deleted", "d/f")]

    def test_a_whiteout_of_nothing_is_nothing(self, ground: Ground) -> None:
        whiteout(ground.layer / "never there")
        assert kinds(ground) == []

    def test_special_files_are_told_and_never_opened(self, ground: Ground) -> None:
        os.mkfifo(ground.layer / "pipe")
        os.mkfifo(ground.host / "both")
        os.mkfifo(ground.layer / "both")
        write(ground.host / "was a file", "x")
        os.mkfifo(ground.layer / "was a file")
        assert [(c.kind, c.path, c.type) for c in diff(ground.view)] == [
            ("added", "pipe", "fifo"),
            ("type", "was a file", "fifo"),
        ]

    def test_links_are_never_followed(self, ground: Ground) -> None:
        outside = write(ground.top / "outside/secret", "secret\n")
        (ground.host / "d").mkdir()
        write(ground.host / "d/secret", "host\n")
        (ground.layer / "d").symlink_to(outside.parent)
        (ground.layer / "f").symlink_to(outside)
        assert kinds(ground) == [("type", "d"), ("deleted", "d/secret"), ("added", "f")]

    def test_any_bytes_in_a_name(self, ground: Ground) -> None:
        names = [b"caf\xe9", b"a\nb", b"\x1b[31m", b" ", b"'\"\\", b"-rf"]
        for name in names:
            (Path(os.fsdecode(os.fsencode(ground.layer) + b"/" + name))).write_bytes(b"x")
        assert sorted(os.fsencode(path) for _, path in kinds(ground)) == sorted(names)


class TestRenames:
    def test_a_file_with_the_same_content_elsewhere_was_renamed(self, ground: Ground) -> None:
        write(ground.host / "old/name", "content\n")
        whiteout(ground.layer / "old/name")
        write(ground.layer / "new", "content\n")
        [change] = diff(ground.view)
        assert (change.kind, change.path, change.old_path) == ("renamed", "new", "old/name")
        assert change.text_diff() == "rename from old/name\nrename to new\n"

    def test_files_of_one_content_are_paired_by_name(self, ground: Ground) -> None:
        for name in ("a", "b"):
            write(ground.host / "x" / name, "same\n")
            whiteout(ground.layer / "x" / name)
            write(ground.layer / "y" / name, "same\n")
        renamed = [(c.old_path, c.path) for c in diff(ground.view) if c.kind == "renamed"]
        assert renamed == [("x/a", "y/a"), ("x/b", "y/b")]

    def test_an_empty_file_says_nothing_about_where_it_was(self, ground: Ground) -> None:
        write(ground.host / "a")
        whiteout(ground.layer / "a")
        write(ground.layer / "b")
        assert kinds(ground) == [("deleted", "a"), ("added", "b")]

    def test_a_changed_file_is_another_one(self, ground: Ground) -> None:
        write(ground.host / "a", "12345")
        whiteout(ground.layer / "a")
        write(ground.layer / "b", "12346")
        assert kinds(ground) == [("deleted", "a"), ("added", "b")]


class TestChange:
    def test_it_carries_what_was_and_what_is(self, ground: Ground) -> None:
        write(ground.host / "f", "four", 0o644)
        write(ground.layer / "f", "eleven more", 0o755)
        [change] = diff(ground.view, at="/workspace")
        assert change.path == "/workspace/f"
        assert (change.type, change.size, change.mode) == ("file", 11, 0o755)
        assert (change.old_type, change.old_size, change.old_mode) == ("file", 4, 0o644)

    def test_it_is_a_value(self) -> None:
        assert Change("added", "a") == Change("added", "a")
        assert len({Change("added", "a"), Change("added", "a")}) == 1
        with pytest.raises(AttributeError):
            Change("added", "a").path = "b"

    def test_links_say_where_they_lead(self, ground: Ground) -> None:
        (ground.host / "l").symlink_to("a")
        (ground.layer / "l").symlink_to("b")
        [change] = diff(ground.view)
        assert (change.old_target, change.target) == ("a", "b")
        assert change.text_diff() == "was -> a\nnow -> b\n"


class TestText:
    def test_a_unified_diff(self, ground: Ground) -> None:
        write(ground.host / "f", "one\ntwo\nthree\n")
        write(ground.layer / "f", "one\n2\nthree")
        [change] = diff(ground.view)
        assert change.text_diff() == (
            "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n"
            " one\n-two\n-three\n+2\n+three\n\\ No newline at end of file\n"
        )

    def test_added_and_deleted_files_are_against_nothing(self, ground: Ground) -> None:
        write(ground.host / "gone", "x\n")
        whiteout(ground.layer / "gone")
        write(ground.layer / "new", "y\n")
        gone, new = diff(ground.view)
        assert gone.text_diff() == "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        assert new.text_diff() == "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+y\n"

    def test_binary_and_large_files_are_only_named(self, ground: Ground) -> None:
        write(ground.layer / "binary", b"\0\1")
        write(ground.layer / "large", "x\n" * 100)
        write(ground.layer / "lines", "x\n" * 30_000)
        binary, large, lines = diff(ground.view)
        assert binary.text_diff() == "Binary files differ\n"
        assert large.text_diff(limit=50) == "Files differ; one has more than 50 bytes\n"
        assert lines.text_diff().endswith("Text differs; there are more than 20,000 lines\n")

    def test_a_mode_alone(self, ground: Ground) -> None:
        write(ground.host / "f", "x", 0o644)
        write(ground.layer / "f", "x", 0o755)
        [change] = diff(ground.view)
        assert change.text_diff() == "old mode 0644\nnew mode 0755\n"

    def test_what_is_gone_by_now_is_said(self, ground: Ground) -> None:
        place = write(ground.layer / "f", "x")
        [change] = diff(ground.view)
        place.unlink()
        assert "no longer exists" in change.text_diff()

    def test_a_link_put_in_its_place_is_not_read(self, ground: Ground) -> None:
        secret = write(ground.top / "secret", "secret")
        place = write(ground.layer / "f", "x")
        [change] = diff(ground.view)
        place.unlink()
        place.symlink_to(secret)
        assert "secret" not in change.text_diff()


class TestBounds:
    def test_too_many_changes_are_refused(self, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(differences, "MOST_DIFFERENCES", 5)
        for number in range(6):
            write(ground.layer / str(number))
        with pytest.raises(LayerError, match="too many changes"):
            diff(ground.view)
        assert kinds(ground, paths=["3"]) == [("added", "3")]

    def test_directories_nested_deeper_than_a_path_can_say(self, ground: Ground) -> None:
        here = os.open(ground.layer, os.O_RDONLY)
        for _ in range(60):
            os.mkdir("d" * 200, dir_fd=here)
            below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("end", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.close(here)
        last = kinds(ground)[-1]
        assert last[0] == "added"
        assert last[1].endswith("/end")
        assert len(last[1]) > 12_000

    def test_no_descriptor_is_left_open(self, ground: Ground) -> None:
        write(ground.layer / "a/b/c", "x")
        diff(ground.view)
        before = len(os.listdir("/proc/self/fd"))
        diff(ground.view)
        assert len(os.listdir("/proc/self/fd")) <= before

    def test_a_layer_that_is_not_there_is_an_error(self, ground: Ground) -> None:
        with pytest.raises(FileNotFoundError):
            diff(LayerView((str(ground.top / "nowhere"),), (str(ground.host),)))


class TestSeveralLayers:
    def test_the_topmost_wins_and_is_compared_with_the_base(self, ground: Ground) -> None:
        lower = ground.top / "lower"
        write(ground.host / "a", "host")
        write(ground.host / "b/c", "host")
        write(lower / "a", "lower")
        whiteout(lower / "b")
        write(lower / "new", "x")
        write(ground.layer / "a", "host")
        write(ground.layer / "b/d", "d")
        whiteout(ground.layer / "new")
        view = LayerView((str(ground.layer), str(lower)), (str(ground.host),))
        assert [(c.kind, c.path) for c in diff(view)] == [("deleted", "b/c"), ("added", "b/d")]

    def test_a_whole_copy_needs_no_marks(self, ground: Ground) -> None:
        write(ground.host / "gone", "1")
        write(ground.host / "same", "2")
        write(ground.layer / "same", "2")
        os.setxattr(ground.layer, "user.overlay.opaque", b"x")
        os.setxattr(write(ground.layer / "empty"), "user.overlay.whiteout", b"")
        view = LayerView((str(ground.layer),), (str(ground.host),), plain=True)
        assert [(c.kind, c.path) for c in diff(view)] == [("added", "empty"), ("deleted", "gone")]


def test_a_selection_is_its_paths_and_what_is_below() -> None:
    some = Selection(["a/b", "c/"])
    assert [some.has(path) for path in ("a", "a/b", "a/b/x", "a/bc", "c", "c/d", "d")] == [
        *(False, True, True, False, True, True, False)
    ]
    assert [some.leads_to(path) for path in ("a", "a/c", "c/d", "d")] == [True, False, True, False]
    assert some.missing(["a/b/x"]) == ["c"]
    assert Selection(["/"]).has("anything")
    assert not Selection([]).leads_to("anything")


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_collection_is_paused_and_then_as_before(is_enabled: bool) -> None:
    @without_collection()
    def fails() -> None:
        assert not gc.isenabled()
        raise LayerError("a test", why="it is one", fix="none")

    before = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        with pytest.raises(LayerError):
            fails()
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if before else gc.disable)()
