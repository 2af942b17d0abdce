"""Network access of a command."""

from __future__ import annotations

from .. import check
from .._value import Value
from ..errors import PolicyError
from .paths import several

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from .hosts import HostRule

MODES = ("deny", "open", "loopback", "allow")
#: Seconds that a connection waits for an answer of `on_connect`, and as many as can be asked for.
PATIENCE, MOST_PATIENCE = 5.0, 3600.0


class Network(Value):
    """One of four: `deny()`, `open()`, `loopback(ports)`, `allow(*hosts)`. Make it with these.

    `packages()` is a ready `allow`.
    """

    mode: Literal["deny", "open", "loopback", "allow"] = "deny"
    ports: tuple[int, ...] = ()
    rules: tuple[HostRule, ...] = ()
    #: Addresses of the nameservers that find the allowed hosts; none: those of this host.
    dns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check.one_of("network mode", self.mode, MODES, PolicyError)
        is_list = self.mode == "allow"
        is_wrong = bool(self.rules) != is_list or bool(self.dns and not is_list)
        if is_wrong or (self.ports and self.mode != "loopback"):
            raise PolicyError(
                f"network mode {self.mode!r} does not go with these ports, rules or nameservers",
                fix="make it with Network.deny(), open(), loopback() or allow()",
                why="ports are for loopback, rules and dns for allow",
            )

    @classmethod
    def deny(cls) -> Network:
        """No destination can be reached."""
        return cls("deny")

    @classmethod
    def open(cls) -> Network:
        """Everything can be reached, the host's own loopback too."""
        return cls("open")

    @classmethod
    def loopback(cls, ports: Iterable[int] = ()) -> Network:
        """Its own loopback works, and exactly these ports of the host's 127.0.0.1."""
        from .hosts import checked_port

        return cls("loopback", ports=tuple(sorted({checked_port(port) for port in several(ports, "ports")})))

    @classmethod
    def allow(cls, *hosts: str, dns: Iterable[str] = ()) -> Network:
        """Only these hosts. No host at all denies everything; see `hosts` for how to write one.

        `dns` are the addresses of the nameservers that are asked for them, in place of this host's own.
        """
        servers = _nameservers(dns)
        if not hosts:
            return cls("deny")
        from .hosts import parse

        rules = {parse(host) for host in hosts}
        if all(rule.deny for rule in rules):
            raise PolicyError(
                "this allow list has only refusals in it",
                why="entries that start with '!' take away from what the others allow",
                fix="add what should be reached, or use Network.deny()",
            )
        return cls("allow", rules=tuple(sorted(rules, key=str)), dns=servers)

    @classmethod
    def packages(
        cls, *hosts: str, managers: Iterable[str] = ("pip", "apt", "npm"), dns: Iterable[str] = ()
    ) -> Network:
        """Only where this host's own pip, apt and npm get their packages from, and `hosts`.

        Read from their configuration now (files and variables; a mirror behind a private address is
        allowed by that address). Without any, the public indexes. No credential is in it.
        """
        from .package_sources.allow_list import entries
        from .package_sources.sources import MANAGERS

        named = set(managers)
        asked = tuple(name for name in MANAGERS if name in named)
        unknown = named - set(MANAGERS)
        if unknown:
            raise PolicyError(
                f"there is no package manager {sorted(unknown)[0]!r}",
                fix=f"use {', '.join(MANAGERS)}",
                why="these are known",
            )
        return cls.allow(*entries(asked), *hosts, dns=dns)

    def permits(self, host: str, port: int, protocol: str = "tcp") -> bool:
        """Whether `host`, a name or an address, may be reached at `port`. A refusal beats an allowance.

        For `loopback` this is about the host's 127.0.0.1; a sandbox's own is not asked about.
        """
        if self.mode == "open":
            return True
        if self.mode == "loopback":
            return host in ("127.0.0.1", "localhost") and port in self.ports and protocol == "tcp"
        matching = [rule.deny for rule in self.rules if rule.matches(host, port, protocol)]
        return bool(matching) and not any(matching)

    def __str__(self) -> str:
        if self.mode == "allow":
            return f"allow {', '.join(map(str, self.rules))}"
        ports = f" {', '.join(map(str, self.ports))}" if self.ports else ""
        return self.mode + ports


def _nameservers(dns: object) -> tuple[str, ...]:
    if isinstance(dns, tuple) and not dns:
        return ()
    import ipaddress

    found = []
    for server in several(dns, "dns"):
        try:
            found.append(str(ipaddress.ip_address(server)))  # type: ignore[arg-type]
        except ValueError:
            raise PolicyError(
                f"dns has {server!r} in it", why="it is not an IP address", fix="give addresses, not names"
            ) from None
    return tuple(found)


def whole_seconds(patience: object) -> int:
    """The time that a decision of `on_connect` may take, checked and rounded up."""
    fix = "give a number such as 5"
    found = check.seconds("on_connect_timeout", patience, None, MOST_PATIENCE, fix, PolicyError)
    return -int(-found // 1)
