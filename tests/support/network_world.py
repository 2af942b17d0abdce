"""A small world in network namespaces of its own: a host with servers, and sandboxes in it.

    @in_a_world
    def test_something(): ...

The test runs in a child that has become "the host": a user and a network namespace in which it
may bind any port and have any address, nothing of which exists outside. The servers that it meets
are in another network namespace, "the internet", behind a pair of virtual interfaces: an address of
the host itself is not one of them. A sandbox is a child of the host, with a network namespace of its
own. Everything ends with the child.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from staddle.ipc.gateway_messages import LONGEST, Attempt
from staddle.linux.mounts import CLONE_NEWNS, MS_BIND, MS_REC, MS_SLAVE, mount
from staddle.linux.netlink import LOOPBACK, Netlink, attribute, link_up, message
from staddle.linux.process import SIGKILL, death_signal
from staddle.linux.syscalls import call
from staddle.linux.userns import CLONE_NEWNET, CLONE_NEWUSER, map_ids
from staddle.network.host.gateway_process import GatewayBounds, GatewayProcess, start
from staddle.network.namespace.from_policy import network_spec
from staddle.network.namespace.setup import prepare
from staddle.network.namespace.socket_handoff import answer, hand_over, is_forward_request
from staddle.policy.network import Network
from staddle.policy.system import RESOLV_CONF

#: Addresses of the made-up internet.
PUBLIC, OTHER, PUBLIC_V6, PRIVATE = "93.184.216.34", "93.184.216.35", "2606:2800:220:1::1", "10.1.2.3"
_INTERNET = (PUBLIC, OTHER, PUBLIC_V6, PRIVATE)
#: Public addresses of the made-up host itself.
OWN, OWN_V6 = "93.184.216.41", "2606:2800:220:2::1"
SECONDS = 60
#: The index of the interface between the two, in both.
_WAN = 77
_LINK = struct.Struct("BxHiII")  # struct ifinfomsg
#: The network namespaces of the host and of the internet, once this process is in such a world.
_places: list[int] = []


def in_a_world(test: Callable[..., None]) -> Callable[..., None]:
    """The test, run by a child that has a host's network for itself."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        said, say = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(said)
            try:
                signal.alarm(SECONDS)
                death_signal(SIGKILL)
                _become_a_host()
                test(*args, **kwargs)
                text = ""
            except BaseException:
                text = traceback.format_exc()
            os.write(say, text.encode("utf-8", "replace")[-60000:])
            os._exit(0 if not text else 1)
        os.close(say)
        with os.fdopen(said, "rb") as file:
            text = file.read().decode()
        _, status = os.waitpid(child, 0)
        assert not text, text
        assert status == 0, f"the world ended with {status}: it took too long"

    return run


def _become_a_host() -> None:
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS)
    map_ids(uid, gid, 0, 0)
    connect_to_internet()


def connect_to_internet() -> None:
    """Make the internet, in a namespace beside this one, and the interfaces between the two."""
    host = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    call("unshare", CLONE_NEWNET)
    internet = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    _places[:] = [host, internet]
    with Netlink() as kernel:
        kernel.ask(link_up(LOOPBACK), _virtual_pair(host), link_up(_WAN), *map(_address, _INTERNET))
        kernel.ask(*map(_route, (OWN, OWN_V6)))
    call("setns", host, CLONE_NEWNET)
    with Netlink() as kernel:
        kernel.ask(link_up(LOOPBACK), link_up(_WAN), *map(_address, (OWN, OWN_V6)))
        kernel.ask(*map(_route, ("0.0.0.0", "::")))


def _packed(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


def _address(text: str) -> bytes:
    """RTM_NEWADDR: an address of the virtual interface, for use by all."""
    packed = _packed(text)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    body = struct.pack("BBBBI", family, 8 * len(packed), 2, 0, _WAN)  # IFA_F_NODAD
    return message(20, 0x604, body + attribute(2, packed) + attribute(1, packed))


def _virtual_pair(host: int) -> bytes:
    """RTM_NEWLINK: a veth interface here, and its peer in the network namespace `host`."""
    peer = _LINK.pack(0, 0, _WAN, 0, 0) + attribute(3, b"wan\0") + attribute(28, struct.pack("I", host))
    kind = attribute(1, b"veth\0") + attribute(2, attribute(1, peer))
    return message(16, 0x604, _LINK.pack(0, 0, _WAN, 0, 0) + attribute(3, b"wan\0") + attribute(18, kind))


def _route(text: str) -> bytes:
    """RTM_NEWROUTE: to this address, or to all of its family, over the virtual interface."""
    packed = _packed(text)
    bits = 8 * len(packed) if any(packed) else 0
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    body = struct.pack("BBBBBBBBI", family, bits, 0, 0, 254, 3, 253, 1, 0)  # main table, on the link
    if bits:
        body += attribute(1, packed)
    return message(24, 0x604, body + attribute(4, struct.pack("I", _WAN)))


@contextmanager
def at(host: str) -> Iterator[None]:
    """Where this address is: sockets that are made meanwhile are on the host, or on the internet."""
    if not _places or host not in _INTERNET:
        yield
        return
    call("setns", _places[1], CLONE_NEWNET)
    try:
        yield
    finally:
        call("setns", _places[0], CLONE_NEWNET)


def come_home() -> None:
    """Back from the internet: this process makes its sockets on the host."""
    call("setns", _places[0], CLONE_NEWNET)


def apart(work: Callable[[], object]) -> int:
    """A process that does `work` for as long as the world stands."""
    child = os.fork()
    if child == 0:
        death_signal(SIGKILL)
        try:
            work()
        finally:
            os._exit(0)
    return child


def status(pid: int) -> dict[str, str]:
    """What /proc says about a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


class Sandbox:
    """A network namespace inside, prepared as the first process of a sandbox does it."""

    def __init__(
        self, network: Network, gateway: GatewayProcess | None, *, redirect: bool = True, asks: bool = False
    ) -> None:
        self.network, self.gateway, self._asks = network, gateway, asks
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.descriptors, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = apart(lambda: self._be(theirs, inside, redirect))
        theirs.close()
        inside.close()
        self.ready = self._receive()

    def _be(self, line: socket.socket, descriptors: socket.socket, redirect: bool) -> None:
        """In the child: prepare, hand over, and then run what comes over the line."""
        call("unshare", CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS)
        map_ids(0, 0, 0, 0)
        if self.network.mode == "allow":
            mount(None, "/", flags=MS_REC | MS_SLAVE)
            mount("tmpfs", "/mnt", "tmpfs")
            Path("/mnt/resolv.conf").write_bytes(RESOLV_CONF)
            mount("/mnt/resolv.conf", os.path.realpath("/etc/resolv.conf"), flags=MS_BIND)
        ready = prepare(network_spec(self.network, asks=self._asks), redirect=redirect)
        hand_over(descriptors.fileno(), ready)
        descriptors.send(f"ready {int(ready.redirects)} {int(ready.v6)}".encode())
        threading.Thread(target=self._forward, args=(descriptors,), daemon=True).start()
        self._serve(line)

    def _forward(self, descriptors: socket.socket) -> None:
        while message := descriptors.recv(LONGEST):
            if is_forward_request(message):
                answer(descriptors.fileno(), message)

    def _serve(self, line: socket.socket) -> None:
        while True:
            size = int.from_bytes(line.recv(4, socket.MSG_WAITALL), "big")
            if not size:
                return
            order = json.loads(line.recv(size, socket.MSG_WAITALL))
            done = subprocess.run(**order, check=False, capture_output=True, text=True, timeout=30)
            said = json.dumps((done.returncode, done.stdout, done.stderr)).encode()
            line.sendall(len(said).to_bytes(4, "big") + said)

    def _receive(self) -> tuple[bool, bool]:
        while True:
            data, fds, _, _ = socket.recv_fds(self.descriptors, LONGEST, 253)
            assert data, "the sandbox has stopped"
            if data.startswith(b"ready"):
                return data[6:7] == b"1", data[8:9] == b"1"
            if self.gateway is not None:
                self.gateway.pass_on(data, fds)
            for fd in fds:
                os.close(fd)

    def run(self, *argv: str, stdin: str = "", env: dict[str, str] | None = None) -> tuple[int, str, str]:
        """Status and output of a command inside, which has no variable about a proxy."""
        plain = {"PATH": "/usr/bin:/bin:/usr/sbin", "HOME": "/tmp", **(env or {})}
        order = json.dumps({"args": argv, "input": stdin, "env": plain}).encode()
        self._line.sendall(len(order).to_bytes(4, "big") + order)
        size = int.from_bytes(self._line.recv(4, socket.MSG_WAITALL), "big")
        code, out, err = json.loads(self._line.recv(size, socket.MSG_WAITALL))
        return code, out, err

    def python(self, code: str) -> str:
        """What a Python program inside prints."""
        status, out, err = self.run(sys.executable, "-I", "-c", code)
        assert status == 0, f"{out}{err}"
        return out.strip()

    def attempts(self) -> list[Attempt]:
        """What the gateway told since the last call."""
        assert self.gateway is not None
        time.sleep(0.05)
        told = self.gateway.attempts()
        assert not [a for a in told if "bug" in a.why]
        return told

    def refused(self) -> list[str]:
        """The destinations that were refused since the last call."""
        return [f"{a.host}:{a.port}" for a in self.attempts() if a.outcome == "refused"]


@contextmanager
def sandbox(
    *entries: str,
    hosts: dict[str, str] | None = None,
    redirect: bool = True,
    bounds: GatewayBounds | None = None,
    nameservers: tuple[tuple[str, int], ...] = (),
) -> Iterator[Sandbox]:
    """A sandbox that may reach these, with a gateway that finds these names in /etc/hosts."""
    with network_of(Network.allow(*entries), hosts or {}, redirect, bounds, nameservers) as made:
        yield made


@contextmanager
def network_of(
    network: Network,
    hosts: dict[str, str] | None = None,
    redirect: bool = True,
    bounds: GatewayBounds | None = None,
    nameservers: tuple[tuple[str, int], ...] = (),
) -> Iterator[Sandbox]:
    """The same for any policy that has a gateway."""
    with start(network, bounds, hosts=tuple((hosts or {}).items()), nameservers=nameservers) as gateway:
        made = Sandbox(network, gateway, redirect=redirect, asks=bool(bounds and bounds.asks))
        try:
            yield made
        finally:
            os.kill(made.pid, SIGKILL)
            os.waitpid(made.pid, 0)
