"""The protections of the landlock backend, one by one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from staddle.linux.landlock import RIGHTS

from .base import SOCKETS_IN_GRANTS, Edit, Patch, Switch, allow_everything, nothing


def _instructions(change: Callable[[Any], Any]) -> Patch:
    """Change what the helper is told."""

    def off() -> None:
        from staddle import backends
        from staddle.launch import contract

        backends.get("landlock").probe()  # before: its self-test would notice, and refuse to start
        original = contract.helper_launch

        def launch(instructions: Any, **options: Any) -> Any:
            changed = change(instructions)
            assert changed != instructions, "this switch takes nothing away any more"
            return original(changed, **options)

        contract.helper_launch = launch

    return off


def _without_right(name: str) -> Patch:
    bit = RIGHTS["fs"][name][0]

    def change(instructions: Any) -> Any:
        rules = tuple((path, rights & ~bit, optional) for path, rights, optional in instructions.rules)
        return instructions.replace(
            handled_fs=instructions.handled_fs & ~bit, rules=tuple(rule for rule in rules if rule[1])
        )

    return _instructions(change)


#: The attack that a right stops. An ordinary user's: root's sandbox does not have these files in its view.
_RIGHTS = {
    "write_file": "append-outside",
    "read_file": "read-outside",
    "read_dir": "list-outside",
    "remove_dir": "remove-directory-outside",
    "remove_file": "remove-outside",
    "make_dir": "make-directory-outside",
    "make_reg": "make-file-outside",
    "make_sock": "make-socket-outside",
    "make_fifo": "make-fifo-outside",
    "make_sym": "make-link-outside",
    "truncate": "truncate-outside",
}

SWITCHES: dict[str, Switch] = {
    "covers of sockets in grants": SOCKETS_IN_GRANTS,
    **{
        f"right to {right.replace('_', ' ')}": Switch(_without_right(right), (attack,), only="user")
        for right, attack in _RIGHTS.items()
    },
    "read-only grants": Switch(
        _instructions(
            lambda i: i.replace(
                rules=tuple((path, rights | 2, optional) for path, rights, optional in i.rules),
                trees=tuple((path, owner, group, 0) for path, owner, group, _ in i.trees),
            )
        ),
        ("append-readable",),
    ),
    "scope of signals": Switch(
        _instructions(lambda i: i.replace(scoped=0)), ("kill-a-process",), only="user"
    ),
    "system call filter": Switch(
        _instructions(lambda i: i.replace(filter=allow_everything(), brokered=0)),
        ("call-io_uring_setup", "connect-to-a-socket-outside", "attach-shared-memory", "connect-to-loopback"),
        same_for_everyone=True,
    ),
    "choice of sockets": Switch(
        _instructions(lambda i: i.replace(sockets=((b"beneath", b"/"),))),
        ("connect-to-a-socket-outside",),
        only="user",
    ),
    "core limit": Switch(
        _instructions(lambda i: i.replace(rlimits=())), ("dump-core",), same_for_everyone=True
    ),
    "clean environment": Switch(
        _instructions(
            lambda i: i.replace(environment=tuple(os.fsencode(f"{k}={v}") for k, v in os.environ.items()))
        ),
        ("find-variables-of-the-host",),
        same_for_everyone=True,
    ),
    "another user than root": Switch(
        _instructions(lambda i: i.replace(uid=-1, gid=-1)), ("uids",), only="root"
    ),
    "view of root's sandbox": Switch(
        _instructions(lambda i: i.replace(empty=(), texts=(), links=(), trees=())),
        ("stat-outside", "read-host-tmp", "leave-something-in-tmp"),
        only="root",
    ),
    "hidden processes": Switch(
        _instructions(lambda i: i.replace(processes_hidden=0)), ("see-a-process-of-the-host",), only="root"
    ),
    "no new privileges": Switch(
        nothing,
        ("start",),  # the kernel takes neither Landlock rules nor a filter without it
        edits=(
            Edit(
                "inside/confine.py",
                '    _checked("no_new_privs cannot be set", process.no_new_privs)\n',
                "",
            ),
            Edit("inside/jail_exec.py", "    process.no_new_privs()\n", ""),
        ),
        same_for_everyone=True,
    ),
    "empty bounding set": Switch(
        nothing,
        ("have-a-capability",),
        only="root",
        edits=(
            Edit("inside/jail_exec.py", "        process.empty_bounding_set()\n", ""),
            Edit("inside/jail_exec.py", "    process.drop_capabilities()\n", ""),
            Edit(
                "inside/confine.py",
                '        _checked("capabilities cannot be dropped", process.drop_capabilities)\n',
                "        pass\n",
            ),
        ),
    ),
    "session of its own": Switch(
        nothing,
        ("terminal",),
        edits=(
            Edit("inside/confine.py", "    _leave_session()\n    _checked", "    _checked"),
            Edit("inside/landlock/supervisor.py", "    os.setsid()  # a signal", "    # a signal"),
        ),
        same_for_everyone=True,
    ),
    "end with the parent": Switch(
        nothing,
        ("parent",),
        edits=(Edit("inside/namespace_launcher.py", "    process.death_signal(number)\n", ""),),
    ),
    "closing of descriptors": Switch(
        nothing,
        ("find-open-descriptors",),
        edits=(
            Edit(
                "inside/jail_exec.py",
                "    process.close_from(3, keep=(status, spec.tally, *spec.proxy))\n",
                '    os.dup2(os.open("/", os.O_RDONLY), 30)\n',
            ),
        ),
        same_for_everyone=True,
    ),
}

ALONE = {
    "right to execute": "running a program takes the right to read it as well, which is refused outside",
    "right to refer": "without it the kernel refuses every link and rename between directories",
    "rights to make char, make block": "they take a capability, and the filter refuses them",
    "right to ioctl dev": "no device but those without state and own terminals can be opened",
    "TCP rules": "the filter makes no Internet socket when the network is denied",
    "scope of abstract sockets": "every connection goes through the supervisor, who refuses abstract names",
    "secure bits": "the bounding set, which is emptied in the same step, keeps a root from gaining rights "
    "at an exec as well: both are switched off together, and each alone in tests/kernel/test_process.py",
    "capability drop": "an ordinary user has none; of root's, a change of user leaves the bounding set",
}
