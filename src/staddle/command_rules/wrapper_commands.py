"""Follow a command line through programs that run another program, such as `env` and `sudo`.

`WRAPPERS` lists these programs; every other program is a plain command. This module runs nothing and reads no
file. If the program is only known at run time, the result is `Unclear`, never a guess.
"""

from __future__ import annotations

from .._value import Value
from ..errors import CommandNotUnderstood
from .shell_parser import UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .shell_parser import Word

SHELLS = frozenset({"sh", "bash", "dash"})
#: Maximum number of nested wrappers.
_MOST_WRAPPERS = 64
_WRITE_OUT = "write the script out in single quotes, and pass what varies as its arguments"


class Wrapper(Value):
    """The arguments of a program that runs another program.

    `takes` lists the options with a value. `operands` counts the words between the options and the program. A
    `plain` wrapper only changes how the program runs, so an allow list need not name it.
    """

    takes: tuple[str, ...] = ()
    operands: int = 0
    assigns: bool = False
    plain: bool = True


#: `find` is not in the table, because its -exec may be anywhere.
WRAPPERS: dict[str, Wrapper] = {
    "env": Wrapper(("u", "C", "S", "unset", "chdir", "split-string"), assigns=True),
    "sudo": Wrapper(
        (
            *"ughpCDRTUrta",
            *("user", "group", "host", "prompt", "close-from", "chdir", "chroot", "command-timeout"),
            *("other-user", "role", "type", "auth-type", "login-class"),
        ),
        assigns=True,
        plain=False,
    ),
    "nice": Wrapper(("n", "adjustment")),
    "nohup": Wrapper(),
    "timeout": Wrapper(("k", "s", "kill-after", "signal"), operands=1),
    "xargs": Wrapper(
        (
            *"IaLnPsdE",
            *("arg-file", "max-args", "max-procs", "max-chars", "delimiter", "process-slot-var"),
        )
    ),
    **dict.fromkeys(SHELLS, Wrapper(("o", "O", "rcfile", "init-file"))),
}


class Invocation(Value):
    """A program that would be started. `through` marks a program that only starts another one."""

    words: tuple[Word, ...]
    through: bool = False


class NestedScript(Value):
    """A script that would be run. The caller parses it."""

    text: str


class Unclear(Value):
    """A program would be started, but is only known at run time."""

    why: str = "the program is only known when it runs"
    fix: str = "name the program itself; if a variable contains its directory, quote it"


def name_of(word: Word) -> str | None:
    """Return the program's name without its directory, or None if it is only known at run time."""
    if word is None:
        return None
    name = word.rpartition("/")[2]
    return None if UNKNOWN in name else name


def unfold(words: Sequence[Word], *, stdin: bool = True) -> Iterator[Invocation | NestedScript | Unclear]:
    """Yield the programs that `words` start, outermost first. With `stdin`, a shell may read a script there.

    Raises CommandNotUnderstood if too many wrappers are nested.
    """
    todo = [list(words)]
    for _ in range(_MOST_WRAPPERS + 1):
        while todo and not todo[-1]:
            todo.pop()
        if not todo:
            return
        words = todo.pop()
        name = name_of(words[0])
        if name is None:
            yield Unclear()
        elif name == "find":
            yield Invocation(tuple(words))
            todo += reversed(list(_executed(words)))
        elif name not in WRAPPERS:
            yield Invocation(tuple(words))
        else:
            options, rest = _options(WRAPPERS[name], words[1:], "-+" if name in SHELLS else "-")
            if name in SHELLS:
                yield from _shell(words, options, rest, stdin)
                continue
            inner = _program(name, options, rest)
            yield Invocation(tuple(words), through=WRAPPERS[name].plain and (bool(inner) or name == "xargs"))
            todo.append(inner)
    raise CommandNotUnderstood(
        "the command runs too many programs through one another to be checked",
        why=f"env, sudo, find -exec and the like are followed {_MOST_WRAPPERS} times",
        fix="split it into separate commands",
    )


def _options(wrapper: Wrapper, words: list[Word], signs: str) -> tuple[dict[str, Word], list[Word]]:
    """Return the options by name with their values, and the words after them. None ends the options."""
    found: dict[str, Word] = {}
    at = 0
    while at < len(words):
        word = words[at]
        if word is None or word == "--" or not (word == "-" or (word[:1] in signs and len(word) > 1)):
            return found, words[at + (word == "--") :]
        at += 1
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            takes = next((long for long in wrapper.takes if len(long) > 1 and long.startswith(name)), "")
            name, follows = takes or name, bool(takes and not equals)
        else:
            place = next((p for p, char in enumerate(word) if p and char in wrapper.takes), len(word))
            found |= dict.fromkeys(word[1:place], "")
            name, value = word[place : place + 1], word[place + 1 :]
            follows = bool(name and not value)
        found[name] = words[at] if follows and at < len(words) else value
        at += follows
    return found, []


def _program(name: str, options: dict[str, Word], rest: list[Word]) -> list[Word]:
    """Return the program and its arguments, or an empty list if there is none."""
    if None in options.values() or (name == "env" and {"S", "split-string"} & set(options)):
        return [None]
    while WRAPPERS[name].assigns and rest and rest[0] is not None and "=" in rest[0]:
        rest = rest[1:]
    operands = WRAPPERS[name].operands
    if None in rest[:operands]:
        return [None]
    rest = rest[operands:]
    if name != "xargs" or not rest:
        return rest
    # xargs replaces a mark by its input, or appends its input to the arguments.
    mark = options.get("I") or options.get("replace") or ("{}" if {"i", "replace"} & set(options) else None)
    return [*rest, None] if mark is None else _replaced(rest, mark)


def _executed(words: list[Word]) -> Iterator[list[Word]]:
    """Yield each command of `find`: the words after -exec up to `;` or `+`."""
    starts = [at for at, word in enumerate(words, 1) if word in ("-exec", "-execdir", "-ok", "-okdir")]
    end = 0
    for start in starts:
        if start > end:  # else it is an argument of the previous command
            end = next((at for at in range(start, len(words)) if words[at] in (";", "+")), len(words))
            yield _replaced(words[start:end], "{}")


def _replaced(words: list[Word], mark: str) -> list[Word]:
    return [word if word is None else word.replace(mark, UNKNOWN) for word in words]


def _shell(
    words: list[Word], options: dict[str, Word], rest: list[Word], stdin: bool
) -> Iterator[Invocation | NestedScript | Unclear]:
    """Yield the results for `sh -c SCRIPT`, `sh FILE`, or a script on the shell's input."""
    script = rest[0] if rest else ""
    if "c" in options and script is not None:
        yield Invocation(tuple(words), through=True)
        if UNKNOWN in script:
            yield Unclear("parts of the script are only known when it runs", _WRITE_OUT)
        # Replace the unknown part by an expansion, which is also unknown in the nested script.
        yield NestedScript(script.replace(UNKNOWN, "${_}"))
        return
    yield Invocation(tuple(words))
    is_file = script not in ("", None, "/dev/stdin") and "s" not in options
    if not is_file and (stdin or rest):
        yield Unclear("the script is only known when it runs", _WRITE_OUT)
