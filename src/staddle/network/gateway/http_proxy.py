"""An HTTP proxy with the gateway's rules, for sandboxes without a network namespace.

    python -I -S .../network/gateway/http_proxy.py LISTENER SETTINGS LIFELINE

All three are descriptors. SETTINGS has a password for clients, then the nameservers if they are not the
host's, then the entries of the allow list, one per line. The proxy exits when LIFELINE closes. It uses plain
sockets and threads, so it also runs where the gateway does not. Its input is bounded and parsed by the
gateway's code, because it is as untrusted.

CONNECT opens a tunnel, whose first bytes must be for the same host. `GET http://…` is forwarded, one request
per connection. A refusal names its reason and the entry that would allow it. Connections of programs without
proxy support can be redirected here, see `proxy_names`.
"""

from __future__ import annotations

import base64
import errno
import hmac
import os
import socket
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from staddle.ipc.led_connection import LedConnection
    from staddle.network.rules.rules import Verdict
    from staddle.policy.network import Network

#: Simultaneous connections; seconds for a request head, for one address, and for an idle connection.
_AT_ONCE, _HEAD, _DIAL, _IDLE = 64, 10.0, 10.0, 600.0
_LONGEST_SETTINGS = 1 << 16
_PIECE = 1 << 16


class ProxyRefusal(Exception):
    """The request is refused. The client receives `status` and the message of this exception.

    `number` is the errno for a connect() that fails for this reason.
    """

    def __init__(self, status: str, why: str, number: int = errno.EACCES) -> None:
        super().__init__(why)
        self.status, self.number = status, number


class HttpProxy:
    """The proxy of one sandbox."""

    def __init__(self, network: Network, word: str) -> None:
        from staddle.network.gateway.proxy_names import ProxyNames

        self._network, self._names = network, ProxyNames(network)
        self._plain_word = word
        self._word = b"Basic " + base64.b64encode(f"staddle:{word}".encode())
        self._room = threading.BoundedSemaphore(_AT_ONCE)

    def serve(self, listener: socket.socket) -> None:
        """Accept connections until the listener closes."""
        while True:
            self._room.acquire()
            try:
                client, _ = listener.accept()
                threading.Thread(target=self._attended, args=(client,), daemon=True).start()
            except OSError:
                self._room.release()
                return
            except RuntimeError:  # too many threads
                self._room.release()
                client.close()

    def _attended(self, client: socket.socket) -> None:
        try:
            client.settimeout(_HEAD)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._attend(client)
        except ProxyRefusal as refused:
            _say(client, refused.status, str(refused))
        except (OSError, ValueError):
            pass
        finally:
            client.close()
            self._room.release()

    def _attend(self, client: socket.socket) -> None:
        from staddle.ipc import led_connection
        from staddle.network.rules import sniff

        data = client.recv(sniff.LONGEST)
        if data.startswith(led_connection.FIRST):
            self._lead(client, led_connection.decode(data))
            return
        name, opening = self._heard(client, data)
        line, _, _ = opening.partition(b"\n")
        method, target, version = line.split()
        tunnel = method.upper() == b"CONNECT"
        port = _port(target, tunnel)
        self._check_word(opening)
        verdict = self._decided(name, port)
        with self._dialled(name, verdict) as server:
            rest = opening[_end(opening) :]
            if not tunnel:
                if rest and not _announces_more(opening):
                    raise ProxyRefusal("400 Bad Request", "one request a connection, please")
                server.sendall(_passed_on(method, target, version, opening) + rest)
            else:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self._look(client, server, name, rest)
            _relay(client, server)

    def _lead(self, client: socket.socket, led: LedConnection) -> None:
        """Serve a connection that the supervisor made on behalf of a program."""
        from staddle.ipc.led_connection import NAMES
        from staddle.network.gateway.proxy_names import say
        from staddle.network.gateway.tcp_relay import reset

        if not hmac.compare_digest(led.word, self._plain_word):
            return
        if led.host == NAMES:
            say(client, 0)
            self._names.serve(client, led.rest)
            return
        is_told = False
        try:
            name = self._names.meant(led.host)
            if name is None:
                raise ProxyRefusal("502 Bad Gateway", "it stands for no name", errno.EHOSTUNREACH)
            verdict = self._decided(name, led.port)
            if not led.waits:
                say(client, 0)
                is_told = True
            server = self._dialled(name, verdict)
        except ProxyRefusal as refused:
            if is_told:
                reset(client)
            else:
                say(client, refused.number)
            return
        with server:
            if not is_told:
                say(client, 0)
            self._look(client, server, name, led.rest)
            _relay(client, server)

    def _heard(self, client: socket.socket, data: bytes) -> tuple[str, bytes]:
        """Return the host that a request is for, and all bytes read. `data` was read before."""
        from staddle.network.rules import sniff

        piece = data
        while True:
            seen = sniff.parse_opening(data)
            if seen is not None:
                break
            if not piece:
                raise ProxyRefusal("400 Bad Request", "it was cut off")
            piece = client.recv(sniff.LONGEST - len(data))
            data += piece
        if seen.protocol != "http" or seen.problem or seen.name is None:
            raise ProxyRefusal("400 Bad Request", seen.problem or "it is not a request to a proxy")
        return seen.name, data.lstrip()

    def _check_word(self, opening: bytes) -> None:
        """Check the password: every local program can connect, but only the sandbox's programs know it."""
        for line in opening[: _end(opening)].split(b"\n")[1:]:
            field, _, value = line.partition(b":")
            if field.strip().lower() == b"proxy-authorization":
                if hmac.compare_digest(value.strip(), self._word):
                    return
                break
        raise ProxyRefusal("407 Proxy Authentication Required", "this proxy is for one sandbox only")

    def _decided(self, name: str, port: int) -> Verdict:
        from staddle.network.rules.rules import decide

        verdict = decide(name, port, self._network)
        if not verdict.allowed:
            raise _refusal(verdict)
        return verdict

    def _dialled(self, name: str, verdict: Verdict) -> socket.socket:
        """Connect to the very address that was checked."""
        from staddle.network.rules.rules import refused_alias, resolved

        addresses, aliases = self._addresses(name, verdict.port)
        refused = refused_alias(name, aliases, verdict.port, self._network)
        if refused is not None:
            raise _refusal(refused)
        number = errno.EHOSTUNREACH
        for address in addresses:
            about = verdict
            if address != name:
                about = resolved(name, address, verdict.port, self._network, own=_is_own(address))
            if not about.allowed:
                refused = about
                continue
            try:
                server = socket.create_connection((address, verdict.port), _DIAL)
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return server
            except OSError as error:
                number = error.errno or errno.ETIMEDOUT
        if refused is not None:
            raise _refusal(refused)
        raise ProxyRefusal("502 Bad Gateway", f"{name}:{verdict.port} does not answer", number)

    def _addresses(self, name: str, port: int) -> tuple[list[str], tuple[str, ...]]:
        """Return the addresses of a host and the known aliases that lead to them."""
        from staddle.network.gateway.proxy_names import lookup
        from staddle.network.rules.rules import refuses_names

        aliases: tuple[str, ...] = ()
        try:
            if self._network.dns and not _is_address(name):
                found, aliases = lookup(name, self._network.dns)
            else:
                every = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
                found = [str(where[0]) for _, _, _, _, where in every]
                if refuses_names(self._network):
                    aliases = _aliases(name)
        except (OSError, UnicodeError):
            found = []
        if not found:
            raise ProxyRefusal("502 Bad Gateway", f"{name} cannot be resolved", errno.EHOSTUNREACH)
        return found, aliases

    def _look(self, client: socket.socket, server: socket.socket, name: str, opening: bytes) -> None:
        """Hold back the client's first bytes until they are known to be for this host.

        Meanwhile the server's bytes are relayed, because some servers speak first.
        """
        import select

        from staddle.network.rules import sniff
        from staddle.network.rules.sniff import objection

        asked = None if _is_address(name) else name
        while (seen := sniff.parse_opening(opening)) is None:
            ready, _, _ = select.select([client, server], [], [], _IDLE)
            if not ready:
                raise TimeoutError
            if server in ready:
                data = server.recv(_PIECE)
                if not data:
                    return
                client.sendall(data)
            if client in ready:
                data = client.recv(sniff.LONGEST - len(opening))
                if not data:
                    break
                opening += data
        if seen is None and opening:
            seen = sniff.Opening("other", None, "its opening is cut off")
        if seen is not None and objection(seen, asked, self._network):
            raise ConnectionResetError
        server.sendall(opening)


def _aliases(name: str) -> tuple[str, ...]:
    """Return the aliases of a name from the C library, which asks the host's nameservers for IPv4 only."""
    from staddle.network.gateway.proxy_names import in_hosts_file

    if _is_address(name) or in_hosts_file(name):
        return ()
    try:
        canonical, others, _ = socket.gethostbyname_ex(name)
    except (OSError, UnicodeError):
        return ()
    return (canonical, *others)


def _refusal(verdict: Verdict) -> ProxyRefusal:
    where = f"{verdict.host}:{verdict.port} was refused: {verdict.rule}"
    return ProxyRefusal(
        "403 Forbidden", f"{where}; {verdict.allow} would allow it" if verdict.allow else where
    )


def _port(target: bytes, tunnel: bool) -> int:
    if not tunnel and not target.lower().startswith(b"http://"):
        raise ProxyRefusal("400 Bad Request", "only CONNECT and http:// are understood")
    authority = target if tunnel else target[7:].partition(b"/")[0].partition(b"?")[0]
    host, colon, port = authority.rpartition(b":")
    if not colon or authority.endswith(b"]"):
        if tunnel:
            raise ProxyRefusal("400 Bad Request", "CONNECT needs a port")
        return 80
    if b"@" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ProxyRefusal("400 Bad Request", "its target is malformed")
    return int(port)


def _end(opening: bytes) -> int:
    """Return the offset of the head's end. Accepts both kinds of line ends, as `sniff` does."""
    at = opening.index(b"\n") + 1
    while True:
        line, _, _ = opening[at:].partition(b"\n")
        at += len(line) + 1
        if not line.strip(b"\r"):
            return at


def _announces_more(opening: bytes) -> bool:
    fields = [line.partition(b":")[0].strip().lower() for line in opening[: _end(opening)].split(b"\n")[1:]]
    return b"content-length" in fields or b"transfer-encoding" in fields


def _passed_on(method: bytes, target: bytes, version: bytes, opening: bytes) -> bytes:
    """Return the head for the server: a relative target, no proxy headers, and `Connection: close`."""
    _, slash, path = target[7:].partition(b"/")
    lines = [b" ".join((method, slash + path or b"/", version))]
    for line in opening[: _end(opening)].split(b"\n")[1:]:
        field = line.partition(b":")[0].strip().lower()
        if field and not field.startswith(b"proxy-") and field != b"connection":
            lines.append(line.rstrip(b"\r"))
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])


def _say(client: socket.socket, status: str, why: str) -> None:
    body = f"staddle: {why}\n".encode("utf-8", "backslashreplace")
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    try:
        client.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)
    except OSError:
        pass


def _relay(client: socket.socket, server: socket.socket) -> None:
    """Relay both directions until both have ended. An end of one direction is passed on."""
    for each in (client, server):
        each.settimeout(_IDLE)
    back = threading.Thread(target=_pump, args=(server, client), daemon=True)
    back.start()
    _pump(client, server)
    back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(_PIECE):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def _is_own(address: str) -> bool:
    """Whether this is an address of this machine: only such an address can be bound."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _is_address(name: str) -> bool:
    return ":" in name or name.replace(".", "").isdigit()


def serve(listener: int, settings: int) -> None:
    """Serve on the listener `listener`, with the settings read from the descriptor `settings`."""
    from staddle.policy.network import Network

    with os.fdopen(settings, "rb") as file:
        word, servers, *entries = file.read(_LONGEST_SETTINGS).decode().split("\n")
    network = Network.allow(*(entry for entry in entries if entry), dns=servers.split())
    proxy = HttpProxy(network, word)
    proxy.serve(socket.socket(fileno=listener))


def main(words: list[str]) -> None:
    """Serve until the lifeline closes. Never returns."""
    # Appended, so that no file next to the package can replace a module of the standard library.
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..")))
    listener, settings, lifeline = map(int, words)
    threading.Thread(target=serve, args=(listener, settings), daemon=True).start()
    os.read(lifeline, 1)  # nobody writes to it: it closes when our starter exits
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
