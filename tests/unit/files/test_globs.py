"""The grammar of writable_paths: what each glob names, and what is refused in which way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle.environment import validate_writable_paths
from staddle.errors import PathEscape, PolicyError
from staddle.files.globs import Glob, GlobSet

NAMED = [
    ("out.md", ["out.md"], ["out.mdx", "a/out.md", "out", "OUT.md"]),
    ("./out.md", ["out.md"], ["a/out.md"]),
    ("a//b/./c", ["a/b/c"], ["a/b", "a/b/c/d"]),
    ("*.md", ["x.md", ".md", "..foo.md"], ["a/x.md", "x.md/y"]),
    ("a/?[0-9]", ["a/x1", "a/11"], ["a/1", "a/xy", "a/x12", "b/x1"]),
    ("[!a-c]x", ["dx", "-x"], ["ax", "bx", "x"]),
    ("[^a]x", ["bx"], ["ax"]),
    ("[a-]x", ["ax", "-x"], ["bx"]),
    (r"./\*x", ["*x"], ["ax", "x"]),
    (r"a[\]]", ["a]"], ["a"]),
    ("**", ["a", "a/b/c"], []),
    ("docs/**", ["docs", "docs/a", "docs/a/b"], ["docsx", "x/docs", "x/docs/a"]),
    ("**/n.txt", ["n.txt", "a/n.txt", "a/b/n.txt"], ["n.txt/a", "xn.txt"]),
    ("docs/**/*.md", ["docs/a.md", "docs/b/c/a.md"], ["docs", "a.md", "docs/a.txt"]),
    ("**/a/*.md", ["a/x.md", "q/a/x.md"], ["x.md", "a/b/x.md"]),
    ("..foo", ["..foo"], ["foo"]),
    ("*", ["a", "ünï", "\udcff", "a\nb"], ["a/b"]),
    ("a*b*c", ["abc", "aXbYc", "abcbc"], ["ab", "acb"]),
]
ESCAPES = ["/", "/etc", "~", "~root/x", "~/x", "C:", "c:\\x", "C:/x", "\\\\host\\x", "\\x", "..", "../x"]
ESCAPES += ["a/..", "a/../b", "a/../../b", "./../x", "**/..", "../**", r"a/\.\./b", r"a/.\."]
MALFORMED = [
    "",
    " ",
    ".",
    "./",
    "a\0b",
    "{a,b}",
    "a}",
    "a{",
    "a**",
    "**a",
    "a/**b/c",
    "***",
    "**/**",
    "a/**/b/**",
]
MALFORMED += [
    "*/**",
    "a?/**/b",
    "[ab]/**",
    "a[",
    "[]",
    "[!]",
    "[a",
    "[a-",
    "[a-]x[",
    "[z-a]",
    "a\\",
    "[\\",
    r"a/\.",
]


@pytest.mark.parametrize(("glob", "named", "others"), NAMED)
def test_a_glob_names_this_and_nothing_else(glob: str, named: list[str], others: list[str]) -> None:
    alone, many = Glob(glob), GlobSet([Glob("unrelated/x"), Glob(glob), Glob("other/**/*.zip")])
    for path in named:
        assert alone.matches(path)
        assert many.matches(path)
    for path in others:
        assert not alone.matches(path)
        assert not many.matches(path)


@pytest.mark.parametrize("glob", ESCAPES)
def test_what_could_lead_out_is_an_escape(glob: str) -> None:
    with pytest.raises(PathEscape):
        Glob(glob)


@pytest.mark.parametrize("glob", MALFORMED)
def test_what_means_nothing_is_malformed_and_no_escape(glob: str) -> None:
    with pytest.raises(PolicyError) as refusal:
        Glob(glob)
    assert not isinstance(refusal.value, PathEscape)


@pytest.mark.parametrize(
    ("glob", "prefix", "literal"),
    [
        ("out.md", "", "out.md"),
        ("a/out.md", "a", "a/out.md"),
        ("*.md", "", None),
        ("a/b/*.md", "a/b", None),
        ("a/*/c/d", "a", None),
        ("docs/**", "docs", None),
        ("**/x", "", None),
        (r"a\*/x", "a*", "a*/x"),
    ],
)
def test_the_directory_that_holds_all_it_can_match(glob: str, prefix: str, literal: str | None) -> None:
    assert (Glob(glob).prefix, Glob(glob).literal) == (prefix, literal)


def test_ten_thousand_globs_are_asked_at_once() -> None:
    globs = GlobSet(
        Glob(text)
        for n in range(2500)
        for text in (f"d{n}/out.md", f"d{n}/**", f"x{n}*.md", f"e{n}/**/*.t{n}")
    )
    assert not any(globs.matches(f"none/e{n}/file{n}.py") for n in range(1000))
    assert all(globs.matches(f"e{n}/a/b/c.t{n}") for n in range(1000))
    assert not globs.matches("e7/a/b/c.t8")


def validate(root: Path, working_dir: object, globs: object = ("**",)) -> None:
    validate_writable_paths(working_dir, globs, root)  # type: ignore[arg-type]


def test_a_working_directory_in_the_root_is_fine(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "inward").symlink_to("a")
    for good in (tmp_path, tmp_path / "a", "a", ".", "not/yet/there", tmp_path / "inward"):
        validate(tmp_path, good)


def test_a_working_directory_elsewhere_is_an_escape(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "rootsibling").mkdir()
    (root / "out").symlink_to("/etc")
    (root / "dangling").symlink_to(tmp_path / "nowhere")
    (root / "circle").symlink_to("circle")
    for bad in ("/etc", "..", "a/../..", "out", "out/not/there", "dangling", "dangling/x", "circle/x"):
        with pytest.raises(PathEscape):
            validate(root, bad)
    with pytest.raises(PathEscape):
        validate(root, tmp_path / "rootsibling")


def test_set_but_empty_is_refused_and_so_is_one_string(tmp_path: Path) -> None:
    for bad in ([], (), "out.md", b"out.md"):
        with pytest.raises(PolicyError) as refusal:
            validate(tmp_path, tmp_path, bad)
        assert not isinstance(refusal.value, PathEscape)
    with pytest.raises(PolicyError):
        validate(tmp_path, tmp_path, [os.sep.join(["a", ""]), 3])


def test_many_globs_at_once_say_what_each_says_alone() -> None:
    """Whole families that begin and end alike, in one segment, in several, and at any depth."""
    texts = [
        text
        for n in range(40)
        for text in (
            f"*n{n}*",
            f"[a-c]*{n}?",
            f"src/*{n}*/[!x]*.py",
            f"*/{n}*",
            f"**/*t{n}*",
            f"lib/**/?{n}*/*.c",
            "a" * (n % 7 + 1) + "*" + "b" * (n % 5 + 1),
        )
    ]
    alone = [Glob(text) for text in texts]
    together = GlobSet(alone)
    paths = [
        path
        for n in range(60)
        for path in (
            f"xn{n}y",
            f"b{n}z",
            f"b{n}",
            f"src/a{n}b/m.py",
            f"src/a{n}b/x.py",
            f"src/a{n}/b/m.py",
            f"q/{n}",
            f"p/q/t{n}",
            f"lib/x/{n}/m.c",
            f"lib/x/y{n}/m.c",
            "a" * n + "b",
        )
    ]
    answers = [together.matches(path) for path in paths]
    assert answers == [any(glob.matches(path) for glob in alone) for path in paths]
    assert {True, False} == set(answers)


def test_names_may_use_any_number_of_different_characters() -> None:
    """More than a set of globs remembers, asked twice, and with half a surrogate among them."""
    globs = GlobSet([Glob("*[!a]*x"), Glob("*?b*y")])
    names = ["".join(chr(0x4E00 + n * 40 + i) for i in range(40)) + "x" for n in range(40)] + ["a\udc80x"]
    for name in [*names, *names]:
        assert globs.matches(name)
        assert not globs.matches(name[:-1] + "y")
    assert not globs.matches("ax")


def test_a_star_that_could_be_tried_in_every_place_is_tried_once() -> None:
    """A backtracking matcher would not come to an end here."""
    hard = "*".join("a" * 40) + "*b"
    assert not GlobSet([Glob(f"*{hard}"), Glob(f"*{hard}c")]).matches("a" * 4000)
    assert not Glob(f"*{hard}").matches("a" * 4000)
    assert GlobSet([Glob(f"*{hard}")]).matches("a" * 4000 + "b")
