"""The inspector reads all that a client has sent, however its records are cut by the network."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle.hostnames import parse
from staddle.network.inspection.certificates import Authority
from staddle.network.inspection.endpoint import ClientContext, Offer

AUTHORITY = Authority((parse("api.example"),))
CLIENTS = ClientContext(AUTHORITY)
SIZES = st.lists(st.sampled_from([1, 2, 100, 16384, 16385, 40000]), min_size=1, max_size=4)
CUTS = st.lists(st.sampled_from([1, 3, 5, 21, 22, 23, 500, 16406, 100000]), max_size=12)


@settings(max_examples=200, deadline=None)
@given(SIZES, CUTS, st.lists(st.booleans(), min_size=13, max_size=13), st.booleans())
def test_nothing_stays_unread(sizes: list[int], cuts: list[int], reads: list[bool], early: bool) -> None:
    offer = Offer()
    offer.is_read, offer.chosen = True, ""
    ours = CLIENTS.start("api.example", offer)
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cadata=AUTHORITY.pem())
    theirs = context.wrap_bio(into, out, server_hostname="api.example")
    with pytest.raises(ssl.SSLWantReadError):
        theirs.do_handshake()
    ours.feed(out.read())
    ours.handshake()
    into.write(ours.take())
    theirs.do_handshake()
    sent = b""
    if early:  # with the end of the handshake
        theirs.write(b"early")
        sent = b"early"
    ours.feed(out.read())
    assert ours.handshake()
    got = b"" if early and reads[0] else ours.read()[0]
    for size in sizes:
        text = bytes([65 + size % 26]) * size
        theirs.write(text)
        sent += text
    wire = out.read()
    for cut, is_read in zip([*cuts, len(wire)], reads, strict=False):
        piece, wire = wire[:cut], wire[cut:]
        if piece:
            ours.feed(piece)
            got += ours.read()[0] if is_read or not wire else b""
    assert got == sent
