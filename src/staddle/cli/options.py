"""Command-line options as data: one table gives the parser, the help and the docs.

Parsing stops at `--` or at the first word that is not an option, and what follows is never
looked at: a wrapped command's own flags are not ours. Options are spelled whole; an
abbreviation that means one thing today could mean another tomorrow.
"""

from __future__ import annotations

from .._value import Value
from ..errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Option(Value):
    """One option. `value` names what it takes (empty: a switch); `many` may be repeated."""

    name: str
    value: str = ""
    help: str = ""
    many: bool = False
    short: str = ""


class Parsed(Value):
    """A parsed command line: options by name, the words after them, and whether `--` came before those."""

    options: dict[str, list[str]]
    words: tuple[str, ...]
    dashed: bool

    def on(self, name: str) -> bool:
        """Whether the switch was given."""
        return name in self.options

    def one(self, name: str) -> str | None:
        """The value of an option that can be given once."""
        return self.options[name][0] if name in self.options else None

    def many(self, name: str) -> list[str]:
        """All values of an option that may be repeated."""
        return self.options.get(name, [])


def parse(words: Sequence[str], table: Iterable[Option], command: str) -> Parsed:
    """Read the options at the front of `words`."""
    known = {f"--{option.name}": option for option in table}
    known.update({f"-{option.short}": option for option in table if option.short})
    found: dict[str, list[str]] = {}
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return Parsed(found, tuple(words[at + 1 :]), True)
        if not word.startswith("-") or word == "-":
            break
        name, equals, value = word.partition("=")
        option = known.get(name)
        if option is None:
            raise UsageError(
                f"staddle {command} has no option {name}",
                fix=_nearest(name, known) or f"see `staddle {command} --help`",
            )
        at += 1
        if not option.value:
            if equals:
                raise UsageError(f"{name} takes no value", fix=f"write {name} alone")
        elif not equals:
            if at == len(words):
                raise UsageError(f"{name} needs a value", fix=f"write {name} {option.value}")
            value = words[at]
            at += 1
        if option.name in found and not option.many:
            raise UsageError(f"--{option.name} is given twice", why="only one value can hold")
        found.setdefault(option.name, []).append(value)
    return Parsed(found, tuple(words[at:]), False)


def parse_among(words: Sequence[str], table: Sequence[Option], command: str) -> Parsed:
    """Read options wherever they stand before a `--`, for commands that wrap no other one."""
    found: dict[str, list[str]] = {}
    others: list[str] = []
    many = {option.name for option in table if option.many}
    rest: Sequence[str] = words
    while True:
        part = parse(rest, table, command)
        for name, values in part.options.items():
            if name in found and name not in many:
                raise UsageError(f"--{name} is given twice", why="only one value can hold")
            found.setdefault(name, []).extend(values)
        if part.dashed or not part.words:
            return Parsed(found, (*others, *part.words), part.dashed)
        others.append(part.words[0])
        rest = part.words[1:]


def _nearest(name: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]}?" if close else ""


def help_rows(table: Iterable[Option]) -> str:
    """The options, one a line, for --help."""
    rows = []
    for option in table:
        spelled = f"--{option.name}" + (f" {option.value}" if option.value else "")
        rows.append((f"-{option.short}, {spelled}" if option.short else f"    {spelled}", option.help))
    width = max(len(left) for left, _ in rows)
    return "\n".join(f"  {left:<{width}}  {help}" for left, help in rows)
