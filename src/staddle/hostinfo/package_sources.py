"""Package sources of this host: the indexes that its own tools are configured with.

    sources = read()
    sources.indexes          PackageIndex("pip", "https", "mirror.example", 443, "/simple", ...)
    sources.proxies          proxies between the tools and their indexes
    sources.certificates     files with certificates of the indexes

The sources come only from files and variables, at the time of the call; no program is started, and the
network is not used. User names and passwords in URLs are stored separately in `credentials`, whose repr hides
them. So a PackageIndex can be printed, reported and copied into a sandbox.
"""

from __future__ import annotations

import os
from itertools import pairwise

from .._value import Value
from ..errors import PolicyError
from ..hostnames import canonical
from .secrets import SECRET_VALUES, SHORTEST_KEY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    Manager = Literal["pip", "apt", "npm"]

MANAGERS: tuple[Manager, ...] = ("pip", "apt", "npm")
#: Changes between letters and digits in a key. A name has one or two, 16 random characters have more.
_TURNS = 4
_PORTS = {"http": 80, "https": 443}
#: Larger configuration files are not read.
LARGEST_FILE = 1 << 20


class PackageIndex(Value):
    """A source of packages. `kind` is the manager's own word for it, such as "index-url"."""

    manager: Manager
    scheme: str
    host: str
    port: int
    path: str
    kind: str
    #: The file or variable that names it.
    origin: str

    @property
    def url(self) -> str:
        """Return the URL without user name and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if _PORTS.get(self.scheme) == self.port else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


class IndexDirectory(Value):
    """An index that is a directory of the host."""

    manager: Manager
    path: str
    kind: str
    origin: str


class Credential:
    """A user name and a password, or a token. The repr hides it."""

    __slots__ = ("password", "user")

    def __init__(self, user: str, password: str) -> None:
        self.user, self.password = user, password

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Credential) and (self.user, self.password) == (other.user, other.password)

    def __hash__(self) -> int:
        return hash((self.user, self.password))

    def __repr__(self) -> str:
        return "Credential(hidden)"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a credential stays in this process")


class Sources:
    """The package sources that were found.

    `unread` lists files that could not be parsed, each with a reason.
    """

    def __init__(self) -> None:
        self.indexes: list[PackageIndex] = []
        self.proxies: list[PackageIndex] = []
        self.certificates: list[str] = []
        self.directories: list[IndexDirectory] = []
        self.unread: list[tuple[str, str]] = []
        self.credentials: dict[PackageIndex, Credential] = {}

    def of(self, manager: Manager) -> tuple[PackageIndex, ...]:
        """Return the indexes of one manager, in the order in which it asks them."""
        return tuple(index for index in self.indexes if index.manager == manager)

    def add(self, manager: Manager, url: str, kind: str, origin: str) -> PackageIndex | None:
        """Add an index by URL, or a directory by path. Returns None for a directory or an invalid URL."""
        text = url.strip()
        if text.startswith("file://"):
            text = text.removeprefix("file://")
        if text.startswith("/"):
            directory = IndexDirectory(manager, text, kind, origin)
            if directory not in self.directories:
                self.directories.append(directory)
            return None
        return self._kept(self.indexes, manager, text, kind, origin)

    def add_proxy(self, manager: Manager, url: str, origin: str) -> None:
        """Add a proxy of a manager."""
        text = url.strip().strip("\"'")
        if text and text.upper() not in ("DIRECT", "NULL", "FALSE"):
            self._kept(self.proxies, manager, text if "://" in text else f"http://{text}", "proxy", origin)

    def add_certificate(self, path: str) -> None:
        """Add a file of certificates."""
        if path.startswith("/") and path not in self.certificates:
            self.certificates.append(path)

    def _kept(
        self, found: list[PackageIndex], manager: Manager, url: str, kind: str, origin: str
    ) -> PackageIndex | None:
        index, credential = parse(manager, url, kind, origin)
        if index is None:
            self.unread.append((origin, "it names an index by something that is not an http or https URL"))
            return None
        same = (index.manager, index.url, index.kind)
        known = next((item for item in found if (item.manager, item.url, item.kind) == same), None)
        if known is None:
            found.append(index)
        if credential is not None:
            self.credentials[known or index] = credential
        return known or index

    def __repr__(self) -> str:
        return f"<Sources: {len(self.indexes)} indexes, {len(self.proxies)} proxies>"


class HostFiles:
    """The host's variables, and its files below `root`."""

    def __init__(self, environ: Mapping[str, str], home: str, root: str) -> None:
        self.environ, self.home, self.root = environ, home, root

    def text(self, path: str) -> str | None:
        """Return the content of a file; None if it is missing or too large."""
        try:
            with open(self.root + path, "rb") as file:
                data = file.read(LARGEST_FILE + 1)
        except OSError:
            return None
        return None if len(data) > LARGEST_FILE else data.decode("utf-8", "replace")

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; none if it cannot be listed."""
        try:
            return sorted(os.listdir(self.root + directory))
        except OSError:
            return []

    def variable(self, *names: str) -> tuple[str, str] | None:
        """Return (name, value) of the first of these variables that is not blank."""
        return next(((name, value) for name in names if (value := self.environ.get(name, "").strip())), None)


def parse(
    manager: Manager, url: str, kind: str, origin: str
) -> tuple[PackageIndex | None, Credential | None]:
    """Parse the URL of an index, and the credential in it. (None, None) if it is not an http URL."""
    from urllib.parse import unquote, urlsplit

    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme.lower(), 0)
        host = canonical(parts.hostname or "")
    except (ValueError, PolicyError):
        return None, None
    scheme = parts.scheme.lower()
    if scheme not in _PORTS:
        return None, None
    # An index needs no query or fragment, and both may contain a token. So may a path.
    keyed = any(_is_key(part) for part in parts.path.split("/"))
    index = PackageIndex(manager, scheme, host, port, "/" if keyed else parts.path, kind, origin)
    if parts.username is None and parts.password is None:
        return index, Credential("", parts.path) if keyed else None
    return index, Credential(unquote(parts.username or ""), unquote(parts.password or ""))


def _is_key(part: str) -> bool:
    """Whether a part of a path looks like a key, which some registries use."""
    if part.startswith(SECRET_VALUES) and len(part) >= SHORTEST_KEY:
        return True
    kinds = [char.isdigit() for char in part]
    turns = sum(before != after for before, after in pairwise(kinds))
    return part.isalnum() and len(part) >= SHORTEST_KEY and turns >= _TURNS
