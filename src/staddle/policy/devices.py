"""Resolve the GPUs and devices of a policy on this host. A deny wins over a grant of the same device."""

from __future__ import annotations

import os
import stat

from ..errors import PolicyError
from ..hostinfo import devices as known
from ..paths import covers
from .plan import Device, Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..hostinfo.resolution import HostPaths
    from .policy import Policy
    from .resolve_rules import ResolvedRule

_SURFACE = "the command can call the driver, a part of the host's kernel, with ioctl and mmap"
_NO_LIMIT = "no limit holds for the memory of a GPU; programs that share a GPU share its driver"


class GrantedDevices:
    """The devices of one plan, the paths of /sys that their libraries read, variables and notes."""

    __slots__ = ("devices", "notes", "reads", "variables")

    def __init__(self) -> None:
        self.devices: dict[str, Device] = {}
        self.reads: list[tuple[str, str]] = []
        self.variables: dict[str, str] = {}
        self.notes: list[Note] = []


def granted_devices(policy: Policy, host: HostPaths, rules: Iterable[ResolvedRule]) -> GrantedDevices:
    """Return what `policy` grants. Raises PolicyError for a missing device, or one that cannot be granted."""
    found = GrantedDevices()
    denied = [rule for rule in rules if rule.field == "deny"]
    grants = []
    for grant in known.granted(policy.gpu) if policy.gpu else ():
        origin = f"gpu {grant.gpu.name!r}"
        nodes = [
            _device(path, origin, "needs", host, writes=not path.startswith(known.CAPABILITIES))
            for path in grant.nodes
        ]
        lost = [note for node in nodes for note in _lost(node, denied)]
        found.notes += lost
        if not lost:
            grants.append(grant)
            found.devices.update({node.path: node for node in nodes})
            found.reads += [(path, origin) for path in grant.reads]
    for path in policy.devices:
        origin = f"devices {path!r}"
        if path in known.USUAL:
            found.notes.append(Note("every sandbox has it", origin))
            continue
        device = _device(path, "devices", "names", host)
        lost = _lost(device, denied)
        found.notes += lost
        if not lost:
            found.devices.setdefault(path, device.replace(origin=origin))
    found.variables = known.variables(grants)
    found.notes += [Note(_SURFACE, device.origin) for device in found.devices.values()]
    found.notes += [Note(_NO_LIMIT, f"gpu {grant.gpu.name!r}") for grant in grants]
    return found


def _lost(device: Device, denied: Iterable[ResolvedRule]) -> list[Note]:
    """Return a note if a rule denies the device, at this path or at another path of the same device."""
    number = os.makedev(device.major, device.minor)
    for rule in denied:
        if covers(rule.place.path, device.path) or _number(rule) == number:
            return [Note(f"device {device.path!r} has no effect: {rule.origin} wins", device.origin)]
    return []


def _number(rule: ResolvedRule) -> int | None:
    if rule.place.kind != "other":
        return None
    try:
        status = os.stat(rule.place.path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_rdev if stat.S_ISCHR(status.st_mode) else None


def _device(path: str, origin: str, verb: str, host: HostPaths, *, writes: bool = False) -> Device:
    """Return the device at `path`; PolicyError if it cannot be granted."""
    place, what = host.find(path), f"{origin} {verb} {path!r}"
    if place.kind in ("missing", "unreadable", "circle"):
        fix = "name one that exists"
        if path.startswith("/dev/nvidia"):
            fix = "have root run `nvidia-modprobe -u -c 0`, which makes the nodes"
        raise PolicyError(what, why="it does not exist", fix=fix)
    if place.path != path:
        raise PolicyError(what, why=f"it is a link to {place.path!r}", fix=f"name {place.path!r}")
    if place.kind == "directory":
        raise PolicyError(what, why="it is a directory", fix="name each device that is in it")
    status = os.stat(path, follow_symlinks=False)
    if why := known.refusal(status.st_mode, status.st_rdev):
        raise PolicyError(what, why=why, fix="leave it out: no policy can grant it")
    _check_access(path, what, status.st_mode, writes)
    return Device(path, os.major(status.st_rdev), os.minor(status.st_rdev), origin)


def _check_access(path: str, what: str, mode: int, writes: bool) -> None:
    """Raise PolicyError if the sandbox's user could not open it. Root's sandbox has an id without rights."""
    if os.geteuid() == 0:
        if mode & 0o004 and (mode & 0o002 or not writes):
            return
        why = f"its mode is {stat.S_IMODE(mode):04o}, and the sandbox of root has a user id without rights"
        fix = "run staddle as a user who may open it, or have a udev rule open it to all users"
    else:
        if os.access(path, os.R_OK | (os.W_OK if writes else 0)):
            return
        why, fix = "this user may not open it", "join the group that `ls -l` shows (video, render, kvm)"
    raise PolicyError(what, why=why, fix=fix)
