"""What reads a head without h11, and writes it, does as h11 does or leaves it to h11."""

from __future__ import annotations

import h11
from hypothesis import example, given, settings
from hypothesis import strategies as st

from staddle.network.inspection.heads import read_request, read_response, write_request

USUAL = (
    (b"Host", b"h"),
    (b"Content-Length", b"7"),
    (b"x", b"a b"),
    (b"Accept", b""),
    (b"Connection", b"close"),
)
ODD = (*USUAL, (b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"8"), (b"Expect", b"100-continue"))
FIELDS = st.lists(st.sampled_from(USUAL), max_size=4, unique=True) | st.lists(
    st.sampled_from(ODD), max_size=4
)
SPLICES = (b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"\0", b"\x01", b"\xe9", b"+", b"7", b", 7", b"7" * 21)
SPLICE = st.tuples(st.integers(0, 99), st.integers(0, 2), st.sampled_from(SPLICES) | st.binary(max_size=2))


def spliced(text: bytes, splices: list[tuple[int, int, bytes]]) -> bytes:
    """The text with other bytes in some places."""
    for at, removed, added in splices:
        text = text[: at % (len(text) + 1)] + added + text[at % (len(text) + 1) + removed :]
    return text


def heads(*firsts: bytes) -> st.SearchStrategy[bytes]:
    """Heads with one of these lines, and headers. Many are not quite valid."""

    def head(first: bytes, fields: list[tuple[bytes, bytes]], rest: bytes) -> bytes:
        lines = [first, *(name + b": " + value for name, value in fields)]
        return b"\r\n".join([*lines, b"", rest])

    whole = st.builds(head, st.sampled_from(firsts), FIELDS, st.sampled_from([b"\r\n", b"\r\nGET /", b""]))
    return st.builds(spliced, whole, st.lists(SPLICE, max_size=2))


REQUESTS = heads(b"GET / HTTP/1.1", b"POST /a?b HTTP/1.1", b"HEAD * HTTP/1.1", b"GET /a HTTP/1.0")
RESPONSES = heads(
    b"HTTP/1.1 200 OK", b"HTTP/1.1 304 ", b"HTTP/1.1 404 a\tb", b"HTTP/1.1 101 a", b"HTTP/1.0 200 a"
)


@settings(max_examples=500, deadline=None)
@given(REQUESTS)
@example(b"GET / HTTP/1.1\r\nHost: h\r\n\r\nrest")
def test_a_request_is_read_as_h11_reads_it(data: bytes) -> None:
    found = read_request(data)
    if found is None:
        return
    head, rest = found
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(data)
    event = reader.next_event()
    assert isinstance(event, h11.Request)
    assert head == (event.method.decode(), event.target.decode(), list(event.headers), event.http_version)
    assert rest == reader.trailing_data[0]


@settings(max_examples=500, deadline=None)
@given(RESPONSES)
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nxx")
def test_an_answer_is_read_as_h11_reads_it(data: bytes) -> None:
    found = read_response(data)
    if found is None:
        return
    head, rest = found
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("host", "h")]))
    reader.receive_data(data)
    event = reader.next_event()
    assert isinstance(event, h11.Response)
    assert head == (event.status_code, event.reason, list(event.headers), event.http_version)
    assert rest == reader.trailing_data[0]


def lowered(
    fields: list[tuple[bytes, bytes]], splices: list[tuple[int, int, bytes]]
) -> list[tuple[bytes, bytes]]:
    """The headers with names as the inspector has them, and other bytes in a name and a value."""
    fields = [(name.lower(), value) for name, value in fields]
    for splice, at in zip(splices, (0, -1), strict=False):
        if fields:
            name, value = fields[at]
            fields[at] = (spliced(name, [splice]), value) if at else (name, spliced(value, [splice]))
    return fields


WORDS = st.tuples(st.sampled_from([b"GET", b"get"]), st.sampled_from([b"/", b"/a?b", b"*"]))


@settings(max_examples=500, deadline=None)
@given(WORDS, st.lists(SPLICE, max_size=1), st.builds(lowered, FIELDS, st.lists(SPLICE, max_size=2)))
@example((b"GET", b"/"), [], [(b"a", b"b"), (b"host", b"h"), (b"content-length", b"7")])
def test_a_request_is_written_as_h11_writes_it(
    words: tuple[bytes, bytes], splices: list[tuple[int, int, bytes]], headers: list[tuple[bytes, bytes]]
) -> None:
    """It may refuse more: controls in values, capital letters in names, a length with more than a number."""
    method, target = spliced(words[0], splices[:1]), spliced(words[1], splices[:1])
    try:
        written = write_request(method.decode("latin-1"), target.decode("latin-1"), headers)
    except ValueError:
        written = b""
    try:
        request = h11.Request(method=method, target=target, headers=headers)
        expected = h11.Connection(h11.CLIENT).send(request)
    except h11.LocalProtocolError:
        assert not written
        return
    assert written == expected or (not written and may_be_refused(headers))


def may_be_refused(headers: list[tuple[bytes, bytes]]) -> bool:
    controls = any((byte < 32 and byte != 9) or byte == 127 for _, value in headers for byte in value)
    framing = [value for name, value in headers if name in (b"content-length", b"transfer-encoding")]
    return (
        controls or len(framing) > 1 or b"7, 7" in framing or any(name != name.lower() for name, _ in headers)
    )
