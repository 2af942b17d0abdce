"""The files of a keeper go with it, also after SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from staddle.errors import TransferFailed
from staddle.fleet import content
from staddle.fleet.node_files import NodeFiles
from tests.support.waiting import until

KEEPER = """
import sys, time
from staddle.fleet.node_files import NodeFiles
files = NodeFiles(sys.argv[1])
import os
os.makedirs(f"{files.path}/tree/sub"); open(f"{files.path}/tree/sub/f", "w").close()
os.chmod(f"{files.path}/tree/sub", 0o500)
print(files.path, flush=True)
time.sleep(1000)
"""


def sent(directory: Path) -> tuple[str, bytes, dict[str, bytes]]:
    """A directory as it travels."""
    packs: dict[str, bytes] = {}
    manifest = content.read_tree(str(directory), lambda digest, data: packs.update({digest: data}))
    listed = manifest.encoded()
    return content.sha256(listed), listed, packs


def test_a_tree_arrives_once(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a").write_text("a")
    digest, listed, packs = sent(tmp_path / "project")
    files = NodeFiles(str(tmp_path))
    asked: list[str] = []

    def pack(name: str) -> bytes:
        asked.append(name)
        return packs[name]

    path = files.tree(digest, lambda: listed, pack)
    assert files.tree(digest, lambda: listed, pack) == path
    assert Path(path, "a").read_text() == "a"
    assert len(asked) == 1
    files.close()
    files.close()
    assert not Path(files.path).parent.exists()


def test_a_tree_that_is_damaged_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a").write_text("a")
    digest, listed, _ = sent(tmp_path / "project")
    files = NodeFiles(str(tmp_path))
    with pytest.raises(TransferFailed):
        files.tree(digest, lambda: listed, lambda _: b"b")
    assert os.listdir(files.path) == ["lock"]
    files.close()


def test_a_killed_keeper_leaves_no_files(tmp_path: Path) -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(content.__file__).parents[2])},
    )
    assert keeper.stdout is not None
    path = Path(keeper.stdout.readline().strip())
    assert (path / "tree" / "sub" / "f").exists()
    keeper.send_signal(signal.SIGKILL)
    keeper.wait()
    keeper.stdout.close()
    assert until(lambda: not path.parent.exists())


def test_what_was_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    first = NodeFiles(str(tmp_path))
    stale = Path(first.path).parent / "stale"
    stale.mkdir()
    (stale / "lock").touch()
    second = NodeFiles(str(tmp_path))
    assert not stale.exists()
    assert Path(first.path).exists()  # in use
    first.close()
    second.close()


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    home = tmp_path / f"staddle-fleet-{os.getuid()}"
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(TransferFailed, match="another user"):
        NodeFiles(str(tmp_path))
