"""Directories of the system in layers of their own: written inside, and the host notices nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Policy, Sandbox
from staddle.errors import LaunchFailed
from staddle.files.remove_tree import remove
from staddle.forkserver.client import mounter
from staddle.layers import trash
from staddle.sandbox.workspace import snapshot
from staddle.sandbox.workspace.persistent import PersistentWorkspace


@pytest.fixture
def place() -> Iterator[Path]:
    """Where also somebody who is not root can pass through."""
    made = Path(tempfile.mkdtemp(prefix="staddle-system-", dir="/var/tmp"))
    made.chmod(0o711)
    yield made
    trash.wait()
    remove((os.fsencode(made),))


@pytest.fixture
def bases(place: Path) -> dict[str, list[str]]:
    """A small skeleton: some directories again, the sandbox's own, over those of the host or over nothing."""
    for name in ("usr/local/bin", "usr/lib", "opt", "etc/apt", "var/lib/db", "var/log", "var/tmp"):
        (place / name).mkdir(parents=True)
    (place / "etc" / "passwd").write_text("user:x:1000:1000::/home/user:/bin/bash\n")
    (place / "var" / "lib" / "db" / "status").write_text("of the skeleton\n")
    if (owner := mounter()) is not None:
        for directory, names, files in os.walk(place):
            for name in (*names, *files):
                os.chown(f"{directory}/{name}", *owner)
    return {
        "/usr": [f"{place}/usr", "/usr"],
        "/opt": [f"{place}/opt", "/opt"],
        "/etc": [f"{place}/etc"],
        "/var": [f"{place}/var"],
        "/var/lib/db": [f"{place}/var/lib/db"],
    }


@pytest.fixture
def sandbox(bases: dict[str, list[str]]) -> Iterator[Sandbox]:
    with Sandbox() as made:
        extend(made, bases)
        yield made


def extend(sandbox: Sandbox, bases: dict[str, list[str]]) -> None:
    snapshot.extend(sandbox._now().workspace, bases)


def paths(sandbox: Sandbox) -> list[str]:
    return [change.path for change in sandbox.diff(everything=True)]


WRITE = "for p in /usr/local/bin/x /etc/apt/x /var/log/x /var/lib/db/x /opt/x; do echo {0} > $p; done"
READ = "cat /usr/local/bin/x /etc/apt/x /var/log/x /var/lib/db/x /opt/x 2>/dev/null | tr -d '\\n'"


def test_what_could_not_be_written_can_and_the_host_has_none_of_it(bases: dict[str, list[str]]) -> None:
    with Sandbox() as sandbox:
        sandbox.run("echo before > /var/tmp/mine")
        assert not sandbox.run("touch /usr/local/bin/x").ok
        extend(sandbox, bases)
        assert sandbox.run(WRITE.format(1)).ok
        assert sandbox.run(READ).stdout == "11111"
        assert sandbox.run(
            "printf '#!/bin/sh\\necho ran' > /usr/local/bin/x; chmod +x /usr/local/bin/x; x"
        ).ok
        # What was there is there: programs, and what else is mounted in these directories.
        said = sandbox.run("ls /usr/bin/env; cat /var/tmp/mine /var/lib/db/status; id -un").stdout
        assert said == "/usr/bin/env\nbefore\nof the skeleton\nuser\n"
        assert paths(sandbox) == [
            "/var/tmp/mine",
            "/usr/local/bin/x",
            "/opt/x",
            "/etc/apt/x",
            "/var/log/x",
            "/var/lib/db/x",
        ]
        assert [change.path for change in sandbox.diff(["/etc"])] == ["/etc/apt/x"]
    for name in ("/usr/local/bin/x", "/opt/x", "/etc/apt/x", "/var/log/x"):
        assert not os.path.exists(name)


def test_files_of_the_host_are_replaced_and_deleted_only_inside(sandbox: Sandbox) -> None:
    name = sandbox.run(
        "for f in /usr/lib/*; do [ -f $f ] && [ ! -L $f ] && echo $f && break; done"
    ).stdout.strip()
    was = Path(name).read_bytes()
    assert sandbox.run(f"echo mine > /usr/lib/new && mv /usr/lib/new {name} && cat {name}").stdout == "mine\n"
    assert sandbox.run(f"rm {name}; ls {name}").exit_code != 0
    assert Path(name).read_bytes() == was


def test_it_is_part_of_snapshots_and_forks(sandbox: Sandbox) -> None:
    sandbox.run(WRITE.format(1) + "; echo 1 > /var/tmp/t")
    before = sandbox.snapshot()
    assert before.method == "swap"
    sandbox.run(WRITE.format(2) + "; echo 2 > /var/tmp/t; echo 2 > ~/h")
    (fork,) = sandbox.fork()
    with fork:
        assert fork.run(READ + "; cat /var/tmp/t ~/h").stdout == "222222\n2\n"
        fork.run(WRITE.format(3))
        after = fork.snapshot()
        assert sandbox.run(READ).stdout == "22222"
        sandbox.restore(before)
        assert sandbox.run(READ + "; cat /var/tmp/t; ls ~/h").stdout == "111111\n"
        fork.restore(before)
        assert fork.run(READ).stdout == "11111"
    sandbox.restore(after)
    assert sandbox.run(READ).stdout == "33333"


def test_only_what_was_written_to_is_exchanged_also_in_another_one(sandbox: Sandbox) -> None:
    for directory in ("/var/log", "/var/lib/db", "/var/tmp", "/usr/lib", "/tmp"):
        sandbox.run(f"echo 1 > {directory}/one")
        point = sandbox.snapshot()
        sandbox.run(f"echo 2 > {directory}/one; echo 2 > {directory}/two")
        sandbox.restore(point)
        assert sandbox.run(f"cd {directory}; cat one; ls two 2>&1").stdout.startswith("1\nls:"), directory
    assert sandbox.run("mount | grep -c ' /var'").stdout == "3\n"  # and nothing beneath them


def test_a_snapshot_from_before_brings_back_a_fresh_system_and_a_later_one_adds_it(
    bases: dict[str, list[str]],
) -> None:
    with Sandbox() as sandbox:
        before = sandbox.snapshot()
        extend(sandbox, bases)
        sandbox.run(WRITE.format(1))
        after = sandbox.snapshot()
        sandbox.restore(before)
        assert sandbox.run(READ).stdout == ""
        assert sandbox.run("touch /usr/local/bin/y").ok  # it stays what it became
        sandbox.restore(after)
        assert sandbox.run(READ).stdout == "11111"
        fork = Sandbox._continued(sandbox._settings, before)
        with fork:
            assert not fork.run("touch /usr/local/bin/y").ok
            fork.restore(after)
            assert fork.run(READ).stdout == "11111"


def test_what_is_hidden_stays_hidden(place: Path, bases: dict[str, list[str]]) -> None:
    (place / "etc" / "apt" / "secret").write_text("secret")
    policy = Policy.agent().with_deny("/usr/lib/os-release", "/usr/share/doc")
    with Sandbox(policy=policy) as sandbox:
        look = "cat /usr/lib/os-release; ls /usr/share/doc | wc -l"
        closed = sandbox.run(look)
        extend(sandbox, bases)
        assert sandbox.run("touch /usr/lib/x").ok
        again = sandbox.run(look)
        assert (again.stdout, again.stderr) == (closed.stdout, closed.stderr)
        sandbox.snapshot()
        assert sandbox.run(look).stdout == closed.stdout


def test_what_is_granted_stays_granted(place: Path, bases: dict[str, list[str]], tmp_path: Path) -> None:
    granted = place / "granted"
    granted.mkdir()
    (granted / "file").write_text("of the host\n")
    with Sandbox(policy=Policy.agent().with_read(granted)) as sandbox:  # in /var/tmp
        extend(sandbox, bases)
        assert sandbox.run(f"cat {granted}/file; echo 1 > /var/log/x; echo 1 > /var/tmp/y").ok
        sandbox.snapshot()
        assert sandbox.run(f"cat {granted}/file /var/log/x /var/tmp/y").stdout == "of the host\n1\n1\n"
        assert not sandbox.run(f"echo x > {granted}/file").ok


def test_what_cannot_be_changes_nothing(sandbox: Sandbox, place: Path) -> None:
    sandbox.run(WRITE.format(1))
    with pytest.raises(LaunchFailed):
        extend(sandbox, {"/home/user/deeper": [str(place / "opt")], "/nowhere": [str(place / "opt")]})
    assert sandbox.run(READ).stdout == "11111"
    assert "/nowhere" not in sandbox._now().workspace.trees  # type: ignore[union-attr]


@pytest.mark.slow
def test_it_is_kept(place: Path, bases: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    del bases["/usr"]
    with Sandbox(keep="fix") as sandbox:
        extend(sandbox, bases)
        sandbox.run(WRITE.format(1))
    with Sandbox(keep="fix") as sandbox:
        assert sandbox.run(READ).stdout == "1111"
        sandbox.run(WRITE.format(2))
    kept = PersistentWorkspace("fix")
    kept.snapshot("two")
    kept.close()
    with Sandbox(keep="fix") as sandbox:
        sandbox.run(WRITE.format(3))
    kept = PersistentWorkspace("fix")
    kept.restore("two")
    kept.close()
    with Sandbox(keep="fix") as sandbox:
        assert sandbox.run(READ).stdout == "2222"
