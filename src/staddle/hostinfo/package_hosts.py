"""The package indexes and proxies of pip, uv, apt, npm and yarn on this host, as an allow list."""

from __future__ import annotations

import os

from ..errors import PolicyError
from ..hostnames import allow_entry, special
from .package_sources import MANAGERS, HostFiles, Sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .package_sources import Manager, PackageIndex


def read(
    managers: Iterable[Manager] = MANAGERS,
    *,
    environ: Mapping[str, str] | None = None,
    home: str | None = None,
    root: str = "",
) -> Sources:
    """Read the package sources that this host is configured with. `root` is a prefix for all files."""
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


#: The addresses of a loopback, regardless of the resolver.
_LOCAL = {"localhost": ("127.0.0.1", "::1")}


def entries(managers: Iterable[Manager] = MANAGERS) -> tuple[str, ...]:
    """Return the entries for `Network.allow`: all indexes and proxies of `managers`, at their exact ports."""
    sources = read(tuple(managers))
    names = {index.host for index in (*sources.indexes, *sources.proxies)}
    known = every_address(sorted(name for name in names if name not in _LOCAL and not _is_address(name)))
    return allowed(sources, lambda name: known[name])


def allowed(sources: Sources, resolve: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
    """Return the entries for `sources`. A private address behind a name is also an entry.

    A name alone does not allow such an address, because its owner could point it anywhere. But this host
    already trusts the owner of this name with its packages. `resolve` returns the current addresses of a
    name.
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


def every_address(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the current addresses of each name. All are asked for at once: a lookup can take seconds."""
    from ..background import repeat

    left = list(names)

    def look_up() -> tuple[str, tuple[str, ...]]:
        name = left.pop()
        return name, addresses(name)

    return dict(repeat(look_up, len(left), undo=lambda _: None))


def addresses(name: str) -> tuple[str, ...]:
    """Return the current addresses of a name; without any, it cannot be reached either."""
    import _socket

    try:
        # As bytes, ASCII needs no codec for names, which takes longer to import than most lookups.
        asked = name.encode() if name.isascii() else name
        found = _socket.getaddrinfo(asked, None, type=_socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(sorted({str(item[4][0]).partition("%")[0] for item in found}))
