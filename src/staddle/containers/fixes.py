"""Settings of a host that refuse user namespaces, and the files that allow them. By root, after being shown.

`fixes` is pure. `apply` writes one file and runs the one program that makes it hold now.
"""

from __future__ import annotations

import os

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..linux.userns import UsernsFacts

_SYSCTL = "/etc/sysctl.d/60-staddle.conf"
_APPARMOR = "/etc/apparmor.d/staddle"
_PARSER = "apparmor_parser"
#: Where programs of root's are, also for an ordinary user who asks what root would do.
_PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class Fix(Value):
    """One change of the host: `path` gets `content`, `command` makes it hold.

    `why` is what it lifts, `whom` the programs that have user namespaces then.
    """

    why: str
    whom: str
    path: str
    content: str
    command: tuple[str, ...]


def fixes(facts: UsernsFacts, interpreter: str, *, has_parser: bool = True) -> tuple[Fix, ...]:
    """The changes that would let ordinary users make user namespaces here, if settings refuse them.

    `interpreter` is the program that staddle runs in: AppArmor knows programs by their path. Without
    AppArmor's parser no profile can be loaded, and what it refuses is allowed for every program.
    """
    found = []
    settings, why = {}, []
    if facts.userns_clone == "0":
        settings["kernel.unprivileged_userns_clone"] = "1"
        why.append("kernel.unprivileged_userns_clone is 0")
    if facts.maximum == "0":
        settings["user.max_user_namespaces"] = "15000"
        why.append("user.max_user_namespaces is 0")
    is_restricted = facts.apparmor not in (None, "0")
    if is_restricted and not has_parser:
        settings["kernel.apparmor_restrict_unprivileged_userns"] = "0"
        why.append("kernel.apparmor_restrict_unprivileged_userns is 1, and apparmor_parser is not installed")
    if settings:
        found.append(
            Fix(
                ", ".join(why),
                "every program",
                _SYSCTL,
                "".join(f"{name} = {value}\n" for name, value in settings.items()),
                ("sysctl", "--quiet", "--load", _SYSCTL),
            )
        )
    if is_restricted and has_parser:
        found.append(
            Fix(
                "kernel.apparmor_restrict_unprivileged_userns is 1",
                "every program that this Python runs",
                _APPARMOR,
                _profile(interpreter),
                (_PARSER, "--replace", _APPARMOR),
            )
        )
    return tuple(found)


def _profile(interpreter: str) -> str:
    """Every program that this interpreter runs may make user namespaces; nothing else is changed for it."""
    return (
        "# User namespaces for staddle: for every program that this interpreter runs.\n"
        "abi <abi/4.0>,\n"
        "include <tunables/global>\n"
        "\n"
        f'profile staddle "{interpreter}" flags=(unconfined) {{\n'
        "  userns,\n"
        "  include if exists <local/staddle>\n"
        "}\n"
    )


def here() -> tuple[Fix, ...]:
    """The changes for this host and this interpreter."""
    import shutil
    import sys

    from ..linux.userns import observe

    has_parser = shutil.which(_PARSER, path=_PLACES) is not None
    return fixes(observe(), os.path.realpath(sys.executable), has_parser=has_parser)


def apply(fix: Fix) -> str:
    """Carry it out; empty, or what went wrong. The file is replaced as a whole."""
    import subprocess

    half = f"{fix.path}.staddle-{os.getpid()}"
    try:
        with open(half, "x", encoding="utf-8") as file:
            file.write(fix.content)
        os.chmod(half, 0o644)
        os.replace(half, fix.path)
        env = {**os.environ, "PATH": _PLACES}
        done = subprocess.run(fix.command, env=env, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        try:
            os.unlink(half)
        except OSError:
            pass
        return str(error)
    return done.stderr.strip() or f"{fix.command[0]} failed" if done.returncode else ""
