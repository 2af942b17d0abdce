"""Messages between the host program and the inspector: JSON objects, decoded strictly. Pure."""

from __future__ import annotations

import json
import re

from ..._value import Value
from ...errors import PolicyError
from ...hostnames import HostRule, parse
from ...ipc.wire import Malformed
from ...policy.http_rules import HttpRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The longest message, in bytes.
LONGEST = 256 << 10
#: A shorter value would be found by chance in ordinary answers.
SHORTEST_SECRET, LONGEST_SECRET = 8, 16384
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_NAME = re.compile(r"[^\x00-\x1f]{1,256}")


class InspectedSecret(Value):
    """A secret whose placeholder is replaced in requests to `hosts`, and there in one place only.

    `header` is the name of a header, `query` of a parameter, `basic` the user of Basic credentials.
    """

    name: str
    placeholder: str
    value: str
    hosts: tuple[HostRule, ...]
    header: str = ""
    query: str = ""
    basic: str = ""
    in_body: bool = False

    def is_for(self, host: str, port: int, *, encrypted: bool) -> bool:
        """Whether a request to this host may carry the value.

        It needs TLS, unless the entry of the host has ports: then a person has chosen the port.
        """
        return any(rule.matches(host, port) and (encrypted or bool(rule.ports)) for rule in self.hosts)

    def covers(self, host: str, port: int) -> bool:
        """Whether `host` at `port` is one of its hosts, encrypted or not."""
        return any(rule.matches(host, port) for rule in self.hosts)


class HostLimit(Value):
    """Bounds for one entry. 0: none. `rate` is in requests a minute."""

    host: HostRule
    requests: int = 0
    bytes: int = 0
    rate: int = 0


class InspectionSettings(Value):
    """Settings from the host program. `asks` is the time to wait for a person (0: do not ask)."""

    rules: tuple[HttpRule, ...]
    secrets: tuple[InspectedSecret, ...]
    limits: tuple[HostLimit, ...]
    roots: str
    asks: float

    def hosts(self) -> tuple[HostRule, ...]:
        """Return the hosts that requests are inspected for."""
        found = [rule.host_rule() for rule in self.rules]
        found += [host for secret in self.secrets for host in secret.hosts]
        return tuple(dict.fromkeys(found + [limit.host for limit in self.limits]))


def decode(data: bytes) -> tuple[str, dict[str, Any]]:
    """Return the kind of a message and its fields. Raises Malformed."""
    try:
        message = json.loads(data.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"it is no JSON: {type(error).__name__}") from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise Malformed("it is no object with a kind")
    return message.pop("kind"), message


def settings(fields: dict[str, Any]) -> InspectionSettings:
    """Return the settings in these fields, or raise Malformed."""
    exactly(fields, rules=list, secrets=list, roots=str, asks=(int, float), limits=list)
    try:
        rules = tuple(HttpRule.parse(_text(text)) for text in fields["rules"])
        if not all(rule.host for rule in rules):
            raise Malformed("a rule has no host")
        secrets = tuple(_secret(each) for each in fields["secrets"])
        limits = tuple(_limit(each) for each in fields["limits"])
    except PolicyError as error:
        raise Malformed(str(error)) from None
    if len({each.name for each in secrets}) < len(secrets):
        raise Malformed("two secrets have one name")
    asks = float(fields["asks"])
    if not 0 <= asks <= 86400:
        raise Malformed("asks is out of range")
    return InspectionSettings(rules, secrets, limits, fields["roots"], asks)


def secret_value(text: object) -> str:
    """Return `text` if it can be the value of a secret, or raise Malformed."""
    if not isinstance(text, str) or not SHORTEST_SECRET <= len(text) <= LONGEST_SECRET:
        raise Malformed(f"a secret has {SHORTEST_SECRET} to {LONGEST_SECRET} characters")
    if not text.isascii() or not text.isprintable() or text != text.strip():
        raise Malformed("a secret has characters that no header can have")
    return text


def _secret(given: object) -> InspectedSecret:
    text = dict.fromkeys(("name", "placeholder", "value", "header", "query", "basic"), str)
    fields = exactly(given, hosts=list, in_body=bool, **text)
    name, placeholder, value = (
        fields["name"],
        secret_value(fields["placeholder"]),
        secret_value(fields["value"]),
    )
    header = fields["header"].partition(":")[0]
    if not _NAME.fullmatch(name) or (header and not _TOKEN.fullmatch(header)):
        raise Malformed("a name of a secret or header is invalid")
    if not (header or fields["query"] or fields["basic"]):
        raise Malformed(f"the secret {name} has no place in a request")
    if placeholder == value or placeholder in value or value in placeholder:
        raise Malformed(f"the placeholder of {name} and its value contain each other")
    hosts = tuple(_host(entry) for entry in fields["hosts"])
    if not hosts:
        raise Malformed(f"the secret {name} has no host")
    places = header, fields["query"], fields["basic"], fields["in_body"]
    return InspectedSecret(name, placeholder, value, hosts, *places)


def _limit(given: object) -> HostLimit:
    fields = exactly(given, host=str, requests=int, bytes=int, rate=int)
    if min(fields["requests"], fields["bytes"], fields["rate"]) < 0:
        raise Malformed("a limit is negative")
    return HostLimit(_host(fields["host"]), fields["requests"], fields["bytes"], fields["rate"])


def _host(entry: object) -> HostRule:
    found = parse(_text(entry))
    if found.kind == "network" or found.protocol == "udp" or found.deny:
        raise Malformed("the host of a secret or limit is a name")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Malformed("text was expected")
    return value


def exactly(fields: object, **kinds: Any) -> dict[str, Any]:
    """Return the fields if they are these, with these types, or raise Malformed."""
    if not isinstance(fields, dict) or fields.keys() != kinds.keys():
        raise Malformed(f"its fields are not {', '.join(sorted(kinds))}")
    for name, kind in kinds.items():
        value = fields[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise Malformed(f"{name} has another type")
    return fields


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found
