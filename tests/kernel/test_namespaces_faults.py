"""Whichever call fails while a sandbox is made: the command does not start, and nothing is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import sweep

#: With the network of the host, the first call from each place fails, not the last: they are the same lines.
WAYS = {
    "by a launcher": {},
    "with the network of the host": {"network": "open", "once": True},
    "by our command line": {"here": True},
}
#: What a gateway, the second process, goes on without: Landlock on a kernel that has none, and another
#: id where root has no other. Its filter, and an end to all its rights, are not among them.
UNNEEDED = ("landlock_create_ruleset", "setgroups", "setresgid", "setresuid 0xfffe")


@pytest.fixture(params=WAYS.values(), ids=WAYS.keys())
def swept(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    for name in ("secret", ".git"):
        (tmp_path / name).mkdir()
    return sweep(str(tmp_path), **request.param)


@pytest.mark.slow
def test_no_call_may_fail(swept: dict[str, Any]) -> None:
    assert len(swept["runs"]) > 35
    kinds = {run["failed"].split()[0] for run in swept["runs"]}
    assert {"unshare", "fork", "mount", "umount2", "pivot_root", "mount_setattr", "open_tree"} <= kinds
    assert {"move_mount", "sethostname", "prctl", "capset", "seccomp", "setsid", "execve", "write"} <= kinds
    assert [run for run in swept["runs"] if "it ran" in run["out"] or run["made"]] == []
    assert [run for run in swept["runs"] if run["code"] == 0 or not run["why"]] == []
    assert [run for run in swept["runs"] if run["left"]] == []
    assert not swept["mounts_changed"]


@pytest.mark.slow
@pytest.mark.parametrize("here", [False, True], ids=["by a launcher", "by our command line"])
def test_no_call_may_fail_around_a_network_gateway(tmp_path: Path, here: bool) -> None:
    for name in ("secret", ".git"):
        (tmp_path / name).mkdir()
    found = sweep(str(tmp_path), ports=True, here=here)
    of_the_gateway = {run["failed"] for run in found["runs"] if run["who"] == 1}
    assert {"execve", "seccomp", "write pipe"} <= of_the_gateway
    assert "socket" in {run["failed"] for run in found["runs"]}
    needed = [run for run in found["runs"] if run["who"] != 1 or run["failed"] not in UNNEEDED]
    assert [run for run in needed if "it ran" in run["out"] or run["made"]] == []
    assert [run for run in needed if run["code"] == 0 or not run["why"]] == []
    assert [run for run in found["runs"] if run["left"]] == []
