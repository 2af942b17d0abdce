"""Docstrings and comments name only identifiers that exist, so that readers do not search for renamed code.

The test checks names in backquotes, and "see module.Class" without backquotes. Write foreign names that our
code does not use (a function of the kernel, an option of overlayfs) without backquotes.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import staddle

pytestmark = pytest.mark.same_for_everyone

SOURCE = Path(staddle.__file__).parent
QUOTED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(\(\))?`|\bsee ([a-z_]\w*\.[A-Z]\w+)")
#: A single word counts as an identifier if it is snake_case or CamelCase; any other word needs `()`.
IDENTIFIER = re.compile(r"[a-z_]+_\w+|[A-Z]\w*[a-z]\w*[A-Z]\w*")
#: The formatter puts two spaces before a comment that follows code.
COMMENT = re.compile(r"(?:^ *|  )#[ :].*", re.MULTILINE)
FOREIGN = sys.stdlib_module_names | set(dir(builtins))


class Tree:
    """The identifiers of the source, and its prose as (file, line, text)."""

    def __init__(self) -> None:
        self.prose: list[tuple[str, int, str]] = []
        #: Every word of the code of a file, including its strings.
        self.words: dict[str, set[str]] = {}
        #: Words with dots in strings, as in the names of files.
        self.dotted: set[str] = set()
        #: Names that a class, module or package defines.
        self.members: defaultdict[str, set[str]] = defaultdict(set)
        self.bases: defaultdict[str, set[str]] = defaultdict(set)
        for path in sorted(SOURCE.rglob("*.py")):
            self._read(path, path.relative_to(SOURCE).as_posix(), path.read_text())
        self.everywhere = FOREIGN.union(self.members, *self.words.values())

    def _read(self, path: Path, file: str, text: str) -> None:
        lines = text.splitlines()
        module = ast.parse(text)
        self.members[path.parent.name].add(path.stem)
        self.members[path.parent.name if path.stem == "__init__" else path.stem] |= bound(module)
        for node in (module, *definitions(module)):
            if docstring := ast.get_docstring(node):
                first, end = node.body[0].lineno, node.body[0].end_lineno or 0
                self.prose.append((file, first, docstring))
                lines[first - 1 : end] = [""] * (end - first + 1)
            if isinstance(node, ast.ClassDef):
                self.members[node.name] |= bound(node)
                self.bases[node.name] |= {re.sub(r"\[.*|.*\.", "", ast.unparse(base)) for base in node.bases}
        for number, line in enumerate(lines, 1):
            if comment := COMMENT.search(line):
                self.prose.append((file, number, comment[0]))
        code = COMMENT.sub("", "\n".join(lines))
        self.words[file] = set(re.findall(r"\w+", code))
        self.dotted.update(re.findall(r"\w+\.[\w.]+", "".join(re.findall(r"\".*\"", code))))

    def defines(self, owner: str, name: str) -> bool:
        """Whether a class or module of ours has this member, or may inherit it from a foreign class."""
        return name in self.members[owner] or any(
            self.defines(base, name) if base in self.members else base not in {"Generic", "Protocol"}
            for base in self.bases[owner]
        )

    def exists(self, name: str, called: bool, file: str) -> bool:
        *_, owner, last = ["", *name.split(".")]
        if not owner:
            return last in self.everywhere or not (called or IDENTIFIER.fullmatch(last))
        if name in self.dotted or name.split(".", maxsplit=1)[0] in FOREIGN:
            return True
        if last == "py":
            return any(path.endswith(f"/{name}") for path in self.words)
        if owner in self.members and self.defines(owner, last):
            return True
        # Otherwise `owner` may be a variable of this file.
        return owner.islower() and owner in self.words[file] and last in self.everywhere


def definitions(module: ast.Module) -> list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(module) if isinstance(node, kinds)]


def bound(tree: ast.AST) -> set[str]:
    """Names that are defined, imported or assigned in this tree, however deep."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias():
                names.add((node.asname or node.name).split(".")[-1])
    return names


def test_every_name_in_backquotes_exists() -> None:
    tree = Tree()
    dangling = [
        f"src/staddle/{file}:{line} {found[0]}"
        for file, line, text in tree.prose
        for found in QUOTED.finditer(text)
        if not tree.exists(found[1] or found[3], bool(found[2]), file)
    ]
    assert len(tree.prose) > 5000
    assert not dangling, "\n".join(dangling)
