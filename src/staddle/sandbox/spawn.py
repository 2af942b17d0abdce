"""How programs are started in a sandbox, for both of its faces: to wait for, behind, on a terminal."""

from __future__ import annotations

import os

from . import arguments
from .capture import command_bytes
from .execution import Execution, Streams
from .open import as_root
from .processes import Process
from .terminal import Terminal, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..ipc.agent_client import Spawned
    from ..policy import Policy
    from ..shell.usage_meter import Account
    from .capture import CapturedCommand
    from .open_sandbox import OpenSandbox
    from .session import Session, SessionState

#: A person's prompt: who, where. The shell's own would say `bash-5.2$`.
_PROMPT = r"\u@\h:\w\$ "


class Started:
    """The part of a sandbox that starts programs."""

    if TYPE_CHECKING:
        _inside: OpenSandbox

        def _now(self) -> OpenSandbox: ...
        @property
        def main(self) -> Session: ...
        @property
        def policy(self) -> Policy: ...

    def is_root(self, user: object) -> bool:
        """Whether `user` is the sandbox's root, and not who its session is; it has its system then."""
        if user is None:
            return False
        opened = self._now().opened
        return as_root.asked_for(user, opened.decided, opened.workspace)

    def execution(self, spec: CapturedCommand, argv: Sequence[str], state: SessionState) -> Execution:
        """Start a program without a shell."""
        inside = self._now()
        spec.side_effects = inside.side_effects
        variables = as_root.variables(state.env) if spec.as_root else state.env
        return Execution(
            inside.opened.link,
            spec,
            argv,
            {**variables, **(spec.env or {})},
            _directory(state, spec.cwd),
            uid=inside.opened.uid,
            known=inside.executions,
            root=spec.as_root,
            account=inside.account(),
        )

    def background(
        self, command: str | Sequence[str], cwd: object, env: object, state: SessionState
    ) -> Process:
        """A program that has just been started in the background."""
        argv, shown = self._argv(command)
        inside = self._now()
        streams = Streams(inside.opened.uid, with_stdin=True)
        try:
            spawned = inside.opened.link.spawn(
                argv,
                {**state.env, **({} if env is None else arguments.variables(env))},
                _directory(state, None if cwd is None else arguments.directory(cwd)),
                stdio=streams.theirs,
            )
        except BaseException:
            streams.close()
            raise
        streams.started()
        process = Process(shown, spawned, streams, self.policy.limits.output)
        inside.processes.add(process)
        return process

    def open_terminal(
        self,
        argv: Sequence[str] | None,
        high: int,
        wide: int,
        *,
        term: object,
        cwd: object,
        env: object,
        state: SessionState,
    ) -> Terminal:
        """A terminal with a program that has just been started on it."""
        size(high, wide)
        words = (self.bash, "-i") if argv is None else arguments.arguments(argv)
        variables = arguments.variables({"TERM": term, **({} if env is None else dict(env))})  # type: ignore[call-overload]
        prompt = {"PS1": _PROMPT} if argv is None else {}
        inside = self._now()
        spawned = inside.opened.link.spawn(
            words,
            {**prompt, **state.env, **variables},
            _directory(state, None if cwd is None else arguments.directory(cwd)),
            terminal=(high, wide),
        )
        made = Terminal(spawned, high, wide)
        inside.terminals = [*(known for known in inside.terminals if not known.closed), made]
        return made

    @property
    def bash(self) -> str:
        """The shell that the sandbox sees."""
        return self._inside.opened.bash

    @property
    def uid(self) -> int | None:
        """Who its processes are on the host, where that is not us."""
        return self._inside.opened.uid

    def spawn(self, argv: Sequence[str], stdio: tuple[int, int, int]) -> Spawned:
        """A program with these descriptors of ours as its standard streams, where the session is."""
        state = self.main.exec_context
        return self._now().opened.link.spawn(arguments.arguments(argv), state.env, state.cwd, stdio=stdio)

    def account(self) -> Account:
        """For what a program uses, and runs into, that is spawned."""
        return self._now().account()

    def _argv(self, command: str | Sequence[str]) -> tuple[tuple[str, ...], str | tuple[str, ...]]:
        if isinstance(command, str):
            command_bytes(command)
            return (self.bash, "-c", command), command
        argv = arguments.arguments(command)
        return argv, argv


def _directory(state: SessionState, cwd: str | None) -> str:
    """Where a program starts; a relative path counts from where the session is."""
    return state.cwd if cwd is None else os.path.join(state.cwd, cwd)
