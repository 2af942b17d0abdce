"""Actions of the UI's keys on sandboxes. Threads do the work; errors go to the log."""

from __future__ import annotations

from signal import SIGKILL, SIGTERM
from tempfile import TemporaryDirectory

from rich.text import Text

from staddle.display import counted, shown
from staddle.errors import CommitRefused, LayerError, StaddleError

from .log_pane import ConnectionQuestion
from .watched import WatchedSandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from textual.app import App

    from staddle import HistoryPoint, Sandbox, Snapshot

    from .log_pane import EventFeed
    from .opening import SandboxOpening
    from .screens import CommitChoice
    from .tab import SandboxTab

    _Base = App[int]
else:
    _Base = object


class SandboxActions(_Base):
    """Actions of the application on the sandbox of the visible tab."""

    if TYPE_CHECKING:
        feed: EventFeed
        opening: SandboxOpening
        tabs: list[SandboxTab]
        fork_numbers: Iterator[int]

        @property
        def tab(self) -> SandboxTab | None: ...
        def note(self, kind: str, text: str, when: float | None = None) -> None: ...
        def _watched(self, label: str) -> WatchedSandbox: ...
        def _from_thread(self, call: Callable[..., object], *arguments: object) -> None: ...
        async def add_tab(self, watched: WatchedSandbox, session: str) -> None: ...
        async def remove_tab(self, tab: SandboxTab) -> None: ...
        def start_shell(self, tab: SandboxTab) -> None: ...

    def _here(self) -> tuple[SandboxTab, Sandbox] | None:
        """The visible tab and its open sandbox."""
        tab = self.tab
        if tab is None or tab.watched.sandbox is None:
            self.notify("the sandbox is not open", severity="warning", markup=False)
            return None
        return tab, tab.watched.sandbox

    def work(self, what: str, job: Callable[[], Any], then: Callable[[Any], object] | None = None) -> None:
        """Run `job` in a thread, then call `then` with its result here. Errors go to the log."""

        def done() -> None:
            try:
                result = job()
            except (StaddleError, OSError, ValueError) as error:
                self._from_thread(self._failed, what, error)
                return
            if then is not None:
                self._from_thread(then, result)
            for tab in list(self.tabs):
                tab.watched.wants_point |= not tab.terminal.is_busy()
                tab.watched.look()

        self.run_worker(done, thread=True, exit_on_error=False)

    def _failed(self, what: str, error: Exception) -> None:
        self.note("error", f"{what}: {error}")
        self.notify(shown(f"{what}: {error}"), severity="error", timeout=10, markup=False)
        if isinstance(error, CommitRefused):
            for item in (*error.conflicts, *error.held):
                self.note("violation", f"{item.path}: {item.why}")

    def action_look(self) -> None:
        if self.tab is not None:
            self.tab.watched.look()

    # ------------------------------------------------------------ commit and discard

    def action_commit(self) -> None:
        here = self._here()
        if here is None:
            return
        tab = here[0]
        self.work("commit", tab.watched.review, lambda found: self._review(tab, found))

    def _review(self, tab: SandboxTab, review: Any) -> None:
        from .screens import ReviewScreen

        if review is None or not review.changes:
            self.notify("there is nothing to commit", markup=False)
            return
        root = review.root
        target = self.opening.directory
        self.push_screen(ReviewScreen(review, root, target), lambda choice: self._commit(tab, review, choice))

    def _commit(self, tab: SandboxTab, review: Any, choice: CommitChoice | None) -> None:
        if choice is None:
            return

        def on_conflict(conflict: Any) -> Any:
            return "overwrite" if conflict.path in choice.overwrite else "refuse"

        paths = choice.paths
        if paths is None and tab.watched.hidden:
            paths = [change.path for change in review.changes]

        def commit() -> Any:
            return review.commit(paths, on_conflict=on_conflict, allow=choice.allow)

        def told(done: Any) -> None:
            self.notify(f"{counted(len(done.changes), 'change')} committed", markup=False)
            tab.watched.look()

        self.work("commit", commit, told)

    def action_discard(self) -> None:
        here = self._here()
        if here is None:
            return
        tab, sandbox = here
        changes = tab.watched.changes
        paths = [change.path for change in changes] if tab.watched.hidden else None
        self._confirm(
            f"Discard {counted(len(changes), 'change')}? `u` brings them back.",
            "Discard",
            lambda: self._discard(tab, sandbox, paths),
        )

    def action_discard_one(self) -> None:
        here = self._here()
        pane: Any = here[0].side_pane("changes") if here is not None else None
        path = pane.chosen() if pane is not None else None
        if here is None or path is None:
            return
        tab, sandbox = here
        self._confirm(
            f"Discard the changes at {shown(path)}?", "Discard", lambda: self._discard(tab, sandbox, [path])
        )

    def _discard(self, tab: SandboxTab, sandbox: Sandbox, paths: list[str] | None) -> None:
        def discard() -> Snapshot:
            before = sandbox.snapshot("before discard")
            sandbox.discard(paths)
            return before

        def told(before: Snapshot) -> None:
            tab.watched.before_discard = before
            tab.watched.snapshots.append(before)
            tab.refresh_pane("snapshots", self.feed)
            self.notify("discarded; u brings it back", markup=False)

        self.work("discard", discard, told)

    def action_undo_discard(self) -> None:
        here = self._here()
        if here is None:
            return
        tab, _ = here
        before = tab.watched.before_discard
        if before is None or before.closed:
            self.notify("nothing was discarded", severity="warning", markup=False)
            return
        tab.watched.before_discard = None
        self._restore(tab, before)

    # ------------------------------------------------------------ snapshots

    def _snapshot_pane(self) -> Any:
        return self.tab.side_pane("snapshots") if self.tab is not None else None

    def action_snapshot(self) -> None:
        from .changes_pane import SearchScreen

        here = self._here()
        if here is None:
            return
        tab, sandbox = here

        def named(label: str | None) -> None:
            if label is not None:
                self.work("snapshot", lambda: sandbox.snapshot(label), lambda taken: self._taken(tab, taken))

        self.push_screen(SearchScreen("", "a label for the snapshot"), named)

    def _taken(self, tab: SandboxTab, taken: Snapshot) -> None:
        tab.watched.snapshots.append(taken)
        tab.refresh_pane("snapshots", self.feed)

    def action_restore(self) -> None:
        here, pane = self._here(), self._snapshot_pane()
        chosen = pane.chosen() if pane is not None else None
        if here is None or chosen is None:
            return
        label = shown(chosen.label) or "this snapshot"
        self._confirm(
            f"Restore {label}? Running processes are killed, and the changes since then are lost.",
            "Restore",
            lambda: self._restore(here[0], chosen),
        )

    def _restore(self, tab: SandboxTab, snapshot: Snapshot) -> None:
        self._exchange(
            tab,
            "restore",
            lambda sandbox: sandbox.restore(snapshot),
            lambda _: self.notify(f"restored {shown(snapshot.label)}", markup=False),
        )

    def _exchange(
        self, tab: SandboxTab, what: str, job: Callable[[Sandbox], Any], then: Callable[[Any], object]
    ) -> None:
        """Do `job`, which replaces the files and ends the shells; start new ones."""
        sandbox = tab.watched.sandbox
        if sandbox is None:
            return
        shells = [each for each in self.tabs if each.watched is tab.watched]
        for each in shells:  # they are ended; what is typed meanwhile is for the next ones
            each.terminal.hold()

        def exchanged() -> Any:
            try:
                return job(sandbox)
            except BaseException:
                for each in shells:
                    self._from_thread(each.terminal.release)
                raise

        def told(done: Any) -> None:
            for each in shells:
                self.start_shell(each)
            for process in done.ended:
                self.note("sandbox", f"killed: {process.command}")
            then(done)

        self.work(what, exchanged, told)

    # ------------------------------------------------------------ timeline

    def action_step(self, count: int) -> None:
        """Undo `-count` points, or redo `count`. Asks if that ends a program."""
        here = self._here()
        if here is None or not count:
            return
        tab, _ = here
        if tab.watched.no_history:
            self.notify(tab.watched.no_history, severity="warning", markup=False)
            return

        def step(sandbox: Sandbox) -> Any:
            return sandbox.undo(-count) if count < 0 else sandbox.redo(count)

        def told(done: Any) -> None:
            tab.watched.stepped(done.points, count)
            self.notify(
                f"{'undid' if count < 0 else 'redid'} {counted(len(done.points), 'point')}", markup=False
            )

        def go() -> None:
            self._exchange(tab, "undo" if count < 0 else "redo", step, told)

        if any(each.has_running() for each in self.tabs if each.watched is tab.watched):
            self._confirm("This ends the programs that run.", "Go on", go)
        else:
            go()

    def action_go_to_point(self) -> None:
        tab, chosen = self._chosen_point()
        if tab is None or chosen is None:
            return
        watched = tab.watched
        if chosen in watched.undone:
            self.action_step(watched.undone.index(chosen) + 1)
        elif chosen in watched.points:
            self.action_step(watched.points.index(chosen) + 1 - len(watched.points))

    def action_show_point(self) -> None:
        from .timeline_pane import PointScreen

        tab, chosen = self._chosen_point()
        if tab is None or chosen is None:
            return
        pane: Any = tab.side_pane("timeline")
        before = pane.before(chosen)
        self.push_screen(PointScreen(chosen, lambda: [] if before is None else chosen.diff(before)))

    def _chosen_point(self) -> tuple[SandboxTab | None, HistoryPoint | None]:
        pane: Any = self.tab.side_pane("timeline") if self.tab is not None else None
        return self.tab, None if pane is None else pane.chosen()

    def action_forget_snapshot(self) -> None:
        pane = self._snapshot_pane()
        chosen = pane.chosen() if pane is not None else None
        tab = self.tab
        if tab is None or chosen is None:
            return

        def forget() -> None:
            tab.watched.snapshots = [each for each in tab.watched.snapshots if each is not chosen]
            self.work("delete", chosen.close, lambda _: tab.refresh_pane("snapshots", self.feed))

        self._confirm(f"Delete the snapshot {shown(chosen.label)}?", "Delete", forget)

    def action_compare(self) -> None:
        """Compare the snapshot under the cursor with the marked one, by the changes in forks of them."""
        here, pane = self._here(), self._snapshot_pane()
        chosen = pane.chosen() if pane is not None else None
        marked = pane.marked if pane is not None else None
        if here is None or chosen is None or marked is None or marked is chosen:
            self.notify("mark one with m, go to another one, then x", markup=False)
            return
        directory = self.opening.directory
        policy = here[1].policy

        def compared() -> Text:
            from staddle import Sandbox

            if self.opening.is_attached:  # no sandbox of this process has these layers
                found = {c.path: (c.kind, c.size, c.text_diff()) for c in chosen.diff(marked)}
                return _comparison(marked.label, chosen.label, {}, found)
            sides = []
            for snapshot in (marked, chosen):
                with Sandbox.from_snapshot(snapshot, directory, policy=policy) as sandbox:
                    sides.append({c.path: (c.kind, c.size, c.text_diff()) for c in sandbox.diff()})
            return _comparison(marked.label, chosen.label, *sides)

        def show(text: Text) -> None:
            from .screens import TextScreen

            self.push_screen(TextScreen(text))

        self.work("compare", compared, show)

    # ------------------------------------------------------------ tabs

    def action_fork(self) -> None:
        """Fork from the snapshot under the cursor, or from the current state."""
        pane = self._snapshot_pane()
        chosen = pane.chosen() if pane is not None and pane.has_focus else None
        self._fork(chosen)

    def action_fork_now(self) -> None:
        self._fork(None)

    def _fork(self, snapshot: Snapshot | None) -> None:
        here = self._here()
        if here is None:
            return
        sandbox = here[1]

        def forked() -> Sandbox:
            made: Sandbox = sandbox.fork(1)[0]
            if snapshot is not None:
                made.restore(snapshot)
            return made

        label = f"fork {next(self.fork_numbers)}"
        self.work("fork", forked, lambda made: self._show_sandbox(label, made))

    def action_new_sandbox(self) -> None:
        label = self.opening.label
        self.work("new sandbox", self.opening.another, lambda made: self._show_sandbox(label, made))

    async def _show_sandbox(self, label: str, sandbox: Sandbox) -> None:
        watched = self._watched(label)
        watched.begin(sandbox)
        await self.add_tab(watched, "main")

    async def action_new_shell(self) -> None:
        here = self._here()
        if here is not None:
            count = sum(1 for tab in self.tabs if tab.watched is here[0].watched)
            await self.add_tab(here[0].watched, f"shell{count + 1}")

    def action_close_tab(self) -> None:
        tab = self.tab
        if tab is None:
            return
        if len(self.tabs) == 1:
            self.action_leave()
        elif tab.watched.users > 1 or tab.watched.is_kept:
            self.call_later(self.remove_tab, tab)
        else:
            self.work("close", tab.watched.uncommitted, lambda count: self._close_tab(tab, count))

    def _close_tab(self, tab: SandboxTab, count: int) -> None:
        if not count:
            self.call_later(self.remove_tab, tab)
            return
        question = f"Close this sandbox with {counted(count, 'uncommitted change')}?"
        self._confirm(
            question,
            "Close",
            lambda: self.call_later(self.remove_tab, tab),
            lambda: self._keep([tab.watched], lambda _: self.call_later(self.remove_tab, tab)),
        )

    def action_interrupt(self) -> None:
        here = self._here()
        if here is not None:
            here[0].terminal.type(b"\x03")
            self.work("interrupt", here[1].interrupt)

    def action_leave(self) -> None:
        known = [tab.watched for tab in self.tabs if tab.watched.sandbox is not None]
        every = {id(watched): watched for watched in known if not watched.is_kept}

        def lost() -> dict[WatchedSandbox, int]:
            return {watched: count for watched in every.values() if (count := watched.uncommitted())}

        self.work("leave", lost, self._leave_with)

    def _leave_with(self, lost: dict[WatchedSandbox, int]) -> None:
        if not lost:
            self.exit(0)
            return

        def kept(names: list[str]) -> None:
            self.exit(0, message=Text("\n".join(f"kept: staddle diff {name}" for name in names)))

        changes = counted(sum(lost.values()), "uncommitted change")
        question = f"Leave? {changes} will be lost. F9 commits."
        self._confirm(question, "Leave", lambda: self.exit(0), lambda: self._keep([*lost], kept))

    def _keep(self, every: list[WatchedSandbox], then: Callable[[list[str]], object]) -> None:
        """Ask for a name, keep the sandboxes as NAME, NAME-2, ..., and call `then` with these names."""
        from .changes_pane import SearchScreen

        def keep(name: str) -> list[str]:
            names = [name, *(f"{name}-{number}" for number in range(2, len(every) + 1))]
            for watched, each in zip(every, names, strict=True):
                if watched.sandbox is not None:
                    keep_as(watched.sandbox, each, self.opening.directory)
            return names

        def named(name: str | None) -> None:
            if name:
                self.work("keep", lambda: keep(name), then)

        self.push_screen(SearchScreen("", "a name to keep the changes under; see `staddle ls`"), named)

    def _confirm(
        self,
        question: str,
        yes: str,
        then: Callable[[], object],
        keep: Callable[[], object] | None = None,
    ) -> None:
        from .screens import ConfirmScreen

        def answered(answer: str | None) -> None:
            if answer == "yes":
                then()
            elif answer == "keep" and keep is not None:
                keep()

        self.push_screen(ConfirmScreen(question, yes, can_keep=keep is not None), answered)

    # ------------------------------------------------------------ network

    def _destination(self) -> Any:
        pane: Any = self.tab.side_pane("network") if self.tab is not None else None
        return pane.chosen() if pane is not None else None

    def action_allow(self) -> None:
        chosen = self._destination()
        if chosen is None:
            return
        event = chosen.event if isinstance(chosen, ConnectionQuestion) else chosen
        if not event.allow:
            self.notify("the policy refuses it by name", severity="warning", markup=False)
            return
        self.feed.allowed |= {event.what, event.allow}
        self.feed.refused.discard(event.what)
        if isinstance(chosen, ConnectionQuestion):
            chosen.answer(True)
        self.note("sandbox", f"allowed for this session: {event.what}")

    def action_refuse(self) -> None:
        chosen = self._destination()
        if isinstance(chosen, ConnectionQuestion):
            self.feed.refused.add(chosen.event.what)
            chosen.answer(False)
            self.note("sandbox", f"refused: {chosen.event.what}")

    def action_allow_in_policy(self) -> None:
        from .opening import add_host

        chosen = self._destination()
        file = self.opening.policy_file
        if chosen is None:
            return
        if file is None:
            self.notify("there is no policy file; start with --policy FILE", severity="warning", markup=False)
            return
        event = chosen.event if isinstance(chosen, ConnectionQuestion) else chosen
        self.action_allow()
        self.work(
            "policy",
            lambda: add_host(file, event.allow, self.opening.directory),
            lambda _: self.note("sandbox", f"{file} allows {event.allow} from the next start on"),
        )

    # ------------------------------------------------------------ processes

    def _kill(self, signal: int) -> None:
        here = self._here()
        pane: Any = here[0].side_pane("processes") if here is not None else None
        pid = pane.chosen() if pane is not None else None
        if here is None or pid is None:
            return
        sandbox = here[1]

        def told(done: bool) -> None:
            if not done:
                self.notify(f"there is no process {pid}, or it is not its own", markup=False)

        self.work("kill", lambda: sandbox.kill(pid, signal), told)

    def action_kill(self) -> None:
        self._kill(SIGTERM)

    def action_kill_hard(self) -> None:
        self._kill(SIGKILL)


def keep_as(sandbox: Sandbox, name: str, directory: str) -> None:
    """Keep the files and shells of an open sandbox under a name that is not in use."""
    from staddle import Sandbox, kept_sandboxes

    if name in kept_sandboxes():
        raise LayerError(
            f"the changes cannot be kept as {name!r}",
            why="there is a kept sandbox of this name",
            fix="choose another name",
        )
    with TemporaryDirectory(prefix="staddle-tui-") as place:
        file = f"{place}/snapshot"
        snapshot = sandbox.snapshot()
        try:
            snapshot.save(file, freeze=False)
        finally:
            snapshot.close()
        Sandbox.from_snapshot(file, directory, policy=sandbox.policy, keep=name, freeze=False).close()


def _comparison(
    first: str, second: str, before: dict[str, tuple[Any, ...]], after: dict[str, tuple[Any, ...]]
) -> Text:
    text = Text(f"{shown(first) or '(no label)'} → {shown(second) or '(no label)'}\n", style="bold")
    differing = 0
    for path in sorted({*before, *after}):
        if before.get(path) == after.get(path):
            continue
        differing += 1
        was, now = (side[path][0] if path in side else "as on the host" for side in (before, after))
        text.append(f"{shown(path)}: ", style="cyan")
        text.append(f"{was} → {now}\n" if was != now else f"{now}, with other content\n")
    if not differing:
        text.append("no difference", style="dim")
    return text
