"""What is marked `same_for_everyone` is run as one user only: it must not ask who that is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: There it is switches that are marked; one that is for one user only cannot be.
SWITCHES = (HERE / "containment/test_mutations.py", HERE / "containment/test_host_side.py")
FILES = [
    path
    for path in sorted(HERE.rglob("test_*.py"))
    if path not in (Path(__file__), HERE / "test_shares.py", *SWITCHES)
    and "same_for_everyone" in path.read_text()
]
#: Who asks for one of these asks who runs it, or says whose something is.
ASKING = {
    *("geteuid", "getuid", "getegid", "getgid", "getresuid", "getresgid", "getgroups", "getpwuid"),
    *("setuid", "setgid", "seteuid", "setegid", "setresuid", "setresgid", "setgroups"),
    *("ROOT", "WHO", "uid", "gid", "st_uid", "st_gid", "needs_root"),
    *("chown", "fchown", "lchown"),
}
#: The same as a shell command.
COMMANDS = ("id -", "whoami", "chown ", "sudo ", "setpriv ", "unshare ")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> dict[str, Function]:
    return {node.name: node for node in ast.walk(tree) if isinstance(node, Function)}


def marks(node: ast.AST) -> bool:
    """Whether it says that something is the same for everyone."""
    return any(
        isinstance(part, ast.Attribute) and part.attr == "same_for_everyone" for part in ast.walk(node)
    )


def marked(tree: ast.Module) -> list[Function]:
    """The tests of a file that are, or some of whose cases are; also by a name given to such a decorator."""
    whole, names = False, set[str]()
    for node in tree.body:
        if isinstance(node, ast.Assign) and marks(node.value):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, Function) and not node.name.startswith("test_") and marks(node):
            names.add(node.name)  # makes the cases of one
    whole = "pytestmark" in names

    def says(decorators: list[ast.expr]) -> bool:
        return any(
            marks(each) or any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(each))
            for each in decorators
        )

    found = []
    for node in tree.body:
        of_a_class = isinstance(node, ast.ClassDef) and says(node.decorator_list)
        for each in node.body if isinstance(node, ast.ClassDef) else [node]:
            is_test = isinstance(each, Function) and each.name.startswith("test_")
            if is_test and (whole or of_a_class or says(each.decorator_list)):
                found.append(each)
    return found


def is_for_all(function: Function) -> bool:
    """Whether it is a fixture that nobody asks for."""
    parts = [part for decorator in function.decorator_list for part in ast.walk(decorator)]
    return any(isinstance(part, ast.keyword) and part.arg == "autouse" for part in parts)


def used(test: Function, around: dict[str, Function]) -> Iterator[Function]:
    """The test, its fixtures, and what these call, as far as that stands in the file or its conftest."""
    seen, todo = set[str](), [test, *(each for each in around.values() if is_for_all(each))]
    while todo:
        function = todo.pop()
        yield function
        arguments = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
        names = {part.id for part in ast.walk(function) if isinstance(part, ast.Name)}
        for name in sorted((arguments | names) & around.keys() - seen):
            seen.add(name)
            todo.append(around[name])


def asks(node: ast.AST) -> Iterator[str]:
    """The words in it that ask who runs it."""
    for part in ast.walk(node):
        match part:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.keyword(arg=word) | ast.arg(arg=word):
                if word in ASKING:
                    yield str(word)
            case ast.Constant(value=str(text)):
                yield from (command for command in COMMANDS if command in text)


def asked(tree: ast.Module, around: dict[str, Function]) -> dict[str, list[str]]:
    """By the name of each test that is marked: the words with which it asks."""
    return {
        test.name: sorted({word for part in used(test, around) for word in asks(part)})
        for test in marked(tree)
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HERE)))
def test_nothing_marked_asks_who_runs_it(path: Path) -> None:
    tree = ast.parse(path.read_text())
    around = functions(tree)
    for folder in path.parents:
        if folder.is_relative_to(HERE) and (folder / "conftest.py").exists():
            around = functions(ast.parse((folder / "conftest.py").read_text())) | around
    found = asked(tree, around)
    assert found, "nothing here is marked, though the word is there"
    assert {name: words for name, words in found.items() if words} == {}


CONTROL = """
once = pytest.mark.same_for_everyone
@pytest.fixture
def place(): return mine()
def mine(): return os.geteuid()
def cases(): return [pytest.param(1, marks=pytest.mark.same_for_everyone)]

@pytest.mark.same_for_everyone
def test_by_itself(): assert os.stat("x").st_uid
@once
def test_by_a_fixture(place): pass
@pytest.mark.parametrize("x", cases())
def test_some_cases(x): run("id -u")
@once
@pytest.mark.parametrize("x", [1] if ROOT else [])
def test_by_its_cases(x): pass
@once
def test_does_not(tmp_path): run("echo it did")
def test_is_not_marked(): os.chown()
"""


def test_control_whoever_asks_is_found() -> None:
    tree = ast.parse(CONTROL)
    assert asked(tree, functions(tree)) == {
        "test_by_itself": ["st_uid"],
        "test_by_a_fixture": ["geteuid"],
        "test_some_cases": ["id -"],
        "test_by_its_cases": ["ROOT"],
        "test_does_not": [],
    }
