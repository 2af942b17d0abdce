"""The wheel and the source archive: what is in them, and that a second build gives the same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from staddle import cli

pytestmark = pytest.mark.same_for_everyone

TREE = Path(__file__).parents[2]
PROJECT = tomllib.loads((TREE / "pyproject.toml").read_text())
#: What a source archive has beside the directories.
ROOT_FILES = {"Makefile", "LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"} | {
    "pyproject.toml",
    "hatch_build.py",
}
#: Kinds of files in the package: code, markers, system call filters, and what the server gives to a browser.
SUFFIXES = {"", ".py", ".typed", ".md", ".txt", ".json", ".c", ".bin", ".bpf"} | {
    *(".html", ".css", ".js", ".mjs", ".svg"),
}


def build(tree: Path, into: Path) -> tuple[Path, Path]:
    """Build both files of the tree; return the wheel and the source archive."""
    code = f"from hatchling import build; build.build_wheel({str(into)!r}); build.build_sdist({str(into)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, capture_output=True, timeout=120)
    return next(into.glob("*.whl")), next(into.glob("*.tar.gz"))


def sources(folder: Path) -> set[str]:
    """The files below a folder of the tree, but for what Python and git leave there."""
    found = (each for each in folder.rglob("*") if each.is_file() and "__pycache__" not in each.parts)
    return {each.relative_to(folder).as_posix() for each in found}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(TREE, tmp_path_factory.mktemp("built"))


@cache
def wheel_names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_has_the_package_its_documentation_and_nothing_else(built: tuple[Path, Path]) -> None:
    version = PROJECT["project"]["version"]
    info, data = f"staddle-{version}.dist-info", f"staddle-{version}.data"
    package = {f"staddle/{name}" for name in sources(TREE / "src" / "staddle")}
    docs = {f"staddle/docs/{name}" for name in sources(TREE / "docs")}
    pages = {f"staddle/{name}.md" for name in ("SECURITY", "CONTRIBUTING", "CHANGELOG")}
    metadata = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    names = wheel_names(built[0])
    ours = {name for name in names if not name.startswith(f"{data}/data/share/")}
    vendor = "src/staddle/server/page/vendor"
    licences = {"LICENSE", f"{vendor}/LICENSE-xterm.txt", f"{vendor}/LICENSE-addon-fit.txt"}
    metadata |= {f"{info}/licenses/{name}" for name in licences}
    assert ours == package | docs | pages | metadata | {f"{data}/scripts/staddle"}
    assert {PurePosixPath(name).suffix for name in package} <= SUFFIXES


def test_the_wheel_installs_a_manual_page_for_each_command_and_a_completion_for_each_shell(
    built: tuple[Path, Path],
) -> None:
    prefix = f"staddle-{PROJECT['project']['version']}.data/data/share/"
    shared = {name.removeprefix(prefix) for name in wheel_names(built[0]) if name.startswith(prefix)}
    assert shared == {
        "man/man1/staddle.1",
        *(f"man/man1/staddle-{name}.1" for name in cli._COMMANDS),
        "bash-completion/completions/staddle",
        "zsh/site-functions/_staddle",
        "fish/vendor_completions.d/staddle.fish",
    }
    with zipfile.ZipFile(built[0]) as archive:
        page = archive.read(f"{prefix}man/man1/staddle-run.1").decode()
    assert "\\fB\\-\\-memory\\fR" in page
    assert "staddle run [options] \\-\\- COMMAND" in page


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff reads the pages")
def test_roff_reads_every_manual_page_without_a_warning(tmp_path: Path) -> None:
    script = TREE / "scripts" / "manual.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, capture_output=True)
    for page in sorted((tmp_path / "share/man/man1").iterdir()):
        words = ["groff", "-K", "utf8", "-man", "-ww", "-Tutf8", "-z", f"-I{tmp_path}/share/man", str(page)]
        said = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path / "share/man", check=True)
        assert "warning" not in said.stderr, (page.name, said.stderr)


def test_the_source_archive_builds_and_tests_itself(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tops = {name.split("/", 1)[0] for name in names}
    assert tops - {"PKG-INFO", ".gitignore"} == ROOT_FILES | {
        "bin",
        "src",
        "tests",
        "docs",
        "benchmarks",
        "scripts",
    }
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert {f"src/staddle/{name}" for name in sources(TREE / "src" / "staddle")} <= names


def test_the_metadata_is_complete() -> None:
    project = PROJECT["project"]
    assert project["license"] == "Apache-2.0 AND MIT"  # xterm.js
    assert project["dependencies"] == []
    wanted = {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)}
    assert wanted <= set(project["classifiers"])
    extras = project["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(everything.removeprefix("staddle[").removesuffix("]").split(",")) <= set(extras)


@pytest.mark.slow
def test_a_build_of_another_copy_gives_the_same_bytes(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Another directory, other times and another umask; a reader of the wheel can build it again."""
    copy = tmp_path / "another place"
    skipped = shutil.ignore_patterns("__pycache__", ".venv", ".git", ".*_cache", "*.whl")
    shutil.copytree(TREE, copy, ignore=skipped, copy_function=shutil.copy)
    before = os.umask(0o077)
    try:
        for file in copy.rglob("*"):
            os.utime(file, (1, 1))
        again = build(copy, tmp_path)
    finally:
        os.umask(before)
    for first, second in zip(built, again, strict=True):
        assert hashlib.sha256(first.read_bytes()).digest() == hashlib.sha256(second.read_bytes()).digest()
