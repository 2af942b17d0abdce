"""A small web server on the host's loopback, for as long as somebody needs it."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator

Asked = http.server.BaseHTTPRequestHandler


class Answering(http.server.BaseHTTPRequestHandler):
    """Answers every GET with what `body` says, and keeps no log."""

    def body(self) -> bytes:
        raise NotImplementedError

    def do_GET(self) -> None:
        body = self.body()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(answer: Callable[[Asked], bytes]) -> Iterator[int]:
    """The port of a server that answers every GET so."""
    handler = type("Handler", (Answering,), {"body": answer})
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    try:
        yield made.server_address[1]
    finally:
        made.shutdown()
        made.server_close()
