"""Make sandboxes of a fleet: new, from a snapshot, or as forks on several nodes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from staddle import Policy, Snapshot, check
from staddle.errors import FleetBusy, InvalidCall, SandboxLost, StaddleError

from .cluster import Cluster, KeeperHandle
from .content import sha256
from .content_store import ContentStore, SentTree
from .messages import ContentRefs, SandboxSpec
from .placement import Reservation
from .remote import FILE_THREADS, RemoteSandbox
from .steps import Within, step

#: Options of `Sandbox` that sandboxes of a fleet have, too.
OPTIONS = ("policy", "mode", "env", "backend", "best_effort", "identity", "environment", "base")
#: Times to try opening a sandbox, each on another node: none of the caller's code has run yet.
_TRIES = 3

Workspace = str | os.PathLike[str] | SentTree | None


def _refuse_unknown(options: Iterable[str]) -> None:
    for name in options:
        if name not in (*OPTIONS, "workspace"):
            raise InvalidCall(
                f"a sandbox of a fleet has no option {name!r}",
                fix=f"choose {', '.join(OPTIONS)}",
                why="it is made on another machine",
            )


class SandboxFactory:
    """Makes the sandboxes of one fleet. `defaults` are the default options."""

    def __init__(self, cluster: Cluster, store: ContentStore, defaults: Mapping[str, Any]) -> None:
        self.cluster, self.store = cluster, store
        self.defaults = {name: value for name, value in defaults.items() if value is not None}
        _refuse_unknown(self.defaults)

    # ------------------------------------------------------------ specs

    async def spec(
        self, tenant: str, snapshot: Any, given: Mapping[str, Any]
    ) -> tuple[SandboxSpec, SentTree | None]:
        """Build the specification and put its content into the store. The caller closes the tree."""
        options = {**self.defaults, **{name: value for name, value in given.items() if value is not None}}
        workspace = options.pop("workspace", None)
        _refuse_unknown(options)
        if options.get("mode") == "bind":
            raise InvalidCall(
                "mode is 'bind'", why="all sandboxes of a node share one copy", fix='use "overlay"'
            )
        if not isinstance(options.get("policy", Policy()), Policy):
            raise InvalidCall(
                f"policy is {options['policy']!r}", fix="use Policy.agent()", why="it is not a Policy"
            )
        sent, source = await self._snapshot(snapshot)
        tree = await self._tree(workspace if workspace is not None or source is None else source.tree)
        base = options.get("base")
        sent_base = base.sent if isinstance(base, SentTree) else None
        if sent_base is not None:
            del options["base"]
        key = sha256(_key(options, tree, sent_base).encode())
        spec = SandboxSpec(options, key, None if tree is None else tree.sent, sent_base, sent, tenant)
        return spec, tree

    async def _tree(self, workspace: Workspace) -> SentTree | None:
        if workspace is None:
            return None
        if isinstance(workspace, SentTree):
            return workspace.hold()
        made: SentTree = await step(Within(FILE_THREADS.submit(self.store.tree, workspace), None))
        return made

    async def _snapshot(self, snapshot: Any) -> tuple[ContentRefs | None, RemoteSandbox | None]:
        if snapshot is None:
            return None, None
        if isinstance(snapshot, Snapshot | str | os.PathLike):
            return await step(Within(FILE_THREADS.submit(self.store.snapshot, snapshot), None)), None
        source = getattr(snapshot, "sandbox", None)
        if not isinstance(source, RemoteSandbox):
            raise InvalidCall(
                f"snapshot is {snapshot!r}",
                fix="give a Snapshot, one of a fleet, or a file's path",
                why="it is not one of these",
            )
        return await source.export(snapshot.number), source

    # ------------------------------------------------------------ sandboxes

    async def create(
        self, *, tenant: str = "", snapshot: Any = None, timeout: float | None = None, **given: Any
    ) -> RemoteSandbox:
        """A new sandbox, on the node with the most room. Waits for room, at most `timeout` seconds."""
        spec, tree = await self.spec(tenant, snapshot, given)
        try:
            return await self.opened(spec, tree, timeout)
        finally:
            if tree is not None:
                tree.close()

    async def opened(
        self,
        spec: SandboxSpec,
        tree: SentTree | None,
        timeout: float | None,
        grant: Reservation | None = None,
    ) -> RemoteSandbox:
        """Open the sandbox of that spec."""
        content = "" if tree is None else tree.digest
        for attempt in range(1, _TRIES + 1):
            keeper, taken = await self._placed(spec.tenant, content, timeout, grant)
            grant = None
            held = None if tree is None else tree.hold()
            made = RemoteSandbox(self.cluster, keeper, taken, uuid.uuid4().hex[:16], spec, held)
            try:
                made.backend = await made.create()
            except SandboxLost:
                made.abandon()
                if attempt == _TRIES:
                    raise
                continue
            except BaseException:
                made.abandon()
                raise
            self.cluster.placement.has_content(keeper.node, content)
            made.log("created", backend=made.backend, tenant=spec.tenant)
            return made
        raise AssertionError("neither made nor refused: this is a bug, please report it")

    async def _placed(
        self,
        tenant: str,
        content: str,
        timeout: float | None,
        grant: Reservation | None = None,
        only: str = "",
    ) -> tuple[KeeperHandle, Reservation]:
        placement = self.cluster.placement
        while True:
            if grant is None:
                asked = placement.ask(tenant, content, only)
                try:
                    grant = await step(Within(asked, timeout))
                except BaseException as error:
                    placement.withdraw(asked)
                    if isinstance(error, TimeoutError) and not isinstance(error, StaddleError):
                        raise FleetBusy(
                            f"no sandbox of the fleet became free in {timeout:g} seconds",
                            why=f"{len(placement.grants)} are open on {len(placement.nodes)} nodes",
                            fix="close some, wait longer, or add nodes",
                        ) from None
                    raise
            keeper = self.cluster.keepers.get(grant.node)
            if keeper is not None and keeper.ready and not keeper.lost and placement.is_valid(grant):
                return keeper, grant
            placement.release(grant)
            grant = None

    async def fork(self, source: RemoteSandbox, n: int = 1, *, spread: bool = True) -> list[RemoteSandbox]:
        """`n` sandboxes that continue from `source`: forks on its node, from a snapshot on other nodes."""
        check.count("the number of forks", n, fix="use fork(2)")
        source.actor  # noqa: B018 - raises when there is nothing to fork
        made: list[RemoteSandbox] = []
        grants: list[Reservation] = []
        try:
            only = "" if spread else source.keeper.node
            for _ in range(n):
                grants.append((await self._placed(source.spec.tenant, "", None, only=only))[1])
            here = [grant for grant in grants if grant.node == source.keeper.node]
            away = [grant for grant in grants if grant not in here]
            made += await self._forked_here(source, here)
            if away:
                spec = replace(source.spec, snapshot=await source.export())
                for grant in away:
                    made.append(await self.opened(spec, source.tree, None, grant))
            return made
        except BaseException:
            for sandbox in made:
                sandbox.abandon()
            for grant in grants:
                self.cluster.placement.release(grant)
            raise

    async def _forked_here(self, source: RemoteSandbox, grants: list[Reservation]) -> list[RemoteSandbox]:
        if not grants:
            return []
        names = [uuid.uuid4().hex[:16] for _ in grants]
        await source.ask("fork", names)
        made = []
        for name, grant in zip(names, grants, strict=True):
            held = None if source.tree is None else source.tree.hold()
            made.append(RemoteSandbox(self.cluster, source.keeper, grant, name, source.spec, held))
            made[-1].backend = source.backend
            made[-1].log("created", backend=source.backend, forked=source.name)
        return made


def _key(options: Mapping[str, Any], tree: SentTree | None, base: ContentRefs | None) -> str:
    parts = [f"{name}={options[name]!r}" for name in sorted(options)]
    return "\n".join((*parts, "" if tree is None else tree.digest, "" if base is None else base.digest))
