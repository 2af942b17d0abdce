"""An archive holds a layer whole, and what is no archive of ours is refused with nothing left behind."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from staddle.errors import ArchiveRefused, LayerError
from staddle.files import tar
from staddle.files.tar import Member, UnpackBounds
from staddle.layers import archive, store, trash
from staddle.layers.archive import load, save
from staddle.layers.stack import LayerSnapshot, Stack
from staddle.layers.store import Store, home_for
from tests.support.layers_overlay import picture
from tests.unit.layers.layer import whiteout, write


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store; whatever happens in a test, it holds no layer at its end that the test does not hold."""
    (tmp_path / "place").mkdir()
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "place"))
    with Store(home_for()) as made:
        yield made
    trash.wait()


@pytest.fixture
def stack(room: Store, tmp_path: Path) -> Stack:
    (tmp_path / "base").mkdir()
    made = Stack.new(room, [str(tmp_path / "base")])
    upper = Path(made.top.upper)
    write(upper / "d/file", "content\n", 0o640)
    os.utime(upper / "d/file", (1, 1234567890.5))
    write(upper / "d/caf\udce9\n", b"\0\1")
    os.link(upper / "d/file", upper / "linked")
    (upper / "symlink").symlink_to("../../etc/passwd")
    (upper / "opaque").mkdir()
    os.setxattr(upper / "opaque", "user.overlay.opaque", b"y")
    os.setxattr(upper / "d/file", "user.note", b"\0=\n")
    os.setxattr(upper / "d/file", "user.overlay.origin", b"x")
    whiteout(upper / "gone")
    write(upper / ("n" * 200) / ("m" * 200), "long\n")
    (upper / "closed").mkdir(mode=0o500)
    os.mkfifo(upper / "pipe")
    with open(upper / "sparse", "wb") as file:
        file.seek(5 << 20)
        file.write(b"middle")
        file.truncate(20 << 20)
    return made


def saved(stack: Stack, tmp_path: Path) -> str:
    path = str(tmp_path / "saved")
    point = stack.freeze()
    save({"workspace": point}, path, facts={"cwd": "/workspace", "label": "one"})
    point.close()
    return path


class TestRoundTrip:
    def test_everything_of_a_layer_comes_back(self, room: Store, stack: Stack, tmp_path: Path) -> None:
        before = sorted(os.listdir(room.path))
        layers, facts = load(saved(stack, tmp_path), room)
        assert facts == {"cwd": "/workspace", "label": "one"}
        upper = Path(layers["workspace"].upper)
        original = picture(stack.top.upper)
        del original["pipe"]
        assert picture(upper) == original
        assert os.path.samefile(upper / "d/file", upper / "linked")
        assert (upper / "d/file").stat().st_mtime == 1234567890.5
        assert os.getxattr(upper / "d/file", "user.note") == b"\0=\n"
        assert os.listxattr(upper / "d/file") == ["user.note"]
        assert os.getxattr(upper / "opaque", "user.overlay.opaque") == b"y"
        assert stat.S_ISCHR((upper / "gone").lstat().st_mode)
        assert (upper / "sparse").stat().st_blocks * 512 < 1 << 20
        layers["workspace"].drop()
        trash.wait()
        assert sorted(os.listdir(room.path)) == before

    def test_several_layers_become_one(self, room: Store, stack: Stack, tmp_path: Path) -> None:
        following = stack.freeze().stack()
        write(Path(following.top.upper) / "d/file", "newer\n")
        whiteout(Path(following.top.upper) / "symlink")
        layers, _ = load(saved(following, tmp_path), room)
        upper = Path(layers["workspace"].upper)
        assert (upper / "d/file").read_text() == "newer\n"
        assert not os.path.lexists(upper / "symlink")
        restored = LayerSnapshot(room, stack.bases, (layers["workspace"],)).stack()
        assert restored.lowers == (str(upper), *stack.bases)

    def test_a_whiteout_of_what_is_not_there_is_left_out_when_the_base_is_known(
        self, room: Store, stack: Stack, tmp_path: Path
    ) -> None:
        """Overlayfs would list its name in a directory that nothing merges with."""
        write(tmp_path / "base/d/there")
        whiteout(Path(stack.top.upper) / "d/there")
        whiteout(Path(stack.top.upper) / "d/not there")
        path = saved(stack, tmp_path)
        layers, _ = load(path, room, bases=stack.bases)
        assert (Path(layers["workspace"].upper) / "d/there").is_char_device()
        assert not os.path.lexists(f"{layers['workspace'].upper}/d/not there")
        assert not os.path.lexists(f"{layers['workspace'].upper}/gone")

    def test_a_point_without_changes(self, room: Store, tmp_path: Path) -> None:
        save({"empty": LayerSnapshot(room, [str(tmp_path)], ())}, str(tmp_path / "saved"))
        layers, facts = load(str(tmp_path / "saved"), room)
        assert os.listdir(layers["empty"].upper) == []
        assert facts == {}

    def test_any_tar_can_list_it(self, stack: Stack, tmp_path: Path) -> None:
        with tarfile.open(saved(stack, tmp_path)) as file:
            names = file.getnames()
        assert names[0] == "staddle-snapshot"
        assert names[-1] == "staddle-end"
        assert "layers/workspace/d/file" in names

    def test_a_save_that_fails_leaves_the_old_file(self, stack: Stack, tmp_path: Path) -> None:
        path = saved(stack, tmp_path)
        before = Path(path).read_bytes()
        with pytest.raises(TypeError):
            save({}, path, facts={"not plain": object()})
        assert Path(path).read_bytes() == before
        assert sorted(os.listdir(tmp_path)) == ["base", "place", "saved"]

    def test_progress_is_told(self, stack: Stack, tmp_path: Path) -> None:
        told: list[int] = []
        save({"workspace": stack.freeze()}, str(tmp_path / "saved"), progress=told.append)
        assert told[-1] > 10


class TestDamage:
    @pytest.mark.same_for_everyone
    def test_cut_off_at_any_byte(self, room: Store, tmp_path: Path) -> None:
        (tmp_path / "base").mkdir()
        small = Stack.new(room, [str(tmp_path / "base")])
        write(Path(small.top.upper) / "f", "content")
        whole = Path(saved(small, tmp_path)).read_bytes()
        before = sorted(os.listdir(room.path))
        for length in range(len(whole)):
            (tmp_path / "cut").write_bytes(whole[:length])
            with pytest.raises(ArchiveRefused):
                load(str(tmp_path / "cut"), room)
        trash.wait()
        assert sorted(os.listdir(room.path)) == before

    @pytest.mark.same_for_everyone
    def test_any_byte_changed_before_compression(self, room: Store, tmp_path: Path) -> None:
        (tmp_path / "base").mkdir()
        small = Stack.new(room, [str(tmp_path / "base")])
        write(Path(small.top.upper) / "f", "content")
        zstd: Any = archive.zstd_module()  # from Python 3.14 on
        whole = (zstd or gzip).decompress(Path(saved(small, tmp_path)).read_bytes())
        covered = whole.index(b"staddle-end") - 2 * tar.BLOCK  # up to the header of the checksum itself
        assert covered > 10 * tar.BLOCK
        for at in range(0, covered, 7):
            changed = bytearray(whole)
            changed[at] ^= 1
            (tmp_path / "changed").write_bytes(gzip.compress(bytes(changed), 1))
            with pytest.raises(ArchiveRefused):
                load(str(tmp_path / "changed"), room)

    @pytest.mark.parametrize(
        "content", [b"", b"no archive", b"\x1f\x8b", gzip.compress(b"", mtime=0), bytes(1024)]
    )
    def test_something_else(self, room: Store, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "f").write_bytes(content)
        with pytest.raises(ArchiveRefused):
            load(str(tmp_path / "f"), room)

    def test_no_such_file(self, room: Store, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            load(str(tmp_path / "nothing"), room)


Built = list[tuple[Member, bytes]]


def archive_of(built: Built, tmp_path: Path, *, manifest: object = None) -> str:
    """An archive with a good manifest and a good checksum, and whatever in between."""
    out = io.BytesIO()

    def add(member: Member, data: bytes) -> None:
        tar.write(member.replace(size=member.size or len(data)), out.write)
        out.write(data + tar.padding(len(data)))

    facts = manifest if manifest is not None else {"format": 1, "layers": ["w"], "facts": {}}
    add(Member("file", archive.MANIFEST), json.dumps(facts).encode())
    add(Member("directory", "layers/w", 0o755), b"")
    for member, data in built:
        add(member, data)
    digest = hashlib.sha256(out.getvalue()).hexdigest().encode()
    add(Member("file", archive.END_MARK), digest)
    out.write(tar.END)
    path = tmp_path / "built"
    path.write_bytes(gzip.compress(out.getvalue(), 1))
    return str(path)


def file(path: str, data: bytes = b"x", **options: object) -> tuple[Member, bytes]:
    return Member("file", path, **options), data  # type: ignore[arg-type]


def of_kind(kind: str, path: str, target: str = "") -> tuple[Member, bytes]:
    return Member(kind, path, 0o755, target=target), b""  # type: ignore[arg-type]


HOSTILE: dict[str, Callable[[Path], Built]] = {
    "a parent": lambda top: [file("layers/w/../../escaped")],
    "a parent in the middle": lambda top: [of_kind("directory", "layers/w/d"), file("layers/w/d/../../x")],
    "an absolute name": lambda top: [file(f"{top}/escaped")],
    "another layer": lambda top: [file("layers/v/f")],
    "no layer": lambda top: [file("elsewhere")],
    "a dot": lambda top: [file("layers/w/./f")],
    "an empty part": lambda top: [file("layers/w//f")],
    "a link and a file through it": lambda top: [
        of_kind("symlink", "layers/w/l", str(top)),
        file("layers/w/l/escaped"),
    ],
    "a chain of links": lambda top: [
        of_kind("directory", "layers/w/d"),
        of_kind("symlink", "layers/w/d/up", ".."),
        of_kind("symlink", "layers/w/out", "d/up/../.."),
        file("layers/w/out/escaped"),
    ],
    "a hard link out": lambda top: [of_kind("link", "layers/w/l", f"{top}/canary")],
    "a hard link up": lambda top: [of_kind("link", "layers/w/l", "../../../../canary")],
    "a hard link through a link": lambda top: [
        of_kind("symlink", "layers/w/s", str(top)),
        of_kind("link", "layers/w/l", "s/canary"),
    ],
    "a hard link to a link": lambda top: [
        of_kind("symlink", "layers/w/s", f"{top}/canary"),
        of_kind("link", "layers/w/l", "s"),
    ],
    "a hard link to a directory": lambda top: [
        of_kind("directory", "layers/w/d"),
        of_kind("link", "layers/w/l", "d"),
    ],
    "the same name twice": lambda top: [file("layers/w/f"), file("layers/w/f")],
    "a directory for a file": lambda top: [file("layers/w/f"), of_kind("directory", "layers/w/f")],
    "a file over a link": lambda top: [
        of_kind("symlink", "layers/w/f", f"{top}/canary"),
        file("layers/w/f", b"written"),
    ],
    "the layer itself twice": lambda top: [of_kind("directory", "layers/w")],
    "the layer as a link": lambda top: [of_kind("symlink", "layers/w", str(top))],
    "a file in no directory": lambda top: [file("layers/w/nowhere/f")],
    "a name that is too long": lambda top: [file("layers/w/" + "n" * 300)],
    "an attribute nobody may set": lambda top: [
        file("layers/w/f", attributes=(("user." + "x" * 300, b"x"),)),
    ],
    "a sparse map that goes backwards": lambda top: [
        file("layers/w/f", b"xx", notes=(("STADDLE.size", "10"), ("STADDLE.extents", "5+1,4+1"))),
    ],
    "a sparse map beyond the end": lambda top: [
        file("layers/w/f", b"x", notes=(("STADDLE.size", "10"), ("STADDLE.extents", "10+1"))),
    ],
    "a sparse size that is none": lambda top: [
        file("layers/w/f", b"x", notes=(("STADDLE.size", "-1"), ("STADDLE.extents", "0+1"))),
    ],
}


class TestHostile:
    @pytest.mark.parametrize("case", HOSTILE)
    def test_it_is_refused_and_nothing_is_left(self, room: Store, tmp_path: Path, case: str) -> None:
        write(tmp_path / "canary", "canary")
        path = archive_of(HOSTILE[case](tmp_path), tmp_path)
        before = sorted(os.listdir(room.path)), sorted(os.listdir(tmp_path))
        with pytest.raises(ArchiveRefused):
            load(path, room)
        trash.wait()
        assert (sorted(os.listdir(room.path)), sorted(os.listdir(tmp_path))) == before
        assert (tmp_path / "canary").read_text() == "canary"
        assert (tmp_path / "canary").stat().st_nlink == 1

    def test_the_benign_twin_passes(self, room: Store, tmp_path: Path) -> None:
        built = [
            of_kind("directory", "layers/w/d"),
            file("layers/w/d/f", b"x", mode=0o6755),
            of_kind("symlink", "layers/w/l", "/etc/passwd"),
            of_kind("link", "layers/w/h", "d/f"),
            of_kind("whiteout", "layers/w/gone"),
        ]
        layers, _ = load(archive_of(built, tmp_path), room)
        upper = Path(layers["w"].upper)
        assert sorted(os.listdir(upper)) == ["d", "gone", "h", "l"]
        assert stat.S_IMODE((upper / "d/f").stat().st_mode) == 0o755

    @pytest.mark.parametrize(
        "manifest",
        [
            {"format": 2, "layers": ["w"], "facts": {}},
            {"format": 1, "layers": ["w", "w"], "facts": {}},
            {"format": 1, "layers": [7], "facts": {}},
            {"format": 1, "layers": ["w"], "facts": []},
            {"format": 1, "layers": ["w"]},
            [],
            "x",
        ],
    )
    def test_a_manifest_that_is_none(self, room: Store, tmp_path: Path, manifest: object) -> None:
        with pytest.raises(ArchiveRefused):
            load(archive_of([], tmp_path, manifest=manifest), room)

    def test_devices(self, room: Store, tmp_path: Path) -> None:
        for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"S", b"7"):
            out = io.BytesIO()
            info = tarfile.TarInfo("dev")
            info.type, info.devmajor, info.devminor = kind, 1, 3
            out.write(info.tobuf(tarfile.PAX_FORMAT))
            with pytest.raises(ArchiveRefused):
                list(tar.members(io.BytesIO(out.getvalue() + tar.END)))

    def test_more_than_was_allowed(self, room: Store, tmp_path: Path) -> None:
        zeros = [file("layers/w/f", bytes(1 << 20))]
        for bounds in (UnpackBounds(bytes=1000), UnpackBounds(entries=0)):
            with pytest.raises(ArchiveRefused, match="more than"):
                load(archive_of(zeros, tmp_path), room, bounds=bounds)
        deep = [of_kind("directory", "layers/w/" + "/".join("d" * count)) for count in range(1, 6)]
        with pytest.raises(ArchiveRefused, match="deeper"):
            load(archive_of(deep, tmp_path), room, bounds=UnpackBounds(depth=4))

    @pytest.mark.same_for_everyone
    def test_a_bomb_is_stopped_by_what_it_becomes(self, room: Store, tmp_path: Path) -> None:
        out = gzip.compress(bytes(1 << 26), 9)  # 64 MiB of zeros in 64 KiB: an early end of a tar
        (tmp_path / "bomb").write_bytes(out)
        with pytest.raises(ArchiveRefused):
            load(str(tmp_path / "bomb"), room)

    @pytest.mark.same_for_everyone
    def test_it_takes_no_more_room_than_it_is_given(self, room: Store, tmp_path: Path) -> None:
        """All layers together, by blocks: small files, and pieces of sparse ones, take more than they say."""
        names = ["w", "v"]
        facts = {"format": 1, "layers": names, "facts": {}}
        half = bytes(1 << 16)
        pieces = [(at << 12, 1) for at in range(32)]
        notes = (
            ("STADDLE.size", str(1 << 20)),
            ("STADDLE.extents", ",".join(f"{at}+{length}" for at, length in pieces)),
        )
        taking: dict[str, Built] = {
            "content": [file(f"layers/{name}/f", half) for name in names],
            "small files": [file(f"layers/w/{number}") for number in range(32)],
            "pieces": [file("layers/w/f", b"x" * 32, notes=notes)],
            "directories": [of_kind("directory", f"layers/w/{number}") for number in range(32)],
        }
        before = sorted(os.listdir(room.path))
        for case, built in taking.items():
            path = archive_of([of_kind("directory", "layers/v"), *built], tmp_path, manifest=facts)
            with pytest.raises(LayerError, match="does not fit") as caught:
                load(path, room, room=(1 << 17) - 1)
            assert type(caught.value) is LayerError, case
            assert store.VARIABLE in caught.value.fix
            trash.wait()
            assert sorted(os.listdir(room.path)) == before, case
            for layer in load(path, room, room=1 << 18)[0].values():
                layer.drop()

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    def test_a_store_that_is_full_in_the_middle(
        self, room: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        path = archive_of([file("layers/w/a"), file("layers/w/b", bytes(1 << 20))], tmp_path)
        before = sorted(os.listdir(room.path))

        def full(fd: int, data: bytes) -> None:
            if len(data) > 1:
                raise OSError(number, os.strerror(number))

        monkeypatch.setattr(tar, "write_all", full)
        with pytest.raises(LayerError, match="no room") as caught:
            load(path, room)
        assert caught.value.fix
        trash.wait()
        assert sorted(os.listdir(room.path)) == before

    def test_a_size_that_no_file_can_have(
        self, room: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def too_large(fd: int, size: int) -> None:  # some file systems take it
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

        notes = (("STADDLE.size", "9" * 18), ("STADDLE.extents", "0+1"))
        monkeypatch.setattr(os, "ftruncate", too_large)
        with pytest.raises(ArchiveRefused, match="cannot be made"):
            load(archive_of([file("layers/w/f", notes=notes)], tmp_path), room)

    def test_sizes_that_lie(self) -> None:
        for field in (b"\x80" + bytes(11), b"-0000000001\0", b"77777777777\0", b"99999999999\0"):
            info = bytearray(tarfile.TarInfo("f").tobuf(tarfile.USTAR_FORMAT))
            info[124:136] = field
            info[148:156] = b" " * 8
            info[148:156] = b"%06o\0 " % sum(info)
            source = io.BytesIO(bytes(info) + tar.END)
            with pytest.raises(ArchiveRefused):
                [content.read(10) for _, content in tar.members(source)]

    def test_records_that_lie_or_flood(self) -> None:
        for records in (b"5 a=b", b"99 path=x\n", b"x path=y\n", b"9 pathxyz\n"):
            header = tar._header(b"x", b"x", len(records), mode=0, mtime=0)
            source = header + records + tar.padding(len(records)) + tarfile.TarInfo("f").tobuf() + tar.END
            with pytest.raises(ArchiveRefused, match="damaged"):
                list(tar.members(io.BytesIO(source)))
        header = tar._header(b"x", b"x", tar.MOST_RECORD_BYTES + 1, mode=0, mtime=0)
        with pytest.raises(ArchiveRefused, match="too long"):
            list(tar.members(io.BytesIO(header)))
        record = tar._record(b"a", b"b")
        header = tar._header(b"x", b"x", len(record), mode=0, mtime=0) + record + tar.padding(len(record))
        with pytest.raises(ArchiveRefused, match="too many records"):
            list(tar.members(io.BytesIO(header * 5)))


class TestOtherPeoplesTars:
    @pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
    def test_they_are_read(self, kind: int) -> None:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=kind) as made:
            info = tarfile.TarInfo("a/" + "b" * 90 + "/" + "c" * 60)
            info.size = 3
            made.addfile(info, io.BytesIO(b"abc"))
            link = tarfile.TarInfo("l")
            link.type, link.linkname = tarfile.SYMTYPE, "t" * 90
            made.addfile(link)
        out.seek(0)
        [(one, data), (two, _)] = [(member, content.read(10)) for member, content in tar.members(out)]
        assert (one.kind, len(one.path), data) == ("file", 153, b"abc")
        assert (two.kind, two.target) == ("symlink", "t" * 90)
