"""What a process of the sandbox does to itself between fork and exec.

It comes from the agent, with the agent's capabilities over the sandbox, and ends in the
sandbox's inner user namespace with none.
"""

from __future__ import annotations

import os

from ..helper.confine import become_command, confine
from ..helper.instructions import Instructions
from ..limits import victims
from ..linux import cgroups, process, userns
from ..linux.syscalls import call
from . import last_look

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


class Confinement:
    """The same for every process of one sandbox.

    All of them are in one user namespace, below the one that the view belongs to: from there
    no mount can be changed, and what the kernel counts for a user is counted for all of them
    together.
    """

    def __init__(
        self, uid: int, gid: int, whose: int, rlimits: tuple[tuple[int, int, int], ...], filter: bytes
    ):
        """`whose` is the id, in our namespace, that `uid` is to be: ours (0), or one that nobody has."""
        self._uid, self._gid, self._whose = uid, gid, whose
        self._rlimits, self._filter = rlimits, filter
        self._outer = last_look.user_namespace()
        self._namespace = _inner_namespace(self._maps())
        #: Descriptors by which a process puts itself into the sandbox's control groups.
        self.doors: tuple[int, ...] = ()

    @property
    def descriptor(self) -> int:
        """The namespace. To be kept open."""
        return self._namespace

    def become(self, argv: tuple[bytes, ...], environment: tuple[bytes, ...], directory: bytes) -> NoReturn:
        """Be confined and exec. Raises NotStarted or OSError; nothing else comes back."""
        self._enter()
        instructions = self._instructions(argv, environment, directory)
        become_command(instructions, None, -1, guardian=0, last=self._look)

    def confine(self) -> None:
        """Be confined in the same way, and go on as we are; open files are not limited."""
        self._enter()
        confine(self._instructions((), (), b"/"), None, guardian=0)
        self._look()

    def _enter(self) -> None:
        if self.doors:
            # While we still have the agent's rights, and nothing of the sandbox runs in us.
            victims.go_first()
            cgroups.enter(self.doors)
            call("unshare", userns.CLONE_NEWCGROUP)  # from inside, our group has no name
        call("setns", self._namespace, userns.CLONE_NEWUSER)
        process.empty_bounding_set()  # before anything that takes the right to
        if self._whose:
            process.become(self._uid, self._gid)
        process.clear_capabilities()

    def _look(self) -> None:
        last_look.at_myself(self._uid, self._gid, self._maps()[-2:], self._outer)

    def _instructions(
        self, argv: tuple[bytes, ...], environment: tuple[bytes, ...], directory: bytes
    ) -> Instructions:
        return Instructions(argv, environment, directory, rlimits=self._rlimits, filter=self._filter)

    def _maps(self) -> tuple[tuple[str, bytes], ...]:
        if self._whose:  # everybody is who they are
            everybody = b"0 0 65536"
            return ("uid_map", everybody), ("gid_map", everybody)
        return ("setgroups", b"deny"), ("uid_map", b"%d 0 1" % self._uid), ("gid_map", b"%d 0 1" % self._gid)


def _inner_namespace(maps: tuple[tuple[str, bytes], ...]) -> int:
    """A user namespace below ours, with nobody in it."""
    ready, entered = os.pipe2(os.O_CLOEXEC)
    wait, release = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.close(release)
            call("unshare", userns.CLONE_NEWUSER)
            os.write(entered, b"!")
            os.read(wait, 1)
        finally:
            os._exit(0)
    os.close(entered)
    os.close(wait)
    try:
        if os.read(ready, 1) != b"!":
            raise OSError(1, "the sandbox's inner user namespace cannot be made")
        for name, text in maps:
            fd = os.open(f"/proc/{child}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, text)
            finally:
                os.close(fd)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.close(release)
        os.waitpid(child, 0)
