"""Rarer arguments of a sandbox: where the workspace is, its name and labels; and what a wrong one meant."""

from __future__ import annotations

import os

from ... import check
from ...errors import InvalidCall
from ...policy.identity import PLACES, TAKEN
from ...policy.paths import WORKSPACE_PATH, covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_NAME, _MOST_LABELS, _LONGEST_LABEL = 128, 64, 1024

#: Options of other programs, and of a policy, and where they belong here.
_ELSEWHERE = {
    "timeout": "a command, sb.run(..., timeout=60), or to a policy: Policy.agent().with_limits(timeout=60)",
    "network": "a policy: policy=Policy.agent().with_network(Network.allow('pypi.org'))",
    "memory": "a policy: policy=Policy.agent().with_limits(memory='1G')",
    "limits": "a policy: policy=Policy.agent().with_limits(memory='1G')",
    "cpu": "a policy: policy=Policy.agent().with_limits(cpu=2)",
    "read": "a policy: policy=Policy.agent().with_read('/opt/data')",
    "write": "a policy: policy=Policy.agent().with_write('out')",
    "deny": "a policy: policy=Policy.agent().with_deny('~/.ssh')",
    "sockets": "a policy: policy=Policy.agent().with_sockets('/run/x.sock')",
    "sudo": "a policy: policy=Policy.agent().replace(sudo=False)",
    "world": "a policy: policy=Policy.agent().replace(world='writable')",
    "envs": "env=",
    "environ": "env=",
    "image": "base=: a root file system, see `staddle docs base`",
    "template": "base=, or Sandbox.from_snapshot()",
    "metadata": "labels=",
    "cwd": "workspace=, workdir=, or of a command: sb.run(..., cwd=...)",
    "user": "identity=Identity(user=...), or of a command: sb.run(..., user=...)",
}
#: All that a sandbox takes.
_OPTIONS = (
    *("workspace", "policy", "backend", "mode", "best_effort", "env", "keep", "on_connect"),
    *("on_connect_timeout", "on_command", "on_result", "on_violation", "audit", "workspace_at", "name"),
    *("labels", "identity", "environment", "base", "workdir", "freeze"),
)
#: All that a command takes, `user` besides.
_COMMAND_OPTIONS = (
    *("timeout", "cwd", "env", "stdin", "on_stdout", "on_stderr", "check", "spill", "merge", "output_limit"),
    *("cancel", "user"),
)
#: Options of commands elsewhere.
_OF_OTHERS = {
    "background": "another method: sb.start(...)",
    "shell": "another method: sb.run('TEXT') has a shell, sb.exec([...]) has none",
    "input": "stdin=",
    "capture_output": "every command: result.stdout and result.stderr",
    "text": "every command: result.stdout is text, result.stdout_bytes is not",
    "stdout": "on_stdout=, or every command: result.stdout",
    "stderr": "merge=True, or every command: result.stderr",
    "workdir": "cwd=",
}


def unknown_option(name: str) -> str:
    """The sentence for an option that a sandbox does not have."""
    if name in _ELSEWHERE:
        return f"a sandbox has no {name!r}; it belongs to {_ELSEWHERE[name]}"
    from difflib import get_close_matches

    near = get_close_matches(name, (*_OPTIONS, *_ELSEWHERE), 1)
    if near and near[0] in _ELSEWHERE:
        return f"a sandbox has no {name!r}; {near[0]!r} belongs to {_ELSEWHERE[near[0]]}"
    return f"a sandbox has no {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def unknown_command_option(name: str) -> str:
    """The sentence for an option that `run`, `exec`, `stream` or `start` does not have."""
    from difflib import get_close_matches

    known = {**_ELSEWHERE, **_OF_OTHERS}
    if name in _COMMAND_OPTIONS:  # of another one of these
        return f"this kind of command has no {name!r}; it belongs to sb.run() and sb.exec()"
    if name not in known:
        near = get_close_matches(name, (*_COMMAND_OPTIONS, *known), 1)
        if not near or near[0] in _COMMAND_OPTIONS:
            return f"a command has no {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
        name = near[0]
    return f"a command has no {name!r}; it belongs to {known[name]}"


def checked_place(place: object, workspace: object) -> str | None:
    """Another path for the workspace inside; None if it is the usual one."""
    path = check.path("workspace_at", place, "give an absolute path inside")
    normal = os.path.normpath(path)
    if not path.startswith("/") or "\0" in path or normal.startswith("//") or ".." in path.split("/"):
        raise InvalidCall(
            f"workspace_at is {path!r}", why="it is not a plain absolute path", fix="use '/app'"
        )
    if normal == WORKSPACE_PATH:
        return None
    above = [taken for taken in TAKEN if covers(taken, normal)] or [
        taken for taken in PLACES if normal == taken
    ]
    if above and normal != workspace:
        raise InvalidCall(
            f"workspace_at is {path!r}", why=f"{above[0]} is the system's", fix="choose another path, '/app'"
        )
    return normal


def checked_freeze(freeze: object, workspace: object, mode: str, keep: str | None) -> bool | None:
    """Whether a copy of the workspace is to lie below the layers. InvalidCall where there can be none."""
    freeze = None if freeze is None else check.flag("freeze", freeze)
    if workspace is not None and mode == "overlay" and keep is None:
        return freeze
    if not freeze:
        return False
    why = "there is no workspace to freeze"
    if workspace is not None:
        why = "only the layers of mode='overlay' can lie on a copy, and not those that are kept"
    raise InvalidCall(
        f"freeze=True contradicts {'keep=' if keep else f'mode={mode!r}'}" if workspace else "freeze=True",
        why=why,
        fix="leave it out; mode='copy' is frozen by itself",
    )


def checked_title(name: object) -> str:
    """A name for people to know it by."""
    if not isinstance(name, str) or not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise InvalidCall(
            f"name is {name!r}",
            fix=f"give a text of at most {_LONGEST_NAME} characters",
            why="it is not a text, or too long",
        )
    return name


def checked_labels(labels: object) -> Mapping[str, str]:
    """Check the labels that the owner of a sandbox gives it."""
    from collections.abc import Mapping

    if not isinstance(labels, Mapping) or len(labels) > _MOST_LABELS:
        raise InvalidCall(
            f"labels is {labels!r}",
            why=f"it is not a dict of at most {_MOST_LABELS} texts",
            fix="give a dict such as {'task': '17'}",
        )
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str) or len(key) + len(value) > _LONGEST_LABEL:
            raise InvalidCall(
                f"labels has {key!r}: {value!r}",
                why="both are texts, and not long ones",
                fix="shorten it, and write str(…) around numbers",
            )
    return dict(labels)
