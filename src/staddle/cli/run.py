"""`staddle run`: run a command, a line of shell or a script, confined, with its own exit status."""

from __future__ import annotations

import os

from ..errors import CommandNotFound, LaunchFailed, StaddleError, UsageError
from .options import (
    KEEP,
    RUNNING,
    Option,
    Parsed,
    check_rules,
    command_from,
    help_rows,
    parse,
    policy_from,
    reworded,
    working_directory,
)
from .report import (
    attended,
    captured,
    denied_network,
    print_report,
    refuse,
    say_denied_network,
    say_gaps,
    say_violations,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..policy.plan import Plan
    from ..wrapping import WrappedCommand

_OPTIONS = (
    Option("command", "SCRIPT", "run this line of shell with bash", short="c"),
    KEEP,
    *reworded(
        RUNNING,
        mode="the workspace: readonly (default), bind (written directly), overlay (a throw-away layer)",
        disk="limit what the sandbox writes to its own layer, or none (--keep, --mode overlay)",
    ),
    Option("diff", "", "with --mode overlay: show the changes on standard error, not only list them"),
    Option("commit", "", "with --mode overlay: write the changes to the workspace if the status is 0"),
)

_HELP = """\
Run a command that can touch only what you allow.

usage: staddle run [options] -- COMMAND [ARGUMENTS]
       staddle run [options] -c 'SCRIPT' [ARGUMENTS]
       staddle run [options] FILE [ARGUMENTS]

Without options: the system, the current directory and the toolchains on your PATH can be
read, no file of the host can be written, the network and the rest of your home are hidden,
/tmp is private. Standard input, output and error are passed through. The exit status is the
command's; 124 is a timeout, 125 means that staddle could not run it (and prints the reason),
126 and 127 that the program is not executable or does not exist.

With --mode overlay the workspace is at /workspace and everything in it may be changed: in a layer
that is thrown away with the sandbox. The changes are listed on standard error; --commit writes them to
the workspace, all or none, unless `staddle commit` would refuse them (then the exit status is 125).

With --keep NAME the workspace is at /workspace and everything in it may be changed: in a layer
of its own, which stays for the next run of that NAME. `staddle diff`, `commit`, `discard`,
`snapshot` and `restore` work on it.

{options}

  staddle run --write . -- make test             the current directory may be written
  staddle run --read ~/data --allow api.example.com:443 -- python fetch.py
  staddle run --mode overlay -c 'make clean && make test'
  staddle run --keep fix -c 'sed -i s/teh/the/ README'; staddle diff fix; staddle commit fix
  staddle run --timeout 5m --output-cap 1M -- ./train.sh
  staddle run --in ID -- make                    in a sandbox of a server: `staddle run --in ID --help`
"""


def is_in_server(words: Sequence[str]) -> bool:
    """Whether `--in` is among our own options: before `--`, and before the first word that is no option."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, equals, _ = words[at].partition("=")
        if name == "--in":
            return True
        option = next((each for each in _OPTIONS if name in (f"--{each.name}", f"-{each.short}")), None)
        takes_value = name in ("--server", "--session", "--cwd") if option is None else bool(option.value)
        at += 2 if takes_value and not equals else 1
    return False


def main(words: Sequence[str]) -> int:
    """Parse the options, compile the plan, check the rules, and run."""
    if is_in_server(words):
        from .attach import run_in

        return run_in(words)
    parsed = parse(words, _OPTIONS, "run")
    if parsed.on("help"):
        print(_HELP.format(options=help_rows(_OPTIONS)), end="")
        return 0
    overlay = parsed.one("mode") == "overlay" and not parsed.on("keep")
    for name in ("diff", "commit"):
        if parsed.on(name) and not overlay:
            raise UsageError(
                f"--{name} needs --mode overlay",
                why="there is no layer that ends with the command",
                fix=f"with --keep NAME use `staddle {name} NAME` afterwards",
            )
    if parsed.one("disk") not in (None, "none") and not (
        parsed.on("keep") or overlay or parsed.on("best-effort")
    ):
        raise UsageError(
            "--disk needs a layer to limit",
            why="without one, what is written goes directly to the host",
            fix="add --mode overlay or --keep NAME, or leave --disk out",
        )
    if parsed.on("keep") or overlay:
        from .run_kept import run

        return run(parsed)
    from ..backends import begin_probe, doubt

    try:
        begin_probe(parsed.one("backend") or "auto")
        wrapped, plan = confined(parsed)
        command, _ = command_from(parsed)
    except CommandNotFound as error:
        return refuse(parsed, error, error.status)
    except StaddleError as error:
        return refuse(parsed, error, 125)
    say_gaps(wrapped.enforced)
    here = os.open(".", os.O_PATH | os.O_CLOEXEC)
    try:
        return (
            _captured(wrapped, plan, command)
            if parsed.on("json")
            else _attended(parsed, wrapped, plan, command)
        )
    except LaunchFailed:
        if not doubt(wrapped.backend):
            raise
    # Nothing was started, and the backend is now known not to work here: choose another one.
    os.fchdir(here)
    return main(words)


def confined(parsed: Parsed) -> tuple[WrappedCommand, Plan]:
    """Return the wrapped command and its plan, from the options. Nothing has run yet."""
    from ..launch.view import find_program
    from ..policy.compiler import compile
    from ..wrapping import prepare

    policy, workspace = policy_from(parsed)
    command, script = command_from(parsed)
    check_rules(policy, command, script)
    if script is not None:
        policy = policy.with_read(script)
    plan = compile(policy, cwd=_start(parsed, workspace), base=working_directory())
    find_program(plan, command[0])
    wrapped = prepare(
        command, plan, backend=parsed.one("backend") or "auto", best_effort=parsed.on("best-effort")
    )
    if (log := parsed.one("audit")) is not None:
        wrapped.audit_to(log)
    return wrapped, plan


def _start(parsed: Parsed, workspace: str | None) -> str | None:
    """Return the directory to start in. --workdir is relative to the workspace."""
    directory = parsed.one("workdir")
    if directory is None:
        return workspace
    path = os.path.join(workspace or "/", directory)
    if not os.path.isdir(path):
        raise UsageError(
            f"--workdir {directory!r} is not a directory",
            why=f"there is no {path!r}",
            fix="name a directory of the workspace, or an absolute path",
        )
    return path


def _attended(parsed: Parsed, wrapped: WrappedCommand, plan: Plan, command: list[str]) -> int:
    from ..launch.running import within_lifetime

    outcome = attended(
        wrapped,
        seconds=within_lifetime(plan.limits.timeout, plan.limits),
        cap=plan.limits.output if parsed.on("output-cap") else None,
    )
    say_violations(wrapped.violations())
    say_denied_network(plan, command, outcome.status)
    return outcome.status


def _captured(wrapped: WrappedCommand, plan: Plan, command: list[str]) -> int:
    report = captured(wrapped)
    report["why"] = report["why"] or denied_network(plan, command, report["exit_code"])
    return print_report(report, wrapped.enforced, wrapped.violations())
