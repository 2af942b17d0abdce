"""Paths fold to sensible directories, and never to a home or a directory that everybody has."""

from __future__ import annotations

import pytest

from staddle.learn.folding import NEVER, SCREEN, Used, fold, is_never

HOME = "/home/ada"

TABLE = {
    "one file stays a file": (["/srv/data/a.csv"], ["/srv/data/a.csv"]),
    "three files stay three": (["/srv/d/a", "/srv/d/b", "/srv/d/c"], ["/srv/d/a", "/srv/d/b", "/srv/d/c"]),
    "four files are their directory": ([f"/srv/d/{name}" for name in "abcd"], ["/srv/d"]),
    "many files of /etc stay files": (
        [f"/etc/{name}" for name in "abcdef"],
        [f"/etc/{name}" for name in "abcdef"],
    ),
    "a directory in /etc folds": ([f"/etc/app/{name}" for name in "abcd"], ["/etc/app"]),
    "files of a home stay files": (
        [f"{HOME}/.{name}" for name in "abcd"],
        [f"{HOME}/.{name}" for name in "abcd"],
    ),
    "a cache folds to its program": (
        [f"{HOME}/.cache/pip/http/1/a", f"{HOME}/.cache/pip/selfcheck/b"],
        [f"{HOME}/.cache/pip"],
    ),
    "one file of a cache stays a file": ([f"{HOME}/.cache/pip/http/1/a"], [f"{HOME}/.cache/pip/http/1/a"]),
    "node packages": (
        ["/srv/app/node_modules/a/i.js", "/srv/app/node_modules/b/i.js"],
        ["/srv/app/node_modules"],
    ),
    "a virtual environment": (
        ["/srv/venv/lib/python3.12/site-packages/a.py", "/srv/venv/lib/python3.12/os.py"],
        ["/srv/venv"],
    ),
    "user packages, and not ~/.local": (
        [f"{HOME}/.local/lib/python3.12/site-packages/{name}.py" for name in "ab"],
        [f"{HOME}/.local/lib/python3.12/site-packages"],
    ),
    "a toolchain": (
        [f"{HOME}/.rustup/toolchains/stable/bin/rustc", f"{HOME}/.rustup/toolchains/stable/lib/x.so"],
        [f"{HOME}/.rustup/toolchains/stable"],
    ),
    "a directory covers what is in it": (["/srv/d/a", "/srv/d/a/b/c"], ["/srv/d/a"]),
}


@pytest.mark.parametrize("name", TABLE)
def test_paths_fold_as_the_table_says(name: str) -> None:
    paths, wanted = TABLE[name]
    assert sorted(fold(map(Used, paths), HOME)) == sorted(wanted)


def test_a_listed_directory_is_granted_unless_it_is_never() -> None:
    listed = [Used(path, True) for path in ("/srv/data", "/etc", HOME, "/", f"{HOME}/.config", "/home/eve")]
    assert list(fold(listed, HOME)) == ["/srv/data"]


@pytest.mark.parametrize("path", [*NEVER, "/home/somebody"])
def test_nothing_that_everybody_has_is_ever_a_grant(path: str) -> None:
    place = path.replace("~", HOME, 1).rstrip("/")
    many = [Used(f"{place}/{number:03}") for number in range(3 * SCREEN)]
    assert is_never(place or "/", HOME)
    assert not [grant for grant in fold(many, HOME) if is_never(grant, HOME)]


def test_many_grants_fold_until_they_fit_on_a_screen() -> None:
    used = [Used(f"/srv/data/{a}/{b}/file") for a in range(10) for b in range(10)]
    found = fold(used, HOME)
    assert len(found) <= SCREEN
    assert all(grant.startswith("/srv/data") for grant in found)
    assert sum(map(len, found.values())) == len(used)


def test_every_grant_covers_something_that_was_used() -> None:
    used = [Used(path) for paths, _ in TABLE.values() for path in paths]
    found = fold(used, HOME)
    assert all(found.values())
    assert {path for files in found.values() for path in files} == {each.path for each in used}
