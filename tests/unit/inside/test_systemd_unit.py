"""The launcher believes in a limit of its unit only where the control group says so."""

from __future__ import annotations

import pytest

from staddle.inside.systemd_unit import is_bounded


@pytest.mark.parametrize(
    ("text", "most", "bounded"),
    [
        (b"67108864\n", 64 << 20, True),
        (b"67104768\n", (64 << 20) - 1, True),
        (b"67108865\n", 64 << 20, False),
        (b"max\n", 64 << 20, False),
        (b"", 1, False),
        (b"50000 100000\n", 500, True),
        (b"50001 100000\n", 500, False),
        (b"max 100000\n", 500, False),
    ],
)
def test_a_limit_counts_only_when_the_control_group_says_so(text: bytes, most: int, bounded: bool) -> None:
    assert is_bounded(text, most) is bounded
