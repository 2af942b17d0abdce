"""Hostile text is readable and harmless when it is shown."""

from __future__ import annotations

import os
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staddle.display import shown, shown_block, whole_characters

HOSTILE = {
    "colour": "\x1b[31mred\x1b[0m",
    "clear": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://x\x1b\\text\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "unterminated": "\x1b]",
    "reset": "\x1bc",
    "device-control": "\x1bPq\x1b\\",
    "query": "\x1b[6n",
    "c1": "\x9b2J\x9d0;t\x9c",
    "backspace": "safe\b\b\b\bevil",
    "carriage-return": "error\rok   ",
    "newline": "a\nfake line",
    "vertical": "a\x0b\x0cb",
    "unicode-newlines": "a\u2028b\u2029c\x85d",
    "bidi": "\u202egnp.exe",
    "isolate": "\u2066x\u2069",
    "zero-width": "pay\u200bpal\u200d\ufeff",
    "tags": "x\U000e0041",
    "filler": "a\u3164b\u115fc\u2800d",
    "variation": "a\ufe0fb\U000e0100",
    "null": "a\0b",
    "surrogates": "a\udcff\ud800",
    "no-break": "a\u00a0b\u3000c",
}


#: Drawn as nothing or as a blank, although Unicode calls them letters, marks or symbols: Hangul and Khmer
#: fillers, joiners, Mongolian and other variation selectors, the blank Braille cell.
NOT_DRAWN = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_nothing_that_a_terminal_acts_on_remains(text: str) -> None:
    _check(shown(text))
    _check(shown(text.encode("utf-8", "surrogatepass")))


@pytest.mark.parametrize("char", sorted(NOT_DRAWN), ids=lambda char: f"{ord(char):x}")
def test_a_character_that_is_not_drawn_is_named(char: str) -> None:
    assert shown(f"a{char}b") == f"a\\u{ord(char):04x}b" or shown(f"a{char}b") == f"a\\U{ord(char):08x}b"


@given(st.text() | st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp", "Zs", "Co"])))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    _check(shown(text))


@given(st.binary())
def test_any_bytes_become_one_printable_line(data: bytes) -> None:
    _check(shown(data))


def _check(line: str) -> None:
    assert line.isprintable()
    for char in line:
        assert unicodedata.category(char)[0] != "C"
        assert unicodedata.category(char) not in ("Zl", "Zp")
        assert char not in NOT_DRAWN
    assert len(line.splitlines()) <= 1
    line.encode()  # and can be written as UTF-8


@pytest.mark.parametrize("text", ["", "plain text", "ünïcödé 漢字 ñ", "back\\slash", "emoji 🎉", "a'b\"c"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert shown(text) == text
    assert shown(text.encode()) == text


def test_escapes_name_what_was_there() -> None:
    assert shown("\x1b[0m\n\t\r\x07") == "\\x1b[0m\\n\\t\\r\\x07"
    assert shown("\u202e") == "\\u202e"
    assert shown("\U000e0041") == "\\U000e0041"
    assert shown(b"\xff") == shown(os.fsdecode(b"\xff")) == "\\xff"


def test_showing_twice_is_showing_once() -> None:
    for text in HOSTILE.values():
        assert shown(shown(text)) == shown(text)


def test_a_block_keeps_lines_and_tabs_and_nothing_else() -> None:
    assert shown_block("a\tb\r\nc\x1b[2Jd\n") == "a\tb\nc\\x1b[2Jd\n"
    assert shown_block(b"over\rwrite") == "over\\rwrite"


@given(st.text() | st.binary())
def test_any_block_has_only_printable_lines(text: str | bytes) -> None:
    for line in shown_block(text).split("\n"):
        for cell in line.split("\t"):
            _check(cell)


def test_it_costs_no_import() -> None:
    code = (
        "import sys; old = set(sys.modules); import staddle.display; print(*sorted(set(sys.modules) - old))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["__future__", "staddle", "staddle.display"]


@given(st.binary(max_size=12))
def test_only_an_incomplete_character_is_split_off(data: bytes) -> None:
    whole, rest = whole_characters(data)
    assert whole + rest == data
    assert len(rest) < 4
    assert not rest or rest[0] >= 0xC0
    assert (whole + rest).decode("utf-8", "replace") == whole.decode("utf-8", "replace") + rest.decode(
        "utf-8", "replace"
    )
    assert whole_characters(data + "é€🎉".encode()) == (data + "é€🎉".encode(), b"")
