"""The sandbox, with E2B's names."""

from __future__ import annotations

import json
import os
import threading
import uuid
from datetime import datetime, timedelta
from functools import cached_property, partial
from types import MethodType

from staddle import Interpreter, Network, Sandbox
from staddle.errors import InvalidCall, SandboxClosed

from ...adapters._common import OpenSandboxes, policy_of
from .commands import HOME, Commands, Pty
from .execution import CodeContext, CodeExecution, ExecutionError, Logs, OutputMessage, RichResult
from .filesystem import Filesystem
from .info import (
    CodePython,
    InvalidArgumentException,
    NotFoundException,
    OnTimeout,
    Pages,
    SandboxException,
    SandboxInfo,
    SandboxMetrics,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxQuery,
    SandboxState,
    SnapshotInfo,
    TimeoutException,
    network_of,
    now,
    on_timeout_of,
    python_of,
    server_said,
    translated,
)
from .served import (
    LABEL,
    ServedCommands,
    ServedFilesystem,
    ServedInterpreter,
    ServedPty,
    client,
    info_of,
    infos,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from staddle import Snapshot

    from ...adapters._common import AnyPolicy

    Contexts = list[CodeContext]  # for use where `list` is a method
    Metrics = list[SandboxMetrics]
    InfoList = list[SandboxInfo]

#: Seconds that a sandbox lives (default).
_LIFETIME = 300
#: Callers give a time range in whole seconds, or read their clock a moment ago.
_SLACK = timedelta(seconds=10)
_OPEN = OpenSandboxes()
#: By id: a snapshot, the id of its sandbox, and its name.
_SNAPSHOTS: dict[str, tuple[Snapshot, str, str]] = {}


class ByIdToo:
    """A method that can also be called on the class, with the id of a sandbox of this process first."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: E2BSandbox | None, owner: type) -> Callable[..., Any]:
        if instance is not None:
            return MethodType(self._method, instance)
        return partial(self._by_id, self._method)

    @staticmethod
    def _by_id(method: Callable[..., Any], sandbox_id: str, *args: Any, **options: Any) -> Any:
        if method is E2BSandbox.__dict__["fork"]._method:
            _at_least_one(options.get("count"))
        try:
            found = _found(sandbox_id)
        except SandboxNotFoundException:
            if method is E2BSandbox.__dict__["kill"]._method:
                return False
            raise
        return method(found, *args, **options)


#: Options to reach E2B's service, which does not exist here.
_SERVICE = {"api_key", "access_token", "domain", "api_url", "sandbox_url", "debug", "headers", "proxy"}
_SERVICE |= {"request_timeout", "api_headers", "logger", "validate_api_key", "signal"}


def _nothing_else(options: dict[str, Any]) -> None:
    """Refuse options that would be ignored."""
    unknown = sorted(options.keys() - _SERVICE)
    if unknown:
        raise InvalidArgumentException(f"{', '.join(unknown)}: not offered here")


def _found(sandbox_id: str) -> E2BSandbox:
    found: E2BSandbox | None = _OPEN.get(sandbox_id)
    if found is None:
        found = ServedE2BSandbox.found(sandbox_id)
    if found is None:
        raise SandboxNotFoundException(
            f"there is no sandbox {sandbox_id!r} in this process, nor in your server: "
            "without server=True, sandboxes end with their process"
        )
    return found


class E2BSandbox:
    """A sandbox on this machine; make one with `create()`. Its `sandbox` is the `staddle.Sandbox`.

    With `server=True`, or STADDLE_E2B_SERVER=1 in the environment, your server has the sandbox. It lives
    until its timeout, and other programs find it by its id. The variable can name another server.
    """

    def __new__(cls, *_: Any, server: bool | None = None, **__: Any) -> Self:
        """Make a `ServedE2BSandbox` if the server is to have it."""
        if cls.is_served or not (server_said() if server is None else server):
            return super().__new__(cls)
        if cls is not E2BSandbox:
            raise InvalidArgumentException(f"{cls.__name__} is a subclass, which works without a server only")
        made: Any = ServedE2BSandbox.__new__(ServedE2BSandbox)
        return made  # type: ignore[no-any-return]

    #: Whether a server has it.
    is_served = False

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
        python: str | None = None,
        server: bool | None = None,
        _opened: Sandbox | None = None,
        **options: Any,
    ) -> None:
        _nothing_else(options)
        self._on_timeout, self._open_network = on_timeout_of(lifecycle), bool(allow_internet_access)
        chosen = policy_of(policy)
        if network is not None:
            chosen = chosen.with_network(network_of(network, self._open_network))
        elif allow_internet_access:
            chosen = chosen.with_network(Network.open())
        elif allow_internet_access is False:
            chosen = chosen.with_network(Network.deny())
        self._code_python = python_of(python, chosen, workspace)
        given: dict[str, Any] = {"policy": chosen.with_read(*self._code_python.needed), "env": envs}
        self.metadata, self._template = dict(metadata or {}), template or "base"
        timeout = _LIFETIME if timeout is None else timeout
        with translated():
            self.sandbox = self._open(workspace, timeout, given) if _opened is None else _opened
        self._begin()
        self.set_timeout(timeout)

    def _open(self, workspace: str | None, timeout: float, given: dict[str, Any]) -> Sandbox:
        if self._template in _SNAPSHOTS:
            return Sandbox.from_snapshot(_SNAPSHOTS[self._template][0], workspace, **given)
        self._only_known_template()
        return Sandbox(workspace, **given)

    def _only_known_template(self) -> None:
        if self._template not in ("base", "code-interpreter-v1"):
            raise InvalidArgumentException(
                f"there is no template {self._template!r}: use policy= with a base (`staddle base import`)"
            )

    def _begin(self) -> None:
        self.sandbox_id = _OPEN.add(self, f"i{uuid.uuid4().hex[:20]}")
        self.commands, self.files, self.pty = (
            Commands(self.sandbox, self._programs),
            Filesystem(self.sandbox),
            Pty(self.sandbox),
        )
        self._started = now()
        self._reset()

    def _reset(self) -> None:
        self._alive, self._paused = True, False
        self._interpreters: dict[str, Any] = {}
        self._contexts: dict[str, CodeContext] = {}
        self._cells = 0
        self._ending: threading.Timer | None = None
        self.list_snapshots = partial(type(self).list_snapshots, self.sandbox_id)  # type: ignore[method-assign]

    def _programs(self) -> str:
        """The first directory for the PATH of a command."""
        return os.path.dirname(self._python)

    @property
    def alive(self) -> bool:
        """Whether it exists: it was neither killed, nor is its time up."""
        return self._alive

    # ------------------------------------------------------------ lifetime

    @classmethod
    def create(cls, template: str | None = None, timeout: float | None = None, **options: Any) -> Self:
        """Open a sandbox; `policy=`, `workspace=` and `python=` are staddle's.

        `python` is the interpreter of `run_code`: a name or path inside. The default is the caller's own with
        its packages, if that is in a virtual environment which the policy does not deny, else `python3`.
        """
        return cls(template, timeout, **options)

    @ByIdToo
    def connect(self, timeout: float | None = None, **options: Any) -> E2BSandbox:
        """The sandbox of that id in this process, or in your server; a paused one continues."""
        _nothing_else(options)
        over = self._continue()
        if timeout is None and over:
            timeout = _LIFETIME
        if timeout is not None and now() + timedelta(seconds=timeout) > self._state()[1]:
            self.set_timeout(timeout)
        return self

    @classmethod
    def list(
        cls,
        query: SandboxQuery | None = None,
        limit: int | None = None,
        next_token: str | None = None,
        order: str | None = None,
        **options: Any,
    ) -> Pages:
        """The sandboxes of this process and of your server, newest first (`order="asc"`: oldest first)."""
        _nothing_else(options)
        if order not in (None, "asc", "desc"):
            raise InvalidArgumentException(f"order is 'asc' or 'desc', not {order!r}")
        wanted = query or SandboxQuery()

        def found() -> InfoList:
            every = [sandbox.get_info() for sandbox in map(_OPEN.get, _OPEN) if sandbox is not None] + infos()
            every.sort(key=lambda info: info.started_at, reverse=order != "asc")
            return [info for info in every if wanted.matches(info)]

        return Pages(found, limit, next_token)

    @ByIdToo
    def set_timeout(self, timeout: float, **options: Any) -> None:
        """End it, or pause it if `lifecycle` says so, this many seconds from now."""
        _nothing_else(options)
        with translated():
            self._end_after(timeout)

    def _end_after(self, timeout: float) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._end_at = now() + timedelta(seconds=timeout)
        self._ending = threading.Timer(timeout, self._time_is_up)
        self._ending.daemon = True
        self._ending.start()

    def _time_is_up(self) -> None:
        if not self._on_timeout.pause:
            self._end()
        elif not self._paused:  # a paused one waits for connect()
            try:
                self._pause(self._on_timeout.keep_memory)
            except SandboxException:
                self._end()  # it must not run longer than its timeout

    @ByIdToo
    def kill(self, **options: Any) -> bool:
        """End it; return whether it was running."""
        _nothing_else(options)
        return self._end()

    def _end(self) -> bool:
        running, self._alive = self._alive, False
        if self._ending is not None:
            self._ending.cancel()
        _OPEN.remove(self.sandbox_id)
        self.sandbox.close()
        return running

    def is_running(self, request_timeout: float | None = None) -> bool:
        """Whether it can run commands."""
        return self.sandbox.alive and not self._state()[0]

    def _state(self) -> tuple[bool, datetime]:
        """Whether it is paused, and when its time is up."""
        return self._paused, self._end_at

    @ByIdToo
    def pause(self, keep_memory: bool = True, **options: Any) -> bool:
        """Stop all its processes, until `connect()` or `resume()`; return whether it was running.

        Without `keep_memory` its processes are ended, and only its files remain.
        """
        _nothing_else(options)
        running = not self._state()[0]
        self._pause(keep_memory)
        return running

    def _pause(self, keep_memory: bool) -> None:
        with translated():
            if not keep_memory:
                self._interpreters.clear()
                self._contexts.clear()
                files = self.sandbox.snapshot()
                try:
                    self.sandbox.restore(files)
                finally:
                    files.close()
            self.sandbox.pause()
        self._paused = True

    beta_pause = pause

    def resume(self, **options: Any) -> E2BSandbox:
        """Continue all processes."""
        _nothing_else(options)
        if self._continue():
            self.set_timeout(_LIFETIME)
        return self

    def _continue(self) -> bool:
        """Continue all processes; return whether its timeout was over."""
        if not self.alive:
            raise SandboxNotFoundException(f"the sandbox {self.sandbox_id!r} was killed")
        with translated():
            self.sandbox.resume()
        self._paused = False
        return now() >= self._state()[1]

    @ByIdToo
    def get_info(self, request_timeout: float | None = None) -> SandboxInfo:
        """Information about it."""
        paused, end_at = self._state()
        state = SandboxState.PAUSED if paused else SandboxState.RUNNING
        return SandboxInfo(self.sandbox_id, self._template, self.metadata, self._started, end_at, state)

    @ByIdToo
    def get_metrics(
        self, start: datetime | None = None, end: datetime | None = None, **options: Any
    ) -> Metrics:
        """Current usage of processors, memory and disk, if now is in the given time range."""
        _nothing_else(options)
        moment, limits = now(), self.sandbox.policy.limits
        if (start is not None and moment < start) or (end is not None and moment > end + _SLACK):
            return []
        with translated():
            words = ["df", "-B1", "--output=used,size", HOME]
            used, size = map(int, self.sandbox.exec(words, check=True).stdout.split()[-2:])
            usage, processes = self.sandbox.usage, self.sandbox.ps()
        count = os.cpu_count() or 1
        busy = ((usage.user or 0) + (usage.system or 0)) / max(usage.wall, 1e-9) / count
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory = sum(process.memory for process in processes)
        return [SandboxMetrics(count, busy * 100, size, used, limits.memory or total, memory, moment)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    # ------------------------------------------------------------ snapshots and network

    @ByIdToo
    def create_snapshot(self, name: str | None = None, **options: Any) -> SnapshotInfo:
        """Take a snapshot of files and shells."""
        _nothing_else(options)
        if self.is_served:
            raise InvalidArgumentException("a snapshot is of one process; fork() works in a server")
        with translated():
            snapshot = self.sandbox.snapshot(name or "")
        number = f"snapshot-{uuid.uuid4().hex[:12]}"
        _SNAPSHOTS[number] = (snapshot, self.sandbox_id, name or "")
        return SnapshotInfo(number, [name] if name else [])

    @classmethod
    def list_snapshots(
        cls,
        sandbox_id: str | None = None,
        limit: int | None = None,
        next_token: str | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Pages:
        """The snapshots of this process: all, of one sandbox, or of one name. On a sandbox: its own."""
        _nothing_else(options)
        found = [
            SnapshotInfo(number, [label] if label else [])
            for number, (_, owner, label) in _SNAPSHOTS.items()
            if sandbox_id in (None, owner) and name in (None, label)
        ]
        return Pages(lambda: found, limit, next_token)

    @classmethod
    def delete_snapshot(cls, snapshot_id: str, **options: Any) -> bool:
        """Delete a snapshot; return whether it existed."""
        _nothing_else(options)
        snapshot, *_ = _SNAPSHOTS.pop(snapshot_id, (None,))
        if snapshot is not None:
            snapshot.close()
        return snapshot is not None

    @ByIdToo
    def fork(self, timeout: float | None = None, count: int | None = None, **options: Any) -> Any:
        """Sandboxes that continue from here (default: one)."""
        _nothing_else(options)
        count = _at_least_one(count)
        if not self.alive:
            raise SandboxNotFoundException(f"the sandbox {self.sandbox_id!r} was killed")
        with translated():
            made = self.sandbox.fork(count)
        return [self._forked(each, timeout) for each in made]

    def _forked(self, made: Any, timeout: float | None) -> E2BSandbox:
        given: dict[str, Any] = {"timeout": timeout, "metadata": self.metadata, "python": self._python}
        return type(self)(**given, server=False, _opened=made)

    def get_host(self, port: int) -> str:
        """`127.0.0.1:PORT`, forwarded to this port inside. It is HTTP unless the server inside uses TLS."""
        with translated():
            return f"127.0.0.1:{self.sandbox.expose(port)}"

    @ByIdToo
    def update_network(self, network: Any, **options: Any) -> None:
        """Replace the network rules, if the sandbox's network can change."""
        _nothing_else(options)
        with translated():
            self.sandbox.set_network(network_of(network, self._open_network))

    # ------------------------------------------------------------ code

    def create_code_context(
        self, cwd: str | None = None, language: str | None = None, **options: Any
    ) -> CodeContext:
        """Make another interpreter."""
        _nothing_else(options)
        _python_only(language)
        context = CodeContext(uuid.uuid4().hex, "python", cwd or HOME)
        self._interpreters[context.id] = self._new_interpreter(context.id, context.cwd)
        self._contexts[context.id] = context
        return context

    def list_code_contexts(self, **options: Any) -> Contexts:
        """The interpreters: the default one, then others in order of creation."""
        _nothing_else(options)
        return [CodeContext("default", "python", HOME), *self._contexts.values()]

    def restart_code_context(self, context: CodeContext | str, **options: Any) -> None:
        """Clear the variables of an interpreter."""
        _nothing_else(options)
        self._interpreter(context).restart()

    def remove_code_context(self, context: CodeContext | str, **options: Any) -> None:
        """End an interpreter."""
        _nothing_else(options)
        self._interpreter(context).close()
        name = context if isinstance(context, str) else context.id
        del self._interpreters[name]
        self._contexts.pop(name, None)

    @cached_property
    def _python(self) -> str:
        """The interpreter of `run_code`: the first that exists."""
        *places, last = self._code_python.places
        with translated():
            found = (each for each in places if self.sandbox.exec(["test", "-x", each], timeout=10).ok)
            return next(found, last)

    def _new_interpreter(self, name: str, cwd: str) -> Any:
        return Interpreter(self.sandbox, python=self._python, cwd=cwd)

    def _interpreter(self, context: CodeContext | str | None) -> Any:
        name = "default" if context is None else context if isinstance(context, str) else context.id
        if name == "default" and name not in self._interpreters:
            self._interpreters[name] = self._new_interpreter(name, HOME)
        if name not in self._interpreters:
            raise NotFoundException(f"there is no context {name!r}")
        return self._interpreters[name]

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
        """Run Python in an interpreter that keeps its variables. Callbacks run after the cell."""
        _python_only(language)
        interpreter = self._interpreter(context)
        self._cells += 1
        try:
            with translated():
                cell = interpreter.run(code, timeout=timeout or None, env=envs)
        except TimeoutException:
            if self.alive:
                raise
        if not self.alive:
            raise SandboxNotRunningException("the sandbox was killed while the request was in progress")
        if cell.timed_out:
            raise TimeoutException(f"the cell was interrupted after {timeout} seconds")
        made = CodeExecution(execution_count=self._cells)
        made.logs = Logs([cell.stdout] if cell.stdout else [], [cell.stderr] if cell.stderr else [])
        known = RichResult.__dataclass_fields__
        made.results = [RichResult(**{k: v for k, v in each.items() if k in known}) for each in cell.results]
        for each in made.results:
            if each.text and len(each.text) > 1 and each.text[0] == each.text[-1] and each.text[0] in "'\"":
                each.text = each.text[1:-1]  # E2B returns the text of a string without quotes
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


class ServedE2BSandbox(E2BSandbox):
    """A sandbox that your server has. Its `sandbox` is a `ServerSandbox`."""

    is_served = True

    @classmethod
    def found(cls, sandbox_id: str) -> Self | None:
        """The sandbox of the server with this id; None if there is none, or no server runs."""
        server = client(start=False)
        if server is None:
            return None
        try:
            sandbox = server.get(sandbox_id)
            labels = sandbox.labels
        except (FileNotFoundError, SandboxClosed, InvalidCall):
            return None
        return cls._attached(sandbox, labels) if LABEL in labels and sandbox.id == sandbox_id else None

    @classmethod
    def _attached(cls, sandbox: Any, labels: dict[str, str]) -> Self:
        made, about = cls.__new__(cls), json.loads(labels[LABEL])
        made._on_timeout, made._open_network = OnTimeout(about["pause"]), about["open"]
        made._code_python = CodePython(tuple(about["python"]))
        made.sandbox = sandbox
        made._begin()
        return made

    def _open(self, workspace: str | None, timeout: float, given: dict[str, Any]) -> Any:
        self._only_known_template()
        if not self._on_timeout.keep_memory:
            raise InvalidArgumentException("lifecycle: a server pauses a sandbox with its memory only")
        about = {"template": self._template, "pause": self._on_timeout.pause, "open": self._open_network}
        about["python"] = self._code_python.places
        labels = {f"{LABEL}.{name}": value for name, value in self.metadata.items()}
        labels[LABEL] = json.dumps(about)
        # If this program ends before it sets the timeout, the sandbox ends as well.
        given["policy"] = given["policy"].with_limits(max_lifetime=timeout)
        return client(start=True).create(workspace, labels=labels, **given)

    def _begin(self) -> None:
        self.sandbox_id = self.sandbox.id
        info = info_of(self.sandbox.describe())  # type: ignore[attr-defined]
        self.metadata, self._template = info.metadata, info.template_id
        self.commands = ServedCommands(self.sandbox, self._programs)
        self.files, self.pty = ServedFilesystem(self.sandbox), ServedPty(self.sandbox)
        self._started = info.started_at
        self._reset()

    @property
    def alive(self) -> bool:
        """Whether the server has it."""
        return self._alive and bool(self.sandbox.alive)

    def _state(self) -> tuple[bool, datetime]:
        with translated():
            info = info_of(self.sandbox.describe())  # type: ignore[attr-defined]
        return info.state is SandboxState.PAUSED, info.end_at

    def is_running(self, request_timeout: float | None = None) -> bool:
        """Whether it can run commands."""
        return self.alive and not self._state()[0]

    def _end_after(self, timeout: float) -> None:
        then = "pause" if self._on_timeout.pause else "close"
        self.sandbox.set_timeout(timeout, then=then)  # type: ignore[call-arg]

    def _end(self) -> bool:
        running, self._alive = self.alive, False
        with translated():
            self.sandbox.close()
        return running

    def _forked(self, made: Any, timeout: float | None) -> E2BSandbox:
        fork = self._attached(made, made.labels)
        fork.set_timeout(_LIFETIME if timeout is None else timeout)
        return fork

    def _new_interpreter(self, name: str, cwd: str) -> ServedInterpreter:
        return ServedInterpreter(self.sandbox, "main" if name == "default" else name, self._python, cwd)


def _at_least_one(count: int | None) -> int:
    if count is not None and count < 1:
        raise InvalidArgumentException(f"count should be at least 1, and is {count}")
    return 1 if count is None else count


def _python_only(language: str | None) -> None:
    if language not in (None, "python"):
        raise InvalidArgumentException(f"run_code runs Python, not {language!r}; use commands.run")
