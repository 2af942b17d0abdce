"""State of a shell: how to request it, parse it, and replay it in a replacement shell. Pure.

A dump is bash's own output about its state, in sections. It is kept unchanged. It is parsed only when values
are needed, and turned into commands only when a shell must be replaced.
"""

from __future__ import annotations

from functools import lru_cache

from .._value import Value
from .hazards import only_runs_programs
from .quoting import Unreadable, WordReader, quoted, statements

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: Sections in order, and the commands that print them. Each command has its own redirection, so that output
#: of a DEBUG trap goes elsewhere.
_SECTIONS = (
    ("variables", b"declare -p"),
    ("functions", b"declare -f"),
    ("names", b"declare -F"),
    ("traps", b"trap -p"),
    ("aliases", b"alias -p"),
    ("umask", b"umask -p"),
    ("positional", b"printf ' %q' $# \"$@\""),
    ("directories", b"printf ' %q' \"${DIRSTACK[@]-}\""),
    ("disabled", b"enable -n"),
)
#: Variables that bash sets itself in every shell.
_ITS_OWN = frozenset(
    b"BASHOPTS SHELLOPTS EUID UID PPID BASHPID BASH BASH_VERSION BASH_VERSINFO BASH_ARGC BASH_ARGV BASH_ARGV0"
    b" BASH_SOURCE BASH_LINENO BASH_ALIASES BASH_CMDS BASH_COMMAND BASH_SUBSHELL BASH_EXECUTION_STRING"
    b" FUNCNAME PIPESTATUS DIRSTACK GROUPS _ LINENO HISTCMD PWD OLDPWD RANDOM SRANDOM EPOCHSECONDS"
    b" EPOCHREALTIME COMP_WORDBREAKS".split()
)
#: Variables that may end a shell before its next command.
_ENDING = frozenset((b"PROMPT_COMMAND", b"TMOUT"))
#: Variables that are expanded before or after a command, or in a trace.
_PROMPTS = frozenset((b"PS0", b"PS1", b"PS2", b"PS4"))
#: Variables that may differ between two dumps of an otherwise unchanged shell.
_VARYING = _ITS_OWN - {b"BASHOPTS", b"SHELLOPTS", b"OLDPWD"} | {b"SECONDS"}
#: Option without which some function bodies cannot be parsed.
_SYNTAX = b"extglob"
#: Prefixes that reach a builtin although a function has its name.
BUILTIN_PREFIXES = (b"\\builtin ", b"\\command ", b"\\")


class State(Value):
    """State of a shell between commands, as text; bytes that are not UTF-8 are surrogates.

    A variable is a str, an indexed array (a dict by int), or an associative array (a dict by str).
    """

    env: dict[str, str]
    variables: dict[str, str | dict[int, str] | dict[str, str]]
    cwd: str
    oldpwd: str | None
    functions: dict[str, str]
    aliases: dict[str, str]
    options: tuple[str, ...]
    shopts: tuple[str, ...]
    traps: dict[str, str]
    umask: int
    positional: tuple[str, ...]
    readonly: tuple[str, ...]


def question(nonce: bytes, place: bytes, word: bytes, *, together: bool = False) -> bytes:
    """Return the text that makes a shell print its state to the pipe at `place`.

    `together` uses one redirection, a third faster, but output of traps would mix with it.
    """
    parts, to_place = [], b"" if together else b" >" + place
    for _, command in _SECTIONS:
        parts.append(word + command + to_place + b" || _=\n")
        parts.append(b"%bprintf '\\n%%s\\n' %b.%b || _=\n" % (word, nonce, to_place))
    return b"{ %b} >%b || _=\n" % (b"".join(parts), place) if together else b"".join(parts)


def debug_question(nonce: bytes, place: bytes, word: bytes) -> bytes:
    """Return the lines that print the DEBUG trap before that text: a sourced text does not see it."""
    said = b"%btrap -p DEBUG >%b || _=\n%bprintf '\\n%%s\\n' %b, >%b || _=\n"
    return said % (word, place, word, nonce, place)


class Dump:
    """State of a shell as bash printed it."""

    def __init__(self, sections: dict[str, bytes], debug: bytes = b"") -> None:
        self._sections = sections
        self._declared: list[bytes] | None = None
        self._compared: tuple[object, ...] | None = None
        self._parsed: State | None = None
        self._does_more: bool | None = None
        #: The last text of `replay`, with the dump that it is for.
        self._replayed: tuple[Dump | None, bytes] | None = None
        #: Statement and action of each trap, by the name of its signal.
        self._traps = {
            words[3]: (statement, words[2])
            for statement in statements(sections["traps"])
            if len(words := _words(statement)) == 4
        }
        self.exit_trap = self.trap(b"EXIT")
        start = debug.rfind(b"trap -- ")
        self._debug = debug[start:] if start >= 0 and debug.endswith(b" DEBUG") else b""
        self.debug_trap = _words(self._debug)[2] if self._debug else self.trap(b"DEBUG")

    def pieces(self) -> dict[str, bytes]:
        """Return it as pieces, for a file; `of_pieces` reads them."""
        return {**self._sections, "debug": self._debug}

    @classmethod
    def of_pieces(cls, pieces: dict[str, bytes]) -> Dump:
        """Build a dump from saved pieces. Raises ValueError if they are none."""
        names = [name for name, _ in _SECTIONS]
        if set(pieces) != {*names, "debug"}:
            raise ValueError("it is not what a shell reports")
        return cls({name: pieces[name] for name in names}, pieces["debug"])

    @classmethod
    def find(cls, nonce: bytes, data: bytes) -> Dump | None:
        """Find the dump in the pipe's output; None if it is incomplete."""
        debug, _, data = data.rpartition(b"\n" + nonce + b",\n")
        pieces = data.split(b"\n" + nonce + b".\n")
        if len(pieces) != len(_SECTIONS) + 1:
            return None
        # The shell's own messages may precede the first section.
        start = pieces[0].find(b"declare -")
        pieces[0] = pieces[0][start:] if start >= 0 else b""
        named = {name: piece for (name, _), piece in zip(_SECTIONS, pieces, strict=False)}
        try:
            return cls(named, debug.rstrip(b"\n"))
        except ValueError:
            return None  # not from bash

    def trap(self, name: bytes) -> bytes | None:
        """Return the action of the trap on this signal, or None."""
        found = self._traps.get(name)
        return None if found is None else found[1]

    def is_kept_by(self, text: bytes) -> bool:
        """Whether running `text` leaves a shell with this state unchanged."""
        if not only_runs_programs(text, self.functions()):
            return False
        if self._does_more is None:
            self._does_more = self.may_intervene() or self._prompts_do_more()
        return not self._does_more

    def _prompts_do_more(self) -> bool:
        """Whether a prompt may run more than a plain command itself."""
        for statement in self._variables():
            name, _, value = statement.split(b" ", 2)[-1].partition(b"=")
            if name == b"PROMPT_COMMAND" and value.strip(b"\"'()"):
                return True
            if name in _PROMPTS and (b"$" in value or b"`" in value):
                return True
        return False

    def may_intervene(self) -> bool:
        """Whether an alias or a trap may run between the commands of a text."""
        found = self._sections["aliases"] + self._sections["traps"]
        return self.debug_trap is not None or bool(found.strip())

    def functions(self) -> frozenset[bytes]:
        """Return the names of all functions."""
        return frozenset(line.split()[-1] for line in self._sections["names"].splitlines() if line.strip())

    def disabled(self) -> frozenset[bytes]:
        """Return the disabled builtins."""
        return frozenset(line.split()[-1] for line in self._sections["disabled"].splitlines() if line.strip())

    def without_trap(self, name: bytes) -> None:
        """Remove this trap: it was ours."""
        gone = self._traps.pop(name, None)
        if gone is not None:
            kept = [statement for statement in statements(self._sections["traps"]) if statement != gone[0]]
            self._sections["traps"] = b"\n".join(kept)
        self._compared = self._does_more = None
        self.exit_trap = self.trap(b"EXIT")

    def declaration(self, name: str, prefix: bytes) -> bytes:
        """Return the line that restores a variable; empty if there is none, or it is read-only."""
        for statement in self._variables():
            found, attributes, _ = _variable(statement)
            if found == name and "r" not in attributes:
                is_array = "a" in attributes.lower()
                return b"%b%b\n" % (b"" if is_array else prefix, statement)  # `builtin` parses no array
        return b""

    def without_variables(self, given: Mapping[str, str]) -> tuple[Dump, tuple[str, ...]]:
        """Remove exported variables that have the value in `given`. Returns also their names."""
        kept, gone = [], []
        for statement in self._variables():
            name, attributes, value = _variable(statement)
            if attributes == "x" and name in given and value == given[name]:
                gone.append(name)
            else:
                kept.append(statement)
        return self._with_variables(kept), tuple(gone)

    def variable_names(self) -> list[str]:
        """Return the names of its variables."""
        return [_variable(statement)[0] for statement in self._variables()]

    def without_names(self, names: Collection[str]) -> Dump:
        """Return the dump without the variables of these names."""
        return self._with_variables([one for one in self._variables() if _variable(one)[0] not in names])

    def with_names_of(self, other: Dump, names: Collection[str]) -> Dump:
        """Return the dump with the variables of these names from `other`."""
        theirs = [one for one in other._variables() if _variable(one)[0] in names]
        return self._with_variables([*self.without_names(names)._variables(), *theirs])

    def with_exported(self, given: Mapping[str, str]) -> Dump:
        """Return the dump with these exported variables."""
        added = [
            b"declare -x %b=%b" % (name.encode(), quoted(value.encode("utf-8", "surrogateescape")))
            for name, value in given.items()
        ]
        return self._with_variables([*self.without_names(given)._variables(), *added])

    def without_options(self, names: Collection[bytes]) -> Dump:
        """Return the dump with these options of `set` off."""
        found = []
        for statement in self._variables():
            if _variable(statement)[0] == "SHELLOPTS":
                head, _, value = statement.partition(b"=")
                options = [one for one in value.strip(b'"').split(b":") if one not in names]
                found.append(head + b'="' + b":".join(options) + b'"')
            else:
                found.append(statement)
        return self._with_variables(found)

    def moved(self, before: bytes, after: bytes) -> Dump:
        """Return the dump with the directories at and below `before` at `after`."""

        def other(place: bytes) -> bytes:
            inside = place == before or place.startswith(before + b"/")
            return after + place[len(before) :] if inside else place

        stack = b"".join(b" " + quoted(other(place)) for place in _words(self._sections["directories"]))
        kept = []
        for statement in self._variables():
            name, _, value = _variable(statement)
            if name in ("PWD", "OLDPWD") and isinstance(value, str):
                place = other(value.encode("utf-8", "surrogateescape"))
                kept.append(statement.partition(b"=")[0] + b"=" + quoted(place))
            else:
                kept.append(statement)
        return Dump({**self._sections, "directories": stack, "variables": b"\n".join(kept)}, self._debug)

    def _with_variables(self, variables: list[bytes]) -> Dump:
        return Dump({**self._sections, "variables": b"\n".join(variables)}, self._debug)

    # ---------------------------------------------------------------- as values

    def state(self) -> State:
        """Parse it once; the caller may change the returned value."""
        if self._parsed is None:
            self._parsed = self._parse()
        known = self._parsed
        variables = {n: v if isinstance(v, str) else dict(v) for n, v in known.variables.items()}
        return known.replace(
            env=dict(known.env),
            variables=variables,
            functions=dict(known.functions),
            aliases=dict(known.aliases),
            traps=dict(known.traps),
        )

    def _parse(self) -> State:
        flags: dict[str, str] = {}
        values: dict[str, str | dict[int, str] | dict[str, str]] = {}
        for statement in self._variables():
            name, attributes, value = _variable(statement)
            if name:
                flags[name] = attributes
                if value is not None:
                    values[name] = value
        env = {n: v for n, v in values.items() if isinstance(v, str) and "x" in flags[n]}
        shown = {n: v for n, v in values.items() if n.encode() not in _ITS_OWN - {b"PWD", b"OLDPWD"}}
        oldpwd = values.get("OLDPWD")
        return State(
            env=env,
            variables=shown,
            cwd=str(values.get("PWD", "")),
            oldpwd=oldpwd if isinstance(oldpwd, str) else None,
            functions=self._bodies(),
            aliases=dict(
                _text(_words(s)[-1]).split("=", 1) for s in statements(self._sections["aliases"]) if b"=" in s
            ),
            options=_listed(values.get("SHELLOPTS")),
            shopts=_listed(values.get("BASHOPTS")),
            traps={_text(name): _text(action) for name, (_, action) in self._traps.items()},
            umask=int(self._sections["umask"].split()[-1], 8),
            positional=tuple(map(_text, self._positional())),
            readonly=tuple(
                n for n, letters in flags.items() if "r" in letters and n.encode() not in _ITS_OWN
            ),
        )

    def _positional(self) -> list[bytes]:
        return _words(self._sections["positional"])[1:]  # without their number

    def _bodies(self) -> dict[str, str]:
        """Return functions by name. Each begins in column one with its name, in the order of `names`."""
        text = self._sections["functions"]
        found: dict[str, str] = {}
        previous, start = b"", 0
        for line in self._sections["names"].splitlines():
            name = line.split()[-1] if line.strip() else b""
            at = text.find(name + b" () \n", start)
            if at < 0 or not name:
                continue
            if previous:
                found[_text(previous)] = _text(text[start:at].rstrip(b"\n"))
            previous, start = name, at
        if previous:
            found[_text(previous)] = _text(text[start:].rstrip(b"\n"))
        return found

    # ---------------------------------------------------------------- as commands

    def equals(self, other: Dump) -> bool:
        """Whether both states are the same, except for the directory."""
        if self is other:
            return True
        ours, theirs = self._variables(), other._variables()
        if len(ours) == len(theirs):  # usually the same, so only the few that differ are examined
            pairs = [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]]
            if all(_name(one) in _VARYING and _name(two) in _VARYING for one, two in pairs):
                return self._others() == other._others()
        return self.key() == other.key()

    def key(self) -> tuple[object, ...]:
        """Return the key that compares two states. It is computed once."""
        if self._compared is None:
            variables = [one for one in self._variables() if _name(one) not in _VARYING]
            self._compared = (variables, *self._others())
        return self._compared

    def _others(self) -> tuple[object, ...]:
        """Return all other compared parts: of the directories, only the stack below the present one."""
        others = {k: v for k, v in self._sections.items() if k not in ("variables", "directories")}
        return others, self._debug, _words(self._sections["directories"])[1:]

    def replay(self, usual: Dump | None, *, careful: bool = False) -> bytes:
        """Return the text that recreates this state in a new shell, whose dump is `usual`.

        With `careful` it omits what may end a shell by itself: traps, options of `set`, and some variables.
        """
        if careful:
            return self._replay(usual, careful=True)
        if self._replayed is None or self._replayed[0] is not usual:
            self._replayed = usual, self._replay(usual, careful=False)
        return self._replayed[1]

    def _replay(self, usual: Dump | None, *, careful: bool) -> bytes:
        out = []
        names = self._names()
        for statement in self._variables():
            if statement.startswith(b"declare -") and _name(statement) not in (
                _ENDING | _ITS_OWN if careful else _ITS_OWN
            ):
                out.append(statement)  # not with `builtin`, which could not parse an array
        gone = sorted((usual._names() if usual else set()) - names - _ITS_OWN)
        if gone:
            out.insert(0, b"\\unset " + b" ".join(gone))
        out += self._places()
        out.append(b"\\set --" + b"".join(b" " + quoted(word) for word in self._positional()))
        out.append(b"\\builtin " + self._sections["umask"].strip())
        on, off = self._switched(usual, b"BASHOPTS")
        if _SYNTAX in on:
            out.append(b"\\builtin shopt -s " + _SYNTAX)
        out.append(self._sections["functions"])
        out += [
            b"\\builtin " + line
            for line in self._sections["names"].splitlines()
            if line.split()[1:2] != [b"-f"] and line
        ]
        out += [b"\\builtin " + statement for statement in statements(self._sections["aliases"]) if statement]
        out += [b"\\builtin " + line for line in self._sections["disabled"].splitlines() if line]
        out += [b"\\builtin shopt -s " + name for name in on]
        out += [b"\\builtin shopt -u " + name for name in off]
        on, off = self._switched(usual, b"SHELLOPTS")
        switches = b" ".join([*(b"-o " + name for name in on), *(b"+o " + name for name in off)])
        traps = [b"\\builtin " + statement for statement in statements(self._sections["traps"]) if statement]
        if self._debug:
            traps.append(b"\\builtin " + self._debug)
        # From one string: what it switches on must not see the rest of this.
        if not careful:
            out.append(
                b"\\builtin eval " + quoted(b"\n".join([*traps, b"\\set " + switches if switches else b":"]))
            )
        return b"\n".join(out) + b"\n"

    def _variables(self) -> list[bytes]:
        """Return the statements of `declare -p`."""
        if self._declared is None:
            self._declared = list(statements(self._sections["variables"]))
        return self._declared

    def _names(self) -> set[bytes]:
        """Return the names of all variables."""
        return {_name(statement) for statement in self._variables() if statement}

    def _places(self) -> list[bytes]:
        """Return to its directory or the nearest existing one above, with its directory stack."""
        values = {}
        for statement in self._variables():
            name, _, value = _variable(statement)
            if name in ("PWD", "OLDPWD"):
                values[name] = value if isinstance(value, str) else None
        out = []
        stack = _words(self._sections["directories"])[1:]
        for place in reversed(stack):
            if not place.startswith(b"~"):
                out.append(b"\\builtin cd -- %b 2>/dev/null && \\builtin pushd . >/dev/null" % quoted(place))
        where = (values.get("PWD") or "/").encode("utf-8", "surrogateescape")
        tries = []
        while where:
            tries.append(b"\\builtin cd -- %b 2>/dev/null" % quoted(where))
            where = where.rpartition(b"/")[0]
        out.append(b" || ".join([*tries, b"\\builtin cd /"]))
        old = values.get("OLDPWD")
        out.append(
            b"\\unset OLDPWD" if old is None else b"OLDPWD=" + quoted(old.encode("utf-8", "surrogateescape"))
        )
        return out

    def _switched(self, usual: Dump | None, name: bytes) -> tuple[list[bytes], list[bytes]]:
        """Return the options that are on here but not usually, and the reverse."""
        now, then = self._options(name), usual._options(name) if usual else self._options(name)
        # Options that cannot be set, or that end the shell.
        fixed = {b"restricted_shell", b"login_shell", b"onecmd"}
        return sorted(now - then - fixed), sorted(then - now - fixed)

    def _options(self, name: bytes) -> set[bytes]:
        for statement in self._variables():
            if _name(statement) == name:
                return set(_listed_bytes(_variable(statement)[2]))
        return set()


def variables(
    env: Mapping[str, str | None], known: Dump | None, prefix: bytes
) -> tuple[dict[str, str], bytes, bytes]:
    """Return variables for one command: those to set, lines before it that unset, lines after it."""
    unset = [name for name, value in env.items() if value is None]
    before = b"".join(b"\\unset -v %b 2>/dev/null\n" % name.encode() for name in unset)
    after = b"" if known is None else b"".join(known.declaration(name, prefix) for name in unset)
    return {name: value for name, value in env.items() if value is not None}, before, after


def _name(statement: bytes) -> bytes:
    """Return the name in a line of `declare -p`."""
    return statement.split(b" ", 2)[-1].partition(b"=")[0]


def _variable(statement: bytes) -> tuple[str, str, str | dict[int, str] | dict[str, str] | None]:
    """Return the name, attributes and value in a line of `declare -p`."""
    if len(statement) > _LONGEST_KNOWN:
        return _read_variable(statement)
    return _known_variable(statement)


def _read_variable(statement: bytes) -> tuple[str, str, str | dict[int, str] | dict[str, str] | None]:
    reader = WordReader(statement)
    if not reader.skip(b"declare -"):
        return "", "", None
    attributes = reader.word(b" ").decode()
    reader.skip(b" ")
    name = _text(reader.word(b"="))
    if not reader.skip(b"="):
        return name, attributes, None
    try:
        if "a" not in attributes and "A" not in attributes:
            return name, attributes, _text(reader.word(b"\n"))
        return name, attributes, _array(reader, "A" in attributes)
    except Unreadable:
        return name, attributes, None


#: Longest line to cache: most lines are the same after a command as before it.
_LONGEST_KNOWN = 1024
_known_variable = lru_cache(maxsize=512)(_read_variable)


def _array(reader: WordReader, associative: bool) -> dict[int, str] | dict[str, str]:
    found: dict[str, str] = {}
    reader.skip(b"'")  # bash 4.4 and older quote an empty array again
    reader.skip(b"(")
    while reader.skip(b" ") or reader.peek() == ord("["):
        if not reader.skip(b"["):
            break
        key = _text(reader.word(b"]"))
        reader.skip(b"]=")
        found[key] = _text(reader.word(b" )"))
    return found if associative else {int(key): value for key, value in found.items()}


def _words(statement: bytes) -> list[bytes]:
    reader, found = WordReader(statement), []
    while reader.at < len(statement):
        if not reader.skip(b" ") and not reader.skip(b"\n"):
            found.append(reader.word(b" \n"))
    return found


def _listed(value: object) -> tuple[str, ...]:
    return tuple(value.split(":")) if isinstance(value, str) and value else ()


def _listed_bytes(value: object) -> list[bytes]:
    return [name.encode() for name in _listed(value)]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


class SavedShell(Value):
    """State of a shell at one moment."""

    dump: Dump | None
    status: int
    cwd: bytes
