"""When the disk quota counts again."""

from __future__ import annotations

from pathlib import Path
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
