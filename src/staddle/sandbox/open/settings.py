"""Check the arguments of a sandbox, before anything is looked up."""

from __future__ import annotations

import os
import sys

from ... import backends, check
from ..._value import Value
from ...errors import InvalidCall, PolicyError
from ...policy import Policy
from ...policy.environment import Environment, checked
from ...policy.installation import default_policy
from ...policy.network import PATIENCE, whole_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ...network.host.approval_calls import OnConnect
    from .hook_settings import HookSettings

MODES = ("overlay", "copy", "bind", "readonly")
#: Those in which changes stay in the sandbox until a commit.
APART = ("overlay", "copy")

_USUAL: list[Policy] = []  # what a sandbox has that is not given a policy, once it was needed


class SandboxSettings(Value):
    """The settings of a sandbox, checked."""

    workspace: str | None
    policy: Policy
    backend: str
    mode: str
    best_effort: bool
    env: Mapping[str, str]
    keep: str | None = None
    #: The callback that decides about destinations that the policy leaves open, and its seconds.
    on_connect: OnConnect | None = None
    asks: int = 0
    hooks: HookSettings | None = None
    #: Another path at which the workspace is seen, a name for it, and what its owner says of it.
    workspace_at: str | None = None
    name: str = ""
    labels: Mapping[str, str] = {}
    workdir: str | None = None
    #: Whether a copy of the workspace lies below its layers; None: if it is small.
    freeze: bool | None = False


def settings(  # noqa: PLR0917 - as Sandbox takes them
    workspace: object = None,
    policy: object = None,
    backend: object = "auto",
    mode: object = "overlay",
    best_effort: object = False,
    env: object = None,
    keep: object = None,
    on_connect: object = None,
    on_connect_timeout: object = PATIENCE,
    on_command: object = None,
    on_result: object = None,
    on_violation: object = None,
    audit: object = None,
    *,
    workspace_at: object = None,
    name: object = None,
    labels: object = None,
    awaited: bool = False,
    **overrides: Any,
) -> SandboxSettings:
    """The arguments of a Sandbox, checked as far as that needs no look at the host's backends.

    With `awaited`, there is an event loop on which callbacks can be awaited. `overrides` are the fields of a
    policy that a sandbox takes as arguments (identity, environment, base), `workdir` and `freeze`.
    """
    if policy is None:
        policy = _USUAL[0] if _USUAL else default_policy()
        _USUAL[:] = [policy]
    policy = check.instance("policy", policy, Policy, "use Policy.agent()", PolicyError)
    freeze = overrides.pop("freeze", False)
    given = {field: value for field, value in overrides.items() if value is not None}
    workdir = given.pop("workdir", None)
    if given:
        unknown = next((field for field in given if field not in ("identity", "environment", "base")), None)
        if unknown is not None:
            from .hints import unknown_option

            raise TypeError(unknown_option(unknown))
        policy = policy.replace(**given)
    check.one_of("mode", mode, MODES)
    best_effort = check.flag("best_effort", best_effort)
    if backend != "auto":
        backends.get(str(backend))
    kept = None if keep is None else _kept_name(keep, str(mode))
    if kept is not None and workspace is None:
        from ..workspace.persistent import workspace_of

        workspace = workspace_of(kept)
    if workspace is not None:
        workspace = check.path("workspace", workspace, "give the path of a directory")
        workspace = _real(os.path.expanduser(workspace))
        if not os.path.isdir(workspace):
            raise InvalidCall(
                f"the workspace {workspace!r} is not a directory",
                fix="make it first, or leave it out",
                why="a file is there, or nothing",
            )
        if workspace == "/":
            raise InvalidCall(
                "'/' cannot be the workspace",
                why="it would expose the whole file system",
                fix="choose a project directory",
            )
    variables = Environment() if env is None else checked(env)
    decider, asks = _decider(on_connect, on_connect_timeout, awaited)
    hooks = None
    if not (on_command is on_result is on_violation is audit is None):
        from .hook_settings import checked_hooks

        hooks = checked_hooks(on_command, on_result, on_violation, audit, awaited=awaited)
    more: dict[str, Any] = {}
    if not (workspace_at is name is labels is None):
        from .hints import checked_labels, checked_place, checked_title

        more = {
            "workspace_at": None if workspace_at is None else checked_place(workspace_at, workspace),
            "name": "" if name is None else checked_title(name),
            "labels": {} if labels is None else checked_labels(labels),
        }
    if workdir is not None:
        fix = 'use workdir="src", or an absolute path inside'
        more["workdir"] = check.path("workdir", workdir, fix)
    if freeze is not False:
        from .hints import checked_freeze

        more["freeze"] = checked_freeze(freeze, workspace, str(mode), kept)
    return SandboxSettings(
        workspace, policy, str(backend), str(mode), best_effort, variables, kept, decider, asks, hooks, **more
    )


def _real(path: str) -> str:
    """The path without links: mostly there are none in it, and the kernel says so at once."""
    if sys.platform == "linux" and path.startswith("/"):
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return os.path.realpath(path)
        try:
            if os.readlink(f"/proc/self/fd/{fd}") == path:
                return path
        except OSError:
            pass  # there is no /proc
        finally:
            os.close(fd)
    try:
        return os.path.realpath(path)
    except FileNotFoundError:
        raise InvalidCall(
            f"the workspace {path!r} cannot be found",
            why="the current directory of this program no longer exists",
            fix="give an absolute path, or change to a directory that exists",
        ) from None


def _decider(on_connect: object, timeout: object, awaited: bool) -> tuple[OnConnect | None, int]:
    seconds = int(PATIENCE) if timeout is PATIENCE else whole_seconds(timeout)
    if on_connect is None:
        return None, 0
    from ...network.host.approval_calls import checked

    return checked(on_connect, awaited=awaited), seconds


def _kept_name(keep: object, mode: str) -> str:
    from ...layers.session_record import checked_name

    if mode != "overlay":
        raise InvalidCall(
            f"keep={keep!r} and mode={mode!r} contradict each other",
            why="only a layer of its own can be kept",
            fix="leave one of them out",
        )
    return checked_name(keep)
