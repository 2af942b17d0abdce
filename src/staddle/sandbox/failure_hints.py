"""Commands that failed because the network is denied, or because they need root: a sentence and a violation.

Nothing leads out of a sandbox with a denied network, or with ports of the loopback only: nothing reports an
attempt. And nobody is asked whether a program may write. What programs print then is well known: by that,
and by the exit status of curl and wget, it is recognised. A program that prints such a line by choice gets a
hint that does not apply.
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
#: Exit statuses by which quiet programs tell the same, and what is in the sandbox itself.
_QUIET = {4: "wget", 6: "curl", 7: "curl"}
_HERE = ("localhost", "127.", "::1", "0.0.0.0")  # noqa: S104 - nothing is bound
WHY = "the network is denied by the policy: nothing outside can be reached"
LOOPBACK_WHY = "the policy allows ports of the loopback only: nothing else can be reached"
ALLOW = "policy.with_network(Network.allow('HOST')), or Network.packages() for pip, npm and apt"
#: What apt prints to a user who is not root, and our script after it.
_ROOT_SIGNS = (NEEDS_ROOT.encode(), b"are you root?")
ROOT_WHY, ROOT_ALLOW = NEEDS_ROOT, "sudo, or sb.run(..., user='root')"


def denied(result: Result, why: str = WHY) -> Result:
    """The result of a command that has failed, with the reason if it was the network or a missing root."""
    event = Event("refused", "network", why, ALLOW)
    return _marked(needs_root(result), _SIGNS, event, is_sure=_is_quiet_download(result))


def beyond_loopback(result: Result) -> Result:
    """The same where ports of the loopback are allowed."""
    return denied(result, LOOPBACK_WHY)


def needs_root(result: Result) -> Result:
    """The same where the network is not denied."""
    return _marked(result, _ROOT_SIGNS, Event("refused", "root", ROOT_WHY, ROOT_ALLOW))


def _is_quiet_download(result: Result) -> bool:
    """Whether curl or wget, told to be quiet, has failed with the status for a name or a connection."""
    name = _QUIET.get(result.exit_code)
    text = result.command if isinstance(result.command, str) else " ".join(result.command)
    return name is not None and name in text and not any(place in text for place in _HERE)


def _marked(result: Result, signs: tuple[bytes, ...], event: Event, *, is_sure: bool = False) -> Result:
    said = result.stderr_bytes[-_LOOKED_AT:] + b"\n" + result.stdout_bytes[-_LOOKED_AT:]
    if result.why or not (is_sure or any(sign in said for sign in signs)):
        return result
    why = f"{event.rule}; allow it with {event.allow}"
    return result.replace(why=why, violations=(*result.violations, event))
