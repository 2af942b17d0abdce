"""What agents do with files beyond reading and writing them whole."""

from __future__ import annotations

import asyncio
import io
import itertools
import threading
from pathlib import Path

import pytest

from staddle import AsyncSandbox
from staddle.errors import InvalidCall
from tests.support.file_habitats import Place, place

__all__ = ["place"]


@pytest.mark.same_for_everyone
def test_a_part_of_a_file(place: Place) -> None:
    files = place.sandbox.files
    files.write("digits", "0123456789")
    assert files.read("digits", offset=3) == "3456789"
    assert files.read("digits", offset=3, length=4) == "3456"
    assert files.read_bytes("digits", offset=20, length=4) == b""
    with pytest.raises(OSError, match="more than 4 bytes"):
        files.read("digits", limit=4)
    with pytest.raises(InvalidCall, match="offset"):
        files.read("digits", offset=-1)


def test_append_exclusive_and_permissions(place: Place) -> None:
    files = place.sandbox.files
    files.append("log/today", "one\n", parents=True)
    files.append("log/today", b"two\n")
    assert files.read("log/today") == "one\ntwo\n"
    long = "x" * 100_000
    files.append("log/today", long)
    assert files.read("log/today") == f"one\ntwo\n{long}"
    files.write("new", "a", exclusive=True, mode=0o750)
    assert files.stat("new").mode == 0o750
    with pytest.raises(FileExistsError):
        files.write("new", "b", exclusive=True)
    with pytest.raises(FileExistsError):
        files.write("new", b"b" * 100_000, exclusive=True)
    assert files.read("new") == "a"
    files.chmod("new", 0o600)
    assert files.stat("new").mode == 0o600
    with pytest.raises(InvalidCall, match="mode"):
        files.chmod("new", 0o100000)
    with pytest.raises(IsADirectoryError):
        files.append("log", "x")


def test_links_are_told_and_followed(place: Place) -> None:
    files = place.sandbox.files
    place.sandbox.run("mkdir d; echo x > d/file; ln -s d/file link; ln -s nowhere dangling; ln -s d dir")
    assert files.readlink("link") == "d/file"
    assert files.realpath("link") == f"{place.sandbox.run('pwd -P').stdout.strip()}/d/file"
    with pytest.raises(FileNotFoundError):
        files.realpath("dangling")
    kinds = {entry.name: entry.kind for entry in files.list()}
    assert (kinds["link"], kinds["dir"], kinds["dangling"]) == ("symlink",) * 3
    kinds = {entry.name: entry.kind for entry in files.list(follow_symlinks=True)}
    assert (kinds["link"], kinds["dir"], kinds["dangling"]) == ("file", "directory", "symlink")


def test_who_owns_it(place: Place) -> None:
    files = place.sandbox.files
    files.write("mine", "x")
    found = files.stat("mine")
    uid, gid, owner = place.sandbox.run("id -u; id -g; id -un 2>/dev/null").stdout.split("\n")[:3]
    assert (str(found.uid), str(found.gid)) == (uid, gid)
    assert found.owner in (owner, "")
    assert files.stat("/usr").uid in (0, 65534)


def test_a_copy_is_whole(place: Place) -> None:
    files = place.sandbox.files
    place.sandbox.run(
        "mkdir -p from/deep; echo a > from/deep/a; ln -s deep/a from/link; chmod 750 from/deep/a"
    )
    files.copy("from", "to")
    assert (
        place.sandbox.run("cat to/link; stat -c %a to/deep/a; readlink to/link").stdout == "a\n750\ndeep/a\n"
    )
    files.copy("from/deep/a", "single")
    assert files.read("single") == "a\n"
    with pytest.raises(FileExistsError):
        files.copy("from/deep/a", "single")
    files.write("other", "longer than that")
    files.copy("from/deep/a", "other", replace=True)
    assert files.read("other") == "a\n"
    with pytest.raises(OSError, match="into itself"):
        files.copy("from", "from/deep/again")
    with pytest.raises(FileNotFoundError):
        files.copy("missing", "x")


@pytest.mark.same_for_everyone
def test_many_files_at_once(place: Place) -> None:
    files = place.sandbox.files
    contents = {f"many/{number % 10}/{number}": f"content {number}" for number in range(500)}
    files.write_many({**contents, "many/large": b"x" * 100_000})
    assert place.sandbox.run("find many -type f | wc -l; cat many/7/497").stdout == "501\ncontent 497"
    with pytest.raises(IsADirectoryError) as caught:
        files.write_many({"fine": "x", "many": "y"})
    assert str(caught.value.filename).endswith("many")


def test_the_home_has_its_short_name(place: Place) -> None:
    if place.habitat.startswith("namespaces"):
        place.sandbox.files.write("~/x", "at home")
        assert place.sandbox.run("cat ~/x").stdout == "at home"
    place.sandbox.files.write("./~", "a name")
    assert place.sandbox.files.read("./~") == "a name"


def test_edit_replaces_what_is_there_once(place: Place) -> None:
    files = place.sandbox.files
    files.write("code.py", "a = 1\nb = 1\nc = 2\n")
    assert files.edit("code.py", "b = 1", "b = 3") == 1
    assert files.edit("code.py", " = ", "=", every=True) == 3
    assert files.read("code.py") == "a=1\nb=3\nc=2\n"
    for old, said in (("=", "3 times"), ("zzz", "nowhere"), ("", "empty")):
        with pytest.raises(InvalidCall, match=said):
            files.edit("code.py", old, "x")


@pytest.mark.same_for_everyone
def test_grep_finds_lines(place: Place) -> None:
    files = place.sandbox.files
    files.write_many({"src/a.py": "import os\nprint(1)\n", "src/b.txt": "import nothing\n", "c": "a: b\n"})
    found = files.grep("^import", "src")
    assert [(each.path, each.line, each.text) for each in found] == [
        ("src/a.py", 1, "import os"),
        ("src/b.txt", 1, "import nothing"),
    ]
    assert [each.path for each in files.grep("IMPORT", include="*.py", ignore_case=True)] == ["src/a.py"]
    assert [each.text for each in files.grep("(1)", fixed=True)] == ["print(1)"]
    assert files.grep("no such thing") == []
    assert len(files.grep(".", limit=2)) == 2
    assert [(each.path, each.line) for each in files.grep("import", "src/a.py")] == [("src/a.py", 1)]
    with pytest.raises(OSError, match="Unmatched"):
        files.grep("(")


def test_up_and_down(place: Place, tmp_path: Path) -> None:
    files = place.sandbox.files
    (tmp_path / "local").write_bytes(b"\0up")
    files.upload(tmp_path / "local", "deep/remote")
    files.upload(io.BytesIO(b"stream"), "streamed")
    assert files.read_bytes("deep/remote") == b"\0up"
    assert files.download("deep/remote", tmp_path / "back") == 3
    assert (tmp_path / "back").read_bytes() == b"\0up"
    taken = io.BytesIO()
    assert files.download("streamed", taken) == 6
    assert taken.getvalue() == b"stream"
    with pytest.raises(FileNotFoundError):
        files.download("missing", tmp_path / "never")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "local", "outside", "work"]


@pytest.mark.same_for_everyone
def test_a_watch_sees_what_changes(place: Place) -> None:
    files, stop = place.sandbox.files, threading.Event()
    files.write("there", "before")
    watching = files.watch(stop=stop)
    place.sandbox.run("mkdir sub; echo 1 > sub/new; echo afterwards > there; ln -s there link")
    seen = {(event.kind, event.path) for event in itertools.islice(watching, 4)}
    assert seen == {("added", "sub"), ("added", "sub/new"), ("modified", "there"), ("added", "link")}
    place.sandbox.run("rm there; touch later")
    seen = {(event.kind, event.path) for event in itertools.islice(watching, 2)}
    assert seen == {("deleted", "there"), ("added", "later")}
    stop.set()
    assert list(watching) == []
    with pytest.raises(InvalidCall):
        files.watch(timeout=-1)
    with pytest.raises(FileNotFoundError):
        files.watch("missing")
    assert list(files.watch(timeout=0)) == []


@pytest.mark.same_for_everyone
def test_the_awaited_face_has_them() -> None:
    async def work() -> None:
        async with AsyncSandbox(backend="native") as sb:
            await sb.files.write_many({"a": "one two"})
            assert await sb.files.edit("a", "two", "three") == 1
            await sb.files.append("a", "!")
            assert await sb.files.read("a", offset=4) == "three!"
            assert [each.line for each in await sb.files.grep("three")] == [1]

    asyncio.run(work())
