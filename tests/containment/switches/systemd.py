"""The protections of the systemd backend, one by one: properties, and what our process in the unit does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import bwrap
from .base import (
    HIDEPID,
    NO_LAST_LOOK,
    NO_PROCESS_NAMESPACE,
    OPEN_FIRST_PROCESS,
    SOCKETS_IN_GRANTS,
    Edit,
    Patch,
    Switch,
    allow_everything,
    nothing,
    together,
)


def _orders(change: Callable[[Any], Any]) -> Patch:
    """Change what both ends of the line are told."""

    def off() -> None:
        from staddle.backends import systemd
        from staddle.enforcement import Probe

        original = systemd.spec
        systemd.spec = lambda *args, **options: change(original(*args, **options))
        systemd.Systemd.probe = lambda self: Probe("systemd", usable=True)  # type: ignore[method-assign]

    return off


def _command(change: Callable[[Any], Any]) -> Patch:
    """Change what the command's own process does last."""

    def off() -> None:
        from staddle.backends import systemd
        from staddle.enforcement import Probe

        original = systemd.instructions
        systemd.instructions = lambda *args: change(original(*args))
        systemd.Systemd.probe = lambda self: Probe("systemd", usable=True)  # type: ignore[method-assign]

    return off


def _without_property(name: str) -> Patch:
    """A unit without one property, as if the manager did not know it."""

    def off() -> None:
        from staddle.backends import systemd
        from staddle.enforcement import Probe

        original = systemd.properties

        def properties(*args: Any) -> list[str]:
            made = list(original(*args))
            left = [item for item in made if not item.startswith(f"{name}=")]
            assert left != made, f"the unit has no {name} any more"
            return left

        systemd.properties = properties
        systemd.Systemd.probe = lambda self: Probe("systemd", usable=True)  # type: ignore[method-assign]

    return off


#: So that it does not refuse to go on in a unit without its own namespaces.
_UNCHECKED = _orders(lambda orders: orders.replace(foreign=()))


def _trusting(patch: Patch) -> Patch:
    return together(patch, _orders(lambda orders: orders))


SWITCHES: dict[str, Switch] = {
    "covers of sockets in grants": SOCKETS_IN_GRANTS,
    **{
        name: Switch(
            _trusting(bwrap.SWITCHES[name].off), bwrap.SWITCHES[name].notices, bwrap.SWITCHES[name].only
        )
        for name in bwrap.VIEW
    },
    "sealed root": Switch(
        _trusting(bwrap.SWITCHES["sealed root"].off),
        ("create-in-system-directories",),
        only="user",  # as root the directory belongs to root, whom nobody is inside
    ),
    "NoNewPrivileges=": Switch(_without_property("NoNewPrivileges"), ("start",)),
    "PrivateNetwork=": Switch(_without_property("PrivateNetwork"), ("start",)),
    "PrivateNetwork= and its check": Switch(
        together(_without_property("PrivateNetwork"), _UNCHECKED), ("connect-to-loopback", "send-a-datagram")
    ),
    "PrivateIPC=": Switch(_without_property("PrivateIPC"), ("start",)),
    "PrivateIPC= and its check": Switch(
        together(_without_property("PrivateIPC"), _UNCHECKED), ("attach-shared-memory", "change-a-semaphore")
    ),
    "PrivateUsers=": Switch(_without_property("PrivateUsers"), ("start",), only="user"),
    "system call filter": Switch(
        _command(lambda i: i.replace(filter=allow_everything())), ("call-io_uring_setup", "socket-vsock")
    ),
    "filter of set-user-id files": Switch(
        _command(lambda i: i.replace(filter=_program("namespaces"))), ("set-the-user-id-bit",)
    ),
    "scope of abstract sockets": Switch(
        _command(lambda i: i.replace(scoped=0)), ("connect-to-an-abstract-socket",), network="open"
    ),
    "core limit, of the unit and the command": Switch(
        together(_without_property("LimitCORE"), _command(lambda i: i.replace(rlimits=()))), ("dump-core",)
    ),
    "another user than root, and the last look": Switch(
        nothing,
        ("uids",),
        only="root",
        edits=(
            NO_LAST_LOOK,
            Edit(
                "inside/namespace_init.py",
                "            process.become(spec.unprivileged_uid, spec.unprivileged_uid)\n"
                "            process.dumpable(True)",
                "            process.dumpable(True)",
            ),
        ),
    ),
    "process namespace": Switch(
        nothing,
        ("start", "see-a-process-of-the-host"),
        edits=NO_PROCESS_NAMESPACE,
    ),
    "hidepid": HIDEPID,
    "closedness of the first process": Switch(
        _command(lambda i: i.replace(scoped=0)),
        ("read-environment-of-the-first-process", "enter-the-root-of-the-first-process"),
        edits=OPEN_FIRST_PROCESS,
    ),
    "end with the parent": Switch(
        nothing,
        ("parent",),
        edits=(
            Edit(
                "inside/systemd_unit.py",
                "            os.kill(first, process.SIGKILL)\n"
                "            os.waitpid(first, 0)\n"
                "            instead.append(128 + process.SIGKILL)\n"
                "            attendant.stop()\n",
                "            attendant.leave(control.fileno())\n",
            ),
        ),
    ),
}


def _program(profile: str) -> bytes:
    from staddle.linux.seccomp import program

    return program(profile)


ALONE = {
    "not dumpable, outside of the Landlock domain, CAP_SYS_PTRACE of PID 1": "each alone closes PID 1, the "
    "last where it measures memory: switched off together",
    "KeyringMode=private": "the filter refuses every call about keys",
    "LimitCORE=": "the command's own process sets the same limit again: switched off together",
    "CapabilityBoundingSet=": "our process in the unit drops every capability from every set itself",
    "KillMode=, TimeoutStopSec=": "they say how the unit ends, and tests of endings watch that",
}
