"""The filters that are shipped are the compiled table, cheap to have, and refused when they are not whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import staddle.linux.seccomp as seccomp
from staddle.linux import syscalls
from staddle.linux.seccomp.__main__ import main
from staddle.linux.seccomp.compiler import compile_filter
from staddle.linux.seccomp.rules import RULES

PREBUILT = Path(seccomp.__file__).parent / "prebuilt"
MACHINES = ("aarch64", "x86_64")
SOURCE = str(Path(seccomp.__file__).parents[3])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("profile", seccomp.PROFILES)
def test_the_shipped_bytes_are_what_the_table_compiles_to(profile: str, machine: str) -> None:
    assert seccomp.program(profile, machine) == compile_filter(RULES[profile], machine), (
        "the rule table changed: run `python -m staddle.linux.seccomp`"
    )


def test_nothing_else_is_shipped() -> None:
    expected = {f"{machine}-{profile}.bpf" for machine in MACHINES for profile in seccomp.PROFILES}
    assert {path.name for path in PREBUILT.iterdir()} == expected


def test_the_program_is_that_of_this_machine_unless_told_otherwise() -> None:
    machine = syscalls.architecture()
    assert seccomp.program("namespaces") == seccomp.program("namespaces", machine)
    assert seccomp.program("namespaces", "aarch64") != seccomp.program("namespaces", "x86_64")


@pytest.mark.parametrize("name", ["", "none", "../x86_64-namespaces", "namespaces\0", "Namespaces", "native"])
def test_an_unknown_profile_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="no filter profile"):
        seccomp.program(name)


@pytest.mark.parametrize("machine", ["riscv64", "../prebuilt/x86_64", "i686"])
def test_an_unknown_machine_is_an_error(machine: str) -> None:
    with pytest.raises(ValueError, match="no filter for"):
        seccomp.program("namespaces", machine)


@pytest.mark.parametrize("program", [b"", b"\x06", b"\x06\0\0\0\0\0\xff\x7f\0"])
def test_what_is_not_whole_instructions_is_not_loaded(program: bytes) -> None:
    with pytest.raises(ValueError, match="no filter"):
        seccomp.load(program)


def test_having_a_program_loads_neither_table_nor_compiler_nor_slow_modules() -> None:
    script = (
        f"import sys; sys.path.insert(0, {SOURCE!r})\n"
        "import os, ctypes, struct; before = set(sys.modules)\n"
        "import staddle.linux.seccomp as s; s.program('namespaces'); s.load\n"
        "print(' '.join(sorted(set(sys.modules) - before)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True
    )
    added = set(done.stdout.split())
    assert {name for name in added if not name.startswith("staddle")} <= {"__future__", "errno"}
    assert {name for name in added if name.startswith("staddle")} == {
        "staddle",
        "staddle.linux",
        "staddle.linux.syscalls",
        "staddle.linux.seccomp",
    }


def test_the_generator_writes_what_differs_and_leaves_the_rest(tmp_path, monkeypatch, capsys) -> None:
    def elsewhere(profile: str, machine: str) -> str:
        return str(tmp_path / "prebuilt" / f"{machine}-{profile}.bpf")

    monkeypatch.setattr("staddle.linux.seccomp.__main__.prebuilt_path", elsewhere)
    assert main() == 0
    assert capsys.readouterr().out.count("written") == len(MACHINES) * len(seccomp.PROFILES)
    for path in PREBUILT.iterdir():
        assert (tmp_path / "prebuilt" / path.name).read_bytes() == path.read_bytes()
    changed = Path(elsewhere("namespaces", "aarch64"))
    changed.write_bytes(b"something else")
    assert main() == 0
    output = capsys.readouterr().out
    assert [line.split(":")[0] for line in output.splitlines() if "written" in line] == [changed.name]
    assert changed.read_bytes() == seccomp.program("namespaces", "aarch64")
    assert sorted(os.listdir(changed.parent)) == sorted(os.listdir(PREBUILT))
