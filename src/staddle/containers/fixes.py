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


class Fix(Value):
    """One change of the host: `path` gets `content`, `command` makes it hold. `why` is what it lifts."""

    why: str
    path: str
    content: str
    command: tuple[str, ...]


def fixes(facts: UsernsFacts, interpreter: str) -> tuple[Fix, ...]:
    """The changes that would let ordinary users make user namespaces here, if settings refuse them.

    `interpreter` is the program that staddle runs in: AppArmor knows programs by their path.
    """
    found = []
    settings = {}
    if facts.userns_clone == "0":
        settings["kernel.unprivileged_userns_clone"] = "1"
    if facts.maximum == "0":
        settings["user.max_user_namespaces"] = "15000"
    if settings:
        found.append(
            Fix(
                f"{' and '.join(settings)} {'are' if len(settings) > 1 else 'is'} 0",
                _SYSCTL,
                "".join(f"{name} = {value}\n" for name, value in settings.items()),
                ("sysctl", "--quiet", "--load", _SYSCTL),
            )
        )
    if facts.apparmor not in (None, "0"):
        found.append(
            Fix(
                "kernel.apparmor_restrict_unprivileged_userns is 1",
                _APPARMOR,
                _profile(interpreter),
                ("apparmor_parser", "--replace", _APPARMOR),
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
    import sys

    from ..linux.userns import observe

    return fixes(observe(), os.path.realpath(sys.executable))


def apply(fix: Fix) -> str:
    """Carry it out; empty, or what went wrong. The file is replaced as a whole."""
    import subprocess

    half = f"{fix.path}.staddle-{os.getpid()}"
    try:
        with open(half, "x", encoding="utf-8") as file:
            file.write(fix.content)
        os.chmod(half, 0o644)
        os.replace(half, fix.path)
        done = subprocess.run(fix.command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        try:
            os.unlink(half)
        except OSError:
            pass
        return str(error)
    return done.stderr.strip() or f"{fix.command[0]} failed" if done.returncode else ""
