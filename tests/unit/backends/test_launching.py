"""Which filter goes with which plan."""

from __future__ import annotations

import os

from staddle.backends.launching import Descriptors, filter_profile
from tests.unit.mounts.plans import plan, read, write


def test_setuid_files_are_refused_where_the_host_is_written() -> None:
    assert filter_profile(plan(grants=(read("/r"),))) == "namespaces"
    assert filter_profile(plan(grants=(read("/r"), write("/w")))) == "namespaces-nosuid"


# What a launcher is handed by descriptor.


def test_a_descriptor_is_never_one_of_the_standard_three() -> None:
    saved = os.dup(0)
    os.close(0)
    give = Descriptors()
    try:
        assert give.holding(b"x") > 2
    finally:
        give.close()
        os.dup2(saved, 0)
        os.close(saved)
