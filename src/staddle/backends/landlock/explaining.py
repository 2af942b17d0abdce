"""What the helper will do, line by line, for `staddle explain`."""

from __future__ import annotations

import os
from _socket import AF_INET, AF_INET6, inet_ntop

from ...enforcement import Step
from ...linux import landlock as kernel
from ..filters import filter_steps, landlock_profile
from .rules import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...ipc.exec_spec import Instructions
    from ...policy.plan import Plan
    from .root import View
    from .rules import Rule


def steps(plan: Plan, granted: list[Rule], seen: View | None, order: Instructions) -> tuple[Step, ...]:
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


def _mounts(plan: Plan, seen: View, order: Instructions) -> list[Step]:
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


def _handles(order: Instructions, name: str) -> bool:
    handled = {"fs": order.handled_fs, "net": order.handled_net, "scope": order.scoped}
    return any(bool(rows.get(name, (0,))[0] & handled[kind]) for kind, rows in kernel.RIGHTS.items())
