"""Root's sandbox is somebody else, or there is none."""

from __future__ import annotations

import os
import sys

import pytest

from staddle.linux import idmaps, process
from staddle.linux.idmaps import unprivileged_uid
from staddle.linux.userns import Obstacle

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
