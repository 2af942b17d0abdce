"""A sandbox on another machine, as the driver calls it. `sandbox.py` has its blocking and awaited versions.

If Ray cannot deliver a call, or its answer is lost, the call raises `SandboxLost`. It is never repeated.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from socket import socket
from typing import IO, TYPE_CHECKING, Any

from .. import Change, Merge, Result, Sandbox, check
from ..errors import (
    CommitRefused,
    FleetError,
    InvalidCall,
    LayerError,
    SandboxClosed,
    SandboxLost,
    TransferFailed,
)
from . import content, snapshots
from .channel import MOST_REQUEST, ChannelBroken, CommandChannel
from .content_store import SentTree
from .messages import DIRECT, ContentRefs, SandboxSpec, checked_options
from .placement import Reservation
from .ports import DriverPort, tunnel
from .steps import OVER, Call, Exchange, NextOf, Within, finish, step

if TYPE_CHECKING:
    from .cluster import Cluster, KeeperHandle

#: Most bytes of an archive sent in one call.
_MOST_TAR = 1 << 30
#: Threads of the driver that read and write its own files.
FILE_THREADS = ThreadPoolExecutor(4, thread_name_prefix="staddle-fleet-files")


class RemoteSandbox:
    """One sandbox of a fleet: its keeper, and its name there."""

    def __init__(  # noqa: PLR0917 - all of it, whole
        self,
        cluster: Cluster,
        keeper: KeeperHandle,
        grant: Reservation,
        name: str,
        spec: SandboxSpec,
        tree: SentTree | None,
    ) -> None:
        self.cluster, self.keeper, self.grant = cluster, keeper, grant
        self.name, self.spec, self.tree = name, spec, tree
        self.backend = ""
        self.closed = False
        self._exposed: list[DriverPort] = []
        self._committing = DriverCommit(tree, self.log)
        keeper.sandboxes[name] = self

    # ------------------------------------------------------------ calls

    async def reply(self, ref: Any) -> Any:
        """Wait for the keeper's reply: return its value, or raise its error."""
        try:
            kind, value = await step(Call(ref, self.cluster))
        except self.cluster.ray.exceptions.RayError as error:
            raise self.cluster.failure(self.keeper, error, f"sandbox {self.name}") from None
        if kind == "error":
            raise value
        return value

    @property
    def actor(self) -> Any:
        """The keeper's actor. Raises SandboxClosed or SandboxLost if it cannot be called."""
        if self.closed:
            raise SandboxClosed("the sandbox is closed", fix="create another one", why="close() was called")
        if self.cluster.error is not None:
            raise self.cluster.error
        if self.keeper.lost:
            raise SandboxLost(
                f"sandbox {self.name} is lost",
                why=f"its keeper on node {self.keeper.node[:8]} was lost: {self.keeper.lost}",
                fix="create another one",
            )
        return self.keeper.actor

    async def ask(self, method: str, *args: Any) -> Any:
        """Let the keeper call a method of its sandboxes: over a direct connection, or through Ray."""
        return await self._ask(self.actor, method, *args)

    async def _ask(self, actor: Any, method: str, *args: Any) -> Any:
        request, channel = (method, (self.name, *args)), self.keeper.channel
        if channel is not None and method in DIRECT:
            found = await self._asked_directly(channel, request)
            if found is not None:
                kind, value = pickle.loads(found)  # noqa: S301 - our keeper's, as what Ray brings from it
                if kind == "error":
                    raise value
                return value
        return await self.reply(actor.ask.remote(*request))

    async def _asked_directly(self, channel: CommandChannel, request: tuple[str, Any]) -> bytes | None:
        try:
            data = pickle.dumps(request, 5)
        except Exception:
            return None  # Ray can pickle more
        if len(data) > MOST_REQUEST:
            return None
        try:
            found: bytes | None = await step(Exchange(channel, data))
            return found
        except ChannelBroken as error:
            broken = str(error)
        # Either the keeper died, which Ray reports soon, or only the connection broke.
        await self.reply(self.keeper.actor.hello.remote())
        raise FleetError(
            f"sandbox {self.name} gave no answer",
            why=f"the connection to its keeper broke: {broken}",
            fix="the call may have been made, and is not made again; the sandbox still runs",
        )

    async def call(self, path: str, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the sandbox, or of one of its parts."""
        return await self.ask("call", path, method, args, options)

    def log(self, what: str, **facts: Any) -> None:
        """Add a line to this sandbox's log, if there is one."""
        if self.cluster.settings.logs is None:
            return
        line = {"time": time.time(), "sandbox": self.name, "node": self.keeper.node, "what": what, **facts}
        path = os.path.join(self.cluster.settings.logs, f"{self.name}.jsonl")
        with open(path, "a") as out:
            out.write(json.dumps(line, default=str) + "\n")

    async def create(self) -> str:
        """Open it; return its backend."""
        if self.spec.is_plain:
            return str(await self.ask("create", self.spec))
        return str(await self.reply(self.actor.ask.remote("create", (self.name, self.spec))))

    # ------------------------------------------------------------ commands

    async def run(self, /, command: str, *, session: str = "", **options: Any) -> Result:
        """Run `command` in the sandbox's own session and wait for its end; see `Sandbox.run`.

        Takes all its options except `spill` and `cancel`. It is run once: if the node is lost, `SandboxLost`
        is raised, and the command may have run.
        """
        check = options.pop("check", False)
        given = checked_options(options)
        out, err = given.pop("on_stdout", None), given.pop("on_stderr", None)
        if out is not None or err is not None:
            result = await self._heard(command, session, given, out, err)
        else:
            result = await self._interruptible(self.ask("run", session, command, given), session)
        return self._ran(result, check)

    async def exec(self, /, argv: Sequence[str], **options: Any) -> Result:
        """Run a program with exactly these arguments, without a shell; see `Sandbox.exec`."""
        check = options.pop("check", False)
        given = checked_options(options)
        if "on_stdout" in given or "on_stderr" in given:
            raise InvalidCall(
                "exec in a fleet calls nothing while it runs",
                fix="use run, or stream",
                why="callbacks cannot travel with it",
            )
        words = argv if isinstance(argv, str) else list(argv)
        asked = self.ask("call", "", "exec", (words,), given)
        return self._ran(await self._interruptible(asked, ""), check)

    def _ran(self, result: Result, check: bool) -> Result:
        self.log(
            "command",
            command=result.command,
            exit_code=result.exit_code,
            reason=str(result.reason),
            duration=result.duration,
        )
        return result.check() if check else result

    async def _interruptible(self, asked: Coroutine[Any, Any, Result], session: str) -> Result:
        try:
            return await asked
        except (asyncio.CancelledError, KeyboardInterrupt):
            self._interrupt_soon(session)
            raise

    def _interrupt_soon(self, session: str) -> None:
        if not self.keeper.lost and self.cluster.error is None:
            path = f"session:{session}" if session else ""
            self.keeper.actor.ask.remote("call", (self.name, path, "interrupt", (), {}))

    async def _heard(self, command: str, session: str, options: dict[str, Any], out: Any, err: Any) -> Result:
        import codecs

        new = codecs.getincrementaldecoder("utf-8")
        hear = {"stdout": (out, new("replace")), "stderr": (err, new("replace"))}
        stream = self.stream_of(command, session, options)
        while (chunk := await self.next_chunk(stream)) is not OVER:
            kind, data = chunk
            if kind == "ok":
                result: Result = data
                return result
            function, decoder = hear[kind]
            if function is not None and (text := decoder.decode(data)):
                function(text)
        raise SandboxLost(
            f"sandbox {self.name} gave no result",
            why="its keeper closed the stream",
            fix="run it again; sb.alive reports whether the sandbox still runs",
        )

    def stream_of(self, command: str, session: str, options: dict[str, Any]) -> Any:
        """Start a stream: a Ray generator."""
        method = self.actor.stream.options(num_returns="streaming", _generator_backpressure_num_objects=16)
        return method.remote(self.name, session, command, options)

    async def next_chunk(self, stream: Any) -> Any:
        """("stdout" or "stderr", bytes), then ("ok", Result), then OVER."""
        try:
            found = await step(NextOf(stream))
        except self.cluster.ray.exceptions.RayError as error:
            raise self.cluster.failure(self.keeper, error, f"sandbox {self.name}") from None
        if found is not OVER and found[0] == "error":
            raise found[1]
        return found

    async def start(self, command: str | Sequence[str], **options: Any) -> tuple[int, int]:
        """Start a process: its number at the keeper, and its pid inside."""
        words = command if isinstance(command, str) else list(command)
        found = await self.ask("start", words, options)
        return int(found[0]), int(found[1])

    async def processes(self) -> list[tuple[int, int]]:
        """The background processes: their numbers at the keeper, and their pids inside."""
        return [(int(number), int(pid)) for number, pid in await self.ask("processes")]

    async def terminal(self, argv: Sequence[str] | None = None, **options: Any) -> tuple[int, int]:
        """Open a terminal: its number at the keeper, and the pid of its program."""
        number, pid = await self.ask("terminal", None if argv is None else list(argv), options)
        return int(number), int(pid)

    async def interrupt_session(self, name: str) -> None:
        """End the running command of a session ("": the sandbox's own)."""
        await self.call(f"session:{name}" if name else "", "interrupt")

    async def alive(self) -> bool:
        """Whether it can run commands: it is open, and neither it nor its node is lost."""
        if self.closed or self.keeper.lost or self.cluster.error is not None:
            return False
        try:
            return bool(await self.call("", "alive"))
        except SandboxClosed:
            return False

    async def connect(self, /, port: int) -> socket:
        """A connection to a server in the sandbox, at `port` of its 127.0.0.1 or ::1."""
        self.actor  # noqa: B018 - raises when there is nothing to connect to
        found: socket = await self._in_thread(lambda: tunnel(self.keeper.channel, self.name, port))
        return found

    async def expose(self, /, port: int, host_port: int = 0) -> int:
        """Forward a port of the driver's 127.0.0.1 to `port` inside; return it (default: a free port)."""
        self.actor  # noqa: B018 - raises when there is nothing to expose
        opened = DriverPort(host_port, lambda: tunnel(self.keeper.channel, self.name, port))
        self._exposed.append(opened)
        return opened.port

    # ------------------------------------------------------------ files

    async def upload_tar(self, f: IO[bytes], path: str | os.PathLike[str] = ".") -> None:
        """Unpack a tar from `f` into the directory `path`; see `Sandbox.upload_tar`."""
        data = f.read(_MOST_TAR + 1)
        if len(data) > _MOST_TAR:
            raise InvalidCall(
                f"the tar has more than {_MOST_TAR} bytes",
                fix="send it in parts",
                why="it travels as one message",
            )
        await self.ask("upload", data, os.fsdecode(path))

    async def download_tar(
        self, f: IO[bytes], path: str | os.PathLike[str] = ".", *, limit: int = _MOST_TAR
    ) -> None:
        """Write the directory or file `path` to `f` as a tar of at most `limit` bytes."""
        f.write(await self.ask("download", os.fsdecode(path), min(limit, _MOST_TAR)))

    # ------------------------------------------------------------ changes

    async def text_diff(self, paths: Collection[str] | None = None, *, limit: int = 16 << 20) -> str:
        """The changes as one unified diff of at most `limit` characters. The agent wrote the text."""
        return str(await self.ask("text_diff", _listed(paths), limit))

    async def snapshot(self, label: str = "") -> FleetSnapshot:
        """Save the current state, to restore it or to continue from it on another node."""
        number, method = await self.ask("snapshot", label)
        return FleetSnapshot(self, number, label, method)

    async def snapshots(self) -> list[FleetSnapshot]:
        """List its open snapshots, oldest first."""
        return [FleetSnapshot(self, *each) for each in await self.ask("snapshots")]

    async def restore(self, snapshot: FleetSnapshot) -> None:
        """Restore a snapshot of this sandbox."""
        if snapshot.sandbox is not self:
            raise InvalidCall(
                "the snapshot is of another sandbox",
                fix="use fleet.create(snapshot=…) for a new one from it",
                why="it is not one of these",
            )
        await self.ask("restore", snapshot.number)

    async def merge(
        self,
        forks: Sequence[RemoteSandbox],
        test: Any = None,
        on_conflict: Any = "refuse",
        paths: Collection[str] | None = None,
    ) -> Merge:
        """Merge the work of forks on the same node into this sandbox; see `Sandbox.merge`."""
        for each in forks:
            if each.keeper is not self.keeper:
                raise InvalidCall(
                    f"sandbox {each.name} cannot be merged into {self.name}",
                    why="it is on another node",
                    fix="make the forks with fork(n, spread=False), which stay on the node of their source",
                )
        options = {"test": test, "on_conflict": on_conflict, "paths": _listed(paths)}
        facts, number = await self.ask("merge", [each.name for each in forks], options)
        before: Any = FleetSnapshot(self, number, "", "swap") if number else None
        return Merge(**facts, before=before)

    async def export(self, number: int | None = None) -> ContentRefs:
        """Put a snapshot, or the current state of the sandbox, into Ray's object store."""
        listed, packs = await self.ask("export", number)
        return ContentRefs(content.sha256(listed), self.cluster.ray.put(listed), packs)

    async def save(self, path: str | os.PathLike[str], snapshot: FleetSnapshot | None = None) -> None:
        """Write a snapshot, or the current state, to a file of the driver: `Snapshot.load` reads it."""
        sent = await self.export(None if snapshot is None else snapshot.number)
        await self._in_thread(lambda: save_snapshot(sent, os.fspath(path)))

    async def commit(
        self,
        paths: Collection[str] | None = None,
        *,
        to: str | os.PathLike[str] | None = None,
        on_conflict: str = "refuse",
        allow: Collection[str] = (),
        allow_protected: bool = False,
    ) -> Any:
        """Apply the changes, or those of `paths`, to the driver's directory: all of them, or none.

        They are checked here, like those of a local sandbox; see `Sandbox.commit`. A path that has changed in
        the directory since it was sent is a conflict. `to` is another directory.
        """
        if self.tree is None and to is None:
            raise LayerError(
                "there is no directory to commit to", why="the sandbox has no workspace", fix="pass to="
            )
        check.one_of("on_conflict", on_conflict, ("refuse", "overwrite"))
        sent = await self.export()
        chosen = _listed(paths)
        options = {"on_conflict": on_conflict, "allow": allow, "allow_protected": allow_protected}
        return await self._in_thread(lambda: self._committing.done(sent, chosen, to, options))

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        return await step(Within(FILE_THREADS.submit(function), None))

    # ------------------------------------------------------------ the end

    async def close(self) -> None:
        """End everything in it. Does nothing the second time, or after it was lost."""
        if self.closed:
            return
        self.closed = True
        self.keeper.sandboxes.pop(self.name, None)
        actor = self.keeper.actor
        try:
            if not self.keeper.lost and self.cluster.error is None:
                try:
                    await self._ask(actor, "close")
                except FleetError:  # the connection broke; closing twice is harmless
                    await self.reply(actor.ask.remote("close", (self.name,)))
        except SandboxLost:
            pass  # then it is closed
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Release its ports, its reservation and its tree."""
        for port in self._exposed:
            port.close()
        self.cluster.placement.release(self.grant)
        if self.tree is not None:
            self.tree.close()
        self.log("closed")

    def abandon(self) -> None:
        """Close it without waiting: its last reference is gone."""
        if self.closed:
            return
        self.closed = True
        if not self.keeper.lost and self.cluster.error is None:
            try:
                self.keeper.actor.ask.remote("close", (self.name,))
            except Exception:  # noqa: S110 - the interpreter ends, and everything with it
                pass
        self.let_go()


class FleetSnapshot:
    """A snapshot of a fleet's sandbox: to `restore` there, or for `create(snapshot=…)` on any node.

    It is stored on the node of its sandbox, and lost with it; `save` writes it to a file of the driver.
    """

    def __init__(self, sandbox: RemoteSandbox, number: int, label: str, method: str) -> None:
        self.sandbox, self.number, self.label, self.method = sandbox, number, label, method

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, atomically. With asyncio use `await sandbox.save(path, snapshot)`."""
        finish(self.sandbox.save(path, self))

    def close(self) -> None:
        """Delete it, without waiting."""
        if not self.sandbox.closed and not self.sandbox.keeper.lost:
            self.sandbox.keeper.actor.ask.remote("drop_snapshot", (self.sandbox.name, self.number))

    def __repr__(self) -> str:
        return f"<FleetSnapshot {self.label!r} of {self.sandbox.name} ({self.method})>"


def _listed(paths: Collection[str] | None) -> list[str] | None:
    if isinstance(paths, str):
        raise InvalidCall(f"paths is {paths!r}", why="it is one text", fix=f"use [{paths!r}]")
    return None if paths is None else list(paths)


# The commit of a fleet's sandbox runs in the driver, with every check of a local one.


class DriverCommit:
    """Commits the changes of one sandbox, once or several times."""

    def __init__(self, tree: SentTree | None, log: Callable[..., None]) -> None:
        self._tree, self._log = tree, log
        #: The host's entries after a commit, by path: they are no conflict for the next commit.
        self._settled: dict[str, content.TreeEntry | None] = {}

    def done(
        self,
        sent: ContentRefs,
        paths: list[str] | None,
        to: str | os.PathLike[str] | None,
        options: Mapping[str, Any],
    ) -> Any:
        """Open the changes in a local sandbox, and commit that. Runs in a thread of the driver."""
        with tempfile.TemporaryDirectory(prefix="staddle-fleet-") as place:
            path = f"{place}/snapshot"
            save_snapshot(sent, path)
            target = os.fspath(to) if self._tree is None and to is not None else None
            workspace = target or (self._tree.directory if self._tree is not None else None)
            with Sandbox.from_snapshot(path, workspace, freeze=False) as local:
                if self._tree is not None and to is None:
                    self._refuse_conflicts(local.diff(paths), options["on_conflict"])
                elsewhere = to if self._tree is not None else None
                done = local.commit(paths, to=elsewhere, **options)
        if self._tree is not None and to is None:
            for change in done.changes:
                for each in filter(None, (change.path, change.old_path)):
                    below = each.removeprefix("/workspace/")
                    self._settled[below] = content.entry_of(self._tree.directory, below)
        self._log("committed", changes=[f"{change.kind} {change.path}" for change in done.changes])
        return done

    def _refuse_conflicts(self, changes: list[Change], on_conflict: str) -> None:
        if self._tree is None:
            return
        found = []
        for change in changes:
            for each in filter(None, (change.path, change.old_path)):
                below = each.removeprefix("/workspace/")
                sent = self._settled.get(below, self._tree.manifest.find(below))
                if why := content.conflict(sent, self._tree.directory, below):
                    found.append(change.replace(conflict=why))
        if found and on_conflict != "overwrite":
            raise CommitRefused(
                f"{len(found)} of the changed files are not as they were when they were sent",
                why=f"{found[0].path}: {found[0].conflict}",
                fix='read error.conflicts, and commit with on_conflict="overwrite", or other paths',
                conflicts=tuple(found),
            )


def save_snapshot(sent: ContentRefs, path: str) -> None:
    """Write a received snapshot to `path`, atomically."""
    import ray.exceptions

    manifest = content.decoded(sent.manifest(), sent.digest)
    draft = f"{path}.{os.getpid()}.part"
    try:
        snapshots.write_file(draft, manifest, sent.pack)
        os.rename(draft, path)
    except ray.exceptions.RayError as error:
        raise TransferFailed(
            "a snapshot did not arrive",
            why=str(error).splitlines()[0],
            fix="its node may be lost: take another",
        ) from None
    finally:
        if os.path.exists(draft):
            os.unlink(draft)
