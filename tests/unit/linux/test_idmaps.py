"""An id that nobody has, and the map that shows an owner as it."""

from __future__ import annotations

import itertools
import os
import sys

import pytest

from staddle.linux import idmaps, process
from staddle.linux.idmaps import FIRST_UNUSED, extents, unprivileged_uid, unused_id
from staddle.linux.userns import Obstacle

WHOLE = "         0          0 4294967295\n"


def test_on_a_host_it_is_far_from_every_account_and_differs_between_processes() -> None:
    ids = {unused_id(WHOLE, WHOLE, pid=pid) for pid in (1, 2, 4194303)}
    assert len(ids) == 3
    assert all(FIRST_UNUSED <= number < 0x7FFE0000 for number in ids if number)


def test_an_account_of_that_number_is_avoided() -> None:
    assert unused_id(WHOLE, WHOLE, frozenset({FIRST_UNUSED, FIRST_UNUSED + 1})) == FIRST_UNUSED + 2


@pytest.mark.parametrize(
    ("uid_map", "gid_map", "expected"),
    [
        ("0 100000 65536\n", "0 100000 65536\n", 65533),
        ("0 1000 1\n1 100000 70000\n", "0 1000 1\n1 100000 65000\n", 65000),
        ("0 1000 1\n", "0 1000 1\n", None),
        ("0 0 1001\n", "0 0 1001\n", None),
        ("", "", None),
    ],
)
def test_in_a_container_it_is_one_of_the_last_that_exist(
    uid_map: str, gid_map: str, expected: int | None
) -> None:
    assert unused_id(uid_map, gid_map) == expected


@pytest.mark.parametrize("owner", [0, 1, 1000, FIRST_UNUSED - 1])
def test_the_map_shows_the_owner_as_the_stranger_and_the_others_as_they_are(owner: int) -> None:
    unprivileged_uid = FIRST_UNUSED
    lines = extents(owner, unprivileged_uid)

    def shown(number: int) -> int | None:
        found = [there + number - here for here, there, count in lines if here <= number < here + count]
        assert len(found) <= 1
        return found[0] if found else None

    assert shown(owner) == unprivileged_uid
    for other in {0, 1, 999, 1000, 65534, FIRST_UNUSED - 1} - {owner}:
        assert shown(other) == other
    assert shown(unprivileged_uid) is None
    targets = sorted((there, count) for _, there, count in lines)
    for (first, count), (second, _) in itertools.pairwise(targets):
        assert first + count <= second  # the kernel refuses a map that overlaps


# Root's sandbox is somebody else, or there is none.


ALL = (1 << 41) - 1


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(process, "capabilities", lambda: (ALL, ALL, 0))
    monkeypatch.setattr(idmaps, "unused_id_here", lambda: 0x70000001)


def test_an_ordinary_user_stays_who_he_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert unprivileged_uid() is None


@pytest.mark.usefixtures("root")
def test_root_becomes_an_id_that_nobody_has() -> None:
    assert unprivileged_uid() == 0x70000001


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(("bit", "name"), [(6, "CAP_SETGID"), (7, "CAP_SETUID"), (21, "CAP_SYS_ADMIN")])
def test_root_that_cannot_is_refused(bit: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "capabilities", lambda: (ALL & ~(1 << bit), ALL, 0))
    found = unprivileged_uid()
    assert isinstance(found, Obstacle)
    assert name in found.why


@pytest.mark.usefixtures("root")
def test_root_where_no_other_id_exists_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idmaps, "unused_id_here", lambda: None)
    assert isinstance(unprivileged_uid(), Obstacle)


def test_elsewhere_than_on_linux_there_is_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    found = unprivileged_uid()
    assert isinstance(found, Obstacle)
    assert "seatbelt" in found.fix
