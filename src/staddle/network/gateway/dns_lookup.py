"""Names to addresses by nameservers that a policy names, for the HTTP proxy: a lookup that waits.

The gateway has `dns_client`, which never waits. Both ask the same questions, and read answers with the same
code: what comes from a nameserver is hostile.
"""

from __future__ import annotations

import os
import socket
import struct
import time

from staddle.network.rules import dns

#: The port of a nameserver.
PORT = 53
_PATIENCE = 2.0  # seconds for one server
_ROUNDS = 2
_MOST_ADDRESSES = 16


def lookup(name: str, nameservers: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """The addresses of `name` and the aliases that lead to them.

    They are those of /etc/hosts, else what the first server that answers knows.
    """
    known = in_hosts_file(name)
    if known:
        return known, ()
    for server in nameservers * _ROUNDS:
        try:
            answers = [_ask(server, name, kind) for kind in (dns.A, dns.AAAA)]
        except OSError:
            continue
        families = zip((socket.AF_INET, socket.AF_INET6), answers, strict=True)
        found = [socket.inet_ntop(family, each) for family, answer in families for each in answer.addresses]
        return found[:_MOST_ADDRESSES], tuple(alias for answer in answers for alias in answer.aliases)
    return [], ()


def in_hosts_file(name: str) -> list[str]:
    """The addresses of `name` in /etc/hosts."""
    try:
        with open("/etc/hosts", encoding="utf-8", errors="replace") as file:
            lines = [line.partition("#")[0].split() for line in file]
    except OSError:
        return []
    return [words[0] for words in lines if name in (word.lower() for word in words[1:])]


def _ask(server: str, name: str, kind: int) -> dns.DnsAnswer:
    """Ask one server for one family. OSError if it does not answer in time."""
    identity = int.from_bytes(os.urandom(2))
    question = dns.query(identity, name, kind)
    answer = _by_datagram(server, question, identity, name, kind)
    return _by_stream(server, question, identity, name, kind) if answer.truncated else answer


def _by_datagram(server: str, question: bytes, identity: int, name: str, kind: int) -> dns.DnsAnswer:
    deadline = time.monotonic() + _PATIENCE
    # A new socket for every question: its port is part of what a forger has to guess.
    with socket.socket(_family(server), socket.SOCK_DGRAM) as asking:
        asking.connect((server, PORT))
        asking.send(question)
        while (left := deadline - time.monotonic()) > 0:
            asking.settimeout(left)
            try:
                return dns.read_answer(asking.recv(65535), identity, name, kind)
            except dns.DnsFormatError:
                continue  # another one, or forged: the right one may still come
    raise TimeoutError


def _by_stream(server: str, question: bytes, identity: int, name: str, kind: int) -> dns.DnsAnswer:
    with socket.create_connection((server, PORT), _PATIENCE) as asking:
        asking.sendall(dns.framed(question))
        with asking.makefile("rb") as file:
            head = file.read(2)
            if len(head) == 2:
                try:
                    return dns.read_answer(file.read(struct.unpack(">H", head)[0]), identity, name, kind)
                except dns.DnsFormatError as error:
                    raise OSError(None, str(error)) from error
    raise ConnectionResetError


def _family(server: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in server else socket.AF_INET
