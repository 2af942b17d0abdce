"""A sandbox that was made ahead for the directory that the last ones were for: nobody can tell."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Identity, Policy, Reason, Sandbox
from staddle.forkserver import client
from staddle.layers import trash
from staddle.linux.process_tree import descendants
from staddle.sandbox.workspace import overlay, stores
from tests.support.waiting import until


def is_prewarmed(place: Path | None) -> bool:
    name = b"/empty" if place is None else os.fsencode(place)
    entries = [server.prewarmed for server in client._servers.values() if server.prewarmed is not None]
    return any(str(name)[2:-1] in str(entry.view_key) for entry in entries)


def take(place: Path | None, said: str = "true", **options: object) -> str:
    with Sandbox(place, backend="namespaces", **options) as sb:  # type: ignore[arg-type]
        return sb.run(said).stdout


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[Path]:
    """A directory for which a sandbox waits."""
    (tmp_path / "file").write_text("old")
    (tmp_path / "sub").mkdir()
    ready(tmp_path)
    yield tmp_path
    trash.wait()


def ready(place: Path | None, **options: object) -> None:
    """See that a sandbox waits for this directory."""
    take(place, **options)
    take(place, **options)
    assert until(lambda: is_prewarmed(place), 5)
    time.sleep(0.1)  # for the sandbox itself


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every sandbox, whether it was one that waited."""
    found: list[bool] = []
    come = overlay.OverlayWorkspace.adopt

    def noted(self: overlay.OverlayWorkspace, taken: client.SandboxProcess) -> None:
        found.append(taken.instead is not None)
        come(self, taken)

    monkeypatch.setattr(overlay.OverlayWorkspace, "adopt", noted)
    return found


def test_it_is_as_any_other(prepared: Path, kept: list[bool]) -> None:
    with Sandbox(prepared, backend="namespaces") as sb:
        assert sb.run("pwd; cat file; ls").stdout == "/workspace\noldfile\nsub\n"
        done = sb.run("echo new > file; echo more > sub/more; cd sub")
        assert done.changes is not None
        assert [change.path for change in done.changes] == ["/workspace/file", "/workspace/sub/more"]
        assert [change.path for change in sb.diff()] == ["/workspace/file", "/workspace/sub/more"]
        point = sb.snapshot()
        sb.run("rm -r /workspace/sub; cd /")
        sb.restore(point)
        assert sb.run("pwd; cat more").stdout == "/workspace/sub\nmore\n"
        (fork,) = sb.fork()
        with fork:
            assert fork.run("cat more").stdout == "more\n"
        sb.commit()
    assert (prepared / "sub" / "more").read_text() == "more\n"
    assert kept[0]


def test_it_shows_the_directory_as_it_is_now(prepared: Path, kept: list[bool]) -> None:
    with open(prepared / "file", "r+") as file:
        file.write("new and longer")
    (prepared / "sub" / "later").write_text("x")
    assert take(prepared, "cat file; ls sub") == "new and longerlater\n"
    assert kept == [True]


def test_another_look_is_another_sandbox(prepared: Path, kept: list[bool]) -> None:
    prepared.chmod(0o750)
    assert take(prepared, "stat -c %a /workspace") == "750\n"
    assert kept == [False]
    (prepared / "top").touch()
    assert take(prepared, "ls") == "file\nsub\ntop\n"
    assert kept == [False, False]


def test_another_directory_of_that_name_is_another_one(prepared: Path, kept: list[bool]) -> None:
    status = prepared.stat()
    prepared.rename(prepared.with_name("away"))
    prepared.mkdir()
    prepared.chmod(status.st_mode & 0o777)
    os.utime(prepared, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert take(prepared, "ls") == ""
    assert kept == [False]


def test_who_wants_something_else_does_not_get_it(
    prepared: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "here").touch()
    assert take(other, "ls") == "here\n"
    ready(prepared)
    assert take(prepared, "touch x; ls", mode="bind") == "file\nsub\nx\n"
    ready(prepared)
    assert take(prepared, "id -u", identity=Identity(uid=0)) == "0\n"
    ready(None)
    assert take(None, "ls -A; pwd") == "/workspace\n"


def test_what_is_denied_and_comes_later_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    policy = Policy.agent().with_deny(tmp_path / "sub" / "secret")
    take(tmp_path, policy=policy)
    take(tmp_path, policy=policy)
    time.sleep(0.3)
    (tmp_path / "sub" / "secret").write_text("hush")  # the directory itself looks as before
    assert "hush" not in take(tmp_path, "cat sub/secret; cat sub/*", policy=policy)


@pytest.mark.parametrize("name", ["a b", "it's", 'quo"te', "new\nline", "é文", "\udcff"])
def test_any_name_can_be_prepared(name: str, tmp_path: Path, kept: list[bool]) -> None:
    place = tmp_path / name
    place.mkdir()
    (place / "file").write_text("here")
    take(place)
    take(place)
    kept.clear()
    assert until(lambda: take(place, "cat file; echo new > new") == "here" and kept[-1], 5)
    assert sorted(os.listdir(place)) == ["file"]


def test_limits_are_put_on_it(tmp_path: Path, kept: list[bool]) -> None:
    policy = Policy.agent().with_limits(processes=20, memory=200 << 20, disk=1 << 20)
    ready(tmp_path, policy=policy)
    kept.clear()
    with Sandbox(tmp_path, policy, backend="namespaces") as sb:
        assert sb.run("cat /dev/zero > big", timeout=20).reason is Reason.disk
        sb.run("rm -f big; for i in {1..40}; do sleep 5 & done", timeout=10)
        assert int(sb.run("jobs -pr | wc -l").stdout) < 20
    assert kept == [True]


def test_when_it_has_died_another_one_is_made(prepared: Path, kept: list[bool]) -> None:
    # As when its memory is needed: everything that waits is killed.
    waiting = [pid for pid in descendants(os.getpid()) if _stands_in_a_workspace(pid)]
    assert waiting
    for pid in waiting:
        os.kill(_parent(pid), signal.SIGKILL)
    assert until(lambda: not any(map(_stands_in_a_workspace, waiting)))
    assert take(prepared, "cat file") == "old"
    assert kept == [False]


def _stands_in_a_workspace(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd") == "/workspace"
    except OSError:
        return False


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_many_at_once_have_each_their_own(prepared: Path, kept: list[bool]) -> None:
    said: list[str] = []

    def work(number: int) -> None:
        for turn in range(5):
            said.append(take(prepared, f"echo {number}.{turn} > mine; sleep 0.02; cat mine"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == sorted(f"{number}.{turn}\n" for number in range(4) for turn in range(5))
    assert sorted(os.listdir(prepared)) == ["file", "sub"]


def test_layers_that_nobody_uses_go(prepared: Path) -> None:
    store = stores.store_for(str(prepared))

    def count() -> int:
        trash.wait()
        return sum(name.isdigit() for name in os.listdir(store.path))

    before = count()
    for turn in range(8):
        take(prepared)
        time.sleep(0.02 * (turn % 4))
    assert until(lambda: count() <= before + 1), os.listdir(store.path)
