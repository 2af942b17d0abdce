"""Directories on this host that staddle trusts, in one list.

staddle executes or obeys their contents, or treats them as its own records: shims of coding agents, policy
files, kept sandboxes, imported bases, layers, commit journals. So no sandbox may write there, however it was
started. `policy.own_places` guards them below a grant and refuses a grant in them, and a commit refuses to
change them.

Environment variables can place some of them in a workspace. Shims and journals, with which a sandbox could
escape, therefore ignore variables: see `runtime` and `unreachable`.
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

#: Settings of an installation; root's kept sandboxes and downloads.
_OF_THE_HOST = ("/etc/staddle", "/var/lib/staddle", "/var/cache/staddle")
#: Base directories of a user (XDG): the variable, and the default below the home.
_BASES = {
    "config": ("XDG_CONFIG_HOME", ".config"),
    "data": ("XDG_DATA_HOME", ".local/share"),
    "state": ("XDG_STATE_HOME", ".local/state"),
    "cache": ("XDG_CACHE_HOME", ".cache"),
}
#: Variables that name a directory or file of ours by its whole path.
BASES, DOWNLOADS, JAIL_CONFIG, LAYERS, WORKSPACES = (
    "STADDLE_BASES",
    "STADDLE_DOWNLOADS",
    "STADDLE_JAIL_CONFIG",
    "STADDLE_LAYERS",
    "STADDLE_WORKSPACES",
)
#: World-writable directories. Every sandbox has its own, so a grant can only name paths below them.
SHARED = ("/tmp", "/var/tmp", "/dev/shm")
#: Prefix of our names there.
PREFIX = "staddle-"


def user() -> int:
    """Return the user's id for names in SHARED: that outside a user namespace, where it is who owns them.

    Else "root" of a container and the host's root would have the same names there.
    """
    own = os.geteuid()
    try:
        with open("/proc/self/uid_map") as rows:
            for inside, outside, count in (map(int, row.split()) for row in rows):
                if inside <= own < inside + count:
                    return outside + own - inside
    except (OSError, ValueError):
        pass  # no /proc, or not Linux
    return own


def home() -> str:
    """Return the user's home; the account's, if $HOME is not an absolute path."""
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
    """Return our directory in the user's base directory `kind`: "config", "data", "state" or "cache"."""
    variable, default = _BASES[kind]
    said = os.environ.get(variable, "")
    # The specification says to ignore a relative path.
    return f"{said if said.startswith('/') else _below(home(), default)}/staddle"


def workspaces() -> str:
    """Return the directory of the jails' worktrees, each with its records."""
    return os.environ.get(WORKSPACES) or f"{of_user('data')}/workspaces"


def trusted() -> Iterator[str]:
    """Yield every place of ours outside SHARED, even if it does not exist.

    It includes the default places beside those in variables: the next program may have other variables.
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
            yield f"{os.path.normpath(said)}/{PREFIX}{user()}"


def is_shared(path: str) -> bool:
    """Whether a normalized absolute path is ours in SHARED or in a user's runtime directory."""
    runtime_of_user = "/".join(path.split("/", 4)[:4]) if path.startswith("/run/user/") else "/run/user"
    for top in (*SHARED, runtime_of_user):
        if path.startswith(f"{top}/{PREFIX}"):
            name = path[len(top) + len(PREFIX) + 1 :].partition("/")[0]
            return name.rpartition("-")[2].isdigit()
    return False


def is_worktree(path: str) -> bool:
    """Whether a path is in a jail's worktree: the only one of our places that a sandbox writes."""
    top = os.path.realpath(workspaces())
    name, _, rest = path.removeprefix(f"{top}/").partition("/")
    return path.startswith(f"{top}/") and bool(name) and (rest == "tree" or rest.startswith("tree/"))


def within(directory: str) -> tuple[str, ...]:
    """Return our places inside or around a host `directory`, which is absolute and without links."""
    if is_worktree(directory):
        return ()
    known = dict.fromkeys((*trusted(), *map(os.path.realpath, trusted())))
    found = [place for place in known if _covers(directory, place) or _covers(place, directory)]
    return (*found, directory) if is_shared(directory) else tuple(found)


def refuse(directory: str, name: str) -> None:
    """Raise PermissionError if `name`, below `directory` and without links, is or is in a place of ours."""
    path = os.path.normpath(f"{directory}/{name}")
    if any(_covers(place, path) for place in within(directory)):
        raise PermissionError(errno.EACCES, "it is staddle's own, and trusted later", path)


def _covers(ancestor: str, path: str) -> bool:
    return ancestor in (path, "/") or path.startswith(f"{ancestor}/")


def runtime() -> str:
    """Return the directory for shims and broker pipes, which end with a process. It need not exist.

    It ignores variables: XDG_RUNTIME_DIR and TMPDIR may be in a workspace.
    """
    uid = user()
    own = f"/run/user/{uid}"
    try:
        found = os.stat(own)
        is_private = found.st_uid == os.geteuid() and not found.st_mode & 0o022
        if is_private and not os.statvfs(own).f_flag & os.ST_NOEXEC:
            return f"{own}/{PREFIX}run-{uid}"
    except OSError:
        pass  # no systemd session
    return f"/tmp/{PREFIX}run-{uid}"


def server() -> str:
    """Return the directory of the socket of this user's server. It need not exist."""
    return f"{runtime()}/server"


def of_this_process(kind: str, label: str = "") -> str:
    """Return a private directory of this process, below `runtime`; remove those of killed processes."""
    import shutil  # slow to load

    top = make_private(runtime(), kind)
    for path in ended(top):
        shutil.rmtree(path, ignore_errors=True)
    return make_private(top, f"{label}.{os.getpid()}")


def ended(top: str) -> Iterator[str]:
    """Yield the directories of `of_this_process` in `top` whose process has ended."""
    for name in os.listdir(top) if os.path.isdir(top) else ():
        if not os.path.exists(f"/proc/{name.rpartition('.')[2]}"):
            yield f"{top}/{name}"


def unreachable(kind: str) -> Iterator[str]:
    """Yield directories for records of this `kind` that no sandbox may write, best first.

    No grant can name or contain them, and no variable changes them.
    """
    for top in ("/var/tmp", "/tmp", "/dev/shm"):
        yield f"{top}/{PREFIX}{kind}-{user()}"


def make_directory(path: str, mode: int = 0o700, *, dir_fd: int | None = None) -> None:
    """Create a directory with exactly this mode, whatever the umask.

    Otherwise a program with the umask 0777 would leave a directory that no later program can enter.
    """
    os.mkdir(path, mode, dir_fd=dir_fd)
    try:
        made = os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode & 0o777
        if (
            mode & ~made
        ):  # only add what the umask took: another program may have opened it to others meanwhile
            os.chmod(path, made | mode, dir_fd=dir_fd)
    except FileNotFoundError:
        pass  # another program has removed it, as after a removal a moment later


def make_private(top: str, *names: str) -> str:
    """Return the directory `top`/name/..., created if missing. LaunchFailed if others can enter it."""
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
