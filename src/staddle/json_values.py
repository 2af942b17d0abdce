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
from json.encoder import encode_basestring_ascii as quoted
from operator import itemgetter

from . import errors
from ._value import Value
from .errors import InvalidCall, StaddleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    from .sandbox.result import Result

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


def _writer() -> Callable[[Any], str]:
    """Return a function that writes the shortest JSON. Made once, and not for each call as by `json`."""
    encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)
    try:
        pieces = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
            None, encoder.default, quoted, None, ":", ",", False, False, True
        )
    except TypeError:  # another Python, or one without it
        return encoder.encode
    return lambda data: "".join(pieces(data, 0))


#: Return data as the shortest JSON.
write_json = _writer()
_decoder = json.JSONDecoder()
_scan: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once  # type: ignore[attr-defined]


def read_json(text: str) -> Any:
    """Return text of JSON as data. Raises ValueError."""
    try:
        found, end = _scan(text, 0)
    except StopIteration:
        end = -1
    return found if end == len(text) else _decoder.decode(text)  # there is space around it, or an error


@cache
def type_named(name: str) -> Any:
    """Return the type with this name."""
    return getattr(__import__(f"staddle.{_HOME[name]}", fromlist=[name]), name)


def encode(value: object) -> Any:
    """Return `value` as data for JSON. Raises TypeError for what does not travel."""
    if type(value) in _PLAIN_TYPES:
        return value
    if isinstance(value, str):
        kind = type(value).__name__
        return {"$": kind, "text": str.__str__(value)} if kind in ("Secret", "Reason") else str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$": "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, Value) or type(value).__name__ == "CellResult":
        return _of_value(value)
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


def _of_value(value: Any) -> dict[str, Any]:
    kind = type(value).__name__
    if kind not in _HOME:
        raise TypeError(f"{kind} cannot be sent")
    found: dict[str, Any] = {"$": kind}
    for name in value._fields if isinstance(value, Value) else tuple(value.__dict__):
        item = getattr(value, name)
        if type(item) in _PLAIN_TYPES:
            found[name] = item
        elif isinstance(item, tuple):
            found[name] = [encode(each) for each in item]
        elif isinstance(item, list):  # a list among the fields of a value is rare: it says that it is one
            found[name] = {"$": "list", "items": [encode(each) for each in item]}
        else:
            found[name] = encode(item)
    return found


@cache
def _row() -> tuple[type[Value], type[Value], Callable[[str], object], dict[str, Any], Any, Any]:
    """Return the types in a row, its last fields with their usual values, and what gets fields as tuples."""
    result, usage, reason = map(type_named, ("Result", "Usage", "Reason"))
    usual = {"signal": None, "shell_exited": False, **result._defaults}
    return result, usage, reason, usual, itemgetter(*usual), itemgetter(*usage._fields)


def write_result(result: Result) -> str:
    """Return a result as a row of JSON, for `read_result`. Of the output it has the sizes."""
    of, (_, _, _, usual, last, used) = result.__dict__, _row()
    command, others, usage = of["command"], last(of), str([*used(of["usage"].__dict__)])
    if others == (*usual.values(),):
        rest = "{}"
    else:
        names = zip(usual.items(), others, strict=True)
        rest = write_json({name: encode(item) for (name, default), item in names if item != default})
    return '[%s,%d,%d,%d,%r,"%s",%s,%s,%s]' % (  # noqa: UP031 - every command waits for it
        quoted(command) if isinstance(command, str) else write_json(encode(list(command))),
        of["exit_code"],
        len(of["stdout_bytes"]),
        len(of["stderr_bytes"]),
        of["duration"],
        of["reason"],
        quoted(of["cwd"]),
        usage.replace("None", "null").replace("True", "true").replace("False", "false"),
        rest,
    )


def read_result(row: Any, output: bytes) -> Any:
    """Return the result that `write_result` has described; `output` is its stdout and stderr."""
    result, usage_of, reason_of, usual, _, _ = _row()
    try:
        command, exit_code, size, _, duration, reason, cwd, usage, rest = row
        made = result.__new__(result)  # ours, and checked when it was made
        made.__dict__.update(
            usual,
            command=command if type(command) is str else tuple(command),
            exit_code=exit_code,
            stdout_bytes=output[:size],
            stderr_bytes=output[size:],
            duration=duration,
            reason=reason_of(reason),
            cwd=cwd,
            usage=usage_of(*usage),
            **(decode(rest) if rest else rest),
        )
    except (TypeError, ValueError) as error:
        raise InvalidCall("the result cannot be read", why=str(error)[:200], fix="update staddle") from None
    return made


def decode(data: Any, *, only: Collection[str] | None = None, depth: int = 0) -> Any:
    """Return the value that `encode` has described. Raises InvalidCall for anything else."""
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
        return _decoded(kind, data, only, depth + 1)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidCall(
            f"{kind!r} cannot be read", why=str(error)[:200], fix="send all its fields"
        ) from None


def _decoded(kind: Any, data: dict[str, Any], only: Collection[str] | None, depth: int) -> Any:
    if kind == "bytes":
        return base64.b64decode(data["base64"], validate=True)
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
        else decode(item, only=only, depth=depth)
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
