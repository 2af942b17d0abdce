"""Names: the resolver inside answers what is allowed, and asks outside for nothing else."""

from __future__ import annotations

import itertools
import os
import socket
import sys
import time
from pathlib import Path

import pytest

from staddle.ipc.gateway_messages import Attempt
from staddle.network.rules import dns
from tests.support.network_servers import http_server, nameserver
from tests.support.network_world import OTHER, PUBLIC, apart, at, in_a_world, sandbox
from tests.support.waiting import PATIENCE, until
from tests.unit.network.rules.answers import aliased

HOSTS = {"api.example.com": PUBLIC}


@pytest.mark.same_for_everyone
@in_a_world
def test_only_allowed_names_are_ever_asked_outside() -> None:
    log = Path(f"/dev/shm/staddle-dns-{os.getpid()}")
    http_server(PUBLIC, 80)
    nameserver(OTHER, {"api.example.com": PUBLIC, "x.wild.example": PUBLIC}, log)
    servers = (("127.0.0.9", 53), (OTHER, 53))  # nobody is at the first one
    try:
        with sandbox("api.example.com", "*.wild.example", nameservers=servers) as inside:
            assert inside.run("curl", "-sS", "http://api.example.com/")[1] == "hello from api.example.com"
            assert inside.run("curl", "-sS", "http://x.wild.example/")[1] == "hello from x.wild.example"
            for name in ("secret-data.evil.com", "evil.com", "wild.example", "a.b.api.example.com"):
                assert inside.run("getent", "ahosts", name)[0] == 2
            # An allowed name that does not exist outside has an address inside and no server behind it.
            assert inside.run("curl", "-sS", "http://nowhere.wild.example/")[0] in (7, 52, 56)
            assert any("knows no address" in a.why for a in inside.attempts())
        asked = set(log.read_text().split())
        assert asked == {"api.example.com", "x.wild.example", "nowhere.wild.example"}
    finally:
        log.unlink(missing_ok=True)


@pytest.mark.same_for_everyone
@in_a_world
def test_an_alias_of_a_refused_name_is_refused() -> None:
    http_server(PUBLIC, 80)
    with at(OTHER):
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind((OTHER, 53))
    aliases = {"api.example.com": "x.cdn.example", "hidden.example": "bad.example"}

    def answer() -> None:
        while True:
            packet, sender = datagrams.recvfrom(4096)
            question = dns.parse(packet)
            alias = aliases[question.name or ""]
            datagrams.sendto(aliased(question, alias, socket.inet_aton(PUBLIC)), sender)

    apart(answer)
    entries = ("api.example.com", "hidden.example", "udp://hidden.example:53", "!bad.example")
    with sandbox(*entries, nameservers=((OTHER, 53),)) as inside:
        assert inside.run("curl", "-sS", "http://api.example.com/")[1] == "hello from api.example.com"
        for _ in range(2):  # the second time the answer is known
            assert inside.run("curl", "-sS", "http://hidden.example/")[0] in (7, 52, 56)
            refused = [(a.host, a.port, a.why) for a in inside.attempts() if a.outcome == "refused"]
            rule = "it is an alias of bad.example, refused by !bad.example"
            assert set(refused) == {("hidden.example", 80, rule)}
            time.sleep(1)  # the same within a second is told once
        send = "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('hidden.example', 53))"
        inside.python(f"import socket; {send}")
        refused = [(a.protocol, a.why) for a in inside.attempts() if a.outcome == "refused"]
        assert [each for each in refused if each[0] == "udp"] == [("udp", rule)]  # curl's may come late


@pytest.mark.same_for_everyone
@in_a_world
def test_an_answer_that_is_too_long_for_a_datagram_comes_over_tcp() -> None:
    log = Path(f"/dev/shm/staddle-dns-{os.getpid()}")
    http_server(PUBLIC, 80)
    nameserver(OTHER, {"api.example.com": PUBLIC}, log, truncate=True)
    try:
        with sandbox("api.example.com", nameservers=((OTHER, 53),)) as inside:
            assert inside.run("curl", "-sS", "http://api.example.com/")[1] == "hello from api.example.com"
    finally:
        log.unlink(missing_ok=True)


@pytest.mark.same_for_everyone
@in_a_world
def test_a_nameserver_that_is_silent_is_a_failure_in_time() -> None:
    with at(OTHER):
        silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        silent.bind((OTHER, 53))
    with sandbox("api.example.com", nameservers=((OTHER, 53),)) as inside:
        assert inside.run("curl", "-sS", "-m", "15", "http://api.example.com/")[0] in (52, 56)
        assert any("no nameserver" in a.why for a in inside.attempts())


@pytest.mark.same_for_everyone
@in_a_world
def test_the_resolver_inside_answers_anything_without_falling_over() -> None:
    with sandbox("api.example.com", hosts=HOSTS) as inside:
        code = """
import os, socket, struct, time
def wire(name): return b"".join(bytes([len(x)]) + x.encode() for x in name.split(".")) + b"\\0"
def ask(name, kind, tcp=False):
    q = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + wire(name) + struct.pack(">HH", kind, 1)
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM); s.settimeout(5)
    s.connect(("127.0.0.53", 53)); s.sendall(struct.pack(">H", len(q)) + q if tcp else q)
    a = s.recv(4096)[2 if tcp else 0:]
    return a[3] & 15, struct.unpack(">H", a[6:8])[0]
print(*(ask("API.example.com", kind) for kind in (1, 28, 65, 16)))
print(ask("evil.com", 1), ask("evil.com", 65), ask("api.example.com", 252), ask("localhost", 1))
print(ask("api.example.com", 1, True), ask("evil.com", 1, True))
print(socket.gethostbyaddr(socket.gethostbyname("api.example.com"))[0])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range(2000): s.sendto(os.urandom(n % 200), ("127.0.0.53", 53))
t = [socket.create_connection(("127.0.0.53", 53)) for _ in range(60)]
for c in t[:20]:
    try: c.sendall(b"\\xff\\xff" + os.urandom(500))
    except OSError: pass
for c in t: c.close()
time.sleep(0.5)  # what does not fit into the queue of a UDP socket is lost
print(ask("api.example.com", 1), ask("api.example.com", 1, True))
"""
        lines = inside.python(code).split("\n")
        assert lines[0] == "(0, 1) (0, 1) (0, 0) (0, 0)"
        assert lines[1] == "(3, 0) (3, 0) (4, 0) (0, 1)"
        assert lines[2] == "(0, 1) (3, 0)"
        assert lines[3] == "api.example.com"
        assert lines[4] == "(0, 1) (0, 1)"


@pytest.mark.slow
@pytest.mark.same_for_everyone
@in_a_world
def test_noise_is_told_within_bounds() -> None:
    with sandbox("api.example.com", hosts=HOSTS) as inside:
        noise = """
import socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range(3000):
    name = b"x%s-%d" % (sys.argv[1].encode(), n)
    asked = b"".join(bytes([len(part)]) + part for part in (name, b"evil", b"com", b""))
    s.sendto(struct.pack("!6H", n, 0x100, 1, 0, 0, 0) + asked + struct.pack("!2H", 1, 1), ("127.0.0.53", 53))
"""
        began, told = time.monotonic(), list[Attempt]()

        def is_told() -> bool:
            told.extend(inside.attempts())
            return any(a.outcome == "note" and "not reported" in a.why for a in told)

        rounds = itertools.count()
        while not is_told():  # however slow the gateway is, there is more than it tells
            assert time.monotonic() - began < PATIENCE
            inside.run(sys.executable, "-Ic", noise, str(next(rounds)))
        assert 100 < len(told) < 300 * (time.monotonic() - began + 2)
        while "calm.evil.com" not in {attempt.host for attempt in inside.attempts()}:  # it was the last
            assert time.monotonic() - began < PATIENCE
            inside.run("getent", "ahostsv4", "calm.evil.com")
        for _ in range(3):
            inside.run("getent", "ahostsv4", "again.evil.com")
        again: list[Attempt] = []

        def is_told_again() -> bool:
            again.extend(a for a in inside.attempts() if a.host == "again.evil.com")
            return sum(a.count for a in again) >= 3

        assert until(is_told_again)
        assert len(again) <= 3
