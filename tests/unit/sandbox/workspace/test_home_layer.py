"""What is in a sandbox's home at first."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from staddle.layers.store import Store
from staddle.mounts.operations import Bind, Directory, File, Symlink
from staddle.sandbox.workspace.home_layer import home_layer, sweep


def test_it_is_made_once_as_it_was_asked_for(tmp_path: Path) -> None:
    granted = tmp_path / "granted"
    granted.mkdir()
    operations = [
        Directory("/tmp", 0o1777, ""),
        Directory("/home/user", 0o700, ""),
        File("/home/user/.profile", b"text", "", mode=0o644),
        Symlink("/home/user/link", "/tmp", ""),
        Directory("/tmp/way", 0o555, ""),
        Bind("/tmp/way/there", False, "", source=str(granted)),
        Bind("/tmp/file", False, "", source="/dev/null"),
        Bind("/tmp/gone", False, "", source=str(tmp_path / "gone"), optional=True),
    ]
    with Store(str(tmp_path)) as store:
        path = home_layer(store, operations)
        assert home_layer(store, operations) == path
        assert home_layer(store, operations[:2]) != path
        found = {
            os.path.relpath(f"{directory}/{name}", path): stat.filemode(
                os.lstat(f"{directory}/{name}").st_mode
            )
            for directory, names, files in os.walk(path)
            for name in (*names, *files)
        }
        assert found == {
            "home": "drwxr-xr-x",
            "home/user": "drwx------",
            "home/user/.profile": "-rw-r--r--",
            "home/user/link": "lrwxrwxrwx",
            "tmp": "drwxrwxrwt",
            "tmp/way": "dr-xr-xr-x",
            "tmp/way/there": "drwxr-xr-x",
            "tmp/file": "-r--r--r--",
        }
        assert Path(path, "home/user/.profile").read_bytes() == b"text"
        sweep(store, {os.path.basename(path)})
        assert [name for name in os.listdir(store.path) if name != "lock"] == [os.path.basename(path)]
        sweep(store, ())
        assert os.listdir(store.path) == ["lock"]
