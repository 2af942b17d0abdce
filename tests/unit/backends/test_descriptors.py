"""What a launcher is handed by descriptor."""

from __future__ import annotations

import os

from staddle.backends.launching import Descriptors


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
