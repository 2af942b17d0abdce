"""Build the environment inside, starting from nothing. No other module does this.

Later layers win: the preset, `pass_env` from the host, the policy's `env`, the call's `env`.

    linux      the variables of a new login, and none of the host's
    inherit    the same, and the host's variables that look harmless by the rules below
    empty      no variables
"""

from __future__ import annotations

import os

from ..check import several
from ..errors import PolicyError
from ..hostinfo.secrets import Secret, is_secret
from .plan import Note, Variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import NoReturn

    from .identity import Identity

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: Set in every sandbox, except with the preset `empty`.
INSIDE = "STADDLE_SANDBOX"
PRESETS = ("linux", "inherit", "empty")

#: `inherit` leaves out secrets. It also leaves out names with these words ...
NOT_INHERITED_WORDS = frozenset(
    {"ACCESS", "BEARER", "CERT", "CRED", "CREDS", "DSN", "JWT", "LICENSE", "LOGIN", "OAUTH", "OTP", "PIN"}
    | {"PWD", "SALT", "SESSION", "SIGNATURE", "SIGNING", "SOCK", "WEBHOOK"}
)
#: ... names with these prefixes, which make programs load or run something ...
NOT_INHERITED_PREFIXES = ("BASH_FUNC_", "DBUS_", "DYLD_", "GIT_", "LD_", "SSH_", "STADDLE_", "SUDO_", "XDG_")
#: ... and these names, which describe the user's place on the host or give access to it.
NOT_INHERITED = frozenset(
    {"BASH_ENV", "CDPATH", "DISPLAY", "DOCKER_HOST", "ENV", "HISTFILE", "HOME", "HOSTNAME", "IFS", "LOGNAME"}
    | {"MAIL", "NODE_OPTIONS", "OLDPWD", "PATH", "PERL5LIB", "PERL5OPT", "PROMPT_COMMAND", "PS1", "PS4"}
    | {"PWD", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "RUBYOPT", "SHELL", "SHLVL", "STY", "TEMP"}
    | {"TMP", "TMPDIR", "TMUX", "USER", "USERNAME", "VIRTUAL_ENV", "WAYLAND_DISPLAY", "XAUTHORITY", "_"}
)


class Environment(dict[str, str]):
    """Immutable variables. The repr hides secrets."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __eq__(self, other: object) -> bool:
        # A Secret equals its text, but policies that hide different values are not equal.
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
    """Return the variables if all names and values are valid, else raise PolicyError."""
    if not hasattr(variables, "items"):
        raise PolicyError(
            f"{field} is {variables!r}", why="it is not a mapping", fix='write {"NAME": "value"}'
        )
    pairs: dict[str, str] = {}
    for name, value in variables.items():
        pairs[checked_name(name, field)] = _checked_value(name, value, field)
    return Environment(pairs)


def checked_names(names: object, field: str = "pass_env") -> tuple[str, ...]:
    """Return the names of variables in `field`: checked, sorted, without duplicates."""
    return tuple(sorted({checked_name(name, field) for name in several(names, field)}))


def checked_name(name: object, field: str) -> str:
    """Return `name` if it is a valid name of a variable."""
    if not isinstance(name, str):
        why = "it is not text"
    elif not name:
        why = "it is empty"
    elif "=" in name or "\0" in name:
        why = "a name cannot contain '=' or NUL"
    elif not is_encodable(name):
        why = "it has characters that cannot be passed to a program"
    else:
        return name
    raise PolicyError(
        f"{field} names a variable {name!r}", why=why, fix="use letters, digits and underscores"
    )


def is_inherited(name: str, value: str) -> bool:
    """Whether the preset `inherit` passes this variable of the host."""
    upper = name.upper()
    if upper in NOT_INHERITED or upper.startswith(NOT_INHERITED_PREFIXES) or is_secret(name, value):
        return False
    if not NOT_INHERITED_WORDS.isdisjoint(upper.replace("-", "_").split("_")):
        return False
    # Drop variables that cannot be set, or that a shell would run as a function.
    return bool(name) and is_encodable(name + value) and not value.startswith("() {")


def checked_preset(preset: object) -> str:
    """Return `preset` if it exists."""
    if preset not in PRESETS:
        raise PolicyError(
            f"there is no environment {preset!r}",
            fix=f"choose one of {', '.join(PRESETS)}",
            why="variables begin in one of three ways",
        )
    return str(preset)


def is_locale(name: str) -> bool:
    """Whether a variable sets the language of programs."""
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
    """Return all variables inside, sorted by name, and notes about `pass_env` names that the host lacks.

    The PATH has `search` first, then the usual directories, then `behind`. `layers` are (origin, variables);
    later layers win. `secret` names variables whose values are secrets.
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
        defaults.pop("LC_ALL", None)  # it would override the chosen locale
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
        why = f"its value is {type(value).__name__}, not text"  # not shown, it may be a secret
    elif "\0" in value:
        why = "its value has a NUL in it"
    elif not is_encodable(value):
        why = "its value has characters that cannot be passed to a program"
    else:
        return value
    raise PolicyError(f"{field} cannot set {name!r}", why=why, fix="give text that a program can be passed")


def is_encodable(text: str) -> bool:
    """Whether a program can be passed `text`."""
    try:
        os.fsencode(text)
    except UnicodeError:
        return False
    return True
