"""When the disk quota counts again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from staddle.limits.disk import DiskUsage
from staddle.sandbox.open import disk_quota
from staddle.sandbox.open.disk_quota import DiskQuota


@pytest.mark.parametrize(("takes", "blind"), [(0.01, 0.1), (5.0, 1.0)])
def test_a_count_that_takes_long_is_soon_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: float, blind: float
) -> None:
    """Whoever makes many files has no long time to write a large one unseen."""
    now = [100.0]
    monkeypatch.setattr(disk_quota.time, "monotonic", lambda: now[0])
    quota: Any = DiskQuota(None, 1 << 20, beside=str(tmp_path))
    quota._agent = object()

    def counted(most: int | None) -> DiskUsage:
        now[0] += takes
        return DiskUsage(0, 0)

    quota._counted = counted
    quota.look((1, 1))
    assert quota._not_before - now[0] == pytest.approx(blind)


def test_deletions_elsewhere_do_not_hide_what_was_written_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, taken, ended = [100.0], [1 << 10], []
    monkeypatch.setattr(disk_quota.time, "monotonic", lambda: now[0])
    quota: Any = DiskQuota(None, 1 << 20, beside=str(tmp_path))
    quota._agent = SimpleNamespace(end_everything=lambda: ended.append(now[0]))
    quota._count = lambda most: DiskUsage(taken[0], 1)
    quota.look((50 << 20, 100))
    taken[0] = 20 << 20  # between two checks, others delete more than that
    for _ in range(5):
        now[0] += 1
        quota.look((40 << 20, 100))
    assert ended
