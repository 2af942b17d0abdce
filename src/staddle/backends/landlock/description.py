"""The steps of the helper in words, for `staddle explain`, and the gaps of a plan.

Documented gaps are Landlock's own; the others are this plan's or this host's.
"""

from __future__ import annotations

import os
from _socket import AF_INET, AF_INET6, inet_ntop

from ...enforcement import Gap, Step
from ...linux import landlock as kernel
from ...policy.paths import Ancestry
from .. import gaps as common
from .. import gateways
from ..description import filter_steps
from ..exec_spec import landlock_profile
from . import destinations, rules
from .rules import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...ipc.exec_spec import ExecSpec
    from ...policy.plan import Plan
    from .probe import Findings
    from .root_view import RootView
    from .rules import LandlockRule


def steps(
    plan: Plan, granted: list[LandlockRule], seen: RootView | None, order: ExecSpec
) -> tuple[Step, ...]:
    """The instructions in words, in the order in which they are carried out."""
    found: list[Step] = []
    if seen is not None:
        found += _mounts(plan, seen, order)
    if order.uid >= 0:
        found.append(Step(f"become user and group {order.uid}, which are nobody's", "landlock"))
    for path in order.scratch[1:]:
        found.append(Step(f"make the private directory {os.fsdecode(path)}", "private"))
    found.append(
        Step("stay as supervisor: pass signals on, end everything when the command ends", "landlock")
    )
    found.append(Step("drop every capability, set no_new_privs, leave the terminal's session", "landlock"))
    for resource, soft, _ in order.rlimits:
        found.append(Step(f"limit resource {resource} to {soft}", "limits"))
    handled = [name for kind in kernel.RIGHTS.values() for name in kind if _handles(order, name)]
    found.append(Step(f"refuse unless allowed below: {', '.join(handled)}", "landlock"))
    found += [Step(f"allow beneath {rule.path}: {names(rule.rights)}", rule.origin) for rule in granted]
    for kind, path in order.sockets:
        words = {
            b"exactly": "connect to",
            b"beneath": "connect to sockets beneath",
            b"never": "never connect to",
        }
        found.append(Step(f"{words[kind]} {os.fsdecode(path)}", "sockets"))
    for network, prefix, port, refused in order.destinations:
        where = f"{inet_ntop(AF_INET if len(network) == 4 else AF_INET6, network)}/{prefix}"
        at = f" at port {port}" if port else ""
        found.append(Step(f"{'never ' if refused else ''}connect over TCP to {where}{at}", "plan"))
    found += filter_steps(landlock_profile(plan))
    where = os.fsdecode(order.directory)
    return (*found, Step(f"start the command in {where} with only the plan's variables", "landlock"))


def _mounts(plan: Plan, seen: RootView, order: ExecSpec) -> list[Step]:
    origins = {text.path: text.origin for text in plan.texts}
    origins |= {item.path: item.origin for item in plan.scratch}
    origins |= {socket.path: socket.origin for socket in plan.sockets}
    origins |= {grant.path: grant.origin for grant in plan.grants}
    found = [Step("make a mount namespace", "landlock")]
    for path, owner, _, read_only in seen.trees:
        how = "read-only" if read_only else "writable"
        who = f", owner {owner} as {order.uid}" if owner >= 0 else ""
        found.append(Step(f"show {path} {how}{who}", origins.get(path, "landlock")))
    for path, mode, _ in seen.empty:
        found.append(Step(f"mount an empty {path}, mode {mode:o}", origins.get(path, "the way to a grant")))
    found += [Step(f"make the file {path}", origins.get(path, "made up")) for path, _ in seen.texts]
    found += [Step(f"make the link {link.path} to {link.target}", link.origin) for link in plan.links]
    if order.processes_hidden:
        found.append(Step("mount a /proc that shows only the command's own processes", "landlock"))
    return found


def _handles(order: ExecSpec, name: str) -> bool:
    handled = {"fs": order.handled_fs, "net": order.handled_net, "scope": order.scoped}
    return any(bool(rows.get(name, (0,))[0] & handled[kind]) for kind, rows in kernel.RIGHTS.items())


_ANOTHER = "choose namespaces or bwrap"


def gaps(plan: Plan, found: Findings) -> tuple[Gap, ...]:
    """Everything of `plan`, and of the promises every backend makes, that will not hold."""
    root = found.uid >= 0
    return (
        *(_as_root(found) if root else _as_a_user(plan)),
        *_guards(plan),
        *_of_the_kernel(found.abi),
        *destinations.gaps(plan, found.abi),
        *_of_the_plan(plan, can_mount=root),
    )


def _documented(protection: str, why: str, fix: str = _ANOTHER) -> Gap:
    return Gap(protection, why, fix, documented=True)


def _as_a_user(plan: Plan) -> Iterator[Gap]:
    yield _documented(
        "metadata",
        "files outside can be looked up, and those of the same user can be given other modes, times and "
        "attributes: Landlock has no right for that",
    )
    if any(text.origin == "made up" for text in plan.texts):
        yield _documented(
            "read", "/etc/passwd, group, hosts, hostname and resolv.conf are the host's own, not made up"
        )
    yield _documented("processes", "/proc is the host's: other processes and their command lines can be seen")
    yield _documented(
        "signals",
        "other processes of the same user can be given another priority or processor; they can be neither "
        "signalled nor traced",
    )
    yield _documented(
        "tmp",
        "/tmp cannot be used: TMPDIR and HOME are private directories elsewhere, of unbounded size; "
        "/dev/shm is the host's",
    )
    yield _documented(
        "ipc",
        "shared memory and semaphores of the same user in /dev/shm can be opened by who knows their name",
    )
    yield _documented("devices", "terminals of the same user can be opened: /dev/pts is the host's")
    yield _documented("keyring", "the names of the user's keys are in /proc/keys; none can be read")
    yield _documented(
        "capabilities",
        "no capability is held or can be gained, but only root could empty the bounding set as well",
    )


def _as_root(found: Findings) -> Iterator[Gap]:
    yield _documented(
        "metadata", "names, sizes and modes of files outside can be looked up, though not changed"
    )
    if not found.hides_processes:
        yield _documented(
            "processes", "/proc is the host's: no other can be mounted here, because parts of it are covered"
        )


def _guards(plan: Plan) -> Iterator[Gap]:
    if plan.guards:
        some = _some(guard.path for guard in plan.guards)
        yield _documented(
            "guard",
            f"protected names below a writable path can be changed ({some}): Landlock cannot take back",
        )


def _of_the_kernel(abi: int) -> Iterator[Gap]:
    _, lost = kernel.weaken(kernel.EVERYTHING, abi)
    newer = f"this kernel has Landlock ABI {abi}"
    if "truncate" in lost:
        yield Gap("write", f"{newer}: files outside can be truncated before ABI 3", "use Linux 6.2 or newer")
    if "ioctl_dev" in lost:
        yield Gap(
            "devices", f"{newer}: device ioctls are not confined before ABI 5", "use Linux 6.10 or newer"
        )
    if "signal" in lost:
        fix = "use Linux 6.12 or newer"
        yield Gap("signals", f"{newer}: processes of the same user can be signalled before ABI 6", fix)
        yield Gap("parent", f"{newer}: if our launcher is killed, what the command started may live on", fix)


def _of_the_plan(plan: Plan, *, can_mount: bool) -> Iterator[Gap]:
    yield from gateways.nobody_asks("Landlock", plan)
    yield from common.identity("Landlock", plan)
    yield from common.limits("Landlock", plan)
    writable = Ancestry({grant.path for grant in plan.grants if grant.access == "write"})
    below = [item.path for item in plan.hidden if writable.at_or_above(item.path) is not None]
    if below:
        yield Gap(
            "deny",
            f"what is denied below a writable path can be reached ({_some(below)}): Landlock only allows",
            "grant less for writing, or choose another backend",
        )
    elif plan.hidden:
        yield _documented(
            "deny", "that a denied path exists can be seen; it can be neither read, listed nor written"
        )
    shared = [item.path for item in plan.scratch if writable.at_or_above(item.path) is not None]
    if shared and not can_mount:
        yield Gap(
            "tmp", f"{_some(shared)} is below a writable path and not private", "grant less for writing"
        )
    try:
        rules.for_grants(plan, () if can_mount else [item.path for item in plan.scratch])
    except rules.TooMany as error:
        yield Gap("deny", too_many(error.path), "deny less below it, or choose another backend")


def too_many(path: str) -> str:
    """Why stepping around what is denied below `path` is not done."""
    return f"what is denied below {path!r} takes more than {rules.MOST_RULES} rules to step around"


def _some(paths: Iterable[str]) -> str:
    several = [repr(path) for path in paths]
    return ", ".join(several[:3]) + (f" and {len(several) - 3} more" if several[3:] else "")
