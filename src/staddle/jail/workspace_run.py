"""One command in one workspace: its claim, its state, its journal, and the checks after its end.

`Jail.run`, `Jail.run_capture` and the command line all use it, on any streams.

An agent commits, so it can write all refs, which git stores in one place. If a ref other than its own branch
is moved or removed during the run, staddle reports the ref and its former commit.
"""

from __future__ import annotations

import os
import time

from ..errors import CommandCancelled, CommandTimeout, CommitRefused, GitError, StaddleError, WorkspaceError
from ..events import Event
from . import record
from .agents import Agent, changed_settings, fingerprint
from .git import text
from .options import bootstrap, confinement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import TracebackType
    from typing import Any, Self

    from .agents import Fingerprint
    from .options import RunOpts

    Runner = Callable[..., Any]

#: In a repository with more loose refs, or a longer packed-refs file, only a part is compared.
MOST_REFS = 50_000
MOST_BYTES = 64 << 20


def read_refs(common: str) -> dict[str, str]:
    """Every ref and its value; loose refs override packed ones. Runs nothing and follows no link."""
    found: dict[str, str] = {}
    for line in text(f"{common}/packed-refs", MOST_BYTES).split("\n")[:-1]:
        commit, _, name = line.partition(" ")
        if name.startswith("refs/"):
            found[name] = commit
    pending = ["refs"]
    left = MOST_REFS
    while pending and left > 0:
        place = pending.pop()
        try:
            with os.scandir(f"{common}/{place}") as entries:
                for entry in entries:
                    name = f"{place}/{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(name)
                    elif not entry.name.endswith(".lock"):
                        left -= 1
                        found[name] = text(f"{common}/{name}").strip()
        except OSError:
            continue  # removed meanwhile
    return found


def moved_refs(
    before: dict[str, str], after: dict[str, str], own: Collection[str]
) -> tuple[tuple[str, str, str], ...]:
    """(ref, old value, new value or "") for each ref that was moved or removed."""
    return tuple(
        (name, was, after.get(name, ""))
        for name, was in sorted(before.items())
        if was and name not in own and after.get(name, "") != was
    )


#: After this reason a workspace is `stopped`; after any other, `failed`.
BY_ITSELF = "exited"


class WorkspaceRun:
    """One command in one workspace, as a context manager: start `command`, then call `ended(status)`.

    Without a call of `ended`, the run counts as ended by an exception, and the workspace is `failed`.
    `events` are the violations that a person should check after the run. `committed` is the commit of the
    command's uncommitted changes, if `RunOpts.commit` is set.
    """

    command: Any
    events: tuple[Event, ...] = ()
    committed: str | None = None

    def __init__(self, opts: RunOpts, backend: str, runner: Runner) -> None:
        self._opts, self._backend, self._runner = opts, backend, runner
        self._secrets = opts.secrets()
        self._status: int | None = None
        self._reason = BY_ITSELF

    def __enter__(self) -> Self:
        """Claim it, confine the command, then set the state `running`: a refusal changes nothing."""
        opts = self._opts
        self._claim = opts.workspace.claim()
        self._began = time.monotonic()
        self.command = None
        try:
            extra: dict[str, Any] = {"best_effort": True} if opts.best_effort else {}
            if opts.audit is not None:
                extra["audit"] = opts.audit
            self._before, self._refs = self._obeyed(), read_refs(opts.workspace.common)
            self.command = self._runner(
                list(opts.command),
                confinement(opts),
                backend=self._backend,
                cwd=opts.workspace.path,
                env=bootstrap(opts),
                **extra,
            )
            record.end_journal(opts.workspace.directory)
            opts.workspace.unlock()  # left by a run that was killed together with its staddle
            opts.workspace.move_to("running")
        except BaseException as error:
            if isinstance(error, StaddleError):
                self._secrets.strip(error)
            self._note("refused", command=opts.command, why=str(error))
            self._release()
            raise
        self._note(
            "began",
            command=opts.command,
            variables=[text.partition("=")[0] for text in opts.env],
            key=opts.api_key is not None,
            agent=opts.agent.name if isinstance(opts.agent, Agent) else None,
            session=opts.session,
            backend=getattr(self.command, "backend", self._backend),
            network=str(getattr(getattr(self.command, "plan", None), "network", "")),
            timeout=opts.timeout,
        )
        return self

    def ended(self, status: int, reason: str = BY_ITSELF) -> None:
        """Record the exit `status`, as a shell reports it.

        Any `reason` but "exited" leaves a failed workspace.
        """
        self._status, self._reason = status, reason

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        good = self._status is not None and self._reason == BY_ITSELF
        if isinstance(error, StaddleError):
            self._secrets.strip(error)
        try:
            self._opts.workspace.move_to("stopped" if good else "failed")
            self._opts.workspace.unlock()
            self.events = self.violations()
            if good and self._opts.commit is not None:
                self._commit(self._opts.commit)
            self._note(
                "ended",
                status=self._status,
                reason=self._reason if self._status is not None else _reason(error),
                why=str(error) if error is not None else "",
                seconds=round(time.monotonic() - self._began, 3),
                violations=[f"{event.what}: {event.rule}" for event in self.events],
            )
        finally:
            self._release()

    def violations(self) -> tuple[Event, ...]:
        """New protected names, changed settings that the user's own agent obeys, moved branches."""
        found: list[Event] = list(self.command.violations()) if hasattr(self.command, "violations") else []
        found += [
            Event(
                "violation",
                path,
                "the agent changed what your own agent obeys when it starts",
                "inspect it before you start that agent yourself",
            )
            for path in changed_settings(self._before, self._obeyed())
        ]
        found += self._moved()
        return tuple(self._secrets.event(event) for event in found)

    def _commit(self, message: str) -> None:
        """Commit the tree; report a failure as an event, without changing the result of the command."""
        workspace = self._opts.workspace
        try:
            self.committed = workspace.commit_all(message, author=self._opts.author)
        except (WorkspaceError, GitError, CommitRefused) as error:
            told = Event("violation", workspace.path, f"not committed: {error}", "commit it yourself")
            self.events = (*self.events, self._secrets.event(told))

    def _moved(self) -> list[Event]:
        workspace = self._opts.workspace
        now = read_refs(workspace.common)
        if now == self._refs:
            return []
        # Other workspaces of this repository move their own branches.
        others = type(workspace).list(root=os.path.dirname(workspace.directory))
        own = {f"refs/heads/{item.branch}" for item in (workspace, *others)}
        return [
            Event(
                "violation",
                name,
                f"moved while the agent ran, from {was} to {now_at or 'nowhere'}",
                f"if that was not you, `git update-ref {name} {was}` puts it back",
            )
            for name, was, now_at in moved_refs(self._refs, now, own)
        ]

    def _obeyed(self) -> Fingerprint:
        agent = self._opts.agent
        return fingerprint(agent.obeyed, agent.mixed) if isinstance(agent, Agent) else {}

    def _release(self) -> None:
        self._claim.release()
        if hasattr(self.command, "close"):
            self.command.close()  # resources for a start that did not happen

    def _note(self, what: str, **facts: object) -> None:
        record.append_journal(self._opts.workspace.directory, what, self._secrets, **facts)


def _reason(error: BaseException | None) -> str:
    """The reason why a run was ended."""
    if isinstance(error, CommandTimeout):
        return "timeout"
    if isinstance(error, CommandCancelled | KeyboardInterrupt):
        return "cancelled"
    return type(error).__name__
