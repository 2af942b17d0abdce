"""The sandboxes of a keeper with GPUs: each has one for itself."""

from __future__ import annotations

from typing import Any

import pytest

from staddle import Policy
from staddle.errors import FleetBusy
from staddle.fleet import warm


class FakeSandbox:
    def __init__(self, **options: Any) -> None:
        if options.pop("fails", False):
            raise OSError("no")
        self.policy, self.closed = options["policy"], False

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "Sandbox", FakeSandbox)


def test_each_sandbox_has_a_gpu_until_it_ends() -> None:
    sandboxes = warm.WarmSandboxes(2, 2, ["nvidia:0", "nvidia:3"])
    policy = Policy().with_devices("/dev/kvm")
    one, two = (sandboxes.take("kind", {"policy": policy}) for _ in range(2))
    assert sorted([one.policy.gpu, two.policy.gpu]) == [("nvidia:0",), ("nvidia:3",)]  # type: ignore[attr-defined]
    assert one.policy.devices == policy.devices  # type: ignore[attr-defined]
    with pytest.raises(FleetBusy):
        sandboxes.take("kind", {})
    sandboxes.give_back(one)
    sandboxes.give_back(one)
    again = sandboxes.take("kind", {})
    assert again.policy.gpu == one.policy.gpu  # type: ignore[attr-defined]
    sandboxes.release(two)
    assert sandboxes.take("kind", {}).policy.gpu == two.policy.gpu  # type: ignore[attr-defined]


def test_a_sandbox_that_does_not_open_gives_its_gpu_back() -> None:
    sandboxes = warm.WarmSandboxes(1, 0, ["nvidia:0"])
    with pytest.raises(OSError, match="no"):
        sandboxes.take("kind", {"fails": True})
    assert sandboxes.take("kind", {}).policy.gpu == ("nvidia:0",)  # type: ignore[attr-defined]
