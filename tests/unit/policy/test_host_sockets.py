"""Sockets in granted directories that nobody named: found where the kernel lists them, and masked."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle.policy.host_sockets import mask_host_sockets
from staddle.policy.plan import Grant, Hidden, Plan, Socket
from tests.unit.mounts.plans import plan


class Host:
    """A directory with sockets in it, and the kernel's list of them."""

    def __init__(self, place: Path) -> None:
        self.place, self.table = place, place.parent / "unix"
        place.mkdir()
        self._rows = ["Num       RefCount Protocol Flags    Type St Inode Path"]
        self._open: list[socket.socket] = []

    def bind(self, name: str, as_path: str | None = None) -> str:
        path = self.place / name
        path.parent.mkdir(exist_ok=True)
        made = socket.socket(socket.AF_UNIX)
        self._open.append(made)
        made.bind(str(path))
        self.listed(as_path or str(path))
        return str(path)

    def listed(self, path: str) -> None:
        self._rows.append(f"0000000000000000: 00000002 00000000 00010000 0001 01 12345 {path}")
        self.table.write_text("\n".join(self._rows) + "\n")

    def closed(self, wanted: Plan, but: str = "") -> list[str]:
        return [item.path for item in mask_host_sockets(wanted, but=but, table=str(self.table)).closed]

    def close(self) -> None:
        for made in self._open:
            made.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "d")
    yield made
    made.close()


def granting(path: object, **fields: object) -> Plan:
    return plan(grants=(Grant(str(path), "read", True, "read"),), **fields)


def test_one_in_a_granted_directory_is_closed(host: Host) -> None:
    path, below = host.bind("a.sock"), host.bind("sub/b c.sock")
    host.listed("/run/elsewhere.sock")
    host.listed("@abstract")
    assert host.closed(granting(host.place)) == [path, below]


def test_one_that_is_named_is_not(host: Host) -> None:
    path = host.bind("a.sock")
    assert host.closed(granting(host.place, sockets=(Socket(path, True, "sockets"),))) == []


def test_nor_one_that_cannot_be_seen_or_is_gone(host: Host) -> None:
    host.bind("hidden/a.sock")
    Path(host.bind("gone.sock")).unlink()
    hidden = Hidden(str(host.place / "hidden"), "directory", "deny")
    assert host.closed(granting(host.place, hidden=(hidden,))) == []


def test_a_file_of_that_name_is_none(host: Host) -> None:
    path = Path(host.bind("a.sock"))
    path.unlink()
    path.touch()
    assert host.closed(granting(host.place)) == []


def test_it_is_closed_where_it_is_seen(host: Host) -> None:
    host.bind("sub/a.sock")
    moved = plan(grants=(Grant("/workspace", "write", True, "workspace", str(host.place)),))
    assert host.closed(moved) == ["/workspace/sub/a.sock"]
    assert host.closed(moved, but="/workspace") == []


def test_whoever_bound_it_may_have_spelled_it_otherwise(host: Host, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(host.place)
    path = host.bind("a.sock", as_path=f"{tmp_path}/link/../link/a.sock")
    assert host.closed(granting(host.place)) == [path]


def test_nothing_to_close_is_the_very_same_plan(host: Host) -> None:
    wanted = granting(host.place)
    assert mask_host_sockets(wanted, table=str(host.table)) is wanted
    host.bind("a.sock")
    system = plan(grants=(Grant(str(host.place), "read", True, "system"),))
    assert mask_host_sockets(system, table=str(host.table)) is system
