"""The process that systemd starts for us: it makes the confinement and stays until the end.

    systemd ── unit ── first ── command
                │        │
                │        └ PID 1 of the sandbox: reaps, passes signals on to everybody
                └ outside of the sandbox's processes: holds the line to the client

The unit's standard input is one end of a socket pair; the other is with the client, who sends
the orders and the command's three descriptors, and is told how it went. When the client is
gone, killed or not, the line is down, and this process ends everything: the kernel kills
`first` with it, and with `first` every process of the sandbox.
"""

from __future__ import annotations

import _socket
import os
import select
import struct

from ..layout.operations import Bind
from ..layout.owners import needs_translation
from ..linux import mounts, process, userns
from ..linux.syscalls import call
from . import confine, unit_orders, unit_view
from .instructions import Malformed, decode
from .status import CONFINEMENT, NotStarted, written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from ..linux.landlock import Ruleset
    from .instructions import Instructions

#: Messages. To us, once and first: four descriptors come with it. Then signals to pass on.
ORDERS, SIGNAL = b"o", b"k"
#: From us: a failure and its words, the command's first instruction, its exit status.
FAILED, STARTED, ENDED = b"f", b"s", b"x"
LONGEST = 4096

PASSED_ON = (process.SIGHUP, process.SIGINT, process.SIGQUIT, process.SIGTERM)


def main() -> NoReturn:
    """Be the unit. Never returns."""
    control = _socket.socket(fileno=0)
    try:
        code = _unit(control)
    except (NotStarted, Malformed, OSError) as error:
        code = error.code if isinstance(error, NotStarted) else CONFINEMENT
        _say(control, FAILED + written(code, str(error)))
    os._exit(code)


def _unit(control: _socket.socket) -> int:
    stdio, orders = _receive(control)
    process.block_signals((*PASSED_ON, process.SIGCHLD))
    _check_unit(orders)
    translations = _translations(orders) if orders.stranger >= 0 else {}
    if orders.stranger < 0:
        _be_in_a_user_namespace(orders)
    call("unshare", userns.CLONE_NEWPID)
    told, telling = os.pipe2(os.O_CLOEXEC)
    first = os.fork()
    if first == 0:
        os.close(told)
        _guarded(telling, lambda: _first(orders, stdio, telling, translations))
    for fd in (telling, *stdio, *translations.values()):
        os.close(fd)
    if orders.stranger >= 0:
        process.become(orders.stranger, orders.stranger)  # as `first` will be: we may signal it
    process.drop_capabilities()
    return _attend(control, first, told)


def _receive(control: _socket.socket) -> tuple[tuple[int, ...], unit_orders.Orders]:
    """The command's descriptors and the orders. Only the client holds the other end."""
    message, extra, flags, _ = control.recvmsg(16, _socket.CMSG_SPACE(4 * 4))
    if message != ORDERS or len(extra) != 1 or flags & _socket.MSG_CTRUNC:
        os._exit(CONFINEMENT)  # the client has ended before it asked for anything
    *stdio, file = struct.unpack("4i", extra[0][2])
    for fd in (*stdio, file):
        os.set_inheritable(fd, False)
    size = os.fstat(file).st_size
    data = bytearray()
    while chunk := os.pread(file, size + 1 - len(data), len(data)):
        data += chunk
    os.close(file)
    return tuple(stdio), unit_orders.decode(bytes(data))


def _check_unit(orders: unit_orders.Orders) -> None:
    """See that the properties did what they say: some mean nothing in some managers."""
    if b"\nNoNewPrivs:\t1\n" not in _contents("/proc/self/status"):
        raise NotStarted(CONFINEMENT, "systemd ignored NoNewPrivileges=yes")
    for name, inode in orders.foreign:
        kind = os.fsdecode(name)
        if os.stat(f"/proc/self/ns/{kind}").st_ino == inode:
            raise NotStarted(CONFINEMENT, f"systemd did not give the unit its own {kind} namespace")
    if not orders.bounds:
        return
    own = next((line[3:] for line in _contents("/proc/self/cgroup").splitlines() if line[:3] == b"0::"), b"/")
    for name, most in orders.bounds:
        path = f"/sys/fs/cgroup{os.fsdecode(own)}/{os.fsdecode(name)}"
        if not _is_bounded(_contents(path), most):
            raise NotStarted(CONFINEMENT, f"systemd did not set the limit in {path}")


def _is_bounded(text: bytes, most: int) -> bool:
    """Whether a control group file says at most `most`: a number, or for cpu.max a quota and a period."""
    words = text.split()
    if not words or not all(word.isdigit() for word in words):
        return False
    return int(words[0]) <= (most * int(words[1]) // 1000 if len(words) > 1 else most)


def _translations(orders: unit_orders.Orders) -> dict[tuple[int, int], int]:
    """As root: user namespaces that show the owners of granted trees as the stranger we become."""
    from ..linux import idmaps

    made: dict[tuple[int, int], int] = {}
    for operation in orders.operations():
        if not isinstance(operation, Bind) or operation.again:
            continue
        if needs_translation(operation.path, operation.writable):
            try:
                status = os.lstat(operation.path)
            except FileNotFoundError:
                continue  # optional, or refused when it is to be shown
            owner = (status.st_uid, status.st_gid)
            if owner not in made:
                made[owner] = idmaps.translation(*owner, orders.stranger)
    return made


def _be_in_a_user_namespace(orders: unit_orders.Orders) -> None:
    """Be the plan's user, who is whoever we are outside; with every capability, over nothing but this."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", userns.CLONE_NEWUSER)
    maps = {"setgroups": "deny", "uid_map": f"{orders.uid} {uid} 1", "gid_map": f"{orders.gid} {gid} 1"}
    for name, text in maps.items():
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def _attend(control: _socket.socket, first: int, told: int) -> int:
    """Pass signals on and tell the client how it goes, until `first` or the client has ended."""
    ended = process.pidfd_open(first)
    signals = process.signal_descriptor(PASSED_ON)
    poll = select.poll()
    for fd in (control.fileno(), told, ended, signals):
        poll.register(fd, select.POLLIN)
    failed = False
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if told in ready:
            words = os.read(told, LONGEST)
            failed = bool(words)
            _say(control, FAILED + words if words else STARTED)
            poll.unregister(told)
        if control.fileno() in ready:
            message = _hear(control)
            if not message:
                os.kill(first, process.SIGKILL)
                os.waitpid(first, 0)
                return 128 + process.SIGKILL
            if message[:1] == SIGNAL and message[1:].isdigit():
                os.kill(first, int(message[1:]))
        if signals in ready:
            for number in process.read_signals(signals):
                os.kill(first, number)
        if ended in ready and told not in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
            code = code if code >= 0 else 128 - code
            if not failed:
                _say(control, ENDED + b"%d" % code)
            return code


# ---------------------------------------------------------------- inside


def _first(
    orders: unit_orders.Orders, stdio: tuple[int, ...], status: int, translations: dict[tuple[int, int], int]
) -> int:
    """Be PID 1 of the sandbox. Returns the command's exit status."""
    _die_with_the_unit(status)
    call("unshare", mounts.CLONE_NEWNS | userns.CLONE_NEWUTS | userns.CLONE_NEWCGROUP)
    mounts.mount(None, "/", flags=mounts.MS_REC | mounts.MS_PRIVATE)
    call("sethostname", orders.host, len(orders.host))
    unit_view.build(orders.operations(), orders.stranger, translations)
    if orders.stranger >= 0:
        process.become(orders.stranger, orders.stranger)
        process.dumpable(True)  # changing ids took /proc/self away from us
        _be_in_a_user_namespace(orders)
        _die_with_the_unit(status)  # and the death signal
    process.no_new_privs()
    process.drop_capabilities()
    # Nothing of the sandbox looks into us: that hides us in its /proc, too.
    process.dumpable(False)
    command = decode(orders.command)
    ruleset = confine.build_ruleset(command)
    pid = os.fork()
    if pid == 0:
        _guarded(status, lambda: _command(command, ruleset, stdio, status))
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    process.close_from(3)
    return _reap(pid)


def _command(command: Instructions, ruleset: Ruleset | None, stdio: tuple[int, ...], status: int) -> NoReturn:
    for number, fd in enumerate(stdio):
        os.dup2(fd, number)
    process.close_from(3, keep=(status, *((ruleset.fd,) if ruleset else ())))
    confine.become_command(command, ruleset, status, guardian=1)


def _die_with_the_unit(status: int) -> None:
    process.death_signal(process.SIGKILL)
    poll = select.poll()
    poll.register(status, 0)
    if poll.poll(0):  # nobody reads it any more
        os._exit(CONFINEMENT)


def _reap(command: int) -> int:
    signals = process.signal_descriptor((*PASSED_ON, process.SIGCHLD))
    poll = select.poll()
    poll.register(signals, select.POLLIN)
    while True:
        poll.poll()
        for number in process.read_signals(signals):
            if number != process.SIGCHLD:
                try:
                    os.kill(-1, number)  # everybody of this pid namespace but ourselves
                except ProcessLookupError:
                    pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == command:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if not pid:
                break


def _guarded(status: int, work: Callable[[], int]) -> NoReturn:
    """The whole life of a forked process: it never returns into what its parent was doing."""
    try:
        code = work()
    except BaseException as error:
        code = error.code if isinstance(error, NotStarted) else CONFINEMENT
        why = str(error) if isinstance(error, NotStarted | OSError) else f"{type(error).__name__}: {error}"
        try:
            os.write(status, written(code, why))
        except OSError:
            pass
    os._exit(code)


# ---------------------------------------------------------------- small things


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _say(control: _socket.socket, message: bytes) -> None:
    try:
        control.send(message[:LONGEST], _socket.MSG_NOSIGNAL)
    except OSError:
        pass  # it has gone; the next look at the line says so


def _hear(control: _socket.socket) -> bytes:
    try:
        return control.recv(LONGEST)
    except OSError:
        return b""
