"""A private systemd, started when the first test of a file asks; one backend after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernel.fresh_roots import BACKENDS, CHOICE
from tests.kernel.private_systemd import PrivateSystemd
from tests.kernel.systemd_sandbox import Sandbox, boot


@pytest.fixture(scope="module")
def machine() -> Iterator[PrivateSystemd]:
    """A machine for the tests of one file. Ask for it in tests that are marked `needs_root`."""
    with PrivateSystemd() as made:
        boot(made)
        yield made


@pytest.fixture(params=["user", "root"])
def sandbox(machine: PrivateSystemd, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """The backend as an ordinary user with a user manager, and as root with the system's."""
    made = Sandbox(machine, request.param == "user")
    yield made
    assert made.units() == [], "a unit was left behind"


@pytest.fixture(params=list(BACKENDS))
def fresh_root(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One backend with a fresh root after the other, for `tests.kernel.fresh_roots`."""
    monkeypatch.setenv(CHOICE, request.param)
    return str(request.param)
