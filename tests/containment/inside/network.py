"""The network, when the policy denies it: no address, no family, no way around connect()."""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess

from .kit import Refused, World, attack, call, twin

# No such family, no route, nobody there in a network of our own, or refused by a rule.
GONE = "EAFNOSUPPORT ENETUNREACH EHOSTUNREACH ECONNREFUSED EACCES EPERM EADDRNOTAVAIL"
NO_FAMILY = "EAFNOSUPPORT EPERM EACCES EPROTONOSUPPORT ESOCKTNOSUPPORT"


def _connect(family: int, where: tuple, kind: int = socket.SOCK_STREAM, protocol: int = 0) -> str:
    with socket.socket(family, kind, protocol) as s:
        s.settimeout(3)
        s.connect(where)
    return repr(where)


@attack("network", GONE)
def connect_to_loopback(world: World) -> str:
    return _connect(socket.AF_INET, ("127.0.0.1", world["tcp_port"]))


@attack("network", GONE)
def connect_to_loopback_by_other_spellings(world: World) -> str:
    last = OSError(errno.ENETUNREACH, "none")
    for spelling in ("127.0.0.2", "0.0.0.0", "127.255.255.254"):
        try:
            return _connect(socket.AF_INET, (spelling, world["tcp_port"]))
        except OSError as error:
            last = error
    raise last


@attack("network", GONE)
def connect_to_loopback_by_ipv6(world: World) -> str:
    return _connect(socket.AF_INET6, ("::1", world["tcp6_port"]))


@attack("network", GONE)
def connect_to_loopback_by_mapped_address(world: World) -> str:
    return _connect(socket.AF_INET6, ("::ffff:127.0.0.1", world["tcp_port"]))


@attack("network", GONE + " EOPNOTSUPP")
def connect_by_fast_open(world: World) -> str:
    with socket.socket(socket.AF_INET) as s:
        s.sendto(b"fast open", socket.MSG_FASTOPEN, ("127.0.0.1", world["tcp_port"]))
    return "sent"


@attack("network", GONE + " EPROTONOSUPPORT ENOPROTOOPT")
def connect_by_multipath(world: World) -> str:
    return _connect(socket.AF_INET, ("127.0.0.1", world["tcp_port"]), protocol=262)


@attack("network", GONE)
def send_a_datagram(world: World) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("127.0.0.1", world["udp_port"]))
        s.settimeout(0.2)
        for _ in range(3):  # the answer is a packet, and may be lost
            s.send(b"datagram")
            try:
                s.recv(1)  # in a network of our own the kernel answers "port unreachable" here
            except TimeoutError:
                pass
    return "sent"


@attack("network", GONE + " nothing")
def connect_from_a_shell(world: World) -> str:
    script = f"exec 3<>/dev/tcp/127.0.0.1/{world['tcp_port']} && echo reached >&3"
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, check=False)
    if done.returncode:
        raise Refused(done.stderr.decode("utf-8", "replace"))
    return "reached"


@attack("network", GONE, control="")
def connect_to_the_metadata_service(world: World) -> str:
    """No control: nobody listens there on the test machine."""
    return _connect(socket.AF_INET, ("169.254.169.254", 80))


@attack("network", GONE + " ECONNRESET EPIPE nothing", control="")
def connect_by_way_of_the_gateway(world: World) -> bytes:
    """Its own listener, addresses that stand for no name, and one of the list at another port.

    No control: without a sandbox nobody is there.
    """
    last = OSError(errno.ENETUNREACH, "none")
    for where in (
        *(("198.18.0.1", 1), ("198.18.0.1", world["tcp_port"]), ("198.18.1.99", world["tcp_port"])),
        *(("192.0.2.1", world["tcp_port"]), ("2001:2::1", 1), ("2001:2::1ff", world["tcp6_port"])),
    ):
        try:
            with socket.create_connection(where, 3) as s:
                s.sendall(b"GET / HTTP/1.0\r\n\r\n")
                if answer := s.recv(100):
                    return answer
                last = OSError(errno.ECONNRESET, "it was closed")
        except OSError as error:
            last = error
    raise last


@attack("network", GONE + " nothing")
def find_an_interface_of_the_host(world: World) -> list[str]:
    others = [name for _, name in socket.if_nameindex() if name not in world["pseudo_interfaces"]]
    if not others:
        raise Refused("only a loopback")
    return others


@attack("network", NO_FAMILY + " nothing")
def ask_the_routing_table(world: World) -> bytes:
    """Dump the host's addresses by netlink; an empty network of our own may answer, with lo only."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.settimeout(3)
        request = struct.pack("=IHHIIBBHiII", 32, 18, 0x301, 1, 0, 0, 0, 0, 0, 0, 0)
        s.send(request)
        answer = s.recv(65536)
    if not any(name.encode() + b"\0" in answer for name in world["interfaces"] if name != "lo"):
        raise Refused("it shows no interface of the host")
    return answer[:100]


FAMILIES = {
    "packet": (17, socket.SOCK_RAW, 0x0300, "root"),
    "netlink-audit": (16, socket.SOCK_RAW, 9, "plain"),
    "netlink-netfilter": (16, socket.SOCK_RAW, 12, "plain"),
    "netlink-generic": (16, socket.SOCK_RAW, 16, "plain"),
    "netlink-uevent": (16, socket.SOCK_RAW, 15, "plain"),
    "vsock": (40, socket.SOCK_STREAM, 0, "plain"),
    "xdp": (44, socket.SOCK_RAW, 0, "root"),
    "alg": (38, socket.SOCK_SEQPACKET, 0, "plain"),
    "bluetooth": (31, socket.SOCK_RAW, 1, "plain"),
    "tipc": (30, socket.SOCK_STREAM, 0, "plain"),
    "can": (29, socket.SOCK_RAW, 1, "plain"),
    "smc": (43, socket.SOCK_STREAM, 0, "plain"),
    "raw-ip": (2, socket.SOCK_RAW, 1, "root"),
    "raw-ipv6": (10, socket.SOCK_RAW, 58, "root"),
    "sctp": (2, socket.SOCK_STREAM, 132, "plain"),
    "udplite": (2, socket.SOCK_DGRAM, 136, "plain"),
}


def _declare_families() -> None:
    for name, (family, kind, protocol, control) in FAMILIES.items():

        def make(world: World, family=family, kind=kind, protocol=protocol) -> str:
            call("socket", family, kind, protocol)
            return "made"

        attack(
            "filter",
            NO_FAMILY,
            name=f"socket-{name}",
            control=control,
            optional="EAFNOSUPPORT EPROTONOSUPPORT ESOCKTNOSUPPORT",
            twin="socketpair-and-own-socket",
        )(make)


_declare_families()


@twin
def socketpair_and_own_socket(world: World) -> str:
    one, other = socket.socketpair()
    one.sendall(b"x")
    assert other.recv(1) == b"x"
    path = os.path.join(world["work"], world["name"], "own.sock")
    server = socket.socket(socket.AF_UNIX)
    os.chdir(os.path.dirname(path))
    server.bind("own.sock")
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect("own.sock")
    server.accept()
    return "connected"


@twin
def own_loopback(world: World) -> str:
    server = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(server.getsockname(), 3) as client:
        connection, _ = server.accept()
        client.sendall(b"x")
        assert connection.recv(1) == b"x"
    return "connected"
