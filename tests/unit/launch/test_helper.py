"""How the helper is started, without starting it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from staddle.errors import LaunchFailed
from staddle.ipc.exec_spec import ExecSpec, Malformed, decode
from staddle.launch import contract
from staddle.launch.contract import helper_launch

SRC = Path(contract.__file__).parents[2]
SMALL = ExecSpec(argv=(b"true",), environment=(b"SECRET=hush",), directory=b"/")
#: Each costs a good part of a bare interpreter's start, or runs code from site-packages.
SLOW = {
    *("re", "enum", "typing", "dataclasses", "subprocess", "argparse", "json", "pathlib", "socket", "signal"),
    *(
        "tempfile",
        "shutil",
        "inspect",
        "logging",
        "threading",
        "contextlib",
        "collections",
        "functools",
        "site",
    ),
}


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_the_interpreter_is_isolated_and_nothing_secret_is_on_its_command_line() -> None:
    launch = helper_launch(SMALL)
    try:
        assert launch.argv[1:3] == ("-I", "-S")
        assert launch.argv[3] == str(SRC / "staddle" / "inside" / "__main__.py")
        assert launch.argv[4] == "jail-exec"
        assert not any("hush" in word for word in (*launch.argv, *launch.env.values()))
        assert set(launch.env) == {"LC_ALL", "PATH"}
    finally:
        launch.close()
        os.close(launch.status or -1)


def test_the_instructions_are_on_a_descriptor_that_it_gets() -> None:
    launch = helper_launch(SMALL)
    try:
        file = int(launch.argv[-1])
        assert file in launch.pass_fds
        sent = decode(os.pread(file, 1 << 20, 0))
        assert int(sent.status) in launch.pass_fds
        assert sent.launcher == os.getpid()
        assert sent.replace(status=b"", launcher=0) == SMALL
    finally:
        launch.close()
        os.close(launch.status or -1)


def test_nothing_stays_open() -> None:
    before = open_descriptors()
    launch = helper_launch(SMALL)
    launch.close()
    launch.close()
    os.close(launch.status or -1)
    assert open_descriptors() == before
    with pytest.raises(Malformed):
        helper_launch(SMALL.replace(argv=()))
    assert open_descriptors() == before


def test_without_an_interpreter_there_is_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    before = open_descriptors()
    with pytest.raises(LaunchFailed, match=r"sys\.executable"):
        helper_launch(SMALL)
    assert open_descriptors() == before


@pytest.mark.parametrize("role", ["jail_exec", "namespace_launcher", "systemd_unit"])
def test_the_helper_loads_nothing_slow(role: str) -> None:
    code = f"import sys; sys.path.append({str(SRC)!r}); import staddle.inside.{role}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert not SLOW & set(done.stdout.split())
