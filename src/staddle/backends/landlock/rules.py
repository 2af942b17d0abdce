"""Plan -> Landlock rules: what may be done beneath which path, and destinations of TCP. Changes nothing.

Landlock only allows. A path that is denied below a read grant is therefore stepped around:
its siblings are granted instead of the directory it is in, all the way down to it. Below a
write grant that is impossible, since the command may make new siblings.
"""

from __future__ import annotations

import os

from ..._value import Value
from ...enforcement import Gap
from ...errors import BackendUnavailable
from ...linux import landlock as kernel
from ...linux.landlock import FILES, READ, WRITE
from ...policy.paths import above, covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...inside.landlock.connections import Row
    from ...policy.plan import Plan

#: Each costs the kernel and us a few microseconds at every start.
MOST_RULES = 2000

_USE = frozenset({"read_file", "write_file", "truncate"})
DEVICES = {
    **{f"/dev/{name}": _USE for name in ("null", "zero", "full", "random", "urandom")},
    **{f"/dev/{name}": _USE | {"ioctl_dev"} for name in ("tty", "ptmx", "pts")},
}
#: Semaphores and shared memory, by name: without listing it, others' names have to be guessed.
SHARED_MEMORY = frozenset({"read_file", "write_file", "truncate", "make_reg", "remove_file"})
PROC = frozenset({"read_file", "read_dir"})


class LandlockRule(Value):
    """These rights at `path` and all below it. Missing is an error unless `optional`."""

    path: str
    rights: frozenset[str]
    origin: str
    optional: bool = False


class TooMany(Exception):
    """Stepping around what is denied below `path` would take too many rules."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def for_grants(plan: Plan, private: Iterable[str] = ()) -> list[LandlockRule]:
    """The rules for the plan's grants. `private` are directories that a grant must not show either."""
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
    """Denied paths, and the directories that lead to them, looked up at once however many there are."""

    def __init__(self, denied: dict[str, bool]) -> None:
        self.paths = denied.keys()
        self.above = {up for path in denied for up in above(path)}
        #: A directory that can be listed lets everything below it be listed, so where a denied
        #: directory is below, nothing on the way to it can be.
        self.unlistable = {up for path, is_directory in denied.items() if is_directory for up in above(path)}


def _siblings(directory: str, denied: _Denied, origin: str) -> Iterator[LandlockRule]:
    if directory not in denied.unlistable:
        yield LandlockRule(directory, frozenset({"read_dir"}), origin, optional=True)
    try:
        with os.scandir(directory) as entries:
            # A link is no place of its own: what it leads to is granted there, or is not.
            names = sorted(entry.name for entry in entries if not entry.is_symlink())
    except OSError:
        return  # nothing in it can be read anyway
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

    Where nothing can be mounted, /dev/shm and the files in /etc are the host's own.
    """
    rules = for_devices()
    rules.append(LandlockRule("/proc", PROC, "system"))
    if not can_mount and any(item.path == "/dev/shm" for item in plan.scratch):
        rules.append(LandlockRule("/dev/shm", SHARED_MEMORY, "shared memory", optional=True))
    if can_mount and not any(covers("/etc", item.path) for item in plan.hidden):
        # All of it was made for this run. (A rule above something denied would allow it again.)
        return [*rules, LandlockRule("/etc", frozenset({"read_file", "read_dir"}), "system")]
    for text in plan.texts:
        if text.mode & 0o200:
            continue  # of the private home: on the host that name is another directory
        if not can_mount and text.path == "/etc/machine-id":
            continue  # it would tell which machine this is
        # At its real place: a rule is made through no link.
        path = text.path if can_mount else os.path.realpath(text.path)
        rules.append(LandlockRule(path, frozenset({"read_file"}), text.origin, optional=True))
    return rules


def for_devices() -> list[LandlockRule]:
    """The rules for the devices that exist. A rule is made through no link.

    In containers /dev/ptmx is one to pts/ptmx, which the rule for /dev/pts allows.
    """
    return [
        LandlockRule(path, rights, "device", optional=True)
        for path, rights in DEVICES.items()
        if not os.path.islink(path)
    ]


def for_private(directories: Iterable[str]) -> list[LandlockRule]:
    """The rules for directories that belong to this run alone."""
    return [LandlockRule(path, WRITE, "private") for path in directories]


def names(rights: frozenset[str]) -> str:
    """The rights in words."""
    for known, words in ((READ, "read and run"), (WRITE, "read, run and write"), (FILES, "everything")):
        if rights == known:
            return words
    return ", ".join(sorted(rights))


# The part of a plan's network that the supervisor can hold: connections over TCP to addresses.
#
# It makes every connection in the command's place, and knows the address it connects to. For names there
# is a proxy outside, at a port of the host's loopback, which is the only one there is. A command can ask it
# for a name over TCP only: a datagram socket would send anywhere.

_ELSEWHERE = "use the namespaces, bwrap or systemd backend"
_LOCALHOST = bytes((127, 0, 0, 1))
#: The option of the C library's resolver (RES_OPTIONS, resolv.conf) to ask over TCP.
ASKS_OVER_TCP = "use-vc"
#: The first Landlock that keeps a command from taking a port of the host's.
_PORTS_SINCE = 4


def has_destinations(plan: Plan) -> bool:
    """Whether it is neither none of the network nor all of it."""
    return plan.network.mode in ("loopback", "allow")


def destinations(plan: Plan, proxy: int = 0) -> tuple[Row, ...]:
    """The addresses that may be connected to, and those that may not; `proxy` is the port of its proxy."""
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
    """(port, rights) that Landlock itself allows, and the rights that it handles at all.

    The supervisor is under the same rules as the command. Ports cannot be counted where every one is meant.
    """
    if plan.network.mode == "open":
        return (), rights - kernel.TCP
    meant = sorted({port for _, _, port, refused in destinations(plan, proxy) if not refused})
    if 0 in meant:
        return (), rights - {"connect_tcp"}
    connect = kernel.bits(rights & {"connect_tcp"}, "net")
    return tuple((port, connect) for port in meant), rights


def network_gaps(plan: Plan, abi: int) -> Iterator[Gap]:
    """The gaps of the network, each in its words. More than the policy says is never reached."""
    if not has_destinations(plan):
        return
    yield Gap(
        "network",
        "Landlock gives no loopback of its own: no program inside can listen for connections over TCP",
        _ELSEWHERE,
        # A list of hosts needs no loopback; who asks for one gets none.
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


# The places of a plan's private directories where nothing can be mounted.
#
# Without a mount namespace /tmp and the home cannot be replaced. They are not granted; a private directory
# stands in for each, and variables and the working directory that point into them point there instead. A
# program that insists on the name /tmp fails.


#: A file that cannot be hidden, only refused, and a program that gives up when it is: what to tell it.
_NOT_TO_BE_READ = {"/etc/gitconfig": ("GIT_CONFIG_NOSYSTEM", "1")}


class PrivateDirs:
    """`moved` maps a private directory of the plan to the one that stands in for it.

    `granted` are paths of the host, which stay where they are also below such a directory.
    """

    def __init__(self, top: str, moved: dict[str, str], granted: Iterable[str] = ()) -> None:
        self.top = top
        self.moved = moved
        self._granted = tuple(granted)

    @classmethod
    def of(cls, plan: Plan, parent: str, token: str, but: Iterable[str] = ()) -> PrivateDirs:
        """Directories below `parent` for what the plan points to. `but`: those are where they should be."""
        top = os.path.join(parent, f"staddle-{token}")
        moved: dict[str, str] = {}
        granted = [grant.path for grant in plan.grants]
        pointed_to = [plan.cwd, *(part for value in plan.environment().values() for part in value.split(":"))]
        for item in plan.scratch:
            if item.path not in but and any(covers(item.path, place) for place in pointed_to):
                # Short: the name of a socket below it must fit into 108 bytes.
                moved[item.path] = os.path.join(top, f"{len(moved)}")
        return cls(top, moved, granted)

    def directories(self) -> tuple[str, ...]:
        """The directories to make, in order; the first holds the others and is removed at the end."""
        return (self.top, *self.moved.values()) if self.moved else ()

    def place(self, path: str) -> str:
        """Path at which `path` of the plan really lies."""
        around = (item for item in (*self._granted, *self.moved) if covers(item, path))
        inside = max(around, key=len, default="")
        return self.moved[inside] + path[len(inside) :] if inside in self.moved else path

    def environment(self, plan: Plan, *, can_mount: bool) -> dict[str, str]:
        """The plan's variables, with every path in them where it is, also in lists such as PATH."""
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
    """The first of these directories in which we can make one that no other user can replace."""
    for directory in candidates:
        real = os.path.realpath(directory) if directory.startswith("/") else ""
        if real and os.path.isdir(real) and os.access(real, os.W_OK | os.X_OK):
            return real
    raise BackendUnavailable(
        "there is no place for a private directory",
        why="none of $TMPDIR, /tmp and /var/tmp can be written",
        fix="set TMPDIR to a directory of your own",
    )
