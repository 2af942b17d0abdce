"""The one place that builds the environment inside. It starts from nothing.

Later ones win: the preset, `pass_env` from the host, the policy's `env`, the call's `env`.

    linux      what a new login would have, and nothing of the host's
    inherit    the same, and the host's variables that look harmless by the rules below
    empty      nothing at all
"""

from __future__ import annotations

import os

from ..errors import PolicyError
from .paths import several
from .plan import Note, Variable
from .secrets import Secret, is_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import NoReturn

    from .identity import Identity

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: Set in every sandbox that has variables at all.
INSIDE = "STADDLE_SANDBOX"
PRESETS = ("linux", "inherit", "empty")

#: `inherit` leaves out secrets, and, more careful than what hides them in a report, these words of a name...
NOT_INHERITED_WORDS = frozenset(
    {"ACCESS", "BEARER", "CERT", "CRED", "CREDS", "DSN", "JWT", "LICENSE", "LOGIN", "OAUTH", "OTP", "PIN"}
    | {"PWD", "SALT", "SESSION", "SIGNATURE", "SIGNING", "SOCK", "WEBHOOK"}
)
#: ... names that begin so: they tell programs what to load or run first ...
NOT_INHERITED_PREFIXES = ("BASH_FUNC_", "DBUS_", "DYLD_", "GIT_", "LD_", "SSH_", "STADDLE_", "SUDO_", "XDG_")
#: ... and these, which say who and where the user is on the host, or give access there.
NOT_INHERITED = frozenset(
    {"BASH_ENV", "CDPATH", "DISPLAY", "DOCKER_HOST", "ENV", "HISTFILE", "HOME", "HOSTNAME", "IFS", "LOGNAME"}
    | {"MAIL", "NODE_OPTIONS", "OLDPWD", "PATH", "PERL5LIB", "PERL5OPT", "PROMPT_COMMAND", "PS1", "PS4"}
    | {"PWD", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "RUBYOPT", "SHELL", "SHLVL", "STY", "TEMP"}
    | {"TMP", "TMPDIR", "TMUX", "USER", "USERNAME", "VIRTUAL_ENV", "WAYLAND_DISPLAY", "XAUTHORITY", "_"}
)


class Environment(dict[str, str]):
    """Variables that cannot change; secrets do not show in its repr."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __eq__(self, other: object) -> bool:
        # A Secret equals its text. Policies that hide different values are different ones.
        same = dict.__eq__(self, other)
        return same and self._secrets() == other._secrets() if isinstance(other, Environment) else same

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _secrets(self) -> list[str]:
        return sorted(name for name, value in self.items() if isinstance(value, Secret))

    def __repr__(self) -> str:
        pairs = ((name, "(hidden)" if _is_hidden(name, self[name]) else self[name]) for name in sorted(self))
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


def checked_names(names: object, field: str = "pass_env") -> tuple[str, ...]:
    """The names of variables in `field`: checked, sorted, each once."""
    return tuple(sorted({checked_name(name, field) for name in several(names, field)}))


def checked_name(name: object, field: str) -> str:
    """`name`, if a variable can be called so."""
    if not isinstance(name, str):
        why = "it is not text"
    elif not name:
        why = "it is empty"
    elif "=" in name or "\0" in name:
        why = "a name cannot contain '=' or NUL"
    elif not _encodable(name):
        why = "it has characters that cannot be passed to a program"
    else:
        return name
    raise PolicyError(
        f"{field} names a variable {name!r}", why=why, fix="use letters, digits and underscores"
    )


def is_inherited(name: str, value: str) -> bool:
    """Whether the preset `inherit` passes a variable of the host on."""
    upper = name.upper()
    if upper in NOT_INHERITED or upper.startswith(NOT_INHERITED_PREFIXES) or is_secret(name, value):
        return False
    if not NOT_INHERITED_WORDS.isdisjoint(upper.replace("-", "_").split("_")):
        return False
    # One that cannot be set, or that a shell would run as a function, is not a setting.
    return bool(name) and _encodable(name + value) and not value.startswith("() {")


def checked_preset(preset: object) -> str:
    """`preset`, if there is one of that name."""
    if preset not in PRESETS:
        raise PolicyError(
            f"there is no environment {preset!r}",
            fix=f"choose one of {', '.join(PRESETS)}",
            why="variables begin in one of three ways",
        )
    return str(preset)


def is_locale(name: str) -> bool:
    """Whether a variable says something about the language of programs."""
    return name in ("LANG", "LANGUAGE") or name.startswith("LC_")


def build(
    identity: Identity,
    shell: str,
    search: Iterable[str],
    host: Mapping[str, str],
    pass_env: Iterable[str],
    *layers: tuple[str, Mapping[str, str]],
    preset: str = "linux",
    behind: Iterable[str] = (),
    secret: Iterable[str] = (),
) -> tuple[tuple[Variable, ...], list[Note]]:
    """Every variable inside, sorted by name, and what was asked for but is not set on the host.

    `search` comes before the usual PATH and `behind` after it; `layers` are (origin, variables), later
    ones win. The values of the variables that `secret` names are secrets.
    """
    inherited: dict[str, str] = {}
    if preset == "inherit":
        inherited = {name: value for name, value in host.items() if is_inherited(name, value)}
    defaults = {
        "HOME": identity.home,
        "HOSTNAME": identity.host,
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "LOGNAME": identity.user,
        "PATH": ":".join([*search, PATH, *behind]),
        "SHELL": shell,
        INSIDE: "1",
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
    if preset == "empty":
        defaults = {}
    if any(
        is_locale(name) for layer in (inherited, passed, *(layer for _, layer in layers)) for name in layer
    ):
        defaults.pop("LC_ALL", None)  # it would win over what was asked for
    for origin, layer in (("default", defaults), ("inherit", inherited), ("pass_env", passed), *layers):
        for name, value in layer.items():
            found[name] = Variable(name, value, origin, _is_hidden(name, value))
    for name in secret:
        if name in found:
            found[name] = found[name].replace(value=Secret(found[name].value), secret=True)
    return tuple(found[name] for name in sorted(found)), notes


def _is_hidden(name: str, value: str) -> bool:
    return isinstance(value, Secret) or is_secret(name, value)


def _checked_value(name: object, value: object, field: str) -> str:
    if not isinstance(value, str):
        why = f"its value is {type(value).__name__}, not text"  # not shown: it may be a secret
    elif "\0" in value:
        why = "its value has a NUL in it"
    elif not _encodable(value):
        why = "its value has characters that cannot be passed to a program"
    else:
        return value
    raise PolicyError(f"{field} cannot set {name!r}", why=why, fix="give text that a program can be passed")


def _encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeError:
        return False
    return True
