"""What the kernel's overlays can do, by its version."""

from __future__ import annotations

import pytest

from staddle.linux.overlay import takes_translated


@pytest.mark.parametrize(
    ("release", "yes"),
    [
        ("5.15.0-105-generic", False),
        ("5.18", False),
        ("5.18-rc3", False),
        ("6", True),
        ("5.19.0", True),
        ("6.1.0-47-amd64", True),
        ("6.18.44-fc-v445", True),
        ("7.2.13+deb14-amd64", True),
        ("10.0", True),
        ("strange", False),
    ],
)
def test_layers_with_translated_owners(release: str, yes: bool) -> None:
    assert takes_translated(release) == yes
