"""A base: another root file system on the host, shown read-only instead of the host's own.

Its content is untrusted. Its symlinks resolve *inside* and are never followed on the host. Devices, pipes and
sockets are left out. Its root, /etc, /var and the parents of the sandbox's own paths are assembled entry by
entry, so that our files and the policy's grants fit whatever the base contains. All other directories are
mounted whole.

An imported base has a name and is stored in `directory()`. `bases/store.py` lists and removes them.
"""

from __future__ import annotations

import os
import stat

from .. import places
from .._value import Value
from ..errors import BaseError, PolicyError
from ..hostinfo.resolution import HostPaths
from ..paths import above
from .plan import Grant, Link, Text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ..hostinfo.resolution import PathContext

#: Environment variable that replaces the default directory of bases.
VARIABLE = places.BASES
LONGEST_NAME = 64
_IN_A_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


def directory() -> str:
    """Return the directory of all bases. It need not exist."""
    chosen = os.environ.get(VARIABLE, "")
    return chosen if chosen.startswith("/") else f"{places.of_user('data')}/bases"


def checked_name(name: str) -> str:
    """Return `name` if it is a valid name of a base."""
    odd = next((char for char in name if char not in _IN_A_NAME), "")
    if not name or len(name) > LONGEST_NAME or odd or name[0] in ".-":
        why = f"it has {odd!r} in it" if odd else f"1 to {LONGEST_NAME} characters, no '.' or '-' first"
        raise BaseError(
            f"a base cannot be called {name!r}", why=why, fix="use letters, digits, '_', '-' and '.'"
        )
    return name


def imported(name: str) -> str | None:
    """Return the root of the base called `name`, or None if there is none."""
    try:
        checked_name(name)
    except BaseError:
        return None
    root = f"{directory()}/{name}/root"
    return root if os.path.isdir(root) and not os.path.islink(root) else None


ORIGIN = "base"
#: Directories of the base's root that every sandbox replaces by its own.
OWN = ("/dev", "/proc", "/sys", "/tmp", "/run", "/home", "/workspace", "/boot", "/lost+found")
#: Assembled entry by entry in every base, because they contain files of staddle.
PARTS = ("/", "/etc", "/var")
#: Files about accounts in /etc that are replaced or not shown.
NOT_SHOWN = frozenset(
    {"/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/passwd-", "/etc/group-"}
)
#: Small files are copied, up to MOST_COPIED bytes in total. The others are mounted one by one.
LARGEST_COPY, MOST_COPIED = 64 << 10, 4 << 20
#: Maximum number of entries in an assembled directory: each is a mount in every sandbox.
MOST_ENTRIES = 1024


class BaseView(Value):
    """The visible part of a base, and its accounts."""

    grants: tuple[Grant, ...]
    links: tuple[Link, ...]
    texts: tuple[Text, ...]
    passwd: bytes
    group: bytes


def find(text: str, context: PathContext, host: HostPaths) -> str:
    """Return the directory of `base`, which is the name of an imported base or a path."""
    place = None
    if "/" not in text and text[0] not in ".~":
        place = imported(text)
    found = host.find(place or context.at(text))
    if found.kind == "directory":
        if found.path == "/":
            raise PolicyError("base is '/'", why="that is the host's own system", fix="leave base out")
        return found.path
    why = "it does not exist" if found.kind == "missing" else "it is not a directory"
    if place is None and "/" not in text:
        why += ", and no base of that name was imported"
    raise PolicyError(
        f"base is {text!r}",
        why=why,
        fix="name a root file system, or see `staddle base ls` for imported ones",
    )


def show(root: str, taken: Collection[str]) -> BaseView:
    """Return the visible part of the base at the real path `root`. Paths in `taken` belong to the sandbox.

    Nothing of the base is shown at or below a taken path, which the base need not contain.
    """
    apart = {*PARTS, *(up for path in taken for up in above(path))}
    grants: list[Grant] = []
    links: list[Link] = []
    texts: list[Text] = []
    room = MOST_COPIED
    todo = ["/"]
    while todo:
        directory = todo.pop()
        for path, mode, target in _entries(root, directory):
            if path in taken or path in NOT_SHOWN or (directory == "/" and path in OWN):
                continue
            source = root + path
            if path in apart:
                todo += [path] if stat.S_ISDIR(mode) else []  # our paths are never below the base's links
            elif stat.S_ISDIR(mode):
                grants.append(Grant(path, "read", True, ORIGIN, source))
            elif stat.S_ISLNK(mode):
                links.append(Link(path, target, ORIGIN))
            elif stat.S_ISREG(mode):
                content = contents(source, min(room, LARGEST_COPY)) if directory == "/etc" else None
                if content is None:
                    grants.append(Grant(path, "read", False, ORIGIN, source))
                else:
                    room -= len(content)
                    texts.append(Text(path, content, ORIGIN))
    accounts = (contents(f"{root}/etc/{name}", LARGEST_COPY) or b"" for name in ("passwd", "group"))
    return BaseView(tuple(grants), tuple(links), tuple(texts), *accounts)


def _entries(root: str, directory: str) -> Iterator[tuple[str, int, str]]:
    """Yield (path inside, mode, link target) of all entries of a directory without a symlink in its path."""
    try:
        with os.scandir(root + directory) as found:
            names = [(os.fsdecode(entry.name), entry.stat(follow_symlinks=False).st_mode) for entry in found]
    except OSError as error:
        raise PolicyError(
            f"the base {root!r} cannot be read",
            why=f"{directory!r}: {error.strerror}",
            fix="make it readable, or import it with `staddle base import`",
        ) from None
    if len(names) > MOST_ENTRIES:
        raise PolicyError(
            f"nothing of the host can be shown in {directory!r} of the base {root!r}",
            why=f"it has {len(names)} entries, and each would be a mount of its own",
            fix="grant it at its own place, outside of the base's larger directories",
        )
    for name, mode in sorted(names):
        path = f"{directory.rstrip('/')}/{name}"
        target = ""
        if stat.S_ISLNK(mode):
            try:
                target = os.readlink(root + path)
            except OSError:
                continue  # it was deleted meanwhile
        yield path, mode, target


def contents(path: str, most: int) -> bytes | None:
    """Return the content of a regular file, without following symlinks; None if too long or unreadable."""
    from ..linux.openat2 import open_without_symlinks

    try:
        fd = open_without_symlinks(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        data = os.read(fd, most + 1)
        return data if len(data) == status.st_size else None
    except OSError:
        return None
    finally:
        os.close(fd)


def accounts(theirs: bytes, ours: bytes) -> bytes:
    """Merge passwd or group files: our lines, and their lines with other names and ids. Pure."""
    lines = [line for line in ours.split(b"\n") if line]
    names = {line.split(b":")[0] for line in lines}
    numbers = {line.split(b":")[2] for line in lines}
    for line in theirs.split(b"\n"):
        cells = line.split(b":")
        plain = line.isascii() and line.decode("ascii").isprintable()
        if len(cells) < 4 or not plain or not cells[0] or not cells[2].isdigit():
            continue
        if cells[0] in names or cells[2] in numbers or int(cells[2]) > 65534:
            continue
        names.add(cells[0])
        numbers.add(cells[2])
        lines.append(line)
    return b"".join(line + b"\n" for line in lines)


def shell(root: str) -> str:
    """Return the path of the base's shell."""
    inside = HostPaths(root)
    return "/bin/bash" if inside.find("/bin/bash").kind == "file" else "/bin/sh"
