"""A private systemd, started when the first test asks; one backend after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fresh_roots import BACKENDS, CHOICE
from tests.support.private_systemd import PrivateSystemd
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
