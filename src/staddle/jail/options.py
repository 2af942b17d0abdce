"""Options of one run of a jail, and the policy and variables derived from them. Starts nothing."""

from __future__ import annotations

import os

from .._value import Value
from ..errors import PolicyError
from ..hostinfo.secrets import Secret
from ..policy import Policy
from ..policy.environment import checked, checked_name
from ..policy.limits import Limits
from .agents import Agent, agent_named
from .workspace import commit_identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable

    from ..observe.audit import AuditTarget
    from ..observe.redaction import Secrets
    from .workspace import Workspace

#: The variable for the key, unless the agent has its own.
KEY = "ANTHROPIC_API_KEY"


class RunOpts(Value):
    """One run. `env` are "NAME=value" texts; only the command gets `api_key`, in the agent's variable.

    `timeout` is in seconds (default: none). `policy` replaces `Policy.coding_agent(home)`; the workspace is
    writable under either. `agent` is the name of a row in `agents.AGENTS`, or an `Agent`: its paths are
    granted, those of other agents are not. Setting `cancel` ends the run. `best_effort` runs the command even
    if a protection cannot be enforced. `author`, "Name <address>", is the committer. `commit` is a commit
    message: if the command ended by itself, its uncommitted changes are committed with it. `session` is the
    agent's id of its conversation, for the journal. `audit` is a file, a stream or a function for the audit
    log of the run.
    """

    workspace: Workspace
    command: tuple[str, ...]
    env: tuple[str, ...] = ()
    api_key: str | None = None
    timeout: float | None = None
    policy: Policy | None = None
    agent: Agent | str | None = None
    cancel: threading.Event | None = None
    best_effort: bool = False
    author: str | None = None
    commit: str | None = None
    session: str | None = None
    audit: AuditTarget | None = None

    def __post_init__(self) -> None:
        for name in ("command", "env"):
            given = getattr(self, name)
            if isinstance(given, str | bytes):
                raise PolicyError(
                    f"{name} is one text", why="splitting it would be guessing", fix="give a list"
                )
            self._set(name, tuple(os.fsdecode(item) for item in given))
        if not self.command:
            raise PolicyError(
                "the command is empty", fix="give at least a program", why="there would be nothing to run"
            )
        variables(self.env)
        if self.api_key is not None:
            _checked_key(self.api_key)
        self._set("timeout", Limits(timeout=self.timeout).timeout)  # accepts texts such as 2m
        commit_identity(self.author)
        if self.commit is not None and (not self.commit.strip() or "\0" in self.commit):
            raise PolicyError(
                "the commit message is empty, or has a NUL in it",
                fix="describe what was done",
                why="git would refuse it",
            )
        if isinstance(self.agent, str):
            self._set("agent", agent_named(self.agent))
        if not (self.agent is None or isinstance(self.agent, Agent)):
            raise PolicyError(
                f"agent is {self.agent!r}",
                why="it is neither a name nor an Agent",
                fix="use agent='claude', or make an Agent",
            )
        if not (self.cancel is None or hasattr(self.cancel, "is_set")):
            raise PolicyError(
                f"cancel is {self.cancel!r}",
                why="it is not a threading.Event",
                fix="use cancel=threading.Event()",
            )

    def __repr__(self) -> str:
        # Values may be secrets, and a repr ends up in logs.
        names = [item.partition("=")[0] for item in self.env]
        key = "" if self.api_key is None else ", api_key=(hidden)"
        agent = f", agent={self.agent.name!r}" if isinstance(self.agent, Agent) else ""
        rest = f"env={names!r}{key}, timeout={self.timeout!r}{agent}"
        return f"RunOpts({self.workspace!r}, {list(self.command)!r}, {rest})"

    def secrets(self) -> Secrets:
        """The values to redact from messages: the key, and the values of variables that look like secrets."""
        from ..observe.redaction import Secrets, secret_values

        policy = self.policy
        if policy is not None and policy.redact is False:
            return Secrets(() if self.api_key is None else (self.api_key,))
        passed = {
            name: os.environ[name] for name in (policy.pass_env if policy else ()) if name in os.environ
        }
        layers = [policy.env if policy else {}, passed, variables(self.env)]
        found = secret_values(layers, policy.secret_names if policy else ())
        return Secrets(found if self.api_key is None else (*found, self.api_key))


def confinement(opts: RunOpts) -> Policy:
    """The policy of a run: the given one or `Policy.coding_agent`, plus the paths that a commit writes.

    In the repository these are objects, refs, logs and the worktree's own git directory. The config, the
    hooks and everything else that git obeys are read-only, and none can be added.
    """
    workspace = opts.workspace
    policy = Policy.coding_agent(os.path.expanduser("~")) if opts.policy is None else opts.policy
    if isinstance(opts.agent, Agent):
        policy = opts.agent.needs(policy)
    common = workspace.common
    return (
        policy.with_read(common)
        .with_write(
            workspace.path, workspace.admin, *(f"{common}/{part}" for part in ("objects", "refs", "logs"))
        )
        .with_limits(timeout=opts.timeout)
    )


def bootstrap(opts: RunOpts) -> dict[str, str]:
    """The agent's variables, in addition to those of every sandbox. PATH is the preset's."""
    key = opts.agent.key if isinstance(opts.agent, Agent) else KEY
    identity = commit_identity(opts.author)
    settings = {
        # Housekeeping would rewrite parts of the repository that are read-only inside.
        "gc.auto": "0",
        "user.name": identity["GIT_AUTHOR_NAME"],
        "user.email": identity["GIT_AUTHOR_EMAIL"],
    }
    return {
        **identity,
        "GIT_CONFIG_COUNT": str(len(settings)),
        **{f"GIT_CONFIG_KEY_{number}": name for number, name in enumerate(settings)},
        **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(settings.values())},
        "MISE_YES": "1",
        "MISE_TRUSTED_CONFIG_PATHS": opts.workspace.path,
        **({} if opts.api_key is None else {key: Secret(opts.api_key)}),
        **variables(opts.env),
    }


def variables(texts: Iterable[str]) -> dict[str, str]:
    """Parse "NAME=value" texts. PolicyError for an invalid one; none is dropped."""
    found: dict[str, str] = {}
    for position, text in enumerate(texts):
        name, equals, value = text.partition("=")
        if not equals:
            # Do not show it: it may be half of a mistyped secret.
            raise PolicyError(
                f"variable {position + 1} of env has no '='",
                fix='write "NAME=value"',
                why="a variable is a name and a value",
            )
        checked_name(name, "env")
        if "\0" in value:
            raise PolicyError(f"env cannot set {name!r}", why="its value has a NUL in it", fix="take it out")
        found[name] = value
    return dict(checked(found))


def _checked_key(key: object) -> None:
    if not isinstance(key, str) or not key or "\0" in key:
        raise PolicyError(
            "the API key cannot be passed on",
            why="it is empty, has a NUL in it, or is not text",
            fix="give the key as text",
        )
