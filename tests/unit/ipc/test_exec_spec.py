"""ExecSpec survive the way to the helper unchanged, and anything else is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staddle.ipc import wire
from staddle.ipc.exec_spec import _SHAPES, MAGIC, ExecSpec, Malformed, decode, encode

PATH = st.binary(max_size=40).map(lambda tail: b"/" + tail.replace(b"\0", b""))
WORD = st.binary(max_size=40).map(lambda word: word.replace(b"\0", b""))
NUMBER = st.integers(-1, 2**63 - 1)
COMPLETE = st.builds(
    ExecSpec,
    argv=st.lists(WORD, min_size=1, max_size=4).map(tuple),
    environment=st.lists(WORD.map(lambda value: b"N=" + value), max_size=4).map(tuple),
    directory=PATH,
    status=st.sampled_from([b"", b"5", b"/run/status"]),
    launcher=st.integers(0, 2**22),
    supervise=st.just(1),
    trees=st.lists(st.tuples(PATH, NUMBER, NUMBER, NUMBER), max_size=3).map(tuple),
    empty=st.lists(st.tuples(PATH, NUMBER, NUMBER), max_size=3).map(tuple),
    texts=st.lists(st.tuples(PATH, st.binary(max_size=40)), max_size=3).map(tuple),
    links=st.lists(st.tuples(PATH, WORD), max_size=3).map(tuple),
    scratch=st.lists(PATH, max_size=3).map(tuple),
    rlimits=st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=3).map(tuple),
    handled_fs=NUMBER,
    rules=st.lists(st.tuples(PATH, NUMBER, NUMBER), max_size=3).map(tuple),
    ports=st.lists(st.tuples(NUMBER, NUMBER), max_size=3).map(tuple),
    filter=st.binary(min_size=1, max_size=5).map(lambda part: part * 8),
    brokered=st.integers(0, 1),
    sockets=st.lists(st.tuples(st.sampled_from([b"beneath", b"exactly", b"never"]), PATH), max_size=3).map(
        tuple
    ),
)
SMALL = ExecSpec(argv=(b"true",), environment=(b"A=1",), directory=b"/")


@given(COMPLETE)
def test_they_arrive_as_they_were_sent(sent: ExecSpec) -> None:
    assert decode(encode(sent)) == sent


def test_truth_is_a_number_on_the_way() -> None:
    assert decode(encode(SMALL.replace(supervise=True))).supervise == 1


@given(COMPLETE, st.data())
def test_no_part_of_them_is_accepted(sent: ExecSpec, data: st.DataObject) -> None:
    whole = encode(sent)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(Malformed):
        decode(whole[:cut])
    with pytest.raises(Malformed):
        decode(whole + b"x")


@given(st.data())
def test_a_changed_byte_is_refused_or_means_something(data: st.DataObject) -> None:
    whole = bytearray(encode(SMALL))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(whole))
    except Malformed:
        pass


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    for data in (noise, MAGIC + noise):
        with pytest.raises(Malformed):
            decode(data)


def test_a_long_list_in_a_short_file_is_cut_short_and_not_waited_for() -> None:
    with pytest.raises(Malformed, match="cut short"):
        decode(MAGIC + struct.pack("<cI", b"l", 0xFFFFFFFF))


def test_lists_in_lists_in_lists_have_an_end() -> None:
    with pytest.raises(Malformed):
        decode(MAGIC + struct.pack("<cI", b"l", 1) * 100_000)


MEANINGLESS = {
    "no command": {"argv": ()},
    "a NUL in an argument": {"argv": (b"a\0b",)},
    "a NUL in a variable": {"environment": (b"A=\0",)},
    "a variable without a name": {"environment": (b"=1",)},
    "a variable without a value": {"environment": (b"A",)},
    "text for bytes": {"argv": ("true",)},
    "a list for a tuple": {"argv": [b"true"]},
    "a relative directory": {"directory": b"tmp"},
    "a NUL in a path": {"directory": b"/a\0"},
    "a relative rule": {"rules": ((b"usr", 1, 0),)},
    "a rule with too little": {"rules": ((b"/usr", 1),)},
    "a relative socket": {"sockets": ((b"beneath", b"run"),)},
    "an unknown kind of socket rule": {"sockets": ((b"above", b"/run"),)},
    "a broker without a supervisor": {"brokered": 1, "filter": bytes(8)},
    "a broker without a filter": {"brokered": 1, "supervise": 1},
    "the port of no proxy": {"proxy_port": 80, "proxy_word": b"x"},
    "a proxy without a word": {"proxy_port": 80, "proxy": (3, 4), "supervise": 1},
    "no port": {"proxy_port": 65536, "proxy_word": b"x", "proxy": (3, 4), "supervise": 1},
    "private directories that nobody removes": {"scratch": (b"/tmp/x",)},
    "a user without a group": {"uid": 5},
    "half an instruction": {"filter": bytes(12)},
}


@pytest.mark.parametrize("change", MEANINGLESS.values(), ids=MEANINGLESS.keys())
def test_what_means_nothing_is_refused_on_both_sides(change: dict[str, object]) -> None:
    wrong = SMALL.replace(**change)
    with pytest.raises(Malformed):
        encode(wrong)
    try:
        data = wire.encode(MAGIC, tuple(getattr(wrong, name) for name in _SHAPES))
    except struct.error:
        return  # it cannot even be written
    with pytest.raises(Malformed):
        decode(data)
