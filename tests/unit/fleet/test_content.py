"""Content that travels: it arrives as it was sent, or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from staddle.errors import InvalidCall, TransferFailed
from staddle.fleet import content

pytestmark = pytest.mark.same_for_everyone


def sent(directory: Path) -> tuple[content.Manifest, dict[str, bytes]]:
    """The manifest and the packs of a directory, as they travel."""
    packs: dict[str, bytes] = {}
    manifest = content.read_tree(
        str(directory), lambda digest, data: packs.update({digest: content.pack(data)})
    )
    return manifest, packs


def arrived(manifest: content.Manifest, packs: dict[str, bytes], directory: Path) -> None:
    """Write what was sent."""
    data = manifest.encoded()
    directory.mkdir()
    found = content.decoded(data, content.sha256(data))
    content.write_tree(found, lambda digest: content.unpack(packs[digest], digest), str(directory))


def listing(directory: Path) -> dict[str, tuple[object, ...]]:
    """Everything that is compared."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("directory", path.stat().st_mode & 0o777)
        else:
            found[name] = ("file", path.stat().st_mode & 0o777, path.read_bytes())
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "sub" / "deep").mkdir(parents=True)
    (made / "a.txt").write_text("hello\n" * 1000)
    (made / "empty").write_bytes(b"")
    (made / "sub" / "large").write_bytes(os.urandom(content.PACK + 12345))
    (made / "sub" / "run.sh").write_text("echo hi\n")
    (made / "sub" / "run.sh").chmod(0o755)
    (made / "sub" / "deep" / "caf\u00e9 \udcff").write_text("odd name")
    (made / "link").symlink_to("sub/large")
    (made / "dangling").symlink_to("/nowhere/at/all")
    return made


def test_a_directory_arrives_as_it_was(project: Path, tmp_path: Path) -> None:
    manifest, packs = sent(project)
    arrived(manifest, packs, tmp_path / "copy")
    assert listing(tmp_path / "copy") == listing(project)
    assert len(packs) == 2  # small files travel together


def test_the_same_content_has_the_same_name(project: Path, tmp_path: Path) -> None:
    manifest, packs = sent(project)
    arrived(manifest, packs, tmp_path / "copy")
    again, more = sent(tmp_path / "copy")
    assert again.encoded() == manifest.encoded()
    assert more.keys() == packs.keys()


def test_what_is_no_file_is_left_out(project: Path) -> None:
    os.mkfifo(project / "pipe")
    manifest, _ = sent(project)
    assert manifest.left_out == ("pipe",)
    assert manifest.find("pipe") is None


def test_text_is_compressed_and_noise_is_not(project: Path) -> None:
    _, packs = sent(project)
    assert {data[:1] for data in packs.values()} <= {b"r", b"z"}
    assert len(content.pack(b"a" * 100_000)) < 1000
    noise = os.urandom(1000)
    assert content.pack(noise) == b"r" + noise


@pytest.mark.parametrize("damage", ["flip", "cut", "kind", "bomb"])
def test_a_damaged_pack_is_refused(damage: str) -> None:
    data = b"".join(b"%d " % number for number in range(5000))
    digest, packed = content.sha256(data), bytearray(content.pack(data))
    if damage == "flip":
        packed[len(packed) // 2] ^= 1
    elif damage == "cut":
        packed = packed[: len(packed) // 2]
    elif damage == "kind":
        packed[0] = ord("x")
    else:
        packed = bytearray(content.pack(b"\0" * (content.PACK + 1)))
    with pytest.raises(TransferFailed):
        content.unpack(bytes(packed), digest)


def row(path: str, kind: str = "directory", target: str = "") -> list[object]:
    return [path, kind, 0o755, 0, content.sha256(b"") if kind == "file" else "", target]


@pytest.mark.parametrize(
    "rows",
    [
        [row("../out", "file")],
        [row("/etc/passwd", "file")],
        [row("a//b", "file")],
        [row("a/../../b", "file")],
        [row("a"), row("a")],
        [row("link", "symlink", "/etc"), row("link/passwd", "file")],
        [row("missing/file", "file")],
        [row("a\0b")],
        [row("x", "device")],
        [["a", "file", 0o644, 5, "", ""]],
        [["a", "file", 0o644, 5, "", "", [0, 0, 5]]],
        [["a", "file", 0o644, 5, "", "", [0, -1, 5]]],
        [[b"a".decode(), "file", "644", 0, "", ""]],
        [["a"]],
        {"a": 1},
    ],
)
def test_a_list_of_files_that_leads_elsewhere_is_refused(rows: object, tmp_path: Path) -> None:
    data = json.dumps({"packs": [], "entries": rows}).encode()
    with pytest.raises(TransferFailed):
        content.decoded(data, content.sha256(data))


def test_another_list_of_files_is_refused(project: Path) -> None:
    manifest, _ = sent(project)
    with pytest.raises(TransferFailed, match="not the one that was sent"):
        content.decoded(manifest.encoded() + b" ", content.sha256(manifest.encoded()))


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidCall, match="cannot be read"):
        content.read_tree(str(tmp_path / "none"), lambda *_: None)


def test_what_the_host_changed_since_is_a_conflict(project: Path) -> None:
    manifest, _ = sent(project)

    def why(path: str) -> str:
        return content.conflict(manifest.find(path), str(project), path)

    assert [why(path) for path in ("a.txt", "sub", "link", "sub/run.sh", "never")] == [""] * 5
    (project / "a.txt").write_text("other")
    (project / "sub" / "run.sh").chmod(0o600)
    (project / "link").unlink()
    (project / "new").write_text("")
    (project / "dangling").unlink()
    (project / "dangling").mkdir()
    assert why("a.txt") == "it was changed on the host"
    assert why("sub/run.sh") == "it was changed on the host"
    assert why("link") == "it was deleted on the host"
    assert why("new") == "it was made on the host"
    assert why("dangling") == "it is of another kind on the host"
