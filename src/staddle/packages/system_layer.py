"""The system for a sandbox with root: everything in it can be changed, without effect on the host.

The host's files belong to nobody inside, and cannot be changed in place, not even in a layer. But a directory
belongs to the owner of its topmost layer. So between the host's directory and the layer there is a
*skeleton*: all the directories again, owned by the sandbox, and only those files that programs change in
place. Then a package manager can create, replace and delete anything.

Below the skeletons of /etc and /var there is nothing of the host. Required files are copied, and the rest is
invisible, as in a sandbox without root.

dpkg can replace packages of the host only if the sandbox owns their files. dpkg keeps a hard link to every
file that it replaces, and the kernel lets only a file's owner make one (fs.protected_hardlinks); of a
symbolic link it keeps a copy with the same owner. So dpkg runs our hook first. The hook replaces each such
file of the packages to unpack with a copy, which the owner of the directory may do.
"""

from __future__ import annotations

import os
import stat

from .._value import Value
from ..linux import process
from ..mounts.operations import Bind, Directory, File, Mask, Symlink
from ..paths import ROOT_HOME, ROOT_TREE, above
from ..policy.base import OWN as BASE_OWN
from ..policy.system import STATE, TOP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..mounts.operations import Operation

HOOK = "/usr/lib/sandbox/own-files"
#: Every Debian has this much of Perl.
SCRIPT = rb"""#!/usr/bin/perl
# Files from outside belong to nobody here. Those of packages that dpkg replaces are replaced by copies.
use strict;

my $dpkg = getppid();
for (1 .. 3) {    # a shell may be in between
    last if slurp("/proc/$dpkg/comm") eq "dpkg\n";
    ($dpkg) = slurp("/proc/$dpkg/status") =~ /^PPid:\s+(\d+)/m or exit 0;
}
for my $deb (map { archives($_) } grep { !/^-/ } split /\0/, slurp("/proc/$dpkg/cmdline")) {
    open(my $said, "-|", "dpkg-deb", "-f", $deb, "Package", "Architecture") or next;
    my ($name, $architecture) = map { /^\S+: (\S+)/ } <$said>;
    close($said) or next;
    for my $list ("$name.list", "$name:$architecture.list") {
        own($_) for split /\n/, slurp("/var/lib/dpkg/info/$list");
    }
}

sub archives {
    my ($word) = @_;
    return $word =~ /\.deb$/ && -f $word ? $word : () unless -d $word;
    opendir(my $directory, $word) or return;
    return map { "$word/$_" } grep { /\.deb$/ } readdir($directory);
}

sub own {
    my ($path) = @_;
    my @status = lstat($path) or return;
    return if -o _;
    my $copy = "$path.sandbox-new";
    if (-l _) {
        symlink(readlink($path), $copy) && rename($copy, $path);
        return;
    }
    return unless -f _;
    open(my $from, "<:raw", $path) or return;
    open(my $to, ">:raw", $copy) or return;
    while (read($from, my $piece, 1 << 20)) { print $to $piece or return unlink($copy) }
    close($to) or return unlink($copy);
    chmod($status[2] & 07777, $copy);
    utime($status[8], $status[9], $copy);
    rename($copy, $path) or unlink($copy);
}

sub slurp {
    my ($path) = @_;
    open(my $file, "<:raw", $path) or return "";
    local $/;
    return <$file> // "";
}
"""
FILES = {
    HOOK: SCRIPT,
    "/etc/dpkg/dpkg.cfg.d/sandbox": f"pre-invoke={HOOK}\n".encode(),
}


class Part(Value):
    """A directory of the system: its path, its skeleton, and the host's directory below, if any."""

    root: str
    skeleton: str
    host: str = ""


#: Shown with the host's own directories below them.
REPEATED = ("/usr", "/opt", "/var/lib/dpkg", "/var/lib/apt")
#: Made from copies, or empty.
OWN = ("/etc", ROOT_HOME, "/var")
#: Parts of /etc that a package manager needs, beyond those that every sandbox sees.
ETC = (
    *(
        "adduser.conf",
        "apt",
        "ca-certificates",
        "cron.d",
        "cron.daily",
        "cron.weekly",
        "dbus-1",
        "debconf.conf",
    ),
    *("default", "deluser.conf", "dpkg", "emacs", "environment", "groff", "init.d", "issue", "kernel"),
    *("locale.gen", "login.defs", "logrotate.d", "opt", "pam.conf", "pam.d", "rc0.d", "rc1.d", "rc2.d"),
    *("rc3.d", "rc4.d", "rc5.d", "rc6.d", "rcS.d", "security", "sgml", "skel", "systemd", "sysctl.d"),
    *("tmpfiles.d", "ucf.conf", "update-motd.d", "X11", "xdg", "xml"),
)
#: Never copied, wherever it is: it may contain a password.
SECRET = ("auth.conf", "auth.conf.d", "shadow", "gshadow", "opasswd")
#: Directories and links in an otherwise empty /var.
VAR = (
    *("backups", "cache/apt/archives/partial", "cache/debconf", "cache/fontconfig", "cache/ldconfig"),
    *("cache/man", "lib/apt", "lib/dpkg", "lib/misc", "lib/pam", "lib/python", "lib/systemd", "lib/ucf"),
    *("local", "log/apt", "mail", "opt", "spool", "tmp"),
)
VAR_LINKS = {"lock": "/run/lock", "run": "/run"}
#: Files that are changed in place: copies of the host's, or empty.
COPIED = (
    *("/var/lib/dpkg/status", "/var/lib/dpkg/available", "/var/lib/dpkg/diversions"),
    *("/var/lib/dpkg/triggers/File", "/var/lib/dpkg/triggers/Unincorp"),
    *("/var/cache/debconf/config.dat", "/var/cache/debconf/templates.dat", "/var/lib/apt/extended_states"),
    *("/var/lib/ucf/hashfile", "/var/lib/ucf/registry"),
)
#: apt's lists of its repositories; it changes the small files among them in place.
LISTS = "/var/lib/apt/lists"
EMPTY = (
    *("/var/lib/dpkg/lock", "/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/triggers/Lock"),
    *("/var/lib/apt/lists/lock", "/var/lib/apt/daily_lock", "/var/cache/apt/archives/lock"),
    *("/var/lib/dpkg/statoverride", "/var/cache/debconf/passwords.dat"),
    *("/var/log/dpkg.log", "/var/log/alternatives.log"),
    *("/var/log/apt/history.log", "/var/log/apt/term.log", "/var/log/apt/eipp.log.xz"),
)
#: Our own configuration: apt would download as a user that does not exist here.
ADDED = {
    "/etc/apt/apt.conf.d/99sandbox": b'APT::Sandbox::User "root";\nDpkg::Use-Pty "0";\n',
    "/usr/sbin/policy-rc.d": b"#!/bin/sh\n# No services are started here.\nexit 101\n",
    **FILES,
}
#: The skeleton of `/` itself, with its existing directories, so that entries can be made in them.
TOP_PLACE = "/.top"
_OPAQUE = ("user.overlay.opaque", b"y")
_EVERYBODY = 0o005
#: Larger files are not configuration.
_LARGEST, _MOST = 16 << 20, 256 << 20


def build(
    place: str, view: Sequence[Operation], owner: int | None, host: str = "", *, whole: bool = False
) -> None:
    """Make the skeleton in the empty directory `place`.

    `view` lists what the sandbox sees without root: its parts of /etc are copied, and its paths in root's
    home and in /var get mount points. Everything belongs to `owner`, unless that is us. Only files that
    everybody may read are used, whoever we are. `host` is the path of the host's root. With `whole` it is the
    root of a base, and all its directories are repeated.
    """
    made = _Skeleton(place, owner, host, whole=whole)
    # Without root, everybody can see the parts of the host's root home in `view`; keep it so.
    is_shown = any(operation.path.startswith(f"{ROOT_HOME}/") for operation in view)
    for root in OWN:
        made.directory(root, 0o700 if root == ROOT_HOME and not is_shown else 0o755)
    made.top(view)
    made.etc([operation for operation in view if operation.path.startswith("/etc/")])
    for operation in view:
        is_link_to_scratch = isinstance(operation, Symlink) and operation.path in STATE
        if operation.path.startswith((f"{ROOT_HOME}/", "/var/")) and not is_link_to_scratch:
            made.place(operation)
    for name in VAR:
        made.directories(f"/var/{name}")
    for name, target in VAR_LINKS.items():
        made.link(f"/var/{name}", target)
    for root in _repeated(host):
        made.directories(root)
        made.repeat(root)
    for path in COPIED:
        made.copy(path, empty=path.startswith("/var/lib/dpkg/"))
    for name in _releases(host + LISTS):
        made.copy(f"{LISTS}/{name}")
    for path in EMPTY:
        made.file(path, b"")
    for path, content in ADDED.items():
        made.file(path, content, 0o755 if path.startswith("/usr/") else 0o644)
    made.accounts()


def build_top(place: str, view: Sequence[Operation], owner: int | None) -> None:
    """Make the skeleton of `/` alone in the empty directory `place`; as `build`."""
    _Skeleton(place, owner, "").top(view)


def parts(place: str, host: str = "") -> tuple[Part, ...]:
    """The directories of the system layer in `place`, parents first."""
    own = [Part(root, f"{place}{root}") for root in OWN]
    own.append(Part(ROOT_TREE, place + TOP_PLACE))
    over = [Part(root, f"{place}{root}", host + root) for root in _repeated(host)]
    return tuple(sorted((*own, *over), key=lambda part: part.root))


def _repeated(host: str) -> list[str]:
    """Entries of REPEATED that the host has; of a base, all shown directories of its root."""
    roots: tuple[str, ...] = REPEATED
    if host:
        names = {f"/{name}" for name in os.listdir(host)}
        roots = (*REPEATED, *sorted(names.difference(REPEATED, OWN, BASE_OWN)))
    return [root for root in roots if os.path.isdir(host + root) and not os.path.islink(host + root)]


def repeated(source: str, place: str, owner: int) -> str:
    """Repeat every directory of `source` in `place` for `owner`, without files; return `place`."""
    made = _Skeleton(place, owner, source)
    made.directory("")
    made.repeat("")
    return place


class _Skeleton:
    """A skeleton under construction."""

    def __init__(self, place: str, owner: int | None, host: str, *, whole: bool = False) -> None:
        """With `whole`, directories that not everybody may read are repeated, too."""
        self._place, self._owner, self._host = place, owner, host
        self._whole = whole
        self._counting: set[int] = set()  # devices that count a directory's subdirectories as links
        self._room = _MOST
        self._umask = process.umask()

    def directory(self, path: str, mode: int = 0o755) -> None:
        """Make a directory owned by the sandbox; an existing one stays unchanged."""
        here = self._place + path
        try:
            os.mkdir(here, mode)
        except FileExistsError:
            return
        self._own(here)
        if self._umask & mode:
            os.chmod(here, mode)

    def directories(self, path: str) -> None:
        """Make a directory and its missing parents."""
        names = path.split("/")[1:]
        for count in range(1, len(names) + 1):
            self.directory("/" + "/".join(names[:count]))

    def top(self, view: Sequence[Operation]) -> None:
        """Make the existing directories of `/`, and the parents of the paths in `view`."""
        ways = {way for operation in view for way in above(operation.path)}
        for path in {*TOP, *ways} - {"/"}:
            self.directories(TOP_PLACE + path)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link, unless the path exists."""
        try:
            os.symlink(target, self._place + path)
        except FileExistsError:
            return
        self._own(self._place + path)

    def file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Make a file with this content, replacing any other."""
        self.directories(os.path.dirname(path))
        here = self._place + path
        if os.path.lexists(here):
            os.unlink(here)
        with open(here, "xb") as file:
            file.write(content)
        self._own(here)
        os.chmod(here, mode)

    def copy(self, path: str, source: str = "", *, empty: bool = False) -> None:
        """Copy the host's file if everybody may read it; else make nothing, or an `empty` one."""
        source = source or self._host + path
        content = None
        try:
            fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            fd = -1
        if fd >= 0:
            with open(fd, "rb") as file:
                status = os.fstat(fd)
                fits = status.st_size <= min(_LARGEST, self._room)
                if stat.S_ISREG(status.st_mode) and status.st_mode & 0o004 and fits:
                    content = file.read(_LARGEST)
                    mode = stat.S_IMODE(status.st_mode) & 0o755
        if content is not None:
            self._room -= len(content)
            self.file(path, content, mode)
        elif empty:
            self.file(path, b"")

    def etc(self, operations: Sequence[Operation]) -> None:
        """Copy the files of /etc that every sandbox sees, and those that a package manager also needs."""
        for name in ETC:
            self._copies(f"/etc/{name}", f"{self._host}/etc/{name}")
        for operation in operations:
            path = operation.path
            self.directories(os.path.dirname(path))
            if isinstance(operation, Symlink):
                self.link(path, operation.target)
            elif isinstance(operation, File):
                self.file(path, operation.content)
            elif isinstance(operation, Directory):
                self.directory(path, operation.mode)
            elif isinstance(operation, Bind):
                self._copies(path, operation.outside)

    def accounts(self) -> None:
        """Add the standard accounts of such systems to the sandbox's own; none of this host's."""
        for name in ("passwd", "group"):
            own = self._text(f"{self._place}/etc/{name}")
            master = self._text(f"{self._host}/usr/share/base-passwd/{name}.master")
            if self._owner is None:
                master = as_root(master)
            every = merged_accounts(own, master)
            self.file(f"/etc/{name}", every)
            shadow = "shadow" if name == "passwd" else "gshadow"
            self.file(f"/etc/{shadow}", without_passwords(every, shadow), 0o640)

    def _text(self, path: str) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read(_LARGEST)
        except OSError:
            return b""

    def place(self, operation: Operation) -> None:
        """Make a mount point for the operation."""
        directory = not isinstance(operation, Mask | File)
        if isinstance(operation, Bind):
            directory = os.path.isdir(operation.outside)
        if isinstance(operation, Symlink):
            self.directories(os.path.dirname(operation.path))
            self.link(operation.path, operation.target)
        elif directory:
            self.directories(operation.path)
        else:
            self.file(operation.path, b"")

    def _copies(self, path: str, source: str) -> None:
        """Copy a file, a link, or a directory with its content."""
        for inner, kind in _everything(source):
            target = path + inner
            if kind == "directory":
                self.directories(target)
            elif kind == "link":
                self.directories(os.path.dirname(target))
                self.link(target, os.readlink(source + inner))
            else:
                self.copy(target, source + inner)
                if target.startswith("/etc/apt/sources.list"):
                    self._without_credentials(target)

    def _without_credentials(self, path: str) -> None:
        if text := self._text(self._place + path):
            self.file(path, without_credentials(text))

    def repeat(self, root: str) -> None:
        """Repeat every directory below the host's `root`. Those that not everybody may read are empty."""
        todo = [root]
        while todo:
            path = todo.pop()
            for name in self._below(path):
                self.directory(f"{path}/{name}")
                todo.append(f"{path}/{name}")

    def _below(self, path: str) -> list[str]:
        source = self._host + path
        try:
            status = os.stat(source)
            if self._whole or status.st_mode & _EVERYBODY == _EVERYBODY:
                # A directory's link count is 2 plus its subdirectories, but not on every file system. Where
                # this holds, most directories need not be read.
                if status.st_nlink == 2 and status.st_dev in self._counting:
                    return []
                with os.scandir(source) as entries:
                    found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
                if len(found) > 1 and status.st_nlink == len(found) + 2:
                    self._counting.add(status.st_dev)
                return found
        except OSError:
            pass  # removed meanwhile, or not readable
        os.setxattr(self._place + path, *_OPAQUE)
        return []

    def _own(self, here: str) -> None:
        if self._owner is not None:
            os.chown(here, self._owner, self._owner, follow_symlinks=False)


def _releases(lists: str) -> list[str]:
    try:
        return [name for name in os.listdir(lists) if name.endswith("Release")]
    except OSError:
        return []


def _everything(source: str) -> Iterator[tuple[str, str]]:
    """(path below `source`, kind) of all files, links and directories, `source` itself first."""
    todo = [""]
    while todo:
        inner = todo.pop()
        if os.path.basename(source + inner) in SECRET:
            continue
        try:
            mode = os.lstat(source + inner).st_mode
            if stat.S_ISDIR(mode):
                if mode & _EVERYBODY != _EVERYBODY:
                    continue
                yield inner, "directory"
                todo += (f"{inner}/{name}" for name in os.listdir(source + inner))
            elif stat.S_ISLNK(mode):
                yield inner, "link"
            elif stat.S_ISREG(mode):
                yield inner, "file"
        except OSError:
            continue  # removed meanwhile, or not readable


def merged_accounts(own: bytes, more: bytes) -> bytes:
    """The rows of `own`, and those of `more` with other names and numbers. Pure.

    Other names of root count as known by name only.
    """
    rows = [row for row in own.split(b"\n") if row]
    known = {part for row in rows for part in _who(row)}
    rows += [row for row in more.split(b"\n") if row and known.isdisjoint(_who(row))]
    return b"".join(row + b"\n" for row in rows)


def _who(row: bytes) -> tuple[bytes, ...]:
    name, _, number, *_ = (*row.split(b":"), b"", b"")
    return (name,) if number == b"0" else (name, b"#" + number)


def as_root(accounts: bytes) -> bytes:
    """Map all these accounts to the single id that an ordinary user has. Pure.

    Files that a package gives to one of them then belong to root, instead of failing the installation.
    """
    rows = [row.split(b":") for row in accounts.split(b"\n") if row]
    numbers = (2, 3) if rows and len(rows[0]) > 4 else (2,)
    return b"".join(
        b":".join(b"0" if at in numbers else field for at, field in enumerate(row)) + b"\n" for row in rows
    )


def without_passwords(accounts: bytes, kind: str) -> bytes:
    """A shadow or gshadow file with every login locked. Pure."""
    rest = b":*:1:0:99999:7:::\n" if kind == "shadow" else b":*::\n"
    return b"".join(row.split(b":")[0] + rest for row in accounts.split(b"\n") if row)


def without_credentials(text: bytes) -> bytes:
    """The text without user names and passwords in URLs. Pure."""
    found: list[bytes] = []
    rest = text
    while True:
        before, mark, after = rest.partition(b"://")
        found += [before, mark]
        if not mark:
            return b"".join(found)
        end = min(
            (at for at in (after.find(char) for char in (b"/", b" ", b"\t", b"\n", b"]")) if at >= 0),
            default=len(after),
        )
        found.append(after[:end].rpartition(b"@")[2])
        rest = after[end:]


def mounted_below(roots: Iterable[str], mountinfo: bytes) -> list[str]:
    """The `roots` that contain mounts, and so cannot be below a layer. Pure."""
    points = [os.fsdecode(row.split(b" ")[4]) for row in mountinfo.splitlines()]
    return [root for root in roots if any(point.startswith(f"{root}/") for point in points)]
