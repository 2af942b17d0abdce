"""A program is looked for as execvp does."""

from __future__ import annotations

import pytest

from staddle.inside.child import places


@pytest.mark.parametrize(
    ("name", "path", "expected"),
    [
        (b"git", b"/usr/bin:/bin", [b"/usr/bin/git", b"/bin/git"]),
        (b"./git", b"/usr/bin", [b"./git"]),
        (b"/bin/git", b"/usr/bin", [b"/bin/git"]),
        (b"git", b"/usr/bin::/bin", [b"/usr/bin/git", b"./git", b"/bin/git"]),
        (b"git", b"", [b"./git"]),
        (b"", b"/usr/bin", []),
    ],
)
def test_places(name: bytes, path: bytes, expected: list[bytes]) -> None:
    assert places(name, path) == expected
