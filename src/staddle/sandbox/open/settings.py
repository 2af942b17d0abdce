"""Check the arguments of a sandbox, before probing the host."""

from __future__ import annotations

import os
import sys

from ... import backends, check
from ..._value import Value
from ...errors import InvalidCall, PolicyError
from ...paths import WORKSPACE_PATH, covers
from ...policy import Policy
from ...policy.environment import Environment, checked
from ...policy.identity import PLACES, TAKEN
from ...policy.installation import default_policy
from ...policy.network import PATIENCE, whole_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Literal

    from ...events import Event
    from ...learn.learning import Learning
    from ...network.host.approval_calls import OnConnect
    from ...observe.audit import AuditTarget

    #: Whether a sandbox has a history, and whether its points keep idle interpreters.
    History = bool | Literal["interpreter"]

MODES = ("overlay", "copy", "bind", "readonly")
#: Modes in which changes stay in the sandbox until a commit.
APART = ("overlay", "copy")

_USUAL: list[Policy] = []  # default policy, once it was needed


class SandboxSettings(Value):
    """Validated settings of a sandbox."""

    workspace: str | None
    policy: Policy
    backend: str
    mode: str
    best_effort: bool
    env: Mapping[str, str]
    keep: str | None = None
    #: Callback for destinations that the policy leaves open, and its timeout in seconds.
    on_connect: OnConnect | None = None
    asks: int = 0
    hooks: HookSettings | None = None
    #: Additional path of the workspace inside, and the owner's name and labels.
    workspace_at: str | None = None
    name: str = ""
    labels: Mapping[str, str] = {}
    workdir: str | None = None
    #: Whether a copy of the workspace is below its layers; None: if it is small.
    freeze: bool | None = False
    history: History = False
    learning: Learning | None = None
    #: Callback for HTTP requests that no rule allows, and its timeout in seconds.
    on_request: OnConnect | None = None
    request_seconds: int = 0


def settings(  # noqa: PLR0917 - Sandbox's parameters
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
    """Check the arguments of a Sandbox, without probing the host's backends.

    With `awaited`, an event loop can await callbacks. `overrides` are the policy's fields that a sandbox
    takes as arguments (identity, environment, base), `workdir`, `freeze`, `history`, `learn`, `on_request`.
    """
    if policy is None:
        policy = _USUAL[0] if _USUAL else default_policy()
        _USUAL[:] = [policy]
    policy = check.instance("policy", policy, Policy, "use Policy.agent()", PolicyError)
    freeze, history = overrides.pop("freeze", False), overrides.pop("history", False)
    learn, on_request = overrides.pop("learn", False), overrides.pop("on_request", None)
    given = {field: value for field, value in overrides.items() if value is not None}
    workdir = given.pop("workdir", None)
    if given:
        unknown = next((field for field in given if field not in ("identity", "environment", "base")), None)
        if unknown is not None:
            from .settings import unknown_option

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
    learning = None
    if learn is not False:
        from .settings import prepared_learning

        learning = prepared_learning(learn, policy, workspace, str(mode), variables, str(backend), on_connect)
    if learning is not None:
        policy = learning.watched
        on_connect = learning.decide if learning.asks else on_connect
        on_command, on_result = hooked(learning, on_command, on_result)
    decider, asks = _decider(on_connect, on_connect_timeout, awaited)
    hooks = None
    if not (on_command is on_result is on_violation is audit is None):
        from .settings import checked_hooks

        hooks = checked_hooks(on_command, on_result, on_violation, audit, awaited=awaited)
    more: dict[str, Any] = {} if learning is None else {"learning": learning}
    about_requests: dict[str, Any] = {}
    if on_request is not None:
        about_requests = _request_decider(on_request, on_connect_timeout, policy, awaited=awaited)
    if not (workspace_at is name is labels is None):
        from .settings import checked_labels, checked_place, checked_title

        more = {
            "workspace_at": None if workspace_at is None else checked_place(workspace_at, workspace),
            "name": "" if name is None else checked_title(name),
            "labels": {} if labels is None else checked_labels(labels),
        }
    if workdir is not None:
        fix = 'use workdir="src", or an absolute path inside'
        more["workdir"] = check.path("workdir", workdir, fix)
    if freeze is not False:
        from .settings import checked_freeze

        more["freeze"] = checked_freeze(freeze, workspace, str(mode), kept)
    if history is not False:
        from .settings import checked_history

        more["history"] = checked_history(history, str(mode))
    return SandboxSettings(
        workspace,
        policy,
        str(backend),
        str(mode),
        best_effort,
        variables,
        kept,
        decider,
        asks,
        hooks,
        **more,
        **about_requests,
    )


def _real(path: str) -> str:
    """Resolve links in a path; usually there are none, and one system call tells."""
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


def _request_decider(on_request: object, timeout: object, policy: Policy, *, awaited: bool) -> dict[str, Any]:
    from ...network.host.approval_calls import checked_for_requests

    seconds = int(PATIENCE) if timeout is PATIENCE else whole_seconds(timeout)
    found = checked_for_requests(on_request, policy.network, awaited=awaited)
    return {"on_request": found, "request_seconds": seconds}


def _kept_name(keep: object, mode: str) -> str:
    from ...layers.session_record import checked_name

    if mode != "overlay":
        raise InvalidCall(
            f"keep={keep!r} and mode={mode!r} contradict each other",
            why="only a layer of its own can be kept",
            fix="leave one of them out",
        )
    return checked_name(keep)


# Hooks of a sandbox, checked as the caller gives them; `sandbox.hooks` calls them.


class CommandStart(Value):
    """A command about to start: its number in the sandbox, and the caller's arguments."""

    number: int
    command: str | tuple[str, ...]
    session: str
    user: str
    cwd: str | None = None
    timeout: float | None = None
    background: bool = False

    def __str__(self) -> str:
        return self.command if isinstance(self.command, str) else " ".join(self.command)


class HookSettings(Value):
    """Validated hooks of a sandbox."""

    on_command: Callable[[CommandStart], Any] | None = None
    on_result: Callable[[Any], Any] | None = None
    on_violation: Callable[[Event], Any] | None = None
    audit: AuditTarget | None = None


def checked_hooks(
    on_command: object, on_result: object, on_violation: object, audit: Any, *, awaited: bool
) -> HookSettings | None:
    """Check the hooks; returns None if there are none. With `awaited` they may be coroutine functions."""
    given: dict[str, Any] = {"on_command": on_command, "on_result": on_result, "on_violation": on_violation}
    for name, hook in given.items():
        if hook is None:
            continue
        check.function(name, hook, "give a function")
        import inspect  # takes milliseconds

        if not awaited and inspect.iscoroutinefunction(hook):
            raise InvalidCall(
                f"{name} is a coroutine function", why="a Sandbox awaits nothing", fix="use AsyncSandbox"
            )
    if audit is None and not any(given.values()):
        return None
    return HookSettings(**given, audit=audit)


# Rarer arguments of a sandbox: path of the workspace, name, labels; suggestions for unknown ones.


_LONGEST_NAME, _MOST_LABELS, _LONGEST_LABEL = 128, 64, 1024

#: Options of other programs and of a policy, with their equivalents here.
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
#: All options of a sandbox.
_OPTIONS = (
    *("workspace", "policy", "backend", "mode", "best_effort", "env", "keep", "on_connect"),
    *("on_connect_timeout", "on_command", "on_result", "on_violation", "audit", "workspace_at", "name"),
    *("labels", "identity", "environment", "base", "workdir", "freeze", "history", "learn", "on_request"),
)
#: All options of a command.
_COMMAND_OPTIONS = (
    *("timeout", "cwd", "env", "stdin", "on_stdout", "on_stderr", "check", "spill", "merge", "output_limit"),
    *("cancel", "user"),
)
#: Options of commands in other libraries.
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
    """Return the message for an option that a sandbox does not have."""
    if name in _ELSEWHERE:
        return f"a sandbox has no {name!r}; it belongs to {_ELSEWHERE[name]}"
    from difflib import get_close_matches

    near = get_close_matches(name, (*_OPTIONS, *_ELSEWHERE), 1)
    if near and near[0] in _ELSEWHERE:
        return f"a sandbox has no {name!r}; {near[0]!r} belongs to {_ELSEWHERE[near[0]]}"
    return f"a sandbox has no {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def unknown_command_option(name: str) -> str:
    """Return the message for an option that `run`, `exec`, `stream` or `start` does not have."""
    from difflib import get_close_matches

    known = {**_ELSEWHERE, **_OF_OTHERS}
    if name in _COMMAND_OPTIONS:  # of another method
        return f"this kind of command has no {name!r}; it belongs to sb.run() and sb.exec()"
    if name not in known:
        near = get_close_matches(name, (*_COMMAND_OPTIONS, *known), 1)
        if not near or near[0] in _COMMAND_OPTIONS:
            return f"a command has no {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
        name = near[0]
    return f"a command has no {name!r}; it belongs to {known[name]}"


def checked_place(place: object, workspace: object) -> str | None:
    """Check an additional path for the workspace inside; None for the usual one."""
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
    """Check `freeze`. Raises InvalidCall if a copy cannot be below the layers."""
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


def checked_history(history: object, mode: str) -> History:
    """Check `history`. Raises InvalidCall if changes are not in layers."""
    if history != "interpreter" and not isinstance(history, bool):
        raise InvalidCall(
            f"history is {history!r}",
            why="it is neither True, False nor 'interpreter'",
            fix="use True for files and shells, 'interpreter' for the interpreters of sb.python too",
        )
    asked: History = history if isinstance(history, bool) else "interpreter"
    if asked and mode != "overlay":
        raise InvalidCall(
            f"history={history!r} contradicts mode={mode!r}",
            why="a point keeps the layers of a command, and only mode='overlay' has layers",
            fix="leave one of them out",
        )
    return asked


def prepared_learning(  # noqa: PLR0917 - settings of the sandbox
    learn: object,
    policy: Policy,
    workspace: str | None,
    mode: str,
    env: Mapping[str, str],
    backend: str,
    on_connect: Any,
) -> Learning | None:
    """Check `learn`; return what the sandbox learns with, if it learns."""
    from ...learn import learning

    asked = learning.checked(learn)
    if not asked:
        return None
    learning.check_backend(backend)
    if policy.base is not None:
        raise InvalidCall(
            "a sandbox with a base cannot learn",
            why="its files are not those of this host, which a policy grants",
            fix="leave out base, or learn",
        )
    return learning.Learning(
        policy,
        workspace=workspace,
        mode=mode,
        env=env,
        refuse=asked == "refuse",
        http=asked == "http",
        on_connect=on_connect,
    )


def hooked(learning: Learning, on_command: Any, on_result: Any) -> tuple[Any, Any]:
    """Return the hooks of a sandbox that learns, which call the caller's own."""

    def begins(start: CommandStart) -> Any:
        learning.command_begins(start.command)
        return None if on_command is None else on_command(start)

    def ended(result: Any) -> Any:
        learning.command_ended(result.ok, result.usage)
        return None if on_result is None else on_result(result)

    return begins, ended


def checked_title(name: object) -> str:
    """Check the display name of a sandbox."""
    if not isinstance(name, str) or not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise InvalidCall(
            f"name is {name!r}",
            fix=f"give a text of at most {_LONGEST_NAME} characters",
            why="it is not a text, or too long",
        )
    return name


def checked_labels(labels: object) -> Mapping[str, str]:
    """Check the labels of a sandbox."""
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
