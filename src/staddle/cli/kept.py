"""Functions for commands about kept sandboxes: find one, open it, print its changes in a pager."""

from __future__ import annotations

import os
import sys
import time

from ..display import shown
from ..errors import UsageError
from ..paths import WORKSPACE_PATH, covers
from ..sandbox.workspace import persistent
from .options import Option, Parsed, check_rules, help_rows, parse_among, working_directory
from .report import say_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import IO, Any

    from ..layers.changes import Change
    from ..layers.session_record import SessionRecord
    from ..policy import Policy
    from ..sandbox.sandbox import Sandbox

JSON = Option("json", "", "print JSON")
#: One letter for each kind of change.
LETTERS = {
    "added": "A",
    "modified": "M",
    "deleted": "D",
    "renamed": "R",
    "mode": "m",
    "type": "T",
    "link": "L",
}
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


def begin(words: Sequence[str], options: tuple[Option, ...], command: str, teach: str) -> Parsed | None:
    """Parse the command line, or print the help and return None."""
    parsed = parse_among(words, options, command)
    if parsed.on("help"):
        print(teach.format(options=help_rows(options)), end="")
        return None
    return parsed


def refuse_unknown(paths: Sequence[str], found: Sequence[Change], workspace: str | None) -> None:
    """Raise UsageError for a path that neither exists nor was changed: it is mistyped."""
    touched = [path for change in found for path in (change.path, change.old_path) if path]
    for path in paths:
        whole = os.path.normpath(os.path.join(WORKSPACE_PATH, path))
        below = os.path.relpath(whole, WORKSPACE_PATH)
        is_there = workspace is not None and os.path.lexists(os.path.join(workspace, below))
        if not is_there and not any(covers(whole, one) or covers(one, whole) for one in touched):
            raise UsageError(
                f"nothing was changed at {path!r}",
                why="there is no such path in the workspace, nor a change",
                fix="`staddle diff NAME --names` lists the changes",
            )


def named(parsed: Parsed, command: str) -> tuple[str, tuple[str, ...]]:
    """Return the name of the kept sandbox and the words after it. Default: the one of this directory.

    Words after `--` are no name.
    """
    if parsed.ahead if parsed.dashed else parsed.words:
        return parsed.words[0], parsed.words[1:]
    here = os.path.realpath(working_directory())
    found = [record.name for record in every() if _is_of(record, here)]
    if len(found) == 1:
        return found[0], parsed.words
    why = f"several are of this directory: {', '.join(found)}" if found else "none is of this directory"
    raise UsageError(
        "no kept sandbox is named", why=why, fix=f"staddle {command} NAME; `staddle ls` lists them"
    )


def every() -> list[SessionRecord]:
    """Return all kept sandboxes with a readable record. Prints the errors of the others."""
    from ..errors import LayerError
    from ..layers.session_record import names

    found = []
    for name in names():
        try:
            found.append(persistent.find(name))
        except LayerError as error:
            say_error(error)
    return found


def _is_of(record: SessionRecord, directory: str) -> bool:
    return record.workspace is not None and is_within(directory, record.workspace)


def is_within(path: str, directory: str) -> bool:
    """Whether `path` is the directory, or below it."""
    return f"{os.path.realpath(path)}/".startswith(f"{directory.rstrip('/')}/")


def below(paths: Sequence[str]) -> tuple[str, ...] | None:
    """Return paths below the workspace, from paths inside or relative ones; None for all."""
    from ..paths import WORKSPACE_PATH
    from ..sandbox.workspace.trees import by_tree

    try:
        return (
            tuple(by_tree(paths, WORKSPACE_PATH, {WORKSPACE_PATH: (WORKSPACE_PATH,)})[WORKSPACE_PATH])
            if paths
            else None
        )
    except ValueError as error:
        raise UsageError(
            str(error), fix="name paths as `staddle diff` does, or relative to the workspace"
        ) from None


def open_kept(
    parsed: Parsed, argv: Sequence[str] = (), script: str | None = None, **hooks: Any
) -> tuple[Sandbox, str | None]:
    """Open the sandbox of `--keep`, and return it with its workspace. `script` is made readable in it.

    If the policy's rules refuse the command `argv`, nothing is created. `hooks` are arguments for Sandbox;
    `on_request` is left out if the policy has no HTTP rules.
    """
    from ..sandbox.sandbox import Sandbox

    name = parsed.one("keep")
    mode = parsed.one("mode")
    if mode not in (None, "overlay"):
        raise UsageError(
            f"--keep and --mode {mode} contradict each other",
            why="only changes in a layer of its own can be kept",
            fix="leave one of them out",
        )
    policy, workspace = _policy_and_workspace(parsed, name or "")
    check_rules(policy, argv, script)
    if script is not None and not (workspace is not None and is_within(script, workspace)):
        policy = policy.with_read(script)
    if not policy.network.http:
        hooks.pop("on_request", None)
    sandbox = Sandbox(
        workspace,
        policy,
        backend=parsed.one("backend") or "auto",  # type: ignore[arg-type]
        best_effort=parsed.on("best-effort"),
        keep=name,
        workdir=parsed.one("workdir"),
        history=True,
        **{"audit": parsed.one("audit"), **hooks},
    )
    return sandbox, workspace


def open_overlay(
    parsed: Parsed, argv: Sequence[str] = (), script: str | None = None
) -> tuple[Sandbox, str | None]:
    """Open the sandbox of `--mode overlay`, whose changes end with it. `script` is made readable in it."""
    from ..sandbox.sandbox import Sandbox
    from .options import sandbox_from

    policy, workspace, _ = sandbox_from(parsed)
    check_rules(policy, argv, script)
    if script is not None and not (workspace is not None and is_within(script, workspace)):
        policy = policy.with_read(script)
    sandbox = Sandbox(
        workspace,
        policy,
        backend=parsed.one("backend") or "auto",  # type: ignore[arg-type]
        mode="overlay",
        best_effort=parsed.on("best-effort"),
        audit=parsed.one("audit"),
        workdir=parsed.one("workdir"),
    )
    return sandbox, None if workspace is None else os.path.realpath(workspace)


def _policy_and_workspace(parsed: Parsed, name: str) -> tuple[Policy, str | None]:
    """Return the policy and the workspace. An existing kept sandbox determines the workspace."""
    from .options import sandbox_from

    options = {option: values for option, values in parsed.options.items() if option != "mode"}
    known = persistent.workspace_of(name)
    if known is not None and "workspace" not in options:
        here = os.path.realpath(working_directory())
        if not is_within(here, known):
            raise UsageError(
                f"the kept sandbox {name!r} is of {known!r}",
                why="the current directory is not in there",
                fix="go there, name it with --workspace, or choose another name",
            )
        options["workspace"] = [known]
    policy, workspace, _ = sandbox_from(parsed.replace(options=options))
    return policy, None if workspace is None else os.path.realpath(workspace)


def row(change: Change) -> str:
    """Format a change on one line."""
    name = shown(change.path)
    if change.kind == "renamed" and change.old_path:
        name = f"{shown(change.old_path)} -> {name}"
    if change.type == "directory" or (change.type is None and change.old_type == "directory"):
        name += "/"
    if change.target is not None:
        name += f" -> {shown(change.target)}"
    return f"{LETTERS[change.kind]} {name}{f'  ({change.conflict})' if change.conflict else ''}"


def age(when: float) -> str:
    """Return the time since `when`, rounded: `5s`, `3d`."""
    seconds = max(0, int(time.time() - when))
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def human_size(count: int) -> str:
    """Format a number of bytes for people."""
    size = float(count)
    for unit in ("B", "K", "M", "G"):
        if size < 1024:
            return f"{size:.0f}{unit}" if size >= 10 or unit == "B" else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.1f}T"


def print_json(data: object) -> None:
    """Print data as JSON, with names unchanged."""
    import json

    print(json.dumps(data, indent=2))


def progress(what: str) -> tuple[Callable[[int, int], None], Callable[[], None]]:
    """Return functions for progress and for its end. On a terminal they draw a line, if it takes long."""
    began = last = time.monotonic()
    drawn = False

    def report(done: int, total: int) -> None:
        nonlocal last, drawn
        now = time.monotonic()
        if now - began > 0.5 and (now - last > 0.1 or done == total):
            last, drawn = now, True
            print(f"\r\x1b[K{what}: {done:,} of {total:,}", end="", file=sys.stderr, flush=True)

    def over() -> None:
        if drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    return (report if sys.stderr.isatty() else lambda done, total: None), over


BOLD, RED, GREEN, CYAN = 1, 31, 32, 36


class Paint:
    """Adds colours, on a terminal and unless NO_COLOR or TERM=dumb forbid it."""

    def __init__(self, *, on: bool | None = None) -> None:
        if on is None:
            on = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._on = on

    def __call__(self, text: str, code: int) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._on and code else text


def print_paged(lines: Iterable[str]) -> None:
    """Print lines, through $PAGER (default: less -R) if they do not fit on the terminal."""
    if not sys.stdout.isatty() or (command := _pager()) is None:
        for line in lines:
            print(line)
        return
    height = os.get_terminal_size(1).lines or 24
    waiting: list[str] = []
    source = iter(lines)
    for line in source:
        waiting.append(line)
        if len(waiting) >= height:
            _page(command, waiting, source)
            return
    for line in waiting:
        print(line)


def _pager() -> list[str] | None:
    import shlex
    import shutil

    chosen = os.environ.get("PAGER")
    try:
        command = shlex.split("less -R" if chosen is None else chosen)
    except ValueError:
        command = []
    if not command or command == ["cat"] or shutil.which(command[0]) is None:
        return None
    return command


def _page(command: list[str], first: list[str], rest: Iterable[str]) -> None:
    import signal
    import subprocess

    # Ctrl-C is for the pager, which has the terminal now.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        environment = {"LESS": "-R", **os.environ}  # without -R, `less` shows our colours as text
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as pager:
            _feed(pager.stdin, first, rest)
    finally:
        signal.signal(signal.SIGINT, before)


def _feed(pipe: IO[bytes] | None, *parts: Iterable[str]) -> None:
    if pipe is None:
        return
    try:
        for lines in parts:
            for line in lines:
                pipe.write(f"{line}\n".encode("utf-8", "backslashreplace"))
        pipe.close()
    except BrokenPipeError:
        pass  # the user closed the pager
