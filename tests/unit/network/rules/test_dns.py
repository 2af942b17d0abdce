"""DNS: well-formed questions get one answer, everything else an error or silence, and nothing loops."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staddle.network.rules import dns

V4, V6 = bytes((198, 18, 1, 0)), bytes.fromhex("20010002" + "0" * 24)


def wire(name: str) -> bytes:
    return b"".join(bytes([len(x)]) + x.encode() for x in name.split(".")) + b"\0"


def ask(
    name: str = "api.example.com",
    kind: int = dns.A,
    *,
    extra: bytes = b"",
    counts: tuple[int, ...] = (1, 0, 0, 0),
) -> bytes:
    return struct.pack(">HHHHHH", 0x1234, 0x0100, *counts) + wire(name) + struct.pack(">HH", kind, 1) + extra


def edns(size: int = 4096, version: int = 0) -> bytes:
    return b"\0" + struct.pack(">HHIH", dns.OPT, size, version << 16, 0)


def code(answer: bytes) -> int:
    return answer[3] & 15


def count(answer: bytes) -> int:
    return struct.unpack_from(">H", answer, 6)[0]


def test_a_question_is_read_and_repeated_as_it_was_written() -> None:
    question = dns.parse(ask("API.Example.com"))
    assert question.name == "api.example.com"
    answer = dns.address_answer(question, V4, V6)
    assert answer[:2] == b"\x12\x34"
    assert wire("API.Example.com") in answer
    assert answer.endswith(V4)
    assert (code(answer), count(answer)) == (dns.OK, 1)


@pytest.mark.parametrize(("kind", "records"), [(dns.A, [V4]), (dns.AAAA, [V6]), (dns.ANY, [V4, V6])])
def test_addresses_are_given_for_their_types(kind: int, records: list[bytes]) -> None:
    answer = dns.address_answer(dns.parse(ask(kind=kind)), V4, V6)
    assert count(answer) == len(records)
    assert all(record in answer for record in records)


@pytest.mark.parametrize("kind", [dns.HTTPS, dns.SVCB, 2, 5, 6, 12, 15, 16, 33, 257, 0, 65535])
def test_other_types_exist_without_content(kind: int) -> None:
    answer = dns.address_answer(dns.parse(ask(kind=kind)), V4, V6)
    assert (code(answer), count(answer)) == (dns.OK, 0)


@pytest.mark.parametrize("kind", [249, 250, 251, 252, 253, 254])
def test_transfers_and_keys_are_not_implemented(kind: int) -> None:
    assert dns.problem(dns.parse(ask(kind=kind))) == dns.NOT_IMPLEMENTED


def test_without_ipv6_there_is_no_aaaa() -> None:
    answer = dns.address_answer(dns.parse(ask(kind=dns.AAAA)), V4, None)
    assert (code(answer), count(answer)) == (dns.OK, 0)


def test_edns_is_answered_with_edns_and_another_version_is_not() -> None:
    question = dns.parse(ask(extra=edns(), counts=(1, 0, 0, 1)))
    assert question.room == dns.LARGE
    assert dns.address_answer(question, V4, None)[10:12] == b"\0\1"
    assert dns.problem(question) is None
    newer = dns.parse(ask(extra=edns(version=1), counts=(1, 0, 0, 1)))
    bad = dns.problem(newer)
    assert bad == 16
    assert dns.error_answer(newer, bad)[3] & 15 == 0  # its upper bits are in the EDNS record
    assert dns.parse(ask(extra=edns(size=1), counts=(1, 0, 0, 1))).room == dns.SMALL


def test_an_answer_that_does_not_fit_is_cut_and_says_so() -> None:
    question = dns.parse(ask()).replace(room=40)
    answer = dns.address_answer(question, V4, V6)
    assert answer[2] & 0x02
    assert count(answer) == 0
    assert not dns.address_answer(dns.parse(ask(), over_tcp=True), V4, V6)[2] & 0x02


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\0" * 11,
        b"\0" * (dns.LONGEST_QUERY + 1),
        struct.pack(">HHHHHH", 1, 0x8180, 1, 0, 0, 0) + wire("a.com") + b"\0\1\0\1",
    ],
)
def test_no_message_and_answers_get_silence(packet: bytes) -> None:
    with pytest.raises(dns.DnsFormatError) as caught:
        dns.parse(packet)
    assert not isinstance(caught.value, dns.Unanswerable)


@pytest.mark.parametrize(
    "packet",
    [
        ask(counts=(0, 0, 0, 0)),
        ask(counts=(2, 0, 0, 0)),
        ask(counts=(1, 1, 0, 0)),
        ask(counts=(1, 0, 0, 1)),
        ask(counts=(1, 0, 0, 9)),
        ask(extra=b"x"),
        ask(extra=edns() + edns(), counts=(1, 0, 0, 2)),
        ask()[:-1],
        ask()[:20],
        struct.pack(">HHHHHH", 1, 0, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1",  # points at itself
        struct.pack(">HHHHHH", 1, 0, 1, 0, 0, 0) + b"\x01a\xc0\x0c\0\1\0\1",
        struct.pack(">HHHHHH", 1, 0, 1, 0, 0, 0) + b"\x40" + b"a" * 64 + b"\0\0\1\0\1",
        struct.pack(">HHHHHH", 1, 0, 1, 0, 0, 0) + (b"\x3f" + b"a" * 63) * 4 + b"\0\0\1\0\1",  # 256 bytes
    ],
)
def test_malformed_questions_get_a_format_error(packet: bytes) -> None:
    with pytest.raises(dns.Unanswerable) as caught:
        dns.parse(packet)
    assert code(caught.value.answer) == dns.FORMAT_ERROR
    assert caught.value.answer[2] & 0x80


def test_other_operations_are_not_implemented() -> None:
    with pytest.raises(dns.Unanswerable) as caught:
        dns.parse(struct.pack(">HHHHHH", 1, 0x2800, 1, 0, 0, 0) + wire("a.com") + b"\0\1\0\1")
    assert code(caught.value.answer) == dns.NOT_IMPLEMENTED


@pytest.mark.parametrize("label", [b"a.b", b"a\0b", b"a b", b"\xff", b"a/b", b"a\nb", b"*", b"a\\b"])
def test_labels_that_are_in_no_host_name_make_no_name(label: bytes) -> None:
    packet = struct.pack(">HHHHHH", 1, 0, 1, 0, 0, 0) + bytes([len(label)]) + label + b"\3com\0\0\1\0\1"
    assert dns.parse(packet).name is None


def test_tcp_frames_come_whole_and_one_by_one() -> None:
    stream = dns.framed(ask()) + dns.framed(ask("b.com"))
    for cut in range(len(dns.framed(ask()))):
        assert dns.unframed(stream[:cut]) is None
    first = dns.unframed(stream)
    assert first is not None
    assert first[0] == ask()
    assert dns.unframed(first[1]) == (ask("b.com"), b"")
    for length in (0, 11, dns.LONGEST_QUERY + 1, 65535):
        with pytest.raises(dns.DnsFormatError):
            dns.unframed(struct.pack(">H", length))


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("0.1.18.198.in-addr.arpa", V4),
        ("0." * 20 + "0.0.0.0.2.0.0.0.1.0.0.2.ip6.arpa", V6),
        ("1.18.198.in-addr.arpa", None),
        ("256.1.18.198.in-addr.arpa", None),
        ("x.1.18.198.in-addr.arpa", None),
        ("in-addr.arpa", None),
        ("g." * 32 + "ip6.arpa", None),
    ],
)
def test_reverse_names_mean_addresses(name: str, address: bytes | None) -> None:
    assert dns.address_in(name) == address


def test_a_pointer_is_answered_with_the_name() -> None:
    answer = dns.pointer_answer(dns.parse(ask("0.1.18.198.in-addr.arpa", dns.PTR)), "api.example.com")
    assert answer.endswith(wire("api.example.com"))


# Answers from outside.


def reply(
    records: bytes, number: int, *, identity: int = 7, flags: int = 0x8180, name: str = "api.example.com"
) -> bytes:
    return (
        struct.pack(">HHHHHH", identity, flags, 1, number, 0, 0)
        + wire(name)
        + struct.pack(">HH", 1, 1)
        + records
    )


def record(owner: bytes, kind: int, data: bytes, ttl: int = 60) -> bytes:
    return owner + struct.pack(">HHIH", kind, 1, ttl, len(data)) + data


def test_our_own_question_can_be_read_and_its_answer_is_found() -> None:
    question = dns.parse(dns.query(7, "api.example.com", dns.A))
    assert (question.name, question.kind, question.identity) == ("api.example.com", dns.A, 7)
    answer = dns.read_answer(reply(record(b"\xc0\x0c", dns.A, V4, 20), 1), 7, "api.example.com", dns.A)
    assert (answer.addresses, answer.ttl, answer.truncated) == ((V4,), 20, False)


def test_aliases_are_followed_within_the_answer() -> None:
    records = record(b"\xc0\x0c", dns.CNAME, wire("b.com"), 10) + record(
        wire("b.com"), dns.CNAME, wire("C.com")
    )
    records += record(wire("c.com"), dns.A, V4) + record(wire("other.com"), dns.A, bytes(4))
    answer = dns.read_answer(reply(records, 4), 7, "api.example.com", dns.A)
    assert (answer.addresses, answer.aliases) == ((V4,), ("b.com", "c.com"))


def test_a_loop_of_aliases_ends() -> None:
    records = record(b"\xc0\x0c", dns.CNAME, wire("b.com")) + record(
        wire("b.com"), dns.CNAME, wire("api.example.com")
    )
    assert dns.read_answer(reply(records, 2), 7, "api.example.com", dns.A).addresses == ()


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        reply(b"", 0, identity=8),
        reply(b"", 0, flags=0x0180),
        reply(b"", 0, name="evil.com"),
        reply(record(b"\xc0\x0c", dns.A, V4)[:-1], 1),
        reply(b"", 5),
        reply(b"\xc0\x21" + b"\0" * 10, 1),  # a pointer to itself
        reply(b"\xc0\xff" + b"\0" * 10, 1),
        reply(record(b"\xc0\x0c", dns.CNAME, b"\xc0\x2d"), 1),
    ],
)
def test_answers_to_something_else_are_no_answers(packet: bytes) -> None:
    with pytest.raises(dns.DnsFormatError):
        dns.read_answer(packet, 7, "api.example.com", dns.A)


def test_records_of_the_wrong_length_or_class_are_skipped() -> None:
    wrong = record(b"\xc0\x0c", dns.A, b"123") + b"\xc0\x0c" + struct.pack(">HHIH", dns.A, 3, 60, 4) + V4
    assert dns.read_answer(reply(wrong, 2), 7, "api.example.com", dns.A).addresses == ()


@given(st.binary(max_size=600))
def test_no_bytes_break_the_parser(packet: bytes) -> None:
    try:
        question = dns.parse(packet)
    except dns.DnsFormatError:
        return
    for answer in (dns.address_answer(question, V4, V6), dns.error_answer(question, dns.NO_SUCH_NAME)):
        assert len(answer) <= max(question.room, len(question.asked) + 12 + 11)


@given(st.binary(max_size=60), st.integers(0, 80), st.integers(0, 255))
def test_flipped_and_cut_packets_are_a_question_or_an_error(tail: bytes, at: int, byte: int) -> None:
    packet = bytearray(ask(extra=edns(), counts=(1, 0, 0, 1)) + tail)
    packet[at % len(packet)] = byte
    try:
        dns.parse(bytes(packet))
    except dns.DnsFormatError:
        pass


@given(st.binary(max_size=400), st.integers(0, 70))
def test_no_answer_from_outside_breaks_the_reader(tail: bytes, number: int) -> None:
    try:
        found = dns.read_answer(reply(tail, number), 7, "api.example.com", dns.A)
    except dns.DnsFormatError:
        return
    assert len(found.addresses) <= dns.MOST_RECORDS
    assert all(len(address) == 4 for address in found.addresses)
