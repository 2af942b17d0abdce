"""A blocking lookup with the policy's nameservers, for the HTTP proxy.

The gateway uses the non-blocking `dns_client`. Both build queries and parse answers with the same code,
because answers from a nameserver are untrusted.
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
    """Return the addresses of `name`, and the aliases that lead to them.

    They come from /etc/hosts, else from the first server that answers.
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
    """Return the addresses of `name` in /etc/hosts."""
    try:
        with open("/etc/hosts", encoding="utf-8", errors="replace") as file:
            lines = [line.partition("#")[0].split() for line in file]
    except OSError:
        return []
    return [words[0] for words in lines if name in (word.lower() for word in words[1:])]


def _ask(server: str, name: str, kind: int) -> dns.DnsAnswer:
    """Ask one server for one address family. Raises OSError if it does not answer in time."""
    identity = int.from_bytes(os.urandom(2))
    question = dns.query(identity, name, kind)
    answer = _by_datagram(server, question, identity, name, kind)
    return _by_stream(server, question, identity, name, kind) if answer.truncated else answer


def _by_datagram(server: str, question: bytes, identity: int, name: str, kind: int) -> dns.DnsAnswer:
    deadline = time.monotonic() + _PATIENCE
    # A new socket for every query: an attacker who forges answers has to guess its port.
    with socket.socket(_family(server), socket.SOCK_DGRAM) as asking:
        asking.connect((server, PORT))
        asking.send(question)
        while (left := deadline - time.monotonic()) > 0:
            asking.settimeout(left)
            try:
                return dns.read_answer(asking.recv(65535), identity, name, kind)
            except dns.DnsFormatError:
                continue  # another answer or a forged one: the real answer may still arrive
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
