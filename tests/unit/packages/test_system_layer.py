"""The skeleton of a system repeats its directories, copies what is changed in place, and tells no secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle.mounts.operations import Bind, File, Symlink
from staddle.packages.system_layer import (
    as_root,
    build,
    merged_accounts,
    mounted_below,
    parts,
    repeated,
    without_credentials,
)
from staddle.paths import ROOT_HOME


@pytest.fixture
def host(tmp_path: Path) -> Path:
    top = tmp_path / "host"
    for name in (
        *("usr/bin", "usr/lib/a b", "usr/lib/é\udcff", "opt", "var/lib/dpkg/info", "var/lib/dpkg/triggers"),
        *("var/lib/apt/lists/partial", "var/log/secret", "etc/apt/sources.list.d", "etc/apt/auth.conf.d"),
        *("etc/ssl/private", "etc/default"),
    ):
        (top / name).mkdir(parents=True)
    texts = {
        "usr/bin/tool": "a program",
        "var/lib/dpkg/status": "Package: tool\n",
        "var/lib/dpkg/info/tool.list": "/usr/bin/tool\n",
        "var/log/secret/log": "of the host",
        "etc/apt/sources.list": "deb http://me:pass@mirror.example/debian test main\n",
        "etc/apt/auth.conf": "machine mirror.example login me password pass\n",
        "etc/default/locale": "LANG=C\n",
        "etc/shadow": "root:hash\n",
        "etc/hostname": "the-host\n",
    }
    for name, text in texts.items():
        (top / name).write_text(text)
    os.symlink("lib", top / "usr/lib64")
    (top / "etc/default/closed").write_text("x")
    (top / "etc/default/closed").chmod(0o600)
    (top / "var/lib/apt/lists/partial").chmod(0o700)
    return top


def built(host: Path, tmp_path: Path, *etc: object) -> Path:
    place = tmp_path / "skeleton"
    place.mkdir()
    build(str(place), etc, None, str(host))  # type: ignore[arg-type]
    return place


def test_every_directory_is_there_again_and_no_file_of_the_host(host: Path, tmp_path: Path) -> None:
    place = built(host, tmp_path)
    assert (place / "usr/lib/a b").is_dir()
    assert (place / "usr/lib/é\udcff").is_dir()
    assert not (place / "usr/bin/tool").exists()
    assert not os.path.lexists(place / "usr/lib64")
    assert not (place / "var/lib/dpkg/info/tool.list").exists()


def test_what_is_changed_in_place_is_copied(host: Path, tmp_path: Path) -> None:
    place = built(host, tmp_path)
    assert (place / "var/lib/dpkg/status").read_text() == "Package: tool\n"
    assert (place / "var/lib/dpkg/lock").read_text() == ""
    assert (place / "etc/default/locale").read_text() == "LANG=C\n"
    assert os.readlink(place / "var/run") == "/run"


def test_what_not_everybody_may_read_and_what_is_the_hosts_own_is_left_out(
    host: Path, tmp_path: Path
) -> None:
    place = built(host, tmp_path)
    everything = b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())
    for secret in (b"pass", b"hash", b"the-host", b"of the host"):
        assert secret not in everything
    assert not (place / "etc/default/closed").exists()
    assert not (place / "var/log/secret").exists()
    assert (place / "etc/apt/sources.list").read_text() == "deb http://mirror.example/debian test main\n"
    assert os.getxattr(place / "var/lib/apt/lists/partial", "user.overlay.opaque") == b"y"


def test_etc_is_as_every_sandbox_sees_it(host: Path, tmp_path: Path) -> None:
    place = built(
        host,
        tmp_path,
        File("/etc/passwd", b"user:x:1000:\n", "made up"),
        Symlink("/etc/mtab", "/proc/mounts", "system"),
        Bind("/etc/one", False, "system", source=str(host / "usr/bin/tool")),
    )
    assert (place / "etc/passwd").read_text() == "user:x:1000:\n"
    assert os.readlink(place / "etc/mtab") == "/proc/mounts"
    assert (place / "etc/one").read_text() == "a program"


def test_roots_home_is_closed_unless_something_below_it_is_shown(host: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "open").mkdir()
    assert built(host, tmp_path / "closed").joinpath("root").stat().st_mode & 0o777 == 0o700
    shown = Bind(f"{ROOT_HOME}/tools", False, "toolchain", source=str(host / "usr"))
    place = built(host, tmp_path / "open", shown)
    assert (place / "root").stat().st_mode & 0o777 == 0o755
    assert (place / "root/tools").is_dir()


def test_its_parts_come_parents_first(host: Path, tmp_path: Path) -> None:
    place = tmp_path / "skeleton"
    place.mkdir()
    build(str(place), (), None, str(host))
    found = parts(str(place), str(host))
    assert [part.root for part in found] == [
        *("/.", "/etc", "/opt", "/root", "/usr", "/var", "/var/lib/apt", "/var/lib/dpkg")
    ]
    assert {part.root: part.host for part in found}["/etc"] == ""
    assert {part.root: part.host for part in found}["/usr"] == f"{host}/usr"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (b"deb http://a:b@host/x y", b"deb http://host/x y"),
        (b"deb [x] https://tok@host y\nURIs: http://u:p%40@h:80/ z://plain/a@b", None),
        (b"no address at all", b"no address at all"),
        (b"http://a:b@c:d@host", b"http://host"),
        (b"ends with ://", b"ends with ://"),
    ],
)
def test_addresses_lose_their_passwords(text: bytes, left: bytes | None) -> None:
    expected = left or b"deb [x] https://host y\nURIs: http://h:80/ z://plain/a@b"
    assert without_credentials(text) == expected


def test_the_accounts_of_every_such_system_are_known_and_nobody_else() -> None:
    own = b"root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\n"
    more = b"root:*:0:0:root:/root:/bin/bash\nmail:*:8:8::/var/mail:/bin/sh\nother:*:1000:5::/:/bin/sh\n"
    assert merged_accounts(own, more) == own + b"mail:*:8:8::/var/mail:/bin/sh\n"


def test_where_there_is_one_id_every_account_has_it() -> None:
    own = b"root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\n"
    more = as_root(b"root:*:0:0:root:/root:/bin/bash\nmail:*:8:8::/var/mail:/bin/sh\n")
    assert merged_accounts(own, more) == own + b"mail:*:0:0::/var/mail:/bin/sh\n"
    assert as_root(b"adm:x:4:\nmail:x:8:\n") == b"adm:x:0:\nmail:x:0:\n"
    assert as_root(b"") == b""


def test_what_has_mounts_in_it_is_told() -> None:
    rows = (
        b"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /usr/local rw - ext4 b rw\n3 1 0:3 / /optional rw - x y rw\n"
    )
    assert mounted_below(("/usr", "/opt", "/etc"), rows) == ["/usr"]


def test_every_directory_is_repeated_also_where_directories_are_told_by_their_links(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for path in ("a/b/c/d", "a/e", "f", "g/h/i", "g/j"):
        (source / path).mkdir(parents=True)
        (source / path / "file").touch()
    (source / "f/link").symlink_to("../a")
    (tmp_path / "place").mkdir()
    repeated(str(source), str(tmp_path / "place"), os.getuid())

    def directories(root: Path) -> set[str]:
        return {
            str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir() and not path.is_symlink()
        }

    assert directories(tmp_path / "place") == directories(source)
    assert not [path for path in (tmp_path / "place").rglob("*") if not path.is_dir()]
