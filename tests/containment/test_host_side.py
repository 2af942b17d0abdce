"""Every protection on the host's side matters: take one away, and the test that is about it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .mutated import edited
from .switches.host_side import HOST_ALONE, HOST_SWITCHES

#: What tests the tests is for `make test-everything`.
pytestmark = pytest.mark.slow

WHO = "root" if os.geteuid() == 0 else "user"
ROOT = Path(__file__).parents[2]


def run(source: Path, file: str, keyword: str) -> subprocess.CompletedProcess[str]:
    """Run these tests with the copy of staddle in `source`, in a process of its own."""
    paths = f"pythonpath={ROOT} {source}"
    words = ["-q", "-x", "-p", "no:cacheprovider", "-o", paths, "--tb=short", file, "-k", keyword]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # half of its start
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if switch.starts or switch.only else [pytest.mark.same_for_everyone])
        for name, switch in HOST_SWITCHES.items()
        if switch.only in ("", WHO)
    ],
)
def test_a_test_fails_without(name: str) -> None:
    switch = HOST_SWITCHES[name]
    with edited([switch.edit]) as source:
        done = run(source, switch.file, switch.keyword)
    # By what it finds, not because the copy cannot be run at all.
    assert done.returncode == 1, f"no test notices that this protection is gone\n{done.stdout}{done.stderr}"
    assert any(word in done.stdout for word in ("AssertionError", "DID NOT RAISE", "E   assert ")), (
        done.stdout
    )


def test_what_is_not_switched_off_has_a_reason() -> None:
    assert all(HOST_ALONE.values())
