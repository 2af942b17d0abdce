"""`staddle jail`: workspaces for coding agents, from a repository to a reviewed branch."""

from __future__ import annotations

import os
import sys
import time

from ..display import shown, shown_block
from ..errors import CommitRefused, UsageError
from ..jail.record import claimed_by, is_claimed, last_line, output_path
from ..jail.task import Task
from ..jail.workspace import Workspace, refuse_held
from ..policy.limits import parse_duration
from .commit import ALLOW, HOW_TO_ALLOW, refusal
from .jail_options import AUTHOR, PROMPT_FILE, prompt_of, with_defaults
from .kept import LETTERS, print_paged
from .options import HELP, Option, Parsed, help_rows, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..jail.review import PlantedFile, WorkspaceReview

_JSON = Option("json", "", "the same as JSON")

RETENTION_OPTIONS = (
    Option("published", "TIME", "keep published ones this long: 24h (default), 3d, never"),
    Option("failed", "TIME", "keep failed ones this long (default: 72h)"),
    Option("stopped", "TIME", "also remove stopped ones after this long (default: never)"),
    Option("prepared", "TIME", "also remove unused ones after this long (default: never)"),
)
_HELP = """\
Let a coding agent work on a git worktree of its own, with your home hidden, and review what it did.

usage: staddle jail COMMAND [options] ...

{commands}

WS is a workspace: its name, the start of it, its branch, its path, or its reference.

  staddle jail create .                                          prints the name of a new one
  staddle jail run WS --agent claude --prompt 'fix the tests' --network allow --timeout 1h
  staddle jail run WS -- make test
  staddle jail diff WS                                           then commit, publish, rm

`staddle jail COMMAND --help` lists the options of each. Those of run, shell, attach and reap, and --author,
can be in a file: $STADDLE_JAIL_CONFIG, else ~/.config/staddle/jail.toml.
"""


def main(words: Sequence[str]) -> int:
    """Find the command, parse its options before and after the workspace, and run it."""
    name = words[0] if words else "--help"
    if name in ("--help", "-h", "help"):
        forms = {name: row[:2] for name, row in _COMMANDS.items()}
        rows = [forms.pop("create"), *_INSIDE.values(), *forms.values()]
        print(_HELP.format(commands="\n".join(f"  {form:<18} {text}" for form, text in rows)), end="")
        return 0 if words else 125
    if name in _INSIDE:
        return _go_in(name, words[1:])
    if name not in _COMMANDS:
        known = ", ".join((*_INSIDE, *_COMMANDS))
        raise UsageError(f"staddle jail has no command {name!r}", fix=f"choose {known}")
    form, text, options, function = _COMMANDS[name]
    parsed = _parsed(words[1:], options, f"jail {name}")
    if parsed.on("help"):
        print(f"{text[0].upper()}{text[1:]}.\n\nusage: staddle jail {form}\n\n{help_rows(options)}")
        return 0
    return function(_configured(parsed, options) if name in ("commit", "reap") else parsed)


def verbs() -> dict[str, tuple[Option, ...]]:
    """Return the options of each of its commands."""
    from . import jail_run

    inside = {
        "run": jail_run.RUN_OPTIONS,
        "shell": jail_run.SHELL_OPTIONS,
        "attach": jail_run.ATTACH_OPTIONS,
    }
    return {**inside, **{name: tuple(row[2]) for name, row in _COMMANDS.items()}}


def _go_in(name: str, words: Sequence[str]) -> int:
    from . import jail_run

    options, go = {
        "run": (jail_run.RUN_OPTIONS, jail_run.run),
        "shell": (jail_run.SHELL_OPTIONS, jail_run.shell),
        "attach": (jail_run.ATTACH_OPTIONS, jail_run.attach),
    }[name]
    parsed = _parsed(words, options, f"jail {name}")
    if parsed.on("help"):
        return jail_run.print_help(name)
    if not parsed.words:
        raise UsageError("no workspace is named", fix="`staddle jail ls` lists them")
    parsed = _configured(parsed, options)
    return go(Workspace.find(parsed.words[0]), parsed.replace(words=parsed.words[1:]))


def _configured(parsed: Parsed, options: Sequence[Option]) -> Parsed:
    from .jail_run import RUN_OPTIONS

    tables = {"": RUN_OPTIONS, "reap": RETENTION_OPTIONS}
    return with_defaults(parsed, options, tables, "reap" if options is _COMMANDS["reap"][2] else "")


def _parsed(words: Sequence[str], options: Sequence[Option], command: str) -> Parsed:
    """Parse options before and after the first word, but not after `--`."""
    first = parse(words, options, command)
    if first.dashed or not first.words:
        return first
    rest = parse(first.words[1:], options, command)
    many = {option.name for option in options if option.many}
    both = {**first.options}
    for name, values in rest.options.items():
        if name in both and name not in many:
            raise UsageError(
                f"--{name} is given twice", why="only one value can apply", fix="leave one of them out"
            )
        both[name] = [*both.get(name, ()), *values]
    return Parsed(both, (first.words[0], *rest.words), rest.dashed)


def _one(parsed: Parsed) -> Workspace:
    if len(parsed.words) != 1:
        raise UsageError("name one workspace", fix="`staddle jail ls` lists them")
    return Workspace.find(parsed.words[0])


def _create(parsed: Parsed) -> int:
    if len(parsed.words) != 1:
        raise UsageError("name one repository", fix="staddle jail create .")
    said = {name: parsed.one(name) or "" for name in ("reference", "title", "session")}
    task = Task(repository=parsed.one("for") or "", prompt=prompt_of(parsed) or "", **said)
    given = None if task == Task() else task
    made = Workspace.create(parsed.words[0], parsed.one("branch"), parsed.one("base") or "HEAD", task=given)
    if parsed.on("json"):
        _print_json(_data(made))
    else:
        print(made.name)
    return 0


def _list(parsed: Parsed) -> int:
    if parsed.words:
        raise UsageError(f"staddle jail ls takes no argument {parsed.words[0]!r}", fix="leave it out")
    found = Workspace.list()
    if parsed.on("json"):
        _print_json([_data(item) for item in found])
        return 0
    rows = [
        (item.name, item.status, _ago(item.record.changed), shown(item.branch), shown(item.repository))
        for item in found
    ]
    _print_table([("NAME", "STATE", "SINCE", "BRANCH", "REPOSITORY"), *rows])
    for item in found:
        if (pid := claimed_by(item.directory)) is not None and item.status == "running":
            print(f"\n{item.name} is process {pid}: {shown(last_line(item.directory))[:200]}".rstrip(": "))
    return 0


def _watch(parsed: Parsed) -> int:
    """Follow the output of a run to its end."""
    workspace = _one(parsed)
    place, is_seen = workspace.directory, sys.stdout.isatty()
    try:
        file = open(output_path(place), "rb")  # noqa: SIM115 - exchanged below
    except FileNotFoundError:
        why = "its run was started without --watch" if is_claimed(place) else "nothing runs in it"
        raise UsageError(
            f"the output of {workspace.name} cannot be followed", why=why, fix="staddle jail run WS --watch …"
        ) from None
    rest = b""
    while True:
        is_over = not is_claimed(place)  # before reading: what comes later is not lost
        if data := file.read(1 << 16):
            whole, newline, rest = (rest + data).rpartition(b"\n") if is_seen else (data, b"", b"")
            text = whole + newline
            # What an agent prints could move the cursor of a terminal.
            sys.stdout.buffer.write(shown_block(text).encode() if is_seen else text)
            sys.stdout.flush()
            continue
        try:
            if os.stat(output_path(place)).st_ino != os.fstat(file.fileno()).st_ino:
                file.close()
                file = open(output_path(place), "rb")  # noqa: SIM115
                continue
        except FileNotFoundError:
            pass  # it is being exchanged, or the workspace was removed
        if is_over:
            rest += file.read()  # what came since
            file.close()
            sys.stdout.buffer.write(shown_block(rest).encode() if is_seen else rest)
            return 0
        time.sleep(0.1)


def _status(parsed: Parsed) -> int:
    workspace = _one(parsed)
    changed, planted, log = workspace.changed_paths(), workspace.inspect(), workspace.log()
    look = workspace.worth_a_look()
    if parsed.on("json"):
        facts = {
            **_data(workspace),
            "publishable": workspace.publishable(),
            "commits": [{"commit": commit, "subject": subject} for commit, subject in log],
            "uncommitted": list(changed),
            "worth_a_look": [item.as_dict() for item in look],
            "planted": [item.as_dict() for item in planted],
            "journal": [{"at": entry.at, "what": entry.what, **entry.facts} for entry in workspace.journal()],
        }
        _print_json(facts)
        return 0
    _print_table([(name, shown(str(value))) for name, value in _facts(workspace).items()])
    for heading, rows in (
        ("commits", [f"{commit[:12]} {shown(subject)}" for commit, subject in log]),
        ("uncommitted", [shown(path) for path in changed]),
        ("easy to read past", [_told(item) for item in look]),
        ("would be run or obeyed by your git, editor or shell", [_told(item) for item in planted]),
        ("journal", [_line(entry.at, entry.what, entry.facts) for entry in workspace.journal()[-10:]]),
    ):
        print(f"\n{heading}: {'none' if not rows else ''}".rstrip())
        for row in rows:
            print(f"  {row}")
    return 0


def _diff(parsed: Parsed) -> int:
    workspace = _one(parsed)
    review = None if parsed.on("committed") else workspace.review()
    found = workspace.diff(uncommitted=review or False, stat=parsed.on("stat"))
    if sys.stdout.isatty():
        print(shown_block(found), end="")  # an agent's text could move the cursor
    else:
        sys.stdout.buffer.write(found)  # like git, for `git apply`
    if review and review.changed:
        sys.stdout.flush()
        command = f"staddle jail commit {workspace.name} --review {review.digest} -m TEXT"
        print(f"staddle: to commit exactly this: {command}", file=sys.stderr)
    return 0


def _commit(parsed: Parsed) -> int:
    workspace = _one(parsed)
    message = parsed.one("message")
    if not message:
        raise UsageError("--message is missing", fix="describe what was done: --message TEXT")
    allow, allow_protected = parsed.many("allow"), parsed.on("allow-protected")
    try:
        with workspace.claim():
            review = workspace.review(parsed.one("review"))
            refuse_held(review.held, allow, allow_protected)
            asks = sys.stdin.isatty() and sys.stdout.isatty()
            if asks and review.changed and not (parsed.on("yes") or parsed.on("review")):
                print_paged(_rows(review))
                if not _agreed(review, workspace.branch):
                    print("nothing was done")
                    return 1
            commit = workspace.commit_all(
                message,
                author=parsed.one("author"),
                allow=allow,
                allow_protected=allow_protected,
                review=review,
            )
            left = workspace.changed_paths() if asks or parsed.on("review") else ()
    except CommitRefused as refused:
        raise refusal(refused, f"see `staddle jail diff {workspace.name}`; {HOW_TO_ALLOW}") from None
    print(commit if commit else "nothing to commit")
    if left:
        names = ", ".join(shown(path) for path in left[:5]) + (", …" if len(left) > 5 else "")
        print(f"staddle: changed since it was shown, and not committed: {names}", file=sys.stderr)
    return 0


def _rows(review: WorkspaceReview) -> list[str]:
    changed = [f"{LETTERS[item.kind]} {shown(item.path)}" for item in review.changed]
    return [*changed, *(f"! {shown(item.path)}: {shown(item.why)}" for item in review.held)]


def _agreed(review: WorkspaceReview, branch: str) -> bool:
    count = len(review.changed)
    what = "this change" if count == 1 else f"these {count:,} changes"
    print(f"Commit {what} to {shown(branch)}? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _publish(parsed: Parsed) -> int:
    workspace = _one(parsed)
    tip = workspace.tip()
    planted = (*workspace.worth_a_look(tip), *workspace.inspect())
    workspace.publish(parsed.one("remote"), commit=tip)
    for item in planted:
        print(f"staddle: review {_told(item)}", file=sys.stderr)
    print(f"{shown(workspace.branch)} at {tip}")
    return 0


def _path(parsed: Parsed) -> int:
    sys.stdout.buffer.write(os.fsencode(_one(parsed).path) + b"\n")
    return 0


def _cd(parsed: Parsed) -> int:
    """Print a line for the user's shell, and on standard error the files that would run commands there."""
    import shlex

    workspace = _one(parsed)
    for item in workspace.inspect():
        print(f"staddle: review {_told(item)}", file=sys.stderr)
    sys.stdout.buffer.write(b"cd -- " + os.fsencode(shlex.quote(workspace.path)) + b"\n")
    return 0


def _remove(parsed: Parsed) -> int:
    if not parsed.words:
        raise UsageError("no workspace is named", fix="`staddle jail ls` lists them")
    for workspace in [Workspace.find(word) for word in parsed.words]:
        workspace.remove(force=parsed.on("force"))
    return 0


def _reap(parsed: Parsed) -> int:
    from ..jail.workspace import RETENTION, reap

    if parsed.words:
        raise UsageError(f"staddle jail reap takes no argument {parsed.words[0]!r}", fix="leave it out")
    retention = dict(RETENTION)
    for state in (option.name for option in RETENTION_OPTIONS):
        given = parsed.one(state)
        if given == "never":
            retention.pop(state, None)
        elif given is not None:
            retention[state] = parse_duration(given)
    for path in reap(retention, dry_run=parsed.on("dry-run")):
        print(shown(path))
    return 0


def _agents(parsed: Parsed) -> int:
    from ..jail.agents import AGENTS

    if parsed.on("json"):
        _print_json([agent.as_dict() for agent in AGENTS.values()])
        return 0
    rows = [
        (agent.name, agent.key, " ".join(agent.write), " ".join(agent.read) or "-")
        for agent in AGENTS.values()
    ]
    _print_table([("NAME", "KEY", "MAY WRITE", "MAY READ"), *rows])
    return 0


def _facts(workspace: Workspace) -> dict[str, object]:
    record = workspace.record
    task = [(name.replace("repository", "for"), said) for name, said in workspace.task.as_dict().items()]
    return {
        "name": workspace.name,
        "state": workspace.status,
        "since": _ago(record.changed),
        "branch": workspace.branch,
        "base": workspace.base,
        "tree": workspace.path,
        "repository": workspace.repository,
        **{name: said for name, said in task if said},
    }


def _data(workspace: Workspace) -> dict[str, object]:
    """Return the facts for a program, with timestamps instead of ages."""
    facts, record = _facts(workspace), workspace.record
    for name in ("since", "for", *Task._fields[1:]):
        facts.pop(name, None)
    facts["pid"], facts["last_line"] = claimed_by(workspace.directory), last_line(workspace.directory)
    return {**facts, "task": workspace.task.as_dict(), "created": record.created, "changed": record.changed}


def _told(item: PlantedFile) -> str:
    return f"{shown(item.path)}: {shown(item.what)}"


def _line(at: float, what: str, facts: dict[str, object]) -> str:
    said = " ".join(f"{name}={value!r}" for name, value in facts.items() if value not in (None, "", []))
    return shown(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))} {what} {said}")


def _ago(moment: float) -> str:
    seconds = max(0, int(time.time() - moment))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_json(data: object) -> None:
    import json

    print(json.dumps(data, indent=2))


if TYPE_CHECKING:
    _Row = tuple[str, str, tuple[Option, ...], Callable[[Parsed], int]]
#: Commands that run inside a workspace; jail_run.py implements them.
_INSIDE = {
    "run": ("run WS -- COMMAND", "run a command or an agent in it, confined"),
    "shell": ("shell WS", "work in it yourself, confined as an agent would be"),
    "attach": ("attach WS", "continue its agent's conversation on your terminal, confined"),
}
#: name: (form, description, options, function).
_COMMANDS: dict[str, _Row] = {
    "create": (
        "create REPO",
        "make a workspace: a worktree of REPO on a branch of its own",
        (
            Option("branch", "NAME", "the new branch (default: staddle/<name>)"),
            Option("base", "REVISION", "the revision to start from (default: HEAD)"),
            Option("reference", "REF", "the issue or ticket it is for; one workspace at a time has it"),
            Option("for", "OWNER/NAME", "the repository that REF belongs to (default: the path of REPO)"),
            Option("title", "TEXT", "what the work is called"),
            Option("prompt", "TEXT", "what the agent will be asked, for `jail run --agent NAME`"),
            PROMPT_FILE,
            Option("session", "ID", "the id of the agent's first conversation, where it takes one"),
            _JSON,
            HELP,
        ),
        _create,
    ),
    "ls": ("ls", "list workspaces", (_JSON, HELP), _list),
    "watch": ("watch WS", "follow the output of a run that was started with --watch", (HELP,), _watch),
    "status": (
        "status WS",
        "show commits, uncommitted changes, files that your programs would obey, events",
        (_JSON, HELP),
        _status,
    ),
    "diff": (
        "diff WS",
        "show what changed since its base, uncommitted changes included",
        (
            Option("committed", "", "leave out what is not committed"),
            Option("stat", "", "only how much"),
            HELP,
        ),
        _diff,
    ),
    "commit": (
        "commit WS",
        "commit the files of the tree; runs no hook and no filter",
        (
            Option("message", "TEXT", "what was done", short="m"),
            Option("review", "DIGEST", "commit exactly what `jail diff` showed with this digest"),
            Option("yes", "", "do not ask on a terminal", short="y"),
            *ALLOW,
            AUTHOR,
            HELP,
        ),
        _commit,
    ),
    "publish": (
        "publish WS",
        "record that you reviewed its branch; no command runs in it afterwards",
        (Option("remote", "REMOTE", "push the branch there first: a remote's name or an address"), HELP),
        _publish,
    ),
    "path": ("path WS", "print where its tree is", (HELP,), _path),
    "cd": ("cd WS", 'print the line that enters it: eval "$(staddle jail cd WS)"', (HELP,), _cd),
    "rm": (
        "rm WS...",
        "remove it; the branch stays",
        (Option("force", "", "also with uncommitted changes"), HELP),
        _remove,
    ),
    "reap": (
        "reap",
        "remove what was published a day ago, or failed three days ago",
        (
            *RETENTION_OPTIONS,
            Option("dry-run", "", "only print which"),
            HELP,
        ),
        _reap,
    ),
    "agents": ("agents", "list the coding agents that --agent knows", (_JSON, HELP), _agents),
}
