"""The identity inside: user, host name and home.

All files, namespaces and variables that show the identity are made from this one value.
"""

from __future__ import annotations

from .. import check
from .._value import Value
from ..errors import PolicyError
from ..paths import LONGEST_PATH, ROOT_HOME, covers

#: Highest allowed id: the last two 16-bit ids are reserved.
LAST_ID = 65533
LONGEST_USER, LONGEST_HOST, LONGEST_LABEL = 32, 64, 63

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DIGITS = frozenset("0123456789")
_IN_A_USER = _LETTERS | _DIGITS | frozenset("_.-")
_IN_A_HOST = _LETTERS | _DIGITS | frozenset("-")

#: Accounts in every /etc/passwd inside, with their ids.
ACCOUNTS = {"root": 0, "nobody": 65534, "nogroup": 65534}
#: No home may be here: these belong to the system, the kernel, the sandbox or the workspace.
TAKEN = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc", "/run"),
    *("/sbin", "/sys", "/usr", "/workspace"),
)
#: Directories that are not homes themselves; a home may be below them.
PLACES = ("/", "/home", "/tmp", "/var", "/var/tmp", "/srv", "/mnt", "/media")


class Identity(Value):
    """The user inside. `home` defaults to /home/USER, and to /root for root.

    `uid` is the user's id, `gid` the id of its only group (default: `uid`). 0 is called root and owns what
    the sandbox owns. Only a session in layers gives it root's rights over these files, and nothing gives it
    rights over anything else.
    """

    user: str = ""
    uid: int = 1000
    host: str = "sandbox"
    home: str = ""
    gid: int = -1

    def __post_init__(self) -> None:
        uid = self.uid
        check.count("the user id", uid, 0, LAST_ID, fix="use 1000", error=PolicyError)
        if self.user == "":
            self._set("user", "user" if uid else "root")
        if self.gid == -1:
            self._set("gid", uid)
        _check_group(self.gid, uid)
        _check_user(self.user, uid)
        _check_host(self.host)
        if self.home == "":
            self._set("home", f"/home/{self.user}" if uid else ROOT_HOME)
        _check_home(self.home)

    @property
    def is_usual(self) -> bool:
        """Whether user, ids and host name have their default values."""
        return (self.user, self.uid, self.gid, self.host) == ("user", 1000, 1000, "sandbox")

    @property
    def has_usual_home(self) -> bool:
        """Whether the home is the default for this user."""
        return self.home == (f"/home/{self.user}" if self.uid else ROOT_HOME)

    def at(self, home: str) -> Identity:
        """Return the same identity with the home that a plan has chosen."""
        made = self.replace()
        made._set("home", home)
        return made


def _check_group(gid: object, uid: int) -> None:
    check.count("the group id", gid, 0, LAST_ID, fix="use 1000", error=PolicyError)
    if (gid == 0) != (uid == 0):
        raise PolicyError(
            f"the ids are {uid} and {gid}", why="root is both, or neither", fix="leave the group id out"
        )


def _check_user(user: object, uid: int) -> None:
    if not isinstance(user, str):
        raise _bad_user(user, "it is not text")
    if len(user) > LONGEST_USER:
        raise _bad_user(user, f"it is longer than {LONGEST_USER} characters")
    if user[0] not in _LETTERS and user[0] != "_":
        raise _bad_user(user, "it starts with neither a letter nor '_'")
    odd = next((char for char in user if char not in _IN_A_USER), "")
    if odd:
        raise _bad_user(user, f"it has {odd!r} in it")
    if ACCOUNTS.get(user, uid) != uid:
        raise PolicyError(
            f"the user is called {user!r} and has the id {uid}",
            why=f"{user} is {ACCOUNTS[user]} on every machine",
            fix="choose another name, or Identity(uid=0) for root",
        )


def _bad_user(user: object, why: str) -> PolicyError:
    fix = "use letters, digits, '_', '-' and '.', as in Identity(user='ada')"
    return PolicyError(f"the user is called {user!r}", why=why, fix=fix)


def _check_host(host: object) -> None:
    why = ""
    if not isinstance(host, str):
        why = "it is not text"
    elif not host:
        why = "it is empty"
    elif len(host) > LONGEST_HOST:
        why = f"the kernel takes {LONGEST_HOST} characters"
    else:
        for label in host.split("."):
            if not label or len(label) > LONGEST_LABEL:
                why = f"each part between dots has 1 to {LONGEST_LABEL} characters"
            elif label[0] == "-" or label[-1] == "-":
                why = "no part begins or ends with '-'"
            elif odd := next((char for char in label if char not in _IN_A_HOST), ""):
                why = f"it has {odd!r} in it"
    if why:
        fix = "use letters, digits and '-', as in Identity(host='build-1')"
        raise PolicyError(f"the host is called {host!r}", why=why, fix=fix)


def _check_home(home: object) -> None:
    why = ""
    if not isinstance(home, str):
        why = "it is not text"
    elif not home.startswith("/"):
        why = "it is not an absolute path"
    elif home in PLACES:
        why = "that directory is not one user's"
    elif any(part in ("", ".", "..") for part in home[1:].split("/")):
        why = "it has an empty part, '.' or '..' in it"
    elif any(char in home for char in ":\n\0"):
        why = "/etc/passwd cannot contain ':', a line end or NUL in a path"
    elif len(home) > LONGEST_PATH:
        why = "it is too long for a path"
    else:
        taken = next((place for place in TAKEN if covers(place, home)), "")
        why = f"{taken} is taken inside" if taken else ""
    if why:
        raise PolicyError(f"the home is {home!r}", why=why, fix="use /home/NAME, or leave it out")
