"""Snapshots in a file: whole or not at all, for another process, and nothing but what `save` writes."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from staddle import AsyncSandbox, Sandbox, Snapshot
from staddle.errors import ArchiveRefused, CommitRefused
from staddle.layers import archive, trash
from staddle.layers.stack import LayerSnapshot
from staddle.layers.store import Store, sweep
from staddle.places import is_shared
from staddle.sandbox.workspace import snapshot_file
from staddle.sandbox.workspace.persistent import PersistentWorkspace
from staddle.sandbox.workspace.stores import close_stores, empty_directory, store_for
from tests.support.in_a_child import captured
from tests.support.kills import killed_at

SRC = Path(__file__).parents[2] / "src"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "file").write_text("of the host\n")
    (place / "gone").write_text("x\n")
    return place


@pytest.fixture
def saved(project: Path, tmp_path: Path) -> Path:
    """A snapshot of a sandbox in which everything has been changed."""
    with Sandbox(project) as sandbox:
        sandbox.run("x='a b'; f() { echo \"f $x\"; }; alias a='echo alias'; set -o noclobber")
        sandbox.run("echo more >> file; rm gone; mkdir sub; echo new > sub/new; ln -s new sub/link; cd sub")
        sandbox.run("echo home > ~/mine; echo tmp > /tmp/mine")
        sandbox.session("other").run("y=2; cd /tmp; false")
        sandbox.snapshot("here").save(tmp_path / "saved")
    return tmp_path / "saved"


LOOK = "f; a; pwd; cat link ../file ~/mine /tmp/mine; ls ..; set -o | grep noclobber"
SEEN = "f a b\nalias\n/workspace/sub\nnew\nof the host\nmore\nhome\ntmp\nfile\nsub\nnoclobber      \ton\n"


@pytest.mark.slow
def test_another_process_goes_on_from_it(saved: Path, project: Path) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(SRC)!r})
from staddle import Sandbox
with Sandbox.from_snapshot({str(saved)!r}, {str(project)!r}) as sandbox:
    print(sandbox.run({LOOK!r}).stdout, end="")
    print(sandbox.session("other").run("echo $?; echo $y; pwd").stdout, end="")
    print(*((change.kind, change.path) for change in sandbox.diff()))
"""
    done = captured([sys.executable, "-c", code])
    changes = (
        "('modified', '/workspace/file') ('deleted', '/workspace/gone') ('added', '/workspace/sub')"
        " ('added', '/workspace/sub/link') ('added', '/workspace/sub/new')\n"
    )
    assert done.stdout == f"{SEEN}1\n2\n/tmp\n{changes}", done.stderr


@pytest.mark.slow
def test_a_sandbox_that_is_open_can_become_it_and_go_on_from_there(saved: Path, project: Path) -> None:
    loaded = Snapshot.load(saved)
    assert (loaded.label, loaded.sessions) == ("here", ("main", "other"))
    with Sandbox(project) as sandbox:
        sandbox.run("echo x > unwanted; x=1")
        for _ in range(2):
            sandbox.restore(loaded)
            assert sandbox.run(LOOK).stdout == SEEN
            sandbox.run("rm -r /workspace/*")
        sandbox.restore(loaded)
        loaded.close()
        (fork,) = sandbox.fork()
        with fork:
            assert fork.run(LOOK).stdout == SEEN
            fork.snapshot().save(saved)
        sandbox.commit()
    assert sorted(os.listdir(project)) == ["file", "sub"]
    again = Snapshot.load(saved)
    assert again.label == ""
    again.save(f"{saved}.again")
    assert Snapshot.load(f"{saved}.again").sessions == again.sessions


def test_it_can_be_awaited(saved: Path, project: Path) -> None:
    async def main() -> None:
        sandbox = await AsyncSandbox.from_snapshot(saved, project)
        async with sandbox:
            assert (await sandbox.run(LOOK)).stdout == SEEN
        with pytest.raises(FileNotFoundError):
            await AsyncSandbox.from_snapshot(f"{saved}.not", project)

    asyncio.run(main())


def test_a_file_that_is_not_there_is_an_error_before_anything_is_opened(saved: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Sandbox.from_snapshot(f"{saved}.not", "/no/such/directory")


def test_without_the_workspace_there_is_what_was_written(saved: Path) -> None:
    with Sandbox.from_snapshot(saved) as sandbox:
        assert sandbox.run("cat ../file; ls -A ..").stdout == "of the host\nmore\nfile\nsub\n"


def test_on_a_copy_of_the_workspace_it_is_taken_over_as_on_the_first(
    saved: Path, project: Path, tmp_path: Path
) -> None:
    shutil.copytree(project, tmp_path / "copy")
    for place, host_changed in ((project, True), (tmp_path / "copy", False)):
        (place / "file").write_text("edited\n")  # after it was saved, before it is opened again
        with Sandbox.from_snapshot(saved, place) as sandbox:
            if host_changed:
                with pytest.raises(CommitRefused, match="file"):
                    sandbox.commit()
            sandbox.commit(on_conflict="overwrite")
        assert (place / "file").read_text() == "of the host\nmore\n"
        assert not (place / "gone").exists()


def test_what_was_committed_is_no_change_afterwards(project: Path, tmp_path: Path) -> None:
    with Sandbox(project) as sandbox:
        sandbox.run("echo 1 > one; echo 2 > two; rm gone")
        sandbox.commit(["one", "gone"])
        sandbox.snapshot().save(tmp_path / "saved")
    (project / "one").write_text("edited\n")
    with Sandbox.from_snapshot(tmp_path / "saved", project) as sandbox:
        assert [change.path for change in sandbox.diff()] == ["/workspace/two"]


def test_progress_is_told(saved: Path, project: Path) -> None:
    told: list[tuple[int, int]] = []
    loaded = Snapshot.load(saved, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (os.path.getsize(saved), os.path.getsize(saved))
    told.clear()
    loaded.save(f"{saved}.again", progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 5


def test_a_kept_session_is_saved_and_becomes_one(project: Path, saved: Path, kept: Path) -> None:
    session = PersistentWorkspace("one", make=True, workspace=str(project))
    session.become(Snapshot.load(saved))
    session.snapshot("start")
    session.drop()
    session.saved("start").save(kept / "file")
    session.saved(None).save(kept / "now")
    session.close()
    with Sandbox(project, keep="one") as sandbox:
        assert sandbox.diff() == []
        sandbox.restore(Snapshot.load(kept / "file"))
        assert sandbox.run("cat /workspace/sub/new").stdout == "new\n"
    with Sandbox(project, keep="one") as sandbox:
        assert sandbox.run("cat /workspace/sub/new").stdout == "new\n"
        sandbox.restore(Snapshot.load(kept / "now"))
        assert sandbox.diff() == []


# ---------------------------------------------------------------- a file by somebody else


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store for what is loaded, in which nobody else has anything."""
    with Store(str(tmp_path / "alone")) as store:
        monkeypatch.setattr(snapshot_file, "store_for", lambda _: store)
        monkeypatch.setattr(snapshot_file, "mounter", lambda: None)
        yield store


def test_a_file_that_is_cut_short_or_changed_is_refused(saved: Path, tmp_path: Path, alone: Store) -> None:
    whole = saved.read_bytes()
    other = tmp_path / "other"
    for length in [*range(0, len(whole), 61), *range(len(whole) - 12, len(whole))]:
        other.write_bytes(whole[:length])
        with pytest.raises(ArchiveRefused):
            Snapshot.load(other)
    for at in range(0, len(whole) - 8, 397):
        other.write_bytes(whole[:at] + bytes((whole[at] ^ 0x10,)) + whole[at + 1 :])
        try:
            Snapshot.load(other).close()  # a byte of the header that means nothing
        except ArchiveRefused:
            pass
    trash.wait()
    assert set(os.listdir(alone.path)) <= {"lock", "empty"}


def forged(saved: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The same archive with other facts, and a checksum that is right."""
    layers, facts = archive.load(str(saved), store_for(None))
    change(facts)
    base = empty_directory(store_for(None))
    points = {name: LayerSnapshot(store_for(None), [base], [layer]) for name, layer in layers.items()}
    archive.save(points, f"{saved}.forged", facts=facts)
    for held in (*points.values(), *layers.values()):
        held.close() if isinstance(held, LayerSnapshot) else held.drop()
    return Path(f"{saved}.forged")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.same_for_everyone
@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts.clear(),
        lambda facts: facts.update(kind="environment"),
        lambda facts: facts.update(label=7),
        lambda facts: facts.update(method="magic"),
        lambda facts: facts.update(created="yesterday"),
        lambda facts: facts.update(trees=[]),
        lambda facts: facts.update(trees=[{"layer": "workspace", "root": "/etc", "places": ["/etc"]}]),
        lambda facts: facts["trees"][1].update(root="/../etc"),
        lambda facts: facts["trees"][1].update(places=["../etc"]),
        lambda facts: facts["trees"][0].update(layer="tree-0"),
        lambda facts: facts.update(shells=[]),
        lambda facts: facts.update(shells={"": facts["shells"]["main"]}),
        lambda facts: facts.update(shells={"x" * 2000: facts["shells"]["main"]}),
        lambda facts: facts["shells"]["main"].update(status=True),
        lambda facts: facts["shells"]["main"].update(status=300),
        lambda facts: facts["shells"]["main"].update(cwd=_text(b"relative")),
        lambda facts: facts["shells"]["main"].update(cwd=_text(b"/a\0b")),
        lambda facts: facts["shells"]["main"].update(cwd="not base64!"),
        lambda facts: facts["shells"]["main"].update(dump={}),
        lambda facts: facts["shells"]["main"]["dump"].update(variables=_text(b'declare -- x="never ends')),
        lambda facts: facts["shells"]["main"]["dump"].update(traps=_text(b"trap -- 'never ends")),
        lambda facts: facts["shells"]["main"]["dump"].update(umask=7),
        lambda facts: facts.update(baseline={}),
        lambda facts: facts["baseline"].update(noted={"a": ["b"]}),
        lambda facts: facts.update(of=7),
    ],
)
def test_facts_that_we_do_not_write_are_refused(
    saved: Path, alone: Store, change: Callable[[dict[str, Any]], object]
) -> None:
    forgery = forged(saved, change)
    with pytest.raises(ArchiveRefused):
        Snapshot.load(forgery)
    trash.wait()
    assert os.listdir(alone.path) == ["lock"]


def test_a_state_that_is_too_much_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_file, "_MOST_STATE", 1000)
    with pytest.raises(ArchiveRefused, match="too much"):
        Snapshot.load(saved)


def test_a_state_with_commands_in_it_runs_them_inside_at_worst(
    saved: Path, project: Path, tmp_path: Path
) -> None:
    sign = tmp_path / "outside"
    evil = b"touch %b /tmp/inside" % os.fsencode(sign)

    def change(facts: dict[str, Any]) -> None:
        dump = facts["shells"]["main"]["dump"]
        dump["umask"] = _text(b"umask 0022; " + evil)
        dump["functions"] = _text(b"f () \n{ \n :\n}\n" + evil + b"\n")
        dump["aliases"] = _text(b"alias a='$(%b)'" % evil)

    with Sandbox.from_snapshot(forged(saved, change), project) as sandbox:
        assert sandbox.run("ls /tmp/inside; echo alive").stdout.endswith("alive\n")
    assert not sign.exists()


# ---------------------------------------------------------------- a kill at any step


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where sessions are kept, and this process's layers, for a test alone."""
    place = Path(os.path.realpath(os.environ.get("TMPDIR", "/var/tmp"))) / f"saving-{os.urandom(6).hex()}"
    place.mkdir(mode=0o711)
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    (place / "state").mkdir(mode=0o711)
    yield place
    trash.wait()
    subprocess.run(["chmod", "-R", "u+rwx", str(place)], check=True)
    shutil.rmtree(place)


@pytest.mark.slow
@pytest.mark.same_for_everyone
@pytest.mark.parametrize("old", [None, b"old"])
def test_a_kill_while_saving_leaves_the_old_file_or_the_new_one(
    saved: Path, tmp_path: Path, old: bytes | None
) -> None:
    loaded = Snapshot.load(saved)
    place = tmp_path / "to"
    place.mkdir()
    file, outcomes, number = place / "file", set(), 0
    while True:
        file.unlink(missing_ok=True)
        if old is not None:
            file.write_bytes(old)
        number += 1
        killed = killed_at(number, lambda: loaded.save(file))
        content = file.read_bytes() if file.exists() else None
        outcomes.add(content == old)
        if content != old:
            Snapshot.load(file).close()
        # What is whole has a name of its own for a moment before it gets this one.
        left = [path for path in place.iterdir() if path != file]
        assert len(left) <= 1
        for path in left:
            path.unlink()
        if not killed:
            break
    assert content != old
    assert outcomes == {True, False}
    assert number > 5


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_kill_while_loading_leaves_nothing(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "layers"
    home.mkdir(mode=0o711)
    monkeypatch.setenv("STADDLE_LAYERS", str(home))
    content = saved.read_bytes()

    def load() -> None:
        Snapshot.load(str(saved)).close()
        close_stores()

    number = 0
    while True:
        number += 7
        killed = killed_at(number, load)
        for mine in home.iterdir():
            _as_old_as_it_must_be(mine)
            sweep(str(mine))
        trash.wait()
        assert [path for path in home.rglob("*") if path.parent != home] == [], number
        assert saved.read_bytes() == content
        if not killed:
            break
    assert number > 30


def _as_old_as_it_must_be(home: Path) -> None:
    """What has no lock yet may be somebody's who is about to take it, for a minute."""
    for path in home.iterdir():
        if not (path / "lock").exists():
            os.utime(path, (0, 0))


@pytest.mark.slow
def test_a_kept_session_that_is_killed_while_it_goes_back_is_here_or_there(
    project: Path, saved: Path, kept: Path
) -> None:
    session = PersistentWorkspace("one", make=True, workspace=str(project))
    session.become(Snapshot.load(saved))
    session.snapshot("then")
    session.drop()
    session.close()

    def go_back() -> None:
        mine = PersistentWorkspace("one")
        mine.restore("then")
        mine.close()

    number, seen = 0, set()
    while True:
        number += 1
        killed = killed_at(number, go_back)
        mine = PersistentWorkspace("one")
        there = {change.path for change in mine.diff()}
        assert there in (
            set(),
            {f"/workspace/{name}" for name in ("file", "gone", "sub", "sub/link", "sub/new")},
        )
        seen.add(bool(there))
        mine.drop()
        mine.close()
        if not killed:
            break
    assert seen == {False, True}
    assert (project / "file").read_text() == "of the host\n"


def test_it_can_be_saved_in_a_directory_of_ours() -> None:
    """A fleet keeps its snapshots in one, which no sandbox may write."""
    with tempfile.TemporaryDirectory("-0", "staddle-fleet-", "/tmp") as place, Sandbox() as sb:
        assert is_shared(place)
        sb.files.write("file", "text")
        sb.snapshot().save(f"{place}/saved")
        with Sandbox.from_snapshot(f"{place}/saved") as other:
            assert other.files.read("file") == "text"
