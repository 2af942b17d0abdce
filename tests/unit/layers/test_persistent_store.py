"""The record of a kept session: read back as it was written, or not at all; and whose it is meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import staddle
from staddle.errors import LayerError
from staddle.layers import persistent_store, session_record, trash
from staddle.layers.baseline import Baseline, Marks
from staddle.layers.persistent_store import PersistentStore

SRC = str(Path(staddle.__file__).parents[1])


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(place))
    (place / "staddle/sessions").mkdir(parents=True)
    return place


def record(**more: object) -> session_record.SessionRecord:
    baseline = Baseline(5)
    baseline._noted = Marks({"odd\n\udcff": (1, 2), "gone": None})
    then = session_record.TreeRecord("/", ("/tmp", "/home/user"), ("skeleton-1",), ("3",))
    now = then.replace(layers=("4", "3"))
    point = session_record.SnapshotRecord("before", 2.0, ("1",), Baseline(3), (then,))
    made = session_record.SessionRecord(
        "fix",
        "/home/me/pro ject",
        7,
        1.0,
        2.5,
        {"preset": "agent"},
        ("2", "1"),
        baseline,
        (point,),
        (now,),
        5,
    )
    return made.replace(**more)


def directory() -> str:
    path = session_record.directory_of("fix")
    os.makedirs(path, exist_ok=True)
    return path


# ---------------------------------------------------------------- the record


def test_it_is_read_as_it_was_written() -> None:
    session_record.write(directory(), record())
    found = session_record.read(directory())
    assert found is not None
    assert found.replace(baseline=None, points=()) == record(baseline=None, points=())
    assert found.baseline.facts() == record().baseline.facts()
    assert found.points[0].baseline.facts() == Baseline(3).facts()
    assert found.points[0].beside == record().points[0].beside
    assert found.every_layer == {"1", "2", "3", "4"}
    assert found.every_base == {"skeleton-1"}
    assert os.listdir(directory()) == ["session"]
    assert os.stat(f"{directory()}/session").st_mode & 0o777 == 0o600


def test_there_is_none_where_none_was_made() -> None:
    assert session_record.read(session_record.directory_of("fix")) is None
    assert session_record.names() == []


def point(**more: object) -> Callable[[dict[str, object]], object]:
    return lambda facts: [{**facts["points"][0], **more}]  # type: ignore[index]


def beside(**more: object) -> Callable[[dict[str, object]], object]:
    return lambda facts: [{**facts["beside"][0], **more}]  # type: ignore[index]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("format", lambda _: 2),
        ("name", lambda _: "other"),
        ("workspace", lambda _: "relative"),
        ("workspace", lambda _: 5),
        ("inode", lambda _: "7"),
        ("created", lambda _: True),
        ("used", lambda _: -1),
        ("used", lambda _: float("nan")),
        ("policy", lambda _: []),
        ("layers", lambda _: []),
        ("layers", lambda _: ["1", "1"]),
        ("layers", lambda _: ["../2"]),
        ("layers", lambda _: ["\u0661"]),
        ("layers", lambda _: "12"),
        ("layers", lambda _: ["1"]),  # the layer that is written is that of a snapshot
        ("baseline", lambda _: {}),
        ("baseline", lambda _: {"taken": 1, "noted": {"a": "b"}, "settled": {}}),
        ("baseline", lambda _: {"taken": 1, "noted": [], "settled": {}}),
        ("points", lambda _: [5]),
        ("points", lambda facts: facts["points"] * 2),
        ("points", point(label="")),
        ("points", point(label="x" * 201)),
        ("points", point(layers=["/"])),
        ("points", point(beside=5)),
        ("mounter", lambda _: "root"),
        ("mounter", lambda _: -2),
        ("beside", lambda _: {}),
        ("beside", lambda facts: facts["beside"] * 2),
        ("beside", beside(root="relative")),
        ("beside", beside(places=["/a/../b"])),
        ("beside", beside(bases=[])),
        ("beside", beside(bases=["../x"])),
        ("beside", beside(bases=["/x/../y"])),
        ("beside", beside(layers=[])),
        ("beside", beside(layers=["1"])),  # that of a snapshot
    ],
)
def test_anything_else_is_refused(field: str, wrong: Callable[[dict[str, object]], object]) -> None:
    session_record.write(directory(), record())
    file = Path(directory(), "session")
    facts = json.loads(file.read_text())
    file.write_text(json.dumps({**facts, field: wrong(facts)}))
    with pytest.raises(LayerError, match="cannot be read") as refused:
        session_record.read(directory())
    assert "staddle rm --force fix" in refused.value.fix


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "null", '{"format": 1}'])
def test_what_is_no_record_is_refused(text: str) -> None:
    Path(directory(), "session").write_text(text)
    with pytest.raises(LayerError, match="cannot be read"):
        session_record.read(directory())


def test_a_record_behind_a_link_is_refused(tmp_path: Path) -> None:
    session_record.write(directory(), record())
    os.rename(f"{directory()}/session", tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", f"{directory()}/session")
    with pytest.raises(LayerError, match="cannot be read"):
        session_record.read(directory())


# ---------------------------------------------------------------- where


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", ".x", "a b", "a\n", "ä", "x" * 65, None, 5])
def test_a_name_is_one_plain_word(name: object) -> None:
    with pytest.raises(LayerError):
        session_record.checked_name(name)


def test_a_session_is_never_kept_in_its_own_workspace(state: Path) -> None:
    for workspace in (state, state.parent, state / "staddle"):
        with pytest.raises(LayerError, match="in the workspace"):
            session_record.make_home(str(workspace))


def test_a_place_that_others_can_write_is_refused(state: Path) -> None:
    (state / "staddle").chmod(0o777)
    with pytest.raises(LayerError, match="staddle's alone"):
        session_record.make_home(None)


def test_a_relative_state_directory_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert session_record.home().startswith("/")
    assert "relative" not in session_record.home()


# ---------------------------------------------------------------- the store


def test_what_the_record_names_is_never_deleted() -> None:
    store = PersistentStore("fix", make=True)
    one, two = store.layer().hold(), store.layer().hold()
    store.recorded = frozenset({os.path.basename(one.path)})
    one.drop()
    two.drop()
    trash.wait()
    assert os.path.isdir(one.path)
    assert not os.path.exists(two.path)
    store.end()


def test_a_later_process_goes_on_counting_and_deletes_what_was_left() -> None:
    store = PersistentStore("fix", make=True)
    made = [store.layer().hold() for _ in range(3)]
    store.leave()
    session_record.write(directory(), record())
    again = PersistentStore("fix", make=False)
    again.recorded = frozenset({"1", "3"})
    again.sweep()
    trash.wait()
    assert [os.path.isdir(layer.path) for layer in made] == [True, False, True]
    assert os.path.basename(again.layer().path) == "4"
    again.leave()


def test_it_is_one_process_at_a_time_until_nobody_has_a_layer() -> None:
    store = PersistentStore("fix", make=True)
    layer = store.layer().hold()
    store.end()
    assert persistent_store.is_claimed("fix")
    with pytest.raises(LayerError, match="in use"):
        PersistentStore("fix", make=True)
    with pytest.raises(LayerError, match="in use"):
        persistent_store.remove("fix")
    layer.drop()
    assert not persistent_store.is_claimed("fix")
    PersistentStore("fix", make=True).end()


def test_another_process_is_named() -> None:
    code = (
        f"import sys; sys.path.insert(0, {SRC!r})\n"
        "from staddle.layers.persistent_store import PersistentStore\n"
        "store = PersistentStore('fix', make=True); print('ready', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        with pytest.raises(LayerError, match=f"process {other.pid} "):
            PersistentStore("fix", make=True)
    finally:
        other.kill()
        other.wait()
        for pipe in (other.stdin, other.stdout):
            assert pipe is not None
            pipe.close()
    PersistentStore("fix", make=True).end()  # the kernel has taken the claim back


def test_after_a_kill_the_sandboxes_of_the_killed_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    for killed, expected in (("1", 0), ("", 0), ("2", 1)):
        store = PersistentStore("fix", make=True)
        store.end()
        Path(store.home, "claim").write_text(killed)  # empty: it ended as it should
        Path(store.path, "users-2").touch()
        users = os.open(f"{store.path}/users-2", os.O_RDONLY)
        fcntl.flock(users, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda seconds, fd=users: (waits.append(seconds), os.close(fd)))
        PersistentStore("fix", make=True).end()
        assert len(waits) == expected
        if not expected:
            os.close(users)
        assert os.listdir(store.path) == [f"users-{os.getpid()}"]


def test_removal_is_complete(state: Path) -> None:
    store = PersistentStore("fix", make=True)
    layer = store.layer()
    os.mkdir(f"{layer.work}/work")
    os.chmod(f"{layer.work}/work", 0)
    Path(layer.upper, "file").write_text("x")
    os.chmod(layer.upper, 0)
    store.leave()
    persistent_store.remove("fix")
    trash.wait()
    assert os.listdir(state) == []
    with pytest.raises(LayerError, match="no kept sandbox"):
        persistent_store.remove("fix")
    with pytest.raises(LayerError, match="no kept sandbox"):
        PersistentStore("fix", make=False)


def test_a_layer_is_made_ready_to_be_mounted_again() -> None:
    store = PersistentStore("fix", make=True)
    layer = store.layer().hold()
    os.mkdir(f"{layer.work}/work")
    os.chmod(f"{layer.work}/work", 0)
    os.makedirs(f"{layer.upper}/a/b")
    Path(layer.upper, "a/b/file").write_text("x")
    os.symlink("/etc/passwd", f"{layer.upper}/link")
    owner = (0x70000000 + 1000, 0x70000000 + 1000) if os.geteuid() == 0 else None
    before = os.stat("/etc/passwd")
    persistent_store.prepare(layer, owner)
    assert os.listdir(layer.work) == []
    assert os.stat("/etc/passwd").st_uid == before.st_uid
    if owner is not None:
        for path in ("", "/a", "/a/b", "/a/b/file", "/link"):
            assert os.lstat(layer.upper + path).st_uid == owner[0]
        # From one process to the next everybody stays who they are.
        os.chown(f"{layer.upper}/a/b/file", owner[0] - 1000, owner[1] + 5)
        persistent_store.prepare(layer, (owner[0] + 0x100000, owner[1] + 0x100000), owner[0])
        found = os.stat(f"{layer.upper}/a/b/file")
        assert (found.st_uid, found.st_gid) == (owner[0] + 0x100000 - 1000, owner[1] + 0x100000 + 5)
        assert os.stat(f"{layer.upper}/a").st_uid == owner[0] + 0x100000
    layer.drop()
    store.end()
