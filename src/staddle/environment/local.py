"""An agent's file and command tools on this machine, confined to one directory."""

from __future__ import annotations

import errno
import os

from .. import places
from ..errors import LaunchFailed
from ..files import beneath
from ..files.beneath import relative
from ..files.globs import Glob
from ..launch.running import within_lifetime
from ..linux.openat2 import open_without_symlinks
from ..policy import Policy
from ..policy.compiler import compile
from ..policy.installation import default_policy
from . import commands
from .base import EnvironmentBase
from .command_confinement import CommandConfinement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import IO, Literal, Self

    from ..command_rules.rules import CommandRules
    from ..enforcement import BackendName, Enforcement, Gap
    from ..files.beneath import AnyPath, PendingFile
    from ..observe.audit import AuditTarget
    from ..observe.redaction import Secrets
    from ..wrapping import WrappedCommand
    from .interface import CommandResult

#: The largest file that read_file returns, because an agent may create a sparse file of a terabyte.
MOST_READ = 64 << 20


class LocalEnvironment(EnvironmentBase):
    """Reads, writes and runs below `working_dir`, and nowhere else.

    With `writable_paths`, only paths that match the globs can be written. The file tools enforce this
    exactly, and so do commands, except for the gaps in `limits()`. Without it, the whole directory is
    writable. `policy` (default: `Policy.agent()`) confines commands on `backend`. If that is unavailable,
    `on_unavailable="refuse"` does not start them, and "record" starts them with what is available and reports
    the gaps in `enforced`.

    `rules` tell an agent, before a command starts, that it should not run it; only the confinement is
    enforced. `secrets` names variables whose values are removed from output, events and errors, besides
    variables whose names look like secrets. `audit` is a file, a stream or a function that receives every
    command and its result.

    Hooks (default: none): `command_wrapper` returns the argument list to confine, `write_opener(path, mode)`
    returns the binary file to write to, and `remover(path)` removes. They are called after every check, with
    an absolute path.
    """

    #: The open directory; -1 also if the arguments were invalid.
    _root = -1

    def __init__(
        self,
        working_dir: AnyPath,
        writable_paths: Iterable[str] | None = None,
        *,
        policy: Policy | None = None,
        backend: BackendName = "auto",
        on_unavailable: Literal["refuse", "record"] = "refuse",
        rules: CommandRules | None = None,
        secrets: Iterable[str] = (),
        command_wrapper: Callable[[list[str]], Sequence[str]] | None = None,
        write_opener: Callable[[str, int], IO[bytes] | PendingFile] | None = None,
        remover: Callable[[str], None] | None = None,
        audit: AuditTarget | None = None,
    ) -> None:
        super().__init__(policy or default_policy(), writable_paths, on_unavailable, rules, secrets)
        self._path = os.path.realpath(os.fsdecode(working_dir), strict=True)
        self._policy = self._policy.with_read(self._path)
        plan = compile(self._policy, cwd=self._path)
        self._confinement = CommandConfinement(
            self._path,
            self._policy,
            self._globs,
            plan=plan,
            backend=backend,
            record=on_unavailable == "record",
        )
        self._command_wrapper, self._write_opener, self._remover = command_wrapper, write_opener, remover
        # Open until `close()`, so that a directory that replaces it later is not used.
        self._root = open_without_symlinks(self._path, os.O_PATH | os.O_DIRECTORY)
        if audit is not None:
            from ..observe.audit import CommandAudit

            network, values = str(self._policy.network), self._secrets_with(None)
            outside = (self._path, *plan.written())
            self._audit = CommandAudit(
                audit, values, outside=outside, backend=backend, workspace=self._path, network=network
            )

    def read_file(self, path: AnyPath, *, limit: int = MOST_READ) -> str:
        """Return the content of a file. Bytes that are not UTF-8 survive a round trip (surrogateescape).

        A link is followed if it stays below `working_dir`; otherwise PathEscape is raised.
        """
        name = relative(path)
        self._refuse_hidden(name)
        name = beneath.real_name(self._root, name)
        self._refuse_hidden(name)  # a link may name what is hidden
        return beneath.read(self._root, name, limit).decode("utf-8", "surrogateescape")

    def write_file(self, path: AnyPath, content: str) -> None:
        """Write `content` to `path` atomically; missing parent directories are created.

        A refused write leaves nothing behind, not even a directory.
        """
        name = relative(path)
        self._refuse_unwritable(name)
        data = content.encode("utf-8", "surrogateescape")
        if self._write_opener is not None:
            with self._write_opener(os.path.join(self._path, name), 0o644) as hooked:
                hooked.write(data)
            return
        with beneath.pending(self._root, name) as file:
            file.write(data)

    def remove_file(self, path: AnyPath) -> None:
        """Remove a file. Removes a link, not its target."""
        name = relative(path)
        self._refuse_unwritable(name)
        if self._remover is not None:
            self._remover(os.path.join(self._path, name))
        else:
            beneath.remove(self._root, name)

    def glob(self, pattern: str) -> list[str]:
        """Return the files, links and directories that match `pattern` (see writable_paths), sorted.

        No link is followed.
        """
        self._refuse_closed()
        glob = Glob(pattern)
        depth = len(glob.head)

        def enter(path: str) -> bool:
            return not self._confinement.hides(path) and (glob.deep or path.count("/") + 1 < depth)

        try:
            os.close(beneath.open_checked(self._root, glob.prefix or ".", os.O_PATH | os.O_DIRECTORY))
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = [path for path, _ in beneath.walk(self._root, glob.prefix, enter)]
        if glob.prefix:
            found.append(glob.prefix)  # `docs/**` also matches docs
        return sorted(path for path in found if glob.matches(path) and not self._confinement.hides(path))

    def _run(
        self, argv: list[str], env: Mapping[str, str] | None, bounds: commands.CommandBounds, secrets: Secrets
    ) -> CommandResult:
        confined = self._confinement
        wrapped, layer = confined.prepared(self._root, argv, env)
        if layer is None:
            return commands.run(wrapped, bounds, secrets)
        try:
            return commands.run(wrapped, bounds, secrets, lambda: confined.take_over(layer))
        except LaunchFailed as error:
            if not confined.goes_on_without_layer(error):
                raise
        finally:
            layer.close()
        return commands.run(confined.directly(self._root, argv, env), bounds, secrets)

    def wrapped(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, *, cwd: str | None = None
    ) -> WrappedCommand:
        """Return the command, confined but not started, for a caller that starts it itself.

        It starts in `cwd` if the policy makes that visible, else in the working directory. It has no layer,
        because changes in a layer would need a review afterwards. So it is confined to directories, while
        `exec_command` is confined to the globs exactly.
        """
        return self._confinement.directly(self._root, self._checked_argv(list(argv)), env, cwd)

    def _seconds(self, timeout: float | None) -> float | None:
        return within_lifetime(super()._seconds(timeout), self._policy.limits)

    def _checked_argv(self, argv: list[str]) -> list[str]:
        self._refuse_closed()
        super()._checked_argv(argv)
        return argv if self._command_wrapper is None else list(self._command_wrapper(argv))

    @property
    def enforced(self) -> Enforcement:
        """The enforcement of the next command, with all gaps, including those of `limits()`."""
        self._refuse_closed()
        return self._confinement.enforced(self._root)

    def limits(self) -> tuple[Gap, ...]:
        """Return the gaps: where commands (not the file tools) may write more than `writable_paths` names."""
        self._refuse_closed()
        return self._confinement.limits(self._root)

    def close(self) -> None:
        """Close the directory. Further calls do nothing."""
        if self._root >= 0:
            fd, self._root = self._root, -1
            os.close(fd)
            self._confinement.close()
            if self._audit is not None:
                self._audit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LocalEnvironment {self._path!r}>"

    def _refuse_closed(self) -> None:
        if self._root < 0:
            raise ValueError("this environment has been closed")

    def _refuse_hidden(self, name: str) -> None:
        self._refuse_closed()
        if self._confinement.hides(name):  # a command would not see it either
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def _refuse_unwritable(self, name: str) -> None:
        self._refuse_hidden(name)
        places.refuse(self._path, name)
        super()._refuse_unwritable(name)
