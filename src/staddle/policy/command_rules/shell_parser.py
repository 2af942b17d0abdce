"""Parse a shell script with a real parser of bash, and list the commands in it.

The parser is shfmt (`pip install 'staddle[rules]'`), a program of its own: what an agent wrote
is never parsed inside our process, and what comes back is JSON of a bounded size.
"""

from __future__ import annotations

from ..._value import Value
from ...errors import CommandNotUnderstood, ExtraMissing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    #: A word: its text, with UNKNOWN for what is only known when it runs; None when even the
    #: number of words is not known before.
    Word = str | None

#: Stands in a word for a part that has some value when the script runs. No word can hold it.
UNKNOWN = "\0"
#: As much as one argument of a program can hold on Linux.
LONGEST = 128 << 10
_MOST_TREE = 8 << 20
_SECONDS = 10.0


class SimpleCommand(Value):
    """One simple command: its words, and what it reads, where that stands in the script."""

    words: tuple[Word, ...]
    reads: Word = None


class Script(Value):
    """The commands of a script, whether or not they will be reached, and the functions it defines."""

    commands: tuple[SimpleCommand, ...]
    functions: frozenset[str] = frozenset()


def parser() -> str:
    """The path of shfmt, or ExtraMissing."""
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
    """Beside our interpreter, where pip puts it; then the PATH."""
    import os
    import sys
    import sysconfig

    found = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
    return [*found, *os.environ.get("PATH", os.defpath).split(os.pathsep)]


def parse(text: str) -> Script:
    """The commands of `text`. CommandNotUnderstood for what bash would not understand, or is too long."""
    import os

    data = os.fsencode(text)
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
    """shfmt's tree of `data`. It runs with our rights, so it gets nothing but the text."""
    import json
    import subprocess
    import tempfile
    import threading

    with tempfile.TemporaryFile() as source:
        source.write(data)
        source.seek(0)
        # A dialect that is named keeps it from looking for configuration files.
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
    commands: list[SimpleCommand] = []
    functions: set[str] = set()
    for node in _nodes(tree):
        kind, call = node.get("Type"), node.get("Cmd")
        if kind == "FuncDecl":
            functions.add(_value(node.get("Name")))
        elif kind == "ExtGlob" and any(sign in _value(node.get("Pattern")) for sign in ("$", "`", "(")):
            # The parser leaves it unread, and bash would run what is in it.
            commands.append(SimpleCommand((None,)))
        elif kind in ("DeclClause", "LetClause"):
            commands.append(SimpleCommand((_value(node.get("Variant")) or "let",)))
        if isinstance(call, dict) and call.get("Type") == "CallExpr" and call.get("Args"):
            words = tuple(_word(word) for word in call["Args"])
            commands.append(SimpleCommand(words, _reads(node.get("Redirs") or [])))
    return Script(tuple(commands), frozenset(functions))


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every node, in the order of the text."""
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


def _reads(redirections: list[Any]) -> Word:
    """The text of a here-document or here-string; None if it reads anything else, or nothing."""
    found: Word = None
    for redirection in redirections:
        if redirection.get("Op") == "<<<":
            found = _word(redirection.get("Word"), split=False)
        elif redirection.get("Op") in ("<<", "<<-"):
            mark = redirection.get("Word") or {}
            raw = any(part.get("Type") != "Lit" or "\\" in _value(part) for part in mark.get("Parts") or [])
            body = redirection.get("Hdoc") or {}
            parts = body.get("Parts") or []
            found = "".join(_value(part) for part in parts) if raw else _quoted(parts, "$`\\\n")
            if found is not None and redirection["Op"] == "<<-":
                found = "\n".join(line.lstrip("\t") for line in found.split("\n"))
        elif redirection.get("Op") in ("<", "<>", "<&"):
            found = None
    return found


def _word(word: Any, *, split: bool = True) -> Word:
    """The word after all quotes; None if an unquoted part may make it several, or none."""
    text = ""
    for part in (word or {}).get("Parts") or []:
        kind = part.get("Type")
        if kind == "SglQuoted":
            text += _ansi(_value(part)) if part.get("Dollar") else _value(part)
            continue
        if kind == "DblQuoted":
            found = _quoted(part.get("Parts") or [], '$`"\\\n')
        elif kind == "Lit":
            found = _bare(_value(part), split)
        else:  # a variable, a substitution, arithmetic, a pattern
            found = None if split else UNKNOWN
        if found is None:
            return None
        text += found
    return text


def _bare(text: str, split: bool) -> Word:
    """An unquoted piece without its backslashes; None if bash makes file names or several words of it."""
    found, at = "", 0
    while at < len(text):
        char = text[at]
        if char == "\\" and at + 1 < len(text):
            at += 1
            found += text[at] if text[at] != "\n" else ""
        elif split and (char in "*?[" or (char == "{" and any(sign in text[at:] for sign in (",", "..")))):
            if text != "[":
                return None
            found += char
        else:
            found += char
        at += 1
    return found


def _quoted(parts: list[Any], quotable: str) -> Word:
    """The text in double quotes: one word, with UNKNOWN for its parts that are not known."""
    text = ""
    for part in parts:
        if part.get("Type") != "Lit":
            if _is_several(part):
                return None
            text += UNKNOWN
            continue
        value, at = _value(part), 0
        while at < len(value):
            if value[at] == "\\" and value[at + 1 : at + 2] and value[at + 1] in quotable:
                at += 1
                text += value[at] if value[at] != "\n" else ""
            else:
                text += value[at]
            at += 1
    return text


def _is_several(part: dict[str, Any]) -> bool:
    """ "$@", "${list[@]}" and "${!prefix@}" are any number of words, quoted or not."""
    return part.get("Type") == "ParamExp" and (
        _value(part.get("Param")) == "@" or bool(part.get("Index")) or bool(part.get("Names"))
    )


_NAMED = {
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}
_HEX = {"x": 2, "u": 4, "U": 8}


def _ansi(text: str) -> str:
    """The text of $'...'."""
    found, at = "", 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\" or at == len(text):
            found += char
            continue
        char = text[at]
        at += 1
        if char in _NAMED:
            found += _NAMED[char]
        elif char in _HEX:
            digits, at = _digits(text, at, _HEX[char], "0123456789abcdefABCDEF")
            found += _char(int(digits, 16)) if digits else "\\" + char
        elif char in "01234567":
            digits, at = _digits(text, at - 1, 3, "01234567")
            found += _char(int(digits, 8) & 0xFF)
        elif char == "c" and at < len(text):
            found += _char(ord(text[at]) & 0x1F)
            at += 1
        else:
            found += char if char in "\\'\"?" else "\\" + char
    return found


def _digits(text: str, at: int, most: int, allowed: str) -> tuple[str, int]:
    end = at
    while end < len(text) and end - at < most and text[end] in allowed:
        end += 1
    return text[at:end], end


def _char(code: int) -> str:
    return chr(code) if 0 < code < 0x110000 else UNKNOWN  # a NUL would end the word early
