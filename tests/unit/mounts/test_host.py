"""Whose files root's sandbox sees as its own."""

from __future__ import annotations

import pytest

from staddle.mounts.host import needs_translation


@pytest.mark.parametrize(
    ("path", "writable", "translated"),
    [
        ("/usr", False, False),
        ("/etc/x", False, False),
        ("/usrx", False, True),
        ("/root", False, True),
        ("/", False, True),
        ("/opt/w", True, True),
        ("/home/u", True, True),
    ],
)
def test_what_is_granted_but_not_what_everybody_may_read(path: str, writable: bool, translated: bool) -> None:
    assert needs_translation(path, writable) is translated
