"""The client of a sandbox's agent, in the host program.

Every started process has its own socket, so that no thread reads another's answers. The client trusts nothing
from the agent: it checks messages and descriptors before it uses them, and limits each wait.
"""

from __future__ import annotations

import _socket
import _thread
import errno
import os
import select
import time
from contextlib import suppress
from functools import partial

from ..errors import LaunchFailed, SandboxClosed, StaddleError, is_full, is_poll_refused, too_many_open_files
from ..interrupts import free_within, interruptible, uninterrupted, wait_readable
from ..linux.process import exit_status
from . import agent_messages
from .opened_shell import lost, opened_shell, refused
from .wire import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .agent_messages import NamedProcess, Others, Who
    from .opened_shell import OpenedShell

#: Seconds for an answer. Once started, an agent does nothing that takes long: a silent agent is stopped, or
#: worse.
PATIENCE = 10.0
_STARTING_PATIENCE = 20.0
#: Trees are exchanged in milliseconds; nothing can interrupt that wait.
_SWAP_PATIENCE = 20.0
#: A sandbox that is ending anyway gets less time.
_LAST_PATIENCE = 3.0


class AgentClient:
    """Requests to one agent. Thread-safe."""

    def __init__(
        self,
        main_socket: int,
        close: Callable[[], None] = lambda: None,
        *,
        kill: Callable[[], None] = lambda: None,
        stop_first: bool = False,
    ) -> None:
        """Take over `main_socket`; `close` is called once, after that is closed.

        `kill` ends the agent, and everything in the sandbox with it, without its help. With `stop_first`, no
        process in the sandbox runs any more when `close` is called.
        """
        self._stop_first, self._kill = stop_first, kill
        self._socket = _socket.socket(fileno=main_socket)
        self._socket.settimeout(PATIENCE)
        self._turn = _thread.allocate_lock()
        self._close = close
        self._closed = False
        #: Whether everything in the sandbox, including the agent, may be stopped because we asked for it.
        self.is_paused = False
        #: Processes that a swap and `end_others` treat as idle shells.
        self.spared: tuple[int, ...] = ()
        #: Whether an answer may come to a request that was given up; and the number of the last ping.
        self._is_out_of_step, self._serial = False, 0

    def announced(self) -> OpenedShell:
        """Return the shell that was started ahead, from the first message of an agent."""
        with self._turn:
            return opened_shell(self._receive(_STARTING_PATIENCE), "the sandbox could not be made")

    def shell(
        self,
        environment: Mapping[str, str],
        directory: str,
        program: str = "/bin/bash",
        *,
        who: Who | None = None,
    ) -> OpenedShell:
        """Start another shell; with `who`, as another user of the sandbox."""
        fields = os.fsencode(program), _environment(environment), os.fsencode(directory)
        if who is None:
            request = agent_messages.encode(agent_messages.SHELL, *fields)
        else:
            request = agent_messages.encode(agent_messages.SHELL_AS, *fields, who)
        return opened_shell(self._ask(request, patience=_STARTING_PATIENCE))

    def spawn(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        directory: str,
        *,
        stdio: tuple[int, int, int] | None = None,
        terminal: tuple[int, int] | None = None,
        whole: bool = False,
        waits: bool = False,
        who: Who | None = None,
    ) -> SpawnedProcess:
        """Start a program on these descriptors, which stay the caller's, or on a terminal (rows, columns).

        With `whole`, processes that it leaves behind are killed with it. With `who`, it runs as another user
        of the sandbox. `waits`: the caller waits for its end, on descriptors.
        """
        rows, columns = terminal or (0, 0)
        kind = agent_messages.EXECUTE if waits else agent_messages.SPAWN
        if whole:
            kind = agent_messages.SPAWN_WHOLE
        request = agent_messages.encode(
            kind if who is None else agent_messages.SPAWN_AS,
            tuple(os.fsencode(word) for word in argv),
            _environment(environment),
            os.fsencode(directory),
            rows,
            columns,
            *(() if who is None else (who,)),
        )
        message = self._ask(request, stdio or ())
        if message.kind != agent_messages.STARTED:
            raise refused(message, f"{argv[0]!r} could not be started")
        socket, *master = message.descriptors
        return SpawnedProcess(message.fields[0], socket, master[0] if master else -1)

    def start_file_server(self, socket: int, code: int, who: Who | None = None) -> SpawnedProcess:
        """Start a file server on `socket`, from the memory file `code`; both stay the caller's.

        With `who`, it runs as another user of the sandbox. While the sandbox is paused, the server is not in
        its cgroups.
        """
        kind = agent_messages.FILE_SERVER if who is None else agent_messages.FILE_SERVER_AS
        fields = (int(not self.is_paused), *(() if who is None else (who,)))
        message = self._ask(agent_messages.encode(kind, *fields), (socket, code))
        if message.kind != agent_messages.STARTED or len(message.descriptors) != 1:
            raise refused(message, "the sandbox's files cannot be reached")
        return SpawnedProcess(message.fields[0], message.descriptors[0])

    @property
    def alive(self) -> bool:
        """Whether the agent is at the other end."""
        if self._closed:
            return False
        poll = select.poll()
        poll.register(self._socket.fileno(), 0)
        return not poll.poll(0)  # poll always reports a hangup

    def network(self) -> int:
        """Return a socket on which the sandbox's network sockets arrive; the caller closes it."""
        message = self._ask(agent_messages.encode(agent_messages.NETWORK))
        if message.kind != agent_messages.LINE:
            raise refused(message, "the sandbox's network cannot be used")
        return message.descriptors[0]

    def pause(self) -> tuple[int, int]:
        """Stop everything in the sandbox, by signals; call it again if a process has continued since.

        Returns a number that changes when any process has run, or -1 if one does not stop. Also returns how
        many processes have a timer that continues them.
        """
        return self._pause(True)

    def resume(self) -> None:
        """Continue the processes."""
        self._pause(False)

    def look(self) -> None:
        """Have an agent that enforces limits sample now, and report the result."""
        message = self._ask(agent_messages.encode(agent_messages.LOOK))
        if message.kind != agent_messages.LOOKED:
            raise refused(message, "the sandbox's limits could not be read")

    def watch(self, filter: bytes, channel: int) -> None:
        """Load `filter` into every process that starts from now on; its listeners arrive on `channel`."""
        message = self._ask(agent_messages.encode(agent_messages.WATCH, filter), (channel,))
        if message.kind != agent_messages.WATCHED:
            raise refused(message, "the sandbox's programs cannot be watched")

    def allow_sudo(self) -> None:
        """Have the agent serve `sudo` inside from now on."""
        message = self._ask(agent_messages.encode(agent_messages.SUDO))
        if message.kind != agent_messages.SUDO_READY:
            raise refused(message, "sudo cannot be used in the sandbox")

    def count(self, *, whole: bool = False) -> tuple[int, int, int, int, int, int]:
        """Return the usage so far, as in `usage.Count`; only with `whole` all of it."""
        message = self._ask(agent_messages.encode(agent_messages.COUNT, int(whole)))
        if message.kind != agent_messages.COUNTED:
            raise refused(message, "what the sandbox uses could not be counted")
        spent: tuple[int, int, int, int, int, int] = message.fields[0]
        return spent

    def end_everything(self) -> None:
        """Kill everything in the sandbox except its agent; shells are restarted when needed."""
        message = self._ask(agent_messages.encode(agent_messages.END_ALL))
        if message.kind != agent_messages.ALL_ENDED:
            raise refused(message, "the processes in the sandbox could not be killed")

    def end_others(self) -> list[NamedProcess]:
        """Kill everything except the agent, idle shells, the file server and `spared`.

        Returns pid and name of each. Processes that were started by another of these are not listed.
        """
        message = self._ask(agent_messages.encode(agent_messages.END_OTHERS, self.spared))
        if message.kind != agent_messages.OTHERS_ENDED:
            raise refused(message, "the processes in the sandbox could not be killed")
        return list(message.fields[0])

    def _pause(self, stop: bool, patience: float = PATIENCE) -> tuple[int, int]:
        message = self._ask(agent_messages.encode(agent_messages.PAUSE, int(stop)), patience=patience)
        if message.kind != agent_messages.PAUSED:
            raise refused(message, "the sandbox could not be stopped")
        mark, timers = message.fields
        return mark, timers

    def swap(
        self, roots: Sequence[str], make: Callable[[int], None], others: Others
    ) -> list[NamedProcess] | None:
        """Replace the trees with these roots; return the processes that were killed for it.

        `make` sends the new mounts on a socket to the agent, which prepares itself meanwhile. `others`
        decides about processes other than idle shells: they continue ("keep"), or are killed as by
        `end_others` ("end"). With "refuse", they prevent the swap, like a file that is open for writing: the
        result is None.
        """
        names = tuple(map(os.fsencode, roots))
        request = agent_messages.encode(agent_messages.SWAP, others.encode(), names, self.spared)
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            with self._turn:
                self._send(request, (theirs.fileno(),))
                theirs.close()
                try:
                    make(ours.fileno())
                finally:  # if nothing was sent, the agent reports that, or why it does not wait
                    ours.close()
                    message = self._receive(_SWAP_PATIENCE)
        finally:
            ours.close()
            theirs.close()
        if message.kind == agent_messages.BUSY:
            return None
        if message.kind != agent_messages.SWAPPED:
            raise refused(message, "the files could not be exchanged")
        return list(message.fields[0])

    def close(self) -> None:
        """End the sandbox and everything in it."""
        if not free_within(_LAST_PATIENCE, self._turn):
            self._shut_down()  # it does not answer the thread that has the lock, and will not answer us
        elif self._stop_first and not self._closed:
            try:
                self._pause(True, _LAST_PATIENCE)
            except StaddleError:
                self._kill()  # it has ended by itself, or was stopped
        with self._turn:
            if self._closed:
                return
            self._closed = True
            self._socket.close()
        self._close()

    def kill(self) -> None:
        """Kill the sandbox, whose agent does not answer any more.

        Any thread may call it; `close` must follow.

        A paused agent cannot answer, and may be resumed, so it is spared.
        """
        if not self.is_paused:
            self._kill()
            self._shut_down()

    def confirm(self) -> None:
        """Check that the agent answers; if not, the sandbox is killed, and an error raised."""
        with self._turn:
            self._resynchronize(_LAST_PATIENCE)

    def _shut_down(self) -> None:
        """Shut down the socket; a thread that waits for an answer wakes up."""
        try:
            self._socket.shutdown(_socket.SHUT_RDWR)
        except OSError:
            pass  # the agent is gone

    def forsake(self) -> None:
        """Close the socket in a forked child: the sandbox must not outlive the parent."""
        self._closed = True  # without the lock: the thread that held it does not exist here
        self._socket.close()

    def _ask(
        self, request: bytes, descriptors: Sequence[int] = (), *, patience: float = PATIENCE
    ) -> agent_messages.Message:
        with self._turn:
            try:
                self._send(request, descriptors)
                return self._receive(patience)
            except StaddleError:
                raise
            # From a signal handler: drop the answer, so that the request is finished by then, not later.
            except BaseException:
                with suppress(StaddleError):
                    self._resynchronize()
                raise

    def _send(self, request: bytes, descriptors: Sequence[int] = ()) -> None:
        if self._closed:
            raise SandboxClosed("the sandbox is closed", fix="open another one", why="its agent has exited")
        if self._is_out_of_step:
            self._resynchronize()
        self._is_out_of_step = True  # before it is sent: an interruption from here on leaves that open
        try:
            agent_messages.send_message(self._socket, request, descriptors)
        except OSError as error:
            if error.errno == errno.E2BIG:
                self._is_out_of_step = False
                raise LaunchFailed(
                    "the program could not be started",
                    why=str(error),
                    fix="check the arguments and limits.processes",
                ) from None
            if error.errno == errno.ETOOMANYREFS:
                self._is_out_of_step = False
                raise LaunchFailed(
                    "the sandbox could not be asked",
                    why="processes of this user have sent too many descriptors that were not received",
                    fix="end the program that does so, or raise the limit (ulimit -n)",
                ) from None
            if is_full(error):  # of this process, not of the sandbox
                self._is_out_of_step = False
                raise too_many_open_files() from None
            raise lost() from error

    def _resynchronize(self, patience: float = PATIENCE) -> None:
        """Drop the answer to a request whose caller was interrupted while it waited, if there is one."""
        self._serial += 1
        self._is_out_of_step = False
        self._send(agent_messages.encode(agent_messages.PING, self._serial))
        while True:
            message = self._receive_any(patience)
            if (message.kind, message.fields) == (agent_messages.PONG, (self._serial,)):
                break
            message.close()
        self._is_out_of_step = False

    def _receive(self, patience: float = PATIENCE) -> agent_messages.Message:
        message = self._receive_any(patience)
        self._is_out_of_step = False
        return message

    def _receive_any(self, patience: float = PATIENCE) -> agent_messages.Message:
        try:
            if patience != PATIENCE:
                self._socket.settimeout(patience)
            try:
                wait_readable(self._socket.fileno(), patience)
                message = agent_messages.receive_message(self._socket)
            finally:
                if patience != PATIENCE:
                    self._socket.settimeout(PATIENCE)
        except (Malformed, OSError) as error:
            if isinstance(error, TimeoutError):
                self.kill()
                raise lost("its agent does not answer") from None
            if is_full(error):  # of this process, not of the sandbox
                self._is_out_of_step = isinstance(error, OSError) and is_poll_refused(error)
                raise too_many_open_files() from None
            raise lost(str(error)) from error
        if message is None:
            raise lost()
        return message


class SpawnedProcess:
    """A process that the agent started, with its own socket. Thread-safe."""

    def __init__(self, pid: int, socket: int, master: int = -1) -> None:
        self.pid, self.master = pid, master
        self._socket = _socket.socket(fileno=socket)
        self._socket.setblocking(False)
        self._turn = _thread.allocate_lock()
        self._status: int | None = None
        self._closed = False
        #: Why it was not started, and the errno.
        self.failure, self.errno = "", 0
        #: As from usage.of_process, once it has ended.
        self.used: tuple[int, int, int, int, int, int] | None = None
        #: Called once with its exit status, by the thread that notices its end.
        self.ended: Callable[[int], object] | None = None

    def fileno(self) -> int:
        """Readable when the process has ended, or the sandbox is gone."""
        return self._socket.fileno()

    def poll(self) -> int | None:
        """Return its exit status (128+N for signal N), or None while it runs. Never waits."""
        # The message of its end comes once: no exception of a signal handler may lose it.
        status, ended = uninterrupted(self._read)
        if status is not None and ended is not None:
            ended(status)
        return status

    def _read(self) -> tuple[int | None, Callable[[int], object] | None]:
        """Return its exit status so far, and whom to call with it, once."""
        with self._turn:
            while self._status is None and not self._closed:
                try:
                    message = agent_messages.receive_message(self._socket)
                except BlockingIOError:
                    break
                except (Malformed, OSError):
                    message = None
                if message is None:
                    self._status = 128 + 9  # the agent has ended, and everything with it
                elif message.kind == agent_messages.ENDED:
                    self._status = exit_code(message.fields[0])
                    self.failure = message.fields[1].decode("utf-8", "replace")
                    self.errno, self.used = message.fields[2:]
            ended = self.ended
            if self._status is not None:
                self.ended = None
            return self._status, ended

    def wait(self, timeout: float | None = None) -> int | None:
        """Return its exit status like `poll`, after a wait of up to `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None and not self._closed:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return None
            # A second at a time: another thread may read the end, or close the socket, meanwhile.
            patience = 1.0 if left is None else min(left, 1.0)
            poll = select.poll()
            try:
                poll.register(self._socket.fileno(), select.POLLIN)
            except ValueError:  # closed
                return self._status
            interruptible(partial(poll.poll, patience * 1000))
        return self._status  # even if another thread has read the end, and closed it

    def signal(self, number: int, *, everything: bool = False) -> None:
        """Send it a signal; with `everything` also to its descendants."""
        with self._turn:
            if self._status is None and not self._closed:
                try:
                    agent_messages.send_message(
                        self._socket, agent_messages.encode(agent_messages.SIGNAL, number, int(everything))
                    )
                except OSError:
                    pass  # it has ended; the next poll reports that

    def close(self) -> None:
        """Kill it with everything it started, if it still runs, and close its socket. `master` stays open."""
        with self._turn:
            if not self._closed:
                self._closed = True
                self._socket.close()


def exit_code(status: int) -> int:
    """Return the exit status as a shell reports it: 128 + N for signal N."""
    return exit_status(status & 0xFFFF)  # it came from inside: any number


def _environment(variables: Mapping[str, str]) -> tuple[bytes, ...]:
    return tuple(os.fsencode(f"{name}={value}") for name, value in variables.items())
