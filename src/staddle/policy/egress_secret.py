"""Secrets that stay outside: the sandbox has a placeholder, and requests to its hosts get the value. Pure.

    EgressSecret("GITHUB_TOKEN", "env:GITHUB_TOKEN", ["api.github.com"], header="Authorization: Bearer {}")

Only where the value is found is a part of the policy. The host program reads the value when it opens a
sandbox, and gives it to the inspector of that sandbox alone.
"""

from __future__ import annotations

from .._value import Value
from ..check import several
from ..errors import PolicyError
from ..hostnames import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Prefixes of a source as text.
SOURCES = ("env", "file", "command")
#: Characters of a header name or a query parameter (RFC 9110, 5.6.2).
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LONGEST = 1024
_BEARER = "Authorization: Bearer {}"
_SAMPLE = 'write EgressSecret("GITHUB_TOKEN", "env:GITHUB_TOKEN", ["api.github.com"])'


class EgressSecret(Value):
    """A secret for requests to `hosts`. Programs see a placeholder in the variable `name`.

    `source` is where the host program finds the value: `"env:NAME"`, `"file:/path"`, `"command:pass show x"`,
    or a function that returns it. A request may have the placeholder in one place, where the value replaces
    it: the header of `header` (default: `Authorization: Bearer {}`), the parameter `query`, or the password
    of basic authentication for the user `basic`. A request that has it elsewhere, or for another host, is
    refused. `placeholder` is its beginning, for programs that check the form of a key, such as "sk-ant-".
    With `in_body`, the body of a request may have the placeholder, which stays as it is: a coding agent sends
    what its commands print, such as their variables.
    """

    name: str
    source: str | Callable[[], str]
    hosts: tuple[str, ...]
    header: str = ""
    query: str = ""
    basic: str = ""
    placeholder: str = ""
    in_body: bool = False

    def __post_init__(self) -> None:
        # A placeholder must be able to pass through a shell and a header unchanged.
        if not isinstance(self.name, str) or not self.name.isidentifier() or not self.name.isascii():
            raise _bad(str(self.name), "its name is the name of a variable: letters, digits and _")
        if not callable(self.source):
            kind, colon, rest = str(self.source).partition(":")
            if not isinstance(self.source, str) or kind not in SOURCES or not colon or not rest.strip():
                # Not shown: it may be the secret itself.
                raise _bad(self.name, "its source is not env:NAME, file:/path or command:WORDS")
            if kind == "file" and rest[0] not in "/~":
                raise _bad(self.name, "the path of its source is not absolute")
        entries = [parse(host) for host in several(self.hosts, "hosts")]  # type: ignore[arg-type]
        if not entries or any(
            each.kind == "network" or each.deny or each.protocol == "udp" for each in entries
        ):
            raise _bad(self.name, "its hosts are names, and there is at least one")
        self._set("hosts", tuple(str(entry) for entry in entries))
        ways = [way for way in (self.header, self.query, self.basic) if way]
        if not all(isinstance(way, str) and way.isascii() and way.isprintable() for way in ways):
            raise _bad(self.name, "its header, query or basic is not plain text")
        if len(ways) > 1 or any(len(way) > _LONGEST for way in ways):
            raise _bad(self.name, "it has more than one of header, query and basic")
        if not ways:
            self._set("header", _BEARER)
        title, colon, text = self.header.partition(": ")
        if set(title) - _TOKEN or (colon and text.count("{}") != 1):
            raise _bad(self.name, "its header is not a name, or NAME: TEXT with one {} for the value")
        if set(self.query) - _TOKEN or ":" in self.basic:
            raise _bad(self.name, "a query parameter is one word, and a user name has no colon")
        if not isinstance(self.in_body, bool):
            raise _bad(self.name, "in_body is neither True nor False", "leave it out, or give True")
        if len(self.placeholder) > 64 or set(self.placeholder) - _TOKEN:
            raise _bad(self.name, "the beginning of its placeholder has at most 64 letters, digits and -._~")

    @classmethod
    def parse(cls, text: str) -> EgressSecret:
        """Parse `NAME=SOURCE@HOST[,HOST...]`, as it is written on the command line."""
        name, equals, rest = text.partition("=")
        source, at, hosts = rest.rpartition("@")
        if not equals or not at:
            raise _bad(name, "it is not NAME=SOURCE@HOST", "write --secret TOKEN=env:TOKEN@api.example.com")
        return cls(name, source, tuple(hosts.split(",")))

    @property
    def shown_source(self) -> str:
        """The source for people."""
        return self.source if isinstance(self.source, str) else "a function"

    def __str__(self) -> str:
        way = self.header or (f"?{self.query}=" if self.query else self.basic and f"{self.basic}:")
        return f"{self.name} from {self.shown_source} to {', '.join(self.hosts)}" + (
            f" as {way}" if way else ""
        )


def checked_secrets(secrets: object) -> tuple[EgressSecret, ...]:
    """Return the secrets of a policy, each name once."""
    if isinstance(secrets, tuple) and not secrets:
        return ()
    found: dict[str, EgressSecret] = {}
    for secret in several(secrets, "secrets"):
        if not isinstance(secret, EgressSecret):
            raise PolicyError("secrets has an entry that is no EgressSecret", why="each is one", fix=_SAMPLE)
        if found.setdefault(secret.name, secret) != secret:
            raise _bad(secret.name, "two secrets have this name", "rename one of them")
    if len(found) > 64:
        raise PolicyError("a policy has at most 64 secrets", why=f"there are {len(found)}", fix="use fewer")
    return tuple(found[name] for name in sorted(found))


def _bad(name: str, why: str, fix: str = _SAMPLE) -> PolicyError:
    return PolicyError(f"the secret {name[:64]!r} cannot be used", why=why, fix=fix)
