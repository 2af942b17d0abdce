"""Running plans made by hand in a real bwrap sandbox."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from staddle.backends.base import Launch
from staddle.backends.bwrap import Bwrap
from staddle.policy.plan import Grant, Link, Plan, Scratch, Variable
from tests.unit.layout.plans import WHY, plan

BWRAP = Bwrap()
ROOT = os.geteuid() == 0
PYTHON = ("/usr/bin/python3", "-I", "-S", "-c")


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
    return Ran(BWRAP.prepare(wanted, command))


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
