"""A request that a sandbox made to an inspected host, as the inspector reported it."""

from __future__ import annotations

from ._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal


class EgressRequest(Value):
    """One HTTP request. `host` and `path` are text from inside: show them with `display.shown`.

    `outcome` is "allowed", "refused" or "failed", `why` the reason for a refusal or failure, and `rule` the
    rule that allowed it. `status` is the server's answer (0: none), `sent` and `received` are bytes of the
    bodies. `secrets` are the names of the secrets that it had. `began` is the time as in `time.time()`.
    """

    method: str
    host: str
    port: int
    path: str
    outcome: Literal["allowed", "refused", "failed"]
    status: int = 0
    why: str = ""
    rule: str = ""
    protocol: str = ""
    sent: int = 0
    received: int = 0
    began: float = 0.0
    seconds: float = 0.0
    secrets: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The URL of the request."""
        scheme = "http" if self.port == 80 else "https"
        port = "" if self.port in (80, 443) else f":{self.port}"
        return f"{scheme}://{self.host}{port}{self.path}"

    @staticmethod
    def har(requests: Iterable[EgressRequest]) -> dict[str, Any]:
        """Return the requests as an HTTP archive (HAR 1.2), without headers and bodies."""
        return {
            "log": {
                "version": "1.2",
                "creator": {"name": "staddle", "version": ""},
                "entries": [_entry(request) for request in requests],
            }
        }


def _entry(request: EgressRequest) -> dict[str, Any]:
    from datetime import UTC, datetime

    empty: dict[str, Any] = {"httpVersion": request.protocol, "cookies": [], "headers": [], "headersSize": -1}
    milliseconds = round(request.seconds * 1000, 3)
    return {
        "startedDateTime": datetime.fromtimestamp(request.began, UTC).isoformat(),
        "time": milliseconds,
        "request": {
            **empty,
            "method": request.method,
            "url": request.url,
            "queryString": [],
            "bodySize": request.sent,
        },
        "response": {
            **empty,
            "status": request.status,
            "statusText": "",
            "content": {"size": request.received, "mimeType": ""},
            "redirectURL": "",
            "bodySize": request.received,
        },
        "cache": {},
        "timings": {"send": 0, "wait": milliseconds, "receive": 0},
        "comment": request.outcome + (f": {request.why}" if request.why else ""),
    }
