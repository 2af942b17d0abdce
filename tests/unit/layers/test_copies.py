"""Copies that are worked in where there are no layers: made, compared, put in each other's place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from staddle.background import do_later
from staddle.errors import LayerError
from staddle.files.tree import Tree, walk
from staddle.layers import trash
from staddle.layers.changes import diff
from staddle.layers.copied_tree import condense, exchange
from staddle.layers.differences import Selection, differences
from staddle.layers.discard import bring_back
from staddle.layers.merge import copy_of, flatten
from staddle.layers.merged_view import LayerView, OpenLayers
from staddle.layers.store import home_for_copies
from tests.support.layers_overlay import picture
from tests.unit.layers.layer import whiteout, write


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for path in ("a", "d/b", "d/e/c", "secret", "d/key"):
        write(tmp_path / "host" / path, path)
    return tmp_path / "host"


def made(place: Path) -> Path:
    place.mkdir()
    return place


def test_what_is_hidden_is_neither_copied_nor_compared(host: Path, tmp_path: Path) -> None:
    copy = made(tmp_path / "copy")
    copy_of(str(host), str(copy), without=Selection(["secret", "d/key"]))
    assert picture(copy).keys() == {"a", "d", "d/b", "d/e", "d/e/c"}
    write(copy / "secret", "another")
    write(copy / "new", "1")
    view = LayerView((str(copy),), (str(host),), True, ("secret", "d/key"))
    assert [(change.kind, change.path) for change in diff(view)] == [("added", "new")]


def test_a_copy_of_a_copy_has_what_its_owner_closed(tmp_path: Path) -> None:
    write(tmp_path / "one/closed/file", "x")
    (tmp_path / "one/closed").chmod(0)
    try:
        copy_of(str(tmp_path / "one"), str(made(tmp_path / "two")), ours=True)
        assert stat.S_IMODE((tmp_path / "two/closed").stat().st_mode) == 0
        (tmp_path / "two/closed").chmod(0o700)
        assert (tmp_path / "two/closed/file").read_text() == "x"
    finally:
        for name in ("one", "two"):
            os.chmod(tmp_path / name / "closed", 0o700)


def test_layers_over_a_directory_become_a_plain_one(host: Path, tmp_path: Path) -> None:
    layer = made(tmp_path / "layer")
    write(layer / "d/b", "changed")
    write(layer / "secret", "mine")
    whiteout(layer / "a")
    os.mkdir(layer / "d/e")
    os.setxattr(layer / "d/e", "user.overlay.opaque", b"y")
    flatten([str(layer)], str(host), str(made(tmp_path / "flat")), without=Selection(["d/key"]))
    assert {
        path: content for path, (kind, _, content) in picture(tmp_path / "flat").items() if kind == "file"
    } == {
        "d/b": b"changed",
        "secret": b"mine",
    }
    assert os.listxattr(tmp_path / "flat/d/e") == []


def test_a_copy_that_was_worked_in_becomes_the_layer_that_it_would_have_been(
    host: Path, tmp_path: Path
) -> None:
    copy, layer = made(tmp_path / "copy"), made(tmp_path / "layer")
    copy_of(str(host), str(copy))
    write(copy / "a", "changed", 0o600)
    os.link(copy / "a", copy / "d/again")
    (copy / "secret").unlink()
    (copy / "d/e/c").unlink()
    (copy / "d/e").rmdir()
    (copy / "d/e").symlink_to("b")
    (copy / "d/key").unlink()
    write(copy / "d/key/in it", "1")
    (copy / "d/key").chmod(0o500)
    with OpenLayers(LayerView((str(copy),), (str(host),), True)) as opened:
        found = list(differences(opened))
    with OpenLayers(LayerView((str(copy),), (str(host),), True)) as opened:
        condense(opened, found, str(layer))
    assert sorted(os.listdir(layer)) == ["a", "d", "secret"]
    assert (layer / "a").stat().st_nlink == 2
    flatten([str(layer)], str(host), str(made(tmp_path / "flat")))
    try:
        assert picture(tmp_path / "flat") == picture(copy)
    finally:
        for place in (copy, layer, tmp_path / "flat"):
            (place / "d/key").chmod(0o700)


def test_what_was_dropped_comes_back_with_the_way_to_it(host: Path, tmp_path: Path) -> None:
    copy = made(tmp_path / "copy")
    bring_back(str(host), ["d/e", "a", "secret", "nothing"], str(copy), ["secret"])
    assert picture(copy).keys() == {"a", "d", "d/e", "d/e/c"}
    bring_back(str(host), ["d"], str(made(tmp_path / "other")), ["d/key"])
    assert picture(tmp_path / "other").keys() == {"d", "d/b", "d/e", "d/e/c"}


def test_a_link_in_the_way_is_not_followed(host: Path, tmp_path: Path) -> None:
    copy, outside = made(tmp_path / "copy"), made(tmp_path / "outside")
    (copy / "d").symlink_to(outside)
    with pytest.raises(LayerError, match="alone"):
        bring_back(str(host), ["d/b"], str(copy))
    assert os.listdir(outside) == []


def test_two_directories_have_each_others_content(host: Path, tmp_path: Path) -> None:
    other = made(tmp_path / "other")
    write(other / "a", "of the other")
    write(other / "closed/x", "x")
    (other / "closed").chmod(0o500)
    other.chmod(0o750)
    inode = host.stat().st_ino
    exchange(str(host), str(other))
    (host / "closed").chmod(0o700)
    assert picture(host).keys() == {"a", "closed", "closed/x"}
    assert (host.stat().st_ino, stat.S_IMODE(host.stat().st_mode)) == (inode, 0o750)


def test_an_exchange_that_fails_is_taken_back(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = made(tmp_path / "other")
    write(other / "a", "1")
    write(other / "z", "1")
    before = picture(host)
    rename, count = os.rename, [0]

    def failing(*args: object, **options: object) -> None:
        count[0] += 1
        if count[0] == 5:
            raise OSError(5, "an error")
        rename(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="an error"):
        exchange(str(host), str(other))
    assert picture(host) == before


def test_a_walk_comes_everywhere(host: Path) -> None:
    with Tree(str(host), ours=False) as tree:
        assert {path for path, _ in walk(tree)} == picture(host).keys()
        assert {path for path, _ in walk(tree, "d")} == {"b", "key", "e", "e/c"}


def test_copies_are_beside_their_directory_if_that_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = made(tmp_path / "work")
    monkeypatch.setenv("STADDLE_LAYERS", str(tmp_path))
    assert home_for_copies(str(work)) == f"{os.path.realpath(tmp_path)}/staddle-{os.geteuid()}"
    with pytest.raises(LayerError, match="cannot be shown"):
        home_for_copies(str(work), lambda _: False)
    monkeypatch.setenv("STADDLE_LAYERS", str(work))
    with pytest.raises(LayerError, match="in the way"):
        home_for_copies(str(work))


def test_what_is_to_be_deleted_is_waited_for(tmp_path: Path) -> None:
    done: list[int] = []
    for number in range(3):
        do_later(lambda number=number: done.append(number))  # type: ignore[misc]
    trash.wait()
    assert sorted(done) == [0, 1, 2]
    write(tmp_path / "home/1/upper/file", "x")
    trash.move(str(tmp_path / "home/1"), str(tmp_path / "home"))
    assert not (tmp_path / "home/1").exists()
    trash.wait()
    assert not (tmp_path / "home").exists()
