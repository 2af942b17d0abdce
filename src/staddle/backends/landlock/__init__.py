"""Landlock: no namespaces, mounts or privilege; a helper confines itself and execs the command.

Landlock restricts files, signals and abstract sockets. The system call filter restricts everything else.
A supervisor makes the connections to UNIX sockets that the policy allows. As root, staddle gives the
command an unused user id, and a mount namespace with its files.

`gaps` returns the limits of this backend; docs/backends.md has the reasons.
"""

from __future__ import annotations

import os
from _socket import AF_INET, AF_INET6, inet_ntop

from ...enforcement import Gap, Step
from ...errors import PolicyNotEnforceable
from ...hostinfo.toolchains import ORIGIN as VIRTUAL_ENVIRONMENT
from ...launch.contract import Launch
from ...limits.process_attributes import cpu_count, is_whole
from ...linux import landlock as kernel
from ...linux import process, seccomp
from ...linux.idmaps import FIRST_UNUSED, id_for_sandbox
from ...paths import Ancestry, upward
from ...policy.plan import COPY
from .. import description as common
from .. import gateways
from ..description import filter_steps
from ..gateways import LaunchProxy
from ..launching import landlock_profile
from . import rules
from .probe import Findings, find_out
from .rules import PrivateDirs, names, parent_for_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ...enforcement import Gap, Probe
    from ...ipc.exec_spec import ExecSpec
    from ...policy.plan import Grant, Plan
    from .probe import Findings
    from .root_view import RootView
    from .rules import LandlockRule


class Landlock:
    """Confines with Landlock and a system call filter."""

    name = "landlock"

    def __init__(self) -> None:
        self._found: Findings | None = None

    def probe(self) -> Probe:
        """Confine a shell in a child process that tries forbidden operations."""
        return self._findings().probe

    def _findings(self) -> Findings:
        if self._found is None:
            self._found = find_out(self.name)
        return self._found

    def gaps(self, plan: Plan) -> tuple[Gap, ...]:
        """The protections that Landlock, this kernel or this plan rules out."""
        return _gaps(plan, self._findings())

    def needs_copy(self, plan: Plan) -> bool:
        """Whether the plan grants writes that the command's id cannot make."""
        found = self._findings()
        return found.uid >= 0 and not found.can_mount and bool(_closed(plan))

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """The helper's steps, in order."""
        return _steps(*self._arrange(plan, ["command"]), _profile(plan, self._findings()))

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """The helper with its instructions. The command is confined or does not start."""
        from ...launch.contract import helper_launch
        from ...limits.command_limits import command_limits

        proxy = LaunchProxy(plan)
        try:
            _, _, _, instructions = self._arrange(plan, command, proxy)
        except BaseException:
            proxy.close()
            raise
        limited = command_limits(plan.limits, watched=True)
        if limited is not None:
            more = tuple((resource, most, most) for _, resource, most in limited.rlimits)
            instructions = instructions.replace(rlimits=(*instructions.rlimits, *more))
        try:
            return helper_launch(instructions, limited=limited)
        except BaseException:
            if limited is not None:
                limited.close()
            raise

    def _arrange(
        self, plan: Plan, command: Sequence[str], proxy: LaunchProxy | None = None
    ) -> tuple[Plan, list[rules.LandlockRule], RootView | None, ExecSpec]:
        from ...ipc.exec_spec import ExecSpec

        found = self._findings()
        uid = _uid(plan, found)
        layout, seen = self._place(plan, uid, can_mount=found.can_mount)
        mounted = _granted_in_place(plan, seen) if seen else []
        granted = self._rules(plan, layout, mounted, can_mount=seen is not None)
        kept, _ = kernel.weaken(kernel.EVERYTHING, found.abi)
        port = 0 if proxy is None else proxy.port
        ports, net = rules.ports(plan, kept, port)
        variables = layout.environment(plan, can_mount=seen is not None)
        if proxy is not None and proxy.port:
            variables |= proxy.variables
            variables["RES_OPTIONS"] = f"{variables.get('RES_OPTIONS', '')} {rules.ASKS_OVER_TCP}".strip()
        instructions = ExecSpec(
            argv=tuple(os.fsencode(word) for word in command),
            environment=tuple(os.fsencode(f"{name}={value}") for name, value in variables.items()),
            directory=os.fsencode(layout.place(plan.cwd)),
            supervise=1,
            uid=uid,
            gid=uid,
            trees=tuple((os.fsencode(p), owner, group, int(ro)) for p, owner, group, ro in seen.trees)
            if seen
            else (),
            empty=tuple((os.fsencode(p), mode, size) for p, mode, size in seen.empty) if seen else (),
            texts=tuple((os.fsencode(p), content) for p, content in seen.texts) if seen else (),
            links=tuple((os.fsencode(p), os.fsencode(to)) for p, to in seen.links) if seen else (),
            processes_hidden=int(found.hides_processes),
            scratch=tuple(os.fsencode(path) for path in layout.directories()),
            rlimits=_rlimits(plan),
            handled_fs=kernel.bits(kept, "fs"),
            handled_net=kernel.bits(net, "net"),
            scoped=kernel.bits(kept, "scope"),
            rules=tuple(
                (os.fsencode(rule.path), kernel.bits(rule.rights & kept, "fs"), int(rule.optional))
                for rule in granted
            ),
            names_threads=int(bool(plan.devices)),
            processors=cpu_count(plan.limits.cpu),
            umask=process.umask(),
            filter=seccomp.program(_profile(plan, found), keeps_processors=_keeps_processors(plan)),
            brokered=1,
            sockets=_sockets(plan, layout, mounted),
            internet=int(plan.network.mode == "open"),
            ports=ports,
            destinations=rules.destinations(plan, port),
            proxy=() if proxy is None else proxy.descriptors,
            proxy_port=port,
            proxy_word=b"" if proxy is None else proxy.word.encode(),
        )
        return plan, granted, seen, instructions

    def _place(self, plan: Plan, uid: int, *, can_mount: bool) -> tuple[PrivateDirs, RootView | None]:
        token = os.urandom(6).hex()
        if not can_mount:
            parents = (os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp")
            return PrivateDirs.of(plan, parent_for_private(parents), token, but=("/dev/shm",)), None
        from .root_view import view

        seen = view(plan, uid, plan.identity.home)
        layout = PrivateDirs.of(plan, "/tmp", token, but=_granted_in_place(plan, seen))
        return layout, view(plan, uid, layout.place(plan.identity.home))

    def _rules(
        self, plan: Plan, layout: PrivateDirs, mounted: list[str], *, can_mount: bool
    ) -> list[rules.LandlockRule]:
        try:
            granted = rules.for_grants(plan, () if can_mount else [item.path for item in plan.scratch])
        except rules.TooMany as error:
            raise PolicyNotEnforceable(
                "the landlock backend cannot enforce this policy",
                why=too_many(error.path),
                fix="deny less below it, or choose another backend",
            ) from None
        granted += [*rules.for_system(plan, can_mount=can_mount), *rules.for_granted_devices(plan)]
        return granted + rules.for_private([*layout.directories()[1:], *mounted])


def _profile(plan: Plan, found: Findings) -> str:
    """The system call filter.

    A command that stays root owns the host's programs: it may set no set-user-ID bit.
    """
    profile = landlock_profile(plan)
    return profile if not found.stays_root or profile.endswith("-nosuid") else f"{profile}-nosuid"


def _uid(plan: Plan, found: Findings) -> int:
    """The user id of one run; -1 for an ordinary user, whose id does not change."""
    if found.uid >= 0:
        for grant in plan.grants:
            # A copy may already belong to the id that will work in it.
            if grant.origin == COPY and (owner := os.stat(grant.path).st_uid) >= FIRST_UNUSED:
                return owner
    return found.uid if found.uid < 0 else id_for_sandbox() or found.uid


def _granted_in_place(plan: Plan, seen: RootView) -> list[str]:
    """Private directories mounted at the plan's own paths.

    A rule on such a directory covers everything below it, including grants mounted there. Read grants are
    mounted read-only. A denied path below it would be allowed again, so such a directory is replaced by
    another one instead.
    """
    mounted = {path for path, _, _ in seen.empty}
    denied = {up for item in plan.hidden for up in upward(item.path)}
    return [item.path for item in plan.scratch if item.path in mounted and item.path not in denied]


def _rlimits(plan: Plan) -> tuple[tuple[int, int, int], ...]:
    # One byte, not zero: only this value stops a core_pattern that starts a program.
    limits = [(process.RLIMIT_CORE, 1, 1), (process.RLIMIT_RTPRIO, 0, 0), (process.RLIMIT_NICE, 0, 0)]
    if plan.limits.file_size is not None:
        limits.append((process.RLIMIT_FSIZE, plan.limits.file_size, plan.limits.file_size))
    if plan.limits.open_files is not None:
        limits.append((process.RLIMIT_NOFILE, plan.limits.open_files, plan.limits.open_files))
    return tuple(limits)


def _sockets(plan: Plan, layout: PrivateDirs, mounted: Iterable[str]) -> tuple[tuple[bytes, bytes], ...]:
    """Sockets that the supervisor connects to: sockets in directories that the command may write."""
    beneath = [grant.path for grant in plan.grants if grant.access == "write" and grant.directory]
    beneath += [*layout.directories()[1:], *mounted]
    rows = [(b"beneath", path) for path in beneath]
    rows += [(b"exactly", socket.path) for socket in plan.sockets]
    rows += [(b"never", item.path) for item in plan.hidden]
    rows += [(b"never", item.path) for item in plan.closed]
    # A grant visible below a private directory belongs to the host.
    rows += [(b"never", grant.path) for grant in plan.grants if grant.access == "read"]
    return tuple((kind, os.fsencode(path)) for kind, path in rows)


def _steps(
    plan: Plan, granted: list[LandlockRule], seen: RootView | None, order: ExecSpec, profile: str
) -> tuple[Step, ...]:
    """The instructions in words, in order of execution."""
    found: list[Step] = []
    if seen is not None:
        found += _mounts(plan, seen, order)
    if order.uid >= 0:
        found.append(Step(f"become user and group {order.uid}, which own nothing", "landlock"))
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
    found += filter_steps(profile)
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


def _gaps(plan: Plan, found: Findings) -> tuple[Gap, ...]:
    """Every part of `plan`, and of the promises of all backends, that is not enforced here."""
    if found.uid >= 0:
        ours = _as_root(plan, found) if found.can_mount else _as_container_root(plan)
    else:
        ours = _as_a_user(plan)
    return (
        *_as_root_itself(plan, found),
        *ours,
        *_guards(plan),
        *_of_the_kernel(found.abi),
        *rules.network_gaps(plan, found.abi),
        *_of_the_plan(plan, can_mount=found.can_mount),
    )


def _documented(protection: str, why: str, fix: str = _ANOTHER) -> Gap:
    return Gap(protection, why, fix, documented=True)


def _as_a_user(plan: Plan) -> Iterator[Gap]:
    yield _documented(
        "metadata",
        "files outside can be looked up, and those of the same user can be given other modes, times and "
        "attributes: Landlock has no right for that",
    )
    yield from _without_mounts(plan)
    yield _documented(
        "signals",
        "other processes of the same user can be given another priority or CPU; they can be neither "
        "signalled nor traced",
    )
    yield _documented(
        "ipc",
        "shared memory and semaphores of the same user in /dev/shm can be opened by who knows their name",
    )
    yield _documented("devices", "terminals of the same user can be opened: /dev/pts is the host's")
    yield _documented("keyring", "the names of the user's keys are in /proc/keys; none can be read")
    yield _documented(
        "capabilities",
        "no capability is present or can be gained, but only root could empty the bounding set as well",
    )


def _as_root_itself(plan: Plan, found: Findings) -> Iterator[Gap]:
    """The command stays root, without capabilities. Only a nested policy accepts that."""
    if not found.stays_root:
        return
    if plan.limits.processes is not None and "processes" not in plan.limits.defaults:
        yield Gap(
            "limits.processes",
            "the kernel does not limit the number of root's processes",
            "run staddle as an ordinary user, or leave limits.processes out",
        )
    yield Gap(
        "root",
        f"the command keeps the user id 0, without any capability ({found.stays_root}): it can change "
        "modes, times and attributes of root's files (but set no set-user-ID bit), and read what /proc "
        "shows to root alone",
        "run staddle as an ordinary user (docker run --user 1000; runAsUser: 1000), or accept it "
        "(--nested, Policy.agent(nested=True)):\nexport STADDLE_NESTED=1",
        documented=plan.nested,
    )


def _without_mounts(plan: Plan) -> Iterator[Gap]:
    if any(text.origin == "made up" for text in plan.texts):
        yield _documented(
            "read", "/etc/passwd, group, hosts, hostname and resolv.conf are the host's own, not made up"
        )
    yield from _without_own_environment(plan)
    yield _documented("processes", "/proc is the host's: other processes and their command lines can be seen")
    yield _documented(
        "tmp",
        "/tmp cannot be used: TMPDIR and HOME are private directories elsewhere; /dev/shm is the host's",
    )


def _as_container_root(plan: Plan) -> Iterator[Gap]:
    """The command has an unused id, but this root may not mount: files keep their owners."""
    yield _documented(
        "metadata", "names, sizes and modes of files outside can be looked up, though not changed"
    )
    yield from _without_mounts(plan)
    yield _documented(
        "ipc",
        "shared memory and semaphores in /dev/shm that every user may open can be opened by name",
    )
    yield _documented("keyring", "how many keys each user has is in /proc/key-users; none can be read")
    if closed := _closed(plan):
        yield Gap(
            "write",
            f"{_some(closed)} cannot be written: root's command has an id that owns nothing, and root of "
            "this container may not map the owner of files",
            "work in a copy (Sandbox(dir), mode='overlay', and commit), start the container as the owner of "
            "the directory (docker run --user 1000), or let every user write to it (chmod o+w)",
        )


def _closed(plan: Plan) -> list[str]:
    """The plan's writable paths that an id without files cannot write."""
    return [grant.path for grant in plan.grants if grant.access == "write" and not _others_may_write(grant)]


def _others_may_write(grant: Grant) -> bool:
    """Whether an id that owns nothing can write there; a granted copy belongs to the command's id."""
    if grant.origin == COPY:
        return True
    try:
        mode = os.stat(grant.path).st_mode
    except OSError:
        return False
    return bool(mode & 0o002) and (not grant.directory or bool(mode & 0o001))


def _without_own_environment(plan: Plan) -> Iterator[Gap]:
    if any(text.origin == VIRTUAL_ENVIRONMENT for text in plan.texts):
        yield _documented(
            "packages",
            "the virtual environment on the PATH can only be read, and nothing can be installed beside it",
            "make one in the workspace or the home (python -m venv), or choose namespaces or bwrap",
        )


def _as_root(plan: Plan, found: Findings) -> Iterator[Gap]:
    yield from _without_own_environment(plan)
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
    fix = "use Linux 6.12 or newer"  # the same for all: an older kernel would still leave the next gap
    if "truncate" in lost:
        yield Gap("write", f"{newer}: files outside can be truncated before ABI 3", fix)
    if "ioctl_dev" in lost:
        yield Gap("devices", f"{newer}: device ioctls are not confined before ABI 5", fix)
    if "signal" in lost:
        yield Gap("signals", f"{newer}: processes of the same user can be signalled before ABI 6", fix)
        yield Gap("parent", f"{newer}: if our launcher is killed, what the command started may live on", fix)


def _keeps_processors(plan: Plan) -> bool:
    if plan.limits.cpu is None:
        return False
    from ...limits.cgroup_layout import CgroupSupport
    from ...limits.enforced import keeps_processors

    return keeps_processors(plan.limits, CgroupSupport(()))


def _of_the_plan(plan: Plan, *, can_mount: bool) -> Iterator[Gap]:
    yield from gateways.nobody_asks("Landlock", plan)
    yield from common.identity("Landlock", plan)
    yield from common.limits("Landlock", plan, ("disk",))
    if plan.limits.cpu is not None and not is_whole(plan.limits.cpu):
        yield Gap(
            "limits.cpu",
            "Landlock cannot limit the use of a part of a CPU",
            "use a whole number of cores, or leave limits.cpu out",
        )
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
    """The message for too many denied paths below `path`."""
    return f"what is denied below {path!r} takes more than {rules.MOST_RULES} rules to step around"


def _some(paths: Iterable[str]) -> str:
    several = [repr(path) for path in paths]
    return ", ".join(several[:3]) + (f" and {len(several) - 3} more" if several[3:] else "")
