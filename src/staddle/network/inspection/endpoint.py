"""One side of an inspected connection: a connected socket, with TLS or without.

TLS towards the server is the standard library's. Towards the client it is pyOpenSSL's, because the standard
library reads keys from files only, and the inspector can open none.
"""

from __future__ import annotations

import _socket
import ssl
from collections import deque

from OpenSSL import SSL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cryptography import x509

    from .certificates import Authority

#: Bytes of one read, and of unsent bytes above which the other side is not read.
CHUNK, MOST_UNSENT = 256 << 10, 512 << 10
_RECORD, _RECORD_HEAD = 16 << 10, 5
#: Files with the authorities of a host. Directories of them would be read later, when nothing can be opened.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_NO_ALPN = SSL.NO_OVERLAPPING_PROTOCOLS


class TlsFailed(Exception):
    """A handshake failed, or a record was invalid."""


class ServerContext:
    """TLS towards servers, verified against authorities that are read once."""

    def __init__(self, roots: str) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        # An end without TLS's own may hide that an answer was cut. Some versions of Python ignore that.
        self._context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
        default = ssl.get_default_verify_paths().cafile
        for path in (roots,) if roots else (default, *_BUNDLES):
            try:
                self._context.load_verify_locations(path)
                return
            except (OSError, TypeError):
                if roots:
                    raise

    def start(self, name: str, protocols: list[str]) -> ServerTls:
        """Begin a handshake with the server `name`."""
        self._context.set_alpn_protocols(protocols)
        return ServerTls(self._context, name)


class ServerTls:
    """TLS of a connection to a server."""

    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=name)

    def handshake(self) -> bool:
        """Whether the handshake is done. Raises TlsFailed."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLCertVerificationError as error:
            raise TlsFailed(f"its certificate is refused: {error.verify_message}") from None
        except (ssl.SSLError, OSError) as error:
            raise TlsFailed(getattr(error, "reason", "") or str(error)) from None
        return True

    def protocol(self) -> str:
        """Return the protocol that the server chose (default: HTTP/1.1)."""
        return self._tls.selected_alpn_protocol() or "http/1.1"

    def feed(self, data: bytes) -> None:
        """Take bytes of the socket; none: it has ended."""
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    def read(self) -> tuple[bytes, bool]:
        """Return decrypted bytes, and whether the peer has ended orderly."""
        parts: list[bytes] = []
        try:
            while part := self._tls.read(_RECORD):
                # Often there is no more. Another read would only find that out, with an exception.
                if not self._in.pending and not self._in.eof and not self._tls.pending():
                    return b"".join((*parts, part)), False
                parts.append(part)
        except (ssl.SSLWantReadError, ssl.SSLEOFError):
            return b"".join(parts), False
        except ssl.SSLError as error:
            if not parts and error.reason != "UNEXPECTED_EOF_WHILE_READING":
                raise TlsFailed(error.reason or str(error)) from None
            return b"".join(parts), False
        return b"".join(parts), True

    def write(self, data: bytes) -> None:
        """Encrypt."""
        self._tls.write(data)

    def take(self) -> bytes:
        """Return bytes for the socket."""
        return self._out.read()

    def end(self) -> None:
        """Say that no more comes."""
        try:
            self._tls.unwrap()
        except (ssl.SSLError, OSError):
            pass  # the peer has not ended yet


class Offer:
    """The protocols that a client offers in its ClientHello."""

    def __init__(self) -> None:
        self.protocols: list[str] = []
        #: The one to choose once it is known.
        self.chosen = ""
        self.is_read = False


class ClientContext:
    """TLS towards clients, with certificates of the sandbox's authority."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._context = SSL.Context(SSL.TLS_SERVER_METHOD)
        self._context.set_min_proto_version(SSL.TLS1_2_VERSION)
        self._context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
        self._context.set_options(SSL.OP_NO_TICKET | SSL.OP_NO_RENEGOTIATION)
        self._context.use_privatekey(authority.leaf_key)
        # One callback for all connections, made before the process is confined: it needs executable memory.
        self._context.set_alpn_select_callback(_choose)

    def start(self, name: str, offer: Offer) -> ClientTls:
        """Begin a handshake as the server `name`."""
        return ClientTls(self._context, self._authority.leaf(name), self._authority, offer)


def _choose(connection: SSL.Connection, offered: list[bytes]) -> bytes | Any:
    offer: Offer = connection.get_app_data()
    if not offer.is_read:
        offer.protocols = [each.decode("latin-1") for each in offered]
        offer.is_read = True
        return b""  # ends this handshake, which only reads the offer
    return offer.chosen.encode() if offer.chosen else _NO_ALPN


class ClientTls:
    """TLS of a connection from a client."""

    def __init__(
        self, context: SSL.Context, leaf: x509.Certificate, authority: Authority, offer: Offer
    ) -> None:
        self._tls = SSL.Connection(context, None)
        self._tls.use_certificate(leaf)
        self._tls.use_privatekey(authority.leaf_key)
        self._tls.set_app_data(offer)
        self._tls.set_accept_state()
        self._written = 0
        #: Bytes that the last record lacks; None once that is unknown.
        self._lacks: int | None = 0
        #: Whether all that was fed is read, and whether what is not read is one whole record.
        self._is_drained = self._is_whole = False

    def name(self) -> str | None:
        """Return the server name that the client sent."""
        found = self._tls.get_servername()
        return found.decode("latin-1") if found is not None else None

    def handshake(self) -> bool:
        """Whether the handshake is done. Raises TlsFailed."""
        try:
            self._tls.do_handshake()
        except SSL.WantReadError:
            return False
        except SSL.Error as error:
            raise TlsFailed(_text(error)) from None
        return True

    def feed(self, data: bytes) -> None:
        """Take bytes of the socket."""
        begin = end = self._lacks
        if end is not None:
            size, records = len(data), 0
            while end + _RECORD_HEAD <= size:
                end += _RECORD_HEAD + int.from_bytes(data[end + 3 : end + _RECORD_HEAD])
                records += 1
            self._lacks = end - size if end >= size else None
            self._is_whole = self._is_drained and begin == 0 and records == 1 and end == size
        self._is_drained = False
        while data:
            data = data[self._tls.bio_write(data) :]

    def read(self) -> tuple[bytes, bool]:
        """Return decrypted bytes, and whether the peer has ended orderly."""
        parts = []
        try:
            while True:
                parts.append(self._tls.recv(_RECORD))
                if self._is_whole:  # another read would only find, with an exception, that there is no more
                    self._is_whole, self._is_drained = False, True
                    return parts[0], False
        except SSL.WantReadError:
            self._is_whole, self._is_drained = False, True
            return b"".join(parts), False
        except SSL.ZeroReturnError:
            return b"".join(parts), True
        except SSL.Error as error:
            if not parts:
                raise TlsFailed(_text(error)) from None
            return b"".join(parts), False

    def write(self, data: bytes) -> None:
        """Encrypt."""
        self._written = len(data)
        self._tls.sendall(data)

    def take(self) -> bytes:
        """Return bytes for the socket."""
        parts: list[bytes] = []
        size = _RECORD + self._written + (self._written >> 6)  # what encryption adds to each record
        self._written = 0
        try:
            while not parts or len(parts[-1]) == size:
                parts.append(self._tls.bio_read(size))
        except SSL.WantReadError:
            pass
        return b"".join(parts)

    def end(self) -> None:
        """Say that no more comes."""
        try:
            self._tls.shutdown()
        except SSL.Error:
            pass


def _text(error: SSL.Error) -> str:
    found = error.args[0] if error.args else ()
    reasons = [each[2] for each in found if len(each) > 2] if isinstance(found, list | tuple) else []
    return ", ".join(reasons) or "unexpected end"


class Endpoint:
    """A non-blocking socket with the bytes that it has not accepted yet, and its TLS, if any."""

    def __init__(self, socket: _socket.socket, first: bytes = b"") -> None:
        socket.setblocking(False)
        self.socket = socket
        self.tls: ServerTls | ClientTls | None = None
        self._first = first
        self._plain: list[bytes] = []
        self._unsent: deque[bytes | memoryview] = deque()
        #: Bytes that the socket has not accepted.
        self.unsent = 0
        #: Whether a read may find something, whether the kernel has announced the end, whether the peer has
        #: ended, and whether orderly.
        self.readable, self.ending, self.ended, self.orderly = True, False, False, False
        #: Whether TLS may have data that came with the end of its handshake.
        self.fresh = self._told = False

    def raw(self) -> bytes | None:
        """Read from the socket; None if nothing is there, empty at the end. Raises OSError."""
        if self._first:
            first, self._first = self._first, b""
            return first
        if self.ended or not self.readable:
            return None
        try:
            data = self.socket.recv(CHUNK)
        except BlockingIOError:
            self.readable = False
            return None
        # A short read has emptied the socket. The next bytes wake the loop again, and so does an end.
        self.readable = self.ending or len(data) == CHUNK
        self.ended = not data
        return data

    def receive(self) -> bytes | None:
        """Read decrypted bytes; None if nothing is there, empty once at the end.

        Raises OSError or TlsFailed.
        """
        if self.ended:
            told, self._told = self._told, True
            return None if told else b""
        data = self.raw()
        if self.tls is None:
            self.orderly, self._told = self.ended, self.ended
            return data
        if data is None and not self.fresh:
            return None
        self.fresh = False
        if data or (data is not None and isinstance(self.tls, ServerTls)):
            self.tls.feed(data)
        text, self.orderly = self.tls.read()
        self.ended = self.ended or self.orderly
        if text or not self.ended:
            # After TLS's own end nothing need come that wakes the loop: the peer may wait for our end.
            self.readable = self.readable or self.ended
            return text or None
        self._told = True
        return b""

    def send(self, data: bytes) -> None:
        """Send with the next `flush`: what belongs together is one record and one packet."""
        if data:
            self._plain.append(data)
            self.unsent += len(data)

    def push(self) -> None:
        """Send what TLS itself has to say."""
        if self.tls is not None:
            self.put(self.tls.take())

    def put(self, data: bytes) -> None:
        """Send bytes as they are."""
        if data:
            self._unsent.append(data)
            self.unsent += len(data)
            self._write()

    def flush(self) -> None:
        """Send kept bytes. Raises OSError, except if the socket is full."""
        if self._plain:
            data, self._plain = b"".join(self._plain), []
            self.unsent -= len(data)
            if self.tls is not None:
                self.tls.write(data)
                data = self.tls.take()
            self.put(data)
        elif self._unsent:
            self._write()

    def _write(self) -> None:
        while self._unsent:
            first = self._unsent[0]
            try:
                count = self.socket.send(first)
            except BlockingIOError:
                return
            self.unsent -= count
            if count < len(first):
                self._unsent[0] = memoryview(first)[count:]
            else:
                self._unsent.popleft()

    def finish(self) -> None:
        """Say that no more comes. Everything is sent already."""
        try:
            if self.tls is not None:
                self.tls.end()
                self.push()
            self.socket.shutdown(_socket.SHUT_WR)
        except OSError:
            pass  # the peer has closed
