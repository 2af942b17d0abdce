"""What every sandbox sees: the system directories, a small /etc, private directories.

/etc is an allow list: what programs need to start, resolve names and check certificates.
Whatever may hold a credential (shadow, ssh keys, sudoers, pip.conf, npmrc, ...) is not on
it, and neither is anything nobody thought of.
"""

from __future__ import annotations

import os
import sys
import time

from .paths import covers
from .plan import Link, Scratch, Text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .plan import Identity
    from .resolution import Host

MIB = 1 << 20
GIB = 1 << 30

HOME = "/home/user"

DIRECTORIES = {
    "linux": ("/usr", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    "darwin": ("/usr", "/opt", "/bin", "/sbin", "/System", "/Library"),
}

#: Below /etc. Files are shown as copies, directories as they are.
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
    "nsswitch.conf",
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
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "tmux.conf",
    "vim",
    "xattr.conf",
)
#: A larger file is shown as it is: a copy would cost more than the mount.
LARGEST_COPY = 256 * 1024


def scratch(home: str) -> tuple[Scratch, ...]:
    """The private directories: empty at the start, gone with the run."""
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
    """The system directories to look for here."""
    return DIRECTORIES.get(sys.platform, DIRECTORIES["linux"])


def etc(host: Host) -> tuple[list[str], list[Link], list[Text]]:
    """The allowed part of /etc: (paths to grant, links, copies).

    Root's own files: for one who wraps command after command, what was seen a moment ago.
    """
    now = time.monotonic()
    if not _seen or now - _seen[0][0] > _FRESH:
        _seen[:] = [(now, _look_at_etc(host))]
    grants, links, copies = _seen[0][1]
    return list(grants), list(links), list(copies)


def _look_at_etc(host: Host) -> tuple[list[str], list[Link], list[Text]]:
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


#: Where our own resolver is, inside.
RESOLV_CONF = b"nameserver 127.0.0.53\noptions timeout:5 attempts:2\n"


def made_up(identity: Identity, shell: str, network: str) -> list[Text]:
    """Files that say who the sandbox is, and nothing about the host.

    With the network open, names must resolve as they do outside, so hosts and resolv.conf
    are the host's then; with an allow list, they are asked of our own resolver.
    """
    who = identity
    hosts = f"127.0.0.1 localhost {who.host}\n::1 localhost\n".encode()
    resolv = RESOLV_CONF if network == "allow" else b""
    if network == "open":
        hosts += _read("/etc/hosts") or b""
        resolv = _read("/etc/resolv.conf") or b""
    contents = {
        "group": f"root:x:0:\n{who.user}:x:{who.gid}:\nnogroup:x:65534:\n".encode(),
        "hostname": f"{who.host}\n".encode(),
        "hosts": hosts,
        "machine-id": b"0" * 31 + b"1\n",
        "passwd": (
            "root:x:0:0:root:/root:/usr/sbin/nologin\n"
            f"{who.user}:x:{who.uid}:{who.gid}::{who.home}:{shell}\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ).encode("utf-8", "surrogateescape"),
        "resolv.conf": resolv,
    }
    return [Text(f"/etc/{name}", content, "made up") for name, content in contents.items()]


def shell() -> str:
    """The shell that SHELL and passwd name."""
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def _read(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return os.read(descriptor, LARGEST_COPY + 1)
        finally:
            os.close(descriptor)
    except OSError:
        return None
