"""An image becomes a base: its layers in order, nothing outside, whole or not at all."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

from staddle.bases import store
from staddle.bases.store import import_image
from staddle.errors import ArchiveRefused, BaseError
from staddle.files.tar import UnpackBounds
from staddle.policy import base
from tests.unit.bases.images import (
    archive,
    digest,
    directory,
    docker_save,
    file,
    gzipped,
    layer,
    link,
    oci,
    other,
    plain,
    symlink,
    zstandard,
)


@pytest.fixture(autouse=True)
def bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STADDLE_BASES", str(tmp_path / "bases"))
    return tmp_path / "bases"


def unpacked(tmp_path: Path, *layers: bytes) -> Path:
    return Path(import_image(str(docker_save(tmp_path / "image.tar", layers))).root)


def found(root: Path) -> dict[str, str]:
    """Every file and link below `root`, with what is in it."""
    return {
        str(path.relative_to(root)): f"-> {os.readlink(path)}" if path.is_symlink() else path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


BELOW = layer(
    directory("etc"),
    file("etc/a", b"1"),
    file("etc/b", b"1"),
    directory("d"),
    file("d/x", b"1"),
    file("d/y", b"1"),
)
ABOVE = layer(file("etc/a", b"2"), file("etc/.wh.b"), file("d/.wh..wh..opq"), file("d/z", b"2"))
TOGETHER = {"d/z": "2", "etc/a": "2"}


@pytest.mark.parametrize("compress", [plain, gzipped, zstandard])
def test_an_oci_layout(tmp_path: Path, compress: object) -> None:
    image = oci(tmp_path / "image.tar", [BELOW, ABOVE], compress)  # type: ignore[arg-type]
    made = import_image(str(image), "mine")
    assert found(Path(made.root)) == TOGETHER
    assert base.imported("mine") == made.root
    assert (made.name, made.size, made.entries) == ("mine", 6, 10)
    assert [base.name for base in store.listed()] == ["mine"]


def test_what_docker_saves(tmp_path: Path) -> None:
    made = import_image(str(docker_save(tmp_path / "image.tar", [BELOW, ABOVE])))
    assert found(Path(made.root)) == TOGETHER
    assert (made.name, made.source) == ("image", "some/image:1")


def test_an_archive_that_is_compressed_as_a_whole(tmp_path: Path) -> None:
    image = docker_save(tmp_path / "image.tar", [BELOW, ABOVE])
    for name, compress in (("a.tar.gz", gzipped), ("b.tar", zstandard)):
        (tmp_path / name).write_bytes(compress(image.read_bytes()))
        assert found(Path(import_image(str(tmp_path / name)).root)) == TOGETHER
    assert {base.name for base in store.listed()} == {"a", "b"}


def test_of_several_platforms_the_one_of_this_machine(tmp_path: Path) -> None:
    here = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)

    def describe(files: dict[str, bytes]) -> None:
        index = json.loads(files["index.json"])
        index["manifests"][-1]["platform"] = {"architecture": here, "os": "linux"}
        files["index.json"] = json.dumps(index).encode()

    image = oci(tmp_path / "i.tar", [BELOW], change=describe, platforms=["riscv64", "unknown"])
    assert "etc/a" in found(Path(import_image(str(image)).root))
    with pytest.raises(ArchiveRefused, match="not contain exactly one image for this machine"):
        import_image(str(oci(tmp_path / "j.tar", [BELOW], platforms=["riscv64"])))


def test_a_layer_replaces_what_is_below_it_whatever_that_is(tmp_path: Path) -> None:
    below = layer(directory("a"), file("a/x", b"1"), file("b", b"1"), symlink("c", "/etc"), symlink("e", "b"))
    above = layer(file("a", b"2"), directory("b"), file("b/x", b"2"), file("c", b"2"), directory("e"))
    root = unpacked(tmp_path, below, above)
    assert found(root) == {"a": "2", "b/x": "2", "c": "2"}
    assert (root / "e").is_dir()
    assert not (root / "e").is_symlink()


def test_a_directory_behind_a_link_is_the_one_inside(tmp_path: Path) -> None:
    below = layer(directory("usr/bin"), symlink("bin", "/usr/bin"), symlink("lib", "../../../usr/lib"))
    root = unpacked(tmp_path, below, layer(directory("usr/lib"), file("bin/tool", b"t"), file("lib/x", b"x")))
    assert (root / "usr/bin/tool").read_text() == "t"
    assert (root / "usr/lib/x").read_text() == "x"


def test_hard_links_within_and_across_layers(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path,
        layer(file("a", b"1"), link("b", "a"), link("./d/c", "/a")),
        layer(link("e", "b"), symlink("s", "a"), link("t", "s")),
    )
    assert len({(root / name).stat().st_ino for name in ("a", "b", "d/c", "e")}) == 1
    assert os.readlink(root / "t") == "a"


def test_rights_that_nobody_should_have_are_dropped(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path,
        layer(
            file("su", b"x", 0o6755),
            directory("sticky", 0o1777),
            file("closed", b"x", 0o000),
            directory("shut", 0o000),
            file("shut/in", b"x"),
            other("dev", tarfile.CHRTYPE),
            other("block", tarfile.BLKTYPE),
            other("pipe", tarfile.FIFOTYPE),
        ),
    )
    assert stat.S_IMODE((root / "su").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "sticky").stat().st_mode) == 0o777
    assert (root / "closed").read_text() == "x"
    assert (root / "shut/in").read_text() == "x"
    assert not any((root / name).exists() for name in ("dev", "block", "pipe"))
    assert {path.stat().st_uid for path in root.rglob("*")} == {os.geteuid()}


def test_whiteouts_take_away_only_what_was_below(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path,
        layer(
            directory("d/e"), file("d/e/old", b"1"), file("d/old", b"1"), file("gone", b"1"), directory("dir")
        ),
        layer(
            file("d/e/new", b"2"),
            file("d/new", b"2"),
            file("d/.wh..wh..opq"),
            file("gone", b"2"),
            file(".wh.gone"),
            file(".wh.dir"),
            file(".wh.never"),
            file(".wh."),
            file(".wh..wh.plnk"),
        ),
    )
    assert found(root) == {"d/e/new": "2", "d/new": "2", "gone": "2"}
    assert not (root / "dir").exists()


@pytest.mark.parametrize(
    "members",
    [
        [file("../evil", b"x")],
        [file("a/../../evil", b"x")],
        [symlink("out", "/"), file("out/../../evil", b"x")],
        [link("x", "../../../etc/passwd")],
        [link("x", "nowhere")],
        [directory("d"), link("x", "d")],
        [file("f", b"x"), file("f/x", b"x")],
        [symlink("loop", "loop"), file("loop/x", b"x")],
        [file("n" * 300, b"x")],
        [symlink("empty", "")],
    ],
)
def test_names_that_mean_harm_are_refused_and_nothing_is_left(
    tmp_path: Path, bases: Path, members: list[tarfile.TarInfo]
) -> None:
    with pytest.raises(ArchiveRefused):
        unpacked(tmp_path, layer(*members))
    assert os.listdir(bases) == []
    assert not (tmp_path / "evil").exists()


def test_links_lead_nowhere_while_it_is_unpacked(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    there = directory(str(outside).lstrip("/"))
    root = unpacked(tmp_path, layer(there, symlink("out", str(outside)), file("out/x", b"x")))
    assert list(outside.iterdir()) == []
    assert (root / str(outside).lstrip("/") / "x").read_text() == "x"
    with pytest.raises(ArchiveRefused, match="cannot be made"):
        import_image(
            str(docker_save(tmp_path / "b.tar", [layer(symlink("out", str(outside)), file("out/x", b"x"))]))
        )
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("bounds", [UnpackBounds(bytes=1000), UnpackBounds(entries=3), UnpackBounds(depth=2)])
def test_what_becomes_too_much_is_refused(tmp_path: Path, bases: Path, bounds: UnpackBounds) -> None:
    data = layer(file("zeros", bytes(2000)), file("a/b/c/d", b"x"), file("e"), file("f"))
    with pytest.raises(ArchiveRefused, match=r"more than|deeper than"):
        import_image(str(oci(tmp_path / "i.tar", [data])), bounds=bounds)
    assert os.listdir(bases) == []


def test_a_layer_of_nothing_but_air_is_refused(tmp_path: Path, bases: Path) -> None:
    air = layer(file("x")) + bytes(64 << 20)
    with pytest.raises(ArchiveRefused, match="does not end"):
        import_image(str(oci(tmp_path / "i.tar", [air])), bounds=UnpackBounds(bytes=1 << 20, entries=16))
    assert os.listdir(bases) == []


def test_what_is_not_what_its_digest_says_is_refused(tmp_path: Path, bases: Path) -> None:
    def damaged(files: dict[str, bytes]) -> None:
        name = next(name for name, data in files.items() if data == gzipped(BELOW))
        files[name] = gzipped(ABOVE)

    def shorter(files: dict[str, bytes]) -> None:
        name = next(name for name, data in files.items() if data == gzipped(BELOW))
        files[name] = files[name][:-20]

    def missing(files: dict[str, bytes]) -> None:
        del files[next(name for name, data in files.items() if data == gzipped(BELOW))]

    for number, change in enumerate((damaged, shorter, missing)):
        with pytest.raises(ArchiveRefused):
            import_image(str(oci(tmp_path / f"{number}.tar", [BELOW], change=change)))
    wrong = docker_save(tmp_path / "w.tar", [BELOW]).read_bytes().replace(digest(BELOW).encode(), b"0" * 64)
    (tmp_path / "w.tar").write_bytes(wrong)
    with pytest.raises(ArchiveRefused):
        import_image(str(tmp_path / "w.tar"))
    assert os.listdir(bases) == []


@pytest.mark.parametrize(
    "files",
    [
        [],
        [("other", b"x")],
        [("manifest.json", b"not json")],
        [("manifest.json", b"{}")],
        [("manifest.json", b"[]")],
        [("manifest.json", b'[{"Config": 1, "Layers": []}]')],
        [("manifest.json", b'[{"Config": "none.json", "Layers": []}]')],
        [("manifest.json", b'[{"Config": "c", "Layers": ["l"]}]'), ("c", b"{}"), ("l", b"")],
        [("index.json", b'{"manifests": 7}')],
        [("index.json", b'{"manifests": [{"digest": "md5:0"}]}')],
        [("index.json", b'{"manifests": [{"digest": "sha256:../../etc/passwd"}]}')],
        [("index.json", b'{"layers": []}')],
        [("index.json", b"[" * 100_000)],
    ],
)
def test_what_is_no_image_is_refused(tmp_path: Path, bases: Path, files: list[tuple[str, bytes]]) -> None:
    with pytest.raises(ArchiveRefused):
        import_image(str(archive(tmp_path / "i.tar", files)))
    assert os.listdir(bases) == []


def test_files_that_are_no_archives(tmp_path: Path, bases: Path) -> None:
    for data in (b"", b"no tar", b"\x1f\x8b damaged", b"\x28\xb5\x2f\xfd damaged"):
        (tmp_path / "i.tar").write_bytes(data)
        with pytest.raises(ArchiveRefused):
            import_image(str(tmp_path / "i.tar"))
    for path in (tmp_path, tmp_path / "nothing.tar"):
        with pytest.raises(BaseError, match="cannot be read"):
            import_image(str(path), "x")
    assert os.listdir(bases) == []


def test_a_name_is_given_once_and_free_again_when_it_is_removed(tmp_path: Path, bases: Path) -> None:
    image = str(docker_save(tmp_path / "image.tar", [layer(directory("shut", 0), file("shut/x", b"x"))]))
    import_image(image, "one")
    with pytest.raises(BaseError, match="already"):
        import_image(image, "one")
    store.remove("one")
    assert os.listdir(bases) == []
    with pytest.raises(BaseError, match="no base"):
        store.remove("one")
    for name in ("", "..", "a/b", ".x", "-x", "a b", "n" * 65):
        with pytest.raises(BaseError, match="cannot be called"):
            import_image(image, name)


def test_what_a_killed_import_has_left_goes_with_the_next_one(tmp_path: Path, bases: Path) -> None:
    (bases / ".0123" / "root" / "etc").mkdir(parents=True)
    import_image(str(docker_save(tmp_path / "image.tar", [BELOW])), "one")
    assert os.listdir(bases) == ["one"]
    (bases / "one/about.json").write_text("damaged")
    assert [(base.name, base.size) for base in store.listed()] == [("one", 0)]
