"""The system, as it is for the root of a sandbox: all of it can be changed, and the host notices nothing.

A file of the host keeps an owner that is nobody inside, and cannot be changed in place, not in a
layer either. A directory, though, belongs to whom its uppermost layer says. So between the
host's directory and the layer lies a *skeleton*: every directory again, the sandbox's own, and of
the files only those that programs change in place. Then anything can be created, replaced and
deleted, which is what a package manager does.

Of /etc and /var nothing of the host is below the skeleton: what is needed of them is copied,
and the rest stays unseen, as it is without a root.

dpkg can replace packages that the host has: their files are made the sandbox's own first. It keeps a link to
every file that it is about to replace, and the kernel lets only a file's owner make one
(fs.protected_hardlinks); of a symbolic link it keeps a copy with the same owner. Files of the host belong to
nobody inside. dpkg runs a hook before it begins: ours puts a copy in the place of each such file of the
packages that are to be unpacked, as the owner of the directory may.
"""

from __future__ import annotations

import os
import stat

from .._value import Value
from ..linux import process
from ..mounts.operations import Bind, Directory, File, Mask, Symlink
from ..policy.base import OWN as BASE_OWN
from ..policy.paths import ROOT_HOME, ROOT_TREE, above
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
    """A directory of the system: where it is seen, its skeleton, and what of the host lies below that."""

    root: str
    skeleton: str
    host: str = ""


#: Shown with the host's own below them.
REPEATED = ("/usr", "/opt", "/var/lib/dpkg", "/var/lib/apt")
#: Made of copies, or of nothing.
OWN = ("/etc", ROOT_HOME, "/var")
#: What a package manager needs of /etc beyond what every sandbox sees of it.
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
#: Never copied, wherever it lies: it may hold a password.
SECRET = ("auth.conf", "auth.conf.d", "shadow", "gshadow", "opasswd")
#: Directories that are there in an empty /var, and links.
VAR = (
    *("backups", "cache/apt/archives/partial", "cache/debconf", "cache/fontconfig", "cache/ldconfig"),
    *("cache/man", "lib/apt", "lib/dpkg", "lib/misc", "lib/pam", "lib/python", "lib/systemd", "lib/ucf"),
    *("local", "log/apt", "mail", "opt", "spool", "tmp"),
)
VAR_LINKS = {"lock": "/run/lock", "run": "/run"}
#: Files that are changed in place, as the host has them, or empty.
COPIED = (
    *("/var/lib/dpkg/status", "/var/lib/dpkg/available", "/var/lib/dpkg/diversions"),
    *("/var/lib/dpkg/triggers/File", "/var/lib/dpkg/triggers/Unincorp"),
    *("/var/cache/debconf/config.dat", "/var/cache/debconf/templates.dat", "/var/lib/apt/extended_states"),
    *("/var/lib/ucf/hashfile", "/var/lib/ucf/registry"),
)
#: What apt knows of its repositories; it changes the small files among them in place.
LISTS = "/var/lib/apt/lists"
EMPTY = (
    *("/var/lib/dpkg/lock", "/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/triggers/Lock"),
    *("/var/lib/apt/lists/lock", "/var/lib/apt/daily_lock", "/var/cache/apt/archives/lock"),
    *("/var/lib/dpkg/statoverride", "/var/cache/debconf/passwords.dat"),
    *("/var/log/dpkg.log", "/var/log/alternatives.log"),
    *("/var/log/apt/history.log", "/var/log/apt/term.log", "/var/log/apt/eipp.log.xz"),
)
#: What our own configuration adds: apt would download as a user that cannot be had here.
ADDED = {
    "/etc/apt/apt.conf.d/99sandbox": b'APT::Sandbox::User "root";\nDpkg::Use-Pty "0";\n',
    "/usr/sbin/policy-rc.d": b"#!/bin/sh\n# No services are started here.\nexit 101\n",
    **FILES,
}
#: The skeleton of `/` itself: the directories that are there, for things to be made in them.
TOP_PLACE = "/.top"
_OPAQUE = ("user.overlay.opaque", b"y")
_EVERYBODY = 0o005
#: More than this is not a configuration.
_LARGEST, _MOST = 16 << 20, 256 << 20


def build(
    place: str, view: Sequence[Operation], owner: int | None, host: str = "", *, whole: bool = False
) -> None:
    """Make the skeleton in the empty directory `place`.

    `view` is what the sandbox sees without a root: of /etc it is copied, and for what is shown
    in root's home and in /var there are places. Everything belongs to `owner`, if that is not us. Only what
    everybody may read is looked at, whoever we are. `host` is where the host's root is. With `whole` it is
    that of a base, and all of its directories are repeated.
    """
    made = _Skeleton(place, owner, host, whole=whole)
    # What the host's root has below its home, and everybody sees without a root, everybody goes on to see.
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
    """The directories that the system layer in `place` was made for, parents first."""
    own = [Part(root, f"{place}{root}") for root in OWN]
    own.append(Part(ROOT_TREE, place + TOP_PLACE))
    over = [Part(root, f"{place}{root}", host + root) for root in _repeated(host)]
    return tuple(sorted((*own, *over), key=lambda part: part.root))


def _repeated(host: str) -> list[str]:
    """Entries of REPEATED that the host has; of a base, every directory of its root that is shown."""
    roots: tuple[str, ...] = REPEATED
    if host:
        names = {f"/{name}" for name in os.listdir(host)}
        roots = (*REPEATED, *sorted(names.difference(REPEATED, OWN, BASE_OWN)))
    return [root for root in roots if os.path.isdir(host + root) and not os.path.islink(host + root)]


def repeated(source: str, place: str, owner: int) -> str:
    """`place`, where every directory of `source` is there again, for `owner`, and nothing else."""
    made = _Skeleton(place, owner, source)
    made.directory("")
    made.repeat("")
    return place


class _Skeleton:
    """One in the making."""

    def __init__(self, place: str, owner: int | None, host: str, *, whole: bool = False) -> None:
        """With `whole`, what not everybody may look into is repeated as well."""
        self._place, self._owner, self._host = place, owner, host
        self._whole = whole
        self._counting: set[int] = set()  # devices on which links of directories are counted
        self._room = _MOST
        self._umask = process.umask()

    def directory(self, path: str, mode: int = 0o755) -> None:
        """A directory of the sandbox's own; one that is there stays as it is."""
        here = self._place + path
        try:
            os.mkdir(here, mode)
        except FileExistsError:
            return
        self._own(here)
        if self._umask & mode:
            os.chmod(here, mode)

    def directories(self, path: str) -> None:
        """A directory, and those above it that are missing."""
        names = path.split("/")[1:]
        for count in range(1, len(names) + 1):
            self.directory("/" + "/".join(names[:count]))

    def top(self, view: Sequence[Operation]) -> None:
        """The directories of `/` that are there, with those on the way to what is shown."""
        ways = {way for operation in view for way in above(operation.path)}
        for path in {*TOP, *ways} - {"/"}:
            self.directories(TOP_PLACE + path)

    def link(self, path: str, target: str) -> None:
        """A symbolic link, unless something is there."""
        try:
            os.symlink(target, self._place + path)
        except FileExistsError:
            return
        self._own(self._place + path)

    def file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """A file with this content, in place of any other."""
        self.directories(os.path.dirname(path))
        here = self._place + path
        if os.path.lexists(here):
            os.unlink(here)
        with open(here, "xb") as file:
            file.write(content)
        self._own(here)
        os.chmod(here, mode)

    def copy(self, path: str, source: str = "", *, empty: bool = False) -> None:
        """The host's file, if everybody may read it; else nothing, or an `empty` one."""
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
        """Copy the files of /etc that every sandbox sees, and those that a package manager needs besides."""
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
        """The accounts beside the sandbox's own: those of every such system, none of this host's."""
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
        """A place for something that is shown there."""
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
        """A file, a link, or a directory with all that is in it."""
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
        """Every directory below the host's `root`. What not everybody may look into is empty."""
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
                # A directory is linked from its own place, itself and each directory in it. Not every file
                # system counts so; where one was seen to, most directories need not be read.
                if status.st_nlink == 2 and status.st_dev in self._counting:
                    return []
                with os.scandir(source) as entries:
                    found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
                if len(found) > 1 and status.st_nlink == len(found) + 2:
                    self._counting.add(status.st_dev)
                return found
        except OSError:
            pass  # gone meanwhile, or closed to us
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
            continue  # gone meanwhile, or closed to us


def merged_accounts(own: bytes, more: bytes) -> bytes:
    """The rows of `own`, and those of `more` whose names and numbers are not among them. Pure.

    Who is root by another name is among them by name only.
    """
    rows = [row for row in own.split(b"\n") if row]
    known = {part for row in rows for part in _who(row)}
    rows += [row for row in more.split(b"\n") if row and known.isdisjoint(_who(row))]
    return b"".join(row + b"\n" for row in rows)


def _who(row: bytes) -> tuple[bytes, ...]:
    name, _, number, *_ = (*row.split(b":"), b"", b"")
    return (name,) if number == b"0" else (name, b"#" + number)


def as_root(accounts: bytes) -> bytes:
    """These accounts by the one id that an ordinary user has, under all their names. Pure.

    What a package gives to one of them is root's then, instead of not being installed.
    """
    rows = [row.split(b":") for row in accounts.split(b"\n") if row]
    numbers = (2, 3) if rows and len(rows[0]) > 4 else (2,)
    return b"".join(
        b":".join(b"0" if at in numbers else field for at, field in enumerate(row)) + b"\n" for row in rows
    )


def without_passwords(accounts: bytes, kind: str) -> bytes:
    """A shadow or gshadow file in which every login is locked. Pure."""
    rest = b":*:1:0:99999:7:::\n" if kind == "shadow" else b":*::\n"
    return b"".join(row.split(b":")[0] + rest for row in accounts.split(b"\n") if row)


def without_credentials(text: bytes) -> bytes:
    """The same text with no user name and password in any URL of it. Pure."""
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
    """Keep those of `roots` that have mounts in them, and so cannot be under a layer. Pure."""
    points = [os.fsdecode(row.split(b" ")[4]) for row in mountinfo.splitlines()]
    return [root for root in roots if any(point.startswith(f"{root}/") for point in points)]
