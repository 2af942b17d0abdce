"""Start the HTTP inspector of a sandbox on the host, give it rules and secrets, read its reports.

    plan, inspector = inspected(plan)      before the sandbox opens: its programs must trust the inspector
    gateway.tell(*inspector.for_gateway()) leads connections of inspected hosts to it
    inspector.requests()                   what the sandbox has asked for
    inspector.close()

The inspector reads bytes from the sandbox and from the internet. This process believes nothing of its
reports: each is checked and bounded. A killed inspector is not replaced, because programs trust its authority
alone; the gateway then refuses the connections.
"""

from __future__ import annotations

import _socket
import hashlib
import json
import os
import select
import subprocess
import threading
import time
from collections import deque

from ..._value import Value
from ...background import start_thread
from ...egress_request import EgressRequest
from ...errors import LaunchFailed, PolicyError, StaddleError
from ...events import Event
from ...ipc.gateway_messages import Sockets, encode_sockets
from ...ipc.wire import send
from ...policy.egress import request_rules, site_packages, with_trust
from .approval_calls import RequestApprovals
from .spawn import end, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeGuard

    from ...policy.egress_secret import EgressSecret
    from ...policy.network import Network
    from ...policy.plan import Plan
    from .approval_calls import OnConnect

_LONGEST, _LONGEST_TEXT, _LONGEST_EVENT = 256 << 10, 8192, 1024
#: Number of stored requests, and of events that nobody has collected.
_KEPT = 1000
#: Seconds for the inspector to start, to report the requests so far, and for a source of a secret.
_STARTING, _FLUSHING, _SOURCE = 20.0, 1.0, 30.0
#: Seconds to wait for an inspector that did not answer the last time.
_SHORT = 0.05
#: Characters of a secret. A shorter one would be found in answers by chance.
_SHORTEST_SECRET, _LARGEST_SECRET = 8, 16 << 10
#: Seconds before an expired secret is read again from its source.
_FRESH = 30.0
_WHY_GONE = "the HTTP inspector was killed: inspected hosts are refused; reset() or fork() start another one"
_KEY: list[bytes] = []
_KIND = _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC


class RequestQuestion(Value):
    """A request that no rule allows. `host` is METHOD HOST/PATH; the name is that of a ConnectQuestion."""

    identity: int
    host: str
    port: int


def inspected(
    plan: Plan, on_request: OnConnect | None = None, asks: int = 0
) -> tuple[Plan, InspectorProcess | None]:
    """Start the inspector if the plan needs one. Returns the plan with trust in it, and placeholders.

    `on_request` has `asks` seconds to decide about a request that no rule allows.
    """
    if not plan.is_inspected:
        return plan, None
    placeholders = {secret.name: _placeholder(secret) for secret in plan.secrets}
    inspector = InspectorProcess(plan, placeholders, on_request, asks)
    try:
        return with_trust(plan, inspector.authority, inspector.java, placeholders), inspector
    except BaseException:
        inspector.close()
        raise


class InspectorProcess:
    """A started inspector. It exits when this object is closed, or when this process exits. Thread-safe."""

    def __init__(
        self, plan: Plan, placeholders: Mapping[str, str], on_request: OnConnect | None, asks: int
    ) -> None:
        self._plan, self._placeholders, self._asks = plan, placeholders, asks
        self._secrets = {secret.name: secret for secret in plan.secrets}
        self._values = {name: secret_value(secret) for name, secret in self._secrets.items()}
        self._read_at = dict.fromkeys(self._values, time.monotonic())
        self._approvals: RequestApprovals | None = None
        if on_request is not None:
            self._approvals = RequestApprovals(on_request, plan.network, asks)
        self._requests: deque[EgressRequest] = deque(maxlen=_KEPT)
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._lock = threading.Condition()
        self._flush = self._flushed = 0
        self._has_ended = self._closed = self._is_silent = False
        #: Our copy of the gateway's end, for a gateway that replaces a killed one.
        self._gateway, inspectors = _socket.socketpair(_socket.AF_UNIX, _KIND)
        self._pid = 0
        try:
            self._socket, self._pid = PREWARMED.take() or _started()
            self._send("settings", self._settings(), [inspectors.fileno()])
            self.authority, self.java = self._await_ready()
        except BaseException:
            self._close()
            raise
        finally:
            inspectors.close()
        start_thread(self._attend, "staddle-requests")

    def for_gateway(self) -> tuple[bytes, list[int]]:
        """Return the message with which a gateway gets its socket to the inspector."""
        return encode_sockets(Sockets((("inspector", b"", 0),))), [self._gateway.fileno()]

    def change(self, network: Network) -> None:
        """Apply the HTTP rules of another network from now on."""
        with self._lock:
            self._plan = self._plan.replace(network=network)
            self._send("change", self._settings())
        self.flush()

    def requests(self) -> list[EgressRequest]:
        """Return the requests so far, at most the last thousand."""
        self.flush()
        with self._lock:
            return list(self._requests)

    def events(self, *, everything: bool = False) -> list[Event]:
        """Return the events since the last call; with `everything`, those of all requests so far."""
        if everything:
            self.flush()
        with self._lock:
            found = list(self._events)
            self._events.clear()
            return found

    def flush(self) -> None:
        """Wait briefly until the requests so far are reported."""
        with self._lock:
            self._flush += 1
            number = self._flush
            try:
                self._send("flush", {"number": number})
            except LaunchFailed:
                return
            patience = _SHORT if self._is_silent else _FLUSHING
            is_there = self._lock.wait_for(lambda: self._flushed >= number or self._has_ended, patience)
            self._is_silent = not is_there

    def close(self) -> None:
        """End it, and all connections that go through it."""
        if self._approvals is not None:
            self._approvals.close()
        with self._lock:
            self._closed = True
        self._close()

    def _close(self) -> None:
        self._gateway.close()
        if not self._pid:
            return
        try:
            self._socket.shutdown(_socket.SHUT_RDWR)  # wakes the thread, which closes the socket
        except OSError:
            pass  # it has exited already
        pid, self._pid = self._pid, 0
        end(pid)
        self._values.clear()

    # ------------------------------------------------------------ messages

    def _settings(self) -> dict[str, Any]:
        secrets = []
        for name, secret in self._secrets.items():
            fields = {key: getattr(secret, key) for key in ("name", "header", "query", "basic", "in_body")}
            value = {"placeholder": self._placeholders[name], "value": self._values[name]}
            secrets.append({**fields, **value, "hosts": list(secret.hosts)})
        limits = [
            {
                "host": limit.host,
                "requests": limit.requests or 0,
                "bytes": limit.bytes or 0,
                "rate": limit.rate or 0,
            }
            for limit in self._plan.network.http_limits
        ]
        return {
            "rules": list(request_rules(self._plan)),
            "secrets": secrets,
            "roots": os.environ.get("SSL_CERT_FILE", ""),
            "asks": 0 if self._approvals is None else self._asks,
            "limits": limits,
        }

    def _send(self, kind: str, fields: Mapping[str, Any], descriptors: list[int] | None = None) -> None:
        message = json.dumps({"kind": kind, **fields}).encode()
        if len(message) > _LONGEST:
            raise PolicyError(
                "the rules and secrets are too long for the HTTP inspector",
                why=f"they have more than {_LONGEST >> 10} KiB together",
                fix="use * and ** in rules",
            )
        try:
            send(self._socket, message, descriptors or ())
        except OSError as error:
            raise _not_started(error.strerror or "its socket is closed") from None

    def _await_ready(self) -> tuple[str, bytes]:
        from base64 import b64decode

        self._socket.settimeout(_STARTING)  # from now on, sending never blocks
        try:
            found = _message(self._socket.recv(_LONGEST))
        except OSError as error:
            raise _not_started(error.strerror or "it does not answer") from None
        authority, java = found.get("ca"), found.get("truststore")
        if found.get("kind") != "ready" or not isinstance(authority, str) or not isinstance(java, str):
            raise _not_started("it exited at once")
        return authority, b64decode(java)

    def _attend(self) -> None:
        """Read its messages until it ends. Runs in a thread of its own."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        while True:
            try:
                poll.poll()
                data = self._socket.recv(_LONGEST, _socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                break
            try:
                self._told(_message(data))
            except (KeyError, TypeError, ValueError, StaddleError):
                continue  # malformed, or it has ended meanwhile
        with self._lock:
            self._has_ended = True
            if not self._closed:
                self._events.append(Event("note", "HTTP requests", _WHY_GONE))
            self._lock.notify_all()
        self._socket.close()

    def _told(self, message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "request":
            self._note(_request(message, self._secrets))
        elif kind == "flushed":
            with self._lock:
                self._flushed = _number(message["number"])
                self._lock.notify_all()
        elif kind == "ask" and self._approvals is not None:
            request = _request({**message, "outcome": "refused"}, {})
            question = RequestQuestion(_number(message["id"]), rule_for(request), request.port)
            self._approvals.ask(question, self._answer, self._keep)  # type: ignore[arg-type]
        elif kind == "stale":
            self._renew(str(message["name"]))

    def _note(self, request: EgressRequest) -> None:
        what = f"{request.method} {request.url}"[:_LONGEST_EVENT]
        if request.outcome == "refused":
            allow = "" if request.why.startswith("the limit of ") else rule_for(request)
            event = Event("refused", what, request.why or "no rule allows this request", allow)
        else:
            event = Event("note", what, f"{request.outcome}: {request.why or request.rule}")
        with self._lock:
            self._requests.append(request)
            self._events.append(event)

    def _keep(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)

    def _answer(self, question: RequestQuestion, allowed: bool | None) -> None:
        try:
            self._send("answer", {"id": question.identity, "allow": allowed is True})
        except LaunchFailed:
            pass  # it has ended: nothing goes out any more

    def _renew(self, name: str) -> None:
        """Read a secret again that a server did not accept, in another thread, and not too often."""
        secret, now = self._secrets.get(name), time.monotonic()
        if secret is None or now - self._read_at[name] < _FRESH:
            return
        self._read_at[name] = now

        def renew() -> None:
            try:
                value = secret_value(secret)
                if value != self._values.get(name):
                    self._values[name] = value
                    self._send("secret", {"name": name, "value": value})
            except StaddleError as error:
                self._keep(Event("note", f"the secret {name}", f"it could not be renewed: {error.why}"))

        start_thread(renew, "staddle-secret")


def _started() -> tuple[_socket.socket, int]:
    """Start an inspector. Returns our end of its socket, and its pid."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _KIND)
    try:
        ours.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, _LONGEST * 2)
        return ours, spawn(theirs.fileno(), -1, "inspection/__main__.py", site_packages())
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()


class PrewarmedInspector:
    """An inspector that imports its modules, most of its start, while the caller does something else.

    It has no settings yet. The next sandbox with inspected hosts takes it. Not for several threads.
    """

    def __init__(self) -> None:
        self._waiting: tuple[_socket.socket, int] | None = None
        self._owner = 0

    def make(self) -> None:
        """Start it, if none waits."""
        if self._waiting is None:
            self._owner = os.getpid()
            self._waiting = _started()

    def take(self) -> tuple[_socket.socket, int] | None:
        """Return it; None if there is none, or if it has exited. A forked child has none."""
        found, self._waiting = self._waiting, None
        if found is None or self._owner != os.getpid():
            return None
        poll = select.poll()
        poll.register(found[0].fileno(), select.POLLIN)
        if poll.poll(0):
            found[0].close()
            end(found[1])
            return None
        return found

    def close(self) -> None:
        """End the waiting inspector, if there is one."""
        if (found := self.take()) is not None:
            found[0].close()
            end(found[1])


PREWARMED = PrewarmedInspector()


def secret_value(secret: EgressSecret) -> str:
    """Return the value from the source of a secret. No error has it."""
    source = secret.source
    kind, _, rest = ("function", "", "") if callable(source) else source.partition(":")
    why = ""
    try:
        if callable(source):
            value = str(source())
        elif kind == "env":
            value = os.environ.get(rest, "")
        elif kind == "file":
            with open(os.path.expanduser(rest), encoding="utf-8") as file:
                value = file.read(_LARGEST_SECRET + 1)
        else:
            import shlex

            done = subprocess.run(
                shlex.split(rest), stdin=subprocess.DEVNULL, capture_output=True, timeout=_SOURCE, check=True
            )
            value = done.stdout[: _LARGEST_SECRET + 1].decode()
    except subprocess.CalledProcessError as error:
        value, why = "", f"its command exited with {error.returncode}"
    except subprocess.TimeoutExpired:
        value, why = "", f"its command did not end in {_SOURCE:.0f} seconds"
    except Exception as error:
        value, why = "", getattr(error, "strerror", None) or type(error).__name__
    value = value.strip()
    if not why and not value:
        why = "it is not set" if kind == "env" else "it is empty"
    if not why and not _SHORTEST_SECRET <= len(value) <= _LARGEST_SECRET:
        why = f"it has less than {_SHORTEST_SECRET} or more than {_LARGEST_SECRET} characters"
    if not why and not (value.isascii() and value.isprintable()):
        why = "it has characters that no header may have"
    if why:
        raise PolicyError(
            f"the secret {secret.name!r} has no value",
            why=f"{secret.shown_source}: {why}",
            fix="set it where the policy says, or leave the secret out",
        )
    return value


def rule_for(request: EgressRequest) -> str:
    """Return the rule that would allow a request."""
    port = "" if request.port in (80, 443) else f":{request.port}"
    return f"{request.method} {request.host}{port}{request.path.partition('?')[0]}"[:_LONGEST_EVENT]


def _placeholder(secret: EgressSecret) -> str:
    """Return the placeholder of a secret in this program.

    It cannot be guessed. All sandboxes of a program have the same one, so that a fork continues with the
    variables of its shells. It is worth nothing without the inspector of a sandbox.
    """
    if not _KEY:
        _KEY.append(os.urandom(32))
    words = f"{secret.name}\0{secret.shown_source}".encode()
    return (secret.placeholder or "staddle-") + hashlib.blake2b(
        words, key=_KEY[0], digest_size=20
    ).hexdigest()


def _message(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _request(message: Mapping[str, Any], secrets: Mapping[str, object]) -> EgressRequest:
    """Return a reported request. Raises KeyError, TypeError or ValueError if it is malformed."""
    outcome = message["outcome"]
    if outcome not in ("allowed", "refused", "failed"):
        raise ValueError("there is no such outcome")
    facts: dict[str, Any] = {}
    facts |= {key: str(message.get(key) or "")[:_LONGEST_TEXT] for key in ("why", "rule", "protocol")}
    facts |= {key: _number(message.get(key) or 0) for key in ("status", "sent", "received")}
    facts |= {key: _seconds(message.get(key)) for key in ("began", "seconds")}
    named = message.get("secrets") or ()
    return EgressRequest(
        str(message["method"])[:32],
        str(message["host"])[:260],
        _number(message["port"]),
        str(message["path"])[:_LONGEST_TEXT],
        outcome,
        secrets=tuple(name for name in secrets if isinstance(named, list) and name in named),
        **facts,
    )


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _number(value: object) -> int:
    if not _is_number(value):
        raise ValueError("it is not a number")
    return value


def _seconds(value: object) -> float:
    is_time = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 33
    return float(value) if is_time else 0.0  # type: ignore[arg-type]


def _not_started(why: str) -> LaunchFailed:
    return LaunchFailed(
        "the HTTP inspector is not running", why=why, fix="see `staddle doctor`, or open another sandbox"
    )
