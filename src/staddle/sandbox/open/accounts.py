"""The users of a sandbox: who `user=` names, what they may be, and their variables.

Run by root, a sandbox has all 65,536 ids of a usual system, and whoever is in its /etc/passwd can run
commands. Run by an ordinary user it has one id, which is the session's user and its root.
"""

from __future__ import annotations

from ..._value import Value
from ...errors import InvalidCall, UserUnavailable
from ...policy.environment import PATH
from ...policy.paths import ROOT_HOME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...ipc.agent_messages import Who
    from ...policy.identity import Identity

    #: Reads a file inside, of at most so many bytes.
    Reader = Callable[[str, int], bytes]

#: What is read of the accounts inside, which are whatever runs there.
_LONGEST = 1 << 20
_MOST_GROUPS = 1000


class Account(Value):
    """A user inside that is not the session's."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @property
    def who(self) -> Who:
        """As messages to the agent have it."""
        return self.uid, self.gid, self.groups

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """Its environment: the variables that the session exports, and its own."""
        own = {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}
        if self.uid == 0:
            # With the sudo of the session before that of the host, which is of no use here.
            place = f"{env.get('HOME', '')}/.local/bin"
            own["PATH"] = f"{place}:{PATH}" if place in env.get("PATH", "").split(":") else PATH
        return {**env, **own}


ROOT = Account("root", 0, 0, (), ROOT_HOME)


def find(user: object, own: Identity, ids: int, read: Reader) -> Account | None:
    """The account that `user`, a name or a number, is; None for the session's own user.

    `ids` are mapped inside. InvalidCall where there is no such user, UserUnavailable where its id is missing.
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
    """The account with this name or number, as the files inside have it; a number needs none."""
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
