"""A policy as the data and the text of a policy file, and the difference of two policies. Pure."""

from __future__ import annotations

import json
import re

from ..display import shown
from ..policy import Identity, Limits, Network, Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..policy.egress_secret import EgressSecret

#: Lists of paths, in which `$` begins a placeholder.
PATHS = ("read", "write", "deny", "sockets")
_LISTS = (*PATHS, "pass_env", "unprotect", "gpu", "devices")
_PLAIN = (
    *("system", "toolchains", "sudo", "world", "nested", "environment", "redact", "home", "base"),
    "package_cache",
)
#: An entry of a list with its comment, and a single value with its own, as `text` writes them.
_COMMENTED = re.compile(r'^ *("(?:[^"\\]|\\.)*"),  # (.*)$', re.MULTILINE)
_COMMENTED_VALUE = re.compile(r"^(\w+ = \S+)  # (.*)$", re.MULTILINE)
_SIZES = ("memory", "output", "file_size", "disk")


def of_policy(policy: Policy, spelled: Callable[[str], str] | None = None) -> dict[str, Any]:
    """Return the keys of the file that gives this policy. Defaults of its preset are left out.

    `spelled` writes a path with placeholders.
    """
    spelled = spelled or escaped
    data: dict[str, Any] = {"preset": policy.preset}
    plain = Policy.coding_agent(policy.home) if policy.preset == "coding-agent" and policy.home else None
    plain = plain or Policy(preset=policy.preset if policy.preset != "coding-agent" else "none")
    for name in _LISTS:
        if values := list(getattr(policy, name)):
            data[name] = [spelled(value) for value in values] if name in PATHS else values
    for name in _PLAIN:
        value = getattr(policy, name)
        if value is not None and (value != getattr(plain, name) or (name == "home" and value)):
            data[name] = list(value) if isinstance(value, tuple) else value
    data["network"] = of_network(policy.network)
    if limits := of_limits(policy.limits):
        data["limits"] = limits
    usual = Identity()
    if policy.identity != usual:
        data["identity"] = {name: getattr(policy.identity, name) for name in Identity._fields}
    if policy.env:
        data["env"] = {name: escaped(str(value)) for name, value in policy.env.items()}
    if policy.secrets:
        data["secrets"] = [_of_secret(secret) for secret in policy.secrets]
    if policy.rules is not None:
        data["rules"] = _of_rules(policy.rules)
    return data


def of_network(network: Network) -> dict[str, Any]:
    """Return the table of a network."""
    table: dict[str, Any] = {"mode": network.mode}
    if network.mode == "allow":
        table["allow"] = [str(rule) for rule in network.rules]
        if network.dns:
            table["dns"] = list(network.dns)
        if network.http:
            table["http"] = [str(rule) for rule in network.http]
        if network.http_limits:
            table["http_limits"] = [
                {name: value for name, value in limit.as_dict().items() if value is not None}
                for limit in network.http_limits
            ]
    if network.mode == "loopback" and network.ports:
        table["ports"] = list(network.ports)
    return table


def _of_secret(secret: EgressSecret) -> dict[str, Any]:
    table = {name: value for name, value in secret.as_dict().items() if value}
    return {**table, "source": secret.shown_source}


def of_limits(limits: Limits) -> dict[str, Any]:
    """Return the limits that are not the default."""
    usual, found = Limits(), {}
    for name in Limits._fields:
        value = getattr(limits, name)
        if name == "defaults" or name in limits.defaults:
            continue
        if value != getattr(usual, name) or name in usual.defaults:
            found[name] = "none" if value is None else _written(name, value)
    return found


def _written(name: str, value: float) -> float | str:
    """Return a limit as a person writes it: 256M, 90."""
    if name in _SIZES and value % (1 << 20) == 0:
        return f"{int(value) >> 20}M"
    return int(value) if value == int(value) else value


def _of_rules(rules: Any) -> dict[str, Any]:
    def entry(rule: Any) -> dict[str, Any]:
        return {name: value for name in rule._fields if (value := getattr(rule, name)) not in ("", None, ())}

    table: dict[str, Any] = {"deny": [entry(rule) for rule in rules.deny], "unknown": rules.unknown}
    if rules.allow is not None:
        table["allow"] = [entry(rule) for rule in rules.allow]
    return table


def escaped(text: str) -> str:
    """Return text in which `$` begins no placeholder."""
    return text.replace("$", "$$")


# ---------------------------------------------------------------- text


def text(data: Mapping[str, Any], why: Mapping[tuple[str, str], str], loud: Mapping[str, list[str]]) -> str:
    """Write a policy file. `why` has the comment of (key, value), `loud` comments after a key's values."""
    lines: list[str] = []
    for key, value in data.items():
        if not isinstance(value, dict):
            lines += _entry(key, key, value, why, loud)
    lines += [each for key, several in loud.items() if key not in data and "." not in key for each in several]
    for key, table in data.items():
        if isinstance(table, dict):
            lines += ["", f"[{key}]"]
            for name, value in table.items():
                lines += _entry(f"{key}.{name}", name, value, why, loud)
            missing = [
                each for each in loud if each.startswith(f"{key}.") and each[len(key) + 1 :] not in table
            ]
            lines += [each for name in missing for each in loud[name]]
    return "\n".join(lines) + "\n"


def _entry(
    at: str, name: str, value: Any, why: Mapping[tuple[str, str], str], loud: Mapping[str, list[str]]
) -> list[str]:
    if not isinstance(value, list) or not (value or loud.get(at)):
        return [f"{name} = {toml(value)}" + _comment(why.get((at, "")))]
    lines = [f"{name} = ["]
    lines += [f"    {toml(each)}," + _comment(why.get((at, str(each)))) for each in value]
    lines += [f"    {each}" for each in loud.get(at, ())]
    return [*lines, "]"]


def comments(text: str) -> dict[str, str]:
    """Return the comments of the entries in a policy file that was written by `text`."""
    return {json.loads(entry): why for entry, why in _COMMENTED.findall(text)}


def value_comments(text: str) -> dict[str, str]:
    """Return the comments of single values in a policy file, by the part of the line before them."""
    return dict(_COMMENTED_VALUE.findall(text))


def _comment(why: str | None) -> str:
    return f"  # {shown(why)}" if why else ""


def toml(value: Any) -> str:
    """Return a value as TOML. Text is a basic string, in which JSON's escapes mean the same."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items()) + "}"
    return str(value)


# ---------------------------------------------------------------- difference


def difference(before: Policy, after: Policy) -> list[str]:
    """Return the lines that `after` adds (`+`) and takes away (`-`), one for each entry of a list."""
    old, new = _rows(of_policy(before)), _rows(of_policy(after))
    removed = [f"- {row}" for row in old if row not in new]
    return removed + [f"+ {row}" for row in new if row not in old]


def _rows(data: Mapping[str, Any], above: str = "") -> list[str]:
    rows = []
    for key, value in data.items():
        name = f"{above}{key}"
        if isinstance(value, dict):
            rows += _rows(value, f"{name}.")
        elif isinstance(value, list):
            rows += [f"{name} {shown(toml(each))}" for each in value]
        else:
            rows.append(f"{name} {shown(toml(value))}")
    return rows
