"""Inside: loopback works, nothing else is reachable, and nothing is left when preparing fails."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from staddle.ipc.gateway_messages import LONGEST, decode_sockets
from staddle.ipc.namespace_spec import NetworkSpec
from staddle.linux import netlink
from staddle.linux.process import SIGKILL, become, death_signal
from staddle.linux.syscalls import call
from staddle.linux.userns import CLONE_NEWNET, CLONE_NEWUSER, map_ids
from staddle.network.host.probe import probe
from staddle.network.namespace.from_policy import network_spec
from staddle.network.namespace.setup import prepare
from staddle.network.namespace.socket_handoff import connected, hand_over, stock
from staddle.network.rules import synthetic
from staddle.policy.network import Network
from tests.support.network_world import in_a_world


def own_network() -> None:
    call("unshare", CLONE_NEWUSER | CLONE_NEWNET)
    map_ids(0, 0, 0, 0)


def unreachable(host: str) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as s:
        s.settimeout(5)
        return s.connect_ex((host, 80)) == errno.ENETUNREACH


@in_a_world
def test_denied_is_a_working_loopback_and_nothing_else() -> None:
    own_network()
    ready = prepare(network_spec(Network.deny()))
    assert ready.sockets == ()
    with socket.create_server(("127.0.0.1", 80)), socket.create_connection(("127.0.0.1", 80)):
        pass
    with socket.create_server(("::1", 80), family=socket.AF_INET6), socket.create_connection(("::1", 80)):
        pass
    for host in ("1.2.3.4", "10.0.0.1", "198.18.1.0", "2001:2::100", "169.254.169.254"):
        assert unreachable(host), host
    assert [name for _, name in socket.if_nameindex()] == ["lo"]


@in_a_world
def test_loopback_ports_are_all_that_is_added() -> None:
    own_network()
    ready = prepare(network_spec(Network.loopback([5432])))
    assert [label for label, _ in ready.sockets] == [("forward", b"\x7f\0\0\1", 5432)]
    assert unreachable("1.2.3.4")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 5433))


@in_a_world
def test_without_nftables_what_is_not_allowed_has_no_route() -> None:
    own_network()
    prepare(network_spec(Network.allow("a.com:443", "10.1.0.0/16:80")), redirect=False)
    for host in ("1.2.3.4", "10.2.0.1", "2606:4700::1"):
        assert unreachable(host), host


@in_a_world
def test_preparing_again_in_the_same_place_changes_nothing() -> None:
    own_network()
    wanted = network_spec(Network.allow("10.1.0.0/16:80"))
    first = prepare(wanted, redirect=False)
    for _, each in first.sockets:
        each.close()
    second = prepare(wanted, redirect=False)
    assert [label for label, _ in first.sockets] == [label for label, _ in second.sockets]


@in_a_world
def test_when_preparing_fails_nothing_stays_open() -> None:
    own_network()
    before = set(os.listdir("/proc/self/fd"))
    local = socket.inet_aton("127.0.0.1")
    with pytest.raises(OSError, match="in use"):
        prepare(NetworkSpec(forwards=((local, 80), (local, 81), (local, 80))))
    assert set(os.listdir("/proc/self/fd")) <= before


@in_a_world
def test_sockets_arrive_with_their_labels_and_ours_are_closed() -> None:
    own_network()
    ports = tuple(range(1000, 1300))  # more than one message holds
    before = len(os.listdir("/proc/self/fd"))
    ready = prepare(network_spec(Network.loopback(ports)))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
    hand_over(ours.fileno(), ready)
    found: list[int] = []
    for _ in range(3):
        data, fds, _, _ = socket.recv_fds(theirs, LONGEST, 253)
        for label, fd in zip(decode_sockets(data, len(fds)).labels, fds, strict=True):
            with socket.socket(fileno=fd) as made:
                assert made.getsockname() == ("127.0.0.1", label[2])
            found.append(label[2])
    assert tuple(found) == ports
    ours.close()
    theirs.close()
    assert len(os.listdir("/proc/self/fd")) <= before


@in_a_world
def test_a_socket_made_inside_connects_inside_whoever_holds_it() -> None:
    said, say = os.pipe()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        death_signal(SIGKILL)
        own_network()
        prepare(NetworkSpec())
        server = socket.create_server(("127.0.0.1", 7000))
        hand_over(theirs.fileno(), stock(1))
        os.write(say, connected(7000).getpeername()[0].encode())
        for _ in range(2):
            server.accept()[0].sendall(b"inside")
        os._exit(0)
    theirs.close()
    os.close(say)
    assert os.read(said, 100) == b"127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 7000))
    _, fds, _, _ = socket.recv_fds(ours, LONGEST, 8)
    with socket.socket(fileno=fds[0]) as made:
        made.connect(("::ffff:127.0.0.1", 7000))
        assert made.recv(10) == b"inside"
    os.waitpid(child, 0)


@in_a_world
def test_the_kernels_answers_are_errors() -> None:
    own_network()
    with netlink.Netlink() as kernel:
        with pytest.raises(OSError, match="No such device"):
            kernel.ask(netlink.link_up(4711))
        kernel.ask(netlink.link_up(netlink.LOOPBACK), netlink.local_route(synthetic.V4_NETWORK, 15))
        with pytest.raises(OSError, match="Invalid argument"):
            kernel.ask(netlink.local_route(b"\1\2\3\4", 8))  # host bits beyond the prefix


def test_without_the_right_over_a_namespace_nothing_is_made() -> None:
    child = os.fork()
    if child == 0:
        death_signal(SIGKILL)
        status = 1
        try:
            if os.geteuid() == 0:
                become(65534, 65534)
            prepare(NetworkSpec())
        except PermissionError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert "198.18" not in Path("/proc/net/fib_trie").read_text()


def test_this_machine_has_everything_a_sandbox_can_use() -> None:
    found = probe()
    assert (found.works, found.redirects, found.tells, found.v6) == (True, True, True, True)


@in_a_world
def test_where_no_namespaces_can_be_made_the_probe_says_so() -> None:
    Path("/proc/sys/user/max_net_namespaces").write_text("0")
    assert not probe().works
    assert not probe().redirects
