"""Which limit made a command fail."""

from __future__ import annotations

import pytest

from staddle import Limits
from staddle.limits.usage import Events, ran_into, size

LIMITS = Limits(memory="100M", processes=64, disk="1G")
NONE = Events()


def told(exit_code: int, after: Events = NONE, **more: int) -> str | None:
    found = ran_into(LIMITS, exit_code, NONE, after, **more)  # type: ignore[arg-type]
    return found.limit if found else None


@pytest.mark.parametrize(
    ("exit_code", "after", "more", "limit"),
    [
        (0, NONE, {}, None),
        (1, NONE, {}, None),
        (137, NONE, {}, None),
        (137, Events(out_of_memory=1), {}, "memory"),
        (1, Events(out_of_memory=1), {}, "memory"),
        (0, Events(out_of_memory=1), {}, None),
        (137, NONE, {"ended": 2}, "memory"),
        (254, Events(refused_processes=9), {}, "processes"),
        (0, Events(refused_processes=9), {}, None),
        (1, Events(1, 1), {}, "memory"),
        (1, NONE, {"full": True}, "disk"),
        (0, NONE, {"full": True}, None),
    ],
)
def test_a_limit_is_a_reason_for_a_command_that_failed(
    exit_code: int, after: Events, more: dict[str, int], limit: str | None
) -> None:
    assert told(exit_code, after, **more) == limit


def test_what_happened_before_is_not_this_commands() -> None:
    before = Events(3, 4)
    assert ran_into(LIMITS, 1, before, before) is None


def test_a_limit_that_was_not_asked_for_is_not_told() -> None:
    assert ran_into(Limits(), 137, NONE, Events(1, 1), full=True) is None


def test_the_sentence_has_the_limit_in_it() -> None:
    found = ran_into(LIMITS, 137, NONE, Events(out_of_memory=1))
    assert found is not None
    assert "100 MiB" in found.sentence
    assert "limits.memory" in found.sentence
    assert [size(n) for n in (5, 1536, 1 << 30)] == ["5 bytes", "1.5 KiB", "1 GiB"]


def test_a_full_disk_tells_of_files_as_well_as_bytes() -> None:
    found = ran_into(Limits(disk="200M"), 1, NONE, NONE, full=True)
    assert found is not None
    assert "200 MiB, or 51,200 files" in found.sentence
