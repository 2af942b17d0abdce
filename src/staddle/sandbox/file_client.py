"""Client of a sandbox's file server, the process inside that opens, lists and writes files.

The first request starts the server, and a later one again if something inside has killed it. The client
trusts none of its answers: it validates and bounds them, checks received descriptors before use, builds
errors itself, and bounds each wait.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import stat
import threading
from functools import partial
from weakref import WeakSet

from .. import errors
from ..display import shown
from ..errors import SandboxClosed, SessionError
from ..interrupts import interruptible, uninterrupted, uninterruptible
from ..ipc import file_messages
from ..ipc.agent_client import PATIENCE
from ..ipc.opened_shell import lost
from ..ipc.wire import Malformed
from ..linux.file_room import FILE_ROOM
from ..linux.fileio import memory_file, resize_pipe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..ipc.agent_client import AgentClient, SpawnedProcess
    from ..ipc.agent_messages import Who
    from ..ipc.file_messages import FileRow

#: The most rows and bytes in one answer.
MOST_ROWS, MOST_BYTES = 1_000_000, 256 << 20
_PIPE_SIZE = 1 << 20
#: Seconds of silence after which the server gets SIGCONT.
_SILENCE = 1.0
_SIGCONT = 18

_code: list[bytes] = []


class FileAnswer:
    """Rows of facts about files, and a descriptor (-1: none), which the receiver closes."""

    def __init__(self) -> None:
        self.rows: list[FileRow] = []
        self.file = -1


class FileClient:
    """Sends requests to the file server of one sandbox. Thread-safe: one request at a time."""

    def __init__(self, agent: AgentClient, who: Who | None = None) -> None:
        """Prepare a client. With `who`, the server runs as that user of the sandbox."""
        self._agent, self._who = agent, who
        #: Lock of the server. While it is held, the host program does nothing to files inside.
        self.turn = threading.RLock()
        self._socket: _socket.socket | None = None
        self._process: SpawnedProcess | None = None
        self._closed = False
        #: Whether an answer is outstanding: its caller may have been interrupted.
        self._is_asked = False

    # ------------------------------------------------------------ questions

    def ask(self, operation: bytes, *words: bytes, numbers: tuple[int, ...] = ()) -> FileAnswer:
        """Send a request and wait for the whole answer. Raises the OSError that occurred inside."""
        with self.turn:
            for _ in range(2):
                self._say(operation, words, numbers)
                try:
                    return self._answer()
                except _Killed as killed:
                    # Ask another server only if this one has changed nothing.
                    if not killed.unheard and operation not in file_messages.LOOKS:
                        raise
                    last = killed
            raise last

    def open(self, operation: bytes, *words: bytes) -> int:
        """Open a file inside for reading; the caller closes it."""
        found = self.ask(operation, *words).file
        if found < 0:
            raise self._lost("a file was asked for, and none came")
        return found

    def send(self, operation: bytes, *words: bytes, numbers: tuple[int, ...] = ()) -> Sending:
        """Send a request whose content follows. The caller holds `turn`."""
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            resize_pipe(writing, _PIPE_SIZE)
            os.set_blocking(writing, False)
            self._say(operation, words, numbers, reading)
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        return Sending(self, writing)

    def receive(self, operation: bytes, *words: bytes) -> Receiving:
        """Send a request whose answer is a stream. The caller holds `turn`."""
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            resize_pipe(reading, _PIPE_SIZE)
            os.set_blocking(reading, False)
            self._say(operation, words, (), writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return Receiving(self, reading)

    @property
    def busy(self) -> bool:
        """Whether a request is in progress."""
        return not uninterrupted(self._is_free)

    def _is_free(self) -> bool:
        if not self.turn.acquire(blocking=False):
            return False
        self.turn.release()
        return True

    @uninterruptible
    def replace_server(self) -> None:
        """End the server after its current answer; the next request starts another one."""
        if self.turn.acquire(timeout=PATIENCE):
            try:
                self._let_go()
            finally:
                self.turn.release()

    @uninterruptible
    def end_idle_server(self) -> bool:
        """End the server of an idle sandbox to free descriptors; the next request starts another one."""
        # This thread may be in the middle of a request, for which it needs descriptors.
        if self.turn._is_owned() or not self.turn.acquire(blocking=False):  # type: ignore[attr-defined]
            return False
        try:
            is_open = self._socket is not None
            self._let_go()
            return is_open
        finally:
            self.turn.release()

    # ------------------------------------------------------------ the socket

    def _say(
        self, operation: bytes, words: tuple[bytes, ...], numbers: tuple[int, ...], descriptor: int = -1
    ) -> None:
        handed = () if descriptor < 0 else (descriptor,)
        if sum(map(len, words)) > file_messages.LONGEST - 4096:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        if self._is_asked:
            self._let_go()
        for attempt in range(3):
            server = self._socket or self._started()
            self._is_asked = True  # before sending: an interruption leaves the answer outstanding
            try:
                file_messages.send_message(
                    server, file_messages.QUESTION, operation, words, numbers, descriptors=handed
                )
                return
            except OSError as error:
                # The server was killed before it read this, so another one may be asked.
                self._let_go()
                if attempt == 2:
                    raise self._lost("it is killed as soon as it is started") from error

    def _conclude(self, operation: bytes) -> None:
        """Tell the server that has the request how it ended, never a new one, and wait for its answer."""
        try:
            if self._socket is not None:
                file_messages.send_message(self._socket, file_messages.QUESTION, operation, (), ())
        except OSError:
            pass  # it has exited; its earlier messages can still be read
        self._answer()

    def _answer(self) -> FileAnswer:
        """Receive a whole answer."""
        answer, room = FileAnswer(), MOST_BYTES
        for said in self._messages():
            if said.letter == file_messages.ERROR:
                raise file_messages.error_of(said)
            rows: Any = said.fields[0]
            room -= sum(len(row[0]) + 64 for row in rows)
            if len(answer.rows) + len(rows) > MOST_ROWS or room < 0:
                self._let_go()
                raise OSError(errno.EOVERFLOW, f"it contains more than {MOST_ROWS:,} names")
            answer.rows += rows
            if said.letter == file_messages.LAST:
                fd, said.descriptor = said.descriptor, -1  # ours to close, whatever its kind
                answer.file = self._checked(fd)
        return answer

    def _messages(self) -> Iterator[file_messages.Said]:
        """Yield the messages of one answer, including the last."""
        while True:
            said = self.heard(PATIENCE)
            if said is None:
                raise self._lost(f"it has not answered for {PATIENCE:g} seconds")
            try:
                yield said
            finally:
                said.close()
            if said.letter != file_messages.MORE:
                return

    def heard(self, patience: float) -> file_messages.Said | None:
        """Return the next message, or None if none arrives within `patience` seconds."""
        server = self._socket
        if server is None:
            raise self._lost("it has exited")
        poll = select.poll()
        poll.register(server.fileno(), select.POLLIN)
        if not self.wait(poll, patience):
            return None
        try:
            said = file_messages.receive_message(server)
        except ConnectionResetError:
            raise self._killed(unheard=True) from None
        except (Malformed, OSError) as error:
            raise self._lost(str(error)) from error
        if said is None:
            raise self._killed(unheard=False)
        if said.letter == file_messages.QUESTION:
            said.close()
            raise self._lost("it asks instead of answering")
        self._is_asked = said.letter == file_messages.MORE
        return said

    def wait(self, poll: select.poll, patience: float) -> list[tuple[int, int]]:
        """Poll for `patience` seconds. A silent server gets SIGCONT: something inside may have stopped it."""
        ready = interruptible(partial(poll.poll, min(patience, _SILENCE) * 1000))
        if not ready and patience > _SILENCE:
            if self._process is not None:
                self._process.signal(_SIGCONT)
            ready = interruptible(partial(poll.poll, (patience - _SILENCE) * 1000))
        return ready

    @property
    def descriptor(self) -> int:
        """Descriptor that is readable when the server has sent something; -1 without a server."""
        return -1 if self._socket is None else self._socket.fileno()

    def _checked(self, fd: int) -> int:
        """Return a received descriptor if it is a regular file. Raises otherwise."""
        if fd >= 0 and not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise self._lost("it handed out something else than a file")
        if fd >= 0:
            os.set_blocking(fd, False)  # reading some files in /proc and /sys blocks
        return fd

    # ------------------------------------------------------------ from start to end

    def _started(self) -> _socket.socket:
        if self._closed:
            raise SandboxClosed("the sandbox is closed", fix="open another one", why="close() was called")
        if not _code:
            from ..inside.agent.standalone import file_server_code

            _code.append(file_server_code())
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            code = memory_file(_code[0])
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise errors.not_handed_over(error, fix="") from error
        try:
            self._process = self._agent.start_file_server(theirs.fileno(), code, self._who)
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(code)
            theirs.close()
        ours.settimeout(PATIENCE)
        self._socket = ours
        _serving.add(self)
        return ours

    def _let_go(self) -> None:
        """End the server, so that a late answer is not taken for the next request's."""
        self._is_asked = False
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.close()
            self._process = None

    def _lost(self, why: str) -> SessionError:
        process = self._process
        failure = process.failure if process is not None and process.poll() is not None else ""
        self._let_go()
        if self._closed:
            return SandboxClosed("the sandbox is closed", fix="open another one", why="close() was called")
        if not self._agent.alive:
            return lost()
        return SessionError(
            "the process in the sandbox that serves files was lost",
            why=shown(failure)[:500] or why,
            fix="look what was done, and try again",
        )

    def _killed(self, *, unheard: bool) -> SessionError:
        found = self._lost("something inside has killed it")
        if isinstance(found, SandboxClosed):
            return found
        killed = _Killed(found.what, why=found.why, fix=found.fix)
        killed.unheard = unheard
        return killed

    @uninterruptible
    def close(self) -> None:
        """End the server, unless a request is in progress: that one fails when the sandbox ends."""
        self._closed = True
        if self.turn.acquire(blocking=False):
            try:
                self._let_go()
            finally:
                self.turn.release()

    def forsake(self) -> None:
        """Close the socket in a forked child of the program: the server belongs to the parent."""
        self._closed = True
        if self._socket is not None:
            self._socket.close()


class _Killed(SessionError):
    """The file server was killed during a request; `unheard`: before it had read it."""

    unheard = False


class Sending:
    """Content on its way to the server: call `write`, then `finish` or `drop`."""

    def __init__(self, client: FileClient, pipe: int) -> None:
        self._client, self._pipe = client, pipe

    def write(self, data: bytes | memoryview) -> None:
        """Send all of `data`."""
        left = memoryview(data).cast("B")
        poll = select.poll()
        poll.register(self._pipe, select.POLLOUT)
        poll.register(self._client.descriptor, select.POLLIN)
        while left:
            ready = dict(self._client.wait(poll, PATIENCE))
            if not ready:
                raise self._client._lost("it does not take what it asked for")
            if self._client.descriptor in ready:
                self._early()
                continue
            try:
                left = left[os.write(self._pipe, left[:_PIPE_SIZE]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                self._early()

    def _early(self) -> None:
        """Handle a message that arrives before everything is sent: progress, or an error."""
        said = self._client.heard(PATIENCE)
        if said is None:
            raise self._client._lost("it has let go of its pipe")
        said.close()
        if said.letter == file_messages.MORE:
            return
        self._close()
        if said.letter == file_messages.ERROR:
            raise file_messages.error_of(said)
        raise self._client._lost("it is done before it has everything")

    def finish(self) -> None:
        """End the content, and wait until the server has written it."""
        self._close()
        self._client._conclude(file_messages.ALL)

    def drop(self) -> None:
        """Discard the content. Does nothing if the server has reported an error."""
        if self._pipe < 0:
            return
        self._close()
        try:
            self._client._conclude(file_messages.DROP)
        except (OSError, errors.StaddleError):
            pass

    def _close(self) -> None:
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            os.close(pipe)


class Receiving:
    """Stream from the server, to be read."""

    def __init__(self, client: FileClient, pipe: int) -> None:
        self._client, self._pipe = client, pipe
        self._ended = False

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, none at the end. Raises the server's error."""
        if self._ended:
            return b""
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        while True:
            if not self._client.wait(poll, PATIENCE):
                raise self._client._lost("it sends nothing")
            try:
                data = os.read(self._pipe, min(size, _PIPE_SIZE))
            except BlockingIOError:
                continue
            if not data:
                self._ended = True
                self._client._answer()
            return data

    def close(self) -> None:
        """Close the stream; the server is ended if it was not read to the end."""
        os.close(self._pipe)
        if not self._ended:
            self._client._let_go()


#: Clients that have started a server.
_serving: WeakSet[FileClient] = WeakSet()


def _end_idle_servers() -> bool:
    """End idle file servers to free descriptors. Returns whether there were any."""
    while True:
        try:
            clients = list(_serving)
            break
        except RuntimeError:
            continue  # another thread added one meanwhile
    ended = [client.end_idle_server() for client in clients]
    return any(ended)


FILE_ROOM.givers.append(_end_idle_servers)
