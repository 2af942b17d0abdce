"""The terminal UI without a terminal, driven by textual's pilot, on a real sandbox."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from staddle import Policy, Sandbox
from staddle.tui.app import TuiApp
from staddle.tui.log_pane import EventFeed
from staddle.tui.opening import SandboxOpening
from staddle.tui.tab import SandboxTab
from tests.support.waiting import PATIENCE


class Driven:
    """An app that runs, and its pilot."""

    def __init__(self, app: TuiApp, pilot: Pilot[int]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def tab(self) -> SandboxTab:
        tab = self.app.tab
        assert tab is not None
        return tab

    @property
    def sandbox(self) -> Sandbox:
        sandbox = self.tab.watched.sandbox
        assert sandbox is not None
        return sandbox

    async def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            await self.pilot.press(key)

    async def write(self, text: str) -> None:
        """Press the keys of a text."""
        names = {" ": "space", "-": "minus", ".": "full_stop", "/": "slash"}
        await self.press(*(names.get(char, char) for char in text))

    async def until(self, what: Callable[[], object], why: str = "") -> None:
        """Wait until it is so."""
        end = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < end, f"{why or what} did not come to be:\n{self.screen()}"
            await self.pilot.pause(0.03)

    async def prompt(self) -> None:
        """Wait for the prompt of the shell."""
        await self.until(lambda: self.tab.terminal.screen_text().rstrip().endswith("$"), "a prompt")

    async def run(self, line: str) -> None:
        """Type a line into the terminal, and wait until what it does is done."""
        mark = f"done-{time.monotonic_ns()}"
        self.tab.terminal.type(f"{line}; echo {mark[:5]}''{mark[5:]}\r".encode())
        await self.until(lambda: mark in self.tab.terminal.screen_text(), line)

    async def changed(self, *paths: str) -> None:
        """Wait until the changes are at exactly these paths below the workspace."""
        wanted = sorted(f"/workspace/{path}" for path in paths)
        self.tab.watched.look()
        await self.until(lambda: sorted(c.path for c in self.tab.watched.changes) == wanted, str(wanted))

    async def top(self, name: str) -> Any:
        """Wait until a screen of this class is on top."""
        await self.until(lambda: type(self.app.screen).__name__ == name, name)
        await self.pilot.pause()
        return self.app.screen

    def screen(self) -> str:
        """What is on the screen, as text."""
        width, height = self.app.size
        lines = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip()[:width] for strip in lines[:height])

    def pane_text(self) -> str:
        """Every label of the tree of changes."""
        pane: Any = self.tab.side_pane("changes")
        return "\n".join(str(node.label) for node in pane.root.children)

    def log(self) -> list[tuple[str, str]]:
        """(kind, text) of the log."""
        return [(kind, text) for kind, _, text in self.tab.log_pane.lines]


def drive(
    steps: Callable[[Driven], Awaitable[None]],
    directory: Path,
    *,
    size: tuple[int, int] = (120, 32),
    policy: Policy | None = None,
    asks: bool = False,
    open_it: Callable[[EventFeed, bool], Any] | None = None,
    **options: Any,
) -> TuiApp:
    """Run the UI for a directory, and `steps` in it. Every sandbox has ended when it returns."""

    def opened(feed: EventFeed, first: bool) -> Sandbox:
        on_connect = feed.on_connect if asks else None
        hooks: dict[str, Any] = {"on_connect": on_connect, "on_connect_timeout": 60.0, "history": True}
        return Sandbox(directory, policy, audit=feed.record, **hooks)

    feed = EventFeed(asks=asks)
    opening = SandboxOpening(open_it or opened, feed, directory=str(directory), label="work", **options)
    opening.begin()
    app = TuiApp(opening)

    async def main() -> None:
        async with app.run_test(size=size) as pilot:
            await steps(Driven(app, pilot))

    try:
        asyncio.run(main())
    finally:
        app.close_everything()
        opening.close()
    return app
