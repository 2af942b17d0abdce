"""A copy of the host's directory below the layers: forks, pools, and sandboxes that ask for it."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from staddle import AsyncSandbox, Policy, Pool, Sandbox
from staddle.errors import CommitRefused, InvalidCall, LayerError
from staddle.layers import frozen_base
from staddle.layers.drift import now
from staddle.layers.frozen_base import FreezeBounds, FrozenBase
from tests.support.in_a_child import SRC, python
from tests.support.layers_overlay import stores_are_empty
from tests.support.waiting import until


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "sub").mkdir(parents=True)
    for name in ("file", "other", "sub/deep", "sub/gone", "sub/moved"):
        (place / name).write_text("of the host\n")
    tick()
    return place


@pytest.fixture
def sandbox(project: Path) -> Iterator[Sandbox]:
    with Sandbox(project) as opened:
        yield opened


def tick() -> None:
    """Let the clock move that files are stamped with."""
    before = now()
    while now() == before:
        time.sleep(0.001)


def edit(project: Path) -> None:
    tick()
    (project / "file").write_text("later\n")
    (project / "sub/gone").unlink()
    (project / "sub/moved").rename(project / "sub/here")
    (project / "new").write_text("new\n")


BEFORE = "of the host\nfile\nother\n\nsub:\ndeep\ngone\nmoved\n"
LOOK = "cat file; ls -1 file other new sub 2>/dev/null"


def base_of(sandbox: Any) -> FrozenBase:
    base = sandbox._now().workspace.stack.bases[-1]
    assert isinstance(base, FrozenBase)
    return base


def copies(sandbox: Sandbox) -> set[str]:
    """The directories in the sandbox's store, those of other sandboxes too, that have a copy of `sub`."""
    workspace = sandbox._now().workspace
    assert workspace is not None
    return {place for place, _, names in os.walk(workspace.stack.store.path) if "deep" in names}


# ---------------------------------------------------------------- forks


def test_a_fork_does_not_see_what_the_host_changes_later(sandbox: Sandbox, project: Path) -> None:
    sandbox.run("echo mine > other")
    left, right = sandbox.fork(2)
    with left, right:
        assert (sandbox.frozen, left.frozen, right.frozen) == (False, True, True)
        assert base_of(left) is base_of(right)
        edit(project)
        for fork in (left, right):
            assert fork.run(LOOK).stdout == BEFORE
            assert fork.run("cat other").stdout == "mine\n"
            assert [change.path for change in fork.diff()] == ["/workspace/other"]
        assert sandbox.run("cat file; ls sub").stdout == "later\ndeep\nhere\n"


def test_a_fork_tells_what_the_host_has_changed(sandbox: Sandbox, project: Path) -> None:
    (fork,) = sandbox.fork()
    with fork:
        assert not fork.drift()
        edit(project)
        assert fork.drift().paths == (
            *("/workspace/file", "/workspace/new", "/workspace/sub/", "/workspace/sub/here"),
        )


def test_an_edit_between_two_forks_is_in_the_second(sandbox: Sandbox, project: Path) -> None:
    (first,) = sandbox.fork()
    (same,) = sandbox.fork()
    edit(project)
    (second,) = sandbox.fork()
    with first, same, second:
        assert base_of(first) is base_of(same)
        assert first.run("cat file").stdout == "of the host\n"
        assert second.run("cat file; cat new").stdout == "later\nnew\n"


def test_a_fork_of_a_fork_has_its_copy(sandbox: Sandbox, project: Path) -> None:
    (fork,) = sandbox.fork()
    with fork:
        edit(project)
        (again,) = fork.fork()
        with again:
            assert base_of(again) is base_of(fork)
            assert again.run(LOOK).stdout == BEFORE


def test_snapshots_of_a_fork_are_a_point_in_time(sandbox: Sandbox, project: Path) -> None:
    (fork,) = sandbox.fork()
    with fork:
        fork.run("echo 1 > mine")
        taken = fork.snapshot()
        assert taken.frozen
        edit(project)
        fork.run("rm -r *")
        assert not fork.restore(taken).drift
        assert not taken.drift()
        assert fork.run("cat mine; " + LOOK).stdout == "1\n" + BEFORE
        fork.discard()
        assert fork.run("ls mine 2>&1; " + LOOK).stdout.endswith(BEFORE)
        assert fork.diff() == []


def test_snapshots_go_both_ways_between_a_sandbox_and_its_fork(sandbox: Sandbox, project: Path) -> None:
    sandbox.run("echo 1 > mine")
    live = sandbox.snapshot()
    assert not live.frozen
    (fork,) = sandbox.fork()
    with fork:
        edit(project)
        fork.run("echo 2 > mine")
        frozen = fork.snapshot()
        fork.restore(live)
        assert fork.run("cat mine; cat file").stdout == "1\nof the host\n"
        assert fork.frozen
        sandbox.restore(frozen)
        assert sandbox.run("cat mine; cat file").stdout == "2\nof the host\n"
        assert sandbox.frozen
        sandbox.restore(live)
        assert sandbox.run("cat mine; cat file").stdout == "1\nlater\n"
        assert not sandbox.frozen


def test_a_fork_starts_again_with_a_copy_too(sandbox: Sandbox, project: Path) -> None:
    (fork,) = sandbox.fork()
    with fork:
        fork.reset()
        edit(project)
        assert fork.run("cat file").stdout == "of the host\n"


def test_by_choice_a_fork_sees_the_directory_itself(sandbox: Sandbox, project: Path) -> None:
    (fork,) = sandbox.fork(freeze=False)
    with fork:
        edit(project)
        assert not fork.frozen
        assert fork.run("cat file").stdout == "later\n"


def test_forks_of_an_asynchronous_sandbox_are_frozen_too(project: Path) -> None:
    async def work() -> str:
        async with AsyncSandbox(project) as sb:
            (fork,) = await sb.fork()
            async with fork:
                edit(project)
                return (await fork.run("cat file")).stdout

    assert asyncio.run(work()) == "of the host\n"


# ---------------------------------------------------------------- commits


def test_a_commit_of_a_fork_goes_to_the_directory(sandbox: Sandbox, project: Path) -> None:
    (fork,) = sandbox.fork()
    with fork:
        fork.run("echo mine > other; mkdir -p a/b; echo 1 > a/b/c; rm sub/deep")
        edit(project)  # other files
        fork.commit()
        assert fork.diff() == []
    assert (project / "other").read_text() == "mine\n"
    assert (project / "a/b/c").read_text() == "1\n"
    assert (project / "file").read_text() == "later\n"
    assert sorted(os.listdir(project / "sub")) == ["here"]


@pytest.mark.parametrize(
    ("command", "path", "why"),
    [
        ("echo mine > file", "file", "changed"),
        ("rm file", "file", "changed"),
        ("echo mine > sub/gone", "sub/gone", "deleted"),
        ("echo mine > new", "new", "created"),
    ],
)
@pytest.mark.parametrize("first", ["host", "fork"])
def test_what_the_host_changed_too_is_a_conflict(
    sandbox: Sandbox, project: Path, command: str, path: str, why: str, first: str
) -> None:
    (fork,) = sandbox.fork()
    with fork:
        if first == "fork":
            fork.run(command)
        edit(project)
        if first == "host":
            fork.run(command)
        assert why in next(change.conflict for change in fork.diff() if change.path.endswith(path))
        with pytest.raises(CommitRefused) as refused:
            fork.commit()
        assert [conflict.path for conflict in refused.value.conflicts] == [path]
        assert [conflict.path for conflict in fork.review().conflicts] == [path]
    assert (project / "file").read_text() == "later\n"


def test_what_a_fork_has_only_touched_stays_as_the_host_has_it(sandbox: Sandbox, project: Path) -> None:
    (fork,) = sandbox.fork()
    with fork:
        fork.run("touch file sub/deep; echo 1 > sub/more; chmod 700 sub; chmod 755 sub")
        edit(project)
        (project / "sub").chmod(0o750)
        assert [change.path for change in fork.diff()] == ["/workspace/sub/more"]
        fork.commit()
    assert (project / "file").read_text() == "later\n"
    assert stat.S_IMODE((project / "sub").stat().st_mode) == 0o750


def test_a_directory_that_a_fork_deletes_takes_no_new_file_along(sandbox: Sandbox, project: Path) -> None:
    for command in ("rm -r sub", "rm -r sub; mkdir sub; echo 1 > sub/mine"):
        (fork,) = sandbox.fork()
        with fork:
            fork.run(command)
            tick()
            (project / "sub/late").write_text("late\n")
            with pytest.raises(CommitRefused):
                fork.commit()
            (project / "sub/late").unlink()


def test_what_both_have_deleted_is_no_conflict(sandbox: Sandbox, project: Path) -> None:
    (fork,) = sandbox.fork()
    with fork:
        fork.run("rm sub/gone; echo 1 > mine")
        (project / "sub/gone").unlink()
        assert not any(change.conflict for change in fork.diff())
        fork.commit()
    assert (project / "mine").read_text() == "1\n"


def test_what_the_host_changed_before_the_fork_stays_a_conflict_where_the_parent_had_changed_it(
    sandbox: Sandbox, project: Path
) -> None:
    sandbox.run("echo mine > file")
    edit(project)
    (fork,) = sandbox.fork()
    with fork, pytest.raises(CommitRefused):
        fork.commit()
    assert (project / "file").read_text() == "later\n"


# ---------------------------------------------------------------- by choice, and pools


def test_a_sandbox_can_be_frozen_by_choice(project: Path) -> None:
    with Sandbox(project, freeze=True) as sb:
        assert sb.frozen
        edit(project)
        assert sb.run(LOOK).stdout == BEFORE
        assert sb.diff() == []
        taken = sb.snapshot()
        sb.run("echo 1 > mine")
        sb.restore(taken)
        assert sb.run("ls mine 2>/dev/null; " + LOOK).stdout == BEFORE
        (fork,) = sb.fork()
        with fork:
            assert fork.run(LOOK).stdout == BEFORE
        sb.run("echo 2 > mine")
        sb.commit()
    assert (project / "mine").read_text() == "2\n"
    assert (project / "file").read_text() == "later\n"


@pytest.mark.parametrize(
    "options", [{"mode": "bind"}, {"mode": "readonly"}, {"mode": "copy"}, {"keep": "frozen-base"}]
)
def test_what_cannot_be_frozen_says_so(project: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidCall, match="freeze"):
        Sandbox(project, freeze=True, **options)


def test_a_sandbox_without_a_workspace_has_nothing_to_freeze() -> None:
    with pytest.raises(InvalidCall, match="no workspace"):
        Sandbox(freeze=True)
    with pytest.raises(InvalidCall, match="freeze is 1"):
        Sandbox(freeze=1)  # type: ignore[arg-type]


def test_a_sandbox_of_a_pool_does_not_change_while_it_is_used(project: Path) -> None:
    with Pool(2, workspace=project) as pool:
        with pool.sandbox() as one, pool.sandbox() as two:
            assert base_of(one) is base_of(two)
            edit(project)
            assert one.run(LOOK).stdout == two.run(LOOK).stdout == BEFORE
        with pool.sandbox() as fresh:
            assert fresh.run("cat file new").stdout == "later\nnew\n"


def test_a_pool_hands_out_the_directory_as_it_is_at_that_moment(project: Path) -> None:
    with Pool(3, workspace=project) as pool:
        assert until(lambda: pool.warm == 3)
        edit(project)
        with pool.sandbox() as one, pool.sandbox() as two:
            assert one.run("cat file").stdout == two.run("cat file").stdout == "later\n"
            assert base_of(one) is base_of(two)


def test_by_choice_a_pool_is_not_frozen(project: Path) -> None:
    with Pool(1, workspace=project, freeze=False) as pool, pool.sandbox() as sb:
        edit(project)
        assert sb.run("cat file").stdout == "later\n"


# ---------------------------------------------------------------- bounds


@pytest.mark.parametrize("bounds", [FreezeBounds(5, 1 << 20), FreezeBounds(1000, 40)])
def test_a_large_directory_is_not_copied_unasked(
    project: Path, monkeypatch: pytest.MonkeyPatch, bounds: FreezeBounds
) -> None:
    monkeypatch.setattr("staddle.sandbox.workspace.frozen.UNASKED", bounds)
    with Sandbox(project) as sb, Pool(1, workspace=project) as pool, pool.sandbox() as one:
        (fork,) = sb.fork()
        (asked,) = sb.fork(freeze=True)
        with fork, asked:
            assert (one.frozen, fork.frozen, asked.frozen) == (False, False, True)
            edit(project)
            assert fork.run("cat file").stdout == one.run("cat file").stdout == "later\n"
            assert asked.run("cat file").stdout == "of the host\n"


def test_a_directory_that_is_too_large_even_if_asked_for_says_so(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("staddle.sandbox.workspace.frozen.ASKED", FreezeBounds(5, 1 << 20))
    with pytest.raises(LayerError, match="more than 5 entries"):
        Sandbox(project, freeze=True)
    with Sandbox(project) as sb, pytest.raises(LayerError, match="cannot be frozen"):
        sb.fork(freeze=True)


def test_a_file_that_cannot_be_read_is_no_reason_to_fail(project: Path) -> None:
    (project / "closed").touch(0o000)
    with Sandbox(project) as sb:
        (fork,) = sb.fork()
        with fork:
            assert fork.frozen == (os.geteuid() == 0)  # root reads everything
            assert fork.run("cat closed; ls").stdout == sb.run("cat closed; ls").stdout
    if os.geteuid() != 0:
        with pytest.raises(LayerError, match="closed"):
            Sandbox(project, freeze=True)


@pytest.mark.slow
def test_a_directory_that_changes_all_the_time_is_used_itself(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, count = frozen_base.copy_of, iter(range(100))

    def slow(*args: Any, **options: Any) -> None:
        copy(*args, **options)
        (project / "other").write_text(f"{next(count)}\n")

    monkeypatch.setattr(frozen_base, "copy_of", slow)
    with Sandbox(project) as sb:
        before = copies(sb)
        (fork,) = sb.fork()
        with fork:
            assert not fork.frozen
            assert fork.run("cat other").stdout == "2\n"
        assert until(lambda: not copies(sb) - before)


def test_a_copy_is_never_a_mixture(project: Path) -> None:
    """Two files are always written one after the other: the first is never older than the second."""
    end = threading.Event()

    def write() -> None:
        for number in range(100_000):
            for name in ("file", "other"):
                half = project / f".{name}"
                half.write_text(f"{number}\n")
                half.rename(project / name)
            if end.wait(0.02):
                return

    writer = threading.Thread(target=write)
    with Sandbox(project) as sb:
        writer.start()
        try:
            for _ in range(10):
                (fork,) = sb.fork()
                with fork:
                    if fork.frozen:
                        one, other = (base_of(fork) + f"/{name}" for name in ("file", "other"))
                        first, second = Path(one).read_text(), Path(other).read_text()
                        assert "host" in second or int(first) - int(second) in (0, 1)
        finally:
            end.set()
            writer.join()


# ---------------------------------------------------------------- what a copy shows, and who can


def test_a_copy_shows_what_the_directory_shows(project: Path) -> None:
    (project / "link").symlink_to("file")
    (project / "dangling").symlink_to("/nowhere")
    os.link(project / "file", project / "again")
    os.mkfifo(project / "pipe", 0o640)
    (project / "run").write_text("#!/bin/sh\necho ran\n")
    (project / "run").chmod(0o755)
    (project / "sub").chmod(0o750)
    os.utime(project / "other", (1, 1))
    os.setxattr(project / "file", "user.mark", b"here")
    look = (
        "stat -c '%n %f %u %g %h %Y %N' file other again link dangling pipe run sub sub/*; ./run; "
        "python3 -c 'import os; print(os.listxattr(\"file\"))'"
    )
    with Sandbox(project) as sb:
        (fork,) = sb.fork()
        with fork:
            assert fork.frozen
            assert fork.run(look).stdout == sb.run(look).stdout
            fork.run("echo more >> other; echo x >> sub/deep; rm link; ./run", check=True)


def test_denied_paths_are_not_copied(project: Path) -> None:
    (project / "secrets").mkdir()
    (project / "secrets/deep").write_text("KEY\n")
    (project / ".env").write_text("KEY\n")
    policy = Policy.agent().with_deny(project / "secrets", project / ".env")
    with Sandbox(project, policy) as sb:
        (fork,) = sb.fork()
        with fork:
            base = Path(base_of(fork))
            assert os.listdir(base / "secrets") == []
            assert (base / ".env").stat().st_size == 0
            for one in (sb, fork):
                assert one.run("cat .env secrets/deep; ls -A secrets; ls -A").stdout.split() == [
                    *(".env", "file", "other", "secrets", "sub"),
                ]
                assert not one.run("echo 1 > .env").ok
                assert not one.run("echo 1 > secrets/x").ok


def test_a_denied_path_that_does_not_exist_keeps_the_directory_live(project: Path) -> None:
    policy = Policy.agent().with_deny(project / "later.env")
    with Sandbox(project, policy) as sb:
        (fork,) = sb.fork()
        with fork:
            assert not fork.frozen


@pytest.mark.slow
def test_the_copy_is_private_and_not_writable_from_inside(sandbox: Sandbox) -> None:
    (fork,) = sandbox.fork()
    (other,) = sandbox.fork()
    with fork, other:
        base = Path(base_of(fork))
        assert stat.S_IMODE(base.parent.stat().st_mode) == 0o700
        before = {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}
        for user in (None, "root"):
            fork.run(
                "echo EVIL > file; echo EVIL >> sub/deep; rm -rf other; chmod 777 sub; mv sub bus; "
                "for fd in /proc/self/fd/*; do echo EVIL > $fd/file; echo EVIL > $fd/../file; done; "
                f"echo EVIL > {base}/file; ls {base.parent.parent} {base}; "
                "mount -o remount,rw /workspace; umount /workspace",
                user=user,
            )
        assert {path: path.read_bytes() for path in base.rglob("*") if path.is_file()} == before
        assert other.run(LOOK).stdout == BEFORE
        assert "EVIL" not in fork.run(f"cat {base}/file 2>&1").stdout


@pytest.mark.slow
@pytest.mark.needs_root
@pytest.mark.parametrize("how", ["-t tmpfs none", "--bind {}"])  # another file system, and the same one
def test_something_mounted_in_the_directory_is_not_copied(project: Path, tmp_path: Path, how: str) -> None:
    (tmp_path / "a b").mkdir()
    words = [word.format(tmp_path / "a b") for word in how.split()]
    said = python(
        f"""
        import subprocess
        from staddle import Sandbox
        place = {str(project)!r}
        subprocess.run(["mount", *{words!r}, place + "/sub"], check=True)
        open(place + "/sub/hidden", "w").close()
        with Sandbox(place) as sb:
            (fork,) = sb.fork()
            with fork:
                print(fork.frozen)
        """,
        around=["unshare", "--mount", "--propagation", "private"],
    )
    assert said == "False"


@pytest.mark.needs_root
def test_owners_are_shown_as_the_directory_shows_them(project: Path) -> None:
    for path in (project, *project.rglob("*")):
        os.chown(path, 4321, 4322)
    os.chown(project / "other", 1, 1)
    os.chown(project / "sub/deep", 4321, 1)
    look = "stat -c '%n %u %g %a' . file other sub sub/deep; echo 1 >> file; echo 1 >> other"
    with Sandbox(project) as sb:
        (fork,) = sb.fork()
        with fork:
            assert fork.frozen
            assert fork.run(look).stdout == sb.run(look).stdout
            fork.run("echo 2 > sub/deep; echo 3 > mine", check=True)
            fork.commit()
    assert (project / "mine").stat().st_uid == 4321
    os.chown(project / "sub", 1, 1)
    with Sandbox(project) as sb:
        (fork,) = sb.fork()
        with fork:
            assert not fork.frozen  # nobody could remove the copy, were we killed


# ---------------------------------------------------------------- the end


def test_a_copy_goes_with_the_last_that_has_it(project: Path) -> None:
    with Sandbox(project) as sb:
        left, right = sb.fork(2)
        base = base_of(left)
        taken = right.snapshot()
        left.close()
        right.close()
    assert os.path.exists(base)
    taken.close()
    assert not os.path.exists(base)


@pytest.mark.slow
def test_a_fork_that_fails_leaves_no_copy(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox() as other:
        before = copies(other)
        with Sandbox(project) as sb, monkeypatch.context() as patched:
            patched.setattr(Sandbox, "_continued", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                sb.fork(2)
            assert copies(sb) - before
        assert until(lambda: not copies(other) - before)


@pytest.mark.slow
def test_nothing_is_left_of_a_program_that_is_killed(project: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="layers-") as place:
        os.chmod(place, 0o711)
        code = f"""
import os, signal, sys
sys.path.insert(0, {str(SRC)!r})
os.environ["STADDLE_LAYERS"] = {place!r}
from staddle import Sandbox

with Sandbox({str(project)!r}) as sb:
    forks = sb.fork(2)
    assert all(fork.frozen for fork in forks)
    print(sum("deep" in names for _, _, names in os.walk({place!r})), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert int(done.stdout) == 1
        assert until(lambda: stores_are_empty(place))
