"""Copies of a directory of the host: whole, shared, exact about what has changed, gone with the last user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from staddle.layers import frozen_base
from staddle.layers.frozen_base import FreezeBounds, NotFrozen, freeze_base
from staddle.layers.store import Store
from tests.support.threads import at_once


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    (tmp_path / "store").mkdir(mode=0o700)
    with Store(str(tmp_path / "store")) as made:
        yield made


@pytest.fixture
def host(tmp_path: Path) -> Path:
    place = tmp_path / "host"
    (place / "sub").mkdir(parents=True)
    (place / "file").write_text("one\n")
    (place / "sub/deep").write_text("two\n")
    return place


def test_a_change_of_the_same_size_right_after_the_copy_is_found(store: Store, host: Path) -> None:
    for number in range(20):
        (host / "file").write_text(f"{number:3}\n")
        base = freeze_base(store, str(host))
        assert Path(base, "file").read_text() == f"{number:3}\n"
        assert (host / "file").stat().st_ctime_ns <= base.taken
        (host / "file").write_text(f"{number + 1:3}\n")
        assert not base.is_current
        assert (host / "file").stat().st_ctime_ns > base.taken
        base.drop()


@pytest.mark.parametrize("what", ["content", "mode", "added", "deleted", "renamed", "link", "directory"])
def test_every_kind_of_change_is_found(store: Store, host: Path, what: str) -> None:
    base = freeze_base(store, str(host))
    assert base.is_current
    {
        "content": lambda: (host / "sub/deep").write_text("2wo\n"),
        "mode": lambda: (host / "sub").chmod(0o700),
        "added": (host / "sub/new").touch,
        "deleted": (host / "sub/deep").unlink,
        "renamed": lambda: (host / "sub/deep").rename(host / "sub/other"),
        "link": lambda: os.link(host / "file", host / "again"),
        "directory": (host / "empty").mkdir,
    }[what]()
    assert not base.is_current
    base.drop()


def test_several_have_one_copy_which_goes_with_the_last(store: Store, host: Path) -> None:
    found = at_once(*[lambda: freeze_base(store, str(host))] * 8)
    assert len({id(base) for base in found}) == 1
    for base in found:
        assert os.path.isdir(base)
        base.drop()
    assert not os.path.exists(found[0])


def test_another_state_has_another_copy(store: Store, host: Path) -> None:
    first = freeze_base(store, str(host))
    (host / "file").write_text("later\n")
    second = freeze_base(store, str(host))
    without = freeze_base(store, str(host), ["sub"])
    assert len({first, second, without}) == 3
    assert Path(first, "file").read_text() == "one\n"
    assert os.listdir(f"{without}/sub") == []
    for base in (first, second, without):
        base.drop()


def test_files_of_another_user_are_not_copied(
    store: Store, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(NotFrozen, match="another user"):
        freeze_base(store, str(host))


def test_a_walk_stops_at_the_bounds(store: Store, host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked, entries = [], frozen_base._entries

    def counted(*given: Any) -> Iterator[Any]:
        for each in entries(*given):
            walked.append(each)
            yield each

    monkeypatch.setattr(frozen_base, "_entries", counted)
    for number in range(50):
        (host / f"{number}").touch()
    for _ in range(2):  # the second time it is known
        with pytest.raises(NotFrozen, match="more than 10 entries"):
            freeze_base(store, str(host), bounds=FreezeBounds(10, 1 << 20))
    assert len(walked) == 11
    with pytest.raises(NotFrozen, match="0 MB"):
        freeze_base(store, str(host), bounds=FreezeBounds(100, 5))


def test_where_there_is_little_room_nothing_is_copied(
    store: Store, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(store), "takes_more", False)
    with pytest.raises(NotFrozen, match="room"):
        freeze_base(store, str(host))


def test_nothing_is_left_of_a_copy_that_fails(
    store: Store, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(frozen_base, "copy_of", failing)
    before = set(os.listdir(store.path)) - {"gone"}
    with pytest.raises(NotFrozen, match="No space"):
        freeze_base(store, str(host))
    assert set(os.listdir(store.path)) - {"gone"} == before
