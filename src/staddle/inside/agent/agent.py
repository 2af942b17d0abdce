"""The agent: our process inside a sandbox, which starts all other processes there.

    host program ══ main socket ══ agent ── shells, commands, terminals
                 ══ a socket for each process it started

It waits only for its sockets and for the end of its children, and reaps every orphan. It ends, with all
processes below it, when the main socket is closed: by the host program, or by the kernel when the host
program has ended.

As the first process of a pid namespace it has capabilities over the sandbox. All its messages come from
outside, and no process inside can trace it. On any other backend it is as confined as the commands it starts,
and deserves no more trust.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import errno
import os
import select

from ...ipc import agent_messages
from ...ipc.wire import CONFINEMENT, Malformed, NotStarted, await_descriptors, close_all
from ...linux import process
from . import process_tree, processes, usage
from .processes import Child, QueuedSocket, available, end_others, terminal
from .shell_files import SHELL_OPTIONS, ChannelFiles, InDirectory, greeting
from .starter import ProgramStarter
from .sudo import SudoRequests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from ...ipc.agent_messages import Who
    from ...limits.supervisor import LimitTally
    from ...network.namespace.socket_handoff import ForwardSockets
    from .confinement import AnotherUser
    from .mount_swap import Swap
    from .own_namespaces import AgentNetwork
    from .processes import Become
    from .shell_files import Channel

#: After so many milliseconds without a request, the agent does its deferred work.
_IDLE = 10
#: The most descriptors to close later. Above this they are closed at once: a busy sandbox may never be idle.
_MOST_LATER = 32


class SandboxAgent:
    """Serves one host program, from `begin` on, before anything is confined."""

    def __init__(
        self,
        become: Become,
        *,
        user: int = -1,
        swap: Swap | None = None,
        tidy: Callable[[], None] = lambda: None,
        confine: Callable[[bool], None] | None = None,
        another: Callable[[Who], AnotherUser] | None = None,
        ids: tuple[int, int] = (0, 0),
        confine_ahead: Callable[[], None] | None = None,
        watched: Callable[[bytes, int], None] | None = None,
    ) -> None:
        """Prepare to serve.

        `become` confines a child of ours and execs in it; see `processes.start`. `confine` only confines,
        inside the sandbox's cgroups or outside.
        `another` returns `become` and `confine` for another user of the sandbox, such as its root.
        `confine_ahead` confines the starter of programs. `watched` makes later processes report their calls.

        `user` owns the terminals (-1: we do), and `ids` are its ids inside. `swap` replaces mounted trees,
        and `tidy` removes the old trees when the agent is idle; see `TreeMounts`.
        """
        self._become, self._confine = become, confine
        self._user, self._swap, self._tidy, self._another = user, swap, tidy, another
        self._ids, self._confine_ahead = ids, confine_ahead
        self._watched = watched
        self._wishes: dict[int, _socket.socket] = {}
        self._later: list[int] = []  # closed when there is nothing else to do
        self._shells = 0
        self._sudo: SudoRequests | None = None
        self.watch: LimitTally | None = None  # enforces limits that the kernel does not
        self._children: dict[int, Child] = {}
        self._sockets: dict[int, Child | None] = {}
        self._reports: dict[int, Child] = {}

    def begin(
        self, socket: _socket.socket, channel: Channel, network: AgentNetwork | ForwardSockets | None = None
    ) -> None:
        """Make this process the agent, with the main socket `socket`.

        `network` hands out sockets of the sandbox's network namespace.
        """
        self._channel, self._network = channel, network
        self._main = QueuedSocket(socket)
        self._sockets[socket.fileno()] = None
        self._pause = process_tree.Pause(os.getpid())
        self._count = usage.Count(own_numbers=os.getpid() == 1)
        self._poll = select.poll()
        self._starter = ProgramStarter(self._confine_ahead, self._count, self._poll)
        # A SIGINT for a child that has not exec'd yet must not raise KeyboardInterrupt in our code.
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
        process.block_signals((process.SIGCHLD,))
        self._signals = process.signal_descriptor((process.SIGCHLD,))

    def open_shell(self, program: bytes, environment: tuple[bytes, ...], directory: bytes) -> None:
        """Start a shell and announce it on the main socket."""
        self.announce(*self.start_shell(program, environment, directory))

    def start_shell(
        self,
        program: bytes,
        environment: tuple[bytes, ...],
        directory: bytes,
        become: Become | None = None,
        start: Callable[[tuple[int, int, int]], int] | None = None,
    ) -> tuple[bytes, tuple[int, ...]]:
        """Start a shell, as the sandbox's user or by `become`; return (announcement, descriptors to send).

        `start` starts it with the given streams, and returns its pid when it runs.
        The caller closes its socket, the pipe of its commands and its pidfd, but not its files.
        """
        files = ChannelFiles(self._channel, self._shells)
        self._shells += 1
        control, commands = os.pipe2(os.O_CLOEXEC)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        # Its output outside of commands goes to the file in which it reports their end.
        noise = os.open(f"/proc/self/fd/{files.descriptor('done')}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            spec = processes.SpawnSpec(
                (program, *SHELL_OPTIONS), environment, directory, (control, null, noise)
            )
            os.write(commands, greeting(files.paths()))
            self._count.leave_out_one()
            if start is not None:
                child, theirs = self._add(lambda: (start((control, null, noise)), -1), files)
            else:
                child, theirs = self._start(spec, files, become or self._become)
            child.again = (program, environment, directory, become)
            said = agent_messages.encode(agent_messages.OPENED, child.pid, files.paths())
            return said, (theirs.detach(), commands, *files.descriptors(), *usage.handle(child.pid))
        except BaseException:
            files.close()
            os.close(commands)
            raise
        finally:
            for fd in (control, null, noise):
                os.close(fd)

    def leave_out_one(self) -> None:
        """Do not count the next process as one of the sandbox: it is ours."""
        self._count.leave_out_one()

    def waiting_shells(self) -> set[int]:
        """Return the pids of the shells, which are killed last when memory runs out."""
        return {pid for pid, child in self._children.items() if child.files is not None}

    def confirm(self) -> None:
        """Wait until every started process runs its program; NotStarted if one does not."""
        for report, child in list(self._reports.items()):
            poll = select.poll()
            poll.register(report, select.POLLIN)
            poll.poll()  # between fork and exec, no process waits for another
            self._heard_start(report)
            if child.why:
                raise NotStarted(CONFINEMENT, child.why.decode("utf-8", "replace"))

    def announce(self, said: bytes, descriptors: tuple[int, ...], socket: QueuedSocket | None = None) -> None:
        """Send the announcement and descriptors of a started shell."""
        try:
            (socket or self._main).send(said, descriptors)
        finally:
            for fd in (*descriptors[:2], *descriptors[8:]):
                os.close(fd)

    def serve(self) -> NoReturn:
        """Serve requests until the main socket is closed. Never returns."""
        self._poll.register(self._signals, select.POLLIN)
        for fd in self._sockets:
            self._poll.register(fd, select.POLLIN)
        while True:
            wait = _IDLE if self._later else self._starter.patience()
            if self._sudo is not None:
                wait = self._sudo.patience(wait)
            ready = self._poll.poll(wait if self.watch is None else self.watch.patience(wait))
            if self._later and (not ready or len(self._later) > _MOST_LATER):
                self._tidy()
                while self._later:
                    os.close(self._later.pop())
            for fd, events in ready:
                if fd == self._signals:
                    process.read_signals(fd)
                    self._reap()
                elif fd == self._starter.fileno():
                    self._tell_end(self._starter.heard())
                elif fd in self._reports:
                    self._heard_start(fd)
                elif fd in self._wishes:
                    self._grant(self._wishes[fd])
                elif fd in self._sockets:
                    self._attend(fd, events)
                elif self._sudo is not None:
                    self._sudo.serve(fd)

    def _attend(self, fd: int, events: int) -> None:
        child = self._sockets[fd]
        socket = child.socket if child else self._main
        if events & select.POLLOUT:
            self._watch(socket)
        if not events & ~select.POLLOUT:
            return
        try:
            message = agent_messages.receive_message(socket.raw, bodies=child is None)
        except BlockingIOError:
            return
        except (Malformed, OSError):
            message = None  # not our protocol: treat it as closed
        if message is None:
            if child is None:
                self._end()
            else:
                self._let_go(child)
            return
        try:
            if child:
                self._ask_child(child, message)
            else:
                self._ask(message)
        except (OSError, Malformed, ValueError) as error:
            why = str(error).encode("utf-8", "backslashreplace")[:2048]
            socket.send(agent_messages.encode(agent_messages.REFUSED, why))
        finally:
            message.close()
        self._watch(socket)

    def _grant(self, socket: _socket.socket) -> None:
        """Answer a request on the network's socket, whose other end only the host program has."""
        wish = socket.recv(agent_messages.LONGEST)
        if not wish or self._network is None:
            self._poll.unregister(socket.fileno())
            del self._wishes[socket.fileno()]
            socket.close()
            return
        try:
            self._network.answer(socket.fileno(), wish)
        except (OSError, ValueError):
            pass  # the host program has closed it, or does not read

    # ---------------------------------------------------------------- requests

    def _ask(self, message: agent_messages.Message) -> None:
        """Serve a request on the main socket."""
        self._starter.end_before(message.kind)
        if message.kind == agent_messages.SHELL:
            self.open_shell(*message.fields)
        elif message.kind == agent_messages.SHELL_AS and self._another is not None:
            program, environment, directory, who = message.fields
            become = self._another(who).become
            self.announce(*self.start_shell(program, environment, directory, become))
        elif message.kind in (agent_messages.SPAWN, agent_messages.SPAWN_WHOLE, agent_messages.EXECUTE):
            self._spawn(message, self._become)
        elif message.kind == agent_messages.SPAWN_AS and self._another is not None:
            self._spawn(message, self._another(message.fields[5]).become)
        elif message.kind == agent_messages.FILE_SERVER and self._confine is not None:
            self._start_file_server(self._confine, message)
        elif message.kind == agent_messages.FILE_SERVER_AS and self._another is not None:
            self._start_file_server(self._another(message.fields[1]).confine, message)
        elif message.kind == agent_messages.SUDO and self._another is not None:
            self._allow_sudo(self._another)
        elif message.kind == agent_messages.WATCH and self._watched is not None:
            self._watched(message.fields[0], os.dup(message.descriptors[0]))
            self._main.send(agent_messages.encode(agent_messages.WATCHED))
        elif message.kind == agent_messages.LOOK and self.watch is not None:
            self.watch.look(gone=1)  # count the failed command
            self._main.send(agent_messages.encode(agent_messages.LOOKED))
        elif message.kind == agent_messages.PING:
            self._main.send(agent_messages.encode(agent_messages.PONG, *message.fields))
        elif message.kind == agent_messages.COUNT:
            spent = self._count.whole() if message.fields[0] else (0, 0, 0, 0, 0, self._count.started())
            self._main.send(agent_messages.encode(agent_messages.COUNTED, spent))
        elif message.kind == agent_messages.END_ALL:
            process_tree.kill_everything(os.getpid())
            self._main.send(agent_messages.encode(agent_messages.ALL_ENDED))
        elif message.kind == agent_messages.END_OTHERS:
            ended = end_others(self._children, {*self._ours(), *message.fields[0]})
            self._main.send(agent_messages.encode(agent_messages.OTHERS_ENDED, ended))
        elif message.kind == agent_messages.PAUSE:
            mark = self._pause.begin() if message.fields[0] else self._pause.end()
            self._main.send(agent_messages.encode(agent_messages.PAUSED, *mark))
        elif message.kind == agent_messages.NETWORK and self._network is not None:
            ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
            self._network.hand_over(ours.fileno())
            self._wishes[ours.fileno()] = ours
            self._poll.register(ours.fileno(), select.POLLIN)
            self._main.send(agent_messages.encode(agent_messages.LINE), (theirs.fileno(),))
            theirs.close()
        elif message.kind == agent_messages.SWAP and self._swap is not None:
            others, roots, spared = message.fields
            if others not in (agent_messages.KEEP, agent_messages.END, agent_messages.REFUSE):
                raise Malformed(f"a swap does not {others!r} processes")
            self._main.send(
                self._swapped(self._swap, others, roots, {*self._ours(), *spared}, *message.descriptors)
            )
        else:
            raise Malformed(f"{message.kind!r} is not for the main socket")

    def _allow_sudo(self, another: Callable[[Who], AnotherUser]) -> None:
        if self._sudo is None and isinstance(self._channel, InDirectory):
            become = another((0, 0, ())).become
            self._sudo = SudoRequests(
                self._channel.directory,
                self._poll,
                lambda spec: self._start(spec, None, become),
                lambda pid: pid in self._ours() or processes.is_starting(pid, self._reports),
                self._ids,
            )
        self._main.send(agent_messages.encode(agent_messages.SUDO_READY))

    def _ours(self) -> set[int]:
        """Return the shells, the file server and the starter: the processes of an idle sandbox."""
        children = self._children.items()
        found = {pid for pid, child in children if child.files is not None or child.is_file_server}
        return {*found, self._starter.pid}

    def _swapped(
        self, swap: Swap, others: bytes, roots: tuple[bytes, ...], idle: set[int], socket: int
    ) -> bytes:
        """Replace trees. `others` decides about processes that are not in `idle`.

        The fork server mounts the new trees meanwhile and sends them on `socket`.
        """
        alone = others == agent_messages.REFUSE
        living = {pid for pid, entry in process_tree.table().items() if not entry.dead}
        if alone and {*living, *self._children} - {os.getpid(), *idle}:
            return agent_messages.encode(agent_messages.BUSY)
        ended = end_others(self._children, idle) if others == agent_messages.END else ()
        trees: list[int] = []

        def come() -> dict[str, int]:
            trees.extend(await_descriptors(socket, len(roots)))
            return dict(zip(map(os.fsdecode, roots), trees, strict=True))

        try:
            # The last close of a mount frees everything that it has in memory, which takes long: do that
            # later.
            self._later += swap(tuple(map(os.fsdecode, roots)), alone, come)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return agent_messages.encode(agent_messages.BUSY)  # a file is open for writing
        finally:
            close_all(trees)
        return agent_messages.encode(agent_messages.SWAPPED, ended)

    def _spawn(self, message: agent_messages.Message, become: Become) -> None:
        argv, environment, directory, rows, columns, *who = message.fields
        if not argv:
            raise Malformed("no program")
        made: list[int] = []
        master: list[int] = []
        try:
            if message.descriptors:
                stdin, stdout, stderr = message.descriptors
            else:
                owner = who[0][0] if who and self._user else self._user
                master, other = terminal(rows, columns, owner)
                made = [*master, other]
                stdin = stdout = stderr = other
            whole = message.kind == agent_messages.SPAWN_WHOLE
            stdio = (stdin, stdout, stderr)
            spec = processes.SpawnSpec(
                argv, environment, directory, stdio, terminal=bool(master), whole=whole
            )
            starts = message.kind == agent_messages.EXECUTE
            child, theirs = self._start(spec, None, become, starts=starts)
            child.is_ours = whole
            self._main.send(
                agent_messages.encode(agent_messages.STARTED, child.pid), (theirs.fileno(), *master)
            )
            theirs.close()
            if starts:
                self._starter.refill()
        finally:
            for fd in made:
                os.close(fd)

    def _start_file_server(self, confine: Callable[[bool], None], message: agent_messages.Message) -> None:
        grouped, (socket, code) = bool(message.fields[0]), message.descriptors
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._count.leave_out_one()
        try:
            child, theirs = self._add(
                lambda: processes.start_file_server(socket, code, lambda: confine(grouped), null), None
            )
        finally:
            os.close(null)
        child.is_file_server = True
        process_tree.FILE_SERVERS.add(child.pid)
        self._main.send(agent_messages.encode(agent_messages.STARTED, child.pid), (theirs.fileno(),))
        theirs.close()

    def _ask_child(self, child: Child, message: agent_messages.Message) -> None:
        """Serve a request on the socket of a process."""
        kind, fields = message.kind, message.fields
        if kind == agent_messages.PING:
            child.socket.send(agent_messages.encode(agent_messages.PONG, *fields))
        elif kind == agent_messages.SIGNAL:
            number, everything = fields
            if not 0 <= number <= process.LAST_SIGNAL:
                raise Malformed(f"there is no signal {number}")
            child.signal(number, everything=bool(everything))
        elif child.files is None:
            raise Malformed(f"{kind!r} is for a shell")
        elif kind == agent_messages.END_RUN:
            step, since, newest = fields
            holds = process_tree.holder(child.files.pipes(), child.files.former)
            if not child.ended:
                child.ending.step(
                    step, lambda: process_tree.of_run(child.pid, since, newest, process_tree.table(), holds)
                )
        elif kind == agent_messages.AGAIN:
            self.announce(*self.start_shell(*child.again), child.socket)
        elif kind in (agent_messages.ATTACH, agent_messages.RENEW):
            if kind == agent_messages.RENEW:
                child.files.renew()
            said = agent_messages.encode(agent_messages.FILES, child.files.paths())
            child.socket.send(said, child.files.descriptors())
        else:
            raise Malformed(f"{kind!r} is not for the line of a process")

    # ---------------------------------------------------------------- children

    def _start(
        self, spec: processes.SpawnSpec, files: ChannelFiles | None, become: Become, *, starts: bool = False
    ) -> tuple[Child, _socket.socket]:
        """Start a child, with `starts` by a waiting starter; return (child, the other end of its socket)."""
        pid = self._starter.take(spec, self._children) if starts else 0
        return self._add(lambda: (pid, -1) if pid else processes.start(spec, become), files)

    def _add(
        self, start: Callable[[], tuple[int, int]], files: ChannelFiles | None
    ) -> tuple[Child, _socket.socket]:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            pid, report = start()
        except BaseException:
            ours.close()
            theirs.close()
            raise
        self._count.mark(pid, pid - 1)
        child = Child(pid, QueuedSocket(ours), files)
        self._children[pid] = self._sockets[ours.fileno()] = child
        if report >= 0:
            self._reports[report] = child
            self._poll.register(report, select.POLLIN)
        else:
            child.above = self._starter.pid
        self._poll.register(ours.fileno(), select.POLLIN)
        return child, theirs

    def _heard_start(self, report: int) -> None:
        """Record that the program runs, or why it does not."""
        child = self._reports[report]
        number, _, why = available(report).partition(b" ")
        if why:
            child.errno, child.why = int(number), why
        self._poll.unregister(report)
        del self._reports[report]
        os.close(report)

    def _reap(self) -> None:
        while (ended := self._count.reap()) is not None:
            if os.WIFSTOPPED(ended[1]):
                self._starter.stopped(ended[0])
            else:
                self._tell_end(ended)

    def _tell_end(self, ended: tuple[int, int, agent_messages.UsageCounts] | None) -> None:
        """Report the end of a process to the host program, if that asked for it.

        `ended` is (pid, status, usage).
        """
        child = self._children.pop(ended[0], None) if ended else None
        if child is None or ended is None:
            return
        process_tree.FILE_SERVERS.discard(child.pid)
        for report in [fd for fd, whose in self._reports.items() if whose is child]:
            self._heard_start(report)
        child.ended, child.above = True, 0
        _, status, spent = ended
        child.socket.send(agent_messages.encode(agent_messages.ENDED, status, child.why, child.errno, spent))
        self._watch(child.socket)

    def _let_go(self, child: Child) -> None:
        """Kill a process, with everything below it, because the host program has closed its socket."""
        fd = child.socket.raw.fileno()
        self._poll.unregister(fd)
        del self._sockets[fd]
        child.socket.raw.close()
        child.end()
        if child.files:
            child.files.close()

    def _watch(self, socket: QueuedSocket) -> None:
        """Also poll for room on the socket while messages wait to be sent."""
        waiting = socket.flush()
        fd = socket.raw.fileno()
        if fd in self._sockets:
            self._poll.modify(fd, select.POLLIN | (select.POLLOUT if waiting else 0))

    def _end(self) -> NoReturn:
        # The kernel kills a pid namespace with its first process.

        if os.getpid() != 1:
            process_tree.end_everything(os.getpid())
        os._exit(0)
