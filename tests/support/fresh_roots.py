"""Running plans made by hand in real sandboxes with a fresh root: our own namespaces, and bwrap."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from staddle.backends.bwrap import Bwrap
from staddle.backends.namespaces import Namespaces
from staddle.errors import LaunchFailed, PolicyNotEnforceable
from staddle.launch.contract import Launch
from staddle.policy.plan import Grant, Link, Plan, Scratch, Variable
from tests.unit.mounts.plans import WHY, plan

BACKENDS = {"namespaces": Namespaces(), "bwrap": Bwrap()}
#: Which of them, for a test that runs a program of its own too (see the fixture `fresh_root`).
CHOICE = "STADDLE_TEST_BACKEND"
ROOT = os.geteuid() == 0
PYTHON = ("/usr/bin/python3", "-I", "-S", "-c")


class _Chosen:
    """The backend under test."""

    @property
    def name(self) -> str:
        return os.environ[CHOICE]

    def __getattr__(self, name: str) -> Any:
        return getattr(BACKENDS[self.name], name)


SANDBOX = _Chosen()


def system(**fields: Any) -> Plan:
    """A plan in which the system's programs run, with these fields besides."""
    grants, links = [Grant("/usr", "read", True, WHY)], []
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = f"/{name}"
        if os.path.islink(path):
            links.append(Link(path, os.readlink(path), WHY))
        elif os.path.isdir(path):
            grants.append(Grant(path, "read", True, WHY))
    fields["grants"] = (*grants, *fields.get("grants", ()))
    fields["links"] = (*links, *fields.get("links", ()))
    fields["scratch"] = (Scratch("/tmp", 0o1777, 1 << 24, WHY), *fields.get("scratch", ()))
    fields["variables"] = (Variable("PATH", "/usr/bin:/bin", WHY), *fields.get("variables", ()))
    return plan(**fields)


def started(launch: Launch, **kwargs: Any) -> subprocess.Popen[str]:
    """The launch as a process, our copies of what it was given closed."""
    try:
        return subprocess.Popen(
            launch.argv,
            env=launch.env,
            cwd=launch.cwd,
            pass_fds=launch.pass_fds,
            stdin=kwargs.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
            **kwargs,
        )
    finally:
        launch.close()


class Ran:
    """What a command said, how it ended, and what the launcher made of it."""

    def __init__(self, launch: Launch) -> None:
        process = started(launch)
        self.out, self.err = process.communicate(timeout=60)
        self.code = process.returncode
        assert launch.status is not None
        said = os.read(launch.status, 65536)
        os.close(launch.status)
        self.failure = launch.failure(said)


def run(wanted: Plan, *command: str) -> Ran:
    """Run `command` in the sandbox that `wanted` describes."""
    return Ran(SANDBOX.prepare(wanted, command))


def refused(wanted: Plan) -> str:
    """Why no command is started in that sandbox: some see it when it is prepared, some when it is made."""
    try:
        ran = run(wanted, "/bin/echo", "it ran")
    except (LaunchFailed, PolicyNotEnforceable) as error:
        return str(error)
    assert ran.out == ""
    assert ran.code != 0
    return ran.failure or ""


def shell(wanted: Plan, script: str) -> Ran:
    """Run a shell script in it."""
    return run(wanted, "/bin/sh", "-c", script)


def python(wanted: Plan, script: str) -> Ran:
    """Run a Python script in it."""
    return run(wanted, *PYTHON, script)


def tree(directory: Path) -> dict[str, bytes | None]:
    """Every name below `directory` with its content, to see whether anything changed."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        if path.is_file() and not path.is_symlink()
        else None
        for path in sorted(directory.rglob("*"))
    }
