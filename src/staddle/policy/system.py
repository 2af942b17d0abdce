"""The parts that every sandbox sees: system directories, a small /etc, private directories.

/etc is an allow list: the files that programs need to start, resolve names and check certificates. Files that
may contain a credential (shadow, ssh keys, sudoers, pip.conf, npmrc, ...) are not on it.
"""

from __future__ import annotations

import os
import sys
import time

from ..paths import covers
from .plan import Link, Scratch, Text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..hostinfo.resolution import HostPaths
    from .identity import Identity

#: Directories for logs and state. They are private, unless the policy grants or denies something there.
STATE = ("/var/cache", "/var/lib", "/var/log")
STATE_PLACE = "/var/tmp"

#: Empty directories in the root, as on every such system.
TOP = ("/media", "/mnt", "/srv")

MIB = 1 << 20
GIB = 1 << 30

DIRECTORIES = {
    "linux": ("/usr", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    "darwin": ("/usr", "/opt", "/bin", "/sbin", "/System", "/Library"),
}

#: Below /etc. Files are shown as copies; directories are mounted.
ETC = (
    "alternatives",
    "bash.bashrc",
    "bash_completion.d",
    "ca-certificates.conf",
    "chromium.d",
    "debian_version",
    "default/locale",
    "ethertypes",
    "fonts",
    "gai.conf",
    "gdb",
    "host.conf",
    "inputrc",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "java-25-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "magic",
    "magic.mime",
    "manpath.config",
    "mime.types",
    "networks",
    "os-release",
    "perl",
    "pki/ca-trust",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "tmux.conf",
    "vim",
    "xattr.conf",
)
#: Larger files are mounted, because a copy would cost more.
LARGEST_COPY = 256 * 1024


def state_links(taken: Iterable[str]) -> list[Link]:
    """Return links that make STATE writable, except for directories that overlap a `taken` path."""
    if sys.platform == "darwin":
        return []
    names = list(taken)
    return [
        Link(path, STATE_PLACE, "private")
        for path in STATE
        if not any(covers(path, name) or covers(name, path) for name in names)
    ]


def scratch(home: str) -> tuple[Scratch, ...]:
    """Return the private directories: empty at the start, deleted with the run."""
    return (
        Scratch("/dev/shm", 0o1777, GIB, "private"),
        Scratch("/run", 0o755, 64 * MIB, "private"),
        Scratch("/tmp", 0o1777, GIB, "private"),
        Scratch("/var/tmp", 0o1777, GIB, "private"),
        Scratch(home, 0o700, GIB, "private home"),
    )


_FRESH = 1.0  # seconds
_seen: list[tuple[float, tuple[list[str], list[Link], list[Text]]]] = []


def directories() -> tuple[str, ...]:
    """Return the system directories to look for on this platform."""
    return DIRECTORIES.get(sys.platform, DIRECTORIES["linux"])


def etc(host: HostPaths) -> tuple[list[str], list[Link], list[Text]]:
    """Return the allowed part of /etc: paths to grant, links, copies.

    Only root changes these files, so the result is cached for a moment, for callers that wrap many commands.
    """
    now = time.monotonic()
    if not _seen or now - _seen[0][0] > _FRESH:
        _seen[:] = [(now, _look_at_etc(host))]
    grants, links, copies = _seen[0][1]
    return list(grants), list(links), list(copies)


def _look_at_etc(host: HostPaths) -> tuple[list[str], list[Link], list[Text]]:
    grants: list[str] = []
    links: list[Link] = []
    copies: list[Text] = []
    for name in ETC:
        path = f"/etc/{name}"
        place = host.find(path)
        if place.kind not in ("directory", "file"):
            continue
        content = _read(path) if place.kind == "file" else None
        if any(covers(directory, place.path) for directory in ("/usr", "/opt")):
            links += [Link(where, to, "system") for where, to in place.links]
        elif content is not None and len(content) <= LARGEST_COPY:
            copies.append(Text(path, content, "system copy"))
        elif covers("/etc", place.path):
            links += [Link(where, to, "system") for where, to in place.links]
            grants.append(place.path)
    return grants, links, copies


#: Accounts come from files. Host names come from the servers in resolv.conf; without any, lookups fail at
#: once.
NSSWITCH = b"""\
passwd: files
group: files
shadow: files
gshadow: files
hosts: files%b
networks: files
protocols: files
services: files
ethers: files
rpc: files
"""

#: The files of a new home. The sandbox may change them.
HOME_FILES = {
    ".bashrc": b"""\
# Read by every interactive bash.
case $- in *i*) ;; *) return ;; esac
HISTCONTROL=ignoreboth
shopt -s checkwinsize histappend
PS1='\\u@\\h:\\w\\$ '
if [ -x /usr/bin/dircolors ]; then
    eval "$(dircolors -b)"
    alias ls='ls --color=auto' grep='grep --color=auto'
fi
alias ll='ls -l' la='ls -A'
""",
    ".profile": b"""\
# Read by every login shell.
if [ -n "$BASH_VERSION" ] && [ -f "$HOME/.bashrc" ]; then . "$HOME/.bashrc"; fi
for directory in "$HOME/bin" "$HOME/.local/bin"; do
    if [ -d "$directory" ]; then PATH="$directory:$PATH"; fi
done
unset directory
""",
}

#: Points to our own resolver inside.
RESOLV_CONF = b"nameserver 127.0.0.53\noptions timeout:5 attempts:2\n"


#: The paths of the files from `made_up`.
MADE_UP = frozenset(
    f"/etc/{name}"
    for name in (
        *("group", "hostname", "hosts", "machine-id", "nsswitch.conf", "passwd", "pip.conf", "resolv.conf"),
        *("gitconfig", "uv/uv.toml"),
    )
)


def made_up(identity: Identity, shell: str, network: str) -> list[Text]:
    """Return files that describe the identity of the sandbox, and nothing about the host.

    With an open network, names must resolve as they do outside, so hosts and resolv.conf are the host's,
    except for its own name. With an allow list, they point to our own resolver.
    """
    who = identity
    hosts = f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 {_names(who.host)}\n"
    resolv = RESOLV_CONF if network == "allow" else b""
    others = b""
    if network == "open":
        others = other_hosts(_read("/etc/hosts") or b"", os.uname().nodename)
        resolv = _read("/etc/resolv.conf") or b""
    contents = {
        "/etc/gitconfig": _lines("[user]", f"\tname = {who.user}", f"\temail = {who.user}@{who.host}"),
        "/etc/group": _lines(
            *([] if who.uid == 0 else ["root:x:0:"]),
            f"{who.user}:x:{who.gid}:",
            "nogroup:x:65534:",
        ),
        "/etc/hostname": _lines(who.host),
        "/etc/hosts": hosts.encode() + others,
        "/etc/machine-id": b"0" * 31 + b"1\n",
        "/etc/nsswitch.conf": NSSWITCH % (b" dns" if resolv else b""),
        "/etc/passwd": _lines(
            *([] if who.uid == 0 else [f"root:x:0:0:root:/root:{shell}"]),
            f"{who.user}:x:{who.uid}:{who.gid}::{who.home}:{shell}",
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin",
        ),
        "/etc/resolv.conf": resolv,
    }
    return [Text(path, content, "made up") for path, content in contents.items()]


#: Fields of /proc/meminfo that show the limit, and fields that are 0.
_ALL, _NONE = (
    ("MemTotal", "MemFree", "MemAvailable"),
    (
        *("Buffers", "Cached", "SwapCached", "Active", "Inactive", "Unevictable", "Mlocked", "SwapTotal"),
        *("SwapFree", "Dirty", "Writeback", "AnonPages", "Mapped", "Shmem", "Slab", "SReclaimable"),
        *("SUnreclaim", "PageTables", "CommitLimit", "Committed_AS", "HugePages_Total"),
    ),
)


def memory(limit: int) -> Text:
    """Return a /proc/meminfo that shows the limit, for programs that check before they allocate.

    It is written once, at the start, and shows all memory as free.
    """
    there = min(limit, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) >> 10
    lines = [(name, there) for name in _ALL] + [(name, 0) for name in _NONE]
    text = "".join(f"{name + ':':<15} {kilobytes:>8} kB\n" for name, kilobytes in lines)
    return Text("/proc/meminfo", text.encode(), "limits.memory")


def home_files(home: str, more: Mapping[str, bytes]) -> list[Text]:
    """Return the files of a new home."""
    contents = {**HOME_FILES, **more}
    return [Text(f"{home}/{name}", content, "home", 0o644) for name, content in contents.items()]


def other_hosts(text: bytes, own: str) -> bytes:
    """Return the host's /etc/hosts without entries for the host itself. Pure."""
    names = {os.fsencode(own), os.fsencode(own.partition(".")[0])}
    found = []
    for line in text.split(b"\n"):
        address, *rest = line.partition(b"#")[0].split() or [b""]
        others = [name for name in rest if name not in names and name.partition(b".")[0] not in names]
        if others and not address.startswith(b"127.") and address != b"::1":
            found.append(b" ".join([address, *others]) + b"\n")
    return b"".join(found)


def _names(host: str) -> str:
    """Return a host's name, followed by its first part if that is different."""
    short = host.partition(".")[0]
    return host if short == host else f"{host} {short}"


def _lines(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def shell() -> str:
    """Return the shell for SHELL and passwd."""
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


#: Last content of each file, shared by the plans of a program.
_contents: dict[str, bytes] = {}
_MOST_CONTENTS = 64


def _read(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.read(descriptor, LARGEST_COPY + 1)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    known = _contents.get(path)
    if found != known:
        if len(_contents) >= _MOST_CONTENTS:
            _contents.clear()
        _contents[path] = known = found
    return known
