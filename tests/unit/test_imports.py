"""Importing staddle is cheap, touches nothing and loads nothing third-party."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import staddle

SRC = str(Path(staddle.__file__).parents[1])
#: What the path of `staddle run` must not load: each costs milliseconds at every start.
HEAVY = [
    "argparse",
    "dataclasses",
    "inspect",
    "json",
    "logging",
    "pathlib",
    "re",
    "subprocess",
    "tempfile",
    "typing",
]
#: What only programs need that go on after the command.
OF_LONG_PROGRAMS = ["functools", "importlib", "staddle.limits.host_cgroups", "threading"]


def loaded_by(code: str) -> set[str]:
    script = (
        f"import sys; sys.path.insert(0, {SRC!r}); before = set(sys.modules); {code};"
        "print(*set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_import_loads_nothing_but_the_package_itself() -> None:
    assert loaded_by("import staddle") - {"__future__"} == {"staddle"}


def test_public_names_load_no_third_party_module() -> None:
    modules = loaded_by("from staddle import *")
    # Which modules a distribution has left out: Python's own since 3.15, and not among its names.
    known = {"staddle", "_missing_stdlib_info", *sys.stdlib_module_names}
    assert {name.partition(".")[0] for name in modules} - known == set()


def test_the_path_of_a_run_stays_light() -> None:
    code = (
        "import staddle.cli.run, staddle.wrapping, staddle.launch.view, staddle.launch.foreground,"
        "staddle.backends.bwrap, staddle.backends.namespaces, staddle.limits.command_limits,"
        "staddle.observe.redaction, staddle.inside.namespace_init"
    )
    assert sorted(loaded_by(code) & {*HEAVY, *OF_LONG_PROGRAMS}) == []


def test_a_sandbox_is_light_and_asyncio_is_for_those_who_await() -> None:
    loaded = loaded_by("from staddle import Pool, Reason, Result, Sandbox")
    assert sorted(loaded & {*HEAVY, "asyncio", "signal", "socket"}) == []
    assert "asyncio" in loaded_by("from staddle import AsyncSandbox")


def test_every_public_name_exists_and_is_listed() -> None:
    for name in staddle.__all__:
        assert getattr(staddle, name).__name__ == name
    assert set(staddle.__all__) == set(staddle._HOME)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(staddle, "no_such_name")
