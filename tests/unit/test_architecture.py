"""The tree is what docs/architecture.md says: imports lead down, and a name means one thing.

Imports are read with `ast`, never executed. An import for the type checker counts like any other, and so
does one inside a function.
"""

from __future__ import annotations

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "staddle"
PAGE = ROOT / "docs" / "architecture.md"

#: The rooms from the ground up. Each row is one room; a room imports from itself and from the rows before it.
#: A file belongs to the row that has the longest part of its path.
ROOMS: tuple[tuple[str, ...], ...] = (
    (
        "_value.py",
        "enforcement.py",
        "errors.py",
        "check.py",
        "events.py",
        "display.py",
        "interrupts.py",
        "background.py",
        "paths.py",
        "places.py",
        "hostnames.py",
    ),
    ("linux",),
    ("files",),
    ("command_rules",),
    ("hostinfo",),
    ("policy",),
    ("mounts",),
    ("layers",),
    ("ipc",),
    ("limits",),
    ("bases",),
    ("network/__init__.py", "network/rules"),
    ("network/namespace",),
    ("network/gateway",),
    ("network/inspection",),
    ("network/host",),
    ("observe",),
    ("launch",),
    ("packages",),
    ("inside", "inside/agent", "inside/landlock"),
    ("backends",),
    ("wrapping.py",),
    ("shell",),
    ("forkserver",),
    ("environment",),
    ("learn",),
    ("sandbox/workspace",),
    ("sandbox/open",),
    ("sandbox",),
    ("faces.py", "json_values.py"),
    ("sandbox/aio",),
    ("jail",),
    ("containers",),
    ("diagnosis.py", "testing.py"),
    ("__init__.py",),
    ("adapters", "compat"),
    ("mcp",),
    ("agents",),
    ("tui",),
    ("fleet",),
    ("server",),
    ("cli", "__main__.py"),
)
#: These rooms import nothing of ours but the public names: `staddle` itself, and its public modules.
PUBLIC_NAMES_ONLY = ("adapters", "compat", "mcp", "tui", "fleet", "server")
PUBLIC = ("__init__.py", "errors.py", "check.py", "display.py", "faces.py", "json_values.py", "places.py")
#: Class names that stand in more than one file, each with the reason why one name is right for both.
ALLOWED_TWICE: dict[str, str] = {}


#: A docstring has a subject and a verb, or is a noun: it does not begin with a clause that stands for a noun.
RIDDLES = re.compile(
    r"(What|Who|Whom|Whose|Which|Where|When|Why|How|(What|Who|Which|Where|When)ever"
    r"|Nobody|Somebody|Nothing|Those|(All|Everything|Anything) that)\b"
)


class Import(NamedTuple):
    """One imported name: where it is written, and the file it leads to, both relative to SOURCE."""

    file: str
    line: int
    target: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.target}"


@cache
def trees() -> dict[str, ast.Module]:
    """Every source file, parsed, by its path relative to SOURCE."""
    paths = sorted(SOURCE.rglob("*.py"))
    gc.disable()  # half of the time would go into looking for garbage among two million nodes
    try:
        return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(), str(path)) for path in paths}
    finally:
        gc.freeze()
        gc.enable()


@cache
def statements(file: str) -> tuple[ast.AST, ...]:
    """The file itself and every statement in it, however deep: imports and definitions are statements."""
    found: list[ast.AST] = [trees()[file]]
    for node in found:
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            found += getattr(node, name, ())
    return tuple(found)


def file_of(parts: tuple[str, ...]) -> str | None:
    """The file of the module with this dotted name, without the leading `staddle`; None for any other."""
    path = "/".join(parts)
    choices = (f"{path}.py", f"{path}/__init__.py") if parts else ("__init__.py",)
    return next((choice for choice in choices if choice in trees()), None)


@cache
def imports_of(file: str) -> tuple[Import, ...]:
    """Everything of ours that `file` imports."""
    return tuple(_imports_of(file))


def _imports_of(file: str) -> Iterator[Import]:
    package = tuple(file.split("/")[:-1])
    for node in statements(file):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top, *rest = alias.name.split(".")
                if top == "staddle" and (target := file_of(tuple(rest))):
                    yield Import(file, node.lineno, target, "")
        elif isinstance(node, ast.ImportFrom):
            words = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                start = (*package[: len(package) - node.level + 1], *words)
            elif words[0] == "staddle":
                start = words[1:]
            else:
                continue
            for alias in node.names:
                target = file_of((*start, alias.name)) or file_of(start)
                if target:
                    yield Import(file, node.lineno, target, alias.name)


@cache
def every_import() -> tuple[Import, ...]:
    """All imports of the tree."""
    return tuple(found for file in trees() for found in imports_of(file))


@cache
def room(file: str) -> tuple[int, str] | None:
    """(number of its row, the part of its path that says so); None for a file in no room."""
    rows = [(number, path) for number, row in enumerate(ROOMS) for path in row]
    around = [item for item in rows if file == item[1] or file.startswith(f"{item[1]}/")]
    return max(around, key=lambda item: len(item[1]), default=None)


def lines(offenders: list[str]) -> str:
    """The message of a failure."""
    return "\n  ".join((f"{len(set(offenders))}:", *sorted(set(offenders))))


def test_imports_lead_down() -> None:
    """A room imports only from rooms below it, at run time and for the type checker."""
    offenders = [f"{file}:1 is in no room" for file in trees() if room(file) is None]
    for found in every_import():
        here, there = room(found.file), room(found.target)
        if here is None or there is None or here[0] == there[0]:
            continue
        if there[0] > here[0]:
            offenders.append(f"{found}: {here[1]} stands below {there[1]}")
        elif here[1] in PUBLIC_NAMES_ONLY and found.target not in PUBLIC:
            offenders.append(f"{found}: {here[1]} uses the public names only")
    assert not offenders, lines(offenders)


@cache
def only_passes_on(file: str) -> bool:
    """Whether it is the file of a package and defines nothing but how its names are loaded."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    defined = [node.name for node in statements(file) if isinstance(node, kinds)]
    return file.endswith("__init__.py") and set(defined) <= {"__getattr__", "__dir__"}


def followed(found: Import) -> str:
    """The file that defines what is imported, past packages that only pass it on."""
    if only_passes_on(found.target):
        for further in imports_of(found.target):
            if further.name == found.name and further.target != found.target:
                return followed(further)
    return found.target


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected components with more than one file (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for following in graph.get(node, ()):
            if following not in index:
                visit(following)
            if following in stack:
                low[node] = min(low[node], low[following])
        if low[node] == index[node]:
            start = stack.index(node)
            if len(stack) - start > 1:
                found.append(set(stack[start:]))
            del stack[start:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def test_no_files_import_each_other_in_a_circle() -> None:
    """Also not through a package that passes names on, nor for the type checker alone."""
    graph: dict[str, set[str]] = defaultdict(set)
    edges = [(found, followed(found)) for found in every_import() if not only_passes_on(found.file)]
    for found, target in edges:
        if target != found.file:
            graph[found.file].add(target)
    offenders = []
    for circle in circles(graph):
        inner = {
            f"{f.file}:{f.line} -> {target}" for f, target in edges if f.file in circle and target in circle
        }
        offenders.append("\n    ".join((f"a circle of {len(circle)} files", *sorted(inner))))
    assert not offenders, lines(offenders)


def test_a_class_name_stands_once() -> None:
    """A leading underscore does not make it another name."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in trees():
        for node in statements(file):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{file}:{node.lineno}")
    twice = {name: where for name, where in places.items() if len(where) > 1}
    offenders = [f"{name}: {', '.join(twice[name])}" for name in twice.keys() - ALLOWED_TWICE.keys()]
    offenders += [
        f"{name} is in ALLOWED_TWICE and stands once" for name in ALLOWED_TWICE.keys() - twice.keys()
    ]
    assert not offenders, lines(offenders)


def test_every_room_is_on_the_map() -> None:
    """Each package is named in the page, as `path/`."""
    page = PAGE.read_text()
    packages = {Path(file).parent.as_posix() for file in trees()} - {"."}
    offenders = [
        f"src/staddle/{path}/ is not named in {PAGE.name}" for path in packages if f"`{path}/`" not in page
    ]
    named = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = {path.split("/")[0] for path in packages}
    offenders += [f"{room} is not named in CONTRIBUTING.md" for room in rooms if f"`{room}`" not in named]
    assert not offenders, lines(offenders)


def test_links_and_paths_of_the_map_lead_somewhere() -> None:
    """Every link has its file, and so has every `path.py`; NAME in one stands for a name to be chosen."""
    offenders = []
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        links = [PAGE.parent / target for target in re.findall(r"\]\(([^)#\s:]+)[)#]", line)]
        gone = [path for path in links if not path.exists()]
        named = [path for path in re.findall(r"`([\w/.]+\.py)`", line) if "NAME" not in path]
        gone += [Path(path) for path in named if not any((top / path).exists() for top in (SOURCE, ROOT))]
        offenders += [f"docs/{PAGE.name}:{number} -> {path}" for path in gone]
    assert not offenders, lines(offenders)


def test_names_on_the_map_stand_in_the_file_beside_them() -> None:
    """Where the page says "`name` of [file.py](…)", that file defines the name."""
    said = re.findall(r"((?:`\w+`(?:, | and )?)+) of \[[^]]*\]\(\.\./([^)]+)\)", PAGE.read_text())
    assert said
    offenders = [
        f"{file} defines no {name}"
        for names, file in said
        for name in re.findall(r"\w+", names.replace(" and ", " "))
        if not re.search(rf"^\s*(def|class|async def) {name}\b", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert not offenders, lines(offenders)


def test_docstrings_do_not_begin_with_a_riddle() -> None:
    """Not "What was found out", but "Cache of facts": readers do not know the code yet."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    offenders = [
        f"src/staddle/{file}:{getattr(node, 'lineno', 1)} {found[0]} …"
        for file in trees()
        for node in statements(file)
        if isinstance(node, kinds) and (found := RIDDLES.match(ast.get_docstring(node) or ""))
    ]
    assert not offenders, lines(offenders)


def test_lines_that_mutation_tests_change_are_there_once() -> None:
    """Found here in a moment, before the mutation tests themselves, which take minutes, fail for it."""
    from tests.containment.switches import SWITCHES
    from tests.containment.switches.host_side import HOST_SWITCHES

    edits = [edit for switches in SWITCHES.values() for switch in switches.values() for edit in switch.edits]
    edits += [switch.edit for switch in HOST_SWITCHES.values()]
    offenders = [
        f"src/staddle/{edit.file} says {count} times: {edit.old!r}"
        for edit in edits
        if (count := sum(path.read_text().count(edit.old) for path in SOURCE.glob(edit.file))) != 1
    ]
    assert not offenders, lines(offenders)
