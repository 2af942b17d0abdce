"""The sandbox, with E2B's names."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from staddle import Network, Sandbox

from ...adapters._common import OpenSandboxes, policy_of
from ...adapters._interpreter import Interpreter
from .commands import HOME, Commands
from .errors import InvalidArgumentException, SandboxException, SandboxNotFoundException, translated
from .execution import CodeContext, CodeExecution, ExecutionError, Logs, OutputMessage, RichResult
from .filesystem import Filesystem
from .pty import Pty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from staddle import Snapshot

    from ...adapters._common import AnyPolicy

#: Seconds a sandbox lives unless something else is asked for.
_LIFETIME = 300
_OPEN = OpenSandboxes()
_SNAPSHOTS: dict[str, Snapshot] = {}


@dataclass
class SandboxInfo:
    """A sandbox that runs."""

    sandbox_id: str
    template_id: str
    metadata: dict[str, str]
    started_at: datetime
    end_at: datetime
    state: str = "running"
    name: str | None = None


@dataclass
class SnapshotInfo:
    """A snapshot: `Sandbox.create(info.snapshot_id)` continues from it, in this process."""

    snapshot_id: str
    names: list[str] = field(default_factory=list)


class SandboxPages:
    """The sandboxes of this process, as one page."""

    def __init__(self, items: list[SandboxInfo]) -> None:
        self._items, self.has_next, self.next_token = items, True, None

    def next_items(self) -> list[SandboxInfo]:
        """The page."""
        self.has_next = False
        return self._items


class E2BSandbox:
    """A sandbox on this machine; make one with `create()`. Its `sandbox` is the `staddle.Sandbox` itself."""

    def __init__(
        self,
        template: str | None = None,
        timeout: float | None = None,
        metadata: dict[str, str] | None = None,
        envs: dict[str, str] | None = None,
        secure: bool | None = None,
        allow_internet_access: bool | None = None,
        network: Any = None,
        lifecycle: Any = None,
        *,
        policy: AnyPolicy = None,
        workspace: str | None = None,
        _opened: Sandbox | None = None,
        **options: Any,
    ) -> None:
        if network is not None:
            raise InvalidArgumentException("network= is not translated; give policy= with a staddle network")
        chosen = policy_of(policy)
        if allow_internet_access:
            chosen = chosen.with_network(Network.open())
        elif allow_internet_access is False:
            chosen = chosen.with_network(Network.deny())
        given: dict[str, Any] = {"policy": chosen, "env": envs}
        with translated():
            if _opened is not None:
                self.sandbox = _opened
            elif template is not None and template in _SNAPSHOTS:
                self.sandbox = Sandbox.from_snapshot(_SNAPSHOTS[template], workspace, **given)
            elif template is not None and template not in ("base", "code-interpreter-v1"):
                raise InvalidArgumentException(
                    f"there is no template {template!r}: use policy= with a base (`staddle base import`)"
                )
            else:
                self.sandbox = Sandbox(workspace, **given)
        self.metadata, self._template = dict(metadata or {}), template or "base"
        self.alive = True
        self.sandbox_id = _OPEN.add(self, f"i{uuid.uuid4().hex[:20]}")
        self.commands, self.files, self.pty = (
            Commands(self.sandbox),
            Filesystem(self.sandbox),
            Pty(self.sandbox),
        )
        self._interpreters: dict[str, Interpreter] = {}
        self._cells = 0
        self._started = datetime.now(UTC)
        self._ending: threading.Timer | None = None
        self.set_timeout(_LIFETIME if timeout is None else timeout)

    # ------------------------------------------------------------ lifetime

    @classmethod
    def create(cls, template: str | None = None, timeout: float | None = None, **options: Any) -> Self:
        """Open a sandbox; `policy=` and `workspace=` are staddle's."""
        return cls(template, timeout, **options)

    @classmethod
    def connect(cls, sandbox_id: str, timeout: float | None = None, **options: Any) -> E2BSandbox:
        """The sandbox of that id in this process; it continues if it was paused."""
        found: E2BSandbox | None = _OPEN.get(sandbox_id)
        if found is None:
            raise SandboxNotFoundException(
                f"there is no sandbox {sandbox_id!r} in this process: sandboxes end with their process"
            )
        found.sandbox.resume()
        if timeout is not None:
            found.set_timeout(timeout)
        return found

    @classmethod
    def list(cls, query: Any = None, **options: Any) -> SandboxPages:
        """The sandboxes of this process."""
        return SandboxPages([_OPEN.get(name).get_info() for name in _OPEN if _OPEN.get(name) is not None])

    def set_timeout(self, timeout: float, **options: Any) -> None:
        """Have it end in so many seconds from now."""
        if self._ending is not None:
            self._ending.cancel()
        self._end_at = datetime.now(UTC) + timedelta(seconds=timeout)
        self._ending = threading.Timer(timeout, self.kill)
        self._ending.daemon = True
        self._ending.start()

    def kill(self, **options: Any) -> bool:
        """End it; whether it ran."""
        running, self.alive = self.alive, False
        if self._ending is not None:
            self._ending.cancel()
        _OPEN.remove(self.sandbox_id)
        self.sandbox.close()
        return running

    def is_running(self, request_timeout: float | None = None) -> bool:
        """Whether commands can be run."""
        return self.sandbox.alive

    def pause(self, **options: Any) -> bool:
        """Stop everything in it, until `connect()` or `resume()`."""
        with translated():
            self.sandbox.pause()
        return True

    beta_pause = pause

    def resume(self, **options: Any) -> E2BSandbox:
        """Let everything continue."""
        with translated():
            self.sandbox.resume()
        return self

    def get_info(self, request_timeout: float | None = None) -> SandboxInfo:
        """Facts about it."""
        return SandboxInfo(self.sandbox_id, self._template, self.metadata, self._started, self._end_at)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # ------------------------------------------------------------ snapshots and network

    def create_snapshot(self, name: str | None = None, **options: Any) -> SnapshotInfo:
        """Take a snapshot of files and shells."""
        with translated():
            snapshot = self.sandbox.snapshot(name or "")
        number = f"snapshot-{uuid.uuid4().hex[:12]}"
        _SNAPSHOTS[number] = snapshot
        return SnapshotInfo(number, [name] if name else [])

    @classmethod
    def delete_snapshot(cls, snapshot_id: str, **options: Any) -> bool:
        """Forget a snapshot; whether there was one."""
        snapshot = _SNAPSHOTS.pop(snapshot_id, None)
        if snapshot is not None:
            snapshot.close()
        return snapshot is not None

    def fork(self, count: int = 1, **options: Any) -> Any:
        """Sandboxes that continue from here."""
        with translated():
            return [type(self)(metadata=self.metadata, _opened=made) for made in self.sandbox.fork(count)]

    def get_host(self, port: int) -> str:
        """`127.0.0.1:PORT`, which leads to this port inside. It is HTTP unless the server inside has TLS."""
        with translated():
            return f"127.0.0.1:{self.sandbox.expose(port)}"

    def update_network(self, *_: object, **options: Any) -> None:
        """Not possible: the network of a sandbox is fixed when it is opened."""
        raise SandboxException("the network of an open sandbox cannot be changed; give policy= to create()")

    # ------------------------------------------------------------ code

    def create_code_context(
        self, cwd: str | None = None, language: str | None = None, **options: Any
    ) -> CodeContext:
        """Another interpreter."""
        _python_only(language)
        context = CodeContext(uuid.uuid4().hex, "python", cwd or HOME)
        self._interpreters[context.id] = Interpreter(self.sandbox, cwd=context.cwd)
        return context

    def run_code(
        self,
        code: str,
        language: str | None = None,
        context: CodeContext | None = None,
        on_stdout: Callable[[OutputMessage], Any] | None = None,
        on_stderr: Callable[[OutputMessage], Any] | None = None,
        on_result: Callable[[RichResult], Any] | None = None,
        on_error: Callable[[ExecutionError], Any] | None = None,
        envs: dict[str, str] | None = None,
        timeout: float | None = 300,
        request_timeout: float | None = None,
    ) -> CodeExecution:
        """Run Python in an interpreter that keeps its variables. Callbacks are called after the cell."""
        _python_only(language)
        name = context.id if context is not None else "default"
        if name not in self._interpreters:
            self._interpreters[name] = Interpreter(self.sandbox, cwd=HOME)
        self._cells += 1
        variables = "".join(
            f"__import__('os').environ[{key!r}] = {value!r}\n" for key, value in (envs or {}).items()
        )
        with translated():
            cell = self._interpreters[name].run(variables + code, timeout=timeout or None)
        made = CodeExecution(execution_count=self._cells)
        made.logs = Logs([cell.stdout] if cell.stdout else [], [cell.stderr] if cell.stderr else [])
        known = RichResult.__dataclass_fields__
        made.results = [RichResult(**{k: v for k, v in each.items() if k in known}) for each in cell.results]
        if cell.error is not None:
            made.error = ExecutionError(cell.error["name"], cell.error["value"], cell.error["traceback"])
        for heard, texts, is_error in (
            (on_stdout, made.logs.stdout, False),
            (on_stderr, made.logs.stderr, True),
        ):
            for text in texts if heard is not None else ():
                heard(OutputMessage(text, error=is_error))  # type: ignore[misc]
        for result in made.results if on_result is not None else ():
            on_result(result)  # type: ignore[misc]
        if on_error is not None and made.error is not None:
            on_error(made.error)
        return made


def _python_only(language: str | None) -> None:
    if language not in (None, "python"):
        raise InvalidArgumentException(f"run_code runs Python, not {language!r}; use commands.run")
