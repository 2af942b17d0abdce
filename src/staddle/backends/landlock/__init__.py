"""Landlock: no namespaces, no mounts, no privilege; a helper confines itself and becomes the command.

Landlock decides about files, signals and abstract sockets, the system call filter about
everything else, and a supervisor makes the connections to UNIX sockets that the policy
allows. Run by root, the command becomes a user with an unused id, in a mount namespace that
gives it its files.

What this backend cannot do is in `gaps`; docs/backends.md has the reasons.
"""

from __future__ import annotations

import os

from ...enforcement import Step
from ...errors import PolicyNotEnforceable
from ...launch.contract import Launch
from ...linux import landlock as kernel
from ...linux import process, seccomp
from ...policy.paths import upward
from ..exec_spec import landlock_profile
from . import description, destinations, rules
from .private_dirs import PrivateDirs, parent_for_private
from .probe import Findings, find_out, uid_for_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...enforcement import Gap, Probe
    from ...ipc.exec_spec import ExecSpec
    from ...policy.plan import Plan
    from .root_view import RootView


class Landlock:
    """Confines with Landlock and a system call filter."""

    name = "landlock"

    def __init__(self) -> None:
        self._found: Findings | None = None

    def probe(self) -> Probe:
        """Confine a shell in a child and let it try what must not work."""
        return self._findings().probe

    def _findings(self) -> Findings:
        if self._found is None:
            self._found = find_out(self.name)
        return self._found

    def gaps(self, plan: Plan) -> tuple[Gap, ...]:
        """The gaps: what Landlock has no means for, what this kernel lacks, what of `plan` cannot be held."""
        return description.gaps(plan, self._findings())

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """The steps of the helper, in its order."""
        return description.steps(*self._arrange(plan, ["command"]))

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """The helper with its instructions. The command is confined or does not start."""
        from ...launch.helper import launch

        _, _, _, instructions = self._arrange(plan, command)
        return launch(instructions)

    def _arrange(
        self, plan: Plan, command: Sequence[str]
    ) -> tuple[Plan, list[rules.LandlockRule], RootView | None, ExecSpec]:
        from ...ipc.exec_spec import ExecSpec

        found = self._findings()
        uid = uid_for_run(found.uid)
        layout, seen = self._place(plan, uid)
        mounted = _granted_in_place(plan, seen) if seen else []
        granted = self._rules(plan, layout, mounted, can_mount=seen is not None)
        kept, _ = kernel.weaken(kernel.EVERYTHING, found.abi)
        ports, net = destinations.ports(plan, kept)
        instructions = ExecSpec(
            argv=tuple(os.fsencode(word) for word in command),
            environment=tuple(
                os.fsencode(f"{name}={value}")
                for name, value in layout.environment(plan, can_mount=seen is not None).items()
            ),
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
            filter=seccomp.program(landlock_profile(plan)),
            brokered=1,
            sockets=_sockets(plan, layout, mounted),
            internet=int(plan.network.mode == "open"),
            ports=ports,
            destinations=destinations.rows(plan),
        )
        return plan, granted, seen, instructions

    def _place(self, plan: Plan, uid: int) -> tuple[PrivateDirs, RootView | None]:
        token = os.urandom(6).hex()
        if uid < 0:
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
                "the landlock backend cannot hold this policy",
                why=description.too_many(error.path),
                fix="deny less below it, or choose another backend",
            ) from None
        granted += rules.for_system(plan, can_mount=can_mount)
        return granted + rules.for_private([*layout.directories()[1:], *mounted])


def _granted_in_place(plan: Plan, seen: RootView) -> list[str]:
    """Private directories that are where the plan says: only a mount can do that.

    A rule on one holds for everything below, grants that show through it included. What is
    only read there is mounted read-only; but what is denied there would be allowed again, so
    then another directory stands in for it.
    """
    mounted = {path for path, _, _ in seen.empty}
    denied = {up for item in plan.hidden for up in upward(item.path)}
    return [item.path for item in plan.scratch if item.path in mounted and item.path not in denied]


def _rlimits(plan: Plan) -> tuple[tuple[int, int, int], ...]:
    # One byte, not zero: only that also stops a core_pattern that starts a program.
    limits = [(process.RLIMIT_CORE, 1, 1), (process.RLIMIT_RTPRIO, 0, 0), (process.RLIMIT_NICE, 0, 0)]
    if plan.limits.file_size is not None:
        limits.append((process.RLIMIT_FSIZE, plan.limits.file_size, plan.limits.file_size))
    if plan.limits.open_files is not None:
        limits.append((process.RLIMIT_NOFILE, plan.limits.open_files, plan.limits.open_files))
    return tuple(limits)


def _sockets(plan: Plan, layout: PrivateDirs, mounted: Iterable[str]) -> tuple[tuple[bytes, bytes], ...]:
    """Which sockets the supervisor connects to: those in directories the command may write."""
    beneath = [grant.path for grant in plan.grants if grant.access == "write" and grant.directory]
    beneath += [*layout.directories()[1:], *mounted]
    rows = [(b"beneath", path) for path in beneath]
    rows += [(b"exactly", socket.path) for socket in plan.sockets]
    rows += [(b"never", item.path) for item in plan.hidden]
    rows += [(b"never", item.path) for item in plan.closed]
    # A grant that shows through a private directory is the host's.
    rows += [(b"never", grant.path) for grant in plan.grants if grant.access == "read"]
    return tuple((kind, os.fsencode(path)) for kind, path in rows)
