"""A root inside is held like any user of a sandbox: a root has rights over that, and over nothing else.

Both ways to be one are tried: a command as root in a session of somebody else, and a session
that is root's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest

from staddle import Identity, Sandbox

from .checks import Containment
from .in_session import ROOTS_OWN

HOWS = ("once", "always")


class _AsRoot(Containment):
    #: With other networks it is the same code, for everybody in a session.
    networks: ClassVar[tuple[str, ...]] = ("deny",)
    its_own = ROOTS_OWN

    def test_it_declares_no_gap(self) -> None:
        assert self.report()["gaps"] == []

    def test_what_it_makes_of_the_system_stays_inside(self) -> None:
        answer = self.report()["answers"]["create-in-system-directories"]
        assert answer["outcome"] == "through"
        assert not os.path.exists(answer["detail"].strip("'"))

    def test_everything_ends_with_whoever_started_it(self) -> None:
        """As in any session: tests/kernel/test_forkserver.py."""

    def test_attack_on_the_terminal_is_refused(self) -> None:  # type: ignore[override]
        """As in any session: it has none, and the filter is the same."""


class TestOneCommandAsRoot(_AsRoot):
    backend = "session as root"


class TestSessionOfRoot(_AsRoot):
    backend = "session of root"

    def test_attack_on_everything_is_refused(self) -> None:  # type: ignore[override]
        """As for one command of root: a process of the session is started in the same way."""


def opened(how: str, workspace: Path | None = None, **options: object) -> tuple[Sandbox, str | None]:
    """A sandbox, and which user to name in it to be root."""
    identity = Identity(uid=0) if how == "always" else None
    sandbox = Sandbox(workspace, backend="namespaces", identity=identity, **options)  # type: ignore[arg-type]
    return sandbox, None if how == "always" else "root"


#: Leaves a file in every directory that it can, not too deep.
PLANT = """
import os
todo = ["/"]
while todo:
    directory = todo.pop()
    try:
        if directory.count("/") < 3 and directory not in ("/proc", "/sys"):
            with os.scandir(directory) as entries:
                todo += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        open(os.path.join(directory, "planted-by-root"), "w").close()
    except OSError:
        pass
"""
FIND = "shopt -s nullglob dotglob; echo {,/*,/*/*,/*/*/*}/planted-by-roo[t] | wc -w"


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
def test_what_root_writes_is_in_no_other_sandbox(how: str) -> None:
    """Another one of the same fork server, from before or from after."""
    one, user = opened(how)
    other, _ = opened(how)
    with one, other:
        one.exec(["/usr/bin/python3", "-c", PLANT], user=user, check=True)
        assert int(one.run(FIND, user=user).stdout) > 10
        assert other.run(FIND, user=user).stdout == "0\n"
        with opened(how)[0] as later:
            assert later.run(FIND, user=user).stdout == "0\n"
    assert not any(os.path.exists(f"{place}/planted-by-root") for place in ("", "/usr/bin", "/etc", "/var"))


@pytest.mark.parametrize("how", HOWS)
def test_what_root_makes_in_the_workspace_is_plain_and_its_owners_when_it_is_committed(
    how: str, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "mine").write_text("mine")
    sandbox, user = opened(how, workspace)
    with sandbox:
        sandbox.run(
            "echo '#!/bin/sh' > tool; chmod 6755 tool; chown 7:7 mine tool 2>/dev/null; mkdir -m 2777 shared;"
            "echo changed >> mine; touch closed; chmod 0 closed",
            user=user,
            check=True,
        )
        assert sandbox.run("mknod d c 1 3 || mknod d c 0 0 || mknod d b 8 0", user=user).exit_code == 1
        sandbox.commit(allow_protected=True)
    for name in ("mine", "tool", "shared", "closed"):
        status = (workspace / name).lstat()
        assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid()), name
        assert not status.st_mode & 0o6000, name
    assert (workspace / "mine").read_text() == "minechanged\n"


@pytest.mark.parametrize("how", HOWS)
def test_it_runs_no_program_with_the_rights_of_a_file(how: str) -> None:
    sandbox, user = opened(how)
    with sandbox:
        sandbox.run(
            "cp /usr/bin/id /tmp/id; cp /usr/bin/id /usr/bin/sid; chmod 6755 /tmp/id /usr/bin/sid",
            user=user,
        )
        said = sandbox.run(
            "setpriv --reuid=7 --clear-groups /tmp/id -u; setpriv --reuid=7 --clear-groups sid -u", user=user
        )
        if os.geteuid() == 0:  # else there is one id inside, whatever it is called
            assert "0\n" not in said.stdout.splitlines(keepends=True)
        given = sandbox.exec(
            [
                "/usr/bin/python3",
                "-c",
                "import os; os.setxattr('/tmp/id', 'security.capability', b'\\1\\0\\0\\2' + bytes(16))",
            ],
            user=user,
        )
        assert "Operation not permitted" in given.stderr
