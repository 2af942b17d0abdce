"""Everything about limits may be loaded where a run starts, and in a sandbox's first process."""

from __future__ import annotations

from pathlib import Path

import staddle.limits
from tests.unit.test_imports import HEAVY, loaded_by

MODULES = sorted(path.stem for path in Path(staddle.limits.__file__).parent.glob("[!_]*.py"))


def test_no_module_is_heavy() -> None:
    names = ", ".join(f"staddle.limits.{name}" for name in MODULES)
    assert sorted(loaded_by(f"import {names}") & set(HEAVY)) == []


def test_the_page_of_the_package_names_every_module() -> None:
    assert [name for name in MODULES if f"\n    {name} " not in str(staddle.limits.__doc__)] == []
