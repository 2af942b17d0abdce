"""The policy of an installation, for all its users: /etc/staddle/policy.toml.

    [defaults]                  # keys of a policy file, for sandboxes without a policy
    deny = ["/srv/private"]     # also denied to sandboxes with a policy of their own

    [refuse]
    backends = ["native"]       # backends that nobody can choose
    networks = ["open"]         # modes of a policy's network
    best_effort = true          # gaps are an error, even for callers that accept them

It binds all users of this installation, through the library or the command line. It does not bind users who
run other programs. staddle refuses to run anything if others than root may change the file.
"""

from __future__ import annotations

import os
import stat

from .._value import Value
from ..errors import PolicyError
from .network import MODES
from .policy import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PATH = "/etc/staddle/policy.toml"
_OWNER = 0
_LARGEST = 1 << 16
#: The last file that was read, by its identity and modification time.
_known: dict[object, Installation] = {}


class Installation(Value):
    """Backends and network modes that are refused on this host, and whether gaps can be accepted.

    `defaults` are keys of a policy file, as parsed from TOML.
    """

    backends: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    best_effort: bool = True
    defaults: Mapping[str, Any] | None = None


NOTHING = Installation()


def installation() -> Installation:
    """Read the current file. Raises PolicyError if it is invalid or others than root may change it."""
    try:
        found = os.stat(PATH)
    except FileNotFoundError:
        if os.path.islink(PATH) or os.path.islink(os.path.dirname(PATH)):
            raise _bad("it is a link to nothing", "have root write the file, or remove the link") from None
        return NOTHING
    except OSError as error:
        raise _bad(f"it cannot be read: {error.strerror}") from None
    key = (PATH, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_uid, found.st_mode)
    known = _known.get(key)
    if known is None:
        known = _read()
        _known.clear()
        _known[key] = known
    return known


def denied() -> tuple[str, ...]:
    """Return the paths that the installation's [defaults] deny to every policy."""
    defaults = installation().defaults
    return () if defaults is None else _policy(defaults).deny


def default_policy() -> Policy:
    """Return the policy for sandboxes without one: the installation's [defaults], or `Policy.agent()`."""
    defaults = installation().defaults
    return Policy.agent() if defaults is None else _policy(defaults)


def _policy(defaults: Mapping[str, Any]) -> Policy:
    from .file import from_installation

    return from_installation(Policy, defaults, PATH)


def _read() -> Installation:
    import tomllib

    try:
        with open(os.open(PATH, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            itself = os.fstat(file.fileno())
            if not stat.S_ISREG(itself.st_mode):
                raise _bad("it is not a regular file")
            # For a link, also check the target's directory, where the file could be replaced.
            places = {os.path.dirname(PATH), os.path.dirname(os.path.realpath(PATH))}
            for about in (itself, *map(os.stat, places)):
                if about.st_uid != _OWNER or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    raise _bad("others than root may change it, or its directory", "chown root, chmod go-w")
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:  # a truncated file could lose a refusal
            raise _bad(f"it is longer than {_LARGEST} bytes", "shorten it")
        data = tomllib.loads(content.decode())
    except OSError as error:
        raise _bad(f"it cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _bad(f"it is not TOML: {error}") from None
    if not data:
        raise _bad("it is empty", "remove it, or write what it refuses")
    for name, table in data.items():
        if name not in ("refuse", "defaults") or not isinstance(table, dict):
            raise _bad(f"there is no table {name!r}", "the tables are [refuse] and [defaults]")
    if "defaults" in data:
        _policy(data["defaults"])  # raises an error for all users if it is invalid
    return _refusals(data.get("refuse", {})).replace(defaults=data.get("defaults"))


def _refusals(table: dict[str, Any]) -> Installation:
    for key in table:
        if key not in ("backends", "networks", "best_effort"):
            raise _bad(f"there is no key refuse.{key}", "known are backends, networks, best_effort")
    backends, networks = (_texts(table.get(key, []), key) for key in ("backends", "networks"))
    for mode in networks:
        if mode not in MODES:
            raise _bad(f"there is no network {mode!r}", f"known are {', '.join(MODES)}")
    refused = table.get("best_effort", False)
    if not isinstance(refused, bool):
        raise _bad(f"refuse.best_effort is {refused!r}", "use true or false")
    return Installation(backends, networks, not refused)


def _texts(value: object, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _bad(f"refuse.{key} is {value!r}", "give a list of names")
    return tuple(value)


def _bad(why: str, fix: str = "") -> PolicyError:
    return PolicyError(
        f"the installation's policy {PATH!r} is refused", why=why, fix=fix or "have root correct it"
    )
