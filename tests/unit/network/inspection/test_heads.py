"""Only a head that everybody reads alike is read without h11, and only such a head is written."""

from __future__ import annotations

import pytest

from staddle.network.inspection.heads import read_request, read_response, write_request

USUAL = b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\nA: b\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nA: b\r\n\r\n"


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        (b"\r\n\r\n", b"\r\n"),  # incomplete
        (b"A: b", b"A: b\r\n c"),  # folded
        (b"A: b", b"A : b"),
        (b"A: b\r\n", b"A: b\n"),
        (b"A: b", b"A: \x00"),
        (b"A: b", b"A: b\rc"),
        (b"A: b", b"Content-Length: 7"),
        (b"A: b", b"Content-Length: 8"),
        (b"Length: 7", b"Length: 7, 7"),
        (b"Length: 7", b"Length: +7"),
        (b"Length: 7", b"Length: " + b"7" * 21),
        (b"A: b", b"Transfer-Encoding: chunked"),
        (b"A: b", b"Host: h"),
        (b"Host: h\r\n", b""),
        (b"GET", b"get"),
        (b"HTTP/1.1", b"HTTP/1.0"),
    ],
)
def test_an_unusual_head_is_left_to_h11(part: bytes, instead: bytes) -> None:
    assert USUAL.count(part) == 1
    assert read_request(USUAL)
    assert read_request(USUAL.replace(part, instead)) is None
    if b"Host" not in part + instead and part != b"GET":
        assert read_response(ANSWER.replace(part, instead)) is None


def test_a_usual_answer_is_read() -> None:
    assert read_response(ANSWER)


@pytest.mark.parametrize(
    ("method", "target", "header"),
    [
        ("G T", "/", (b"a", b"b")),
        ("GET", "/ HTTP/1.1\r\na: b\r\n\r\nGET /", (b"a", b"b")),
        ("GET", "/\x7f", (b"a", b"b")),
        ("GET", "/\xe9", (b"a", b"b")),
        ("GET", "", (b"a", b"b")),
        ("GET", "/", (b"a:", b"b")),
        ("GET", "/", (b"A", b"b")),
        ("GET", "/", (b"", b"b")),
        ("GET", "/", (b"a", b"b\r\nc: d")),
        ("GET", "/", (b"a", b"b\nc: d")),
        ("GET", "/", (b"a", b"b\r\n c")),
        ("GET", "/", (b"a", b"b\0")),
        ("GET", "/", (b"a", b" b")),
        ("GET", "/", (b"host", b"h")),
        ("GET", "/", (b"content-length", b"7")),
        ("GET", "/", (b"transfer-encoding", b"chunked")),
    ],
)
def test_what_would_be_read_in_another_way_is_not_written(
    method: str, target: str, header: tuple[bytes, bytes]
) -> None:
    usual = [(b"a", b"b"), (b"content-length", b"7"), (b"host", b"h")]
    written = b"GET / HTTP/1.1\r\nhost: h\r\na: b\r\ncontent-length: 7\r\n\r\n"
    assert write_request("GET", "/", usual) == written
    with pytest.raises(ValueError, match=r"its|header"):
        write_request(method, target, [*usual, header])


def test_a_request_without_a_host_is_not_written() -> None:
    with pytest.raises(ValueError, match="host"):
        write_request("GET", "/", [(b"a", b"b")])


@pytest.mark.parametrize("length", [b"", b"+7", b"7, 7", b"7" * 21, b"-1", b"0x7"])
def test_a_length_that_is_no_number_is_not_written(length: bytes) -> None:
    with pytest.raises(ValueError, match="length"):
        write_request("GET", "/", [(b"host", b"h"), (b"content-length", length)])
    with pytest.raises(ValueError, match="length"):
        write_request("GET", "/", [(b"host", b"h"), (b"transfer-encoding", length)])
