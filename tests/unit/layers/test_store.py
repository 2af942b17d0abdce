"""Layers lie in a private place, go with their last user, and with their process."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from staddle.errors import LayerError
from staddle.layers import store, trash
from staddle.layers.stack import Stack
from staddle.layers.store import Store, home_for, sweep
from tests.support.threads import at_once

SRC = Path(store.__file__).parents[2]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for stores that nobody else uses."""
    chosen = tmp_path / "place"
    chosen.mkdir()
    monkeypatch.setenv(store.VARIABLE, str(chosen))
    yield chosen
    trash.wait()
    assert os.listdir(chosen) == [], "something was left"


def statvfs(room: int, used: int = 0) -> SimpleNamespace:
    """What the kernel says of a file system with so many bytes of room, and so many in use."""
    return SimpleNamespace(f_frsize=1, f_bavail=room, f_bfree=room, f_blocks=room + used)


class TestPlace:
    def test_it_is_private(self, place: Path) -> None:
        with Store(home_for()) as made:
            for path in (made.home, made.path):
                assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
            assert os.path.dirname(made.home) == str(place)

    def test_never_within_a_workspace_nor_around_one(self, place: Path) -> None:
        for workspace in (place, place.parent):
            with pytest.raises(LayerError, match="is in the way"):
                home_for([str(workspace)])
            assert os.listdir(place) == []
        inside = place / f"staddle-{os.geteuid()}" / "below"
        inside.mkdir(parents=True)
        with pytest.raises(LayerError, match="is in the way"):
            home_for([str(inside)])
        inside.rmdir()
        inside.parent.rmdir()

    def test_a_link_in_its_place_is_not_followed(self, place: Path, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        link = place / f"staddle-{os.geteuid()}"
        link.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(LayerError, match="no place for the layers"):
            home_for()
        link.unlink()

    @pytest.mark.needs_root
    def test_a_directory_of_somebody_else_is_not_taken(self, place: Path) -> None:
        squatted = place / "staddle-0"
        squatted.mkdir()
        os.chown(squatted, 1234, 1234)
        with pytest.raises(LayerError, match="another user"):
            home_for()
        squatted.rmdir()

    def test_without_attributes_it_is_no_place(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(os, "setxattr", refuse)
        with pytest.raises(LayerError, match="no extended attributes there") as error:
            home_for()
        assert store.VARIABLE in error.value.fix
        (place / f"staddle-{os.geteuid()}").rmdir()

    def test_little_memory_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(store.VARIABLE, raising=False)
        monkeypatch.setattr(os, "statvfs", lambda place: statvfs(room=1 << 20))
        assert "/dev/shm" not in store._places()
        monkeypatch.setattr(store, "available", lambda: 16 << 30)
        monkeypatch.setattr(os, "statvfs", lambda place: statvfs(room=1 << 40))
        assert store._places()[0] == "/dev/shm"

    def test_layers_are_in_memory_only_within_a_budget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(store.VARIABLE, raising=False)
        monkeypatch.setattr(store, "available", lambda: 16 << 30)
        for used, first in ((0, "/dev/shm"), (2 << 30, "/dev/shm"), (3 << 30, "/var/tmp")):
            monkeypatch.setattr(os, "statvfs", lambda place, used=used: statvfs(room=1 << 40, used=used))
            assert store._places()[0] == first
            assert "/dev/shm" in store._places()  # at last: better than none

    def test_with_little_memory_available_they_are_on_a_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(store.VARIABLE, raising=False)
        monkeypatch.setattr(os, "statvfs", lambda place: statvfs(room=1 << 40))
        monkeypatch.setattr(store, "available", lambda: (4 << 30) - 1)
        assert store._places()[0] == "/var/tmp"

    @pytest.mark.needs_root
    def test_roots_layers_belong_to_whoever_mounts_them(self, place: Path) -> None:
        with Store(home_for(traversable=True), owner=(100000, 100001)) as made:
            assert stat.S_IMODE(os.stat(made.home).st_mode) == 0o711
            layer = made.layer().hold()
            for path in (made.path, layer.path, layer.upper, layer.work):
                status = os.stat(path)
                assert (status.st_uid, status.st_gid) == (100000, 100001)


class TestLayers:
    def test_the_mounted_directory_looks_like_its_base(self, place: Path, tmp_path: Path) -> None:
        base = tmp_path / "base"
        base.mkdir()
        base.chmod(0o751)
        with Store(home_for()) as made:
            layer = made.layer(like=str(base)).hold()
            assert stat.S_IMODE(os.stat(layer.upper).st_mode) == 0o751

    def test_a_layer_goes_with_its_last_user(self, place: Path, tmp_path: Path) -> None:
        with Store(home_for()) as made:
            parent = Stack.new(made, [str(tmp_path)])
            point = parent.freeze()
            forks = [point.stack() for _ in range(3)]
            shared = parent.top.path
            parent.close()
            parent.close()
            point.close()
            forks[0].close()
            forks[1].close()
            trash.wait()
            assert os.path.isdir(shared)
            assert not os.path.exists(forks[0].top.path)
            assert forks[2].lowers == (f"{shared}/upper", str(tmp_path))
            forks[2].close()
            trash.wait()
            assert os.listdir(made.path) == ["lock"]

    def test_what_its_owner_may_not_open_is_deleted_all_the_same(self, place: Path, tmp_path: Path) -> None:
        with Store(home_for()) as made:
            stack = Stack.new(made, [str(tmp_path)])
            (Path(stack.top.work) / "work").mkdir(mode=0)
            (Path(stack.top.upper) / "closed/deep").mkdir(parents=True)
            (Path(stack.top.upper) / "closed").chmod(0)
            stack.close()
            trash.wait()
            assert os.listdir(made.path) == ["lock"]

    def test_what_changed_since_a_point(self, place: Path, tmp_path: Path) -> None:
        with Store(home_for()) as made:
            stack = Stack.new(made, [str(tmp_path)])
            point = stack.freeze()
            later = point.stack()
            since = later.since(point)
            assert since is not None
            assert since.layers == (later.top.upper,)
            assert since.bases == (stack.top.upper, str(tmp_path))
            assert Stack.new(made, [str(tmp_path)]).since(point) is None

    def test_room_is_told(self, place: Path, tmp_path: Path) -> None:
        with Store(home_for()) as made:
            stack = Stack.new(made, [str(tmp_path)])
            assert stack.is_untouched()
            (Path(stack.top.upper) / "f").write_bytes(b"x" * 100_000)
            assert stack.top.usage() >= 100_000
            assert not stack.is_untouched()

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
    def test_a_full_place_is_told_with_a_way_out(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        with Store(home_for()) as made:
            real = os.mkdir

            def full(path: str, *args: int, **options: int) -> None:
                if path.endswith("/work"):
                    raise OSError(number, os.strerror(number), path)
                real(path, *args, **options)

            with monkeypatch.context() as patched:
                patched.setattr(os, "mkdir", full)
                with pytest.raises(LayerError, match="no room for the layers") as told:
                    made.layer()
            assert made.path in told.value.why
            assert store.VARIABLE in told.value.fix
            trash.wait()
            assert not [name for name in os.listdir(made.path) if name.isdigit()]

    def test_a_store_that_cannot_be_made_is_told_with_a_way_out(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = home_for()

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(store, "_claimed", full)
            with pytest.raises(LayerError, match=f"{home!r}: No space left"):
                Store(home)
        os.rmdir(home)

    def test_a_closed_store_makes_no_layers(self, place: Path) -> None:
        made = Store(home_for())
        made.close()
        made.close()
        with pytest.raises(LayerError, match="is closed"):
            made.layer()


class TestSweep:
    def test_what_a_killed_process_left_is_deleted(self, place: Path) -> None:
        code = (
            f"import sys, time; sys.path.insert(0, {str(SRC)!r})\n"
            "from staddle.layers.store import Store, home_for\n"
            "made = Store(home_for()); made.layer(); print(made.path, flush=True); time.sleep(60)"
        )
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        left = child.stdout.readline().strip()
        home = os.path.dirname(left)
        assert sweep(home) == 0
        assert os.path.isdir(left)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert sweep(home) == 1
        assert not os.path.exists(left)
        trash.wait()

    def test_our_own_is_left_alone(self, place: Path) -> None:
        with Store(home_for()) as made:
            assert sweep(made.home) == 0
            assert os.path.isdir(made.path)

    def test_a_grave_that_was_left_is_emptied(self, place: Path) -> None:
        home = home_for()
        os.makedirs(f"{home}/{trash.TRASH}/x/y/z")
        os.mkdir(f"{home}/unlocked")
        os.utime(f"{home}/unlocked", (1, time.time() - 120))
        assert sweep(home) == 1
        trash.wait()
        assert not os.path.exists(home)

    def test_a_place_that_is_not_there_is_clean(self, tmp_path: Path) -> None:
        assert sweep(str(tmp_path / "nowhere")) == 0

    def test_stores_made_and_closed_at_the_same_time(self, place: Path) -> None:
        def work() -> None:
            for _ in range(20):
                with Store(home_for()) as made:
                    made.layer().hold()
                    sweep(made.home)

        at_once(*[work] * 4)


def test_a_reserved_layer_is_prepared_before_it_is_handed_out_and_not_to_others(place: Path) -> None:
    with Store(home_for()) as made:
        taken: list[str] = []
        reserved = made.reserve(lambda _: taken.append(made.layer(reserved=True).upper))
        assert reserved not in taken
        assert made.reserve(taken.append) == reserved
        assert made.layer().upper != reserved
        assert made.layer(reserved=True).upper == reserved
        assert made.layer(reserved=True).upper != reserved
        assert len(taken) == 1
