"""What a glob means, from its definition alone: a list of tokens for each segment, tried letter by letter.

Nothing here looks at the matcher. A glob is made as its meaning first, and spelled from that.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

# A segment as what it means: any run, one of these characters, or anything but these.
Token = tuple[str, frozenset[str]]
Glob = list[list[Token]]
DEEP: list[Token] = [("deep", frozenset())]


def names(letters: str) -> st.SearchStrategy[str]:
    return st.text(letters, min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))


def globs(letters: str) -> st.SearchStrategy[Glob]:
    chars = st.sampled_from(letters)
    tokens = st.one_of(
        chars.map(lambda char: ("in", frozenset(char))),
        st.just(("star", frozenset[str]())),
        st.just(("out", frozenset[str]())),
        st.frozensets(chars, min_size=1).map(lambda chars: ("in", chars)),
        st.frozensets(chars, min_size=1).map(lambda chars: ("out", chars)),
    )
    segments = st.lists(tokens, min_size=1, max_size=5).filter(no_two_stars).filter(is_name)
    literals = st.lists(chars.map(lambda char: ("in", frozenset(char))), min_size=1, max_size=2).filter(
        is_name
    )
    return st.one_of(
        st.lists(segments, min_size=1, max_size=4),
        st.lists(literals, min_size=1, max_size=3),
        st.builds(
            lambda head, tail: [*head, DEEP, *tail],
            st.lists(literals, max_size=2),
            st.lists(segments, max_size=2),
        ),
    )


def no_two_stars(segment: list[Token]) -> bool:
    return all(a[0] != "star" or b[0] != "star" for a, b in pairwise(segment))


def is_name(segment: list[Token]) -> bool:
    """Not `.`, which is dropped, and not `..`, which is refused: neither spelled out nor as a class."""
    return spelled(segment).replace("[", "").replace("]", "") not in (".", "..")


def spelled(segment: list[Token]) -> str:
    text = ""
    for kind, chars in segment:
        if kind == "star":
            text += "*"
        elif not chars:
            text += "?"
        elif kind == "in" and len(chars) == 1:
            text += next(iter(chars))
        else:
            text += ("[" if kind == "in" else "[!") + "".join(sorted(chars)) + "]"
    return text


def text_of(glob: list[list[Token]]) -> str:
    return "/".join("**" if segment == DEEP else spelled(segment) for segment in glob)


def spells(segment: list[Token], name: str) -> bool:
    """The definition, letter by letter, trying everything."""
    if not segment:
        return not name
    kind, chars = segment[0]
    if kind == "star":
        return any(spells(segment[1:], name[cut:]) for cut in range(len(name) + 1))
    return bool(name) and (name[0] in chars) == (kind == "in") and spells(segment[1:], name[1:])


def reference(glob: list[list[Token]], path: list[str]) -> bool:
    if not glob:
        return not path
    if glob[0] == DEEP:
        return any(reference(glob[1:], path[cut:]) for cut in range(len(path) + 1))
    return bool(path) and spells(glob[0], path[0]) and reference(glob[1:], path[1:])
