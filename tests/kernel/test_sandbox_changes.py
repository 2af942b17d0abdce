"""`result.changes`: all that one command changed in the layers, the workspace first, the rest told apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Sandbox
from staddle.layers.changes import Change
from staddle.sandbox.workspace import workspace as layers


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    tmp_path.chmod(0o755)
    (tmp_path / "project").mkdir()
    (tmp_path / "project/file").write_text("one\n")
    with Sandbox(tmp_path / "project") as made:
        yield made


def told(changes: tuple[Change, ...] | None) -> list[tuple[str, str, bool]]:
    assert changes is not None
    return [(change.kind, change.path, change.elsewhere) for change in changes]


def test_the_home_and_tmp_are_told_after_the_workspace(sandbox: Sandbox) -> None:
    assert sandbox.run("cat file").changes == ()
    done = sandbox.run("echo 1 > ~/h; echo 2 > /tmp/t; mkdir /var/tmp/v; echo 3 > w; echo 4 >> file")
    assert told(done.changes) == [
        ("modified", "/workspace/file", False),
        ("added", "/workspace/w", False),
        ("added", "/home/user/h", True),
        ("added", "/tmp/t", True),
        ("added", "/var/tmp/v", True),
    ]
    done = sandbox.run("echo more >> ~/h; rm /tmp/t; chmod 700 /var/tmp/v")
    assert told(done.changes) == [
        ("modified", "/home/user/h", True),
        ("deleted", "/tmp/t", True),
        ("mode", "/var/tmp/v", True),
    ]
    assert sandbox.run("cat ~/h").changes == ()
    assert told(sandbox.exec(["touch", "/tmp/by-a-program"]).changes) == [
        ("added", "/tmp/by-a-program", True)
    ]
    assert [change.as_dict()["elsewhere"] for change in sandbox.run("touch a ~/b").changes or ()] == [
        False,
        True,
    ]


def test_a_change_elsewhere_has_a_text(sandbox: Sandbox) -> None:
    (change,) = sandbox.run("echo hello > ~/h").changes or ()
    assert "+hello" in change.text_diff()


def test_changes_of_everything_are_told_apart_the_same_way(sandbox: Sandbox) -> None:
    sandbox.run("touch w ~/h")
    assert told(tuple(sandbox.diff(everything=True))) == [
        ("added", "/workspace/w", False),
        ("added", "/home/user/h", True),
    ]
    assert told(tuple(sandbox.diff(["/home/user"]))) == [("added", "/home/user/h", True)]


def test_what_a_snapshot_a_restore_or_a_file_tool_does_is_no_change_of_a_command(sandbox: Sandbox) -> None:
    sandbox.run("echo 1 > ~/h; echo 1 > w")
    point = sandbox.snapshot()
    assert sandbox.run("true").changes == ()
    assert told(sandbox.run("echo 2 > ~/h").changes) == [("modified", "/home/user/h", True)]
    sandbox.restore(point)
    assert sandbox.run("true").changes == ()
    sandbox.files.write("/tmp/by-the-host", "x")
    sandbox.files.write("w", "x")
    assert sandbox.run("true").changes == ()
    assert told(sandbox.run("rm /tmp/by-the-host").changes) == [("deleted", "/tmp/by-the-host", True)]
    sandbox.discard()
    assert sandbox.run("true").changes == ()
    (fork,) = sandbox.fork()
    with fork:
        assert fork.run("true").changes == ()
        assert told(fork.run("echo 3 > ~/h").changes) == [("modified", "/home/user/h", True)]


def test_too_many_files_elsewhere_do_not_hide_the_workspace(sandbox: Sandbox) -> None:
    many = layers.MOST_ENTRIES + 100
    done = sandbox.run(f"for i in {{1..{many}}}; do : > ~/$i; done; echo 1 > w")
    assert told(done.changes) == [("added", "/workspace/w", False)]
    assert len(sandbox.diff(everything=True)) == many + 1


@pytest.mark.slow
def test_what_root_inside_changes_in_the_system_is_told(sandbox: Sandbox) -> None:
    done = sandbox.run("echo 1 > /etc/of-root; touch /usr/local/lib/of-root /workspace/w", user="root")
    assert done.ok, done.stderr
    assert told(done.changes) == [
        ("added", "/workspace/w", False),
        ("added", "/etc/of-root", True),
        ("added", "/usr/local/lib/of-root", True),
    ]
    assert told(sandbox.run("rm /etc/of-root", user="root").changes) == [("deleted", "/etc/of-root", True)]


def test_an_awaited_sandbox_tells_the_same(tmp_path: Path) -> None:
    import asyncio

    from staddle import AsyncSandbox

    async def changed() -> tuple[Change, ...] | None:
        async with AsyncSandbox(tmp_path) as made:
            return (await made.run("touch w ~/h")).changes

    tmp_path.chmod(0o755)
    assert told(asyncio.run(changed())) == [("added", "/workspace/w", False), ("added", "/home/user/h", True)]
