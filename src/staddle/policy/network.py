"""Network access of a command."""

from __future__ import annotations

from .. import check
from .._value import Value
from ..check import several
from ..errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from ..hostnames import HostRule
    from .http_rules import HttpLimit, HttpRule

MODES = ("deny", "open", "loopback", "allow")
#: Seconds that a connection waits for an answer of `on_connect` (default, maximum).
PATIENCE, MOST_PATIENCE = 5.0, 3600.0


class Network(Value):
    """A network mode. Create it with `deny()`, `open()`, `loopback(ports)` or `allow(*hosts)`.

    `packages()` returns a ready-made `allow`.
    """

    mode: Literal["deny", "open", "loopback", "allow"] = "deny"
    ports: tuple[int, ...] = ()
    rules: tuple[HostRule, ...] = ()
    #: Addresses of the nameservers for the allowed hosts (default: those of this host).
    dns: tuple[str, ...] = ()
    #: Rules about HTTP requests, each with its host. Requests to other hosts are not inspected.
    http: tuple[HttpRule, ...] = ()
    #: Limits of requests, each for one host.
    http_limits: tuple[HttpLimit, ...] = ()

    def __post_init__(self) -> None:
        check.one_of("network mode", self.mode, MODES, PolicyError)
        is_list = self.mode == "allow"
        is_wrong = bool(self.rules) != is_list or bool((self.dns or self.is_inspected) and not is_list)
        if is_wrong or (self.ports and self.mode != "loopback"):
            raise PolicyError(
                f"network mode {self.mode!r} does not go with these ports, rules or nameservers",
                fix="make it with Network.deny(), open(), loopback() or allow()",
                why="ports are for loopback, rules, dns and http for allow",
            )

    @classmethod
    def deny(cls) -> Network:
        """Refuse all destinations."""
        return cls("deny")

    @classmethod
    def open(cls) -> Network:
        """Allow all destinations, including the host's own loopback."""
        return cls("open")

    @classmethod
    def loopback(cls, ports: Iterable[int] = ()) -> Network:
        """Allow the sandbox's own loopback, and exactly these ports of the host's 127.0.0.1."""
        from ..hostnames import checked_port

        return cls("loopback", ports=tuple(sorted({checked_port(port) for port in several(ports, "ports")})))

    @classmethod
    def allow(cls, *hosts: str, dns: Iterable[str] = (), http: Iterable[HttpRule | str] = ()) -> Network:
        """Allow only these hosts; without any, refuse all. See `hosts` for the syntax.

        `dns` lists the addresses of nameservers to ask instead of this host's own. With `http`, only requests
        that a rule allows reach the rule's host: `"GET api.github.com/repos/**"`. A rule without a host is
        about every name in `hosts`. A rule with a host also allows the host, at ports 80 and 443 unless the
        rule has others. Requests to hosts without a rule are not inspected.
        """
        servers = _nameservers(dns)
        if not hosts and not http:
            return cls("deny")
        from ..hostnames import parse

        rules = {rule for host in hosts for rule in _with_loopback(parse(host))}
        requests: tuple[HttpRule, ...] = ()
        if http:
            from .http_rules import with_hosts

            rules, requests = with_hosts(rules, http)
        inert = [rule for rule in rules if not rule.deny and len(_with_loopback(rule)) == 1]
        for rule in (*inert, *(request.host_rule() for request in requests)):
            if f".{rule.host}".endswith(".localhost"):
                raise PolicyError(
                    f"{str(rule)!r} cannot be allowed",
                    why="inside, localhost is the sandbox's own, and requests to it are not inspected",
                    fix="name a port of this host: 127.0.0.1:8080",
                )
        if all(rule.deny for rule in rules):
            raise PolicyError(
                "this allow list has only refusals in it",
                why="entries that start with '!' take away from what the others allow",
                fix="add what should be reached, or use Network.deny()",
            )
        return cls("allow", rules=tuple(sorted(rules, key=str)), dns=servers, http=requests)

    @classmethod
    def git_read_only(cls, *repositories: str) -> Network:
        """Allow `git clone` and `git fetch` over HTTPS, and refuse `git push`.

        A repository is a host or the beginning of a path: `"github.com"`, `"github.com/acme/**"`.
        """
        from .http_rules import git_read_rules

        return cls.allow(http=git_read_rules(repositories))

    def with_http(self, *rules: HttpRule | str) -> Network:
        """Return a copy with more rules about HTTP requests, for an allow list or a denied network."""
        if self.mode not in ("allow", "deny"):
            raise PolicyError(
                f"the network {self.mode} cannot have rules about HTTP requests",
                why="only the destinations of an allow list go through the inspector",
                fix="use Network.allow(..., http=[...])",
            )
        entries = (str(rule) for rule in self.rules)
        found = Network.allow(*entries, dns=self.dns, http=(*self.http, *rules))
        return found.replace(http_limits=self.http_limits) if self.http_limits else found

    def with_http_limit(
        self,
        host: str,
        *,
        requests: int | None = None,
        bytes: int | str | None = None,
        rate: int | None = None,
    ) -> Network:
        """Return a copy in which a sandbox may ask an allowed host for only so much. Replaces its last limit.

        `requests` and `bytes` (of bodies, such as "1G") are for the life of the sandbox, `rate` is requests a
        minute. A request beyond them gets status 429.
        """
        from .http_rules import HttpLimit

        limit = HttpLimit(host, requests, bytes, rate)
        others = (other for other in self.http_limits if other.host != limit.host)
        return self.with_http_limits(*others, limit)

    def with_http_limits(self, *limits: HttpLimit) -> Network:
        """Return a copy with exactly these limits of requests."""
        for limit in limits:
            entry = limit.host_rule()
            host = f"any.{entry.host}" if entry.kind == "subdomains" else entry.host
            if self.mode != "allow" or not any(self.permits(host, port) for port in entry.ports):
                raise PolicyError(
                    f"the limit is for {limit.host}, which the network does not allow",
                    why=f"the network is {self.mode}",
                    fix=f"use Network.allow({limit.host!r}), or leave the limit out",
                )
        return self.replace(http_limits=tuple(sorted(limits, key=str)))

    @property
    def is_inspected(self) -> bool:
        """Whether requests to some hosts go through the HTTP inspector."""
        return bool(self.http or self.http_limits)

    @classmethod
    def packages(
        cls, *hosts: str, managers: Iterable[str] = ("pip", "apt", "npm"), dns: Iterable[str] = ()
    ) -> Network:
        """Allow only the package sources of this host's pip, apt and npm, and `hosts`.

        Reads the current configuration (files and variables). A mirror's private address is also allowed.
        Without a configuration, the public indexes are allowed. No credential is included.
        """
        from ..hostinfo.package_hosts import entries
        from ..hostinfo.package_sources import MANAGERS

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
        """Whether `host`, a name or an address, may be reached at `port`. Refusals override allowances.

        For `loopback`, this is about the host's 127.0.0.1, not about the sandbox's own.
        """
        if self.mode == "open":
            return True
        if self.mode == "loopback":
            return host in ("127.0.0.1", "localhost") and port in self.ports and protocol == "tcp"
        matching = [rule.deny for rule in self.rules if rule.matches(host, port, protocol)]
        return bool(matching) and not any(matching)

    def __str__(self) -> str:
        if self.mode == "allow":
            requests = f"; requests {', '.join(map(str, self.http))}" if self.http else ""
            limits = f"; limits {', '.join(map(str, self.http_limits))}" if self.http_limits else ""
            return f"allow {', '.join(map(str, self.rules))}{requests}{limits}"
        ports = f" {', '.join(map(str, self.ports))}" if self.ports else ""
        return self.mode + ports


def _with_loopback(rule: HostRule) -> tuple[HostRule, ...]:
    """Return the rule, and for localhost:PORT also the address to which programs inside connect."""
    if rule.host == "localhost" and rule.kind == "name" and rule.ports:
        return rule, rule.replace(kind="network", host="127.0.0.1")
    return (rule,)


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
    """Check the timeout for a decision of `on_connect`, and round it up."""
    fix = "give a number such as 5"
    found = check.seconds("on_connect_timeout", patience, None, MOST_PATIENCE, fix, PolicyError)
    return -int(-found // 1)
