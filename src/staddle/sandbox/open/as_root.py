"""Commands as root inside a sandbox, with the system in layers.

Root inside has no rights outside: see inside.agent.confinement. It may write the whole system. For that the
sandbox's layers are extended on the first use of root; if the session itself is root, at its start.
"""

from __future__ import annotations

import os
import threading

from ..._value import Value
from ...errors import InvalidCall, RootUnavailable, UserUnavailable
from ...paths import ROOT_HOME, ROOT_TREE
from ...policy.environment import PATH
from ..workspace.home_layer import SYSTEM, digest, made_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...ipc.agent_messages import Who
    from ...layers.store import Store
    from ...mounts.operations import Operation
    from ...packages.system_layer import Part
    from ...policy.identity import Identity
    from ...policy.plan import Plan
    from ..workspace.overlay import OverlayWorkspace
    from ..workspace.workspace import SandboxWorkspace
    from .decide import Decision

    #: Reads at most this many bytes of a file inside.
    Reader = Callable[[str, int], bytes]

_BACKEND = "namespaces"
#: If one of these changes, the system has changed.
_STATE = ("/var/lib/dpkg/status", "/usr", "/usr/lib", "/usr/local", "/opt", "/etc")
_building = threading.Lock()


def prepare_system(decided: Decision, workspace: SandboxWorkspace | None) -> None:
    """Put the system in layers, where root writes. Raises RootUnavailable if there is no root."""
    backend = decided.backend.name
    if backend != _BACKEND:
        raise RootUnavailable(
            "no command can run as root in this sandbox",
            why=f"the {backend} backend gives it one user",
            fix=f"choose backend={_BACKEND!r}",
        )
    from ..workspace.overlay import OverlayWorkspace

    if isinstance(workspace, OverlayWorkspace) and not workspace.has_system:
        from ..workspace.snapshot import extend

        extend(workspace, _bases(workspace, decided.plan))


# ---------------------------------------------------------------- layers of the system


def prepare(workspace: OverlayWorkspace, plan: Plan) -> None:
    """Put the system in layers before a sandbox opens whose session is root.

    A kept sandbox continues over the current system, with the ids of this process.
    """
    if not workspace.has_system:
        workspace.begin(_bases(workspace, plan))
    elif workspace.stack.store.is_persistent:
        _check_owner(workspace, plan)
        workspace.rebase(_bases(workspace, plan))


def open_root(workspace: OverlayWorkspace, plan: Plan) -> None:
    """Put `/` in a layer before a sandbox opens, so that its user may create directories there."""
    from ...mounts.from_plan import layout_of
    from ...mounts.operations import encode_operations
    from ...packages import system_layer

    store, view = workspace.stack.store, layout_of(plan).operations

    def make(half: str) -> None:
        system_layer.build_top(half, view, None if store.owner is None else store.owner[0])
        os.chmod(half, 0o711)  # noqa: S103 - the uid that mounts it must pass

    place = made_whole(f"{store.path}/{SYSTEM}{digest((encode_operations(tuple(view)), 'top'))}", make)
    if ROOT_TREE in workspace.trees:
        workspace.rebase({ROOT_TREE: [place + system_layer.TOP_PLACE]})
    else:
        workspace.begin({ROOT_TREE: [place + system_layer.TOP_PLACE]})


def _check_owner(workspace: OverlayWorkspace, plan: Plan) -> None:
    """Refuse layers of the other root: Identity(uid=0) and user='root' have different ids on the host."""
    from ...forkserver.client import root_of

    owner = root_of(workspace.stack.store.owner, plan.identity.uid)
    if owner is not None and os.stat(workspace.trees["/usr"].stack.top.upper).st_uid != owner:
        before = "Identity(uid=0)" if plan.identity.uid else "user='root'"
        raise InvalidCall(
            "root cannot continue in this session",
            why=f"its system was written with {before}",
            fix="open it in the same way, or choose another name",
        )


def _bases(workspace: OverlayWorkspace, plan: Plan) -> dict[str, list[str]]:
    """Return the lower directories of each directory of the system, topmost first."""
    from ...forkserver.client import root_of
    from ...mounts.from_plan import layout_of
    from ...packages.system_layer import mounted_below

    store = workspace.stack.store
    owner = root_of(store.owner, plan.identity.uid)
    view = layout_of(plan).operations
    with _building:
        parts = _skeleton(store, owner, view, plan.base, always=plan.identity.uid == 0)
    with open("/proc/self/mountinfo", "rb") as file:
        closed = mounted_below([part.host for part in parts if part.host], file.read())
    links = {link.path for link in plan.links}  # these replace directories of the base
    return {
        part.root: [part.skeleton, *([part.host] if part.host else [])]
        for part in parts
        if (part.host not in closed or not part.host)
        and part.root not in {plan.identity.home, *links}
        and (not part.host or os.path.dirname(part.root) != "/" or plan.shows(part.root))  # not if denied
    }


def _skeleton(
    store: Store, owner: int | None, view: Sequence[Operation], host: str, *, always: bool
) -> tuple[Part, ...]:
    """Return the skeleton of the current system in `store`; build it if missing.

    `always` marks skeletons for sessions that are root, which have another owner.
    """
    from ...layers.persistent_store import give
    from ...mounts.operations import encode_operations
    from ...packages import system_layer

    def make(half: str) -> None:
        system_layer.build(half, view, owner, host, whole=bool(host))
        os.chmod(half, 0o711)  # noqa: S103 - the uid that mounts it must pass

    state = [_changed(host + path) for path in _STATE]
    name = digest((encode_operations(tuple(view)), always, host, state))
    place = made_whole(f"{store.path}/{SYSTEM}{name}", make)
    if owner is not None and os.stat(f"{place}/etc").st_uid != owner:
        give(place, (owner, owner))  # an earlier process built it, with other ids
    return system_layer.parts(place, host)


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


# Users of a sandbox: accounts that `user=` names, their ids and their variables.
#
# If root runs it, a sandbox has all 65,536 ids of a usual system, and every user in its /etc/passwd can run
# commands. If an ordinary user runs it, it has one id, which is the session's user and its root.


#: Bytes read of the account files, which programs inside may have written.
_LONGEST = 1 << 20
_MOST_GROUPS = 1000


class Account(Value):
    """A user inside other than the session's."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @property
    def who(self) -> Who:
        """Ids in the form that messages to the agent use."""
        return self.uid, self.gid, self.groups

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return its environment: the session's exports with its own variables."""
        own = {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}
        if self.uid == 0:
            # The session's sudo comes before the host's, which does not work here.
            place = f"{env.get('HOME', '')}/.local/bin"
            own["PATH"] = f"{place}:{PATH}" if place in env.get("PATH", "").split(":") else PATH
        return {**env, **own}


ROOT = Account("root", 0, 0, (), ROOT_HOME)


def find(user: object, own: Identity, ids: int, read: Reader) -> Account | None:
    """Return the account of `user`, a name or a uid; None for the session's own user.

    `ids` are mapped inside. Raises InvalidCall if it does not exist, UserUnavailable if its id is not mapped.
    """
    if isinstance(user, bool) or not isinstance(user, str | int) or user == "":
        raise InvalidCall(
            f"user is {user!r}", why="it is neither a name nor a number", fix="use user='root', or a number"
        )
    if isinstance(user, str) and user.isascii() and user.isdigit():
        user = int(user)
    if user in (own.user, own.uid):
        return None
    if user in (ROOT.name, ROOT.uid):
        return ROOT
    found = _listed(user, read)
    if found is None:
        raise InvalidCall(
            f"there is no user {user!r} inside",
            fix=f"use user={own.user!r}, user={ROOT.name!r}, or make one as root (useradd)",
            why="/etc/passwd inside does not have it",
        )
    if not 0 < found.uid < ids or not 0 <= found.gid < ids:
        raise UserUnavailable(
            f"no command can run as {user!r} in this sandbox",
            why=f"uid {found.uid} is not mapped"
            if ids > 1
            else "it has one id: that of its user and its root",
            fix=f"use user={ROOT.name!r} or user={own.user!r}"
            + ("" if ids > 1 else "; run by root, a sandbox has all ids"),
        )
    return found


def _listed(user: str | int, read: Reader) -> Account | None:
    """Find the account in the files inside; a uid needs no entry."""
    column = 2 if isinstance(user, int) else 0
    for name, _, uid, gid, _, home, *_ in _rows(read("/etc/passwd", _LONGEST), 6):
        if (name, uid)[column // 2] == str(user) and _is_id(uid) and _is_id(gid):
            member = [row[2] for row in _rows(_group_file(read), 4) if name in row[3].split(",")]
            groups = sorted({int(each) for each in member if _is_id(each) and int(each) < 1 << 16})
            return Account(name, int(uid), int(gid), tuple(groups[:_MOST_GROUPS]), home or "/")
    return Account(str(user), user, user, (), "/") if isinstance(user, int) else None


def _group_file(read: Reader) -> bytes:
    try:
        return read("/etc/group", _LONGEST)
    except OSError:
        return b""


def _rows(data: bytes, columns: int) -> list[list[str]]:
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    return [row for line in lines if len(row := line.split(":")) >= columns and "\0" not in line]


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
