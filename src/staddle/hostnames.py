"""The parser of host names and addresses, and the table of special addresses. Pure.

    api.example.com              every port, TCP
    github.com:22,443            these ports
    *.github.com:443             subdomains at any depth, not github.com itself
    192.0.2.7:5432               an address
    10.1.0.0/16:5432             a network
    [2001:db8::1]:443            IPv6 with a port needs brackets, a network too: [2001:db8::/32]:443
    udp://192.0.2.53:53          UDP, which needs ports
    !ads.example.com             refused over TCP and UDP, even if another entry allows it

The parser refuses text that two programs could read differently, because attackers have bypassed allow lists
that way. Special addresses are private, loopback, link-local and metadata addresses, also when embedded in
IPv6.
"""

from __future__ import annotations

import ipaddress

from ._value import Value
from .errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
    from typing import Literal

LONGEST_HOST = 253
LONGEST_LABEL = 63
_LABEL = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
_HEX = frozenset("0123456789abcdef")


class HostRule(Value):
    """One entry of an allow list. No ports means every port."""

    kind: Literal["name", "subdomains", "network"]
    host: str
    ports: tuple[int, ...] = ()
    protocol: Literal["tcp", "udp"] = "tcp"
    deny: bool = False

    def matches(self, host: str, port: int, protocol: str = "tcp") -> bool:
        """Whether this entry covers `host` at `port`. An invalid host matches nothing.

        A name never matches an address rule, nor an address a name: check both after resolving a name. A
        refusal without `udp://` refuses both protocols.
        """
        if protocol != self.protocol and not (self.deny and self.protocol == "tcp"):
            return False
        return not (self.ports and port not in self.ports) and self.covers(host)

    def covers(self, host: str) -> bool:
        """Whether this entry covers `host`, at any port and protocol."""
        if host == self.host and self.kind == "name":
            return True  # the spelling of an entry is canonical
        try:
            asked = canonical(host)
        except PolicyError:
            return False
        if self.kind == "network":
            return _looks_numeric(asked) and _contains(self.host, asked)
        if self.kind == "subdomains":
            return asked.endswith(f".{self.host}")
        return asked == self.host

    def __str__(self) -> str:
        host = f"*.{self.host}" if self.kind == "subdomains" else self.host
        ports = f":{','.join(map(str, self.ports))}" if self.ports else ""
        if ports and ":" in host:
            host = f"[{host}]"
        return f"{'!' if self.deny else ''}{'udp://' if self.protocol == 'udp' else ''}{host}{ports}"


def parse(entry: str) -> HostRule:
    """Parse `entry`. Raises PolicyError."""
    if not isinstance(entry, str):
        raise PolicyError(
            f"{entry!r} is not a host",
            why="each host is one piece of text",
            fix='write Network.allow("api.example.com", "10.0.0.0/8:5432")',
        )
    _plain_text(entry)
    deny = entry.startswith("!")
    rest = entry[1:] if deny else entry
    protocol: Literal["tcp", "udp"] = "tcp"
    if "://" in rest:
        scheme, _, rest = rest.partition("://")
        if scheme not in ("tcp", "udp"):
            raise _refused(entry, f"{scheme!r} is not a protocol", "write the host alone, or host:port")
        protocol = "udp" if scheme == "udp" else "tcp"
    host, ports = _split(rest, entry)
    if protocol == "udp" and not ports and not deny:
        raise _refused(entry, "UDP is allowed port by port", f"write {entry}:PORT")
    if host.startswith("*"):
        suffix = host[2:]
        if host == "*":
            raise _refused(entry, "it means every host there is", "use Network.open()")
        if host[1] != "." or "*" in suffix or _looks_numeric(suffix):
            raise _refused(entry, "'*' stands for whole subdomains only", "write *.example.com")
        return HostRule("subdomains", _name(suffix, entry), ports, protocol, deny)
    if "/" in host:
        return HostRule("network", _network(host, entry), ports, protocol, deny)
    if _looks_numeric(host):
        return HostRule("network", _address(host, entry), ports, protocol, deny)
    return HostRule("name", _name(host, entry), ports, protocol, deny)


def allow_entry(host: str, port: int, protocol: Literal["tcp", "udp"] = "tcp") -> str:
    """Return the entry of an allow list that would allow exactly this."""
    shown = f"[{host}]" if ":" in host else host
    return f"{'udp://' if protocol == 'udp' else ''}{shown}:{port}" if port else host


def canonical(host: str) -> str:
    """Return the canonical spelling of a host name or address without port. Raises PolicyError."""
    _plain_text(host)
    if host.startswith("[") and host.endswith("]"):
        return _address(host[1:-1], host)
    return _address(host, host) if _looks_numeric(host) else _name(host, host)


def checked_port(port: object) -> int:
    """Return `port` if it is a valid port number, else raise PolicyError."""
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        raise PolicyError(
            f"{port!r} is not a port",
            why="ports are whole numbers from 1 to 65535",
            fix="write one such as 443",
        )
    return port


def _split(text: str, entry: str) -> tuple[str, tuple[int, ...]]:
    """Split host and ports. Two colons without brackets are an IPv6 address without port."""
    if text.startswith("["):
        host, closed, after = text[1:].partition("]")
        if not closed or ":" not in host or (after and not after.startswith(":")):
            raise _refused(entry, "its brackets are not those of an IPv6 address", "write [2001:db8::1]:443")
        return host, _ports(after[1:], entry) if after else ()
    if text.count(":") > 1:
        return text, ()
    host, colon, after = text.partition(":")
    return host, _ports(after, entry) if colon else ()


def _ports(text: str, entry: str) -> tuple[int, ...]:
    found = set()
    for word in text.split(","):
        if not (word.isascii() and word.isdigit()) or word[0] == "0" or len(word) > 5 or int(word) > 65535:
            raise _refused(
                entry, f"{word!r} is not a port", "write numbers from 1 to 65535, as in example.com:80,443"
            )
        found.add(int(word))
    return tuple(sorted(found))


def _plain_text(text: str) -> None:
    for char in text:
        if char.isspace() or not char.isprintable():
            raise _refused(text, f"it has {char!r} in it", "")
    for char, why in (
        ("@", "a user name is not part of a host"),
        ("%", "escapes and zone names are read differently by different programs"),
    ):
        if char in text:
            raise _refused(text, why, "write the plain name or address")


def _name(name: str, entry: str) -> str:
    if name.endswith("."):
        name = name[:-1]
    if not name.isascii():
        name = ".".join(_ascii_label(label, entry) for label in name.split("."))
    name = name.lower()
    if len(name) > LONGEST_HOST:
        raise _refused(entry, f"it is longer than {LONGEST_HOST} characters", "")
    for label in name.split("."):
        if not label:
            raise _refused(entry, "a part of the name is empty", "")
        if len(label) > LONGEST_LABEL:
            raise _refused(entry, f"a part of it is longer than {LONGEST_LABEL} characters", "")
        if not _LABEL.issuperset(label) or label[0] == "-" or label[-1] == "-":
            raise _refused(entry, f"{label!r} cannot be part of a host name", "")
    if _looks_numeric(name):
        raise _refused(entry, "programs disagree on what such a number means", "write a plain address")
    return name


def _ascii_label(label: str, entry: str) -> str:
    """Return the xn-- form of a non-ASCII label if it decodes to exactly the same label."""
    if label.isascii():
        return label
    try:
        encoded = label.encode("idna").decode("ascii").lower()
        back = encoded.encode("ascii").decode("idna")
    except UnicodeError:
        back = ""
    if back != label.lower() or "." in encoded:
        raise _refused(entry, f"{label!r} has more than one reading", "write its xn-- form")
    return encoded


def _looks_numeric(host: str) -> bool:
    """Whether any program would read `host` as an address: 127.1, 0x7f000001, 2130706433, ::1."""
    if ":" in host:
        return True
    last = host.rstrip(".").rpartition(".")[2].lower()
    return bool(last) and (last.isdigit() or (last.startswith("0x") and _HEX.issuperset(last[2:])))


def _address(text: str, entry: str) -> str:
    import ipaddress

    try:
        return str(_unmapped(ipaddress.ip_address(text)))
    except ValueError:
        raise _not_an_address(entry) from None


def _network(text: str, entry: str) -> str:
    import ipaddress

    address, _, length = text.partition("/")
    if not (length.isascii() and length.isdigit()) or (length[0] == "0" and length != "0"):
        raise _refused(entry, "what follows the '/' is not a prefix length", "write it as in 10.0.0.0/8")
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        try:
            inside = ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise _not_an_address(entry) from None
        raise _refused(entry, f"{address} is inside that network", f"write {inside}") from None
    mapped = network.network_address
    if mapped.version == 6 and mapped.ipv4_mapped is not None and network.prefixlen >= 96:
        return _network(f"{mapped.ipv4_mapped}/{network.prefixlen - 96}", entry)
    return str(mapped) if network.prefixlen == network.max_prefixlen else str(network)


def _contains(network: str, address: str) -> bool:
    import ipaddress

    inside: IPv4Network | IPv6Network = ipaddress.ip_network(network)
    asked = ipaddress.ip_address(address)
    return asked.version == inside.version and asked in inside


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Unmap an address: ::ffff:192.0.2.1 reaches the same machine as 192.0.2.1."""
    if address.version == 6 and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _not_an_address(entry: str) -> PolicyError:
    return _refused(
        entry,
        "it is not an address in its plain form",
        "write four decimal numbers without leading zeros, or an IPv6 address",
    )


def _refused(entry: str, why: str, fix: str) -> PolicyError:
    shown = repr(entry) if len(entry) < 100 else repr(entry[:99]) + "…"
    usual = "write a host, host:port, *.domain, an address or a network such as 10.1.0.0/16"
    return PolicyError(f"the host {shown} is refused", why=why, fix=fix or usual)


#: Networks without public addresses, and their descriptions. The first match counts.
SPECIAL = tuple(
    (ipaddress.ip_network(network), what)
    for network, what in (
        ("169.254.169.254/32", "the metadata service of cloud machines"),
        ("fd00:ec2::254/128", "the metadata service of cloud machines"),
        ("fd20:ce::254/128", "the metadata service of cloud machines"),
        ("fd00:42::42/128", "the metadata service of cloud machines"),
        ("100.100.100.200/32", "the metadata service of cloud machines"),
        # Azure's platform address and IBM's private cloud services are public numbers with a local meaning.
        ("168.63.129.16/32", "the metadata service of cloud machines"),
        ("161.26.0.0/16", "the private services of a cloud"),
        ("166.8.0.0/14", "the private services of a cloud"),
        ("0.0.0.0/8", "this machine"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "a carrier's private address"),
        ("127.0.0.0/8", "a loopback address"),
        ("169.254.0.0/16", "a link-local address"),
        ("172.16.0.0/12", "a private address"),
        ("192.0.0.0/24", "a reserved address"),
        ("192.168.0.0/16", "a private address"),
        ("198.18.0.0/15", "a benchmarking address, which sandboxes use for themselves"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "a reserved or broadcast address"),
        ("::/128", "this machine"),
        ("::1/128", "a loopback address"),
        ("64:ff9b:1::/48", "an address of a local translator"),
        ("100::/64", "an address that points to nothing"),
        ("2001:2::/48", "a benchmarking address, which sandboxes use for themselves"),
        ("fc00::/7", "a private address"),
        ("fe80::/10", "a link-local address"),
        ("fec0::/10", "a private address"),
        ("ff00::/8", "a multicast address"),
    )
)
#: IPv6 networks that embed an IPv4 address, and the number of bits after it.
EMBEDDING = tuple(
    (ipaddress.IPv6Network(network), after)
    for network, after in (
        ("::/96", 0),  # IPv4-compatible
        ("::ffff:0:0/96", 0),  # IPv4-mapped
        ("::ffff:0:0:0/96", 0),  # IPv4-translated
        ("64:ff9b::/96", 0),  # NAT64
        ("2002::/16", 80),  # 6to4
    )
)
_TEREDO = ipaddress.IPv6Network("2001::/32")


def special(address: str) -> str:
    """Return the kind of an address that is not an ordinary public one; empty for a public one.

    An IPv4 address embedded in an IPv6 address counts, because a translator on the way may use it.
    """
    found = special_network(address)
    return found[1] if found else ""


def special_network(address: str) -> tuple[IPv4Network | IPv6Network, str] | None:
    """Return the entry of SPECIAL for `address`, or for an address embedded in it."""
    parsed = ipaddress.ip_address(address)
    for candidate in (parsed, *embedded(parsed)):
        for network, what in SPECIAL:
            if candidate.version == network.version and candidate in network:
                return network, what
    return None


def embedded(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """Return the IPv4 addresses embedded in `address`, which a translator on the way may use."""
    if address.version == 4 or int(address) < 2:  # ::1 and :: are not IPv4-compatible
        return []
    number = int(address)
    found = [
        ipaddress.IPv4Address(number >> after & 0xFFFFFFFF)
        for network, after in EMBEDDING
        if address in network
    ]
    if address in _TEREDO:  # the server's address, and the client's with inverted bits
        found += [ipaddress.IPv4Address(number >> 64 & 0xFFFFFFFF)]
        found += [ipaddress.IPv4Address(~number & 0xFFFFFFFF)]
    return found
