"""Commands that failed because the network is denied, or because they need root: a sentence and a violation.

Nothing leads out of a sandbox with a denied network, and so nothing reports an attempt; and nobody is asked
whether a program may write. What programs print then is well known: by that, and by nothing else, it is
recognised. A program that prints such a line by its own choice gets a hint that does not apply.
"""

from __future__ import annotations

from ..events import Event
from ..policy.root_scripts import NEEDS_NETWORK, NEEDS_ROOT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .result import Result

#: So much of the end of each stream is searched.
_LOOKED_AT = 8 << 10
#: What resolvers and programs print when no name can be looked up, or no address reached.
_SIGNS = (
    *(b"Could not resolve host", b"Temporary failure in name resolution", b"Temporary failure resolving"),
    *(b"Name or service not known", b"Network is unreachable", b"getaddrinfo EAI_AGAIN", b"ENETUNREACH"),
    *(b"getaddrinfo ENOTFOUND", b"Could not resolve '", b"Could not resolve hostname", b"dns error"),
    *(b"No address associated with hostname", b"unable to resolve host address", b"failed to lookup address"),
    NEEDS_NETWORK.encode(),
)
WHY = "the network is denied by the policy: nothing outside can be reached"
ALLOW = "policy.with_network(Network.allow('HOST')), or Network.packages() for pip, npm and apt"
#: What apt prints to a user who is not root, and our script after it.
_ROOT_SIGNS = (NEEDS_ROOT.encode(), b"are you root?")
ROOT_WHY, ROOT_ALLOW = NEEDS_ROOT, "sudo, or sb.run(..., user='root')"


def denied(result: Result) -> Result:
    """The result of a command that has failed, with the reason if it was the network or a missing root."""
    return _marked(needs_root(result), _SIGNS, Event("refused", "network", WHY, ALLOW))


def needs_root(result: Result) -> Result:
    """The same where the network is not denied."""
    return _marked(result, _ROOT_SIGNS, Event("refused", "root", ROOT_WHY, ROOT_ALLOW))


def _marked(result: Result, signs: tuple[bytes, ...], event: Event) -> Result:
    said = result.stderr_bytes[-_LOOKED_AT:] + b"\n" + result.stdout_bytes[-_LOOKED_AT:]
    if result.why or not any(sign in said for sign in signs):
        return result
    why = f"{event.rule}; allow it with {event.allow}"
    return result.replace(why=why, violations=(*result.violations, event))
