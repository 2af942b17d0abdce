"""Values for placeholders in requests, and placeholders for values in answers."""

from __future__ import annotations

import base64
import gzip
import zlib
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staddle.hostnames import parse
from staddle.network.inspection.messages import InspectedSecret
from staddle.network.inspection.substitution import Expansion, Misplaced, Scan, Wiper, put_in, values_of

HELD, VALUE = "staddle-placeholder", 'the/value+itself=&"1'
SECRET = InspectedSecret("token", HELD, VALUE, (parse("h.example"),), "X-Key", "key", "user")
PLACE = ("h.example", 443, True)


def basic(text: str) -> bytes:
    return b"Basic " + base64.b64encode(text.encode())


def test_each_place_of_a_secret() -> None:
    headers = [
        (b"x-key", b"Bearer " + HELD.encode()),
        (b"authorization", basic(f"user:{HELD}")),
        (b"a", b"b"),
    ]
    target, found, used = put_in([SECRET], PLACE, f"/p?a=b&key={HELD}&c", headers)
    assert target == f"/p?a=b&key={quote(VALUE, safe='')}&c"
    assert found == [
        (b"x-key", b"Bearer " + VALUE.encode()),
        (b"authorization", basic(f"user:{VALUE}")),
        (b"a", b"b"),
    ]
    assert used == ("token",)


def test_nothing_is_added_to_a_request_without_the_placeholder() -> None:
    assert put_in([SECRET], PLACE, "/", [(b"x-key", b"mine")]) == ("/", [(b"x-key", b"mine")], ())


@pytest.mark.parametrize(
    ("place", "target", "headers"),
    [
        (("other.example", 443, True), "/", [(b"x-key", HELD.encode())]),
        (("h.example", 80, False), "/", [(b"x-key", HELD.encode())]),  # not encrypted
        (PLACE, "/", [(b"x-other", HELD.encode())]),
        (PLACE, "/", [(b"authorization", basic(f"another:{HELD}"))]),
        (PLACE, "/", [(b"authorization", b"Bearer " + HELD.encode())]),
        (PLACE, f"/{HELD}", []),
        (PLACE, f"/?other={HELD}", []),
        (PLACE, f"/?{HELD}=key", []),
        (PLACE, "/?other=" + HELD.replace("p", "%70"), []),
        (PLACE, "/", [(b"cookie", HELD.replace("p", "%70").encode())]),
    ],
)
def test_a_placeholder_anywhere_else_is_refused(
    place: tuple[str, int, bool], target: str, headers: list[tuple[bytes, bytes]]
) -> None:
    with pytest.raises(Misplaced, match="token"):
        put_in([SECRET], place, target, headers)


@given(st.integers(1, 30), st.integers(0, 100))
def test_a_placeholder_in_a_body_is_found_at_every_cut(size: int, before: int) -> None:
    text, scan = b"x" * before + HELD.encode() + b"y", Scan([SECRET])
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    with pytest.raises(Misplaced):
        list(map(scan.feed, pieces))


@given(
    st.lists(st.sampled_from(["v", "h", "x", "the/val", "t", quote(VALUE, safe=""), "&"]), max_size=12),
    st.data(),
)
def test_a_value_is_wiped_at_every_cut(parts: list[str], data: st.DataObject) -> None:
    text = "".join({"v": VALUE, "h": HELD}.get(part, part) for part in parts).encode()
    values, out = values_of([SECRET]), b""
    assert values is not None
    wiper, expected = Wiper(values), values.wiped(text)
    while text:
        size = data.draw(st.integers(1, len(text)))
        out, text = out + wiper.feed(text[:size]), text[size:]
    assert out + wiper.end() == expected
    assert VALUE.encode() not in expected
    assert quote(VALUE, safe="").encode() not in expected


@pytest.mark.parametrize("before", ["", "a", "ab", "user:"])
@pytest.mark.parametrize("code", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_of_a_value_is_wiped(before: str, code: object) -> None:
    found = values_of([SECRET])
    assert found is not None
    assert callable(code)
    text = found.wiped(code((before + VALUE + "?").encode()))
    assert b"*" in text
    assert VALUE[3:-3].encode() not in base64.urlsafe_b64decode(
        text.translate(bytes.maketrans(b"+/*", b"-_A"))
    )


def test_compressed_answers_are_read_or_refused() -> None:
    raw = zlib.compressobj(wbits=-15)
    deflated = raw.compress(b"hello" * 50) + raw.flush()
    for coding, data in (
        (b"gzip", gzip.compress(b"hello" * 50)),
        (b"deflate", zlib.compress(b"hello" * 50)),
        (b"deflate", deflated),
    ):
        expansion = Expansion(coding)
        assert b"".join(expansion.feed(data[at : at + 3]) for at in range(0, len(data), 3)) == b"hello" * 50
        expansion.end()
    for coding in (b"br", b"zstd", b"gzip,gzip"):
        with pytest.raises(ValueError, match="cannot be read"):
            Expansion(coding)
    with pytest.raises(ValueError, match="too much"):
        Expansion(b"gzip").feed(gzip.compress(bytes(100 << 20)))
    with pytest.raises(ValueError, match="something after"):
        Expansion(b"gzip").feed(gzip.compress(b"a") + b"more")
    cut = Expansion(b"gzip")
    cut.feed(gzip.compress(b"hello")[:-4])
    with pytest.raises(ValueError, match="cut short"):
        cut.end()
