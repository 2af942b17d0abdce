"""A scene for pictures of the terminal UI: always the same, without a sandbox.

`python -m tests.support.tui_scene` writes the pictures of docs/tui.md; a test compares what they say.
"""

from __future__ import annotations

import asyncio
import html
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from staddle import Event, Limits, Network, Policy
from staddle.layers.changes import Change
from staddle.layers.review import NeedsApproval, Review
from staddle.policy.identity import Identity
from staddle.policy.plan import Plan
from staddle.sandbox.processes import ProcessInfo
from staddle.tui.app import TuiApp
from staddle.tui.log_pane import EventFeed
from staddle.tui.opening import SandboxOpening
from staddle.tui.watched import UsageSample
from tests.support.waiting import PATIENCE

PICTURES = Path(__file__).parents[2] / "docs" / "images"
NOON = 1_700_000_000.0
SIZE = (110, 30)

DIFF = """\
--- a/workspace/src/sum.py
+++ b/workspace/src/sum.py
@@ -1,3 +1,5 @@
 def mean(numbers):
-    return sum(numbers) / len(numbers)
+    if not numbers:
+        raise ValueError("no numbers")
+    return sum(numbers) / len(numbers)
 def total(numbers):
"""


class ScenedChange(Change):
    """A change whose diff is known."""

    def text_diff(self, *, context: int = 3, limit: int = 1 << 20) -> str:
        """The diff of the scene."""
        return DIFF


CHANGES = [
    ScenedChange("added", "/workspace/.git/hooks/pre-commit", "file", 41, 0o755),
    ScenedChange("modified", "/workspace/src/sum.py", "file", 1204, 0o644, old_type="file", old_size=1120),
    ScenedChange("added", "/workspace/tests/test_sum.py", "file", 380, 0o644),
    ScenedChange("deleted", "/workspace/todo.txt", old_type="file", old_size=17),
]
REVIEW = Review(
    (),
    (),
    (),
    (NeedsApproval(".git/hooks/pre-commit", "added", ".git/hooks is a protected name"),),
    changes=tuple(CHANGES),
)
EVENTS = [
    (NOON + 2, Event("note", "pypi.org:443", "allowed: pypi.org:443")),
    (NOON + 3, Event("note", "files.pythonhosted.org:443", "allowed: *.pythonhosted.org:443")),
    (NOON + 9, Event("refused", "telemetry.example:443", "no entry allows it", "telemetry.example:443")),
]
PROCESSES = [
    ProcessInfo(4, 1, "bash", "/usr/bin/bash -i", "S", 0.1, 3_600_000, 1),
    ProcessInfo(31, 4, "python3", "python3 -m pytest -q", "R", 12.4, 91_000_000, 3),
    ProcessInfo(33, 31, "node", "node server.js --port 8000", "S", 1.9, 64_000_000, 7),
]
TERMINAL = (
    "\x1b[1;32muser@sandbox\x1b[0m:\x1b[1;34m/workspace\x1b[0m$ python3 -m pytest -q\r\n"
    "\x1b[32m............................\x1b[31mF\x1b[32m.......\x1b[0m                 [100%]\r\n"
    "\x1b[31m=========== FAILURES ===========\x1b[0m\r\n"
    "    def test_mean_of_nothing():\r\n\x1b[1;31m>       assert mean([]) == 0\x1b[0m\r\n"
    "\x1b[1;31mE       ValueError: no numbers\x1b[0m\r\n\r\n"
    "tests/test_sum.py:12: ValueError\r\n"
    "\x1b[31m\x1b[1m1 failed\x1b[0m, \x1b[32m35 passed\x1b[0m in 0.41s\r\n"
    "\x1b[1;32muser@sandbox\x1b[0m:\x1b[1;34m/workspace\x1b[0m$ "
)
RECORDS = [
    {"what": "opened", "backend": "namespaces", "network": "allow pypi.org:443"},
    {"what": "command", "command": "pip install pytest"},
    {"what": "result", "ok": True, "exit_code": 0, "reason": "exited", "duration": 4.2, "user_time": 1.3}
    | {"memory": 88_000_000, "changes": ["modified /workspace/src/sum.py"]},
    {"what": "refused", "host": "telemetry.example:443", "rule": "no entry allows it"},
    {"what": "failed", "error": "CommandRefused: a rule refuses git push"},
]


#: Of the timeline: number, cause, command, changes, exit code. The last one was undone.
POINTS = (
    (0, "start", "", 0, 0),
    (1, "command", "pip install numpy", None, 0),
    (2, "background", "", 2, 0),
    (3, "command", "make test", 1, 2),
    (4, "command", "rm -r tests", 14, 0),
)


class SceneSandbox:
    """What the panes ask of a sandbox."""

    def __init__(self) -> None:
        limits = Limits(cpu=2.0, memory="1G", disk="2G", processes=256)
        self.policy = Policy(limits=limits, network=Network.allow("pypi.org:443", "*.pythonhosted.org:443"))
        self.plan = Plan(
            (), (), (), (), (), (), (), (), self.policy.network, limits, Identity(), "/workspace"
        )
        self.enforced = SimpleNamespace(backend="namespaces", why="it can enforce the policy here", gaps=())
        self.alive, self.usage = True, SimpleNamespace(user=None, system=None)

    def diff(self) -> list[Change]:
        return list(CHANGES)

    def review(self) -> Review:
        return REVIEW

    def close(self) -> None:
        self.alive = False


async def _shown(app: TuiApp, pilot: Any) -> None:
    """Fill the panes with the scene."""
    tab = app.tab
    assert tab is not None
    watched = tab.watched
    watched.sandbox = SceneSandbox()  # type: ignore[assignment]
    watched.changes, watched.processes = list(CHANGES), list(PROCESSES)
    watched.marks = {"/workspace/.git/hooks/pre-commit": ".git/hooks is a protected name"}
    watched.events.extend(EVENTS)
    now = time.time()
    first = _snapshot("tests pass", now - 7300)
    second, other = (
        _snapshot("before refactor", now - 3700, first),
        _snapshot("with numpy", now - 121, first, "copy"),
    )
    watched.snapshots = [first, second, other]  # type: ignore[list-item]
    steps = [_point(*row) for row in POINTS]
    watched.points, watched.undone = steps[:-1], steps[-1:]  # type: ignore[assignment]
    for number in range(40):
        wave = abs(number % 14 - 7) / 7
        watched.samples.append(UsageSample(2 * wave, int(wave * 7e8 + 1e8), 9 + number // 4, number * 10**7))
    tab.terminal.sentence = ""
    tab.terminal.emulator.resize(tab.terminal.size.height, tab.terminal.size.width)
    tab.terminal.emulator.feed(TERMINAL.encode())
    for number, record in enumerate(RECORDS):
        app.feed.record({**record, "at": NOON + number})
    await tab.show_pane("changes", app.feed, focus=False)
    tab.terminal.refresh()
    await _settled(app, pilot, "t push")


async def _settled(app: TuiApp, pilot: Any, text: str) -> str:
    """The picture, when `text` is in it and it does not change any more."""
    end, before = time.monotonic() + PATIENCE, ""
    while time.monotonic() < end:
        await pilot.pause()
        svg = app.export_screenshot(title="staddle tui")
        if svg == before and text in " ".join(readable(svg)):
            return svg
        before = svg
        await pilot.pause(0.05)
    raise AssertionError(f"{text!r} was not to be seen: {readable(before)}")


def _snapshot(label: str, created: float, parent: object = None, method: str = "swap") -> SimpleNamespace:
    return SimpleNamespace(label=label, created=created, method=method, closed=False, parent=parent)


def _point(number: int, cause: str, command: str, changed: int | None, exit_code: int) -> SimpleNamespace:
    facts = {"cause": cause, "command": command, "changed": changed, "exit_code": exit_code}
    return SimpleNamespace(number=number, time=NOON + 60 * number, **facts)


def _diff(app: TuiApp) -> object:
    from staddle.tui.changes_pane import DiffScreen

    return app.push_screen(DiffScreen(CHANGES[1]))


#: The pictures: what is done for each, and a word that has to be in it.
SCENES: dict[str, tuple[Callable[[TuiApp], Any], str]] = {
    "changes": (lambda app: app.action_pane("changes"), "4 changes"),
    "snapshots": (lambda app: app.action_pane("snapshots"), "with numpy"),
    "timeline": (lambda app: app.action_pane("timeline"), "pip install"),
    "network": (lambda app: app.action_pane("network"), "telemetry.example:443"),
    "processes": (lambda app: app.action_pane("processes"), "node server"),
    "policy": (lambda app: app.action_pane("policy"), "who"),
    "diff": (_diff, "no numbers"),
    "commit": (lambda app: app.run_action("commit"), "raise ValueError"),
    "help": (lambda app: app.run_action("help"), "List of commands"),
}


def pictures() -> dict[str, str]:
    """Every picture by its name, as SVG."""
    made: dict[str, str] = {}
    os.environ["TZ"] = "UTC"
    time.tzset()

    async def main() -> None:
        opening = SandboxOpening(
            lambda *_: None,  # type: ignore[arg-type,return-value]
            EventFeed(asks=False),
            directory="/home/ada/project",
            label="project",
        )
        app = TuiApp(opening)
        app.animation_level = "none"
        async with app.run_test(size=SIZE) as pilot:
            await _shown(app, pilot)
            for name, (act, text) in SCENES.items():
                doing = act(app)
                if asyncio.iscoroutine(doing):
                    await doing
                made[name] = await _settled(app, pilot, text)
                while len(app.screen_stack) > 1:
                    app.pop_screen()
                    await pilot.pause()

    asyncio.run(main())
    return made


def readable(svg: str) -> list[str]:
    """The texts of a picture, in order: what a reader of it reads, not how textual draws it."""
    texts = re.findall(r"<text[^>]*>(.*?)</text>", svg, re.DOTALL)
    return [html.unescape(text).replace("\xa0", " ").strip() for text in texts if html.unescape(text).strip()]


def main() -> None:
    """Write the pictures."""
    PICTURES.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        # Fonts would be fetched from elsewhere by whoever looks at the picture.
        alone = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
        (PICTURES / f"tui-{name}.svg").write_text(alone)


if __name__ == "__main__":
    main()
