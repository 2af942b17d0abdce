"""Directories of a sandbox as tar: out as they are, in whole or not at all."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import resource
import tarfile
from pathlib import Path

import pytest

from staddle import AsyncSandbox, Sandbox
from staddle.errors import ArchiveRefused, InvalidCall
from tests.support.file_habitats import Place, opened, place

__all__ = ["place"]


def tar(*items: tuple[str, bytes | str | int], **more: object) -> bytes:
    """(name, bytes of a file | target of a link | type of something else), with tarfile's fields."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name, what in items:
            item = tarfile.TarInfo(name)
            for field, value in more.items():
                setattr(item, field, value)
            if isinstance(what, bytes):
                item.size = len(what)
                made.addfile(item, io.BytesIO(what))
            elif isinstance(what, str):
                item.type, item.linkname = tarfile.SYMTYPE, what
                if what.startswith("="):
                    item.type, item.linkname = tarfile.LNKTYPE, what[1:]
                made.addfile(item)
            else:
                item.type = bytes([what])
                made.addfile(item)
    return out.getvalue()


DIRECTORY, FIFO, CHARACTER, BLOCK = (ord(kind) for kind in "5634")


def contents(sandbox: Sandbox) -> str:
    return sandbox.run("find . -printf '%P %y %m %l\\n' | sort; find . -type f | sort | xargs -r cat").stdout


def test_a_tree_comes_back_as_it_was(place: Place) -> None:
    sandbox = place.sandbox
    sandbox.run(
        "mkdir -p t/d/e t/closed; echo a > t/a; ln t/a t/d/hard; ln -s ../a t/d/soft; : > t/empty;"
        "printf '\\377' > $'t/\\377\\n'; echo x > t/run; chmod 755 t/run; chmod 500 t/closed; mkfifo t/p;"
        "touch -d 2001-01-01 t/a"
    )
    out = io.BytesIO()
    sandbox.download_tar(out, "t")
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as made:
        kinds = {item.name: item.type for item in made}
        assert made.getmember("a").mtime == 978307200
    assert kinds.pop("\udcff\n") == tarfile.REGTYPE
    assert kinds == {
        "a": tarfile.REGTYPE,
        "closed": tarfile.DIRTYPE,
        "d": tarfile.DIRTYPE,
        "d/e": tarfile.DIRTYPE,
        "d/hard": tarfile.LNKTYPE,
        "d/soft": tarfile.SYMTYPE,
        "empty": tarfile.REGTYPE,
        "run": tarfile.REGTYPE,
    }
    sandbox.upload_tar(io.BytesIO(out.getvalue()), "again/there")
    listing = "find . ! -name p -printf '%P %y %m %n %l\\n' | LC_ALL=C sort"
    assert (
        sandbox.run(f"cd again/there; {listing}; cd ../..").stdout.splitlines()[1:]
        == sandbox.run(f"cd t; {listing}; cd ..").stdout.splitlines()[1:]
    )
    assert sandbox.run(
        "cat again/there/d/soft; stat -c %i again/there/a again/there/d/hard | uniq | wc -l"
    ).stdout == ("a\n1\n")
    sandbox.files.remove("t", recursive=True)
    sandbox.files.remove("again", recursive=True)


def test_one_file_is_a_tar_too(place: Place) -> None:
    place.sandbox.files.write("d/f", "x", parents=True)
    out = io.BytesIO()
    place.sandbox.download_tar(out, "d/f")
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as made:
        assert made.getnames() == ["f"]
    for path, kind in (("none", FileNotFoundError), ("/dev/null", PermissionError)):
        with pytest.raises(kind):
            place.sandbox.download_tar(io.BytesIO(), path)
    with pytest.raises(OSError, match="more than 1,000 bytes"):
        place.sandbox.download_tar(io.BytesIO(), "d", limit=1000)
    assert place.sandbox.files.read("d/f") == "x"


def test_an_upload_replaces_files_and_adds_to_directories(place: Place) -> None:
    sandbox = place.sandbox
    sandbox.run("mkdir -p d/keep; echo old > d/f; echo mine > d/mine; chmod 711 d")
    sandbox.upload_tar(
        io.BytesIO(tar(("./", DIRECTORY), ("d", DIRECTORY), ("d/f", b"new"), ("n/e/w", b"x"), mode=0o750))
    )
    assert sandbox.run("cat d/f d/mine n/e/w; stat -c %a d n/e/w").stdout == "newmine\nx711\n750\n"
    sandbox.upload_tar(io.BytesIO(gzip.compress(tar(("z/d", b"from gzip")))))
    assert sandbox.files.read("z/d") == "from gzip"
    raw = tar(("closed", DIRECTORY), mode=0o500)
    sandbox.upload_tar(io.BytesIO(raw))
    assert sandbox.files.stat("closed").mode == 0o500
    assert ".staddle" not in sandbox.run("ls -A").stdout


REFUSED: dict[str, bytes] = {
    "absolute": tar(("ok", b"x"), ("/etc/x", b"")),
    "climbs": tar(("ok", b"x"), ("../x", b"")),
    "climbs inside": tar(("ok", b"x"), ("a/../../x", b"")),
    "link out": tar(("ok", b"x"), ("l", "../../x")),
    "absolute link": tar(("ok", b"x"), ("l", "/etc")),
    "through a link": tar(("ok", b"x"), ("l", "."), ("l/x", b"")),
    "hard link out": tar(("ok", b"x"), ("l", "=../x")),
    "absolute hard link": tar(("ok", b"x"), ("l", "=/etc/passwd")),
    "hard link to a link": tar(("s", "ok"), ("l", "=s")),
    "hard link to nothing": tar(("l", "=nothing")),
    "pipe": tar(("ok", b"x"), ("p", FIFO)),
    "device": tar(("ok", b"x"), ("c", CHARACTER), devmajor=1, devminor=3),
    "whiteout": tar(("ok", b"x"), ("c", CHARACTER)),
    "block device": tar(("ok", b"x"), ("b", BLOCK), devmajor=1),
    "twice": tar(("ok", b"x"), ("ok", b"y")),
    "a file as a directory": tar(("ok", b"x"), ("ok/x", b"y")),
    "no name": tar(("ok", b"x"), ("x" * 300, b"")),
    "no tar": b"this is no tar" * 100,
    "empty": b"",
    "no end": tar(("ok", b"x"))[:1024],
    "damaged gzip": gzip.compress(tar(("ok", b"x" * 100_000)))[:-20],
    "something after it": tar(("ok", b"x")) + b"more",
    "a directory where a file is": tar(("ok", b"x"), ("file/x", b"y")),
    "a file where a directory is": tar(("ok", b"x"), ("dir", b"y")),
    "a directory where a link is": tar(("ok", b"x"), ("link/x", b"y")),
}


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_what_is_refused_changes_nothing(place: Place) -> None:
    sandbox = place.sandbox
    sandbox.run("echo mine > file; mkdir dir; ln -s dir link")
    before = contents(sandbox)
    for name, data in REFUSED.items():
        with pytest.raises((ArchiveRefused, NotADirectoryError, IsADirectoryError)):
            sandbox.upload_tar(io.BytesIO(data))
        assert contents(sandbox) == before, name
    assert os.listdir(place.workspace.parent / "outside") == []
    good = tar(("ok", b"x" * 5000), ("dir/more", b"y"))
    for cut in (*range(0, len(good) - 10_240, 257), 5632, 6200):
        with pytest.raises(ArchiveRefused):
            sandbox.upload_tar(io.BytesIO(good[:cut]))
    assert contents(sandbox) == before
    sandbox.upload_tar(io.BytesIO(good))
    assert sandbox.files.read("dir/more") == "y"


def test_what_is_not_a_file_is_refused(place: Place) -> None:
    for bad in ("x.tar", 5, None, Path("x.tar")):
        with pytest.raises(InvalidCall):
            place.sandbox.upload_tar(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidCall):
            place.sandbox.download_tar(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidCall):
        place.sandbox.upload_tar(io.StringIO("x"))  # type: ignore[arg-type]


def test_a_source_that_fails_leaves_nothing(place: Place) -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 100_000:
                raise ZeroDivisionError
            return super().read(20_000)

    with pytest.raises(ZeroDivisionError):
        place.sandbox.upload_tar(Failing(tar(("a", bytes(1_000_000)))))
    assert place.sandbox.files.list() == []


@pytest.mark.slow
@pytest.mark.same_for_everyone
@pytest.mark.parametrize("habitat", ["namespaces"])
def test_large_trees_go_through_without_being_in_memory(habitat: str, tmp_path: Path) -> None:
    with opened(habitat, tmp_path) as sandbox:
        sandbox.run("mkdir t; head -c 100M /dev/zero > t/large; cd t; touch $(seq 2000); cd ..")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with open(tmp_path / "t.tar", "wb") as file:
            sandbox.download_tar(file, "t")
        with open(tmp_path / "t.tar", "rb") as file:
            sandbox.upload_tar(file, "again")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30 << 10
        assert sandbox.run("cmp t/large again/large && ls again | wc -l").stdout == "2001\n"


def test_the_same_awaited(tmp_path: Path) -> None:
    async def session() -> None:
        async with AsyncSandbox(tmp_path) as sandbox:
            await sandbox.upload_tar(io.BytesIO(tar(("a/b", b"x"))), "d")
            assert await sandbox.files.read("d/a/b") == "x"
            out = io.BytesIO()
            await sandbox.download_tar(out, "d")
            with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as made:
                assert made.getnames() == ["a", "a/b"]

    asyncio.run(session())
