"""The sandboxes of a keeper, called by its threads.

Arguments come from the driver. Data from inside a sandbox appears only as bytes and text in return values.
"""

from __future__ import annotations

import io
import os
import threading
import time
from functools import partial
from socket import socket
from typing import Any

from staddle import Sandbox, Snapshot
from staddle.errors import InvalidCall, SandboxLost
from staddle.faces import (
    FilesNames,
    RemoteProcessNames,
    RemoteSandboxNames,
    RemoteSessionNames,
    RemoteTerminalNames,
    names,
)

from .messages import ContentRefs, FleetConflict, SandboxSpec
from .metrics import KeeperMetrics
from .node_files import NodeFiles
from .snapshots import snapshot_content, snapshot_file
from .warm import WarmSandboxes

#: Names that the driver may call on a sandbox, a session, its files, a process, a terminal.
ALLOWED = {
    "": names(RemoteSandboxNames) | {"run", "exec", "alive"},
    "files": names(FilesNames) | {"write"},
    "session": names(RemoteSessionNames) | {"run"},
    "process": names(RemoteProcessNames) | {"output", "wait_for_output", "wait_for_text"},
    "terminal": names(RemoteTerminalNames),
}


class KeptSandbox:
    """A sandbox with its numbered processes, snapshots and terminals, for the driver's handles."""

    def __init__(self, sandbox: Sandbox, tenant: str) -> None:
        self.sandbox, self.tenant = sandbox, tenant
        self.began = time.time()
        self.commands = 0
        self.processes: dict[int, Any] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.terminals: dict[int, Any] = {}
        self._last = 0
        self._lock = threading.Lock()

    def add(self, what: dict[int, Any], value: Any) -> int:
        """Store a process, snapshot or terminal under a new number."""
        with self._lock:
            self._last += 1
            what[self._last] = value
            return self._last


class KeptSandboxes:
    """All sandboxes of one fleet on one node. Thread-safe."""

    def __init__(self, node: str, files: NodeFiles, warm: WarmSandboxes, metrics: KeeperMetrics) -> None:
        self.node, self.files, self.warm, self.metrics = node, files, warm, metrics
        self.all: dict[str, KeptSandbox] = {}

    def close_all(self) -> None:
        """Close everything, and remove its files."""
        kept = list(self.all.values())
        self.all.clear()
        for each in kept:
            each.sandbox.close()
        self.warm.close()
        self.files.close()

    # ------------------------------------------------------------ sandboxes

    def create(self, name: str, spec: SandboxSpec) -> str:
        """Open a sandbox; return its backend."""
        began = time.perf_counter()
        sandbox = self._open(spec)
        self.all[name] = KeptSandbox(sandbox, spec.tenant)
        self.metrics.created(time.perf_counter() - began)
        return sandbox.enforced.backend

    def _open(self, spec: SandboxSpec) -> Sandbox:
        options = self.options(spec)
        if spec.snapshot is None:
            return self.warm.take(spec.key, options)
        path = snapshot_file(self.files, spec.snapshot)
        try:
            return self.warm.with_gpu(partial(Sandbox.from_snapshot, path), options)
        finally:
            os.unlink(path)

    def options(self, spec: SandboxSpec) -> dict[str, Any]:
        """The options for `Sandbox`, with the local paths of received content."""
        options = dict(spec.options)
        if spec.workspace is not None:
            options["workspace"] = self._tree(spec.workspace)
        if spec.base is not None:
            options["base"] = self._tree(spec.base)
        return options

    def _tree(self, sent: ContentRefs) -> str:
        return self.files.tree(sent.digest, sent.manifest, sent.pack)

    def close(self, name: str) -> None:
        """Close a sandbox; does nothing if it does not exist."""
        kept = self.all.pop(name, None)
        if kept is not None:
            self.metrics.closed()
            self.warm.give_back(kept.sandbox)

    def fork(self, name: str, names: list[str]) -> None:
        """Fork a sandbox on this node."""
        kept = self.kept(name)
        for new, sandbox in zip(names, kept.sandbox.fork(len(names)), strict=True):
            self.all[new] = KeptSandbox(sandbox, kept.tenant)
            self.metrics.created(0.0)

    def kept(self, name: str) -> KeptSandbox:
        """The sandbox of that name."""
        found = self.all.get(name)
        if found is None:
            raise SandboxLost(
                f"there is no sandbox {name} on node {self.node[:8]}",
                why="it was closed, or its keeper was restarted",
                fix="create another one",
            )
        return found

    # ------------------------------------------------------------ calls

    def run(self, name: str, session: str, command: str, options: dict[str, Any]) -> Any:
        """Run a command in a session: the most frequent call."""
        kept = self.kept(name)
        kept.commands += 1
        where: Any = kept.sandbox if not session else kept.sandbox.session(session)
        result = where.run(command, **options)
        self.metrics.ran(result.duration)
        return result

    def call(self, name: str, path: str, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a method or get a property of a sandbox, or of a part: "", "files", "session:NAME", …"""
        kept = self.kept(name)
        kind, _, which = path.partition(":")
        if method not in ALLOWED.get(kind, frozenset()):
            raise InvalidCall(
                f"a sandbox of a fleet has no {method!r} here",
                why="it needs this program's own memory or descriptors",
                fix="use run, exec, start or files",
            )
        target: Any = kept.sandbox
        if kind == "files":
            target = kept.sandbox.files
            if which:
                target = target.as_user(int(which) if which.isdecimal() else which)
        elif kind == "session":
            target = kept.sandbox.session(which)
        elif kind == "process":
            target = kept.processes[int(which)]
        elif kind == "terminal":
            target = kept.terminals[int(which)]
        if method in ("run", "exec", "python", "code"):
            kept.commands += 1
        found = getattr(target, method)
        return found(*args, **options) if callable(found) else found

    def text_diff(self, name: str, paths: list[str] | None, limit: int) -> str:
        """The changes as one unified diff of at most `limit` characters; the agent wrote the text."""
        text = ""
        for change in self.kept(name).sandbox.diff(paths):
            text += change.text_diff()
            if len(text) > limit:
                return f"{text[:limit]}\n[cut after {limit} characters]\n"
        return text

    def start(self, name: str, command: Any, options: dict[str, Any]) -> tuple[int, int]:
        """Start a background process; return its number here, and its pid."""
        kept = self.kept(name)
        process = kept.sandbox.start(command, **options)
        return kept.add(kept.processes, process), process.pid

    def processes(self, name: str) -> list[tuple[int, int]]:
        """The background processes: their numbers here, and their pids."""
        kept = self.kept(name)
        found = []
        for process in kept.sandbox.processes():
            known = next((n for n, each in list(kept.processes.items()) if each.pid == process.pid), None)
            found.append((known or kept.add(kept.processes, process), process.pid))
        return found

    def terminal(self, name: str, argv: list[str] | None, options: dict[str, Any]) -> tuple[int, int]:
        """Open a terminal; return its number here, and the pid of its program."""
        kept = self.kept(name)
        opened = kept.sandbox.terminal(argv, **options)
        return kept.add(kept.terminals, opened), opened.pid

    def tunnel(self, name: str, port: int) -> socket:
        """A connection to a server inside."""
        return self.kept(name).sandbox.connect(port)

    def snapshots(self, name: str) -> list[tuple[int, str, str]]:
        """The open snapshots: their numbers here, labels and methods."""
        kept = self.kept(name)
        return [(number, each.label, each.method) for number, each in sorted(kept.snapshots.items())]

    def snapshot(self, name: str, label: str) -> tuple[int, str]:
        """Take a snapshot; return its number here, and its method."""
        kept = self.kept(name)
        taken = kept.sandbox.snapshot(label)
        return kept.add(kept.snapshots, taken), taken.method

    def restore(self, name: str, number: int) -> None:
        """Go back to a snapshot of this sandbox."""
        kept = self.kept(name)
        kept.sandbox.restore(kept.snapshots[number])

    def merge(self, name: str, forks: list[str], options: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Merge forks on this node into a sandbox; return fields of the Merge, and the snapshot before."""
        kept = self.kept(name)
        found = kept.sandbox.merge(*(self.kept(each).sandbox for each in forks), **options)
        facts = {
            "changes": tuple(each.replace() for each in found.changes),  # without the layers that they keep
            "conflicts": tuple(FleetConflict.of(each) for each in found.conflicts),
            "left_out": found.left_out,
            "test": found.test,
            "written": found.written,
        }
        return facts, 0 if found.before is None else kept.add(kept.snapshots, found.before)

    def drop_snapshot(self, name: str, number: int) -> None:
        """Delete a snapshot."""
        kept = self.all.get(name)
        taken = None if kept is None else kept.snapshots.pop(number, None)
        if taken is not None:
            taken.close()

    def export(self, name: str, number: int | None) -> tuple[bytes, dict[str, Any]]:
        """A snapshot, or the current state of the sandbox, as content to transfer."""
        kept = self.kept(name)
        taken = kept.snapshots[number] if number is not None else None
        return snapshot_content(self.files, kept.sandbox, taken)

    def download(self, name: str, path: str, limit: int) -> bytes:
        """A directory of the sandbox as a tar."""
        out = io.BytesIO()
        self.kept(name).sandbox.download_tar(out, path, limit=limit)
        return out.getvalue()

    def upload(self, name: str, data: bytes, path: str) -> None:
        """Unpack a tar in the sandbox."""
        self.kept(name).sandbox.upload_tar(io.BytesIO(data), path)

    def stream(self, name: str, session: str, command: str, options: dict[str, Any]) -> Any:
        """Start a command whose output is streamed."""
        kept = self.kept(name)
        kept.commands += 1
        where: Any = kept.sandbox.session(session) if session else kept.sandbox
        return where.stream(command, **options)
