"""The terminal emulator: what programs print becomes cells, whatever it is, and nothing is passed on."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from staddle.tui.emulator import keys
from staddle.tui.emulator.emulator import HISTORY, Emulator, width
from staddle.tui.emulator.grid import BOLD, PLAIN, TRUE_COLOUR, UNDERLINE, selected


class Screen(Emulator):
    """An emulator that remembers its answers."""

    def __init__(self, rows: int = 5, cols: int = 20) -> None:
        self.answers: list[bytes] = []
        super().__init__(rows, cols, self.answers.append)

    def after(self, *parts: bytes | str) -> str:
        """The text of the screen after these were printed."""
        for part in parts:
            self.feed(part.encode() if isinstance(part, str) else part)
        return self.text()


@pytest.mark.parametrize(
    ("printed", "seen"),
    [
        ("one\r\ntwo", "one\ntwo"),
        ("abc\rX", "Xbc"),
        ("abc\b\bX", "aXc"),
        ("a\tb", "a       b"),
        ("0123456789" * 2 + "next", "01234567890123456789\nnext"),
        ("\x1b[?7l" + "0123456789" * 3, "01234567890123456789"),
        ("abc\x1b[2DX", "aXc"),
        ("\x1b[2;3Hx\x1b[Hy", "y\n  x"),
        ("abcdef\x1b[3G\x1b[K", "ab"),
        ("abcdef\x1b[3G\x1b[1K", "   def"),
        ("abc\r\ndef\x1b[2J\x1b[Hx", "x"),
        ("abcdef\x1b[2G\x1b[2P", "adef"),
        ("abcdef\x1b[2G\x1b[2@", "a  bcdef"),
        ("abcdef\x1b[2G\x1b[2X", "a  def"),
        ("a\r\nb\r\nc\x1b[2;1H\x1b[L", "a\n\nb\nc"),
        ("a\r\nb\r\nc\x1b[2;1H\x1b[M", "a\nc"),
        ("a\r\nb\r\nc\r\nd\r\ne\x1b[2;4r\x1b[4;1H\n", "a\nc\nd\n\ne"),
        ("a\r\nb\x1b[H\x1bMtop", "top\na\nb"),
        ("x\x1b[3b", "xxxx"),
        ("ab\x1b7\x1b[4;4Hy\x1b8c", "abc\n\n\n   y"),
        ("\x1b(0lqk\x1b(B-", "┌─┐-"),
        ("main\x1b[?1049hother\x1b[?1049l!", "main!"),
        ("日本\x1b[2Gx", " x本"),
        ("e\u0301", "e\u0301"),
        ("0123456789012345678日", "0123456789012345678\n日"),
        ("\x1b[4hab\x1b[1Gx", "xab"),
    ],
)
def test_functions(printed: str, seen: str) -> None:
    assert Screen().after(printed) == seen
    apart = Screen()
    for byte in printed.encode():  # however it arrives
        apart.feed(bytes((byte,)))
    assert apart.text() == seen


@pytest.mark.parametrize(
    "sequence",
    [
        "\x1b]52;c;aGFja2Vk\x07",
        "\x1b]52;c;aGFja2Vk\x1b\\",
        "\x1b]8;;http://evil.example\x1b\\",
        "\x1b]4;1;rgb:ff/00/00\x07",
        "\x1b]1337;File=:AAAA\x07",
        "\x1bP+q544e\x1b\\",
        "\x1bPq#0;2;0;0;0~\x1b\\",
        "\x1b_Gf=24;AAAA\x1b\\",
        "\x1b^private\x1b\\",
        "\x1bXstart of string\x1b\\",
        "\x1b[?1004h",
        "\x1b[?2026h",
        "\x1b[22;0t",
        "\x1b[21t",
        "\x1b[5i",
        "\x1b[4i",
        "\x1b[>1u",
        "\x1b[99999999999999999999C\r",
        "\x1b[" + "1;" * 5000 + "m",
        "\x9b31m",
        "\x9d52;c;AAAA\x9c",
        "\u202e",
        "\u2066",
        "\u200b",
        "\x00\x05\x07\x7f",
    ],
)
def test_what_would_act_on_a_terminal_is_dropped(sequence: str) -> None:
    screen = Screen()
    text = screen.after("a\r", sequence, "z")
    left = text.replace("52;c;AAAA", "").replace("31m", "").replace("z", "").strip("a \n")
    assert not left
    assert text.isprintable() or set(text) <= {"\n", *map(chr, range(32, 127))}
    assert not screen.answers
    apart = Screen()
    for byte in ("a\r" + sequence + "z").encode():
        apart.feed(bytes((byte,)))
    assert apart.text() == text
    for _ in range(3):
        screen.feed(b"\x1b]52;c;" + b"A" * 100_000)  # a string that does not end
    assert len(screen._rest) + len(screen._string_text) < 2000


def test_a_title_is_text() -> None:
    screen = Screen()
    screen.feed(b"\x1b]0;hi\x1b[31m\xe2\x80\xae there\x07")
    assert screen.title == "hi" or "\x1b" not in screen.title
    screen.feed(b"\x1b]2;" + b"x" * 5000 + b"\x07")
    assert len(screen.title) <= 80


def test_answers_are_our_own() -> None:
    screen = Screen()
    screen.feed(b"ab\x1b[6n\x1b[c\x1b[>c\x1b[5n\x1b]10;?\x07\x1bP$qm\x1b\\\x1b[x")
    assert screen.answers == [b"\x1b[1;3R", b"\x1b[?62;22c", b"\x1b[>0;10;0c", b"\x1b[0n"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("31", (1, None, 0)),
        ("1;4;38;5;200;48;2;1;2;3", (200, TRUE_COLOUR | 0x010203, BOLD | UNDERLINE)),
        ("38:2::9:8:7", (TRUE_COLOUR | 0x090807, None, 0)),
        ("97;101", (15, 9, 0)),
        ("4:3", (None, None, UNDERLINE)),
        ("1;22;0", PLAIN),
        ("38;5", PLAIN),
        ("38;2;999;0;0", (TRUE_COLOUR | 0xFF0000, None, 0)),
        ("99999999999;:;;", PLAIN),
    ],
)
def test_attributes(text: str, found: object) -> None:
    assert selected(PLAIN, text) == found


def test_many_lines_at_once_are_as_one_by_one() -> None:
    chance = random.Random(7)  # noqa: S311 - the same every time
    for _ in range(60):
        rows, cols = chance.randint(2, 6), chance.randint(5, 30)
        choices = [
            lambda most=cols + 5: b"x" * chance.randint(0, most) + b"\r\n",
            lambda: b"abc\r\n" * chance.randint(1, 12),
            lambda: b"\x1b[3%dm" % chance.randint(0, 7),
            lambda: chance.choice([b"\x1b[H", b"\r", b"part", "日本".encode(), b"\xff", b"\x1b[2;3r"]),
        ]
        data = b"".join(chance.choice(choices)() for _ in range(chance.randint(1, 40)))
        whole, apart = Screen(rows, cols), Screen(rows, cols)
        whole.feed(data)
        for at in range(0, len(data), 3):
            apart.feed(data[at : at + 3])
        assert whole.text() == apart.text(), data
        assert whole.scrolled == apart.scrolled, data
        flat = [
            ["".join(text for text, _ in runs).rstrip() for runs in each.history] for each in (whole, apart)
        ]
        assert flat[0] == flat[1], data


def test_a_flood_leaves_its_end_and_bounded_memory() -> None:
    screen = Screen(4, 40)
    lines = b"".join(b"\x1b[32mline %07d\x1b[0m of a flood\r\n" % number for number in range(60_000))
    screen.feed(lines + b"end")
    assert screen.text().split("\n") == [
        "line 0059997 of a flood",
        "line 0059998 of a flood",
        "line 0059999 of a flood",
        "end",
    ]
    assert len(screen.history) == HISTORY
    assert screen.history[-1][0] == ("line 0059996", (2, None, 0))
    assert screen.attributes == PLAIN


def test_resizing_keeps_what_fits() -> None:
    screen = Screen(4, 10)
    screen.after("one\r\ntwo\r\nthree\r\nfour567890")
    screen.resize(2, 6)
    assert screen.text() == "three\nfour56"
    assert [runs[0][0] for runs in screen.history] == ["one", "two"]
    screen.resize(3, 12)
    assert screen.after("\r\nx") == "three\nfour567890\nx"


def test_any_bytes_at_all_do_no_harm() -> None:
    chance = random.Random(3)  # noqa: S311 - the same every time
    for _ in range(40):
        screen = Screen(chance.randint(1, 8), chance.randint(2, 30))
        for _ in range(20):
            noise = bytes(
                chance.choice(b"\x1b[]?;0123456789ABCDHJKLMPSTXhlmnr\x07\r\n\t\x08\xe6\x97\xa5ab")
                for _ in range(99)
            )
            screen.feed(noise)
            if chance.random() < 0.3:
                screen.resize(chance.randint(1, 8), chance.randint(2, 30))
        grid = screen.grid
        assert 0 <= grid.y < grid.rows
        assert 0 <= grid.x < grid.cols
        assert len(grid.lines) == grid.rows
        for line in grid.lines:
            assert len(line.chars) == len(line.attributes) >= grid.cols
            assert all(char == "" or (char.isprintable() and len(char) <= 4) for char in line.chars)


def test_widths() -> None:
    assert [width(char) for char in "a日\u0301\u202e\u200d\ufe0f\x9b"] == [1, 2, 0, -1, -1, -1, -1]


@pytest.mark.parametrize(
    ("key", "character", "sent"),
    [
        ("a", "a", b"a"),
        ("A", "A", b"A"),
        ("enter", "\r", b"\r"),
        ("ctrl+c", "\x03", b"\x03"),
        ("ctrl+z", None, b"\x1a"),
        ("alt+x", None, b"\x1bx"),
        ("up", None, b"\x1b[A"),
        ("ctrl+left", None, b"\x1b[1;5D"),
        ("f5", None, b"\x1b[15~"),
        ("shift+tab", None, b"\x1b[Z"),
        ("pagedown", None, b"\x1b[6~"),
        ("underscore", "_", b"_"),
        ("ä", "ä", "ä".encode()),
        ("unknown_key", None, b""),
    ],
)
def test_keys(key: str, character: str | None, sent: bytes) -> None:
    assert keys.encoded(key, character) == sent


def test_arrows_of_an_application() -> None:
    assert keys.encoded("up", None, application=True) == b"\x1bOA"


def test_a_paste_cannot_leave_its_brackets() -> None:
    assert keys.pasted("a\nb\x1b[201~rm -rf\x03", bracketed=True) == b"\x1b[200~a\rb[201~rm -rf\x1b[201~"
    assert keys.pasted("a\r\nb", bracketed=False) == b"a\rb"


def test_mouse_reports() -> None:
    assert keys.mouse(0, 4, 2, pressed=True, sgr=True) == b"\x1b[<0;5;3M"
    assert keys.mouse(0, 4, 2, pressed=False, sgr=True) == b"\x1b[<0;5;3m"
    assert keys.mouse(0, 4, 2, pressed=True, sgr=False) == b"\x1b[M %#"
    assert keys.mouse(0, 400, 2, pressed=True, sgr=False) == b""


def steps(work: Callable[[], object]) -> int:
    """Instructions of the interpreter that `work` takes: the same number on every machine."""
    count = 0

    def traced(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


_ROWS, _COLS = 50, 200
_COUNTS = (
    "",
    "1",
    "2",
    "3",
    "65535",
    str(2**31),
    str(10**12),
    "9" * 500,
    ";".join("9" * 250),
    "0" * 400 + "9",
)
_SEQUENCES = (
    *(f"\x1b{final}" for final in map(chr, range(0x30, 0x7F)) if final not in "[]PX^_k"),
    *(f"\x1b{between}{final}" for between in "#()*+ %" for final in "058BFGU"),
    *(f"\x1b[{mark}{count}{final}" for mark in ("", "?", ">", "=") for count in _COUNTS for final in "hl"),
    *(f"\x1b[{count}{final}" for count in _COUNTS for final in map(chr, range(0x40, 0x7F))),
    *(
        f"\x1b[?{number}{final}"
        for number in (1, 6, 7, 25, 47, 1000, 1006, 1047, 1048, 1049, 2004)
        for final in "hl"
    ),
    "\x1b[?" + "1049;47;6;" * 20 + "h\x1b[?" + "1049;47;6;" * 20 + "l",
    "\x1b[!p",
    *"\n\t\b\r\x0b\x0e\x0f",
)


def test_no_sequence_takes_more_than_one_pass_over_the_screen() -> None:
    """Whatever its count, and whatever is on the screen: some instructions for each line, none for a cell."""
    for before in (b"\x1b#8\x1b[H", b"\x1b#8\x1b[50;200H"):
        for sequence in _SEQUENCES:
            screen, data = Screen(_ROWS, _COLS), sequence.encode()
            screen.feed(before)
            screen.grid.tabs = list(range(_COLS))
            count = steps(lambda screen=screen, data=data: screen.feed(data))  # type: ignore[misc]
            assert count < 100 * _ROWS + 60 * len(data), sequence[:20]


def test_a_screen_that_is_blank_is_not_made_again() -> None:
    for sequence in (
        b"\x1bc",
        b"\x1b[2J",
        b"\x1b[J",
        b"\x1b[999S",
        b"\x1b[999T",
        b"\x1b[999L",
        b"\x1b[999M",
        b"\n",
    ):
        screen = Screen(_ROWS, _COLS)
        before = {id(line) for line in screen.main.lines}
        for _ in range(3):
            screen.feed(b"\x1b[?1049h\x1b[?1049l" + sequence)
        assert {id(line) for line in screen.main.lines} == before, sequence
        screen.feed(b"\x1b[41m\x1b[2Jx\x1b[m" + sequence + sequence)
        assert len({id(line) for line in screen.main.lines}) == _ROWS


@pytest.mark.parametrize(
    ("sequence", "column"),
    [
        ("\x1b[I", 8),
        ("\x1b[2I", 16),
        ("\x1b[3I", 19),
        (f"\x1b[{2**31}I", 19),
        (f"\x1b[{10**12}I", 19),
        ("\x1b[18G\x1b[Z", 16),
        ("\x1b[17G\x1b[Z", 8),
        ("\x1b[18G\x1b[2Z", 8),
        (f"\x1b[18G\x1b[{2**31}Z", 0),
        ("\x1b[4G\x1bH\x1bH\r\t", 3),
        ("\x1b[9G\x1b[g\r\t", 16),
        ("\x1b[3g\t", 19),
        (f"\x1b[{2**31}C", 19),
        ("\x1b[000000000000004C", 4),
    ],
)
def test_tabs_and_large_counts(sequence: str, column: int) -> None:
    screen = Screen()
    screen.feed(sequence.encode())
    assert screen.grid.x == column


def test_a_number_that_is_too_large_is_no_other_function() -> None:
    assert Screen().after("kept\r", f"\x1b[{2**31}J") == "kept"


def test_what_is_fed_in_slices_is_as_fed_at_once() -> None:
    chance = random.Random(11)  # noqa: S311 - the same every time
    choices = [
        *(sequence.encode() for sequence in _SEQUENCES),
        b"abc\r\n" * 30,
        b"x" * 700,
        "日本é".encode() * 50,
    ]
    for _ in range(20):
        data = b"".join(chance.choices(choices, k=60))
        whole, sliced = Screen(), Screen()
        whole.feed(data)
        at = calls = 0
        while at < len(data):
            before, at = at, sliced.feed(data, at, lambda: True)
            assert before < at <= before + 256 or data[before:at].count(b"\r\n") > 1, (
                "more than a piece at once"
            )
            calls += 1
        assert calls >= 3
        assert (sliced.text(), list(sliced.history)) == (whole.text(), list(whole.history))
        assert sliced.answers == whole.answers


def test_a_flood_of_colours_is_not_carried_out_at_once() -> None:
    screen = Screen()
    data = b"\x1b[1m\r\n" * 30_000
    assert steps(lambda: screen.feed(data, 0, lambda: True)) < 50_000
