"""Which filter goes with which plan."""

from __future__ import annotations

from staddle.backends.launching import filter_profile
from tests.unit.mounts.plans import plan, read, write


def test_setuid_files_are_refused_where_the_host_is_written() -> None:
    assert filter_profile(plan(grants=(read("/r"),))) == "namespaces"
    assert filter_profile(plan(grants=(read("/r"), write("/w")))) == "namespaces-nosuid"
