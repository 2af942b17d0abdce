"""Plan -> Landlock rules: rights by path, and TCP destinations. Changes nothing.

Landlock can only allow. To deny a path below a read grant, the rules grant its siblings at each level
instead of the directory. Below a write grant that is impossible, because the command may create new
siblings.
"""

from __future__ import annotations

import os

from ..._value import Value
from ...enforcement import Gap
from ...errors import BackendUnavailable
from ...linux import landlock as kernel
from ...linux.landlock import FILES, READ, WRITE
from ...paths import above, covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...inside.landlock.connections import Row
    from ...policy.plan import Plan

#: Each rule costs a few microseconds at every start.
MOST_RULES = 2000

_USE = frozenset({"read_file", "write_file", "truncate"})
DEVICES = {
    **{f"/dev/{name}": _USE for name in ("null", "zero", "full", "random", "urandom")},
    **{f"/dev/{name}": _USE | {"ioctl_dev"} for name in ("tty", "ptmx", "pts")},
}
#: Named semaphores and shared memory. Without the right to list, others' names must be guessed.
SHARED_MEMORY = frozenset({"read_file", "write_file", "truncate", "make_reg", "remove_file"})
PROC = frozenset({"read_file", "read_dir"})


class LandlockRule(Value):
    """These rights at `path` and below. A missing path is an error unless `optional`."""

    path: str
    rights: frozenset[str]
    origin: str
    optional: bool = False


class TooMany(Exception):
    """The denied paths below `path` would need too many rules."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def for_grants(plan: Plan, private: Iterable[str] = ()) -> list[LandlockRule]:
    """The rules for the plan's grants. Grants must not show the directories `private`."""
    denied = {item.path: item.kind == "directory" for item in plan.hidden}
    denied |= dict.fromkeys(private, True)
    obstacles = _Denied(denied)
    rules: list[LandlockRule] = []
    for grant in plan.grants:
        if grant.access == "write" or grant.path not in obstacles.above:
            rules.append(LandlockRule(grant.path, WRITE if grant.access == "write" else READ, grant.origin))
            continue
        for count, rule in enumerate(_siblings(grant.path, obstacles, grant.origin), 1):
            if count > MOST_RULES:
                raise TooMany(grant.path)
            rules.append(rule)
    return rules


class _Denied:
    """Denied paths and their parent directories, as sets."""

    def __init__(self, denied: dict[str, bool]) -> None:
        self.paths = denied.keys()
        self.above = {up for path in denied for up in above(path)}
        #: The right to list a directory covers everything below it. So no directory above a denied directory
        #: gets that right.
        self.unlistable = {up for path, is_directory in denied.items() if is_directory for up in above(path)}


def _siblings(directory: str, denied: _Denied, origin: str) -> Iterator[LandlockRule]:
    if directory not in denied.unlistable:
        yield LandlockRule(directory, frozenset({"read_dir"}), origin, optional=True)
    try:
        with os.scandir(directory) as entries:
            # Skip links: their target has its own rule, or none.
            names = sorted(entry.name for entry in entries if not entry.is_symlink())
    except OSError:
        return  # nothing in it can be read
    for name in names:
        path = os.path.join(directory, name)
        if path in denied.paths:
            continue
        if path in denied.above:
            yield from _siblings(path, denied, origin)
        else:
            yield LandlockRule(path, READ, origin, optional=True)


def for_system(plan: Plan, *, can_mount: bool) -> list[LandlockRule]:
    """The rules for what every program needs: devices, /proc, the plan's part of /etc.

    Without mounts, /dev/shm and the files in /etc are the host's own.
    """
    rules = for_devices()
    rules.append(LandlockRule("/proc", PROC, "system"))
    if not can_mount and any(item.path == "/dev/shm" for item in plan.scratch):
        rules.append(LandlockRule("/dev/shm", SHARED_MEMORY, "shared memory", optional=True))
    if can_mount and not any(covers("/etc", item.path) for item in plan.hidden):
        # All of /etc was made for this run. (A rule above a denied path would allow it again.)
        return [*rules, LandlockRule("/etc", frozenset({"read_file", "read_dir"}), "system")]
    for text in plan.texts:
        if text.mode & 0o200:
            continue  # belongs to the private home, which is another directory on the host
        if not can_mount and text.path == "/etc/machine-id":
            continue  # would identify the host
        # Use the real path: a rule cannot go through a link.
        path = text.path if can_mount else os.path.realpath(text.path)
        rules.append(LandlockRule(path, frozenset({"read_file"}), text.origin, optional=True))
    return rules


def for_devices() -> list[LandlockRule]:
    """The rules for the devices that exist. Links get none.

    In containers /dev/ptmx is a link to pts/ptmx, which the rule for /dev/pts allows.
    """
    return [
        LandlockRule(path, rights, "device", optional=True)
        for path, rights in DEVICES.items()
        if not os.path.islink(path)
    ]


def for_granted_devices(plan: Plan) -> list[LandlockRule]:
    """The rules for the devices of the policy. LaunchFailed if one is another device by now."""
    from ...mounts.host import open_device  # rarely needed
    from ...mounts.operations import DeviceNode

    for item in plan.devices:
        os.close(open_device(DeviceNode(item.path, item.major, item.minor, item.origin)))
    return [LandlockRule(item.path, _USE | {"ioctl_dev"}, item.origin) for item in plan.devices]


def for_private(directories: Iterable[str]) -> list[LandlockRule]:
    """The rules for directories that belong to this run alone."""
    return [LandlockRule(path, WRITE, "private") for path in directories]


def names(rights: frozenset[str]) -> str:
    """The rights in words."""
    for known, words in ((READ, "read and run"), (WRITE, "read, run and write"), (FILES, "everything")):
        if rights == known:
            return words
    return ", ".join(sorted(rights))


# The supervisor enforces one part of the network policy: TCP connections to addresses.
# It makes every connection for the command, so it knows the address. Host names go through a proxy outside,
# at a port of the host's loopback; no other loopback port is open. The command resolves names over TCP only,
# because a datagram socket could send anywhere.

_ELSEWHERE = "use the namespaces, bwrap or systemd backend"
_LOCALHOST = bytes((127, 0, 0, 1))
#: The option of the C library's resolver (RES_OPTIONS, resolv.conf) that makes it use TCP.
ASKS_OVER_TCP = "use-vc"
#: The first Landlock ABI that can keep a command from binding a port of the host.
_PORTS_SINCE = 4


def has_destinations(plan: Plan) -> bool:
    """Whether the policy allows some destinations, neither none nor all."""
    return plan.network.mode in ("loopback", "allow")


def destinations(plan: Plan, proxy: int = 0) -> tuple[Row, ...]:
    """The allowed and refused addresses; `proxy` is the port of the HTTP proxy."""
    network = plan.network
    if network.mode == "loopback":
        return tuple((_LOCALHOST, 32, port, 0) for port in network.ports)
    if network.mode != "allow":
        return ()
    from ipaddress import ip_network

    made = [(_LOCALHOST, 32, proxy, 0)] if proxy else []
    for rule in network.rules:
        if rule.kind == "network" and rule.protocol == "tcp":
            place = ip_network(rule.host)
            packed = place.network_address.packed
            made += [(packed, place.prefixlen, port, int(rule.deny)) for port in rule.ports or (0,)]
    return tuple(made)


def ports(
    plan: Plan, rights: frozenset[str], proxy: int = 0
) -> tuple[tuple[tuple[int, int], ...], frozenset[str]]:
    """(port, rights) that Landlock itself allows, and the rights that it handles.

    The supervisor is under the same rules as the command. If every port is allowed, Landlock cannot list
    them.
    """
    if plan.network.mode == "open":
        return (), rights - kernel.TCP
    meant = sorted({port for _, _, port, refused in destinations(plan, proxy) if not refused})
    if 0 in meant:
        return (), rights - {"connect_tcp"}
    connect = kernel.bits(rights & {"connect_tcp"}, "net")
    return tuple((port, connect) for port in meant), rights


def network_gaps(plan: Plan, abi: int) -> Iterator[Gap]:
    """The gaps of the network. The command never reaches more than the policy allows."""
    if not has_destinations(plan):
        return
    yield Gap(
        "network",
        "Landlock gives no loopback of its own: no program inside can listen for connections over TCP",
        _ELSEWHERE,
        # A list of hosts needs no loopback. A policy that asks for one cannot get it.
        documented=plan.network.mode == "allow",
    )
    if any(rule.kind != "network" and not rule.deny for rule in plan.network.rules):
        yield Gap(
            "network",
            "names are resolved over TCP only: a program with a resolver of its own that needs UDP reaches "
            "names if it heeds HTTP_PROXY and HTTPS_PROXY",
            _ELSEWHERE,
            documented=True,
        )
    if abi < _PORTS_SINCE:
        yield Gap(
            "network",
            f"this kernel has Landlock ABI {abi}: a command can take ports of the host before ABI 4",
            "use Linux 6.7 or newer",
        )
    for rule in plan.network.rules:
        if rule.deny:
            continue
        if rule.protocol == "udp":
            yield Gap("network", f"{rule} cannot be reached: Landlock cannot restrict UDP", _ELSEWHERE)


# Private directories where nothing can be mounted.
# Without a mount namespace /tmp and the home cannot be replaced. They are not granted; a private directory
# replaces each, and variables and the working directory point there instead. A program that insists on the
# name /tmp fails.


#: Files that Landlock refuses but cannot hide, and the variable that keeps a program from failing on them.
_NOT_TO_BE_READ = {"/etc/gitconfig": ("GIT_CONFIG_NOSYSTEM", "1")}


class PrivateDirs:
    """`moved` maps a private directory of the plan to its replacement.

    `granted` are host paths, which stay in place even below such a directory.
    """

    def __init__(self, top: str, moved: dict[str, str], granted: Iterable[str] = ()) -> None:
        self.top = top
        self.moved = moved
        self._granted = tuple(granted)

    @classmethod
    def of(cls, plan: Plan, parent: str, token: str, but: Iterable[str] = ()) -> PrivateDirs:
        """Directories below `parent` for the private paths that the plan uses, except those in `but`."""
        top = os.path.join(parent, f"staddle-{token}")
        moved: dict[str, str] = {}
        granted = [grant.path for grant in plan.grants]
        pointed_to = [plan.cwd, *(part for value in plan.environment().values() for part in value.split(":"))]
        for item in plan.scratch:
            if item.path not in but and any(covers(item.path, place) for place in pointed_to):
                # Short names: the path of a socket below must fit into 108 bytes.
                moved[item.path] = os.path.join(top, f"{len(moved)}")
        return cls(top, moved, granted)

    def directories(self) -> tuple[str, ...]:
        """The directories to make, in order. The first contains the others and is removed at the end."""
        return (self.top, *self.moved.values()) if self.moved else ()

    def place(self, path: str) -> str:
        """The real path of the plan's `path`."""
        around = (item for item in (*self._granted, *self.moved) if covers(item, path))
        inside = max(around, key=len, default="")
        return self.moved[inside] + path[len(inside) :] if inside in self.moved else path

    def environment(self, plan: Plan, *, can_mount: bool) -> dict[str, str]:
        """The plan's variables with real paths, including those in lists such as PATH."""
        told = (
            {}
            if can_mount
            else {
                name: value
                for path, (name, value) in _NOT_TO_BE_READ.items()
                if os.path.exists(path) and plan.access(path) == "none"
            }
        )
        return told | {
            name: ":".join(self.place(part) for part in value.split(":"))
            for name, value in plan.environment().items()
        }


def parent_for_private(candidates: Iterable[str]) -> str:
    """The first directory in which staddle can make one that no other user can replace."""
    for directory in candidates:
        real = os.path.realpath(directory) if directory.startswith("/") else ""
        if real and os.path.isdir(real) and os.access(real, os.W_OK | os.X_OK):
            return real
    raise BackendUnavailable(
        "there is no place for a private directory",
        why="none of $TMPDIR, /tmp and /var/tmp can be written",
        fix="set TMPDIR to a directory of your own",
    )
