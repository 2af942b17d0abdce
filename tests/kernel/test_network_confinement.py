"""Whoever takes the gateway over has nothing: tried out in a process that is confined as it is."""

from __future__ import annotations

import os

import pytest

from tests.support.in_a_child import python

PROBES = {
    "open a file": "os.open('/etc/passwd', os.O_RDONLY)",
    "make a file": "os.open('/tmp/staddle-probe', os.O_RDWR | os.O_CREAT)",
    "list a directory": "os.listdir('/')",
    "start a program": "os.execv('/bin/true', ['true'])",
    "fork": "os.fork()",
    "a UNIX socket": "_socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)",
    "a netlink socket": "_socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, 0)",
    "a raw socket": "_socket.socket(_socket.AF_INET, _socket.SOCK_RAW, 1)",
    "signal its parent": "os.kill(os.getppid(), 0)",
    "another user": "os.setuid(0)",
    "a namespace": "call('unshare', 0x10000000)",
    "look into a process": "call('ptrace', 16, 1, 0, 0)",
    "a key": "call('keyctl', 0, -3, 0)",
    "a listener": "_socket.socket(_socket.AF_INET, _socket.SOCK_STREAM).bind(('127.0.0.1', 0))",
}
CODE = """
import _socket, socket
from staddle.linux.syscalls import call
{confine}
try:
    {probe}
    said = "through"
except OSError as error:
    said = errno.errorcode[error.errno]
os.write(1, said.encode())  # a descriptor that is there: all that is left
os._exit(0)
"""
CONFINE = "from staddle.network.gateway.confinement import confine; confine()"


@pytest.mark.parametrize("probe", PROBES)
def test_it_cannot(probe: str) -> None:
    assert python(CODE.format(confine=CONFINE, probe=PROBES[probe])) in ("EPERM", "EACCES")


@pytest.mark.parametrize(
    "probe",
    [
        "_socket.socket(_socket.AF_INET, _socket.SOCK_STREAM).connect_ex(('127.0.0.1', 1))",
        "_socket.socket(_socket.AF_INET6, _socket.SOCK_DGRAM).setblocking(False)",
        "os.urandom(8)",
        "bytearray(64 << 20)",
        "time.monotonic()",
    ],
)
def test_it_can_still(probe: str) -> None:
    assert python(CODE.format(confine=CONFINE, probe=probe)) == "through"


@pytest.mark.parametrize(
    "probe", ["open a file", "list a directory", "a UNIX socket", "a listener", "signal its parent"]
)
def test_the_probes_get_through_without_confinement(probe: str) -> None:
    assert python(CODE.format(confine="", probe=PROBES[probe])) == "through"


def test_nothing_was_made() -> None:
    assert not os.path.exists("/tmp/staddle-probe")
