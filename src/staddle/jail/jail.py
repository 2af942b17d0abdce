"""`Jail`: one agent command in a workspace, with the home hidden, on any backend.

  jail = new_jail("auto")
  status = jail.run(RunOpts(workspace, ["claude", "-p", "fix the tests"], api_key=key, timeout=3600))

No shell runs between the caller and the command: arguments and variables arrive unchanged. Variables,
including the key, are passed through a descriptor: they are on no command line, in no file and in no message
of ours.
"""

from __future__ import annotations

from .. import backends
from ..errors import CommandFailed, CommandTimeout, UnknownBackend
from ..wrapping import wrap
from .options import KEY, RunOpts, bootstrap, confinement
from .workspace_run import WorkspaceRun

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any, Protocol

    from .workspace_run import Runner
else:
    Protocol = object

__all__ = ["ALIASES", "KEY", "ConfinedJail", "Jail", "RunOpts", "bootstrap", "confinement", "new_jail"]

#: Alternative names of backends.
ALIASES = {"systemd-run": "systemd"}


class Jail(Protocol):
    """Runs a command in a workspace, confined."""

    def run(self, opts: RunOpts) -> int:
        """Run it on this terminal without stdin; return its exit status, 128 + N if signal N ended it."""

    def run_capture(self, opts: RunOpts) -> bytes:
        """Run it and return its stdout; stderr passes through. Raises CommandFailed if it fails."""


def new_jail(backend: str, runner: Runner | None = None) -> ConfinedJail:
    """A jail on `backend`: a name that `wrap` knows, "auto", or "systemd-run". `runner` is for tests."""
    name = ALIASES.get(backend, backend)
    if name not in (*backends.NAMES, "auto"):
        known = ", ".join((*backends.NAMES, *ALIASES, "auto"))
        raise UnknownBackend(
            f"there is no jail backend {backend!r}", why=f"staddle knows {known}", fix="choose one of them"
        )
    return ConfinedJail(name, runner or wrap)


class ConfinedJail(Jail):
    """A jail that confines commands with `wrap` on one backend."""

    def __init__(self, backend: str, runner: Runner) -> None:
        self.backend = backend
        self._runner = runner

    def run(self, opts: RunOpts) -> int:
        """As `Jail.run`. CommandTimeout, CommandCancelled: the command and its children have been ended."""
        return self._complete(opts).returncode

    def run_capture(self, opts: RunOpts) -> bytes:
        """As `Jail.run_capture`. Output beyond the policy's `limits.output` is cut in the middle."""
        import subprocess

        done = self._complete(opts, stdout=subprocess.PIPE)
        output: bytes = done.stdout
        if done.returncode:
            raise CommandFailed(
                f"{opts.command[0]!r} ended with {done.returncode}",
                why=getattr(done, "why", "") or "see what it printed",
                status=done.returncode,
                output=output,
                fix="run it with run() to see its output, or read error.output",
            )
        return output

    def prepare(self, opts: RunOpts) -> WorkspaceRun:
        """The run as a context manager, for a caller that starts the command on its own streams."""
        return WorkspaceRun(opts, self.backend, self._runner)

    def _complete(self, opts: RunOpts, **streams: int) -> subprocess.CompletedProcess[bytes]:
        import subprocess

        asked: dict[str, Any] = {**streams}
        if opts.cancel is not None:
            asked["cancelled"] = opts.cancel.is_set
        with self.prepare(opts) as run:
            try:
                done: subprocess.CompletedProcess[bytes] = run.command.run(
                    stdin=subprocess.DEVNULL, timeout=opts.timeout, **asked
                )
            except subprocess.TimeoutExpired as late:
                raise CommandTimeout(
                    f"{opts.command[0]!r} was killed",
                    why=f"it had {opts.timeout:g} s",
                    status=124,
                    output=late.output or b"",
                    fix="give it more time with RunOpts(timeout=…)",
                ) from None
            if done.returncode < 0:
                done.returncode = 128 - done.returncode
            run.ended(done.returncode)
            return done
