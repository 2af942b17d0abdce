"""A socket for a sandbox that leads to the user's ssh-agent, for listing keys and signing only.

Each signature is reported. Other requests (adding or removing keys, locking) are refused. The protocol is
draft-ietf-sshm-ssh-agent: a length of four bytes, a type, and the rest.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import threading

from .. import places
from ..errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Types of messages.
_FAILURE, _LIST, _KEYS, _SIGN = 5, 11, 12, 13
_LONGEST = 256 << 10
_MOST_CONNECTIONS = 16


class SshAgentRelay:
    """Serves `path` until `close`. `used` is called with the comment of a key before it signs."""

    def __init__(self, used: Callable[[str], object]) -> None:
        self._agent = os.environ.get("SSH_AUTH_SOCK", "")
        if not os.path.exists(self._agent):
            raise UsageError(
                "there is no ssh-agent",
                why="SSH_AUTH_SOCK names no socket",
                fix="start one: eval $(ssh-agent); ssh-add",
            )
        self._used = used
        self._place = places.of_this_process("ssh")
        #: The socket for the sandbox.
        self.path = f"{self._place}/agent"
        self._listener = socket.socket(socket.AF_UNIX)
        self._slots = threading.Semaphore(_MOST_CONNECTIONS)
        try:
            self._listener.bind(self.path)
            os.chmod(self.path, 0o666)  # noqa: S103 - the directory is private; inside, another id connects
            self._listener.listen(_MOST_CONNECTIONS)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._listener.close()
        shutil.rmtree(self._place, ignore_errors=True)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._slots.acquire()
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        try:
            self._exchange(client)
        finally:
            self._slots.release()

    def _exchange(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as agent:
            try:
                client.settimeout(60)
                agent.connect(self._agent)
                names: dict[bytes, str] = {}
                while (request := _message(client)) is not None:
                    if request[:1] not in (bytes([_LIST]), bytes([_SIGN])):
                        _send(client, bytes([_FAILURE]))
                        continue
                    if request[0] == _SIGN:
                        key = _string(request, 1)[0]
                        if key not in names:
                            _send(agent, bytes([_LIST]))
                            names = _names(_message(agent) or b"")
                        self._used(names.get(key, "an unknown key"))
                    _send(agent, request)
                    _send(client, _message(agent) or bytes([_FAILURE]))
            except (OSError, struct.error):
                return


def _message(source: socket.socket) -> bytes | None:
    """The next message; None at the end. OSError for one that is too long."""
    header = _exactly(source, 4)
    if header is None:
        return None
    (length,) = struct.unpack(">I", header)
    if not 0 < length <= _LONGEST:
        raise OSError("a message of this length is not for an ssh-agent")
    return _exactly(source, length)


def _exactly(source: socket.socket, count: int) -> bytes | None:
    found = b""
    while len(found) < count:
        part = source.recv(count - len(found))
        if not part:
            return None
        found += part
    return found


def _send(target: socket.socket, message: bytes) -> None:
    target.sendall(struct.pack(">I", len(message)) + message)


def _string(message: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from(">I", message, at)
    return message[at + 4 : at + 4 + length], at + 4 + length


def _names(answer: bytes) -> dict[bytes, str]:
    """The comments of the agent's keys."""
    found: dict[bytes, str] = {}
    if answer[:1] != bytes([_KEYS]):
        return found
    (count,), at = struct.unpack_from(">I", answer, 1), 5
    for _ in range(count):
        key, at = _string(answer, at)
        comment, at = _string(answer, at)
        found[key] = comment.decode("utf-8", "replace")
    return found
