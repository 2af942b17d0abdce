"""Real programs inside reach what is allowed without one setting; all else fails at once."""

from __future__ import annotations

import shutil
import socket
import time

import pytest

from staddle.linux.netlink import Netlink, local_route
from tests.support.network_servers import echo, http_server, udp_echo
from tests.support.network_world import OTHER, OWN, OWN_V6, PRIVATE, PUBLIC, PUBLIC_V6, in_a_world, sandbox

HOSTS = {
    "api.example.com": PUBLIC,
    "a.wild.example": PUBLIC,
    "b.wild.example": OTHER,
    "six.example.com": PUBLIC_V6,
}

#: What curl says to a connection that is reset, at the moment it sees that.
RESET = (7, 35, 52, 55, 56)
RAW = """
import socket
s = socket.create_connection(({host!r}, {port}), timeout=10)
s.sendall({data!r})
print(s.recv(100).decode())
"""
CONNECT = """
import socket
try:
    socket.create_connection(({host!r}, {port}), timeout=5)
    print("through")
except OSError as error:
    print(type(error).__name__)
"""
SPEAKS_FIRST = """
import socket
s = socket.create_connection(("git.example.com", 22), 10)
print(s.recv(100).decode().strip())
s.sendall(b"SSH-2.0-me\\r\\n")
print(s.recv(100).decode())
"""
NODE = "fetch({url!r}).then(r => r.text()).then(t => console.log(t), e => process.exit(7))"


@pytest.mark.slow
@in_a_world
def test_every_client_fails_at_once_for_what_is_not_allowed() -> None:
    http_server(PUBLIC, 80)
    with sandbox("api.example.com:80", hosts={**HOSTS, "evil.com": PUBLIC}) as inside:
        began = time.monotonic()
        for url in (
            "http://evil.com/",
            f"http://{PUBLIC}/",
            "http://api.example.com:81/",
            f"http://[{PUBLIC_V6}]/",
        ):
            assert inside.run("curl", "-sS", url)[0] in (6, 7)
            assert inside.run("wget", "-qO-", "--tries=1", url)[0] != 0
        assert inside.run("getent", "hosts", "evil.com")[0] == 2
        assert inside.run("bash", "-c", f"exec 3<>/dev/tcp/{PUBLIC}/80")[0] == 1
        if shutil.which("node"):
            assert inside.run("node", "-e", NODE.format(url="http://evil.com/"))[0] == 7
        assert time.monotonic() - began < 60
        refused = {(a.host, a.port, a.allow) for a in inside.attempts() if a.outcome == "refused"}
        assert ("evil.com", 0, "evil.com") in refused
        assert (PUBLIC, 80, f"{PUBLIC}:80") in refused
        assert ("api.example.com", 81, "api.example.com:81") in refused
        assert (PUBLIC_V6, 80, f"[{PUBLIC_V6}]:80") in refused


@pytest.mark.slow
@in_a_world
def test_the_hosts_own_services_are_not_there() -> None:
    for host in ("127.0.0.1", PRIVATE):
        echo(host, 7777)
        socket.create_connection((host, 7777), 5).close()  # they are there, for the host
    with sandbox("api.example.com", hosts={"api.example.com": PUBLIC}) as inside:
        for spelling in ("127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0.0.0.0", "::1",
                         "::ffff:127.0.0.1", PRIVATE, "169.254.169.254", "fd00:ec2::254"):  # fmt: skip
            code = CONNECT.format(host=spelling, port=7777)
            assert inside.python(code) in ("ConnectionRefusedError", "OSError", "gaierror"), spelling


@in_a_world
def test_a_name_does_not_lead_to_a_private_address() -> None:
    echo(PRIVATE, 80)
    echo("127.0.0.1", 80)
    names = {"a.example.com": PRIVATE, "b.example.com": "127.0.0.1", "c.example.com": "169.254.169.254"}
    with sandbox(*names, hosts=names) as inside:
        for name in names:
            assert inside.run("curl", "-sS", f"http://{name}/")[0] in RESET
        told = inside.attempts()
        assert {a.host for a in told if a.outcome == "refused"} == set(names)
        assert f"{PRIVATE}:80" in {a.allow for a in told}


@in_a_world
def test_a_name_does_not_lead_to_an_address_of_the_host() -> None:
    """Services that listen on every address are not meant for a sandbox."""
    for host in ("0.0.0.0", "::"):
        echo(host, 2375)
    own = socket.inet_pton(socket.AF_INET6, OWN_V6)
    with Netlink() as kernel:  # a network of which every address is the host's, without having one
        kernel.ask(local_route(own[:8] + bytes([1]) + bytes(7), 72))
    routed = socket.inet_ntop(socket.AF_INET6, own[:8] + bytes([1]) + own[9:])
    names = {
        "a.example.com": OWN,
        "b.example.com": OWN_V6,
        "c.example.com": routed,
        "d.example.com": f"::ffff:{OWN}",
    }
    for address in (OWN, OWN_V6, routed):
        with socket.create_connection((address, 2375), 5) as control:
            control.sendall(b"hello")
            assert control.recv(5) == b"hello"
    with sandbox(*(f"{name}:2375" for name in names), hosts=names) as inside:
        for name in names:
            assert inside.run("curl", "-sS", f"http://{name}:2375/")[0] in RESET, name
        told = inside.attempts()
        assert {a.host for a in told if a.outcome == "refused"} == set(names)
        assert all("this machine" in a.why for a in told if a.outcome == "refused"), told
        assert f"{OWN}:2375" in {a.allow for a in told}
    with sandbox("a.example.com:2375", f"{OWN}:2375", hosts=names) as inside:
        assert inside.python(RAW.format(host="a.example.com", port=2375, data=b"ping")) == "ping"


@in_a_world
def test_a_datagram_for_a_name_does_not_lead_to_an_address_of_the_host() -> None:
    udp_echo("0.0.0.0", 53)
    with sandbox("udp://a.example.com:53", hosts={"a.example.com": OWN}) as inside:
        code = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1)
s.sendto(b"hello", (socket.gethostbyname("a.example.com"), 53))
try: print(s.recv(10))
except OSError as error: print(type(error).__name__)
"""
        assert inside.python(code) in ("TimeoutError", "ConnectionRefusedError")
        assert {a.host for a in inside.attempts() if a.outcome == "refused"} == {"a.example.com"}


@pytest.mark.slow
@in_a_world
def test_an_address_that_is_allowed_itself_is_reached_directly_and_behind_a_name() -> None:
    echo(PRIVATE, 5432)
    echo("127.0.0.1", 5433)
    entries = ("db.example.com:5432", f"{PRIVATE}:5432", "local.example.com:5433", "127.0.0.1:5433")
    with sandbox(*entries, hosts={"db.example.com": PRIVATE, "local.example.com": "127.0.0.1"}) as inside:
        for host, port in (
            ("db.example.com", 5432),
            (PRIVATE, 5432),
            ("local.example.com", 5433),
            ("127.0.0.1", 5433),
        ):
            assert inside.python(RAW.format(host=host, port=port, data=b"ping")) == "ping"


@pytest.mark.slow
@in_a_world
def test_networks_and_ipv6_are_reached() -> None:
    http_server(PUBLIC_V6, 80)
    echo(PRIVATE, 9999)
    with sandbox("10.1.0.0/16:9999", f"[{PUBLIC_V6}]:80", "six.example.com", hosts=HOSTS) as inside:
        assert inside.run("curl", "-sS", f"http://[{PUBLIC_V6}]/")[1] == f"hello from [{PUBLIC_V6}]"
        assert inside.run("curl", "-sS", "http://six.example.com/")[1] == "hello from six.example.com"
        assert inside.run("curl", "-6sS", "http://six.example.com/")[1] == "hello from six.example.com"
        assert inside.run("curl", "-4sS", "http://six.example.com/")[1] == "hello from six.example.com"
        assert inside.python(RAW.format(host=PRIVATE, port=9999, data=b"ping")) == "ping"
        assert inside.run("curl", "-sS", f"http://{PRIVATE}:9998/")[0] == 7
        assert inside.run("curl", "-sS", "http://10.2.0.1:9999/")[0] == 7


@in_a_world
def test_deny_entries_win() -> None:
    echo(PRIVATE, 9999)
    echo(PUBLIC, 9999)
    names = {"a.wild.example": PUBLIC, "no.wild.example": PUBLIC}
    with sandbox("*.wild.example", "!no.wild.example", "10.0.0.0/8", f"!{PRIVATE}", hosts=names) as inside:
        assert inside.python(RAW.format(host="a.wild.example", port=9999, data=b"ping")) == "ping"
        assert inside.run("getent", "ahosts", "no.wild.example")[0] == 2
        assert inside.run("curl", "-sS", f"telnet://{PRIVATE}:9999")[0] in RESET
        rules = {a.why for a in inside.attempts() if a.outcome == "refused"}
        assert any("!no.wild.example" in rule for rule in rules)
        assert any(f"!{PRIVATE}" in rule for rule in rules)


@in_a_world
def test_servers_inside_have_every_port_for_themselves() -> None:
    http_server(PUBLIC, 80)
    with sandbox("api.example.com", hosts=HOSTS) as inside:
        code = """
import socket, threading, urllib.request
servers = [socket.create_server(("0.0.0.0", p)) for p in (80, 443, 22, 8000)]
servers += [socket.create_server(("::", p), family=socket.AF_INET6, dualstack_ipv6=False) for p in (80, 443)]
def serve():
    c, _ = servers[0].accept(); c.recv(1000); c.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\nmine"); c.close()
threading.Thread(target=serve, daemon=True).start()
print(urllib.request.urlopen("http://127.0.0.1/").read().decode())
print(urllib.request.urlopen("http://api.example.com/").read().decode())
"""
        assert inside.python(code).split("\n") == ["mine", "hello from api.example.com"]


@pytest.mark.slow
@in_a_world
def test_a_host_header_must_agree() -> None:
    http_server(PUBLIC, 80)
    with sandbox("api.example.com", hosts=HOSTS) as inside:
        lying = inside.run("curl", "-sS", "-H", "Host: evil.com", "http://api.example.com/")
        assert lying[0] in RESET
        proxied = inside.run("curl", "-sS", "-x", "http://api.example.com:80", "http://evil.com/")
        assert proxied[0] in RESET
        tunnelled = inside.run("curl", "-sS", "-px", "http://api.example.com:80", "https://evil.com/")
        assert tunnelled[0] in RESET
        assert inside.run("curl", "-sS", "http://api.example.com/")[1] == "hello from api.example.com"


@in_a_world
def test_servers_that_speak_first_are_heard() -> None:
    echo(PUBLIC, 22, b"SSH-2.0-test\r\n")
    with sandbox("git.example.com:22", hosts={"git.example.com": PUBLIC}) as inside:
        assert inside.python(SPEAKS_FIRST).split() == ["SSH-2.0-test", "SSH-2.0-me"]


@pytest.mark.slow
@in_a_world
def test_udp_goes_where_it_was_asked_for_and_comes_back_from_there() -> None:
    udp_echo(PUBLIC, 53)
    udp_echo(PRIVATE, 514)
    udp_echo(OTHER, 123)
    udp_echo(PUBLIC_V6, 53)
    entries = (f"udp://{PUBLIC}:53", "udp://10.1.0.0/16:514", "udp://time.example.com:123")
    entries += (f"udp://[{PUBLIC_V6}]:53",)
    code = (
        """
import socket
def ask(host, port):
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)
    try:
        s.connect((host, port)); s.send(b"ping")
        return s.recv(100).decode()
    except OSError as error:
        return type(error).__name__
print(ask({PUBLIC!r}, 53), ask({PRIVATE!r}, 514), ask("time.example.com", 123), ask({V6!r}, 53))
print(ask({PUBLIC!r}, 54), ask("8.8.8.8", 53), ask({PRIVATE!r}, 515), ask("time.example.com", 124))
""".replace("{PUBLIC!r}", repr(PUBLIC))
        .replace("{PRIVATE!r}", repr(PRIVATE))
        .replace("{V6!r}", repr(PUBLIC_V6))
    )
    with sandbox(*entries, hosts={"time.example.com": OTHER}) as inside:
        lines = inside.python(code).split("\n")
        assert lines[0] == "PING PING PING PING"
        assert set(lines[1].split()) <= {"OSError", "ConnectionRefusedError", "PermissionError"}
        assert {"8.8.8.8:53", f"{PUBLIC}:54"} <= set(inside.refused())
