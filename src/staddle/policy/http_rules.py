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
from ..errors import PolicyError
from ..hostnames import HostRule, parse

#: Ports of a rule that names none.
PORTS = (80, 443)
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
_TEXT = re.compile(r"(!?)(\S+) ([^\s/?#]+)(/[^\s#]*)")
_LONGEST = 8192
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
        """Parse a rule as it is written in policy files and on the command line."""
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


def _bad(text: str, why: str) -> PolicyError:
    return PolicyError(f"{text[:200]!r} is not a rule about HTTP requests", why=why, fix=_SAMPLE)
