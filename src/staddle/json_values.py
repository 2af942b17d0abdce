"""Values and errors of staddle as JSON, and back as the same types.

    encode(result)     {"$": "Result", "exit_code": 0, "stdout_bytes": {"$": "bytes", "base64": "…"}, …}
    decode(data)       the Result

An object with the key "$" names its type. A tuple in a field of a value is a plain list. `decode` makes only
the types in `_HOME`, from fields. With `only`, it makes just these, by their constructors, which check the
fields: data from a client never becomes anything else.
"""

from __future__ import annotations

import base64
import builtins
import json
import os
from functools import cache

from . import errors
from ._value import Value
from .errors import InvalidCall, StaddleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    Reader = Callable[[int], bytes]

#: The module of each type that travels.
_HOME = {
    **dict.fromkeys(("Gap", "EnforcedLimit", "Enforcement"), "enforcement"),
    **dict.fromkeys(("Conflict", "NeedsApproval", "Committed"), "layers.review"),
    **dict.fromkeys(("FileInfo", "FileEvent", "Match"), "sandbox.files"),
    **dict.fromkeys(("ProcessInfo", "EndedProcess"), "sandbox.processes"),
    **dict.fromkeys(
        ("Grant", "Layered", "Hidden", "Guard", "Link", "Text", "Scratch", "Socket", "Closed", "Variable"),
        "policy.plan",
    ),
    **dict.fromkeys(("Note", "Plan"), "policy.plan"),
    **dict.fromkeys(("Rule", "CommandRules"), "command_rules.rules"),
    "BaseView": "policy.base",
    "CellResult": "sandbox.interpreter",
    "Change": "layers.changes",
    "Chunk": "sandbox.stream",
    "Drift": "layers.drift",
    "EgressRequest": "egress_request",
    "EgressSecret": "policy.egress_secret",
    "Event": "events",
    "HistoryStep": "sandbox.history.point",
    "HostRule": "hostnames",
    "HttpLimit": "policy.http_rules",
    "HttpRule": "policy.http_rules",
    "Identity": "policy.identity",
    "KeptInterpreters": "sandbox.workspace.snapshot",
    "Limits": "policy.limits",
    "Network": "policy.network",
    "Package": "packages.installed",
    "Policy": "policy.policy",
    "Reason": "sandbox.result",
    "Restored": "sandbox.changes",
    "Result": "sandbox.result",
    "Secret": "hostinfo.secrets",
    "SessionState": "sandbox.session",
    "Usage": "limits.usage",
}
#: Types that a client may send.
OF_CLIENTS = frozenset(
    (
        *("Policy", "Network", "Limits", "Identity", "HostRule", "HttpRule", "HttpLimit"),
        "EgressSecret",
        *("CommandRules", "Rule", "Secret"),
    )
)
#: Errors of Python that mean the same everywhere. An OSError travels with its number and its path.
_PLAIN = frozenset(
    ("ValueError", "TypeError", "KeyError", "RuntimeError", "EOFError", "NotImplementedError", "UnicodeError")
)
#: Types that JSON has.
_PLAIN_TYPES = frozenset((str, int, float, bool, type(None)))
#: How deep data may be nested.
_DEEPEST = 32
#: Return data as the shortest JSON, and text of JSON as data. Made once, not for each call.
write_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
read_json = json.JSONDecoder().decode


@cache
def type_named(name: str) -> Any:
    """Return the type with this name."""
    return getattr(__import__(f"staddle.{_HOME[name]}", fromlist=[name]), name)


def encode(value: object, apart: list[bytes] | None = None) -> Any:
    """Return `value` as data for JSON. Raises TypeError for what does not travel.

    With a list `apart` it is short. Bytes in a field of a value are added to the list instead, and fields
    that have their defaults are left out. `decode` fills them in.
    """
    if type(value) in _PLAIN_TYPES:
        return value
    if isinstance(value, str):
        kind = type(value).__name__
        return {"$": kind, "text": str.__str__(value)} if kind in ("Secret", "Reason") else str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$": "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, Value) or type(value).__name__ == "CellResult":
        return _of_value(value, apart)
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, tuple | set | frozenset):
        kind = "tuple" if isinstance(value, tuple) else "set"
        return {"$": kind, "items": [encode(item) for item in value]}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and "$" not in value:
            return {key: encode(item) for key, item in value.items()}
        return {"$": "dict", "items": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, int):  # an IntEnum
        return int(value)
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _of_value(value: Any, apart: list[bytes] | None) -> dict[str, Any]:
    kind = type(value).__name__
    if kind not in _HOME:
        raise TypeError(f"{kind} cannot be sent")
    is_ours = isinstance(value, Value)
    defaults = value._defaults if apart is not None and is_ours else {}
    found: dict[str, Any] = {"$": kind}
    for name in value._fields if is_ours else tuple(value.__dict__):
        item = getattr(value, name)
        if item is defaults.get(name, value):
            continue  # a default that is another object with the same value may be sent
        if type(item) in _PLAIN_TYPES:
            found[name] = item
        elif isinstance(item, tuple):
            found[name] = [encode(each) for each in item]
        elif isinstance(item, list):  # a list among the fields of a value is rare: it says that it is one
            found[name] = {"$": "list", "items": [encode(each) for each in item]}
        elif apart is not None and type(item) is bytes:
            found[name] = {"$": "apart", "size": len(item)}
            apart.append(item)
        else:
            found[name] = encode(item, apart)
    return found


def decode(
    data: Any, *, only: Collection[str] | None = None, depth: int = 0, apart: Reader | None = None
) -> Any:
    """Return the value that `encode` has described. Raises InvalidCall for anything else.

    `apart` reads the next bytes of those that were added to its list.
    """
    if depth > _DEEPEST:
        raise InvalidCall(
            "the data is nested too deeply", why=f"more than {_DEEPEST} levels", fix="send less"
        )
    if isinstance(data, list):
        return [decode(item, only=only, depth=depth + 1) for item in data]
    if not isinstance(data, dict):
        return data
    kind = data.get("$")
    if kind is None:
        return {key: decode(item, only=only, depth=depth + 1) for key, item in data.items()}
    try:
        return _decoded(kind, data, only, depth + 1, apart)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidCall(
            f"{kind!r} cannot be read", why=str(error)[:200], fix="send all its fields"
        ) from None


def _decoded(
    kind: Any, data: dict[str, Any], only: Collection[str] | None, depth: int, apart: Reader | None
) -> Any:
    if kind == "bytes":
        return base64.b64decode(data["base64"], validate=True)
    if kind == "apart" and apart is not None:
        return apart(data["size"])
    if kind in ("tuple", "list", "set"):
        made = {"tuple": tuple, "list": list, "set": frozenset}[kind]
        return made(decode(item, only=only, depth=depth) for item in data["items"])
    if kind == "dict":
        pairs = (decode(pair, only=only, depth=depth) for pair in data["items"])
        return {key: item for key, item in pairs}  # noqa: C416 - each is a list of two
    if kind not in _HOME or (only is not None and kind not in only):
        raise InvalidCall(
            f"a value of the type {kind!r} cannot be sent",
            why="this type is not known, or does not travel in this direction",
            fix=f"send {', '.join(sorted(only or _HOME))}",
        )
    type_of = type_named(kind)
    if "text" in data and issubclass(type_of, str):
        return type_of(data["text"])
    fields = {
        name: tuple(decode(each, only=only, depth=depth) for each in item)
        if type(item) is list
        else decode(item, only=only, depth=depth, apart=apart)
        if type(item) is dict
        else item
        for name, item in data.items()
        if name != "$"
    }
    if only is not None or not issubclass(type_of, Value):
        return type_of(**fields)
    made = type_of.__new__(type_of)  # ours, and checked when it was made
    made.__dict__.update({**type_of._defaults, **fields})
    return made


def encode_error(error: BaseException) -> dict[str, Any]:
    """Return an error as data for JSON: its type, its three sentences, its facts."""
    kind = type(error).__name__
    if isinstance(error, StaddleError):
        known = getattr(errors, kind, None) is type(error)
        found = {
            "type": kind if known else "StaddleError",
            "what": error.what,
            "why": error.why,
            "fix": error.fix,
        }
        facts = {}
        for name, value in error.__dict__.items():
            if name not in found:
                try:
                    facts[name] = _of_tuple(value)
                except TypeError:
                    continue  # known only here
        return {**found, **({"facts": facts} if facts and known else {})}
    if isinstance(error, OSError):
        path = error.filename if isinstance(error.filename, str) else None
        return {"type": kind, "what": error.strerror or str(error), "errno": error.errno, "path": path}
    if kind in _PLAIN:
        return {"type": kind, "what": str(error)[:2000]}
    return {
        "type": "StaddleError",
        "what": f"{kind} in the server",
        "why": str(error)[:2000],
        "fix": "report it, with the log of the server",
    }


def _of_tuple(value: object) -> Any:
    return [encode(each) for each in value] if isinstance(value, tuple) else encode(value)


def decode_error(data: Any) -> Exception:
    """Return the error that `encode_error` has described, as the same type."""
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        return StaddleError(
            "the server answered with an unknown error", why=str(data)[:200], fix="update staddle"
        )
    kind, what = data["type"], str(data.get("what", ""))
    type_of = getattr(errors, kind, None)
    if isinstance(type_of, type) and issubclass(type_of, StaddleError):
        made: StaddleError = type_of.__new__(type_of)
        made.args = (what, data.get("why", ""), data.get("fix", ""))
        made.what, made.why, made.fix = made.args
        for name, value in (data.get("facts") or {}).items():
            found = decode(value)
            made.__dict__[name] = tuple(found) if isinstance(found, list) else found
        return made
    plain = getattr(builtins, kind, None)
    if isinstance(plain, type) and issubclass(plain, OSError) and data.get("errno") is not None:
        path = data.get("path")
        return OSError(data["errno"], what, path) if path else OSError(data["errno"], what)
    if kind in _PLAIN and isinstance(plain, type) and issubclass(plain, Exception):
        return plain(what)
    return StaddleError(what, why=str(data.get("why", "")), fix=str(data.get("fix", "")))
