"""One inspected request and its answer, whatever the version of HTTP: decide, substitute, count, report."""

from __future__ import annotations

import re
import time

from .substitution import Expansion, Misplaced, Scan, Wiper, put_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .context import InspectionContext
    from .decisions import RequestVerdict
    from .substitution import Headers, Values

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
#: Names that a Connection header may list. Removing others could remove what the server decides by.
_LISTED = frozenset((b"", b"close", b"keep-alive", b"te", b"upgrade"))
_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization proxy-authenticate te trailer upgrade "
    b"http2-settings transfer-encoding".split()
)
#: Headers by which a server may decide about another path or host than the rules did.
_REROUTING = frozenset(
    b"x-original-url x-rewrite-url x-original-uri x-original-host x-forwarded-host x-host "
    b"x-http-host-override forwarded x-forwarded-server x-forwarded-prefix".split()
)
_OVERRIDES = frozenset(b"x-http-method-override x-http-method x-method-override".split())
#: Headers with a meaning for us. CGI and WSGI read the same names with underscores as the same headers.
_CHECKED = _REROUTING | _OVERRIDES | _HOP | {b"host", b"content-length", b"destination"}
#: The longest number of a body's length. Some servers compute with 64 bits, and read a longer one as another.
_LONGEST_LENGTH = 18
#: Trailers that would change framing, authority or rights after the decision.
_NO_TRAILER = _HOP | frozenset(
    b"content-length content-encoding content-range content-type host authorization cookie set-cookie "
    b"te expect range location www-authenticate".split()
)
#: A request with a longer body is not sent again after a refreshed secret.
MOST_KEPT = 64 << 10
#: The largest refused answer of a stale secret that is kept while the newer value is waited for.
MOST_HELD = 64 << 10
_LONGEST_SHOWN = 512


class RequestRefused(Exception):
    """The request is answered by the inspector. `status` is the answer's; the text says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class InspectedRequest:
    """A request on its way. Headers are lower-case names and values without the pseudo-headers."""

    def __init__(
        self,
        inspector: InspectionContext,
        place: tuple[str, int, bool],
        protocol: str,
        method: str,
        target: str,
    ) -> None:
        self._inspector, self._place = inspector, place
        self.host, self.port, self.encrypted = place
        self.protocol, self.method, self.target = protocol, method, target
        self.headers: Headers = []
        self.used: tuple[str, ...] = ()
        self.rule = ""
        self.status = 0
        self.sent = self.received = 0
        self._began, self._clock = time.time(), time.monotonic()
        self._scan = Scan(inspector.secrets) if inspector.secrets else None
        self._values: Values | None = None
        self._wiper: Wiper | None = None
        self._expansion: Expansion | None = None
        self._is_reported = False
        #: The body, as long as the request could be sent again.
        self.kept: list[bytes] | None = []
        self._kept = 0

    # The request.

    def decide(self, authority: list[str], headers: Headers, *, upgrades: bool = False) -> RequestVerdict:
        """Check the head and decide about it. Raises RequestRefused for a head that no rule can allow."""
        self._check_head(headers, upgrades)
        names = [f"{self.host}:{self.port}"]
        if self._is_default():
            names.append(self.host)
        if not authority or any(each.lower().removesuffix(".") not in names for each in authority):
            raise RequestRefused(
                421, f"the request is not for {self.host}, which this connection was opened to"
            )
        methods, targets = [self.method], [self.target]
        for name, value in headers:
            if name in _OVERRIDES:
                methods.append(value.decode("latin-1"))
            elif name == b"destination":
                targets.append(self._destination(value, names))
        # A person is asked about the request only. What its headers make of it needs a rule, and comes first.
        for method, target in [(method, target) for method in methods for target in targets][::-1]:
            verdict = self._inspector.decide(method, self.host, self.port, target)
            self.rule = verdict.rule
            if not verdict.allowed and (method, target) != (self.method, self.target):
                raise RequestRefused(403, verdict.why)
        self.headers = headers
        return verdict

    def _destination(self, value: bytes, names: list[str]) -> str:
        """Return the path that COPY or MOVE of WebDAV writes to. Raises RequestRefused for another host's."""
        text = value.decode("latin-1")
        if not text.startswith("/"):
            scheme, _, rest = text.partition("://")
            host, slash, path = rest.partition("/")
            if scheme.lower() != ("https" if self.encrypted else "http") or host.lower() not in names:
                raise RequestRefused(403, f"its Destination is not at {self.host}")
            text = slash + path
        return text

    def _is_default(self) -> bool:
        return self.port == (443 if self.encrypted else 80)

    def _check_head(self, headers: Headers, upgrades: bool) -> None:
        for name, value in headers:
            if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
                raise RequestRefused(400, "a header has a character that no header has")
            if b"_" in name and name.replace(b"_", b"-") in _CHECKED:
                raise RequestRefused(403, f"some servers read the header {name.decode()} with hyphens")
            if name not in _CHECKED:
                continue
            if name in _REROUTING:
                raise RequestRefused(403, f"the header {name.decode()} could name another path or host")
            if name == b"connection":
                for listed in value.lower().split(b","):
                    if listed.strip() not in _LISTED:
                        raise RequestRefused(
                            400, "its Connection header lists a header that a server may decide by"
                        )
            if name == b"upgrade" and not upgrades:
                raise RequestRefused(403, "a connection is upgraded to WebSocket only")
            if name == b"content-length" and not (
                value.isdigit() and len(value) <= _LONGEST_LENGTH and value == b"%d" % int(value)
            ):
                raise RequestRefused(400, "its Content-Length is no number that all servers read alike")
        names = [name for name, _ in headers]
        if names.count(b"content-length") > 1 or names.count(b"transfer-encoding") > 1:
            raise RequestRefused(400, "its length is given twice")
        if b"content-length" in names and b"transfer-encoding" in names:
            raise RequestRefused(400, "its length is given in two ways")

    def outgoing(self) -> tuple[str, Headers]:
        """Return path and headers for the server, with the values of secrets. Raises RequestRefused."""
        inspector = self._inspector
        inspector.count_request(self.host, self.port)
        headers = [(name, value) for name, value in self.headers if name not in _HOP]
        try:
            target, headers, self.used = put_in(inspector.secrets, self._place, self.target, headers)
        except Misplaced as error:
            self.used = (error.name,)
            raise RequestRefused(403, str(error)) from None
        if inspector.values_of(self.host, self.port):
            # Answers are searched for values: whole, and as plain text.
            dropped = {b"accept-encoding", *((b"range", b"if-range") if self.used else ())}
            headers = [(name, value) for name, value in headers if name not in dropped]
            headers.append((b"accept-encoding", b"identity"))
        if not self.used:
            self.kept = None
        return target, headers

    def request_data(self, data: bytes) -> bytes:
        """Check a piece of the body. Raises RequestRefused."""
        self._count(len(data))
        self.sent += len(data)
        try:
            if self._scan is not None:
                self._scan.feed(data)
        except Misplaced as error:
            self.used = (error.name,)
            raise RequestRefused(403, str(error)) from None
        self._kept += len(data)
        if data and self.kept is not None:
            self.kept.append(bytes(data))
            if self._kept > MOST_KEPT:
                self.kept = None
        return data

    def request_trailers(self, trailers: Headers) -> Headers:
        """Return the trailers that are passed on. Raises RequestRefused for one with a placeholder."""
        for name, value in trailers:
            for secret in self._inspector.secrets:
                if secret.placeholder.encode() in name + b" " + value:
                    self.used = (secret.name,)
                    raise RequestRefused(403, f"the placeholder of the secret {secret.name} is in a trailer")
        return self._passed(trailers)

    # The answer.

    def response_head(self, status: int, headers: Headers) -> Headers:
        """Return the headers for the client.

        Raises RequestRefused if the answer cannot be searched for secrets.
        """
        self.status = status
        headers = [(name, value) for name, value in headers if name not in _HOP and name != b"alt-svc"]
        values = self._values = self._inspector.values_of(self.host, self.port)
        if values is None:
            return headers
        self._wiper = Wiper(values)
        codings = [value.strip().lower() for name, value in headers if name == b"content-encoding"]
        codings = [each for each in codings if each not in (b"", b"identity")]
        bodiless = self.is_bodiless(status)
        dropped = set()
        if codings and not bodiless:
            try:
                self._expansion = Expansion(b",".join(codings))
            except ValueError as error:
                raise RequestRefused(502, str(error)) from None
            dropped = {b"content-encoding", b"content-length", b"etag", b"digest"}
        elif not values.keeps_length and not bodiless:
            dropped = {b"content-length"}
        return [(name, values.wiped(value)) for name, value in headers if name not in dropped]

    def is_bodiless(self, status: int) -> bool:
        """Whether an answer with this status has no body, whatever its headers say."""
        return self.method == "HEAD" or status in (204, 304) or status < 200

    def response_data(self, data: bytes) -> bytes:
        """Return a piece of the body for the client. Raises RequestRefused."""
        self._count(len(data))
        self.received += len(data)
        if self._expansion is not None:
            try:
                data = self._expansion.feed(data)
            except ValueError as error:
                raise RequestRefused(502, str(error)) from None
        return data if self._wiper is None else self._wiper.feed(data)

    def response_end(self) -> bytes:
        """Return the rest of the body. Raises RequestRefused."""
        if self._expansion is not None:
            try:
                self._expansion.end()
            except ValueError as error:
                raise RequestRefused(502, str(error)) from None
        return b"" if self._wiper is None else self._wiper.end()

    def response_trailers(self, trailers: Headers) -> Headers:
        """Return the trailers that are passed on."""
        wipe = self._values.wiped if self._values is not None else bytes
        return [(name, wipe(value)) for name, value in self._passed(trailers)]

    def raw(self, count: int) -> None:
        """Count bytes of a WebSocket. Raises RequestRefused."""
        self._count(count)

    # After a 401.

    def is_stale(self, status: int) -> bool:
        """Whether this answer says that a value is not valid any more, and the request can be sent again."""
        return status == 401 and bool(self.used) and self.kept is not None

    def refresh(self, then: Callable[[bool], None]) -> None:
        """Ask for newer values, and call `then` with whether they came."""
        self._inspector.refresh(self.used, then)

    def ask(self, then: Callable[[bool], None]) -> bool:
        """Ask the host program, and call `then` with its answer; False if it asks nobody."""
        return self._inspector.ask(self.method, self.host, self.port, self.shown(), then)

    def answered(self, allowed: bool, why: str) -> None:
        """Note a person's answer. Raises RequestRefused."""
        if not allowed:
            raise RequestRefused(403, f"{why}, and it was not allowed when asked")
        self.rule = "allowed when asked"

    def refusal(self, why: str) -> tuple[bytes, Headers]:
        """Return the body and headers of an answer that says why there is no other."""
        text = b"" if self.method == "HEAD" else f"staddle: {why}\n".encode("utf-8", "replace")[:8192]
        return text, [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(text)).encode()),
        ]

    # Reports.

    def shown(self) -> str:
        """Return the path for reports: bounded, and without the values of secret parameters."""
        text = self.target
        found = self._inspector.all_values
        if found or not text.isascii():
            path, mark, query = text.partition("?")
            keys = {secret.query for secret in self._inspector.secrets if secret.query}
            parts = [
                part.partition("=")[0] + "=…" if part.partition("=")[0] in keys else part
                for part in query.split("&")
            ]
            shown = (path + mark + "&".join(parts)).encode("utf-8", "backslashreplace")
            text = (found.wiped(shown) if found else shown).decode("utf-8", "replace")
        return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"

    def report(self, outcome: str, why: str = "") -> None:
        """Report the end of the request, once."""
        if self._is_reported:
            return
        self._is_reported = True
        self._inspector.report(
            id=self._inspector.next_id(),
            method=self.method[:32],
            host=self.host,
            port=self.port,
            path=self.shown(),
            status=self.status,
            sent=self.sent,
            received=self.received,
            seconds=round(time.monotonic() - self._clock, 6),
            protocol=self.protocol,
            outcome=outcome,
            why=why,
            rule=self.rule,
            secrets=list(self.used),
            began=self._began,
        )

    def _count(self, count: int) -> None:
        self._inspector.count_bytes(self.host, self.port, count)

    def _passed(self, trailers: Headers) -> Headers:
        good = [(name.lower(), value) for name, value in trailers if _VALUE.fullmatch(value)]
        return [(name, value) for name, value in good if name not in _NO_TRAILER and _TOKEN.fullmatch(name)]
