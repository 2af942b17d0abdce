"""Enter a transient unit of systemd: the launcher asks the manager for a scope around itself.

The launcher does this before there is a sandbox, with the rights of its caller. Every process that it starts
from then on is in the scope, under the limits of the scope. The scope ends with its last process.

    launcher ── witness ── busctl

The witness is a child of the launcher. It enters the scope too, and stays until the launcher is in there or
has ended. systemd notices that a scope is empty only if a process was in it. If the launcher is killed while
the manager makes the scope, the witness is that process; without it the scope would stay.
"""

from __future__ import annotations

import os
import select
import time

from ..ipc.wire import CONFINEMENT, NotStarted
from ..linux import process
from ..linux.fileio import read_if_there
from .child import live

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ipc.namespace_spec import NamespaceSpec

#: The words in place of the two numbers, which are not known when the specification is made.
LAUNCHER, WITNESS = b"@LAUNCHER@", b"@WITNESS@"
#: Seconds for the manager to move both, once it has answered.
_PATIENCE = 10.0
_LONGEST = 4096


def enter(spec: NamespaceSpec) -> None:
    """Be in the unit `spec.unit`, under its limits. NotStarted if the manager does not do that."""
    read, write = os.pipe2(os.O_CLOEXEC)
    awaited, release = os.pipe2(os.O_CLOEXEC)
    launcher = os.getpid()

    def failed(error: BaseException) -> int:
        os.write(write, str(error).encode())
        return 1

    witness = os.fork()
    if witness == 0:
        live(lambda: _ask(spec, launcher, write, awaited), failed)
    os.close(write)
    os.close(awaited)
    while not _is_in(own := _own_group(), spec):
        ended, status = os.waitpid(witness, os.WNOHANG)
        if ended:
            said = " ".join(os.read(read, _LONGEST).decode("utf-8", "replace").split())
            why = said or f"its client exited with {os.waitstatus_to_exitcode(status)}"
            raise NotStarted(CONFINEMENT, f"systemd made no unit for the launcher: {why}")
        time.sleep(0.001)
    os.close(release)
    os.close(read)
    os.waitpid(witness, 0)
    for name, most in spec.bounds:
        path = f"/sys/fs/cgroup{own}/{os.fsdecode(name)}"
        if not is_bounded(read_if_there(path), most):
            raise NotStarted(CONFINEMENT, f"systemd did not set the limit in {path}")


def _ask(spec: NamespaceSpec, launcher: int, output: int, awaited: int) -> int:
    """Be the witness; the exit status. `awaited` is closed when the launcher is in the unit, or has ended."""
    os.setsid()  # a signal to the launcher's group is not for us
    numbers = {LAUNCHER: b"%d" % launcher, WITNESS: b"%d" % os.getpid()}
    words = tuple(numbers.get(word, word) for word in spec.starter)
    environment = dict(item.split(b"=", 1) for item in spec.starter_environment)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    for stream in (1, 2):  # of the caller's streams we keep none open
        os.dup2(output, stream)
    process.close_from(3, keep=(output, awaited))
    client = os.posix_spawn(words[0], words, environment, setsigmask=())
    code = os.waitstatus_to_exitcode(os.waitpid(client, 0)[1])
    if code != 0:
        return code
    end = time.monotonic() + _PATIENCE
    while not _is_in(_own_group(), spec) and time.monotonic() < end:
        time.sleep(0.001)
    poll = select.poll()
    poll.register(awaited, 0)
    if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
        os.write(output, b"it did not move the launcher into the unit")
        return 1
    return 0


def _is_in(group: str, spec: NamespaceSpec) -> bool:
    return group.endswith("/" + os.fsdecode(spec.unit))


def _own_group() -> str:
    """Our control group of version 2, as a path below its mount."""
    lines = read_if_there("/proc/self/cgroup").splitlines()
    return os.fsdecode(next((line[3:] for line in lines if line.startswith(b"0::")), b""))


def is_bounded(text: bytes, most: int) -> bool:
    """Whether a control group file allows at most `most`: a number, or for cpu.max a quota and a period."""
    words = text.split()
    if not words or not all(word.isdigit() for word in words):
        return False
    return int(words[0]) <= (most * int(words[1]) // 1000 if len(words) > 1 else most)
