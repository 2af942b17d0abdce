"""Layers under a real overlay: mounted by a child, changed inside, looked at and committed from outside."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from staddle.errors import CommitFailed, CommitRefused
from staddle.layers import trash
from staddle.layers.changes import diff
from staddle.layers.commit import commit
from staddle.layers.merged_view import LayerView
from staddle.layers.stack import Stack
from staddle.layers.store import Store, home_for
from staddle.linux import mounts, overlay
from staddle.linux.own_mounts import with_own_mounts
from tests.support.layers_overlay import fill, inside, picture

pytestmark = pytest.mark.both_users


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Layers on a tmpfs, and on the file system of /var/tmp."""
    monkeypatch.setenv("STADDLE_LAYERS", "/dev/shm" if request.param == "memory" else "/var/tmp")
    with Store(home_for()) as made:
        yield made
    trash.wait()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    directory = tmp_path / "host"
    fill(directory, [("a", "a\n"), ("d/e/f", "f\n"), ("d/g", "g\n"), ("link", "-> a")])
    return directory


def apart(work: Callable[[], None]) -> None:
    """Do `work` in a child with mounts of its own; AssertionError and the like are raised here."""
    for fd in with_own_mounts(work):
        os.close(fd)


def errno_of(function: Callable[..., object], *args: object, **options: object) -> int:
    try:
        function(*args, **options)
    except OSError as error:
        return error.errno or 0
    return 0


def mounted(stack: Stack, place: Path) -> None:
    place.mkdir(exist_ok=True)
    tree = overlay.overlay(stack.lowers, stack.top.upper, stack.top.work)
    mounts.attach(tree, os.open(place, os.O_PATH))
    os.close(tree)


class TestMount:
    @pytest.mark.parametrize(
        "name", ["plain", "a b'\"c", "a:b,c=d", "back\\slash\\:", "new\nline", "n" * 255]
    )
    def test_any_name_of_a_workspace(self, store: Store, tmp_path: Path, name: str) -> None:
        host = tmp_path / name
        fill(host, [("f", "f\n")])
        stack = Stack.new(store, [str(host)])
        seen = inside(stack, lambda place: (place / "g").write_text("g\n"), tmp_path / "mount")
        assert sorted(seen) == ["f", "g"]
        assert os.listdir(host) == ["f"]
        assert [(change.kind, change.path) for change in diff(stack.view())] == [("added", "g")]

    def test_the_mount_table_tells_nothing_about_the_host(
        self, store: Store, host: Path, tmp_path: Path
    ) -> None:
        stack = Stack.new(store, [str(host)])

        def look(place: Path) -> None:
            lines = Path("/proc/self/mountinfo").read_text().splitlines()
            [line] = [line for line in lines if line.split()[4] == str(place)]
            options = line.partition(" - ")[2]
            assert str(host) not in options
            assert store.path not in options
            assert "nosuid,nodev" in line

        inside(stack, look, tmp_path / "mount")

    def test_a_hundred_layers_and_their_squash(self, store: Store, host: Path, tmp_path: Path) -> None:
        stack = Stack.new(store, [str(host)])
        for number in range(120):
            upper = Path(stack.top.upper)
            (upper / f"n{number}").write_text(str(number))
            (upper / "last").write_text(str(number))
            if number:
                os.mknod(upper / f"n{number - 1}", stat.S_IFCHR, 0)
            stack = stack.freeze().stack()
        assert len(stack.lowers) == 121
        seen = inside(stack, lambda _: None, tmp_path / "mount")
        assert sorted(set(seen) - set(picture(host))) == ["last", "n119"]
        squashed = stack.freeze().squashed().stack()
        assert len(squashed.lowers) == 2
        assert inside(squashed, lambda _: None, tmp_path / "mount") == seen

    def test_the_way_for_older_kernels_gives_the_same(self, store: Store, host: Path, tmp_path: Path) -> None:
        stack = Stack.new(store, [str(host)])
        inside(stack, lambda place: (place / "a").write_text("changed"), tmp_path / "mount")
        following = stack.freeze().stack()

        def work() -> None:
            place = tmp_path / "mount"
            fds = [
                os.open(path, os.O_PATH)
                for path in (*following.lowers, following.top.upper, following.top.work)
            ]
            tree = overlay.in_one_string(fds[:-2], *fds[-2:])
            mounts.attach(tree, os.open(place, os.O_PATH))
            assert (place / "a").read_text() == "changed"
            (place / "new").write_text("x")
            assert errno_of(os.mknod, place / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3)) == errno.EPERM
            assert Path("/proc/self/mountinfo").read_text().count(" - overlay ") == 1

        apart(work)
        assert os.listdir(following.top.upper) == ["new"]

    def test_without_an_upper_layer_it_is_read_only(self, store: Store, host: Path, tmp_path: Path) -> None:
        stack = Stack.new(store, [str(host)])
        inside(stack, lambda place: (place / "a").write_text("changed"), tmp_path / "mount")

        def work() -> None:
            tree = overlay.overlay([stack.top.upper, *stack.lowers])
            place = tmp_path / "mount"
            mounts.attach(tree, os.open(place, os.O_PATH))
            assert (place / "a").read_text() == "changed"
            assert errno_of((place / "a").write_text, "x") == errno.EROFS

        apart(work)

    def test_one_takes_the_place_of_another_under_a_process(
        self, store: Store, host: Path, tmp_path: Path
    ) -> None:
        stack = Stack.new(store, [str(host)])
        following = stack.freeze().stack()

        def work() -> None:
            place = tmp_path / "mount"
            mounted(stack, place)
            (place / "before").write_text("1")
            os.chdir(place)
            tree = overlay.overlay(following.lowers, following.top.upper, following.top.work)
            aside = tmp_path / "aside"
            aside.mkdir()
            overlay.exchange_together([(tree, str(place), str(aside))])
            mounts.umount(str(aside))
            assert Path("/proc/self/mountinfo").read_text().count(" - overlay ") == 1
            assert (place / "before").read_text() == "1"
            (place / "after").write_text("2")
            os.chdir(place)
            assert sorted(set(os.listdir()) - {"a", "d", "link"}) == ["after", "before"]

        apart(work)
        assert os.listdir(stack.top.upper) == ["before"]
        assert os.listdir(following.top.upper) == ["after"]

    def test_a_frozen_layer_is_never_written(self, store: Store, host: Path, tmp_path: Path) -> None:
        stack = Stack.new(store, [str(host)])
        inside(stack, lambda place: (place / "d/g").write_text("one"), tmp_path / "mount")
        before = picture(stack.top.upper)
        point = stack.freeze()
        for _ in range(3):

            def spoil(place: Path) -> None:
                (place / "d/g").write_text("two")
                (place / "d/g").chmod(0o600)
                shutil.rmtree(place / "d")
                (place / "a").unlink()

            inside(point.stack(), spoil, tmp_path / "mount")
        assert picture(stack.top.upper) == before
        assert inside(point.stack(), lambda _: None, tmp_path / "mount")["d/g"][2] == b"one"


class TestWhatASandboxCannotFake:
    def test_marks_of_the_kernel(self, store: Store, host: Path, tmp_path: Path) -> None:
        stack = Stack.new(store, [str(host)])

        def fake(place: Path) -> None:
            assert errno_of(os.mknod, place / "gone", stat.S_IFCHR, 0) == errno.EPERM
            for path, name, value in (
                ("d", "opaque", b"y"),
                ("d/e", "opaque", b"x"),
                ("d/g", "whiteout", b""),
            ):
                errno_of(os.setxattr, place / path, f"user.overlay.{name}", value)
            (place / "d/empty").write_text("")
            errno_of(os.setxattr, place / "d/empty", "user.overlay.whiteout", b"")
            assert sorted(os.listdir(place / "d")) == ["e", "empty", "g"]

        inside(stack, fake, tmp_path / "mount")
        assert [(change.kind, change.path) for change in diff(stack.view())] == [("added", "d/empty")]
        commit(stack.view())
        assert (host / "d/e/f").read_text() == "f\n"
        assert os.listxattr(host / "d/empty") == []

    def test_files_that_their_owner_may_not_read_are_seen_and_stay_closed(
        self, store: Store, host: Path, tmp_path: Path
    ) -> None:
        stack = Stack.new(store, [str(host)])

        def close(place: Path) -> None:
            (place / "closed").write_text("content\n")
            (place / "a").write_text("a\n")
            (place / "way").mkdir()
            (place / "way/in").mkdir()
            (place / "way/in/file").write_text("deep\n")
            for path in ("closed", "a", "way/in/file", "way/in", "way"):
                (place / path).chmod(0)

        # The picture in there is made by an owner with all capabilities: it can look.
        inside(stack, close, tmp_path / "mount")
        changes = {change.path: change for change in diff(stack.view())}
        assert {path: change.kind for path, change in changes.items()} == {
            "a": "mode",
            "closed": "added",
            "way": "added",
            "way/in": "added",
            "way/in/file": "added",
        }
        assert "+deep" in changes["way/in/file"].text_diff()
        copy = stack.copy()
        for upper in (stack.top.upper, copy.layers[0].upper):
            for path in ("a", "closed", "way"):
                assert stat.S_IMODE(os.lstat(f"{upper}/{path}").st_mode) == 0
        commit(stack.view())
        assert stat.S_IMODE((host / "closed").stat().st_mode) == 0
        (host / "closed").chmod(0o600)
        assert (host / "closed").read_text() == "content\n"
        (host / "way").chmod(0o700)
        (host / "way/in").chmod(0o700)

    def test_deeper_than_a_path_can_say(self, store: Store, host: Path, tmp_path: Path) -> None:
        stack = Stack.new(store, [str(host)])
        name = "x" * 240

        def dig(place: Path) -> None:
            os.chdir(place)
            for _ in range(40):
                os.mkdir(name)
                os.chdir(name)
            Path("end").write_text("end")
            os.chdir("/")
            raise OSError(errno.EDOM, "dug")  # the picture could not be taken

        with pytest.raises(OSError, match="Numerical argument"):
            inside(stack, dig, tmp_path / "mount")
        assert len(diff(stack.view())) == 41
        point = stack.copy().squashed()
        assert len(diff(point.view())) == 41
        commit(stack.view())
        assert diff(stack.view()) == []
        from staddle.files.remove_tree import remove

        remove((os.fsencode(host),))  # deeper than pytest can delete

    @pytest.mark.slow
    def test_directories_swapped_for_links_while_we_look(
        self, store: Store, host: Path, tmp_path: Path
    ) -> None:
        """Nothing outside is read, written or listed, whatever the sandbox does meanwhile."""
        outside = tmp_path / "outside"
        fill(outside, [("f", "canary"), ("secret", "canary")])
        stack = Stack.new(store, [str(host)])
        ready = os.pipe()

        def race() -> None:
            mounted(stack, tmp_path / "mount")
            place = tmp_path / "mount"
            (place / "real").mkdir()
            (place / "real/f").write_text("mine")
            os.symlink(outside, place / "evil")
            os.write(ready[1], b"x")
            for _ in range(100_000):
                for one, other in (("real", "d2"), ("evil", "real"), ("real", "evil"), ("d2", "real")):
                    errno_of(os.rename, place / one, place / other)
                if os.path.exists(tmp_path / "stop"):
                    break

        thread = threading.Thread(target=apart, args=(race,))
        thread.start()
        try:
            os.read(ready[0], 1)
            for _ in range(150):
                changes = diff(stack.view())
                for change in changes:
                    assert "secret" not in change.path
                    assert "canary" not in change.text_diff()
                errno_or_done(lambda: commit(stack.view()))
                assert picture(outside) == {
                    name: ("file", stat.S_IMODE((outside / name).stat().st_mode), b"canary")
                    for name in ("f", "secret")
                }
                assert "secret" not in {path.rpartition("/")[2] for path in picture(host)}
        finally:
            (tmp_path / "stop").touch()
            thread.join()
            for fd in ready:
                os.close(fd)


def errno_or_done(work: Callable[[], object]) -> None:
    """A commit of a tree in motion may refuse; it may not do harm."""
    from staddle.errors import StaddleError

    try:
        work()
    except (OSError, StaddleError):
        pass


class TestHosts:
    """Where the workspace itself lies."""

    def test_a_workspace_that_is_in_an_overlay_itself(self, host: Path, tmp_path: Path) -> None:
        """As in a container: a directory of a lower layer cannot be renamed there."""
        (host / "closed/deep").mkdir(parents=True)
        (host / "closed/deep/f").write_text("x")
        (host / "closed").chmod(0o555)
        outer, layer, state = tmp_path / "outer", tmp_path / "layer", tmp_path / "outer/.state"
        for name in ("up", "work", "outer", "layer"):
            (tmp_path / name).mkdir()
        fill(
            layer, [("a", "new\n"), ("new/n", "n\n"), ("d/g/now", "a directory\n"), ("link", "a file now\n")]
        )
        for name in ("closed", "d/e"):
            os.mknod(layer / name, stat.S_IFCHR, 0)

        def work() -> None:
            tree = overlay.overlay([str(tmp_path / "host")], str(tmp_path / "up"), str(tmp_path / "work"))
            mounts.attach(tree, os.open(outer, os.O_PATH))
            os.environ["XDG_STATE_HOME"] = str(state)
            view = LayerView((str(layer),), (str(outer),))
            before = picture(outer)
            commit(view, progress=lambda *_: None)
            trash.wait()
            assert diff(view) == []
            after = picture(outer)
            assert sorted(set(before) - set(after)) == [
                "closed",
                "closed/deep",
                "closed/deep/f",
                "d/e",
                "d/e/f",
            ]
            assert after["a"][2] == b"new\n"
            assert after["d/g/now"][2] == b"a directory\n"
            # And back, by the steps that a failure would take.
            shutil.rmtree(layer / "d")
            fill(layer, [("d", "a file now\n"), ("z", "z\n")])

            def fail(done: int, total: int) -> None:
                if done == total:
                    (outer / "z").write_text("the host was quicker")

            before = picture(outer)
            with pytest.raises((CommitRefused, CommitFailed)):
                commit(view, progress=fail)
            (outer / "z").unlink()
            assert picture(outer) == before

        apart(work)
        assert (host / "d/e/f").read_text() == "f\n"
        (host / "closed").chmod(0o755)

    def test_a_workspace_on_another_file_system_than_its_layers(self, tmp_path: Path) -> None:
        def work() -> None:
            for name in ("host", "layer"):
                (tmp_path / name).mkdir()
                mounts.mount("tmpfs", str(tmp_path / name), "tmpfs")
            os.environ["XDG_STATE_HOME"] = str(tmp_path / "state")
            fill(tmp_path / "host", [("a", "old"), ("d/f", "f")])
            fill(tmp_path / "layer", [("a", "new"), ("n/m", "m")])
            os.mknod(tmp_path / "layer/d", stat.S_IFCHR, 0)
            view = LayerView((str(tmp_path / "layer"),), (str(tmp_path / "host"),))
            commit(view)
            trash.wait()
            assert sorted(picture(tmp_path / "host")) == ["a", "n", "n/m"]
            assert not (tmp_path / "state").exists()

        apart(work)
