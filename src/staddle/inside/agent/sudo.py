"""`sudo` and `su` inside: the agent runs their command as the sandbox's root.

A script of that name (policy.root_scripts) writes its pid to a pipe of the agent, and waits on a descriptor
for the exit status. The agent reads everything else from the process itself: its arguments, variables,
directory and streams. Any process in the sandbox may become its root this way, as with `user="root"`. So the
agent trusts only that a process of the sandbox asks.
"""

from __future__ import annotations

import os
import select
import stat
import time

from ...ipc import agent_messages
from ...ipc.wire import Malformed
from ...linux import process, procfs
from ...linux.process import exit_status
from .processes import SpawnSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable

    from .processes import Child

    #: Starts a program as the sandbox's root; returns it, and a socket that reports its end. Closing it kills
    #: it.
    StartRoot = Callable[[SpawnSpec], tuple[Child, _socket.socket]]

#: The name of the pipe among the control files, and the descriptor on which the script waits.
PIPE, REPLY = "sudo", 9
#: The most bytes of arguments and variables, and the most commands at once.
_LONGEST, _MOST = 4 << 20, 256
#: CPU seconds that requests may cost at once, and then per second. The agent is in no cgroup of the sandbox.
#: Without this, a process inside could keep it busy forever, past `limits.cpu`.
_BURST, _SHARE = 0.25, 0.2
#: Bytes to read at once: a few dozen requests.
_PIECE = 128
_PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ROOT = {b"HOME": b"/root", b"USER": b"root", b"LOGNAME": b"root", b"PATH": _PATH}

#: Options of sudo that change nothing here, without and with an argument: there is no password, and only the
#: streams are passed on.
_PLAIN = b"ABEHknNPS"
_WITH_ARGUMENT = b"Cp"
#: Letters that may precede the `u` of `-iu root`; options that need no command.
_CLUSTER = b"-isu" + _PLAIN
_FORGET = (b"-k", b"-K", b"--reset-timestamp", b"--remove-timestamp")
_LONG_PLAIN = (
    *(b"--preserve-env", b"--set-home", b"--non-interactive", b"--stdin", b"--reset-timestamp"),
    *(b"--preserve-groups", b"--askpass"),
)
#: Options of su that change nothing here: variables stay as they are, and there is no new terminal.
_SU_PLAIN = (b"-m", b"-p", b"--preserve-environment", b"-f", b"--fast", b"-P", b"--pty")
_ONLY_ASK = (b"-v", b"--validate", b"-K", b"--remove-timestamp", b"-l", b"--list")


class NotUnderstood(Exception):
    """An invalid command line; `args[0]` is the message."""


class RootCommand:
    """A command for the sandbox's root: its arguments, and the variables that it sets itself."""

    def __init__(self, argv: tuple[bytes, ...], variables: dict[bytes, bytes] | None = None) -> None:
        self.argv, self.variables = argv, variables or {}


def parse_sudo(words: list[bytes]) -> RootCommand:
    """Parse a command line of sudo, without its first word. Empty `argv`: there is nothing to run."""
    variables: dict[bytes, bytes] = {}
    login = shell = False
    if words and all(word in _FORGET for word in words):
        return RootCommand(())
    while words:
        word = words[0]
        if len(word) > 2 and word[:1] == b"-" and word[-1:] == b"u" and word.strip(_CLUSTER) == b"":
            words = [word[:-1], b"-u", *words[1:]]  # -iu root
            word = words[0]
        if word == b"--":
            words = words[1:]
            break
        if word.startswith(b"-") and len(word) > 1:
            words = words[1:]
            if word in _ONLY_ASK:
                return RootCommand(())
            if word in (b"-V", b"--version"):
                return RootCommand((b"/bin/echo", b"Sudo version 1.9 (staddle)"))
            if word in (b"-i", b"--login"):
                login = True
            elif word in (b"-s", b"--shell"):
                shell = True
            elif word in (b"-u", b"--user"):
                _check_user(words[0] if words else b"")
                words = words[1:]
            elif word.startswith((b"-u", b"--user=")):
                _check_user(word[2:] if word[1:2] == b"u" else word.partition(b"=")[2])
            elif word.partition(b"=")[0] in _LONG_PLAIN or (
                word[1:2] != b"-" and all(letter in _PLAIN for letter in word[1:])
            ):
                continue
            elif len(word) == 2 and word[1] in _WITH_ARGUMENT:
                words = words[1:]
            elif not word.startswith(b"--") and word.strip(b"-" + _PLAIN) in (b"i", b"s"):
                login, shell = b"i" in word, b"s" in word
            else:
                raise NotUnderstood(f"sudo: the option {word.decode('utf-8', 'replace')} is not offered here")
            continue
        name, equals, value = word.partition(b"=")
        if not equals or not name.replace(b"_", b"a").isalnum() or name[:1].isdigit():
            break
        variables[name] = value
        words = words[1:]
    if login or shell:
        quoted = b" ".join(b"'" + one.replace(b"'", b"'\\''") + b"'" for one in words)
        return RootCommand(_shell(b"/bin/bash", quoted if words else None, login=login), variables)
    if not words:
        raise NotUnderstood("sudo: name a command: sudo COMMAND")
    return RootCommand(tuple(words), variables)


def parse_su(words: list[bytes]) -> RootCommand:
    """Parse a command line of su, without its first word."""
    command: bytes | None = None
    login, shell, names, rest = False, b"/bin/bash", [], list(words)
    while rest:
        word = rest.pop(0)
        if word in (b"-", b"-l", b"--login"):
            login = True
        elif word in (b"-c", b"--command") and rest:
            command = rest.pop(0)
        elif word.startswith(b"--command="):
            command = word.partition(b"=")[2]
        elif word in (b"-s", b"--shell") and rest:
            shell = rest.pop(0)
        elif word in _SU_PLAIN:
            continue
        elif word.startswith(b"-"):
            raise NotUnderstood(f"su: the option {word.decode('utf-8', 'replace')} is not offered here")
        else:
            names.append(word)
    _check_user(names[0] if names else b"root")
    return RootCommand(_shell(shell, command, login=login))


def _shell(shell: bytes, command: bytes | None, *, login: bool) -> tuple[bytes, ...]:
    """Return the arguments of a shell. A login shell starts in root's home."""
    if not login:
        return (shell, *(() if command is None else (b"-c", command)))
    home = b'cd; exec "$0" -l "$@"'
    return (b"/bin/sh", b"-c", home, shell, *(() if command is None else (b"-c", command)))


def _check_user(name: bytes) -> None:
    if name not in (b"root", b"0", b"#0"):
        who = name.decode("utf-8", "replace")
        raise NotUnderstood(f"sudo: only root can be chosen here, not {who!r} (sb.run(..., user={who!r}))")


class SudoRequests:
    """The pipe for requests, and the running commands."""

    def __init__(
        self,
        directory: int,
        poll: select.poll,
        start: StartRoot,
        is_ours: Callable[[int], bool],
        ids: tuple[int, int],
    ) -> None:
        """Make the pipe in `directory`. `is_ours` identifies staddle's own processes, which never ask.

        `ids` are the sandbox's user and group, because git and others check who asked.
        """
        self._asks = {b"SUDO_UID": b"%d" % ids[0], b"SUDO_GID": b"%d" % ids[1]}
        os.mkfifo(PIPE, 0o600, dir_fd=directory)
        self._pipe = os.open(PIPE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        # Every process inside may write, none may read, although a command can have the agent's uid.
        os.chmod(PIPE, 0o222, dir_fd=directory)  # noqa: S103
        self._poll, self._start, self._is_ours = poll, start, is_ours
        self._rest = b""
        #: CPU seconds of requests beyond their share, at the time `_since`; whether requests are suspended.
        self._debt, self._since, self._is_full = 0.0, time.monotonic(), False
        #: By descriptor, each command twice: by its socket, and by the pidfd of the process that asked.
        self._running: dict[int, _Running] = {}
        poll.register(self._pipe, select.POLLIN)

    def serve(self, fd: int) -> bool:
        """Handle an event on a descriptor; False if it is none of ours."""
        if fd == self._pipe:
            began = time.process_time()
            self._hear()
            self._charge(time.process_time() - began)
        elif fd in self._running:
            self._end(self._running[fd])
        else:
            return False
        return True

    def patience(self, wait: int | None) -> int | None:
        """Return the milliseconds to wait for the next event; others would wait `wait`."""
        if not self._is_full:
            return wait
        self._charge(0.0)
        if self._debt < _BURST:
            self._is_full = False
            self._poll.register(self._pipe, select.POLLIN)
            return wait
        left = int((self._debt - _BURST) / _SHARE * 1000) + 1
        return left if wait is None or wait < 0 else min(wait, left)

    def _charge(self, cost: float) -> None:
        """Record the cost of requests.

        Beyond their share, requests wait in the pipe, and then their writers.
        """
        now = time.monotonic()
        self._debt = max(0.0, self._debt - (now - self._since) * _SHARE) + cost
        self._since = now
        if self._debt > 2 * _BURST and not self._is_full:
            self._is_full = True
            self._poll.unregister(self._pipe)

    def _hear(self) -> None:
        try:
            lines = (self._rest + os.read(self._pipe, _PIECE)).split(b"\n")
        except BlockingIOError:
            return
        self._rest = lines.pop()[-16:]
        for line in lines:
            if line.isdigit() and len(line) < 10 and len(self._running) < 2 * _MOST:
                try:
                    self._ask(int(line))
                except (OSError, ValueError, Malformed):
                    continue  # it has ended, or cannot be inspected

    def _ask(self, pid: int) -> None:
        if pid <= 1 or self._is_ours(pid):
            return
        asking = process.pidfd_open(pid)
        taken: list[int] = []
        try:
            for number in (0, 1, 2, REPLY):
                taken.append(process.pidfd_getfd(asking, number))
            words, variables = _read(pid, "cmdline"), _read(pid, "environ")
            directory = os.fsencode(os.readlink(f"{procfs.directory(pid)}/cwd"))
            try:
                self._begin(asking, taken, words, variables, directory)
            except NotUnderstood as error:
                _tell(taken[2], str(error).encode() + b"\n")
                _tell(taken[3], b"1\n")
                os.close(asking)
        except BaseException:
            os.close(asking)
            raise
        finally:
            for fd in taken:
                os.close(fd)

    def _begin(
        self, asking: int, taken: list[int], words: list[bytes], variables: list[bytes], directory: bytes
    ) -> None:
        if len(words) < 2:
            raise NotUnderstood("sudo: it cannot be seen what was asked for")
        asked_by = os.path.basename(words[1])
        command = (parse_su if asked_by == b"su" else parse_sudo)(words[2:])
        if not command.argv:
            _tell(taken[3], b"0\n")
            os.close(asking)
            return
        env = dict(item.split(b"=", 1) for item in variables if b"=" in item)
        asks = {b"SUDO_USER": env.get(b"USER", b""), **self._asks}
        env = {**env, **_ROOT, **asks}
        # A script of root must find this sudo, not the host's, which does not work here.
        if (place := os.path.dirname(words[1])).startswith(b"/"):
            env[b"PATH"] = place + b":" + _PATH
        env |= command.variables
        spec = SpawnSpec(
            command.argv,
            tuple(b"%b=%b" % pair for pair in env.items()),
            directory,
            (taken[0], taken[1], taken[2]),
        )
        _, socket = self._start(spec)
        running = _Running(socket, os.dup(taken[3]), os.dup(taken[2]), asking)
        for fd in (socket.fileno(), asking):
            self._running[fd] = running
            self._poll.register(fd, select.POLLIN)

    def _end(self, running: _Running) -> None:
        """Report a command's end.

        If the process that asked has ended, closing the socket kills its command.
        """
        try:
            message = agent_messages.receive_message(running.socket)
            if message is not None and message.kind == agent_messages.ENDED:
                status, why = message.fields[:2]
                if why:
                    _tell(running.errors, b"sudo: " + why + b"\n")
                _tell(running.reply, b"%d\n" % exit_status(status))
        except (BlockingIOError, OSError, Malformed):
            pass  # no process waits for it
        for fd in (running.socket.fileno(), running.asking):
            del self._running[fd]
            self._poll.unregister(fd)
        running.close()


class _Running:
    """A running command of sudo."""

    def __init__(self, socket: _socket.socket, reply: int, errors: int, asking: int) -> None:
        socket.setblocking(False)
        self.socket, self.reply, self.errors, self.asking = socket, reply, errors, asking

    def close(self) -> None:
        self.socket.close()
        for fd in (self.reply, self.errors, self.asking):
            os.close(fd)


def _tell(fd: int, data: bytes) -> None:
    """Write to a pipe of the process that asks, if there is room. Never waits."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    if stat.S_ISFIFO(os.fstat(fd).st_mode) and any(events & select.POLLOUT for _, events in poll.poll(0)):
        os.set_blocking(fd, False)
        os.write(fd, data[:512])


def _read(pid: int, name: str) -> list[bytes]:
    fd = os.open(f"{procfs.directory(pid)}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = bytearray()
        while len(data) < _LONGEST and (piece := os.read(fd, 1 << 16)):
            data += piece
    finally:
        os.close(fd)
    return bytes(data).split(b"\0")[:-1]
