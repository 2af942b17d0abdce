"""The sandbox profile language of macOS (SBPL): a writer, and the profile of a plan.

A rule is a tuple: `str` items are symbols of the language, `bytes` items are string
literals, tuples are lists. A path only ever enters as bytes, so no byte of it can become a
symbol, a parenthesis or a comment; there is no string formatting of paths anywhere.

Of several rules that match, the last one decides. The order is therefore: deny everything;
what every program needs; the plan's grants, guards and the private directories that cover
parts of them, outermost first; hidden paths. Nothing comes after hidden paths.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..policy.plan import Plan

    Item = str | bytes | tuple["Item", ...]
    Rule = tuple[Item, ...]

#: /var, /tmp and /etc are links into /private. The kernel compares the target, some checks compare the link
#: itself, so every rule names both.
_ALIASED = ("/var", "/tmp", "/etc")
#: The same directory seen through the writable system volume.
_DATA_VOLUME = "/System/Volumes/Data"

#: The loader and the C library read these before `main`, in every program. They contain no user's file.
RUNTIME_READS = (
    "/System/Library",
    "/System/Volumes/Preboot/Cryptexes",
    "/System/Cryptexes",
    "/Library/Apple",
    "/usr/lib",
    "/usr/share/icu",
    "/usr/share/locale",
    "/usr/share/zoneinfo",
    "/private/var/db/dyld",
    "/private/var/db/timezone",
    "/private/etc/localtime",
)
#: Devices without state. No terminal: /dev/ptmx gives out a private one.
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
#: The only host services that a command can look up, and why.
MACH_SERVICES = {
    "com.apple.system.opendirectoryd.libinfo": "getpwuid() and getgrgid(): every shell asks for its own name",
    "com.apple.system.notification_center": "the C library learns of a changed time zone",
}
#: Added when the network is open.
NETWORK_SERVICES = {
    "com.apple.SystemConfiguration.configd": "which resolvers and proxies are configured",
    "com.apple.SystemConfiguration.DNSConfiguration": "the same, for getaddrinfo()",
    "com.apple.trustd.agent": "verifies TLS certificates for programs that use the system's TLS",
}
RESOLVER_SOCKET = "/private/var/run/mDNSResponder"
#: Facts about the machine; nothing about other processes (no kern.proc.*, no kern.procargs2).
SYSCTLS = (
    "kern.argmax",
    "kern.bootargs",
    "kern.hostname",
    "kern.maxfiles",
    "kern.maxfilesperproc",
    "kern.maxproc",
    "kern.ngroups",
    "kern.osproductversion",
    "kern.osrelease",
    "kern.ostype",
    "kern.osvariant_status",
    "kern.osversion",
    "kern.secure_kernel",
    "kern.usrstack64",
    "kern.version",
    "security.mac.lockdown_mode_state",
    "sysctl.proc_cputype",
    "vm.loadavg",
)
SYSCTL_PREFIXES = ("hw.", "machdep.cpu.")

_SYMBOL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_*.")
_READ = ("file-read*", "file-map-executable", "process-exec*")
_WRITE = ("file-write*",)


def write(item: Item) -> str:
    """One expression as text. Raises ValueError for an invalid symbol."""
    if isinstance(item, tuple):
        return "(" + " ".join(write(part) for part in item) + ")"
    if isinstance(item, bytes):
        return literal(item)
    if not item or not _SYMBOL.issuperset(item):
        raise ValueError(f"{item!r} is not a symbol; this is a bug in staddle, please report it")
    return item


def literal(value: bytes) -> str:
    """A string literal that reads back as exactly `value`.

    Well-formed UTF-8 stays as it is, as file names on macOS always are. Quote and backslash
    get a backslash, every other byte that is not printable its number (`\\x0a`), so that the
    profile is one line per rule whatever a path holds.
    """
    out = []
    for char in value.decode("utf-8", "surrogateescape"):
        if char in '"\\':
            out.append("\\" + char)
        elif char.isprintable():
            out.append(char)
        else:
            out.extend(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
    return '"' + "".join(out) + '"'


def spellings(path: str) -> tuple[str, ...]:
    """Every spelling under which macOS may compare `path`."""
    plain = path[len(_DATA_VOLUME) :] if path.startswith(_DATA_VOLUME + "/") else path
    for alias in _ALIASED:
        if covers("/private" + alias, plain):
            plain = plain[len("/private") :]
    real = "/private" + plain if any(covers(alias, plain) for alias in _ALIASED) else plain
    return tuple(dict.fromkeys((path, plain, real) + (() if plain == "/" else (_DATA_VOLUME + real,))))


def profile(plan: Plan, private: str, proxy: int = 0) -> str:
    """The whole profile: the plan's grants, and this run's own directory `private`.

    `proxy` is the port of the HTTP proxy for a list of hosts.
    """
    return "".join(write(rule) + "\n" for rule in rules(plan, private, proxy))


def rules(plan: Plan, private: str, proxy: int = 0) -> tuple[Rule, ...]:
    """The profile as data, in output order."""
    made: list[Rule] = [
        *_base(),
        *_traversal(plan, private),
        *_grants(plan),
        ("allow", *_READ, *_WRITE, *_subpaths([private])),
        *_network(plan, proxy),
        *_sockets(plan, private),
    ]
    # Only denials from here on, so that no rule above can allow these again.
    hidden = [item.path for item in plan.hidden]
    held = (*hidden, *(guard.path for guard in plan.guards))
    pinned = sorted({above for path in held for above in _ancestors(path)} - {"/"})
    if pinned:
        # Renaming a parent would move a guarded name to a path without a rule.
        made.append(("deny", "file-write-unlink", *_literals(pinned)))
    if hidden:
        made.append(("deny", *_READ, *_WRITE, "network-outbound", "network-bind", *_subpaths(hidden)))
    return tuple(made)


def _base() -> Iterator[Rule]:
    yield ("version", "1")
    yield ("deny", "default")
    yield ("allow", "process-fork")
    yield ("allow", "process-info*", "signal", ("target", "same-sandbox"))
    yield (
        "allow",
        "sysctl-read",
        *(("sysctl-name", name.encode()) for name in SYSCTLS),
        *(("sysctl-name-prefix", prefix.encode()) for prefix in SYSCTL_PREFIXES),
    )
    yield ("allow", "mach-lookup", *(("global-name", name.encode()) for name in MACH_SERVICES))
    yield ("allow", "ipc-posix-sem")  # multiprocessing locks; they have names, and the host shares them
    # The loader reads the root directory itself, and aborts silently if it cannot.
    yield ("allow", "file-read*", ("literal", b"/"))
    yield ("allow", *_READ, *_subpaths(RUNTIME_READS))
    yield ("allow", "file-read*", "file-write-data", "file-ioctl", *_literals(DEVICES))
    yield ("allow", "pseudo-tty")
    yield ("allow", "file-read*", "file-write*", "file-ioctl", ("literal", b"/dev/ptmx"))
    yield (
        "allow",
        "file-read*",
        "file-write*",
        "file-ioctl",
        # Only the terminals that this sandbox opened itself carry the extension.
        ("require-all", ("regex", b"^/dev/ttys[0-9]+$"), ("extension", b"com.apple.sandbox.pty")),
    )


def _traversal(plan: Plan, private: str) -> Iterator[Rule]:
    paths = [item.path for items in (plan.grants, plan.sockets, plan.links) for item in items]
    above = {up for path in (*paths, *RUNTIME_READS, private) for up in _ancestors(path)}
    # Links get metadata only: by now a file could have replaced the link.
    above |= {*_ALIASED, *(link.path for link in plan.links)}
    yield ("allow", "file-read-metadata", *_literals(sorted(above)))


def _grants(plan: Plan) -> Iterator[Rule]:
    """Grants, guards and the private directories that cover them, outermost first; the deepest decides.

    macOS cannot mount a private directory over a host path, so the rules refuse the covered path; grants at
    or below it remain. A write grant inside a guarded directory opens it again, because the policy names it
    explicitly.
    """
    order = sorted(
        [(len(item.path), 0, "cover", item.path) for item in plan.scratch]
        + [(len(guard.path), 1, "guard", guard.path) for guard in plan.guards]
        + [(len(grant.path), 2, grant.access, grant.path) for grant in plan.grants]
    )
    # The writable volume is mounted below /System, with every home on it. A grant of /System excludes it.
    first = sum(path in ("/", "/System") for _, _, _, path in order)
    order.sort(key=lambda item: item[3] not in ("/", "/System"))
    order.insert(first, (0, 0, "cover", _DATA_VOLUME))
    batch: list[str] = []
    last = ""
    for _, _, kind, path in [*order, (0, 0, "", "")]:
        if kind != last and batch:
            yield (*_GRANT_RULE[last], *_subpaths(batch))
            batch = []
        batch.append(path)
        last = kind


_GRANT_RULE: dict[str, Rule] = {
    "cover": ("deny", *_READ, *_WRITE),
    "guard": ("deny", *_WRITE),
    "read": ("allow", *_READ),
    "write": ("allow", *_READ, *_WRITE),
}


#: A policy that lists every port means the whole loopback.
_EVERY_PORT = 65535


def _network(plan: Plan, proxy: int) -> Iterator[Rule]:
    if plan.network.mode == "open":
        anywhere = b"*:*"
        yield ("allow", "network-outbound", ("remote", "ip", anywhere))
        yield ("allow", "network-bind", "network-inbound", ("local", "ip", anywhere))
        yield ("allow", "network-outbound", *_literals([RESOLVER_SOCKET]))
        yield ("allow", "mach-lookup", *(("global-name", name.encode()) for name in NETWORK_SERVICES))
        return
    # The loopback is the host's: the command cannot connect to unlisted ports, including its own servers.
    named = (proxy,) if plan.network.mode == "allow" and proxy else plan.network.ports
    if len(named) == _EVERY_PORT:
        yield ("allow", "network-outbound", ("remote", "ip", b"localhost:*"))
        named = ()
    for port in named:
        yield ("allow", "network-outbound", ("remote", "ip", f"localhost:{port}".encode()))
    if plan.network.mode == "loopback":
        yield ("allow", "network-bind", "network-inbound", ("local", "ip", b"localhost:*"))


def _sockets(plan: Plan, private: str) -> Iterator[Rule]:
    """UNIX sockets: the declared ones, and those below a directory the command may write."""
    own = [private] + [grant.path for grant in plan.grants if grant.access == "write"]
    yield ("allow", "system-socket", ("socket-domain", "AF_UNIX"))
    yield ("allow", "network-bind", "network-outbound", *_subpaths(own))
    if plan.closed:
        yield ("deny", "network-outbound", *_literals([socket.path for socket in plan.closed]))
    if plan.sockets:
        yield ("allow", "network-outbound", *_literals([socket.path for socket in plan.sockets]))
    # The command may serve a declared socket that does not exist yet.
    served = [socket.path for socket in plan.sockets if not socket.present]
    served = [path for path in served if not any(covers(item.path, path) for item in plan.hidden)]
    if served:
        yield ("allow", "network-bind", "network-inbound", *_literals(served))
        yield ("allow", "file-write-create", "file-write-unlink", *_literals(served))


def _subpaths(paths: Iterable[str]) -> tuple[Rule, ...]:
    return tuple(("subpath", os.fsencode(name)) for path in paths for name in spellings(path))


def _literals(paths: Iterable[str]) -> tuple[Rule, ...]:
    return tuple(("literal", os.fsencode(name)) for path in paths for name in spellings(path))


def covers(ancestor: str, path: str) -> bool:
    """Whether `path` is `ancestor` or below it."""
    return path == ancestor or path.startswith(ancestor + "/")


def _ancestors(path: str) -> Iterator[str]:
    while path != "/":
        path = os.path.dirname(path)
        yield path
