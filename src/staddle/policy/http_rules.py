"""Rules about HTTP requests: which methods and paths of a host may be asked for. Pure.

    GET api.github.com/repos/**              GET (and HEAD) below /repos
    GET,POST api.example.com/v1/*            one more segment, not more
    * *.example.com/**                       every method and path, at every subdomain
    GET example.com:8443/**                  at this port (default: 80 and 443)
    !* github.com/**/git-receive-pack        refused, even if another rule allows it
    GET github.com/*/*.git/info/refs?service=git-upload-pack    only with this parameter

A path is compared in every reading that servers are known to give it: with `%2F` as a letter and as a slash,
with and without `;parameters`, with `//` as it is and as one slash. A request is allowed only if every
reading is allowed and none is refused. Refusals ignore case. A path with a `.` or `..` segment, with a
backslash or a control character in any reading, is refused whatever the rules are.
"""

from __future__ import annotations

import re

from .._value import Value
from ..check import several
from ..errors import PolicyError
from ..hostnames import HostRule, parse
from .limits import LARGEST, parse_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

#: Ports of a rule that names none.
PORTS = (80, 443)
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
_TEXT = re.compile(r"(!?)(\S+) ([^\s/?#]*)(/[^\s#]*)")
_LONGEST = 8192
#: The most rules of a policy: they travel to the inspector in one message.
_MOST = 500
_LIMIT = "write HOST requests=N bytes=SIZE rate=N, such as 'api.example.com requests=1000 bytes=1G'"
_SAMPLE = "write METHOD HOST/PATH, such as 'GET api.github.com/repos/**'"


class HttpRule(Value):
    """One rule. `method` is `GET`, `GET,POST` or `*`. An empty `host`: each host of the list around it."""

    method: str
    path: str
    host: str = ""
    deny: bool = False

    def __post_init__(self) -> None:
        if self.method != "*" and not all(_METHOD.fullmatch(each) for each in self.method.split(",")):
            raise _bad(str(self.method), "methods are capital letters, with commas between them")
        if not isinstance(self.path, str) or not self.path.startswith("/") or len(self.path) > _LONGEST:
            raise _bad(str(self.path), "a path begins with /")
        if any(not each.isascii() or not each.isprintable() or each in " #\\" for each in self.path):
            raise _bad(self.path, "its path has a character that no request has")
        if self.path.count("?") > 1 or any(part in (".", "..") for part in self.path.split("/")):
            raise _bad(self.path, "its path can be read in two ways")
        if self.host:
            self.host_rule()

    @classmethod
    def parse(cls, text: str) -> HttpRule:
        """Parse a rule as it is written in policy files and on the command line; `GET /path` has no host."""
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise _bad(str(text), "it is not a method, a host and a path")
        deny, method, host, path = found.groups()
        return cls(method, path, host, deny == "!")

    def host_rule(self) -> HostRule:
        """Return the host and ports as an entry of an allow list."""
        found = parse(self.host)
        if found.kind == "network" or found.protocol == "udp" or found.deny:
            raise _bad(self.host, "a rule about requests needs the name of a host")
        return found if found.ports else found.replace(ports=PORTS)

    def covers(self, host: str, port: int) -> bool:
        """Whether this rule is about requests to `host` at `port`."""
        return self.host_rule().matches(host, port)

    def __str__(self) -> str:
        return f"{'!' if self.deny else ''}{self.method} {self.host}{self.path}"


class HttpLimit(Value):
    """Bounds of one sandbox for requests to `host`: a number, bytes of bodies, requests a minute.

    Bytes count in both directions. A request beyond a bound gets status 429. A host without ports is limited
    at 80 and 443.
    """

    host: str
    requests: int | None = None
    bytes: int | str | None = None
    rate: int | None = None

    def __post_init__(self) -> None:
        entry = parse(self.host)
        if entry.kind == "network" or entry.protocol == "udp" or entry.deny:
            raise self._bad("its host is not a name")
        self._set("host", str(entry))
        if isinstance(self.bytes, str):
            self._set("bytes", parse_size(self.bytes))
        bounds = [value for value in (self.requests, self.bytes, self.rate) if value is not None]
        if not bounds:
            raise self._bad("it limits nothing")
        for value in bounds:
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
                raise self._bad("a bound is a number above 0")

    @classmethod
    def parse(cls, text: str) -> HttpLimit:
        """Parse `HOST requests=N bytes=SIZE rate=N`, as it is written on the command line."""
        host, *words = text.split() or [""]
        found: dict[str, Any] = {}
        for word in words:
            name, _, value = word.partition("=")
            if name not in ("requests", "bytes", "rate") or name in found:
                raise PolicyError(f"{text[:200]!r} is not a limit", why=f"{word!r} is no bound", fix=_LIMIT)
            found[name] = value if name == "bytes" or not value.isdecimal() else int(value)
        return cls(host, **found)

    def host_rule(self) -> HostRule:
        """Return the host and ports as an entry of an allow list."""
        found = parse(self.host)
        return found if found.ports else found.replace(ports=PORTS)

    def __str__(self) -> str:
        bounds = [f"{name}={value}" for name, value in self.as_dict().items() if name != "host" and value]
        return " ".join([self.host, *bounds])

    def _bad(self, why: str) -> PolicyError:
        return PolicyError(f"the limit for {str(self.host)[:200]!r} cannot be used", why=why, fix=_LIMIT)


def with_hosts(
    hosts: set[HostRule], rules: Iterable[HttpRule | str]
) -> tuple[set[HostRule], tuple[HttpRule, ...]]:
    """Return the entries of an allow list with the hosts of `rules`, and the rules, each with its host.

    A rule without a host is about every name in `hosts`. These names are then allowed only at the ports that
    the rule is about: otherwise another port of the same host would lead around it.
    """
    parsed = [
        rule if isinstance(rule, HttpRule) else HttpRule.parse(str(rule)) for rule in several(rules, "http")
    ]
    named = {rule for rule in hosts if rule.kind != "network" and not rule.deny and rule.protocol == "tcp"}
    entries, found = set(hosts), set()
    everywhere = [rule for rule in parsed if not rule.host]
    if everywhere:
        if not named:
            why = "it has no host, and the allow list has no names"
            raise _bad(str(everywhere[0]), why)
        narrowed = {rule if rule.ports else rule.replace(ports=PORTS) for rule in named}
        entries = (entries - named) | narrowed
        texts = [str(host if host.ports != PORTS else host.replace(ports=())) for host in narrowed]
        found = {rule.replace(host=host) for rule in everywhere for host in texts}
    found |= {rule for rule in parsed if rule.host}
    entries |= {rule.host_rule() for rule in found if not rule.deny}
    for rule in found:
        if rule.deny and not any(not other.deny and _meet(rule, other) for other in found):
            raise PolicyError(
                f"the rule {str(rule)!r} only refuses, and no other rule allows a request to its host",
                why="as soon as a host has a rule, every request to it needs one that allows it",
                fix=f"add '* {rule.host}/**'",
            )
    if len(found) > _MOST:
        why = f"they are {len(found)}"
        raise PolicyError(f"a network has at most {_MOST} HTTP rules", why=why, fix="use * and ** in them")
    return entries, tuple(sorted(found, key=str))


def git_read_rules(repositories: Iterable[str]) -> list[HttpRule]:
    """Return the rules that allow `git fetch` from these repositories, and nothing else."""
    found = []
    for repository in repositories:
        host, _, path = repository.partition("/")
        path = "/" + (path.rstrip("/") or "**")
        found += [
            HttpRule("GET", f"{path}/info/refs?service=git-upload-pack", host),
            HttpRule("POST", f"{path}/git-upload-pack", host),
        ]
    return found


def _meet(refusing: HttpRule, allowing: HttpRule) -> bool:
    """Whether both rules can be about the same host."""
    one, other = refusing.host_rule(), allowing.host_rule()
    names = (one.host, f"any.{one.host}"), (other.host, f"any.{other.host}")
    return any(other.covers(name) for name in names[0]) or any(one.covers(name) for name in names[1])


def _bad(text: str, why: str) -> PolicyError:
    return PolicyError(f"{text[:200]!r} is not a rule about HTTP requests", why=why, fix=_SAMPLE)
