"""A test does not stay in quarantine for good."""

from __future__ import annotations

from datetime import date

from tests.conftest import QUARANTINE

_DAYS = 60


def test_each_entry_has_a_reason_and_is_not_old() -> None:
    for test, (since, seen) in QUARANTINE.items():
        assert "::" in test
        assert len(seen.split()) > 5, f"{test}: say what was seen"
        assert (date.today() - since).days < _DAYS, f"{test} is in quarantine for too long: mend it"
