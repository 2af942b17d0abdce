"""The sandboxes of a server: each with its commands, terminals, snapshots and questions, by id."""

from __future__ import annotations

import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from staddle import Event, Review, Sandbox, Snapshot
from staddle.errors import InvalidCall, SandboxClosed, SessionBusy, StaddleError
from staddle.json_values import encode

from .commands import CommandTable
from .events import EventLog
from .operations import NO_SANDBOX
from .output import STDOUT, OutputLog

if TYPE_CHECKING:
    from collections.abc import Callable

#: Sandboxes of a server; terminals, snapshots without a label, and reviews of each sandbox.
MOST_SANDBOXES, MOST_TERMINALS, MOST_SNAPSHOTS, MOST_REVIEWS = 1000, 16, 1000, 16
#: Bytes that are kept of the output of a terminal.
KEPT_SCREEN = 1 << 20
#: Questions of a sandbox that wait for an answer; more are refused at once.
MOST_QUESTIONS = 32


class Question:
    """A question about a destination or an HTTP request of a program inside. It waits for an answer."""

    def __init__(self, event: Event) -> None:
        self.id, self.event, self.asked = secrets.token_hex(4), event, time.time()
        self.answer: bool | None = None
        self.is_for_always = False
        self.answered = threading.Event()


class ServedTerminal:
    """A terminal that keeps its newest output, for clients that attach later."""

    def __init__(self, terminal: Any) -> None:
        self.id, self.terminal = secrets.token_hex(4), terminal
        self.output = OutputLog(KEPT_SCREEN)
        self.sent = 0
        self.typing = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while not self.terminal.at_end:
                data = self.terminal.read(1.0)
                if data:
                    self.output.add(STDOUT, data)
                elif self.terminal.poll() is not None:
                    break
        except (SandboxClosed, OSError, ValueError):
            pass  # it was closed
        finally:
            self.output.close()

    def describe(self) -> dict[str, Any]:
        """Return its state, as data for JSON."""
        terminal = self.terminal
        return {
            "id": self.id,
            "pid": terminal.pid,
            "rows": terminal.rows,
            "cols": terminal.cols,
            "exit_code": None if terminal.closed else terminal.poll(),
            "output_start": self.output.start,
            "output_end": self.output.end,
        }


class SandboxEntry:
    """An open sandbox, with all objects that clients name."""

    def __init__(self, name: str, events: EventLog, options: dict[str, Any], parent: str = "") -> None:
        self.id, self.parent, self.opened = name, parent, time.time()
        self.options = options
        self.paused = False
        self.ends: float | None = None  # time at which it is closed or, with `_pauses`, paused
        self._pauses = False
        self._events = events
        self.terminals: dict[str, ServedTerminal] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.current: Snapshot | None = None  # the sandbox continues from it
        self.reviews: dict[str, Review] = {}
        self.questions: dict[str, Question] = {}
        self._users: set[object] = set()  # connections on which requests for it have come
        self._used = time.monotonic()
        self._lock = threading.Lock()

    sandbox: Sandbox  # set by `hold`
    commands: CommandTable

    def hold(self, sandbox: Sandbox) -> None:
        """Hold this sandbox from now on."""
        self.sandbox, self.commands = sandbox, CommandTable(sandbox, self._events)
        self._used = time.monotonic()
        if (life := sandbox.policy.limits.max_lifetime) is not None:
            self.ends = time.time() + life

    def set_timeout(self, seconds: float | None, then: str = "close") -> None:
        """Close it, or with `then="pause"` pause it, so many seconds from now; None: never."""
        if then not in ("close", "pause"):
            raise InvalidCall(f"then is {then!r}", why="it is unknown", fix="choose close or pause")
        self.sandbox.set_timeout(seconds)  # checks the number
        if then == "pause":
            self.sandbox.set_timeout(None)
        with self._lock:
            self._pauses = then == "pause"
            self.ends = None if seconds is None else time.time() + seconds

    def extend(self, seconds: float) -> float | None:
        """End it so many seconds later. Returns the seconds left, or None if it has no end."""
        left = self.sandbox.extend(seconds)  # checks the number
        with self._lock:
            if self.ends is not None:
                self.ends += seconds
                left = self.ends - time.time()
        return left

    def pause_if_due(self) -> None:
        """Pause it, if its time is up and `set_timeout` has said so. Close it if it cannot be paused."""
        with self._lock:
            if not self._pauses or self.ends is None or time.time() < self.ends:
                return
            self._pauses = False
        if not self.paused and self.sandbox.alive:
            try:
                self.sandbox.pause()
                self.paused = True
            except StaddleError:
                self.sandbox.close()  # it must not run longer

    def use(self, connection: object) -> None:
        """Note a request for it. It is in use as long as this connection is open."""
        with self._lock:
            self._users.add(connection)
            self._used = time.monotonic()

    def unused(self, connections: set[Any]) -> float:
        """Return the seconds since it was in use, or 0 if it has a label, a name to keep, or an end."""
        sandbox, now = self.sandbox, time.monotonic()
        limits = sandbox.policy.limits
        has_owner = sandbox.labels or self.options.get("keep") or limits.max_lifetime or limits.idle
        with self._lock:
            self._users &= connections
            if self._users or has_owner:
                self._used = now
            return now - self._used

    def record(self, kind: str, **facts: Any) -> None:
        """Add an event of this sandbox."""
        self._events.add(kind, self.id, **facts)

    # ------------------------------------------------------------ called from threads of the sandbox

    def on_record(self, record: dict[str, Any]) -> None:
        """Receive a record of the sandbox's audit, which is ours from now on."""
        kind = str(record["what"])
        for name in ("what", "log", "n", "at"):  # an event has its own
            del record[name]
        self._events.add(kind, self.id, facts=record)

    def on_connect(self, event: Event) -> bool:
        """Ask the clients about a destination, and wait for an answer."""
        return self._asked(event).answer is True

    def on_request(self, event: Event) -> bool | str:
        """Ask the clients about an HTTP request, and wait for an answer."""
        question = self._asked(event)
        return "always" if question.answer and question.is_for_always else question.answer is True

    def _asked(self, event: Event) -> Question:
        seconds = float(self.options.get("on_connect_timeout") or 60.0)
        question = Question(event)
        with self._lock:
            if len(self.questions) >= MOST_QUESTIONS:
                return question
            self.questions[question.id] = question
        self.record("question", question=question.id, event=encode(event))
        question.answered.wait(seconds)
        with self._lock:
            self.questions.pop(question.id, None)
        self.record("answer", question=question.id, allow=question.answer)
        return question

    def answer(self, question_id: str, allow: bool, always: bool = False) -> None:
        """Answer a question. The first answer counts. `always` allows equal HTTP requests later, too."""
        with self._lock:
            question = self.questions.pop(question_id, None)
        if question is None:
            raise FileNotFoundError(2, f"no question {question_id!r} waits for an answer")
        question.answer, question.is_for_always = allow, always
        question.answered.set()

    # ------------------------------------------------------------ what clients name

    def add_snapshot(self, snapshot: Snapshot) -> str:
        """Keep a snapshot; return its id."""
        with self._lock:
            if len(self.snapshots) >= MOST_SNAPSHOTS:
                raise SessionBusy(
                    "the sandbox has too many snapshots",
                    why=f"{MOST_SNAPSHOTS} are open",
                    fix="delete some of them",
                )
            name = secrets.token_hex(4)
            self.snapshots[name] = self.current = snapshot
        return name

    def snapshot(self, name: str) -> Snapshot:
        """Return the snapshot with this id, or the newest one with this label."""
        found = self.snapshots.get(name)
        if found is None:
            found = next((each for each in reversed(self.snapshots.values()) if each.label == name), None)
        if found is None:
            raise FileNotFoundError(2, f"the sandbox has no snapshot {name!r}")
        return found

    def listed_snapshots(self) -> list[dict[str, Any]]:
        """Return the snapshots, oldest first, each with its parent's id: a tree."""
        ids = {id(snapshot): name for name, snapshot in self.snapshots.items()}
        return [
            {
                "id": name,
                "label": each.label,
                "created": each.created,
                "parent": None if each.parent is None else ids.get(id(each.parent)),
                "current": each is self.current,
                "method": each.method,
                "processes": encode(each.processes),
            }
            for name, each in list(self.snapshots.items())
        ]

    def add_review(self, review: Review) -> str:
        """Keep a review for its commit; the oldest one goes. Returns its id."""
        with self._lock:
            while len(self.reviews) >= MOST_REVIEWS:
                del self.reviews[next(iter(self.reviews))]
            name = secrets.token_hex(4)
            self.reviews[name] = review
        return name

    def review(self, name: str) -> Review:
        """Return the review with this id."""
        found = self.reviews.get(name)
        if found is None:
            raise FileNotFoundError(2, f"the sandbox has no review {name!r}")
        return found

    def add_terminal(self, **options: Any) -> ServedTerminal:
        """Open a terminal."""
        with self._lock:
            for name, each in list(self.terminals.items()):
                if each.terminal.closed:
                    del self.terminals[name]
            if len(self.terminals) >= MOST_TERMINALS:
                raise SessionBusy(
                    "the sandbox has too many terminals",
                    why=f"{MOST_TERMINALS} are open",
                    fix="close one of them",
                )
            made = ServedTerminal(self.sandbox.terminal(**options))
            self.terminals[made.id] = made
        return made

    def terminal(self, name: str) -> ServedTerminal:
        """Return the terminal with this id."""
        found = self.terminals.get(name)
        if found is None:
            raise FileNotFoundError(2, f"the sandbox has no terminal {name!r}")
        return found

    def close(self) -> None:
        """Close the sandbox. Programs that wait for an answer get none."""
        for question in list(self.questions.values()):
            question.answered.set()
        self.sandbox.close()
        for each in self.terminals.values():
            each.output.close()

    def describe(self) -> dict[str, Any]:
        """Return its state, as data for JSON."""
        sandbox = self.sandbox
        alive = sandbox.alive
        return {
            "id": self.id,
            "name": sandbox.name,
            "labels": sandbox.labels,
            "state": ("paused" if self.paused else "running") if alive else "ended",
            "workspace": self.options.get("workspace"),
            "mode": self.options.get("mode", "overlay"),
            "keep": self.options.get("keep"),
            "backend": sandbox.enforced.backend,
            "gaps": [str(gap) for gap in sandbox.enforced.gaps],
            "opened": self.opened,
            "parent": self.parent or None,
            "commands": sum(each.state != "ended" for each in self.commands.listed()),
            "terminals": len(self.terminals),
            "questions": len(self.questions),
            "max_lifetime": sandbox.policy.limits.max_lifetime,
            "idle": sandbox.policy.limits.idle,
            "ends": self.ends,
        }


class SandboxTable:
    """Every sandbox of a server, by id. Thread-safe."""

    def __init__(self, most: int = MOST_SANDBOXES) -> None:
        self.most = most
        self.events = EventLog()
        self.created = self.closed = 0
        self._all: dict[str, SandboxEntry] = {}
        self._opening = 0
        self._ending = False
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._all) + self._opening

    def create(self, options: dict[str, Any], *, ask: bool = False) -> SandboxEntry:
        """Open a sandbox. With `ask` its clients decide about what the policy leaves open.

        These are destinations, and HTTP requests to hosts with HTTP rules.
        """
        entry = SandboxEntry(secrets.token_hex(8), self.events, options)
        hooks: dict[str, Any] = {"audit": entry.on_record}
        if ask:
            hooks["on_connect"] = entry.on_connect
            policy = options.get("policy")
            if policy is not None and policy.network.http:
                hooks["on_request"] = entry.on_request
        return self._opened(1, lambda: [self._filled(entry, Sandbox(**options, **hooks))])[0]

    def fork(
        self, parent: SandboxEntry, count: int, begin: Snapshot | None = None, **options: Any
    ) -> list[SandboxEntry]:
        """Open sandboxes that continue from another one, as it is or as it was at a snapshot."""

        def work() -> list[SandboxEntry]:
            forks = parent.sandbox.fork(count, **options)
            try:
                if begin is not None:
                    for made in forks:
                        made.restore(begin)
            except BaseException:
                for made in forks:
                    made.close()
                raise
            return [
                self._filled(SandboxEntry(secrets.token_hex(8), self.events, parent.options, parent.id), made)
                for made in forks
            ]

        return self._opened(count, work)

    @staticmethod
    def _filled(entry: SandboxEntry, sandbox: Sandbox) -> SandboxEntry:
        entry.hold(sandbox)
        return entry

    def _opened(self, count: int, work: Callable[[], list[SandboxEntry]]) -> list[SandboxEntry]:
        with self._lock:
            if self._ending:
                raise SandboxClosed(
                    "the server is ending", why="it was told to stop", fix="start another one"
                )
            if len(self) + count > self.most:
                raise SessionBusy(
                    "the server has too many sandboxes",
                    why=f"it holds at most {self.most}",
                    fix="close some of them",
                )
            self._opening += count
        try:
            made = work()
        finally:
            with self._lock:
                self._opening -= count
        with self._lock:
            if not self._ending:
                self._all.update({entry.id: entry for entry in made})
                self.created += len(made)
        for entry in made:
            if self._ending:
                entry.close()
            entry.record(
                "created", name=entry.sandbox.name, labels=entry.sandbox.labels, parent=entry.parent or None
            )
        return made

    def get(self, name: str) -> SandboxEntry:
        """Return the sandbox with this id, or the only one with this name, apart from its forks."""
        found = self._all.get(name)
        if found is not None:
            return found
        named = [entry for entry in self.listed() if entry.sandbox.name == name]
        named = [entry for entry in named if not entry.parent] or named  # forks have the name of their origin
        if len(named) > 1:
            raise InvalidCall(
                f"{len(named)} sandboxes have the name {name!r}",
                why="a name may be given twice",
                fix="use an id",
            )
        if not named:
            raise FileNotFoundError(2, f"{NO_SANDBOX} {name!r}")
        return named[0]

    def listed(self) -> list[SandboxEntry]:
        """Return all of them, oldest first."""
        return list(self._all.values())

    def close(self, name: str) -> None:
        """Close a sandbox."""
        entry = self.get(name)
        with self._lock:
            if self._all.pop(entry.id, None) is None:
                return
            self.closed += 1
        entry.close()
        entry.record("closed")

    def forget_ended(self) -> None:
        """Drop sandboxes that have ended by themselves, by a limit or because something killed them.

        Pause sandboxes whose time is up and that asked for it.
        """
        for entry in self.listed():
            entry.pause_if_due()
            if not entry.sandbox.alive:
                self.close(entry.id)

    def close_unused(self, seconds: float, connections: set[Any]) -> None:
        """Close what a client left that is gone: unused for so long, without label, keep or limit of time."""
        for entry in self.listed():
            if entry.unused(connections) > seconds:
                self.close(entry.id)

    def end(self) -> None:
        """Close everything. No sandbox is opened from now on."""
        with self._lock:
            self._ending = True
        for entry in self.listed():
            try:
                self.close(entry.id)
            except Exception as error:  # the others are to be closed as well
                self.events.add("failed", entry.id, why=str(error))
