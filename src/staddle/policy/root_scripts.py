"""The scripts `sudo` and `su` of a session: they ask the agent to run their command as the sandbox's root."""

from __future__ import annotations

from .plan import Text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .plan import Plan

ORIGIN = "sudo"
#: See inside.agent.sudo, which takes arguments, variables and streams from the process itself.
_SCRIPT = b"""\
#!/bin/sh
# Runs a command as the root of this sandbox, which its first process starts. Asks for no password.
if [ ! -p /dev/.staddle/sudo ]; then
    echo "${0##*/}: nobody can be root here now: the sandbox has no root, or the command that" \\
        "was started does not name sudo (start it as: sudo COMMAND)" >&2
    exit 1
fi
pipe=$(mktemp -u "${TMPDIR:-/tmp}/.sudo.XXXXXXXX") && mkfifo -m 600 "$pipe" && exec 9<>"$pipe" || exit 1
rm -f "$pipe"
# In a shell of its own: what is redirected for this must not be so in us, whose streams are taken.
status=$(echo $$ >/dev/.staddle/sudo; read -r status <&9; echo "$status")
exit "${status:-1}"
"""


def with_sudo(plan: Plan) -> Plan:
    """The plan of a session with these scripts, if it has a home of its own that is on its PATH."""
    place = f"{plan.identity.home}/.local/bin"
    path = plan.environment().get("PATH", "").split(":")
    if plan.identity.uid == 0 or place not in path or plan.base:
        return plan
    scripts = [Text(f"{place}/{name}", _SCRIPT, ORIGIN, 0o755) for name in ("su", "sudo")]
    return plan.replace(texts=tuple(sorted((*plan.texts, *scripts), key=lambda text: text.path)))
