"""The protections of the session launcher, one by one: what the fork server is told, and what it does."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from . import bwrap
from .base import (
    SEEN_FIRST_PROCESS,
    SOCKETS_IN_GRANTS,
    Edit,
    Patch,
    Switch,
    allow_everything,
    nothing,
    together,
)
from .namespaces import _program, _trust


def _told(change: Callable[[Any], Any]) -> Patch:
    """Change what a fork server is told to make."""

    def off() -> None:
        from staddle.forkserver import client

        original = client._config

        def changed(*args: Any) -> Any:
            before = original(*args)
            after = change(before)
            assert after != before, "this switch takes nothing away any more"
            return after

        client._config = changed
        _trust()

    return off


def _variables_of_the_host() -> None:
    from staddle.policy.plan import Plan

    Plan.environment = lambda self: dict(os.environ)  # type: ignore[method-assign]
    _trust()


def _ids_of_the_host() -> None:
    from staddle.forkserver import client

    client._ids = lambda: (0, 1 << 16)
    _trust()


#: Lists of calls are carried out by Python.
IN_PYTHON = Edit("linux/call_list/__init__.py", "    _native[:] = [", "    [*_native] + [")
_VIEW = "inside/agent/own_view.py"
_NO_LOOK_AROUND = Edit(_VIEW, "        self._verify(last, outside)\n", "")
# The first shell is started by a list of calls, and every other process by a fork of the agent.
_SHELL = "inside/agent/shell_start.py"
_NO_LOOK_AT_ITSELF = (
    Edit(
        "inside/agent/confinement.py",
        "        verify.at_myself(self._uid, self._gid, self._maps()[-2:], self._outer, self._rights)\n",
        "        pass\n",
    ),
    Edit(_SHELL, "        self._verify()\n", ""),
)
_NOBODY_ELSE = (
    Edit(
        "inside/agent/confinement.py", "            process.become(uid, gid, groups)\n", "            pass\n"
    ),
    Edit(_SHELL, "            self._change_ids()\n", "            pass\n"),
)
_SAME_USER_NAMESPACE = (
    Edit(
        "inside/agent/confinement.py",
        '        call("setns", self._namespace, userns.CLONE_NEWUSER)\n',
        "        pass\n",
    ),
    Edit(_SHELL, '        calls.call("setns", self._namespace, userns.CLONE_NEWUSER, what=what)\n', ""),
)
_KEEPING_CAPABILITIES = (
    Edit(
        "inside/agent/confinement.py",
        "            process.empty_bounding_set()  # before the steps that drop the right to do it\n",
        "            pass\n",
    ),
    Edit("inside/agent/confinement.py", "            process.clear_capabilities()\n", "            pass\n"),
    Edit(_SHELL, "            self._empty_bounding_set()  #", "            pass  #"),
    Edit(_SHELL, "        self._clear_capabilities()\n", ""),
    Edit(
        "inside/confine.py",
        '        _checked("capabilities cannot be dropped", process.drop_capabilities)\n',
        "        pass\n",
    ),
)
_ASIDE_STAYS = Edit(
    _VIEW, '        calls.call("umount2", ASIDE.encode(), mounts.MNT_DETACH, what=_NOT_MADE)\n', ""
)
#: Of the clone that a sandbox begins with, by their names in /proc.
_CLONED = {
    "mount": Edit("forkserver/*.py", "    mounts.CLONE_NEWNS\n    | userns", "    0\n    | userns"),
    "process": Edit("forkserver/*.py", "    | userns.CLONE_NEWPID\n", ""),
    "ipc": Edit("forkserver/*.py", "    | userns.CLONE_NEWIPC\n", ""),
    "uts": Edit("forkserver/*.py", "    | userns.CLONE_NEWUTS\n", ""),
    "cgroup": Edit("forkserver/*.py", "    | userns.CLONE_NEWCGROUP\n", ""),
    "network": Edit("forkserver/*.py", "config.network else userns.CLONE_NEWNET)", "config.network else 0)"),
}

SWITCHES: dict[str, Switch] = {
    "covers of sockets in grants": SOCKETS_IN_GRANTS,
    **{
        name: replace(switch, off=together(_trust, switch.off))
        for name, switch in bwrap.SWITCHES.items()
        if name in (*bwrap.VIEW, "mask of the list of keys")
    },
    **{
        name: Switch(
            together(_trust, bwrap.SWITCHES[name].off),
            ("create-in-system-directories",),
            only="user",  # as root the directory belongs to the fork server, whom nobody is inside
        )
        for name in ("sealed root", "sealed /dev")
    },
    "read-only mounts": Switch(
        nothing,
        ("append-readable", "create-readable"),
        edits=(
            Edit(
                "mounts/host.py",
                "_PLAIN_ATTRIBUTES | (0 if operation.writable else mounts.ATTR_RDONLY)",
                "_PLAIN_ATTRIBUTES",
            ),
        ),
    ),
    **{f"{kind} namespace": Switch(nothing, ("start",), edits=(edit,)) for kind, edit in _CLONED.items()},
    "network namespace and the last look": Switch(
        nothing,
        ("connect-to-loopback", "send-a-datagram"),
        edits=(
            _CLONED["network"],
            _NO_LOOK_AROUND,
            # Its loopback would have to be brought up, and the host's is not its own.
            Edit(
                "forkserver/*.py",
                "None if config.network else AgentNetwork(",
                "None and AgentNetwork(",
            ),
        ),
    ),
    "ipc namespace and the last look": Switch(
        nothing, ("attach-shared-memory", "open-a-message-queue"), edits=(_CLONED["ipc"], _NO_LOOK_AROUND)
    ),
    "end of what is kept aside": Switch(
        nothing,
        ("start",),
        edits=(_ASIDE_STAYS,),
    ),
    "end of what is kept aside, and the last look": Switch(
        nothing, ("find-what-is-kept-aside",), edits=(_ASIDE_STAYS, _NO_LOOK_AROUND)
    ),
    "read-only control files": Switch(
        nothing,
        ("change-a-control-file", "remove-a-control-file", "plant-a-control-file"),
        only="user",  # as root they belong to the fork server, whom nobody is inside
        edits=(
            Edit(_VIEW, "self._control, mounts.ATTR_RDONLY, close=False", "self._control, 0, close=False"),
        ),
    ),
    "user namespace of its own": Switch(nothing, ("start",), edits=_SAME_USER_NAMESPACE),
    "capability drop": Switch(nothing, ("start",), edits=_KEEPING_CAPABILITIES),
    "capability drop and the last look": Switch(
        nothing, ("have-a-capability",), edits=(*_KEEPING_CAPABILITIES, *_NO_LOOK_AT_ITSELF)
    ),
    "closedness of the first process, capability drop, user namespace of its own, and the last look": Switch(
        # Whoever has no capabilities there cannot look into a process that has some.
        _told(lambda told: told.replace(filter=allow_everything())),
        ("read-environment-of-the-first-process", "enter-the-root-of-the-first-process"),
        edits=(
            *_KEEPING_CAPABILITIES,
            *_SAME_USER_NAMESPACE,
            *_NOBODY_ELSE,
            *_NO_LOOK_AT_ITSELF,
            Edit(_SHELL, 'PR_SET_DUMPABLE, 0, what="the agent', 'PR_SET_DUMPABLE, 1, what="the agent'),
            IN_PYTHON,  # the machine code shares its memory, which no step makes traceable again
            SEEN_FIRST_PROCESS,
        ),
    ),
    "command line without paths": Switch(
        nothing,
        ("read-a-path-of-the-host-in-the-command-line-of-the-first-process",),
        edits=(
            Edit("forkserver/server.py", "        process.set_command_line(COMMAND_LINE)\n", ""),
            Edit(_VIEW, 'b"/", "absent", what=', 'b"//", "absent", what='),
        ),
    ),
    "last look at the command line": Switch(
        nothing,
        ("start",),
        edits=(Edit("forkserver/server.py", "        process.set_command_line(COMMAND_LINE)\n", ""),),
    ),
    "no new privileges": Switch(
        nothing,
        ("start",),  # the kernel takes no filter without it
        edits=(
            Edit(
                "inside/confine.py", '    _checked("no_new_privs cannot be set", process.no_new_privs)\n', ""
            ),
            Edit(
                _SHELL,
                '        self._prctl(process.PR_SET_NO_NEW_PRIVS, 1, what="no_new_privs cannot be set")\n',
                "",
            ),
        ),
        same_for_everyone=True,
    ),
    "system call filter": Switch(
        _told(lambda told: told.replace(filter=allow_everything())),
        ("call-io_uring_setup", "socket-vsock", "read-a-key", "make-a-whiteout", "unshare-user"),
        same_for_everyone=True,
    ),
    "filter of set-user-id files": Switch(
        _told(lambda told: told.replace(filter=_program("namespaces"))),
        ("set-the-user-id-bit",),
        same_for_everyone=True,
    ),
    "scope of abstract sockets": Switch(
        _told(lambda told: told.replace(scoped=0)),
        ("connect-to-an-abstract-socket",),
        network="open",
        same_for_everyone=True,
    ),
    "core limit": Switch(
        _told(lambda told: told.replace(rlimits=())), ("dump-core",), same_for_everyone=True
    ),
    "clean environment": Switch(
        _variables_of_the_host, ("find-variables-of-the-host",), same_for_everyone=True
    ),
    "closing of descriptors": Switch(
        nothing,
        ("find-open-descriptors",),
        edits=(Edit("ipc/wire.py", "_CLOSE_ON_EXEC = 0x40000000", "_CLOSE_ON_EXEC = 0"),),
        same_for_everyone=True,
    ),
    "another user than root, and the last look": Switch(
        _ids_of_the_host, ("uids",), only="root", edits=(*_NOBODY_ELSE, *_NO_LOOK_AT_ITSELF)
    ),
}

ALONE = {
    "not dumpable": "PID 1 has capabilities that nobody inside has, in a user namespace that nobody "
    "inside is in: each alone closes it, and all are switched off together",
    "last look": "it sees whether other steps did what they say: switched off together with each",
    "secure bits": "the bounding set, which is emptied in the same step, keeps a root from gaining rights "
    "at an exec as well: both are switched off together, and each alone in tests/kernel/test_process.py",
    "clean fork server": "its environment can be read through PID 1 only",
    "session of its own": "the fork server is in a session without a terminal before anything else happens",
    "end with the parent": "whether everything ends with the host program is tried with the fork server",
    "nosuid": "no_new_privs takes the meaning of set-user-id files as well",
    "private mounts": "they keep our own mounts from the host, where tests of endings look for them",
    "mask of /proc/timer_list": "only root may read it, and root of the host is nobody inside",
    "mask of /proc/kallsyms": "without capabilities the kernel shows every address as zero",
    "RLIMIT_NICE, RLIMIT_RTPRIO": "they are zero already where nobody raised them",
}


# ---------------------------------------------------------------- as its root

_MORE_RIGHTS = (
    Edit("inside/agent/confinement.py", "        process.keep_capabilities(ROOT_RIGHTS)\n", ""),
    Edit(
        "inside/confine.py",
        '        _checked("capabilities cannot be dropped", process.drop_capabilities)\n',
        "        pass\n",
    ),
)
_NO_LOOK_AS_ROOT = Edit(
    "inside/agent/confinement.py",
    "        verify.at_myself(uid, gid, maps, self._outer, 0 if uid else ROOT_RIGHTS)\n",
    "        pass\n",
)

#: Those of everybody count for it, too, and are switched off above; these are what holds a root.
AS_ROOT: dict[str, Switch] = {
    "sealed root, layers of its own": Switch(
        together(_trust, bwrap.SWITCHES["sealed root"].off),
        ("write-to-what-others-see",),
        edits=(Edit("packages/system_layer.py", "    own.append(Part(ROOT_TREE, place + TOP_PLACE))\n", ""),),
    ),
    "read-only control files": Switch(
        nothing,
        ("change-a-control-file", "remove-a-control-file", "plant-a-control-file"),
        edits=SWITCHES["read-only control files"].edits,
    ),
    "few rights": Switch(nothing, ("start",), edits=_MORE_RIGHTS),
    "few rights, and the last look": Switch(
        nothing, ("have-a-capability",), edits=(*_MORE_RIGHTS, _NO_LOOK_AS_ROOT)
    ),
    "user namespace of its own": Switch(
        nothing,
        ("start",),
        edits=(
            *_SAME_USER_NAMESPACE,
            Edit("inside/agent/confinement.py", "            enter_alone()\n", "            pass\n"),
        ),
    ),
    "system call filter": Switch(
        _told(lambda told: told.replace(filter=allow_everything())),
        ("unshare-user", "make-a-whiteout", "kill-the-first-process"),
    ),
}
AS_ROOT_ALONE = {
    "last look": "it sees whether other steps did what they say: switched off together with each",
    "bounding set": "nothing can gain what it has not, without new privileges: its rights go with the rest",
}
