"""Package indexes and proxies that pip, uv, apt, npm and yarn use on this host, as an allow list."""

from __future__ import annotations

import os

from ...errors import PolicyError
from ..hosts import allow_entry, special
from .sources import MANAGERS, HostFiles, Sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .sources import Manager, PackageIndex


def read(
    managers: Iterable[Manager] = MANAGERS,
    *,
    environ: Mapping[str, str] | None = None,
    home: str | None = None,
    root: str = "",
) -> Sources:
    """The sources that this host is configured with. `root` is put before the path of each file."""
    from . import apt_config, npm_config, pip_config

    variables = os.environ if environ is None else environ
    place = HostFiles(variables, home or variables.get("HOME") or os.path.expanduser("~"), root.rstrip("/"))
    found = Sources()
    readers = {"pip": pip_config.read, "apt": apt_config.read, "npm": npm_config.read}
    for manager in managers:
        if manager not in readers:
            raise PolicyError(
                f"there is no package manager {manager!r}",
                fix=f"use {', '.join(readers)}",
                why="these are known",
            )
        readers[manager](place, found)
    _common_proxies(place, found, managers)
    return found


def _common_proxies(place: HostFiles, found: Sources, managers: Iterable[Manager]) -> None:
    for names in (("https_proxy", "HTTPS_PROXY"), ("http_proxy", "HTTP_PROXY"), ("all_proxy", "ALL_PROXY")):
        said = place.variable(*names)
        if said is not None:
            for manager in managers:
                found.add_proxy(manager, said[1], said[0])


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
