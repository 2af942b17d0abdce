"""The grammar of writable_paths, and sets of such globs that stay fast when there are many.

  out.md            that file
  *.md  a/?[0-9]    wildcards within one segment
  docs/**           docs and all below it
  **/notes.txt      at any depth
  docs/**/*.md      below docs, at any depth

A glob that could point out of the working directory raises PathEscape, a malformed one PolicyError. No glob
is ever repaired into a wider one.

A `Segment` matches one path segment and backtracks only to the last `*`. That is enough: once a later `*` is
reached, an earlier one never needs to grow. The cost is at most the length of the name times that of the
pattern.

An `Automaton` matches many patterns at once. The states of all patterns are bits of one large integer:
reading a character moves all of them with the same few operations. A `*` is a state that may stay in place.
Nothing is tried twice, so no pattern and no text is worse than another. The names come from inside a sandbox:
against a thousand globs with 60 stars each, a name of 250 characters takes 3 us here and 67 ms with
`Segment.matches` for each glob.
"""

from __future__ import annotations

from ..errors import PathEscape, PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Final

STAR: Final = "*"
ANY: Final = "?"


class Class:
    """`[abc]`, `[a-z]`; with a leading `!` or `^`, every other character."""

    __slots__ = ("negated", "ranges")

    def __init__(self, negated: bool, ranges: tuple[tuple[str, str], ...]) -> None:
        self.negated, self.ranges = negated, ranges

    def holds(self, char: str) -> bool:
        """Whether `char` is in the class."""
        return any(low <= char <= high for low, high in self.ranges) is not self.negated


class Segment:
    """A parsed segment. `literal` is the name that it matches if it has no wildcard, else None."""

    __slots__ = ("literal", "text", "tokens")

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tuple(_tokens(text))
        plain = [token[1] if isinstance(token, tuple) else None for token in self.tokens]
        self.literal = None if None in plain else "".join(char or "" for char in plain)

    def matches(self, name: str) -> bool:
        """Whether this segment matches the whole of `name`."""
        if self.literal is not None:
            return name == self.literal
        tokens = self.tokens
        at = token_at = 0
        star = retry = -1
        while at < len(name):
            token = tokens[token_at] if token_at < len(tokens) else None
            if token == STAR:
                star, retry = token_at, at
                token_at += 1
            elif token is not None and _fits(token, name[at]):
                at, token_at = at + 1, token_at + 1
            elif star >= 0:
                retry += 1
                at, token_at = retry, star + 1
            else:
                return False
        return all(token == STAR for token in tokens[token_at:])


def _fits(token: object, char: str) -> bool:
    if isinstance(token, tuple):
        return bool(token[1] == char)
    return token.holds(char) if isinstance(token, Class) else token == ANY


def _tokens(text: str) -> list[object]:
    """("=", char) for a literal character, STAR, ANY, or a Class."""
    found: list[object] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "[":
            made, at = _class(text, at + 1)
            found.append(made)
            continue
        if char == "\\":
            at += 1
            if at == len(text):
                raise PolicyError(
                    f"{text!r} ends in a backslash",
                    why="there is nothing for it to quote",
                    fix="write \\\\ for a backslash in a name",
                )
            char = text[at]
            found.append(("=", char))
        else:
            found.append(char if char in (STAR, ANY) else ("=", char))
        at += 1
    return found


def _class(text: str, at: int) -> tuple[Class, int]:
    negated = text[at : at + 1] in ("!", "^")
    at += negated
    ranges: list[tuple[str, str]] = []
    while text[at : at + 1] != "]" or not ranges:
        low, at = _member(text, at)
        high = low
        if text[at : at + 1] == "-" and text[at + 1 : at + 2] != "]":
            high, at = _member(text, at + 1)
        if high < low:
            raise PolicyError(
                f"{text!r} has the range {low}-{high}",
                why="it is the wrong way round",
                fix="write the lower letter first",
            )
        ranges.append((low, high))
    return Class(negated, tuple(ranges)), at + 1


def _member(text: str, at: int) -> tuple[str, int]:
    quoted = text[at : at + 1] == "\\"
    at += quoted
    if at >= len(text) or (text[at] == "]" and not quoted):
        raise PolicyError(
            f"{text!r} has a [ without its ]",
            why="a class is not closed, or empty",
            fix="write \\[ for a plain one",
        )
    return text[at], at + 1


#: Most characters to cache. Names come from inside, and could use all of Unicode.
_REMEMBERED = 512


class Automaton:
    """Patterns as tokens of `Segment`; only a `/` matches a `/`."""

    def __init__(self, patterns: Iterable[Sequence[object]]) -> None:
        first: list[int] = []
        stays: list[int] = []
        last: list[int] = []
        anything: list[int] = []
        literal: dict[str, list[int]] = {}
        classes: dict[tuple[bool, object], tuple[Class, list[int]]] = {}
        place = -1
        for tokens in patterns:
            place += 1
            first.append(place)
            for token in tokens:
                if token == STAR:
                    stays.append(place)
                    continue
                place += 1
                if isinstance(token, tuple):
                    literal.setdefault(token[1], []).append(place)
                elif isinstance(token, Class):
                    classes.setdefault((token.negated, token.ranges), (token, []))[1].append(place)
                else:
                    assert token == ANY  # noqa: S101 - this is a bug, please report it
                    anything.append(place)
            last.append(place)
        self._first, self._stays, self._last, self._any = (
            _bits(places, place + 1) for places in (first, stays, last, anything)
        )
        self._literal = {char: _bits(places, place + 1) for char, places in literal.items()}
        self._classes = [(kind, _bits(places, place + 1)) for kind, places in classes.values()]
        self._known: dict[str, int] = {}

    def matches(self, text: str) -> bool:
        """Whether any pattern matches the whole of `text`."""
        states, stays = self._first, self._stays
        for char in text:
            moved = (states << 1) & self._reached_by(char)
            states = moved if char == "/" else moved | (states & stays)
            if not states:
                return False
        return states & self._last != 0

    def _reached_by(self, char: str) -> int:
        """The states that `char` can enter."""
        found = self._known.get(char)
        if found is None:
            found = self._literal.get(char, 0)
            if char != "/":
                found |= self._any
                for kind, states in self._classes:
                    if kind.holds(char):
                        found |= states
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[char] = found
        return found


def _bits(places: list[int], size: int) -> int:
    """The integer with exactly these bits, made in one step: setting them singly would copy it each time."""
    data = bytearray(size // 8 + 1)
    for place in places:
        data[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(data, "little")


DEEP = "**"


class Glob:
    """One parsed glob: `head`, and if `deep` any number of segments, then `tail`."""

    __slots__ = ("deep", "head", "tail", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        parts = _parts(text)
        self.deep = DEEP in parts
        cut = parts.index(DEEP) if self.deep else len(parts)
        self.head = tuple(Segment(part) for part in parts[:cut])
        self.tail = tuple(Segment(part) for part in parts[cut + 1 :])
        if self.deep and any(segment.literal is None for segment in self.head):
            raise PolicyError(
                f"{text!r} has a wildcard before **",
                fix="write one glob for each directory",
                why="it would have to look into every directory",
            )
        if any(segment.literal == ".." for segment in (*self.head, *self.tail)):
            raise _escape(text, "it has a .. segment")
        if any(segment.literal == "." for segment in (*self.head, *self.tail)):
            raise PolicyError(
                f"{text!r} has a quoted . as a segment", why="no file has that name", fix="leave it out"
            )

    @property
    def literal(self) -> str | None:
        """The single path that it matches, if it has no wildcard."""
        names = [segment.literal for segment in self.head]
        return None if self.deep or None in names else "/".join(name or "" for name in names)

    @property
    def prefix(self) -> str:
        """The directory of everything that it can match; empty for the working directory itself."""
        names: list[str] = []
        for segment in self.head if self.deep else self.head[:-1]:
            if segment.literal is None:
                break
            names.append(segment.literal)
        return "/".join(names)

    def matches(self, path: str) -> bool:
        """Whether it matches the normalised relative `path`."""
        names = path.split("/")
        if not self.deep:
            return len(names) == len(self.head) and _fit(self.head, names)
        if len(names) < len(self.head) + len(self.tail):
            return False
        return _fit(self.head, names[: len(self.head)]) and _fit(
            self.tail, names[len(names) - len(self.tail) :]
        )


def _fit(segments: Iterable[Segment], names: Iterable[str]) -> bool:
    return all(segment.matches(name) for segment, name in zip(segments, names, strict=True))


def _parts(text: str) -> list[str]:
    """The segments of a well-formed glob, without `.` and empty segments."""
    if not isinstance(text, str):
        raise PolicyError(
            f"{text!r} is not a glob", why="it is not a string", fix="write it as text, as in 'src/**'"
        )
    if text.startswith(("/", "~")):
        raise _escape(text, "it is not relative to the working directory")
    if text.startswith("\\") or (
        len(text) > 1 and text[1] == ":" and text[0].isascii() and text[0].isalpha()
    ):
        raise _escape(text, "it is an absolute path of Windows")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _escape(text, "it has a .. segment")
    if not text.strip() or not parts:
        raise PolicyError(f"the glob {text!r} is empty", why="it names nothing", fix="use ** for everything")
    if "\0" in text:
        raise PolicyError(f"{text!r} has a NUL in it", why="no name can contain one", fix="take it out")
    if "{" in text or "}" in text:
        raise PolicyError(
            f"{text!r} has a brace", why="alternatives are not supported", fix="write two globs"
        )
    if any(DEEP in part and part != DEEP for part in parts):
        raise PolicyError(
            f"{text!r} has ** glued to text",
            fix="let ** stand between slashes",
            why="it stands for whole directories",
        )
    if parts.count(DEEP) > 1:
        raise PolicyError(
            f"{text!r} has more than one **",
            fix="write one glob for each case",
            why="two of them could match in too many ways",
        )
    return parts


def _escape(text: str, why: str) -> PathEscape:
    return PathEscape(
        f"the glob {text!r} could leave the working directory", why=why, fix="write it relative to that"
    )


class GlobSet:
    """Many globs, matched at once: the cost grows with the path, hardly with their number."""

    def __init__(self, globs: Iterable[Glob]) -> None:
        self.globs = tuple(globs)
        self._flat: dict[int, _GlobGroup] = {}
        self._deep: dict[str, dict[int, _GlobGroup]] = {}
        for glob in self.globs:
            if glob.deep:
                self._deep.setdefault(glob.prefix, {}).setdefault(len(glob.tail), _GlobGroup()).add(glob.tail)
            elif glob.literal is None:
                self._flat.setdefault(len(glob.head), _GlobGroup()).add(glob.head)
        self.literals = frozenset(glob.literal for glob in self.globs if glob.literal is not None)

    def matches(self, path: str) -> bool:
        """Whether any of them matches the normalised relative `path`."""
        if path in self.literals:
            return True
        names = path.split("/")
        flat = self._flat.get(len(names))
        if flat is not None and flat.spells(path):
            return True
        for cut in range(len(names) + 1) if self._deep else ():
            for length, tails in self._deep.get("/".join(names[:cut]), {}).items():
                if length <= len(names) - cut and tails.spells("/".join(names[len(names) - length :])):
                    return True
        return False


class _GlobGroup:
    """Globs with the same number of segments. Globs with the same literal ends share one automaton."""

    __slots__ = ("fronts", "literals", "machines")

    def __init__(self) -> None:
        self.literals: set[str] = set()
        self.machines: dict[str, dict[str, _LazyAutomaton]] = {}
        #: The possible lengths of literal beginnings, and for each beginning those of the ends.
        self.fronts: dict[int, dict[str, set[int]]] = {}

    def add(self, segments: tuple[Segment, ...]) -> None:
        tokens: list[object] = []
        for segment in segments:
            tokens += [("=", "/"), *segment.tokens] if tokens else segment.tokens
        plain = [token[1] if isinstance(token, tuple) else None for token in tokens]
        wild = [place for place, char in enumerate(plain) if char is None]
        if not wild:
            self.literals.add("".join(char or "" for char in plain))
            return
        front = "".join(char or "" for char in plain[: wild[0]])
        back = "".join(char or "" for char in plain[wild[-1] + 1 :])
        self.fronts.setdefault(len(front), {}).setdefault(front, set()).add(len(back))
        machine = self.machines.setdefault(front, {}).setdefault(back, _LazyAutomaton())
        machine.patterns.append(tokens[wild[0] : wild[-1] + 1])

    def spells(self, text: str) -> bool:
        if text in self.literals:
            return True
        size = len(text)
        for front, begun in self.fronts.items():
            for back in begun.get(text[:front], ()) if front <= size else ():
                if front + back <= size:
                    machine = self.machines[text[:front]].get(text[size - back :])
                    if machine is not None and machine.matches(text[front : size - back]):
                        return True
        return False


class _LazyAutomaton:
    """An automaton that is built at its first use."""

    __slots__ = ("made", "patterns")

    def __init__(self) -> None:
        self.patterns: list[list[object]] = []
        self.made: Automaton | None = None

    def matches(self, text: str) -> bool:
        if self.made is None:
            self.made = Automaton(self.patterns)
        return self.made.matches(text)
