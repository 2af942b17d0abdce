"""Scripts for root in a session: `sudo` and `su`, which ask the agent, and `apt`, which suggests sudo."""

from __future__ import annotations

import os

from .plan import Text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .plan import Plan

ORIGIN = "sudo"
#: See inside.agent.sudo, which reads arguments, variables and streams from the process itself.
_SCRIPT = """\
#!/bin/sh
# Runs a command as the root of this sandbox, which PID 1 starts. Asks for no password.
case "${0##*/} $(id -u)" in "su 0") [ ! -x /usr/bin/su ] || exec /usr/bin/su "$@" ;; esac
if [ ! -p /dev/.staddle/sudo ]; then
    echo "${0##*/}: no command can become root here now: the sandbox has no root, or the command that" \\
        "was started does not name sudo (start it as: sudo COMMAND)" >&2
    exit 1
fi
pipe=$(mktemp -u "${TMPDIR:-/tmp}/.sudo.XXXXXXXX") && mkfifo -m 600 "$pipe" && exec 9<>"$pipe" || exit 1
rm -f "$pipe"
# In a shell of its own: what is redirected for this must not be so in us, whose streams are taken.
status=$(echo $$ >/dev/.staddle/sudo; read -r status <&9; echo "$status")
exit "${status:-1}"
"""
#: Added before the last line if no package source can be reached.
_NO_PACKAGES = """\
case "${status:-1} $* " in 100*" apt "* | 100*" apt-get "*) echo "sudo: %s" >&2 ;; esac
"""
_APT = """\
#!/bin/sh
# %(program)s of a user who is not root, with a hint.
%(program)s "$@"
status=$?
[ "$status" -ne 100 ] || [ "$(id -u)" -eq 0 ] || echo "${0##*/}: %(hint)s: sudo ${0##*/} $*%(more)s" >&2
exit "$status"
"""
#: Result.violations recognises these words.
NEEDS_ROOT = "packages are installed by root"
NEEDS_NETWORK = "the network is denied; the policy has to allow it: Network.packages()"
#: Network modes without access to package sources.
_CLOSED = ("deny", "loopback")


def with_sudo(plan: Plan) -> Plan:
    """Return the plan with these scripts, if the session's own home is on its PATH."""
    place = f"{plan.identity.home}/.local/bin"
    path = plan.environment().get("PATH", "").split(":")
    if plan.identity.uid == 0 or place not in path or plan.base:
        return plan
    closed = plan.network.mode in _CLOSED
    sudo, more = _SCRIPT, ""
    if closed:
        before, last = sudo[: sudo.rindex("exit")], sudo[sudo.rindex("exit") :]
        sudo, more = before + _NO_PACKAGES % NEEDS_NETWORK + last, f"; {NEEDS_NETWORK}"
    scripts = dict.fromkeys(("su", "sudo"), sudo)
    for name in ("apt", "apt-get"):
        if os.path.exists(f"/usr/bin/{name}"):
            facts = {"program": f"/usr/bin/{name}", "hint": NEEDS_ROOT, "more": more}
            scripts[name] = _APT % facts
    texts = [Text(f"{place}/{name}", text.encode(), ORIGIN, 0o755) for name, text in scripts.items()]
    return plan.replace(texts=tuple(sorted((*plan.texts, *texts), key=lambda text: text.path)))
