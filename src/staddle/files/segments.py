"""One path segment with `*`, `?` and `[...]`, matched without backtracking over what came before.

Going back to the last `*` is enough: an earlier one can never need to grow once a later one
has been reached. The cost is at most the length of the name times that of the pattern.
"""

from __future__ import annotations

from ..errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

STAR: Final = "*"
ANY: Final = "?"


class Class:
    """`[abc]`, `[a-z]`, and with `!` or `^` in front everything else."""

    __slots__ = ("negated", "ranges")

    def __init__(self, negated: bool, ranges: tuple[tuple[str, str], ...]) -> None:
        self.negated, self.ranges = negated, ranges

    def holds(self, char: str) -> bool:
        """Whether `char` is one of these."""
        return any(low <= char <= high for low, high in self.ranges) is not self.negated


class Segment:
    """A parsed segment. `literal` is its one spelling when it has no wildcard, else None."""

    __slots__ = ("literal", "text", "tokens")

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tuple(_tokens(text))
        plain = [token[1] if isinstance(token, tuple) else None for token in self.tokens]
        self.literal = None if None in plain else "".join(char or "" for char in plain)

    def matches(self, name: str) -> bool:
        """Whether the whole of `name` is spelled by this segment."""
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
    """("=", char) for a character that stands for itself, STAR, ANY, or a Class."""
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
                raise PolicyError(f"{text!r} ends in a backslash", why="there is nothing for it to quote")
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
            raise PolicyError(f"{text!r} has the range {low}-{high}", why="it is the wrong way round")
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
