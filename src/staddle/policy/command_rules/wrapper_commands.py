"""Following a command line to what it really starts: through `env`, `sudo`, `xargs`, `sh -c`, `find -exec`.

Programs that run another one are a table: which options take a value, and where the other stands. Nothing is
run and no file is looked at. Where only the run would show what is started, the answer is `Unclear`, never a
guess.
"""

from __future__ import annotations

from ..._value import Value
from .prefixes import PREFIXES, Prefix
from .shell_parser import UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .shell_parser import Word

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "ksh93", "mksh", "rbash"})


_WRITE_OUT = "write the script out in single quotes, and pass what varies as its arguments"


class Invocation(Value):
    """A program that would be started. `through` says that it only starts what comes after it."""

    words: tuple[Word, ...]
    through: bool = False


class NestedScript(Value):
    """A script that would be run, to be read in its turn."""

    text: str


class Unclear(Value):
    """Something would be run, and only the run shows what."""

    why: str
    fix: str = "name the program itself; if a variable contains its directory, quote it"


if TYPE_CHECKING:
    Steps = Iterator[Invocation | NestedScript | Unclear]


def name_of(word: Word) -> str | None:
    """The program's name without its directory; None if it is not known before."""
    if word is None:
        return None
    name = word.rpartition("/")[2]
    return None if UNKNOWN in name else name


def unfold(words: Sequence[Word], reads: Word = None, *, alone: bool = False) -> Steps:
    """The programs that `words` start, outermost first. `reads` is the text on stdin; `alone`: there is none.

    `words` may end in None for arguments that are added later, as xargs does.
    """
    while words:
        name = name_of(words[0])
        if name is None:
            yield Unclear("the program is only known when it runs")
            return
        rest = list(words[1:])
        if name in SHELLS:
            yield from _shell(words, rest, reads, alone)
            return
        if name in _SPECIAL:
            yield from _SPECIAL[name](words, rest, reads)
            return
        prefix = PREFIXES.get(name)
        if name.startswith(("ld-linux", "ld-musl")):
            prefix = Prefix("", ("library-path", "preload", "audit", "argv0"), plain=False)
        inner = None if prefix is None else _after(prefix, rest)
        if prefix is None or not inner:
            yield Invocation(tuple(words))
            return
        yield Invocation(tuple(words), through=prefix.plain)
        words = inner


def _after(prefix: Prefix, rest: list[Word]) -> list[Word]:
    """The program and its arguments; empty if there is none; [None] if it cannot be found."""
    options, rest = _options(prefix, rest)
    if None in options:
        return [None]
    while prefix.assigns and rest and rest[0] is not None and "=" in rest[0]:
        rest = rest[1:]
    skipped, rest = rest[: prefix.operands], rest[prefix.operands :]
    if None in skipped or (rest and rest[0] is None):
        return [None]
    return rest


def _options(prefix: Prefix, rest: list[Word]) -> tuple[list[Word], list[Word]]:
    """(the options with their values, what follows them)."""
    at = 0
    while at < len(rest):
        word = rest[at]
        if word is None:
            return [None], []
        if word == "--":
            return rest[:at], rest[at + 1 :]
        if not word.startswith("-") or word == "-":
            # A single dash is `env -`, and for the rest an operand.
            if word == "-" and prefix.assigns:
                at += 1
                continue
            break
        at += 1
        if word.startswith("--"):
            name, given, _ = word[2:].partition("=")
            at += not given and any(long == name or long.startswith(name) for long in prefix.long)
        else:
            taking = next((place for place, char in enumerate(word[1:], 1) if char in prefix.short), None)
            at += taking == len(word) - 1  # its value is the next word, unless it is glued on
    return rest[:at], rest[at:]


def _shell(words: Sequence[Word], rest: list[Word], reads: Word, alone: bool) -> Steps:
    """`sh -c TEXT`, `sh FILE`, or a script on its input."""
    at, takes_text, takes_input = 0, False, False
    while at < len(rest):
        word = rest[at]
        if word is None:
            yield Invocation(tuple(words))
            yield Unclear("what the shell is to do is only known when it runs", _WRITE_OUT)
            return
        if len(word) < 2 or word[0] not in "-+" or word == "--":
            at += word in ("-", "--")
            break
        at += 1
        if word.startswith("--"):
            at += word in ("--rcfile", "--init-file")
        else:
            takes_text |= word[0] == "-" and "c" in word
            takes_input |= word[0] == "-" and "s" in word
            at += word.count("o") + word.count("O")
    operand = rest[at] if at < len(rest) else ""
    if takes_text:
        yield Invocation(tuple(words), through=True)
        yield from _text(operand)
    elif at < len(rest) and not takes_input:
        yield Invocation(tuple(words))
        if operand is None or operand in ("/dev/stdin", "/proc/self/fd/0", "/dev/fd/0"):
            yield from _text(reads if operand is not None else None)
    elif alone:
        yield Invocation(tuple(words))
    else:
        yield Invocation(tuple(words), through=reads is not None)
        yield from _text(reads)


def _text(text: Word) -> Iterator[NestedScript | Unclear]:
    if text is None:
        yield Unclear("the script is only known when it runs", _WRITE_OUT)
        return
    if UNKNOWN in text:
        yield Unclear("parts of the script are only known when it runs", _WRITE_OUT)
    # In place of the unknown part something that is unknown in the script as well.
    yield NestedScript(text.replace(UNKNOWN, "${_}"))


def _joined(words: Sequence[Word]) -> Word:
    return None if None in words else " ".join(word or "" for word in words)


def _eval(words: Sequence[Word], rest: list[Word], _: Word) -> Steps:
    yield Invocation(tuple(words), through=True)
    yield from _text(_joined(rest[1:] if rest[:1] == ["--"] else rest))


def _trap(words: Sequence[Word], rest: list[Word], _: Word) -> Steps:
    yield Invocation(tuple(words), through=True)
    rest = rest[1:] if rest[:1] == ["--"] else rest
    if len(rest) > 1 and rest[0] not in ("-", "-l", "-p", "-P"):
        yield from _text(rest[0])


def _alias(words: Sequence[Word], rest: list[Word], _: Word) -> Steps:
    yield Invocation(tuple(words), through=True)
    for word in rest:
        if word is None or "=" in word:
            yield from _text(None if word is None else word.partition("=")[2])


def _command(words: Sequence[Word], rest: list[Word], reads: Word) -> Steps:
    """`command -v git` only asks where it is."""
    options, inner = _options(PREFIXES["command"], rest)
    asks = any(word is not None and word[:1] == "-" and set(word) & {"v", "V"} for word in options)
    yield Invocation(tuple(words), through=True)
    if not asks:
        yield from unfold([None] if None in options else inner, reads)


def _env(words: Sequence[Word], rest: list[Word], reads: Word) -> Steps:
    """`env`, and `env -S 'git push'`, whose value is split into the words of a command."""
    prefix = PREFIXES["env"]
    options, _ = _options(prefix, rest)
    for place, word in enumerate(options):
        if word is None:
            break
        short = word.startswith("-") and not word.startswith("--") and "S" in word
        if not short and not (word.startswith("--s") and "--split-string".startswith(word.partition("=")[0])):
            continue
        glued = word.partition("S")[2] if short else word.partition("=")[2]
        text: Word = glued or (rest[place + 1] if place + 1 < len(rest) else "")
        more = rest[place + (1 if glued else 2) :]
        yield Invocation(tuple(words), through=True)
        if text is None or any(sign in text for sign in (UNKNOWN, "\\", "$", "'", '"')):
            yield Unclear("what env -S makes of its text is not followed", "give it plain words")
        else:
            yield from unfold(["env", *text.split(), *more], reads)
        return
    inner = _after(prefix, rest)
    yield Invocation(tuple(words), through=bool(inner))
    yield from unfold(inner, reads)


def _xargs(words: Sequence[Word], rest: list[Word], _: Word) -> Steps:
    """Its input becomes arguments, at the end or in place of a mark."""
    prefix = PREFIXES["xargs"]
    options, _rest = _options(prefix, rest)
    inner = _after(prefix, rest)
    yield Invocation(tuple(words), through=True)
    if inner == [None]:
        yield Unclear("the program is only known when it runs")
        return
    mark = _mark(options)
    if mark is None:
        inner = [*inner, None] if inner else []
    else:
        inner = [word.replace(mark, UNKNOWN) if word is not None else None for word in inner]
    # The input of the program is /dev/null, or the terminal.
    yield from unfold(inner, alone=True)


def _mark(options: list[Word]) -> str | None:
    """The placeholder for the input in the words of xargs -I, if there is one."""
    found: Word = None
    for place, word in enumerate(options):
        if word is None or not word.startswith("-"):
            continue
        if word.startswith("--"):
            name, given, value = word.partition("=")
            if name == "--replace":
                found = value if given else "{}"
        elif "I" in word:
            found = word.partition("I")[2] or (options[place + 1] if place + 1 < len(options) else None)
        elif "i" in word:
            found = word.partition("i")[2] or "{}"
    return found or None


def _find(words: Sequence[Word], rest: list[Word], _: Word) -> Steps:
    """Each -exec up to its `;` or `+`."""
    yield Invocation(tuple(words))
    at = 0
    while at < len(rest):
        if rest[at] in ("-exec", "-execdir", "-ok", "-okdir"):
            end = next((place for place in range(at, len(rest)) if rest[place] in (";", "+")), len(rest))
            inner = [word.replace("{}", UNKNOWN) if word is not None else None for word in rest[at + 1 : end]]
            yield from unfold(inner, alone=True)
            at = end
        at += 1


def _su(words: Sequence[Word], rest: list[Word], reads: Word) -> Steps:
    """`su -c TEXT`, `runuser -u USER -- PROGRAM`, else a shell on its input."""
    yield Invocation(tuple(words))
    if name_of(words[0]) == "runuser" and any(word in ("-u", "--user") for word in rest):
        options = Prefix("ugG", ("user", "group", "supp-group"))
        yield from unfold(_after(options, rest), reads)
        return
    yield from _text(_option(rest, "c", "command") if _has(rest, "c", "command") else reads)


def _script(words: Sequence[Word], rest: list[Word], _: Word) -> Steps:
    yield Invocation(tuple(words))
    if _has(rest, "c", "command"):
        yield from _text(_option(rest, "c", "command"))


def _watch(words: Sequence[Word], rest: list[Word], _: Word) -> Steps:
    yield Invocation(tuple(words), through=True)
    inner = _after(Prefix("nq", ("interval", "equexit")), rest)
    yield from _text(_joined(inner))


def _exec(words: Sequence[Word], rest: list[Word], reads: Word) -> Steps:
    """`exec git push`; without a program it only redirects, which starts nothing."""
    inner = _after(PREFIXES["exec"], rest)
    if inner:
        yield Invocation(tuple(words), through=True)
        yield from unfold(inner, reads)


def _bwrap(words: Sequence[Word], rest: list[Word], reads: Word) -> Steps:
    """Its options have up to two values, or their values are in a descriptor."""
    yield Invocation(tuple(words))
    at = 0
    while at < len(rest):
        word = rest[at]
        if word is None or word == "--args":
            yield Unclear("the program is only known when it runs")
            return
        if not word.startswith("-") or word == "--":
            break
        name = word.lstrip("-").removesuffix("-try")
        at += 1 if name in _BWRAP_NONE or name.startswith("unshare-") else 3 if name in _BWRAP_TWO else 2
    inner = rest[at + 1 :] if rest[at : at + 1] == ["--"] else rest[at:]
    yield from unfold(inner, reads)


_BWRAP_NONE = frozenset(
    {
        *("share-net", "die-with-parent", "new-session", "clearenv", "as-pid-1", "disable-userns", "help"),
        *("version", "assert-userns-disabled", "unshare-all"),
    }
)
_BWRAP_TWO = frozenset(
    {
        *("bind", "dev-bind", "ro-bind", "bind-fd", "ro-bind-fd", "symlink", "file", "bind-data"),
        *("ro-bind-data", "setenv", "chmod", "overlay"),
    }
)


def _flock(words: Sequence[Word], rest: list[Word], reads: Word) -> Steps:
    inner = _after(PREFIXES["flock"], rest)
    yield Invocation(tuple(words), through=bool(inner))
    if inner[:1] in (["-c"], ["--command"]):
        yield from _text(inner[1] if len(inner) > 1 else "")
    else:
        yield from unfold(inner, reads)


def _has(rest: list[Word], short: str, long: str) -> bool:
    return any(word is None or _is(word, short, long) for word in rest)


def _is(word: str, short: str, long: str) -> bool:
    if word.startswith("--"):
        return word[2:].partition("=")[0] == long
    return word.startswith("-") and short in word


def _option(rest: list[Word], short: str, long: str) -> Word:
    """The value of an option, wherever it stands."""
    for place, word in enumerate(rest):
        if word is None:
            return None
        if _is(word, short, long):
            glued = word.partition("=")[2] if word.startswith("--") else word.partition(short)[2]
            return glued or (rest[place + 1] if place + 1 < len(rest) else "")
    return ""


_SPECIAL = {
    "alias": _alias,
    "bwrap": _bwrap,
    "command": _command,
    "env": _env,
    "eval": _eval,
    "exec": _exec,
    "find": _find,
    "flock": _flock,
    "runuser": _su,
    "script": _script,
    "su": _su,
    "trap": _trap,
    "watch": _watch,
    "xargs": _xargs,
}
