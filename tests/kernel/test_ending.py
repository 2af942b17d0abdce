"""Ending a launcher ends all that it started, at whatever moment."""

from __future__ import annotations

import secrets
import time

import pytest

from staddle import Policy, wrap
from staddle.launch import running
from tests.support.waiting import with_argument


@pytest.mark.parametrize("backend", ["bwrap", "namespaces", "landlock"])
def test_nothing_is_left_of_a_command_that_is_ended_while_it_is_set_up(backend: str) -> None:
    mark = f"81234.{secrets.randbelow(10**9):09}"
    for moment in range(8):
        process = wrap(["sleep", mark], Policy.agent(), backend=backend).popen()
        time.sleep(moment * 0.002)
        running.end(process)
        assert with_argument(mark) == []
