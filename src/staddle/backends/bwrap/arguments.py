"""bwrap's arguments for namespaces, rights, filesystem and environment."""

from __future__ import annotations

import ctypes
import os
import struct

from ...errors import LaunchFailed, PolicyNotEnforceable
from ...linux.syscalls import call
from ...mounts.host import check_place, open_device
from ...mounts.operations import (
    Bind,
    DeviceNode,
    Devices,
    Directory,
    Empty,
    File,
    Mask,
    ProcMount,
    Seal,
    Symlink,
)
from ..gateways import reaches_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ...mounts.operations import Operation
    from ...policy.limits import Limits
    from ...policy.plan import Plan
    from ..launching import Descriptors

#: bwrap fails with more arguments (MAX_ARGS in bubblewrap.c).
_MOST = 9000


def confinement(plan: Plan) -> tuple[str, ...]:
    """Namespaces, ids, capabilities and session: everything but the filesystem.

    If the policy allows some hosts, bwrap is started in the sandbox's own network and shares it.
    """
    who = plan.identity
    shared = plan.network.mode == "open" or reaches_out(plan)
    return (
        "--unshare-all",
        *(("--share-net",) if shared else ()),
        # --unshare-all means "if possible" for the user namespace; and the command may make none.
        *("--unshare-user", "--disable-userns"),
        *("--uid", str(who.uid), "--gid", str(who.gid)),
        *("--cap-drop", "ALL"),
        "--new-session",
        "--die-with-parent",
        *("--hostname", who.host),
    )


def environment(plan: Plan) -> Iterator[str]:
    """Exactly the plan's variables. bwrap adds PWD."""
    yield "--clearenv"
    for variable in plan.variables:
        yield from ("--setenv", variable.name, variable.value)


def filesystem(operations: Iterable[Operation], give: Descriptors, *, by_descriptor: bool) -> Iterator[str]:
    """The operations as arguments; their files are opened into `give`.

    Each bind source is opened here without following a link, so that nobody can replace it later (bwrap
    compares what it mounted). A bwrap without support for descriptors gets the checked path.
    """
    made = {"/", "/dev", "/proc"}
    for operation in operations:
        if isinstance(operation, Symlink | Directory | DeviceNode) or (
            isinstance(operation, Bind | Empty | File) and not operation.below
        ):
            yield from _directories_above(operation.path, made)
        if isinstance(operation, Bind):
            yield from _bind(operation, give, by_descriptor)
        elif isinstance(operation, Empty):
            if operation.below:
                check_place(operation.path, directory=True)
            size = ("--size", str(operation.size)) if operation.size > 0 else ()
            yield from ("--perms", f"{operation.mode:04o}", *size, "--tmpfs", operation.path)
            made.add(operation.path)
        elif isinstance(operation, Directory):
            yield from ("--perms", f"{operation.mode:04o}", "--dir", operation.path)
            made.add(operation.path)
        elif isinstance(operation, Mask):
            check_place(operation.path, directory=False)
            # This device cannot be opened: bwrap mounts with nodev.
            yield from ("--ro-bind", "/dev/null", operation.path)
        elif isinstance(operation, File):
            if operation.below:
                check_place(operation.path, directory=False)
            how = "--ro-bind-data" if operation.below else "--file"
            file = str(give.holding(operation.content))
            yield from ("--perms", f"{operation.mode:04o}", how, file, operation.path)
        elif isinstance(operation, Symlink):
            yield from ("--symlink", operation.target, operation.path)
        elif isinstance(operation, Devices):
            yield from ("--dev", operation.path)
        elif isinstance(operation, DeviceNode):
            # bwrap takes a device by its path only. No sandbox can change the host's /dev after this check.
            os.close(open_device(operation))
            yield from ("--dev-bind", operation.path, operation.path)
        elif isinstance(operation, ProcMount):
            yield from ("--proc", operation.path)
        elif isinstance(operation, Seal):
            yield from ("--remount-ro", operation.path)


def _directories_above(path: str, made: set[str]) -> Iterator[str]:
    """Arguments that make the missing parents of `path`. bwrap would make them with other modes."""
    missing = []
    while (path := path[: path.rindex("/")] or "/") not in made:
        missing.append(path)
    made.update(missing)
    for directory in reversed(missing):
        yield from ("--perms", "0755", "--dir", directory)


def _bind(operation: Bind, give: Descriptors, by_descriptor: bool) -> tuple[str, ...]:
    try:
        source = give.naming(operation.path if operation.again else operation.outside)
    except LaunchFailed:
        if operation.optional:
            return ()
        raise
    how = "--bind" if operation.writable else "--ro-bind"
    if by_descriptor:
        return f"{how}-fd", str(source), operation.path
    return how, operation.outside, operation.path


def packed(words: Iterable[str]) -> bytes:
    """The arguments in the form that bwrap reads from a descriptor."""
    listed = list(words)
    if len(listed) > _MOST:
        raise PolicyNotEnforceable(
            "the policy has too many rules for bwrap",
            why=f"they make {len(listed)} arguments, and it takes {_MOST}",
            fix="name common parent directories instead of each path",
        )
    data = os.fsencode("\0".join([*listed, ""]))
    if data.count(b"\0") != len(listed):
        raise PolicyNotEnforceable(
            "a path or variable has a NUL in it", why="nothing can be called so", fix="take it out"
        )
    return data


# Resource limits, set by prlimit of util-linux: a command line has no other way to set them.
# Before bwrap, prlimit sets the limits of every sandbox. Inside, before the command, it sets the policy's
# limits, because bwrap itself must open and write files for the setup.

_NUMBERS = {"fsize": 1, "core": 4, "nofile": 7, "memlock": 8, "nice": 13, "rtprio": 14}
#: A core limit of 1 byte is the only value that also stops a core handler (`|program` in core_pattern, which
#: the kernel runs as root on the host). No real-time, no higher priority, little pinned memory.
ALWAYS = {"core": 1, "rtprio": 0, "nice": 0, "memlock": 65536}


def rlimits_outside(ceiling: Callable[[str], int]) -> tuple[str, ...]:
    """prlimit's options for every sandbox. `ceiling` returns our hard limit, which is never raised."""
    return _options(ALWAYS, ceiling)


def rlimits_inside(limits: Limits, ceiling: Callable[[str], int]) -> tuple[str, ...]:
    """prlimit's options for the limits of this policy; empty if it has none."""
    asked = {"fsize": limits.file_size, "nofile": limits.open_files}
    return _options({name: value for name, value in asked.items() if value is not None}, ceiling)


def _options(asked: dict[str, int], ceiling: Callable[[str], int]) -> tuple[str, ...]:
    lowered = {name: min(value, ceiling(name)) for name, value in asked.items()}
    return tuple(f"--{name}={value}:{value}" for name, value in lowered.items())


def hard_limit(name: str) -> int:
    """The hard limit of this process; unlimited is the largest number."""
    answer = ctypes.create_string_buffer(16)
    call("prlimit64", 0, _NUMBERS[name], None, ctypes.addressof(answer))
    ceiling: int = struct.unpack("QQ", answer.raw)[1]
    return ceiling
