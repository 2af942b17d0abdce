"""Packages are found by what their managers leave behind, which may be anything."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from staddle.layers.changes import diff
from staddle.layers.merged_view import LayerView
from staddle.packages.installed import Package, fold, installed

SITE = "home/user/.local/lib/python3/site-packages"


def changed(tmp_path: Path, files: dict[str, bytes], base: dict[str, bytes] | None = None) -> list:  # type: ignore[type-arg]
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    for top, contents in ((upper, files), (lower, base or {})):
        top.mkdir()
        for name, data in contents.items():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_bytes(data)
    return diff(LayerView((str(upper),), (str(lower),)), at="/")


def test_a_package_of_pip_is_folded_with_its_files(tmp_path: Path) -> None:
    info = f"{SITE}/greet_er-2.0.dist-info"
    files = {
        f"{SITE}/greeter.py": b"",
        f"{SITE}/__pycache__/greeter.cpython-311.pyc": b"",
        "home/user/.local/bin/greeter": b"",
        f"{info}/METADATA": b"",
        f"{info}/RECORD": b"greeter.py,sha256=x,1\n../../../bin/greeter,,\n",
        "home/user/notes": b"mine",
    }
    packages, rest = fold(changed(tmp_path, files))
    assert packages == (Package("greet-er", "2.0", "pip", 5),)
    assert [change.path for change in rest if change.type == "file"] == ["/home/user/notes"]
    assert not any(".dist-info" in change.path for change in rest)


def test_packages_of_dpkg_are_those_that_were_not_there(tmp_path: Path) -> None:
    before = b"Package: old\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n"
    more = b"\nPackage: new\nStatus: install ok installed\nVersion: 3\nArchitecture: all\n"
    gone = b"\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 3\nArchitecture: all\n"
    files = {
        "var/lib/dpkg/status": before + more + gone,
        "var/lib/dpkg/info/new.list": b"/.\n/usr\n/usr/bin\n/usr/bin/new\n",
        "usr/bin/new": b"#!",
    }
    packages, rest = fold(changed(tmp_path, files, {"var/lib/dpkg/status": before}))
    assert [(package.name, package.version, package.manager) for package in packages] == [("new", "3", "apt")]
    assert [change for change in rest if change.type == "file"] == []


def test_packages_of_npm_have_names_of_their_own(tmp_path: Path) -> None:
    modules = "workspace/node_modules"
    files = {
        f"{modules}/adder/package.json": b'{"version": "1.2.3"}',
        f"{modules}/adder/index.js": b"",
        f"{modules}/adder/test/package.json": b'{"version": "9"}',
        f"{modules}/@scope/one/package.json": b'{"version": "4.0"}',
        f"{modules}/liar/package.json": b"[" * 100_000,
    }
    found = [(package.name, package.version) for package in installed(changed(tmp_path, files))]
    assert found == [("@scope/one", "4.0"), ("adder", "1.2.3")]


@settings(deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_whatever_the_files_say_it_is_only_a_list(status: bytes, record: bytes, described: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        files = {
            "var/lib/dpkg/status": status,
            f"{SITE}/a-1.dist-info/METADATA": b"",
            f"{SITE}/a-1.dist-info/RECORD": record,
            "w/node_modules/b/package.json": described,
        }
        changes = changed(Path(place), files)
        packages, rest = fold(changes)
        assert Package("a", "1", "pip", 0) in [package.replace(files=0) for package in packages]
        assert {change.path for change in rest} <= {change.path for change in changes}
