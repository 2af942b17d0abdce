"""What several files of tests ask for: a private systemd, one backend after the other, a place to work in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import staddle
from tests.support.fresh_roots import BACKENDS, CHOICE
from tests.support.private_systemd import PrivateSystemd
from tests.support.sandboxes import BACKENDS as BACKENDS_OF_SESSIONS
from tests.support.systemd_sandbox import Sandbox, boot
from tests.support.waiting import until


@pytest.fixture(scope="session")
def machine() -> Iterator[PrivateSystemd]:
    """One machine for the whole run. Ask for it in tests that are marked `needs_root`."""
    with PrivateSystemd() as made:
        boot(made)
        yield made


@pytest.fixture(params=["user", "root"])
def sandbox(machine: PrivateSystemd, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """The backend as an ordinary user with a user manager, and as root with the system's."""
    made = Sandbox(machine, request.param == "user")
    yield made
    until(lambda: made.units() == [])
    left = made.units()
    made.end(left)  # so that only the test that left it is told
    assert left == [], "a unit was left behind"


@pytest.fixture(params=list(BACKENDS))
def fresh_root(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One backend with a fresh root after the other, for `tests.support.fresh_roots`."""
    monkeypatch.setenv(CHOICE, request.param)
    return str(request.param)


@pytest.fixture(params=BACKENDS_OF_SESSIONS)
def sb(request: pytest.FixtureRequest) -> Iterator[staddle.Sandbox]:
    """A sandbox without a workspace of the host, on one backend after the other."""
    with staddle.Sandbox(backend=request.param) as made:
        yield made


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """An empty directory, in one that a test may fill."""
    made = tmp_path / "work"
    made.mkdir()
    return made
