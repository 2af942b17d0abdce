"""Parse a shell script with a bash parser, and list its commands.

The parser is shfmt (`pip install 'staddle[rules]'`), a separate program: an agent's text is never parsed in
our process. The result is JSON of bounded size.
"""

from __future__ import annotations

from .._value import Value
from ..errors import CommandNotUnderstood, ExtraMissing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    #: The text of a word, with UNKNOWN for parts that are only known at run time; None if even the number of
    #: words is unknown.
    Word = str | None

#: Stands for a part of a word that is only known at run time. No real word contains it.
UNKNOWN = "\0"
#: Maximum length of one argument on Linux.
LONGEST = 128 << 10
_MOST_TREE = 8 << 20
_SECONDS = 10.0


class Script(Value):
    """The words of each command of a script, including unreachable commands, and its functions."""

    commands: tuple[tuple[Word, ...], ...]
    functions: frozenset[str] = frozenset()


def parser() -> str:
    """Return the path of shfmt. Raises ExtraMissing."""
    import os

    for directory in _places():
        path = os.path.join(directory, "shfmt")
        if os.path.isabs(path) and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise ExtraMissing(
        "command rules need a parser of bash",
        why="shfmt is not installed",
        fix="pip install 'staddle[rules]', or install shfmt from your distribution",
    )


def _places() -> list[str]:
    """Return the directory of our interpreter, where pip installs it, and then the PATH."""
    import os
    import sys
    import sysconfig

    found = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
    return [*found, *os.environ.get("PATH", os.defpath).split(os.pathsep)]


def parse(text: str) -> Script:
    """Return the commands of `text`. Raises CommandNotUnderstood if it is too long or not valid bash."""
    import os

    try:
        data = os.fsencode(text)
    except UnicodeEncodeError as error:
        raise CommandNotUnderstood(
            "the script has a character that is no text", why=str(error), fix="take it out"
        ) from None
    if len(data) > LONGEST:
        raise CommandNotUnderstood(
            f"the script has {len(data)} bytes", why=f"at most {LONGEST} are read", fix="split it"
        )
    if b"\0" in data:
        raise CommandNotUnderstood(
            "the script has a NUL in it", why="no argument can contain one", fix="take it out"
        )
    return _script(_tree(data))


def _tree(data: bytes) -> Any:
    """Return shfmt's syntax tree of `data`. It runs with our rights, so its only input is the text."""
    import json
    import subprocess
    import tempfile
    import threading

    with tempfile.TemporaryFile() as source:
        source.write(data)
        source.seek(0)
        # With an explicit dialect, shfmt does not look for configuration files.
        with subprocess.Popen(
            [parser(), "--language-dialect=bash", "--to-json"],
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={},
        ) as process:
            alarm = threading.Timer(_SECONDS, process.kill)
            alarm.start()
            try:
                assert process.stdout is not None and process.stderr is not None  # noqa: S101,PT018 - PIPE
                tree = process.stdout.read(_MOST_TREE + 1)
                if len(tree) > _MOST_TREE:
                    process.kill()
                said = process.stderr.read(4096).decode("utf-8", "replace").strip()
            finally:
                alarm.cancel()
    if len(tree) > _MOST_TREE or process.returncode < 0:
        raise CommandNotUnderstood(
            "the script has too many parts to be checked",
            fix="put it into a file, or split it",
            why="checking it would take too long",
        )
    if process.returncode != 0:
        raise CommandNotUnderstood("the script cannot be read as bash", why=said, fix="correct it")
    try:
        return json.loads(tree)
    except (ValueError, RecursionError) as error:
        raise CommandNotUnderstood(
            "the script could not be read",
            why=f"shfmt answered what is not understood ({error})",
            fix="install another version of shfmt, or split the script",
        ) from None


def _script(tree: Any) -> Script:
    commands: list[tuple[Word, ...]] = []
    functions: set[str] = set()
    for node in _nodes(tree):
        kind = node.get("Type")
        if kind == "FuncDecl":
            functions.add(_value(node.get("Name")))
        elif kind == "ExtGlob" and any(sign in _value(node.get("Pattern")) for sign in ("$", "`", "(")):
            # The parser does not parse its content, but bash would run it.
            commands.append((None,))
        elif kind in ("DeclClause", "LetClause"):
            commands.append((_value(node.get("Variant")) or "let",))
        elif kind == "CallExpr" and node.get("Args"):
            words = tuple(_word(word) for word in node["Args"])
            if words != ("exec",):  # it only redirects
                commands.append(words)
    return Script(tuple(commands), frozenset(functions))


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every node in the order of the text."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            yield node
            todo += reversed(node.values())
        elif isinstance(node, list):
            todo += reversed(node)


def _value(node: Any) -> str:
    value = node.get("Value") if isinstance(node, dict) else None
    return value if isinstance(value, str) else ""


def _word(word: Any) -> Word:
    """Return the word without quotes; None if an unquoted part may expand to several words or none."""
    text = ""
    for part in (word or {}).get("Parts") or []:
        kind, value = part.get("Type"), _value(part)
        if kind == "SglQuoted":
            found: Word = UNKNOWN if part.get("Dollar") and "\\" in value else value
        elif kind == "DblQuoted":
            found = _quoted(part.get("Parts") or [])
        elif kind == "Lit":
            found = _bare(value)
        else:  # a variable, a substitution, arithmetic, a pattern
            found = None
        if found is None:
            return None
        text += found
    return text


def _bare(text: str) -> Word:
    """Return an unquoted part without backslashes; None if bash would expand it."""
    import re

    unquoted = re.sub(r"\\.", "", text, flags=re.DOTALL)
    if text != "[" and re.search(r"[*?\[]|\{.*(,|\.\.)", unquoted, re.DOTALL):
        return None
    return re.sub(r"\\(\n|(.))", r"\2", text)


def _quoted(parts: list[Any]) -> Word:
    """Return text in double quotes as one word, with UNKNOWN for unknown parts; None for several words."""
    import re

    if any(_is_several(part) for part in parts):
        return None
    return "".join(
        re.sub(r"\\(\n|([$`\"\\]))", r"\2", _value(part)) if part.get("Type") == "Lit" else UNKNOWN
        for part in parts
    )


def _is_several(part: dict[str, Any]) -> bool:
    """ "$@", "${list[@]}" and "${!prefix@}" are any number of words, quoted or not."""
    return part.get("Type") == "ParamExp" and (
        _value(part.get("Param")) == "@" or bool(part.get("Index")) or bool(part.get("Names"))
    )
