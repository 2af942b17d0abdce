"""Answers of nameservers, made by hand."""

from __future__ import annotations

import struct

from staddle.network.rules import dns


def aliased(question: dns.DnsQuestion, alias: str, v4: bytes) -> bytes:
    """An answer that the name of the question is an alias, and what the address of that is."""
    name = b"".join(bytes([len(label)]) + label.encode() for label in alias.split(".")) + b"\0"
    records = b"\xc0\x0c" + struct.pack(">HHIH", dns.CNAME, 1, 60, len(name)) + name
    count = 1
    if question.kind == dns.A:
        records += name + struct.pack(">HHIH", dns.A, 1, 60, 4) + v4
        count = 2
    return struct.pack(">HHHHHH", question.identity, 0x8180, 1, count, 0, 0) + question.asked + records
