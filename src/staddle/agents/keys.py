"""Keys of a coding agent's model that stay outside: which, for which hosts, and why others do not.

The agent gets a placeholder in the variable of its key. Requests to the model get the key on their way out.
"""

from __future__ import annotations

import json

from .._value import Value
from ..errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..jail.agents import Agent, AgentKey
    from ..policy.egress_secret import EgressSecret

#: Characters at the end of a key by which Claude Code remembers in a file that the user has approved it.
_END, _LONG = 20, 60


class OutsideKeys(Value):
    """Keys in a person's variables: `secrets` stay outside, `inside` has the reason for each other one."""

    secrets: tuple[EgressSecret, ...] = ()
    inside: tuple[tuple[str, str], ...] = ()

    def told(self) -> list[str]:
        """Describe in a few lines where each key is."""
        lines = [
            f"your {secret.name} stays outside: requests to {', '.join(secret.hosts)} get it"
            for secret in self.secrets
        ]
        return lines + [f"your {name} is inside: {why}" for name, why in self.inside]


def outside_keys(agent: Agent, variables: Mapping[str, str], refusal: str = "") -> OutsideKeys:
    """Sort the agent's keys in these variables. With `refusal`, the reason, all go inside."""
    given = [key for key in agent.keys if variables.get(key.name)]
    if not given:
        return OutsideKeys()
    from ..network.host.inspector_process import secret_value  # most people log in, and have no key
    from ..policy.egress_secret import EgressSecret

    secrets, inside = [], []
    for key in given:
        why = refusal or _missing()
        hosts = _hosts(key, variables)
        if not why and not hosts:
            why = f"{key.address} is not https to the name of a host"
        if not why:
            secret = EgressSecret(
                key.name,
                f"env:{key.name}",
                hosts,
                header=key.header,
                query=key.query,
                placeholder=key.begin,
                in_body=True,
            )
            try:
                secret_value(secret)
            except PolicyError as error:
                why = error.why
        if why:
            inside.append((key.name, why))
        else:
            secrets.append(secret)
    return OutsideKeys(tuple(secrets), tuple(inside))


def _missing() -> str:
    from ..policy.egress import missing_modules

    return "pip install 'staddle[egress]' to keep it outside" if missing_modules() else ""


def _hosts(key: AgentKey, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts to which the agent sends a key; none if the key cannot be put into its requests."""
    address = variables.get(key.address, "") if key.address else ""
    if not address:
        return key.hosts
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return ()
    if parts.scheme != "https" or not host or host == "localhost" or _is_address(host):
        return ()
    # An entry without ports is for TLS only.
    return (host if port in (None, 443) else f"{host}:{port}",)


def _is_address(host: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class KeyCopies:
    """Keeps keys out of the files that an agent's home gets, and brings their ends back.

    `placeholders` are the variables inside, `values` those outside.
    """

    def __init__(self, values: Mapping[str, str], placeholders: Mapping[str, str]) -> None:
        self._whole = [(values[name], placeholders[name]) for name in values]
        self._ends = [(value[-_END:], held[-_END:]) for value, held in self._whole if len(value) >= _LONG]

    def replaced(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the content of a file with placeholders for keys, and with the ends of theirs."""
        text = json.dumps(data)
        for value, held in (*self._whole, *self._ends):
            text = text.replace(json.dumps(value)[1:-1], held)
        found: dict[str, Any] = json.loads(text)
        return found

    def restored(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return members from inside with the ends of keys again. A member with a placeholder is left out.

        A placeholder never becomes the key: a file would then bring it inside later.
        """
        found = {}
        for name, member in data.items():
            text = json.dumps(member)
            if any(held in text for _, held in self._whole):
                continue
            for end, held in self._ends:
                text = text.replace(held, json.dumps(end)[1:-1])
            found[name] = json.loads(text)
        return found
