"""The policy file: TOML whose keys are the fields of Policy.

    preset = "agent"                     # the default; "none" is an empty policy
    read = ["${WORKSPACE}", "/opt/data"]
    write = ["${WORKSPACE}/out"]
    deny = ["${HOME}/private"]
    gpu = ["nvidia:0"]                   # or ["all"]; devices = ["/dev/kvm"] for other devices

    [network]
    allow = ["api.example.com:443"]      # or mode = "deny" | "open" | "loopback" (with ports) | "packages"

    http = ["GET api.github.com/repos/**"]    # only these requests; the host is allowed with them
    http_limits = [{host = "api.example.com", requests = 1000, bytes = "1G", rate = 60}]

    [[secrets]]                          # stays outside: inside, the variable has a placeholder
    name = "GITHUB_TOKEN"
    source = "env:GITHUB_TOKEN"          # or "file:/path", "command:pass show github"
    hosts = ["api.github.com"]

    [limits]
    memory = "1G"

    [identity]
    user = "ada"

    [env]
    CI = "1"

    [rules]
    deny = ["git push"]                  # advice to the agent: see command_rules

staddle never searches for a policy file; the caller names its path. It refuses a file that a sandbox could
have changed, because then the agent would decide about its own policy. So in a workspace only the protected
name PROJECT_FILE at its top is possible.
"""

from __future__ import annotations

import os
import stat

from ..errors import PolicyError
from ..hostinfo.resolution import HostPaths, PathContext
from ..linux.fileio import current_directory
from ..paths import declared, upward
from .http_rules import HttpLimit
from .identity import Identity
from .limits import Limits
from .network import MODES, Network

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Protocol, TypeVar

    from ..command_rules.rules import CommandRules
    from ..paths import AnyPath
    from .egress_secret import EgressSecret

    class Grants(Protocol):
        """The part of a policy that this module uses."""

        @property
        def write(self) -> tuple[str, ...]: ...
        def _set(self, name: str, value: object) -> None: ...

    Made = TypeVar("Made", bound=Grants)

LARGEST_FILE = 256 << 10
#: Limits for dots in a line, nested brackets, and the length of a word or number. The parser needs quadratic
#: time for dots, and Python cannot print a number with thousands of digits.
MOST_DOTS, MOST_NESTED, LONGEST_WORD = 16, 16, 256
#: A project's policy file. Its name is protected: no sandbox writes it, and no commit changes it.
PROJECT_FILE = "staddle.toml"
#: The placeholders, and how to set each.
_SET = {
    "WORKSPACE": "load the file with a workspace",
    "HOME": "set HOME to an absolute path",
    "TMPDIR": "set TMPDIR to an absolute path",
}
_PATHS = ("read", "write", "deny", "sockets")
_LISTS = (*_PATHS, "pass_env", "unprotect", "gpu", "devices")
_KEYS: dict[str, type] = {
    **dict.fromkeys(_LISTS, list),
    "preset": str,
    "home": str,
    "identity": dict,
    "environment": str,
    "base": str,
    "system": bool,
    "toolchains": bool,
    "sudo": bool,
    "world": str,
    "nested": bool,
    "network": dict,
    "limits": dict,
    "env": dict,
    "rules": dict,
    "redact": object,
    "secrets": list,
    "package_cache": bool,
}
#: Keys that a project's file may set. The file comes with the project, so it may only narrow a policy.
_NARROWS = ("deny", "env", "identity", "rules")
_NARROWS_BY = {
    "preset": ("agent",),
    "environment": ("linux", "empty"),
    "network": ({"mode": "deny"},),
    **dict.fromkeys(("sudo", "system", "toolchains", "nested", "package_cache"), (False,)),
    "redact": (True,),
}
#: Without the limits that protect the host by default.
_NARROWING_LIMITS = {"timeout", "cpu", "output", "file_size", "open_files", "max_lifetime", "idle"}
#: The limits that a policy file may set.
_LIMITS = tuple(name for name in Limits._fields if name != "defaults")
_TYPES = {list: "a list", str: "text", bool: "true or false", dict: "a table"}


def load(make: Callable[..., Made], path: AnyPath, workspace: AnyPath | None) -> Made:
    """Return `make(**fields)` for the file at `path`. A PolicyError names the file and the key."""
    name = _checked(path)
    here = current_directory() or "/"  # opening a relative path then fails with an error
    host = HostPaths()
    place = host.walk(here, name)
    root = None if workspace is None else PathContext(declared(workspace, "workspace")).cwd
    where = (place.path, *(link for link, _ in place.links))
    if place.kind == "missing":
        raise PolicyError(
            f"there is no policy file {name!r}",
            why=f"nothing is at {place.path!r}",
            fix="name one that exists",
        )
    top = None if root is None else host.find(root).path
    is_projects = top is not None and where == (os.path.join(top, PROJECT_FILE),)
    if top is not None and not is_projects:
        why = f"it lies in the workspace {root!r} and is not its {PROJECT_FILE}"
        _refuse_beneath(where, top, name, why)
    data = _parsed(_content(name, place.path, is_projects=is_projects), name)
    if is_projects:
        _refuse_wider(data, name)
    values = {"WORKSPACE": root, "HOME": os.environ.get("HOME"), "TMPDIR": os.environ.get("TMPDIR", "/tmp")}
    policy = _policy(make, data, name, values)
    context = PathContext(root or here)
    for written in policy.write:
        # `compile` checks again, when the directory for relative paths is known.
        granted = host.find(context.at(written)).path
        _refuse_beneath(where, granted, name, f"it may be written: write grants {written!r}")
    policy._set("_source", where)
    return policy


def from_installation(make: Callable[..., Made], defaults: Mapping[str, Any], name: str) -> Made:
    """Return `make(**fields)` for the defaults of an installation, stored at `name`."""
    values = {"WORKSPACE": None, "HOME": os.environ.get("HOME"), "TMPDIR": os.environ.get("TMPDIR", "/tmp")}
    return _policy(make, defaults, name, values)


def from_data(make: Callable[..., Made], data: Mapping[str, Any], workspace: AnyPath | None) -> Made:
    """Return `make(**fields)` for the keys of a policy file."""
    root = None if workspace is None else PathContext(declared(workspace, "workspace")).cwd
    values = {"WORKSPACE": root, "HOME": os.environ.get("HOME"), "TMPDIR": os.environ.get("TMPDIR", "/tmp")}
    return _policy(make, data, "in the request", values)


def _checked(path: object) -> str:
    try:
        name = os.fsdecode(path)  # type: ignore[arg-type]
    except TypeError:
        raise PolicyError(
            f"{path!r} is not the path of a policy file",
            fix="give text or a pathlib path",
            why="a path is text",
        ) from None
    if not name or "\0" in name:
        raise PolicyError(
            f"{name!r} is not the path of a policy file",
            why="it is empty or has a NUL in it",
            fix="give the path of a TOML file",
        )
    return name


def _refuse_beneath(where: Iterable[str], root: str, name: str, why: str) -> None:
    if any(root in upward(path) for path in where):
        raise _bad(name, "", f"{why}, so an agent could change it for the next run", "keep it elsewhere")


def _content(name: str, real: str, *, is_projects: bool = False) -> str:
    """Return the text of the file. It is opened once, and the opened file is checked."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise _bad(name, "", f"it cannot be read: {error.strerror}") from None
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _bad(name, "", "it is a directory", "name the file in it")
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise _bad(name, "", "it is not a regular file")
        if not os.path.exists(real) or not os.path.samestat(about, os.stat(real)):
            raise _bad(name, "", "it was replaced while it was being read", "try again")
        if about.st_mode & stat.S_IWOTH:
            raise _bad(name, "", "every user may write it, and so widen the policy", "chmod o-w it")
        if is_projects and (about.st_mode & stat.S_IWGRP or about.st_uid not in (0, os.geteuid())):
            raise _bad(name, "", "another user wrote it, or may", "own it, and chmod g-w it")
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise _bad(name, "", f"it is larger than {LARGEST_FILE >> 10} KiB")
    if content.startswith(b"\xef\xbb\xbf"):
        raise _bad(name, "", "it starts with a byte order mark", "save it as UTF-8 without one")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(name, "", f"byte {error.start} is not UTF-8", "save it as UTF-8") from None
    if not text.strip():
        raise _bad(name, "", "it is empty", 'use at least preset = "agent"')
    return text


def _parsed(text: str, name: str) -> dict[str, Any]:
    import tomllib

    if why := _too_much(text):
        raise _bad(name, "", why, "write it in a simpler way")
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError is one
        raise _bad(name, "", f"it is not TOML: {error}") from None
    except RecursionError:
        raise _bad(name, "", "it is nested too deeply") from None


def _too_much(text: str) -> str:
    """Return the reason why the parser would be slow, or an empty string. Ignores strings and comments."""
    import re

    # No alternative can fail after its first character, so this takes one pass.
    long_strings = r'"""(?:[^"\\]+|\\.?|"(?!""))*(?:"{3,5}|\Z)|\'{3}(?:[^\']+|\'(?!\'\'))*(?:\'{3,5}|\Z)'
    strings = r'"(?:[^"\\\n]+|\\[^\n]?)*"?|\'[^\'\n]*\'?|#[^\n]*'
    bare = re.sub(f"{long_strings}|{strings}", " ", text, flags=re.DOTALL)
    if any(line.count(".") > MOST_DOTS for line in bare.split("\n")):
        return f"a line has more than {MOST_DOTS} dots outside of strings"
    if re.search(rf"[\w+-]{{{LONGEST_WORD + 1}}}", bare):
        return f"a word or number in it is longer than {LONGEST_WORD} characters"
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", bare):
        depth += 1 if bracket in "[{" else -1
        if depth > MOST_NESTED:
            return f"it is nested deeper than {MOST_NESTED}"
    return ""


def _refuse_wider(data: Mapping[str, Any], name: str) -> None:
    """Refuse keys that a project's file may not set. Other code reports invalid keys."""
    for key, value in data.items():
        limits = set(value) & set(_LIMITS) if key == "limits" and isinstance(value, dict) else set()
        wider = key if key in _KEYS and key != "limits" and key not in _NARROWS else ""
        if key in _NARROWS_BY and value in _NARROWS_BY[key]:
            wider = ""
        for limit in sorted(limits - _NARROWING_LIMITS):
            wider = f"limits.{limit}"
        if wider:
            raise _bad(
                name,
                wider,
                "a file in the workspace may narrow the policy, and this could widen it",
                "put it in a policy file outside the workspace, or give an option",
            )


def _policy(
    make: Callable[..., Made], data: Mapping[str, Any], name: str, values: Mapping[str, str | None]
) -> Made:
    fields: dict[str, Any] = {"preset": "agent"}
    for key, value in data.items():
        if key not in _KEYS:
            raise _bad(name, key, "there is no such key", f"known are {', '.join(sorted(_KEYS))}")
        _typed(value, _KEYS[key], name, key)
        try:
            fields[key] = _field(key, value, name, values)
        except PolicyError as error:
            raise (
                error if error.what.startswith("the policy file") else _bad(name, key, str(error))
            ) from None
    try:
        return make(**fields)
    except PolicyError as error:
        raise _bad(name, "", str(error)) from None


def _field(key: str, value: Any, name: str, values: Mapping[str, str | None]) -> Any:
    """Return the value of one key for Policy, with all placeholders replaced."""
    if key in _LISTS:
        items = [_typed(item, str, name, key) for item in value]
        return [_filled(item, values, name, key) for item in items] if key in _PATHS else items
    if key in ("home", "base"):
        return _filled(value, values, name, key)
    if key == "identity":
        return _identity(value, name)
    if key == "env":
        return {
            variable: _filled(_typed(text, str, name, f"env.{variable}"), values, name, f"env.{variable}")
            for variable, text in value.items()
        }
    if key == "network":
        return _network(value, name)
    if key == "rules":
        return _rules(value, name)
    if key == "secrets":
        return [_secret(_typed(entry, dict, name, key), name) for entry in value]
    if key == "redact" and not isinstance(value, bool):
        return [_typed(item, str, name, key) for item in _typed(value, list, name, key)]
    return _limits(value, name) if key == "limits" else value


def _secret(table: Mapping[str, Any], name: str) -> EgressSecret:
    from .egress_secret import EgressSecret

    for key, value in table.items():
        if key not in EgressSecret._fields:
            known = f"known are {', '.join(EgressSecret._fields)}"
            raise _bad(name, f"secrets.{key}", "there is no such key", known)
        kind = {"hosts": list, "in_body": bool}.get(key, str)
        if not isinstance(value, kind):  # not shown: it may be the secret itself
            raise _bad(name, f"secrets.{key}", f"it is not {_TYPES[kind]}")
    if not {"name", "source", "hosts"} <= table.keys():
        raise _bad(name, "secrets", "an entry has a name, a source and hosts")
    return EgressSecret(**{**table, "hosts": tuple(table["hosts"])})


def _network(table: Mapping[str, Any], name: str) -> Network:
    found = _plain_network(table, name)
    limits = []
    for entry in _typed(table.get("http_limits", []), list, name, "network.http_limits"):
        if not {"host"} <= _typed(entry, dict, name, "network.http_limits").keys() <= {*HttpLimit._fields}:
            known = f"an entry has {', '.join(HttpLimit._fields)}"
            raise _bad(name, "network.http_limits", "an entry has other keys, or no host", known)
        limits.append(HttpLimit(**entry))
    return found.with_http_limits(*limits) if limits else found


def _plain_network(table: Mapping[str, Any], name: str) -> Network:
    known = ("mode", "allow", "ports", "dns", "http", "http_limits")
    for key in table:
        if key not in known:
            raise _bad(name, f"network.{key}", "there is no such key", f"known are {', '.join(known)}")

    def listed(key: str) -> list[str]:
        where = f"network.{key}"
        return [_typed(each, str, name, where) for each in _typed(table.get(key, []), list, name, where)]

    is_list = "allow" in table or "http" in table
    mode = _typed(table.get("mode", "allow" if is_list else ""), str, name, "network.mode")
    if mode not in (*MODES, "packages"):
        raise _bad(name, "network.mode", f"it is {mode!r}", f"use one of {', '.join(MODES)}, packages")
    dns, http = listed("dns"), listed("http")
    for key, found in (("dns", dns), ("http", http)):
        if found and mode not in ("allow", "packages"):
            raise _bad(
                name, f"network.{key}", 'it goes with mode = "allow" or "packages" only', "leave it out"
            )
    if mode == "packages":
        packages = Network.packages(*listed("allow"), dns=dns)
        return packages.with_http(*http) if http else packages
    if ("allow" in table and mode != "allow") or (mode == "allow" and not is_list):
        raise _bad(name, "network.allow", 'it goes with mode = "allow", and only with that', "")
    if "ports" in table and mode != "loopback":
        raise _bad(name, "network.ports", 'it goes with mode = "loopback" only')
    if mode == "allow":
        return Network.allow(*listed("allow"), dns=dns, http=http)
    if mode == "loopback":
        return Network.loopback(_typed(table.get("ports", []), list, name, "network.ports"))
    return Network.open() if mode == "open" else Network.deny()


def _identity(table: Mapping[str, Any], name: str) -> Identity:
    for key, value in table.items():
        if key not in Identity._fields:
            known = f"known are {', '.join(Identity._fields)}"
            raise _bad(name, f"identity.{key}", "there is no such key", known)
        if key not in ("uid", "gid"):
            _typed(value, str, name, f"identity.{key}")
    return Identity(**table)


def _rules(table: Mapping[str, Any], name: str) -> CommandRules:
    from ..command_rules.rules import CommandRules, Rule

    known = ("allow", "deny", "ready_made", "unknown")
    for key in table:
        if key not in known:
            raise _bad(name, f"rules.{key}", "there is no such key", f"known are {', '.join(known)}")

    def entries(key: str) -> list[Rule]:
        where, found = f"rules.{key}", []
        for entry in _typed(table.get(key, []), list, name, where):
            words = {"command": entry} if isinstance(entry, str) else _typed(entry, dict, name, where)
            if "command" not in words or not words.keys() <= set(Rule._fields):
                raise _bad(name, where, f"{entry!r} is not a rule", f"a rule has {', '.join(Rule._fields)}")
            found.append(Rule(**words))
        return found

    kinds = _typed(table.get("ready_made", []), list, name, "rules.ready_made")
    ready = Rule.ready_made(*(_typed(kind, str, name, "rules.ready_made") for kind in kinds))
    # Rules of the file come first, because they may have an owner.
    allow = entries("allow") if "allow" in table else None
    return CommandRules([*entries("deny"), *ready], allow, table.get("unknown", "refuse"))


def _limits(table: Mapping[str, Any], name: str) -> Limits:
    for key, value in table.items():
        if key not in _LIMITS:
            raise _bad(name, f"limits.{key}", "there is no such limit", f"known are {', '.join(_LIMITS)}")
        try:
            Limits.none(**{key: value if value != "none" else None})
        except PolicyError as error:
            raise _bad(name, f"limits.{key}", str(error)) from None
    # TOML has no null: "none" removes a default limit.
    said: dict[str, Any] = {key: None if value == "none" else value for key, value in table.items()}
    return Limits(**said)


def _filled(text: str, values: Mapping[str, str | None], name: str, key: str) -> str:
    """Return `text` with ${NAME} replaced. `$$` is a dollar sign; a lone `$` is an error."""
    out = []
    rest = text
    while "$" in rest:
        before, _, rest = rest.partition("$")
        out.append(before)
        if rest.startswith("$"):
            out.append("$")
            rest = rest[1:]
            continue
        word, closed, after = rest[1:].partition("}")
        if not rest.startswith("{") or not closed:
            raise _bad(
                name, key, f"there is a lone '$' in {text!r}", "write ${HOME}, or $$ for a dollar sign"
            )
        if word not in values:
            known = ", ".join(f"${{{placeholder}}}" for placeholder in values)
            raise _bad(name, key, f"there is no placeholder ${{{word}}}", f"known are {known}")
        value = values[word]
        if not value or not os.path.isabs(value):
            state = "not known here" if value is None else f"{value!r}, which is not an absolute path"
            raise _bad(name, key, f"${{{word}}} is {state}", _SET[word])
        out.append(value)
        rest = after
    return "".join([*out, rest])


def _typed(value: Any, expected: type, name: str, key: str) -> Any:
    if not isinstance(value, expected):
        raise _bad(name, key, f"it is {value!r}, not {_TYPES[expected]}")
    return value


def _bad(name: str, key: str, why: str, fix: str = "") -> PolicyError:
    where = f" at {key}" if key else ""
    return PolicyError(
        f"the policy file {name!r} is refused{where}",
        why=why,
        fix=fix or "correct the file; `staddle docs policy-file` lists the keys",
    )
