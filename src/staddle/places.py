"""The directories on this host that staddle trusts, in one list.

staddle executes, obeys or takes for its own record what is in them: shims of coding agents, policy
files, kept sandboxes, imported bases, layers, journals of commits. So no sandbox may write there, however it
was started: `policy.own_places` guards them below a grant and refuses a grant in them, and a commit refuses
to change them.

Variables can put some of them into a workspace. The shims and journals that a sandbox could use to leave are
therefore never where a variable says: see `runtime` and `unreachable`.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat

from .errors import LaunchFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: For the settings of an installation, and for the kept sandboxes and downloads of root.
_OF_THE_HOST = ("/etc/staddle", "/var/lib/staddle", "/var/cache/staddle")
#: Each base directory of a user (XDG): its variable, and where it is below the home by default.
_BASES = {
    "config": ("XDG_CONFIG_HOME", ".config"),
    "data": ("XDG_DATA_HOME", ".local/share"),
    "state": ("XDG_STATE_HOME", ".local/state"),
    "cache": ("XDG_CACHE_HOME", ".cache"),
}
#: Each names a directory of ours, or a file, by its whole path.
BASES, DOWNLOADS, JAIL_CONFIG, LAYERS, WORKSPACES = (
    "STADDLE_BASES",
    "STADDLE_DOWNLOADS",
    "STADDLE_JAIL_CONFIG",
    "STADDLE_LAYERS",
    "STADDLE_WORKSPACES",
)
#: Everybody's directories. Every sandbox has its own, so a grant can only name something below them.
SHARED = ("/tmp", "/var/tmp", "/dev/shm")
#: How what we make there begins.
PREFIX = "staddle-"


def home() -> str:
    """The home of the user; of the account, where $HOME is no absolute path."""
    said = os.environ.get("HOME", "")
    return said if said.startswith("/") else _home_of_account()


def _home_of_account() -> str:
    import pwd

    try:
        found = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        found = "/"
    return found if found.startswith("/") else "/"


def of_user(kind: str) -> str:
    """Our directory in the user's base directory of this `kind`: "config", "data", "state" or "cache"."""
    variable, default = _BASES[kind]
    said = os.environ.get(variable, "")
    # The specification says that a relative path is to be ignored.
    return f"{said if said.startswith('/') else _below(home(), default)}/staddle"


def workspaces() -> str:
    """The directory of the worktrees of jails, each with its records."""
    return os.environ.get(WORKSPACES) or f"{of_user('data')}/workspaces"


def trusted() -> Iterator[str]:
    """Every place of ours outside of SHARED, whether it exists or not.

    Those that variables name, and the usual ones as well: the next program may have other variables.
    """
    yield from _OF_THE_HOST
    homes = {home(), _home_of_account()}
    for kind, (_, default) in _BASES.items():
        yield from dict.fromkeys((of_user(kind), *(f"{_below(place, default)}/staddle" for place in homes)))
    for variable in (BASES, DOWNLOADS, JAIL_CONFIG, WORKSPACES):
        if said := os.environ.get(variable):
            yield os.path.abspath(said)
    for variable in (LAYERS, "TMPDIR"):
        said = os.environ.get(variable, "")
        if said.startswith("/"):
            yield f"{os.path.normpath(said)}/{PREFIX}{os.geteuid()}"


def is_shared(path: str) -> bool:
    """Whether a path, absolute and normal, is one of ours in SHARED, or in the user's runtime directory."""
    for top in (*SHARED, f"/run/user/{os.getuid()}"):
        if path.startswith(f"{top}/{PREFIX}"):
            name = path[len(top) + len(PREFIX) + 1 :].partition("/")[0]
            return name.rpartition("-")[2].isdigit()
    return False


def is_worktree(path: str) -> bool:
    """Whether a path is in a jail's worktree: the one thing in our places that a sandbox writes."""
    top = os.path.realpath(workspaces())
    name, _, rest = path.removeprefix(f"{top}/").partition("/")
    return path.startswith(f"{top}/") and bool(name) and (rest == "tree" or rest.startswith("tree/"))


def within(directory: str) -> tuple[str, ...]:
    """Our places in a `directory` of the host, absolute and without links, or around it."""
    if is_worktree(directory):
        return ()
    known = dict.fromkeys((*trusted(), *map(os.path.realpath, trusted())))
    found = [place for place in known if _covers(directory, place) or _covers(place, directory)]
    return (*found, directory) if is_shared(directory) else tuple(found)


def refuse(directory: str, name: str) -> None:
    """PermissionError if `name`, below `directory` and without links, is a place of ours or in one."""
    path = os.path.normpath(f"{directory}/{name}")
    if any(_covers(place, path) for place in within(directory)):
        raise PermissionError(errno.EACCES, "it is staddle's own, and trusted later", path)


def _covers(ancestor: str, path: str) -> bool:
    return ancestor in (path, "/") or path.startswith(f"{ancestor}/")


def runtime() -> str:
    """The directory of what ends with a process: shims, and pipes of brokers. It need not exist.

    No variable decides: XDG_RUNTIME_DIR and TMPDIR may be in a workspace.
    """
    uid = os.geteuid()
    own = f"/run/user/{uid}"
    try:
        found = os.stat(own)
        if found.st_uid == uid and not found.st_mode & 0o022 and not os.statvfs(own).f_flag & os.ST_NOEXEC:
            return f"{own}/{PREFIX}run-{uid}"
    except OSError:
        pass  # no session of systemd
    return f"/tmp/{PREFIX}run-{uid}"


def unreachable(kind: str) -> Iterator[str]:
    """Directories for records of this `kind` that no sandbox may write, best first.

    A grant cannot name or contain any of them, and no variable decides.
    """
    for top in ("/var/tmp", "/tmp", "/dev/shm"):
        yield f"{top}/{PREFIX}{kind}-{os.geteuid()}"


def make_directory(path: str, mode: int = 0o700, *, dir_fd: int | None = None) -> None:
    """Make a directory with exactly this mode, whatever the umask of the program.

    Otherwise one program with a umask of 0777 would leave a directory that no later one can enter.
    """
    os.mkdir(path, mode, dir_fd=dir_fd)
    os.chmod(path, mode, dir_fd=dir_fd)


def make_private(top: str, *names: str) -> str:
    """The directory `top`/name/..., made if it is missing. LaunchFailed if others can enter it."""
    path = top
    for path in itertools.accumulate((top, *names), "{}/{}".format):
        try:
            make_directory(path)
        except FileExistsError:
            pass
        except OSError as error:
            why = error.strerror or str(error)
            raise LaunchFailed(
                f"the directory {path!r} cannot be made", why=why, fix="make room for it"
            ) from None
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise LaunchFailed(
                f"{path!r} is not a directory that only you can use",
                why="another user has created it, or may enter it",
                fix="remove it",
            )
    return path


def _below(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"
