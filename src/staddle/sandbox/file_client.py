"""The client of a sandbox's file server, the process inside that opens, lists and writes files.

It is started when it is first needed, and again when something inside has killed it. Nothing
that it says is believed: answers are checked and bounded, a descriptor that it hands out is
looked at before it is used, errors are built here, and each wait is bounded.
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

#: The most names in one answer, and the most bytes.
MOST_ROWS, MOST_BYTES = 1_000_000, 256 << 20
_PIPE_SIZE = 1 << 20
#: After so many seconds without a message the server gets SIGCONT.
_SILENCE = 1.0
_SIGCONT = 18

_code: list[bytes] = []


class FileAnswer:
    """Rows of facts about files, and a file (-1: none), which is the taker's to close."""

    def __init__(self) -> None:
        self.rows: list[FileRow] = []
        self.file = -1


class FileClient:
    """Sends requests to the file server of one sandbox. Thread-safe: one request at a time."""

    def __init__(self, agent: AgentClient, who: Who | None = None) -> None:
        """With `who`, the server is another user of the sandbox."""
        self._agent, self._who = agent, who
        #: The lock of the server. While it is held, the host program does nothing to files inside.
        self.turn = threading.RLock()
        self._socket: _socket.socket | None = None
        self._process: SpawnedProcess | None = None
        self._closed = False
        #: Whether an answer is still to come: its caller may have been interrupted meanwhile.
        self._is_asked = False

    # ------------------------------------------------------------ questions

    def ask(self, operation: bytes, *words: bytes, numbers: tuple[int, ...] = ()) -> FileAnswer:
        """Ask, and wait for the whole answer. OSError as the kernel said it inside."""
        with self.turn:
            for _ in range(2):
                self._say(operation, words, numbers)
                try:
                    return self._answer()
                except _Killed as killed:
                    # It is safe to ask another one when nothing can have been done.
                    if not killed.unheard and operation not in file_messages.LOOKS:
                        raise
                    last = killed
            raise last

    def open(self, operation: bytes, *words: bytes) -> int:
        """A file inside, opened for reading; the caller's to close."""
        found = self.ask(operation, *words).file
        if found < 0:
            raise self._lost("a file was asked for, and none came")
        return found

    def send(self, operation: bytes, *words: bytes, numbers: tuple[int, ...] = ()) -> Sending:
        """Ask for something with content that is still to come. While the turn is held."""
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
        """Ask for something that is too long for an answer. While the turn is held."""
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
        """Whether it is being asked something at this moment."""
        return not uninterrupted(self._is_free)

    def _is_free(self) -> bool:
        if not self.turn.acquire(blocking=False):
            return False
        self.turn.release()
        return True

    @uninterruptible
    def replace_server(self) -> None:
        """End the server, once it has answered: the next request is for another one."""
        if self.turn.acquire(timeout=PATIENCE):
            try:
                self._let_go()
            finally:
                self.turn.release()

    @uninterruptible
    def end_idle_server(self) -> bool:
        """End the server of an idle sandbox, for its descriptors; the next request starts another one."""
        # Also not while this very thread asks for something, in the middle of which it needs descriptors.
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
            self._is_asked = True  # before it is sent: an interruption from here on leaves that open
            try:
                file_messages.send_message(
                    server, file_messages.QUESTION, operation, words, numbers, descriptors=handed
                )
                return
            except OSError as error:
                # It was killed since: another one can still be asked, for nothing has been done.
                self._let_go()
                if attempt == 2:
                    raise self._lost("it is killed as soon as it is started") from error

    def _conclude(self, operation: bytes) -> None:
        """Say how it ended to the one that was asked, never to another, and wait for its answer."""
        try:
            if self._socket is not None:
                file_messages.send_message(self._socket, file_messages.QUESTION, operation, (), ())
        except OSError:
            pass  # it has ended; what it said before is still there
        self._answer()

    def _answer(self) -> FileAnswer:
        """Receive all of an answer."""
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
                fd, said.descriptor = said.descriptor, -1  # ours to close, whatever it is
                answer.file = self._checked(fd)
        return answer

    def _messages(self) -> Iterator[file_messages.Said]:
        """The messages of one answer, the last one included."""
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
        """The next message, or None when none comes within so many seconds."""
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
        """Poll for so many seconds. A silent server gets SIGCONT: something inside may have stopped it."""
        ready = interruptible(partial(poll.poll, min(patience, _SILENCE) * 1000))
        if not ready and patience > _SILENCE:
            if self._process is not None:
                self._process.signal(_SIGCONT)
            ready = interruptible(partial(poll.poll, (patience - _SILENCE) * 1000))
        return ready

    @property
    def descriptor(self) -> int:
        """Readable when it says something."""
        return -1 if self._socket is None else self._socket.fileno()

    def _checked(self, fd: int) -> int:
        """A descriptor that was handed out is a regular file, or nothing."""
        if fd >= 0 and not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise self._lost("it handed out something else than a file")
        if fd >= 0:
            os.set_blocking(fd, False)  # some files of the system wait for something to happen
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
        """End it: what comes from it now belongs to no question."""
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
        """Close the socket in a fork of the program: the server belongs to the parent."""
        self._closed = True
        if self._socket is not None:
            self._socket.close()


class _Killed(SessionError):
    """The file server was killed during a request; `unheard`: before it had read it."""

    unheard = False


class Sending:
    """Content on its way inside: `write` it, then `finish`; or `drop` it."""

    def __init__(self, client: FileClient, pipe: int) -> None:
        self._client, self._pipe = client, pipe

    def write(self, data: bytes | memoryview) -> None:
        """Send all of it."""
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
        """Receive a message that came before all was sent: that it goes on, or why it does not."""
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
        """End the content, and wait until it is written."""
        self._close()
        self._client._conclude(file_messages.ALL)

    def drop(self) -> None:
        """Drop what was sent. After an error of the server there is nothing more to do."""
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
    """A stream from inside, to be read."""

    def __init__(self, client: FileClient, pipe: int) -> None:
        self._client, self._pipe = client, pipe
        self._ended = False

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; nothing at the end. Raises what went wrong inside."""
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
        """Done; what was not read is not wanted."""
        os.close(self._pipe)
        if not self._ended:
            self._client._let_go()


#: Those that have had a server.
_serving: WeakSet[FileClient] = WeakSet()


def _end_idle_servers() -> bool:
    """End the file servers that are idle, for their descriptors; whether there were any."""
    while True:
        try:
            clients = list(_serving)
            break
        except RuntimeError:
            continue  # another thread has added one that moment
    ended = [client.end_idle_server() for client in clients]
    return any(ended)


FILE_ROOM.givers.append(_end_idle_servers)
