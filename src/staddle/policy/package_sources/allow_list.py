"""Entries of an allow list for the package indexes and proxies that the host uses."""

from __future__ import annotations

from ..addresses import special
from ..hosts import allow_entry
from .reader import read
from .sources import MANAGERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .sources import Manager, PackageIndex, Sources

#: A loopback has these two addresses, whatever a resolver says.
_LOCAL = {"localhost": ("127.0.0.1", "::1")}


def entries(managers: Iterable[Manager] = MANAGERS) -> tuple[str, ...]:
    """For `Network.allow`: every index and proxy of this host's `managers`, at exactly its port."""
    return allowed(read(tuple(managers)), addresses)


def allowed(sources: Sources, resolve: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
    """The entries for `sources`. Where a name leads to a private address, that is an entry as well.

    A name alone does not allow such an address, because its owner could point it at anything; but
    the owner of this name is whom this host has chosen to get its packages from. `resolve` gives
    the addresses of a name as they are now.
    """
    found: dict[str, None] = {}
    for index in (*sources.indexes, *sources.proxies):
        for host in _hosts(index, resolve):
            found[allow_entry(host, index.port)] = None
    return tuple(found)


def _hosts(index: PackageIndex, resolve: Callable[[str], Iterable[str]]) -> Iterable[str]:
    if index.host in _LOCAL:
        return _LOCAL[index.host]
    if _is_address(index.host):
        return (index.host,)
    return (index.host, *(address for address in resolve(index.host) if special(address)))


def _is_address(host: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def addresses(name: str) -> tuple[str, ...]:
    """The addresses of a name; none where it has none now, and then it is not reached either."""
    import socket

    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(sorted({str(item[4][0]).partition("%")[0] for item in found}))
