"""A command that failed because the network is denied: its result gets a sentence and a violation.

Nothing leads out of such a sandbox, and so nothing reports an attempt. What programs print then is well
known: by that, and by nothing else, it is recognised. A program that prints such a line by its own choice
gets a hint that does not apply, and nothing more.
"""

from __future__ import annotations

from ..events import Event

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
)
WHY = "the network is denied by the policy: nothing outside can be reached"
ALLOW = "policy.with_network(Network.allow('HOST')), or Network.packages() for pip, npm and apt"


def explained(result: Result) -> Result:
    """The result of a command that has failed, with the reason if it was that one."""
    said = result.stderr_bytes[-_LOOKED_AT:] + b"\n" + result.stdout_bytes[-_LOOKED_AT:]
    if result.why or not any(sign in said for sign in _SIGNS):
        return result
    event = Event("refused", "network", WHY, ALLOW)
    return result.replace(why=f"{WHY}; allow it with {ALLOW}", violations=(*result.violations, event))
