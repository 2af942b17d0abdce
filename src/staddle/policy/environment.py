"""The one place that builds the environment inside. It starts from nothing.

Later ones win: the defaults, `pass_env` from the host, the policy's `env`, the call's `env`.
"""

from __future__ import annotations

import os

from ..errors import PolicyError
from .paths import several
from .plan import Note, Variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import NoReturn

    from .plan import Identity

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: A variable is a secret when one of these is a word of its name...
SECRET_WORDS = frozenset({"AUTH", "COOKIE", "KEY", "PASS", "PASSPHRASE", "PAT", "PRIVATE"})
#: ... or any of these is a part of it ...
SECRET_PARTS = ("APIKEY", "CREDENTIAL", "PASSWD", "PASSWORD", "SECRET", "TOKEN")
#: ... and these are, whatever their words.
SECRET_NAMES = frozenset({"MYSQL_PWD"})


class Environment(dict[str, str]):
    """Variables that cannot change; secrets do not show in its repr."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __repr__(self) -> str:
        pairs = ((name, "(hidden)" if is_secret(name, self[name]) else self[name]) for name in sorted(self))
        return f"{{{', '.join(f'{name!r}: {value!r}' for name, value in pairs)}}}"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (dict(self),)

    def _frozen(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("the environment of a policy is frozen; use policy.with_env(NAME='value')")

    __setitem__ = __delitem__ = __ior__ = _frozen
    clear = pop = popitem = setdefault = update = _frozen


def checked(variables: object, field: str = "env") -> Environment:
    """The variables, each name and value possible, or PolicyError."""
    if not hasattr(variables, "items"):
        raise PolicyError(
            f"{field} is {variables!r}", why="it is not a mapping", fix='write {"NAME": "value"}'
        )
    pairs: dict[str, str] = {}
    for name, value in variables.items():
        pairs[checked_name(name, field)] = _checked_value(name, value, field)
    return Environment(pairs)


def checked_names(names: object) -> tuple[str, ...]:
    """The names of `pass_env`: checked, sorted, each once."""
    return tuple(sorted({checked_name(name, "pass_env") for name in several(names, "pass_env")}))


def checked_name(name: object, field: str) -> str:
    """`name`, if a variable can be called so."""
    if not isinstance(name, str):
        why = "it is not text"
    elif not name:
        why = "it is empty"
    elif "=" in name or "\0" in name:
        why = "a name cannot hold '=' or NUL"
    elif not _encodable(name):
        why = "it has characters that cannot be passed to a program"
    else:
        return name
    raise PolicyError(f"{field} names a variable {name!r}", why=why)


def is_secret(name: str, value: str = "") -> bool:
    """Whether a variable looks like one whose value should not be shown."""
    upper = name.upper()
    if upper in SECRET_NAMES or any(part in upper for part in SECRET_PARTS):
        return True
    if not SECRET_WORDS.isdisjoint(upper.replace("-", "_").split("_")):
        return True
    # postgres://user:password@host
    scheme, found, rest = value.partition("://")
    return bool(found) and " " not in scheme and "@" in rest.partition("/")[0]


def build(
    identity: Identity,
    shell: str,
    search: Iterable[str],
    host: Mapping[str, str],
    pass_env: Iterable[str],
    *layers: tuple[str, Mapping[str, str]],
) -> tuple[tuple[Variable, ...], list[Note]]:
    """Every variable inside, sorted by name, and what was asked for but is not set on the host.

    `search` comes before the usual PATH; `layers` are (origin, variables), later ones win.
    """
    defaults = {
        "HOME": identity.home,
        "LANG": "C.UTF-8",
        "LOGNAME": identity.user,
        "PATH": ":".join([*search, PATH]),
        "SHELL": shell,
        "TERM": "xterm-256color",
        "TMPDIR": "/tmp",
        "USER": identity.user,
    }
    passed: dict[str, str] = {}
    notes = []
    for name in pass_env:
        if name in host:
            passed[name] = host[name]
        else:
            notes.append(
                Note(f"{name} is not set on the host, so it is not set inside", f"pass_env {name!r}")
            )
    found: dict[str, Variable] = {}
    for origin, layer in (("default", defaults), ("pass_env", passed), *layers):
        for name, value in layer.items():
            found[name] = Variable(name, value, origin, is_secret(name, value))
    return tuple(found[name] for name in sorted(found)), notes


def _checked_value(name: object, value: object, field: str) -> str:
    if not isinstance(value, str):
        why = f"its value is {type(value).__name__}, not text"  # not shown: it may be a secret
    elif "\0" in value:
        why = "its value has a NUL in it"
    elif not _encodable(value):
        why = "its value has characters that cannot be passed to a program"
    else:
        return value
    raise PolicyError(f"{field} cannot set {name!r}", why=why)


def _encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeError:
        return False
    return True
