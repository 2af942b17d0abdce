#!/usr/bin/env python3
"""Write the pages of docs/ that are made from the code: errors.md, system-calls.md and api*.md.

`make reference` runs it; tests/docs/test_reference.py fails when a page is not current.
"""

from __future__ import annotations

import enum
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import staddle  # noqa: E402
from staddle import errors  # noqa: E402
from staddle._value import Value  # noqa: E402
from staddle.linux.seccomp import rules as filter_rules  # noqa: E402

MADE = "<!-- Made from the code by scripts/reference.py: run `make reference` after a change. -->"

#: For each error: when it is raised, and what to do.
ADVICE = {
    "StaddleError": ("The base class of all errors.", "Catch it to handle every error of staddle."),
    "PolicyError": (
        "A value in a policy, a policy file or a glob is not valid.",
        "Correct the value that `what` names. Nothing was started.",
    ),
    "PathEscape": (
        "A path leaves its directory, or passes through a link that a sandbox could have made.",
        "Name the target itself, or replace the link by the file.",
    ),
    "PolicyNotEnforceable": (
        "The policy is valid, but this host or this backend cannot enforce it. `gaps` lists each part.",
        "Follow `fix`, choose another backend, or accept the gaps with `best_effort=True`.",
    ),
    "BackendError": ("The base class of errors about backends.", "See the classes below it."),
    "UnknownBackend": ("No backend has this name.", "Use a name from [backends](backends.md)."),
    "BackendUnavailable": (
        "The backend cannot confine a command on this host.",
        "Run `staddle doctor`; see [install](install.md#if-doctor-finds-no-backend).",
    ),
    "LandlockUnavailable": (
        "The kernel has no Landlock, or one that is too old.",
        "Use Linux 6.12 or newer, or another backend.",
    ),
    "LaunchFailed": (
        "A step of the confinement failed, so the command did not start.",
        "`why` names the step. Run `staddle doctor`.",
    ),
    "AuditFailed": (
        "A line of the audit log could not be written; the command was not started.",
        "Make room, or name a file in a directory that can be written.",
    ),
    "AlreadyWrapped": (
        "`wrap()` was given a wrapped command, or a wrapped command was started twice.",
        "Call `wrap()` once for each start.",
    ),
    "PathNotAllowed": (
        "A file tool was asked for a path that no rule allows. Nothing was changed.",
        "Add a glob to `writable_paths`, or use another path.",
    ),
    "CommandEnded": (
        "The base class for a command that was stopped. `result` has its output so far.",
        "See the classes below it.",
    ),
    "CommandTimeout": (
        "The command took longer than its timeout and was killed, with every process it started.",
        "Pass a larger `timeout=`, or `None`.",
    ),
    "CommandCancelled": ("The command was cancelled on request.", "Nothing: your program asked for it."),
    "CommandNotFound": (
        "The program does not exist inside, or the policy hides it. `status` is 126 or 127.",
        "Grant its directory with `read`, or install it inside.",
    ),
    "CommandRefused": (
        "A command rule refuses the program. Nothing was started.",
        "Show `reason` and `owner` to the agent.",
    ),
    "CommandNotUnderstood": (
        "The script is not valid bash, or too long to check against rules.",
        "Split it, or correct it.",
    ),
    "ExtraMissing": ("An optional package is not installed.", "Install the extra that `fix` names."),
    "CommandFailed": (
        "A command that was to succeed (`check=True`, `.check()`, `run_capture`) failed. "
        "`status`, `output` and `result` have the details.",
        "Read `result.stderr` and `result.reason`.",
    ),
    "InvalidCall": (
        "An argument is not valid: a NUL byte, a negative time, a value of the wrong type.",
        "Correct the argument.",
    ),
    "SessionError": ("The base class of errors about a sandbox and its shells.", "See the classes below it."),
    "SandboxClosed": (
        "The sandbox, session or pool was closed, also by `max_lifetime` or `idle`.",
        "Open another one.",
    ),
    "SandboxLost": (
        "The sandbox stopped without a request: it was killed, or the host is out of memory.",
        "Open another one; check the limits.",
    ),
    "SessionBusy": (
        "A callback of a running command calls the same session, which would wait forever.",
        "Use another session: `sb.session(name)`.",
    ),
    "UserUnavailable": (
        "`user=` names a user whose id the sandbox does not have.",
        "Run by an ordinary user, a sandbox has one id, for its user and its root; run by root, it has all.",
    ),
    "RootUnavailable": (
        '`user="root"` is not possible in this sandbox.',
        'Use the `namespaces` backend with `mode="overlay"`; see [packages](packages.md).',
    ),
    "WaitTimeout": (
        "`wait_for_text` or `wait_for_port` of a background process waited too long, or the process exited.",
        "Read `process.output()`; wait longer.",
    ),
    "PoolExhausted": (
        "No sandbox of the pool became free within `timeout`.",
        "Use a larger pool, or wait longer.",
    ),
    "WorkspaceError": (
        "A git worktree of `staddle jail` does not exist, or is in another state.",
        "Check with `staddle jail ls` and `jail status`.",
    ),
    "WorkspaceBusy": ("Another process uses the worktree.", "Wait for it, or stop it."),
    "LayerError": (
        "The changes of a sandbox cannot be stored, read or written.",
        "Follow `fix`; `STADDLE_LAYERS` names another directory.",
    ),
    "TooManyOpenFiles": (
        "The program that uses staddle has as many files open as it may (also a `LayerError`).",
        "Raise the limit (`ulimit -n`), or close files and sandboxes. The sandbox is not affected.",
    ),
    "ThreadUnavailable": (
        "The program that uses staddle has no room for a thread that the call needs.",
        "Raise the limits that it runs under (`ulimit -u`, `ulimit -v`).",
    ),
    "CommitRefused": (
        "Nothing was written. `conflicts` changed on the host; `held` needs a review.",
        "Review them, then pass `on_conflict=` or `allow_protected=True`, or commit other paths.",
    ),
    "CommitFailed": (
        "The host refused a step of a commit. Everything was restored.",
        "Remove the cause and retry.",
    ),
    "ArchiveRefused": ("A snapshot or tar file is damaged, not one, or malicious.", "Use the original file."),
    "BaseError": ("An imported base does not exist, or its name is taken.", "Run `staddle base ls`."),
    "FleetError": ("A fleet of machines cannot be used, or Ray failed.", "Read `why`; run `ray status`."),
    "FleetBusy": (
        "No node of a fleet has room for another sandbox in time, or too many requests wait.",
        "Close sandboxes, ask more slowly, or add nodes.",
    ),
    "FleetLost": (
        "The fleet is closed, or the head of its cluster does not answer.",
        "Start the cluster again, and open another `Fleet`.",
    ),
    "TransferFailed": (
        "A workspace or a snapshot did not arrive on another machine as it was sent.",
        "Send it again.",
    ),
    "GitError": ("The base class of errors about git.", "See the classes below it."),
    "GitRefused": (
        "Git was not started, because the repository's content could make it run a program.",
        "Remove what `why` names.",
    ),
    "GitFailed": ("Git exited with an error; `status` is its exit status.", "Read `why`."),
    "UsageError": ("The command line is not valid. The exit status is 125.", "See `staddle COMMAND --help`."),
}

#: The page of each error, for what `ADVICE` says in one sentence.
EXPLAINED = {
    "StaddleError": "troubleshooting.md",
    "PolicyError": "policy.md",
    "PathEscape": "paths.md#write-a-path",
    "PolicyNotEnforceable": "backends.md",
    "BackendError": "backends.md",
    "UnknownBackend": "backends.md",
    "BackendUnavailable": "install.md#if-doctor-finds-no-backend",
    "LandlockUnavailable": "backends.md#landlock",
    "LaunchFailed": "troubleshooting.md#staddle-does-not-start-the-command-exit-status-125",
    "AuditFailed": "audit.md",
    "AlreadyWrapped": "api.md#wrap",
    "PathNotAllowed": "environment.md#files",
    "CommandEnded": "environment.md#commands",
    "CommandTimeout": "limits.md",
    "CommandCancelled": "environment.md#commands",
    "CommandNotFound": "troubleshooting.md#the-program-does-not-work-inside",
    "CommandRefused": "command-rules.md",
    "CommandNotUnderstood": "command-rules.md#rules",
    "ExtraMissing": "dependencies.md#extras",
    "CommandFailed": "sessions.md#run-a-command",
    "InvalidCall": "api.md",
    "SessionError": "sessions.md",
    "SandboxClosed": "usage.md#pause-and-end-a-sandbox",
    "SandboxLost": "reliability.md#a-lost-sandbox",
    "SessionBusy": "sessions.md",
    "UserUnavailable": "users.md",
    "RootUnavailable": "users.md#what-root-inside-can-do",
    "WaitTimeout": "background.md",
    "PoolExhausted": "pools.md",
    "WorkspaceError": "jail-reference.md#states",
    "WorkspaceBusy": "jail-reference.md#states",
    "LayerError": "layers.md",
    "TooManyOpenFiles": "pools.md#open-many-sandboxes",
    "ThreadUnavailable": "reliability.md#something-is-full",
    "CommitRefused": "review.md#commit-or-discard-changes",
    "CommitFailed": "reliability.md#something-is-full",
    "ArchiveRefused": "snapshots.md#save-a-snapshot-to-a-file",
    "BaseError": "base.md#importing-images",
    "FleetError": "fleet.md#what-happens-when-something-dies",
    "FleetBusy": "fleet.md#capacity",
    "FleetLost": "fleet.md#what-happens-when-something-dies",
    "TransferFailed": "fleet.md#what-travels",
    "GitError": "jail-reference.md#git-on-a-tree-that-an-agent-has-touched",
    "GitRefused": "jail-reference.md#git-on-a-tree-that-an-agent-has-touched",
    "GitFailed": "jail-reference.md#git-on-a-tree-that-an-agent-has-touched",
    "UsageError": "cli.md",
}

#: Objects that the public names return: (module, class, how to get one).
RETURNED = (
    ("sandbox.session", "Session", '`sb.session("dev")`'),
    ("sandbox.stream", "Stream", "`sb.stream(...)`"),
    ("sandbox.stream", "Chunk", "each step of a stream"),
    ("sandbox.processes", "Process", "`sb.start(...)`"),
    ("sandbox.processes", "Job", "`sb.processes()`"),
    ("sandbox.terminal", "Terminal", "`sb.terminal()`"),
    ("sandbox.merging", "MergeConflict", "each conflict of a `Merge`"),
    ("sandbox.merging", "BestOf", "`sb.best_of(...)`"),
    ("sandbox.merging", "ForkAttempt", "each attempt of a `BestOf`"),
    ("sandbox.files", "Files", "`sb.files`"),
    ("sandbox.files", "FileInfo", "`sb.files.stat(...)`, `sb.files.list(...)`"),
    ("limits.usage", "Usage", "`result.usage`, `sb.usage`"),
    ("packages.installed", "Package", "`sb.packages()`"),
    ("diagnosis", "Diagnosis", "`doctor()`"),
    ("diagnosis", "BackendReport", "each backend of a `Diagnosis`"),
)
#: The public names: the page, its title, and the names on it. Errors have a page of their own.
TOPICS = {
    "api.md": (
        "Python API: run commands",
        (
            *("Sandbox", "AsyncSandbox", "Pool", "AsyncPool", "Result", "Reason"),
            *("Interpreter", "wrap", "WrappedCommand", "kept_sandboxes", "remove_kept"),
            *("connect", "connect_async", "default_policy", "doctor"),
        ),
    ),
    "api-policy.md": (
        "Python API: rules and reports",
        *[
            (
                "Policy",
                "Network",
                "HttpRule",
                "HttpLimit",
                "EgressSecret",
                "Limits",
                "Identity",
                "Secret",
                "Plan",
                "Enforcement",
                "Gap",
                "Event",
                "EgressRequest",
                "Change",
                "Review",
                "AsyncReview",
                "Snapshot",
                "HistoryPoint",
                "Merge",
            )
        ],
    ),
    "api-agents.md": (
        "Python API: tools and agents",
        *[
            (
                "ExecutionEnvironment",
                "LocalEnvironment",
                "CommandResult",
                "Workspace",
                "Task",
                "Jail",
                "RunOpts",
                "new_jail",
            )
        ],
    ),
}
#: Members that are for staddle itself.
INTERNAL = {
    "Snapshot": {"continue_in", "fitted_to", "having", "new_workspace", "shell_state", "tree"},
    "Terminal": {"end_fileno"},
    "Review": {"seen", "still"},
    "AsyncReview": {"seen", "still", "of"},
}


def first_line(thing: object) -> str:
    """The first paragraph of a docstring, on one line, fit for a table."""
    text = (inspect.getdoc(thing) or "").split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


def shown_default(value: Any) -> str:
    """A default as a reader would write it."""
    if isinstance(value, Value):
        return f"{type(value).__name__}(…)"
    text = repr(value)
    return "…" if len(text) > 24 or " at 0x" in text else text


def signature(function: Any, skip_first: bool) -> str:
    """The parameters, with defaults and without types."""
    parts: list[str] = []
    starred = False
    for index, parameter in enumerate(inspect.signature(function).parameters.values()):
        if (index == 0 and skip_first) or parameter.annotation == "Never":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        empty = parameter.default is parameter.empty
        parts.append(prefix + parameter.name + ("" if empty else f"={shown_default(parameter.default)}"))
    return f"({', '.join(parts)})"


def constructor(value: type) -> str:
    """How it is made: the fields of a value, the parameters of a class."""
    if issubclass(value, Value) and "__init__" not in vars(value):
        fields = [
            name + (f"={shown_default(value._defaults[name])}" if name in value._defaults else "")
            for name in value._fields
        ]
        return f"({', '.join(fields)})"
    return signature(value.__init__, True) if "__init__" in vars(value) else "()"


def members(value: type) -> list[tuple[str, str]]:
    """The public methods and properties of a class, its own and those of its bases here, in their order."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(value.__mro__):
        if not base.__module__.startswith("staddle") or base is Value:
            continue
        for name, item in vars(base).items():
            if name.startswith("_") or name in INTERNAL.get(value.__name__, ()):
                continue
            if isinstance(item, property):
                found[name] = (f"`{name}`", first_line(item))
            elif isinstance(item, classmethod | staticmethod):
                function = item.__func__
                spelled = signature(function, isinstance(item, classmethod))
                found[name] = (f"`{value.__name__}.{name}{spelled}`", first_line(function))
            elif inspect.isfunction(item):
                found[name] = (f"`{name}{signature(item, True)}`", first_line(item))
    return [row for row in found.values() if row[1]]


def section(name: str, thing: Any, how: str = "") -> list[str]:
    """One name: how it is called, what it is, and its members."""
    if inspect.isfunction(thing):
        return [f"## {name}", "", f"`{name}{signature(thing, False)}`", "", paragraphs(thing), ""]
    lines = [f"## {name}", ""]
    if how:
        lines += [f"From {how}.", ""]
    elif (
        not issubclass(thing, str)
        and not getattr(thing, "_is_protocol", False)
        and not inspect.isabstract(thing)
    ):
        lines += [f"`{name}{constructor(thing)}`", ""]
    lines += [paragraphs(thing), ""]
    if issubclass(thing, enum.Enum):
        lines += ["Values: " + ", ".join(f"`{value}`" for value in list(thing)) + ".", ""]
    elif how and issubclass(thing, Value):
        lines += ["Fields: " + ", ".join(f"`{field}`" for field in thing._fields) + ".", ""]
    rows = [] if issubclass(thing, str) else members(thing)
    if name == "AsyncSandbox":
        return [*lines, "It has the methods of `Sandbox`, awaited.", ""]
    if rows:
        lines += ["| member | |", "| --- | --- |", *(f"| {left} | {right} |" for left, right in rows), ""]
    return lines


def paragraphs(thing: object) -> str:
    """A docstring, each paragraph on one line."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(thing) or "").split("\n\n"))


def module(name: str) -> ModuleType:
    """A module of staddle."""
    return __import__(f"staddle.{name}", fromlist=["_"])


INTRODUCTION = """\
Every public name of `staddle`: [run commands](api.md), [rules and reports](api-policy.md),
[tools and agents](api-agents.md). What their calls return is in [objects](api-objects.md), the errors in
[errors](errors.md). The modules `staddle.errors`, `staddle.display`, `staddle.environment` and
`staddle.testing` are public as well.
Everything else may change without notice.
"""


def api(page: str) -> str:
    """One page of public names."""
    title, names = TOPICS[page]
    lines = [f"# {title}", "", MADE, "", INTRODUCTION]
    for name in names:
        lines += section(name, getattr(staddle, name))
    return "\n".join(lines).rstrip() + "\n"


def api_objects() -> str:
    """docs/api-objects.md: what the public names return."""
    lines = [
        *("# Python API: objects", "", MADE, ""),
        *("Objects that the calls in [the API](api.md) return. Their classes are not imported by users.", ""),
    ]
    for where, name, how in RETURNED:
        lines += section(name, getattr(module(where), name), how)
    return "\n".join(lines).rstrip() + "\n"


def error_classes() -> list[type]:
    """Every error class, in the order of errors.py."""
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    return list(dict.fromkeys(kind for kind in kinds if issubclass(kind, errors.StaddleError)))


def tree(kind: type, depth: int = 0) -> list[str]:
    """A class and those below it, indented."""
    below = [other for other in error_classes() if other.__bases__[0] is kind]
    return ["    " * depth + kind.__name__, *(line for other in below for line in tree(other, depth + 1))]


def attributes(kind: type) -> list[str]:
    """What an instance has beyond what, why and fix."""
    found = [name for name in inspect.signature(kind).parameters if name not in ("what", "why", "fix")]
    return [f"`{name}`" for name in found]


ERRORS_ARE = """\
Every error has `what` happened, `why`, and a `fix`, as attributes and as one sentence in `str(error)`; `why`
and `fix` can be empty. A command that fails is a result, not an exception. The classes are in
`staddle.errors`; `StaddleError` and `PolicyNotEnforceable` are also in `staddle`. The `staddle` command
prints
the sentence and exits with 125 ([exit status](cli.md#exit-status)). [Troubleshooting](troubleshooting.md)
lists common messages.
"""


def errors_page() -> str:
    """docs/errors.md: the tree, and a row for each class."""
    lines = [
        *("# Errors", "", MADE, ""),
        ERRORS_ARE,
        *("```text", *tree(errors.StaddleError), "```", ""),
        *("| error | raised when | what to do | page |", "| --- | --- | --- | --- |"),
    ]
    for kind in error_classes():
        when, do = ADVICE[kind.__name__]
        also = [
            base.__name__
            for base in kind.__bases__[:]
            if not issubclass(base, errors.StaddleError) and base is not Exception
        ]
        notes = [f"also a `{base}`" for base in also]
        if (found := attributes(kind)) and kind is not errors.StaddleError:
            notes.append("attributes " + ", ".join(found))
        page = EXPLAINED[kind.__name__]
        place = page.partition("#")[0].removesuffix(".md")
        more = f" ({'; '.join(notes)})" if notes else ""
        lines.append(f"| `{kind.__name__}` | {when}{more} | {do} | [{place}]({page}) |")
    return "\n".join(lines) + "\n"


CALLS_ARE = """\
The filter refuses these system calls, each for the reason beside it. It is a second line: namespaces or
Landlock around the command are the boundary, and the filter removes calls that they leave open or that
programs do not need. `staddle explain --verbose` lists the rules of one run.
[Security](security.md#the-system-call-filter) names the programs that fail because of it.

`ENOSYS` is the answer where libraries fall back to another call, `EPERM` where the kernel itself gives that
answer without the right. Every call of another architecture kills the process. A number that the table does
not contain gets `ENOSYS`.
"""
#: Headings of the page of system calls, and the groups of rules.py below each.
CALLS = (
    ("Mounts and namespaces", "On every backend with a filter.", ("MOUNTS_AND_NAMESPACES",)),
    ("Devices", "On every backend with a filter.", ("DEVICES_AND_WHITEOUTS",)),
    ("Surface of the kernel", "On every backend with a filter.", ("KERNEL_SURFACE",)),
    ("Other processes", "On every backend with a filter.", ("OTHER_PROCESSES", "PID_1")),
    ("The process itself", "On every backend with a filter.", ("SELF_MODIFICATION",)),
    ("The terminal", "On every backend with a filter.", ("TERMINAL",)),
    (
        "Sockets",
        "On `namespaces`, `bwrap`, `systemd`, and `landlock` with an open network.",
        ("ALL_SOCKETS", "PAIRS"),
    ),
    ("PID 1 of the sandbox", "On `namespaces`, `bwrap` and `systemd`.", ("PID_1_LIMITS",)),
    ("Set-user-ID files", "Where the policy lets a directory of the host be written.", ("NO_SETUID_FILES",)),
    ("Processes of the host", "On `landlock`, which has no namespaces.", ("HOST_PROCESSES", "NO_SYSTEM_V")),
    (
        "Sockets on `landlock`",
        "A supervisor decides and connects in the command's place.",
        ("SUPERVISED_UNIX_SOCKETS",),
    ),
    ("Sockets on `landlock` with an allow list", "In place of the sockets above.", ("TCP_SOCKETS",)),
    ("Sockets on `landlock` without a network", "In place of the sockets above.", ("NO_NETWORK_SOCKETS",)),
)


def system_calls() -> str:
    """docs/system-calls.md: every filtered system call with its reason."""
    lines = ["# Filtered system calls", "", MADE, "", CALLS_ARE]
    for heading, where, groups in CALLS:
        lines += [
            f"## {heading}",
            "",
            where,
            "",
            "| system call | refused if | answer | reason |",
            "| --- | --- | --- | --- |",
        ]
        for rule in (rule for group in groups for rule in getattr(filter_rules, group)):
            calls = ", ".join(f"`{name}`" for name in rule.calls)
            condition = " and ".join(check.text() for check in rule.checks) or "always"
            cells = (calls, condition, rule.answer.text, rule.why)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def pages() -> dict[str, str]:
    """Every page by its name in docs/."""
    made = {
        "errors.md": errors_page(),
        "system-calls.md": system_calls(),
        "api-objects.md": api_objects(),
        **{page: api(page) for page in TOPICS},
    }
    return {name: re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE) for name, text in made.items()}


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        (ROOT / "docs" / name).write_text(text)


if __name__ == "__main__":
    main()
