"""Started by the seatbelt backend: makes the private directories, runs the command, removes them.

  launcher.py STATUS_FD PRIVATE CWD FILE_SIZE OPEN_FILES LISTENER SETTINGS PROXY COUNT MODE:PATH...
    COMMAND...

Runs outside the sandbox with the user's rights, and reads nothing from inside. It is a separate file, started
with `-I -S`, so that it imports nothing of ours. If a setup step fails, it writes the reason to STATUS_FD and
does not start the command. PROXY is a program that gets the descriptors LISTENER and SETTINGS and ends with
the launcher; `-` means no proxy.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def main(argv: list[str]) -> int:
    """Run the command to its end and return its exit status."""
    parent = os.getppid()
    # Block signals until a handler is set: a signal now would leave the directory behind.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    status, private, cwd, file_size, open_files = int(argv[0]), *argv[1:5]
    proxy, count = argv[5:8], int(argv[8])
    directories, command = argv[9 : 9 + count], argv[9 + count :]
    try:
        os.mkdir(private, 0o700)  # fails if it exists: then it is not ours
    except OSError as error:
        return _failed(status, f"the private directory could not be made: {error.strerror}")
    try:
        for item in directories:
            mode, _, path = item.partition(":")
            os.makedirs(private + path, exist_ok=True)
            os.chmod(private + path, int(mode, 8) & 0o777)
        _start_proxy(*proxy)
        os.chdir(cwd)
        return _run(status, command, (file_size, open_files), parent)
    except OSError as error:
        return _failed(status, f"{error.strerror} ({error.filename!r})")
    finally:
        _remove(private)


def _run(status: int, command: list[str], limits: tuple[str, str], parent: int) -> int:
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    child = os.fork()
    if child == 0:
        _become(status, command, limits)
    os.close(status)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in _PASSED_ON:
        signal.signal(number, lambda received, _: _signal_group(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    while True:
        done, how = os.waitpid(child, os.WNOHANG)
        if done:
            _signal_group(child, signal.SIGKILL)  # end the rest of its process group
            return os.WEXITSTATUS(how) if os.WIFEXITED(how) else 128 + os.WTERMSIG(how)
        if os.getppid() != parent:
            _signal_group(child, signal.SIGKILL)
        # Twice a second is enough to notice that the parent process is gone.
        if select.select([woken], [], [], 0.5)[0]:
            os.read(woken, 512)


def _start_proxy(listener: str, settings: str, program: str) -> None:
    """Start the proxy. It ends with us, because only we have the other end of its pipe."""
    if program == "-":
        return
    lifeline, _ours = os.pipe()
    given = [int(listener), int(settings), lifeline]
    if os.fork() == 0:
        try:
            os.setsid()  # Ctrl-C must not end the proxy
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):  # the command's streams: their readers wait for the command only
                os.dup2(null, stream)
            for fd in given:
                os.set_inheritable(fd, True)
            words = [sys.executable, "-I", "-S", program, *map(str, given)]
            os.execv(words[0], words)  # noqa: S606 - no shell, on purpose
        finally:
            os._exit(125)
    for fd in given:
        os.close(fd)


def _become(status: int, command: list[str], limits: tuple[str, str]) -> None:
    """In the child: its own session, its limits, default signals, then the command. Never returns."""
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for which, value in zip((resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE), limits, strict=True):
            if value != "-":
                resource.setrlimit(which, (int(value), int(value)))
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and exec keeps that
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.set_inheritable(status, False)  # Python closes all other descriptors on exec
        os.execv(command[0], command)  # noqa: S606 - no shell, on purpose
    except BaseException as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        os.write(status, f"{command[0]!r} could not be started: {why}".encode())
    finally:
        os._exit(125)


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _failed(status: int, sentence: str) -> int:
    os.write(status, sentence.encode("utf-8", "replace"))
    return 125


def _remove(private: str) -> None:
    """Remove the command's files by descriptor: links are removed, never followed."""
    parent = os.open(os.path.dirname(private), os.O_RDONLY | os.O_DIRECTORY)
    try:
        _remove_at(parent, os.path.basename(private))
    except (OSError, RecursionError) as error:
        print(f"staddle: {private!r} could not be removed: {error}", file=sys.stderr)
    finally:
        os.close(parent)


def _remove_at(parent: int, name: str) -> None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except OSError:
        os.unlink(name, dir_fd=parent)  # not a directory, or it cannot be opened
        return
    try:
        os.fchmod(fd, 0o700)  # make a read-only directory (Go's module cache) removable
        for entry in os.listdir(fd):
            _remove_at(fd, entry)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
