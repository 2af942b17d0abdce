"""A thousand rules: all of them held, and the time grows with their number, not its square."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle.policy.plan import Plan
from tests.support.fresh_roots import shell, system
from tests.unit.mounts.plans import hidden, read, write

pytestmark = pytest.mark.usefixtures("fresh_root")

MANY = 1000


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand secrets in one directory, and one in each of a thousand."""
    root = tmp_path_factory.mktemp("many")
    (root / "one").mkdir()
    (root / "one/kept").write_text("kept")
    for number in range(MANY):
        (root / f"one/s{number}").write_text("secret")
        directory = root / f"all/d{number}"
        (directory / "hidden").mkdir(parents=True)
        for name in ("s", "kept", "hidden/s"):
            (directory / name).write_text("kept" if name == "kept" else "secret")
    return root


def one(root: Path, access: object) -> Plan:
    secrets = (hidden(f"{root}/one/s{n}", "file") for n in range(MANY))
    return system(grants=(access(f"{root}/one"),), hidden=tuple(secrets), cwd=f"{root}/one")  # type: ignore[operator]


def every(root: Path, access: object, name: str, kind: str) -> Plan:
    secrets = (hidden(f"{root}/all/d{n}/{name}", kind) for n in range(MANY))
    return system(grants=(access(f"{root}/all"),), hidden=tuple(secrets), cwd=f"{root}/all")  # type: ignore[operator]


PLANS = {
    "denied files in one readable directory": lambda root: one(root, read),
    "denied files in one writable directory": lambda root: one(root, write),
    "a denied file in each of many readable directories": lambda root: every(root, read, "s", "file"),
    "a denied file in each of many writable directories": lambda root: every(root, write, "s", "file"),
    "a denied directory in each of many writable ones": lambda root: every(
        root, write, "hidden", "directory"
    ),
    "many read grants": lambda root: system(
        grants=tuple(read(f"{root}/all/d{n}/kept", False) for n in range(MANY)), cwd=f"{root}/all"
    ),
    "many write grants": lambda root: system(
        grants=tuple(write(f"{root}/all/d{n}/kept", False) for n in range(MANY)), cwd=f"{root}/all"
    ),
}


def _processor_time() -> float:
    """Of this process and those that it has waited for, and they: the same on a busy machine."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


@pytest.mark.slow
@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS.keys())
def test_a_thousand_rules_hold(make, host: Path) -> None:  # type: ignore[no-untyped-def]
    wanted = make(host)
    began = _processor_time()
    ran = shell(
        wanted,
        "find . -type f -readable -name kept | wc -l;find . -type f -readable -name 's*' | xargs cat | wc -c",
    )
    took = _processor_time() - began
    kept, seen = ran.out.split()
    assert int(kept) in (1, MANY)
    # Each of the many directories has two secrets, of which one was denied.
    allowed = MANY if wanted.cwd.endswith("all") and wanted.hidden else 0
    assert int(seen) == allowed * len("secret")
    assert took < 8, f"{took:.1f} s (bwrap alone needs more than a second for a thousand, five for two)"


@pytest.mark.slow
def test_names_that_are_missing_in_a_thousand_readable_directories(host: Path) -> None:
    ran = shell(every(host, read, "gone", "missing"), "ls d7; cat d999/kept; find . -name kept | wc -l")
    assert ran.out.split() == ["hidden", "kept", "s", f"kept{MANY}"], ran.err
    assert os.path.exists(host / "all/d7/kept")
