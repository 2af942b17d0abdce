"""The protections of our own namespaces, one by one: what the helper is told, and what it does by itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from staddle.backends.namespaces import NAMESPACES
from staddle.linux import userns

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


def _trust() -> None:
    """Its self-test notices most of this by itself, and would not start anything."""
    from staddle.backends.namespaces import Namespaces
    from staddle.enforcement import Probe

    Namespaces.probe = lambda self: Probe("namespaces", usable=True)  # type: ignore[method-assign]


def _asked(change: Callable[[Any], Any]) -> Patch:
    """Change what the helper is told to make."""

    def off() -> None:
        from staddle.backends import namespaces

        original = namespaces.spec

        def changed(*args: Any, **options: Any) -> Any:
            before = original(*args, **options)
            after = change(before)
            assert after != before, "this switch takes nothing away any more"
            return after

        namespaces.spec = changed
        _trust()

    return off


def _without_namespace(flag: int) -> Patch:
    return _asked(lambda asked: asked.replace(namespaces=asked.namespaces & ~flag))


def _command(change: Callable[[Any], Any]) -> Patch:
    """Change what the command's own process does last."""
    from staddle.ipc import exec_spec

    return _asked(
        lambda asked: asked.replace(command=exec_spec.encode(change(exec_spec.decode(asked.command))))
    )


def _launcher_environment() -> None:
    from staddle.launch.contract import ENVIRONMENT

    ENVIRONMENT.update(os.environ)
    _trust()


def _program(profile: str) -> bytes:
    from staddle.linux.seccomp import program

    return program(profile)


SWITCHES: dict[str, Switch] = {
    "covers of sockets in grants": SOCKETS_IN_GRANTS,
    **{
        name: replace(switch, off=together(_trust, switch.off))
        for name, switch in bwrap.SWITCHES.items()
        if name in (*bwrap.VIEW, "sealed /dev", "mask of the list of keys")
    },
    "sealed root": Switch(
        together(_trust, bwrap.SWITCHES["sealed root"].off),
        ("create-in-system-directories",),
        only="user",  # as root the directory belongs to root, whom nobody is inside
    ),
    "leaving the old root": Switch(
        nothing,
        # As root nothing starts: who is not at the root of its mounts gets no user namespace.
        ("read-outside-by-own-directory", "start"),
        edits=(Edit("inside/namespace_init.py", '    mounts.umount(".")\n', ""),),
    ),
    **{
        f"{kind} namespace": Switch(_without_namespace(flag), ("start",)) for kind, flag in NAMESPACES.items()
    },
    "network namespace and the last look": Switch(
        _without_namespace(userns.CLONE_NEWNET),
        ("connect-to-loopback", "send-a-datagram"),
        edits=(NO_LAST_LOOK,),
    ),
    "ipc namespace and the last look": Switch(
        _without_namespace(userns.CLONE_NEWIPC),
        ("attach-shared-memory", "open-a-message-queue"),
        edits=(NO_LAST_LOOK,),
    ),
    "process namespace": Switch(nothing, ("start", "see-a-process-of-the-host"), edits=NO_PROCESS_NAMESPACE),
    "capability drop and the last look": Switch(
        _trust,
        ("have-a-capability",),
        edits=(
            NO_LAST_LOOK,
            Edit("inside/namespace_init.py", "    process.empty_bounding_set()\n", ""),
            Edit("inside/namespace_init.py", "    process.clear_capabilities(kept)\n", ""),
            Edit(
                "inside/confine.py",
                '        _checked("capabilities cannot be dropped", process.drop_capabilities)\n',
                "        pass\n",
            ),
        ),
    ),
    "no new privileges": Switch(
        nothing,
        ("start",),  # the kernel takes no filter without it
        edits=(
            Edit(
                "inside/confine.py",
                '    _checked("no_new_privs cannot be set", process.no_new_privs)\n',
                "",
            ),
            Edit(
                "inside/namespace_init.py",
                "    process.no_new_privs()\n    process.empty",
                "    process.empty",
            ),
        ),
        same_for_everyone=True,
    ),
    "system call filter": Switch(
        _command(lambda i: i.replace(filter=allow_everything())),
        ("call-io_uring_setup", "socket-vsock", "read-a-key", "make-a-whiteout", "unshare-user"),
        same_for_everyone=True,
    ),
    "filter of set-user-id files": Switch(
        _command(lambda i: i.replace(filter=_program("namespaces"))),
        ("set-the-user-id-bit",),
        same_for_everyone=True,
    ),
    "scope of abstract sockets": Switch(
        _command(lambda i: i.replace(scoped=0)),
        ("connect-to-an-abstract-socket",),
        network="open",
        same_for_everyone=True,
    ),
    "core limit": Switch(_command(lambda i: i.replace(rlimits=())), ("dump-core",), same_for_everyone=True),
    "clean environment": Switch(
        _command(
            lambda i: i.replace(environment=tuple(os.fsencode(f"{k}={v}") for k, v in os.environ.items()))
        ),
        ("find-variables-of-the-host",),
        same_for_everyone=True,
    ),
    "clean launcher, closedness of the first process": Switch(
        _launcher_environment, ("find-the-secret-in-any-environment",), edits=OPEN_FIRST_PROCESS
    ),
    "hidepid": HIDEPID,
    "closedness of the first process": Switch(
        nothing,
        ("read-environment-of-the-first-process", "enter-the-root-of-the-first-process"),
        edits=OPEN_FIRST_PROCESS,
    ),
    "session of its own": Switch(
        nothing,
        ("terminal",),
        edits=(Edit("inside/confine.py", "    _leave_session()\n    _checked", "    _checked"),),
        same_for_everyone=True,
    ),
    "closing of descriptors": Switch(
        nothing,
        ("find-open-descriptors",),
        edits=(
            Edit(
                "inside/namespace_init.py",
                "    process.close_from(3, keep=(report_to, *((ruleset.fd,) if ruleset else ())))\n",
                '    os.dup2(os.open("/", os.O_RDONLY), 30)\n',
            ),
        ),
        same_for_everyone=True,
    ),
    "launcher's end with its parent": Switch(
        nothing,
        ("parent",),
        edits=(Edit("inside/namespace_launcher.py", "    process.death_signal(number)\n", ""),),
    ),
    "sandbox's end with the launcher": Switch(
        nothing,
        ("parent",),
        edits=(Edit("inside/namespace_init.py", "    process.death_signal(process.SIGKILL)\n", ""),),
    ),
    "another user than root, and the last look": Switch(
        _trust,
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
}

ALONE = {
    "not dumpable, CAP_SYS_PTRACE of PID 1": "where it measures memory each alone closes PID 1: switched off "
    "together",
    "user namespace": "an ordinary user can make no other without it; root's sandbox is nobody by its id",
    "secure bits": "the bounding set, which is emptied in the same step, keeps a root from gaining rights "
    "at an exec as well: both are switched off together, and each alone in tests/kernel/test_process.py",
    "last look": "it sees whether other steps did what they say: switched off together with each",
    "private mounts": "they keep our own mounts from the host, where tests of endings look for them",
    "mask of /proc/timer_list": "only root may read it, and root of the host is nobody inside",
    "mask of /proc/kallsyms": "without capabilities the kernel shows every address as zero",
    "RLIMIT_NICE, RLIMIT_RTPRIO": "they are zero already where nobody raised them",
}
