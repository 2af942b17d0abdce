"""`staddle learn`: run a command with everything watched, and propose the smallest policy that it needs."""

from __future__ import annotations

import os
import sys

from ..display import counted, shown
from ..errors import UsageError
from .options import HELP, RUNNING, Option, Parsed, command_from, help_rows, parse, reworded, sandbox_from
from .report import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..events import Event
    from ..learn.proposal import Learned
    from ..policy import Policy

#: Options of `staddle run` that mean the same here.
_SHARED = (
    *("read", "write", "deny", "socket", "network", "allow", "timeout", "memory", "processes", "env"),
    *("pass-env", "environment", "workspace", "workdir", "mode", "policy"),
)
_OPTIONS = (
    Option(
        "output", "FILE", "write the policy to FILE, which does not exist yet (default: print it)", short="o"
    ),
    Option("update", "FILE", "add what this run needs to the policy in FILE"),
    Option("check", "", "then run again under the proposed policy; its exit status counts"),
    Option("refuse", "", "let the command do only what --policy, or the default, allows"),
    Option("ask", "", "ask on the terminal about each host (default: refuse; --network open: allow)"),
    Option("http", "", "inspect requests to the allowed hosts, and propose rules about them (needs --allow)"),
    Option("diff", "", "print the difference of two policy files, and run nothing"),
    Option("command", "SCRIPT", "run this line of shell with bash", short="c"),
    *reworded(
        (option for option in RUNNING if option.name in _SHARED),
        policy="start from this policy file: what it allows is not proposed again",
        network="deny (default), or open: let every host through, and propose those that were reached",
        mode="the workspace: overlay (default, a throw-away layer), bind (written directly), readonly",
        timeout="end it after this time: 90, 2m (default: none while learning)",
    ),
    HELP,
)

_HELP = """\
Run a command once with everything watched, and print the smallest policy that lets it run.

usage: staddle learn [options] -- COMMAND [ARGUMENTS]
       staddle learn [options] -c 'SCRIPT'
       staddle learn --diff BEFORE AFTER

The command may read what you may read, without keys, logins and sockets that give access to other
systems. What it writes in the workspace goes to a layer that is thrown away; nothing else can be written.
The network is refused, unless you choose --network open or --ask. Each line of the policy has a comment
that says what needed it. A line with NOT GRANTED is denied by default for a reason, and stays a comment.
The output of the command goes to standard error when the policy is printed. The exit status is the
command's; 125 means that staddle could not run it.

{options}

  staddle learn -- make test                        print the policy
  staddle learn -o ~/make.toml --check -- make test    write it, and run again under it
  staddle run --mode overlay --policy ~/make.toml -- make test
  staddle learn --network open -- pip install -r requirements.txt
  staddle learn --allow pypi.org --allow files.pythonhosted.org --http -- pip download requests
  staddle learn --update ~/make.toml -- make docs   add what another command needs
  staddle learn --diff old.toml new.toml
"""


def main(words: Sequence[str]) -> int:
    """Run, propose, write, and check."""
    parsed = parse(words, _OPTIONS, "learn")
    if parsed.on("help"):
        print(_HELP.format(options=help_rows(_OPTIONS)), end="")
        return 0
    if parsed.on("diff"):
        return _diff(parsed)
    if parsed.on("http") and parsed.on("refuse"):
        raise UsageError("--http and --refuse contradict each other", fix="leave one of them out")
    argv, script = command_from(parsed, "learn")
    before = _before(parsed)
    if parsed.on("update"):
        parsed = parsed.replace(options={**parsed.options, "policy": parsed.options["update"]})
    # Here --http is a switch; the policy's own option of this name has rules.
    others = {name: values for name, values in parsed.options.items() if name != "http"}
    policy, workspace, mode = sandbox_from(parsed.replace(options=others))
    mode = parsed.one("mode") or "overlay"
    if script is not None:
        policy = policy.with_read(script)
    _check_output(parsed, workspace)
    settings: dict[str, Any] = {"workspace": workspace, "mode": mode, "workdir": parsed.one("workdir")}
    learned, status = _run(argv, policy, settings, parsed, before=before)
    _write(parsed, learned)
    for warning in learned.warnings:
        say(warning.removeprefix("# "))
    if parsed.on("check"):
        checked, status = _run(argv, learned.policy, settings, parsed, refuse=True)
        passed = "passes" if not status else f"FAILS with the status {status}"
        say(f"check: the command {passed} under this policy")
        if status:
            _say_refused(checked)
    return status


def _run(
    argv: list[str],
    policy: Policy,
    settings: dict[str, Any],
    parsed: Parsed,
    *,
    before: str = "",
    refuse: bool = False,
) -> tuple[Learned, int]:
    from ..sandbox.sandbox import Sandbox

    prints = not (parsed.on("output") or parsed.on("update"))
    out = sys.stderr if prints else sys.stdout

    def passed_on(stream: Any) -> Any:
        return lambda text: (stream.write(text), stream.flush())

    watched: Any = "refuse" if refuse or parsed.on("refuse") else "http" if parsed.on("http") else True
    timed = refuse or any(parsed.on(each) for each in ("timeout", "policy", "update"))
    seconds = policy.limits.timeout if timed else None
    ask = _ask if parsed.on("ask") and not refuse else None
    with Sandbox(policy=policy, learn=watched, on_connect=ask, on_connect_timeout=300, **settings) as sandbox:
        stdin = None if refuse or sys.stdin.isatty() else sys.stdin.buffer
        result = sandbox.exec(
            argv, timeout=seconds, stdin=stdin, on_stdout=passed_on(out), on_stderr=passed_on(sys.stderr)
        )
        if result.why:
            say(result.why)
        return sandbox._learned(before), result.exit_code


def _ask(event: Event) -> bool:
    """Ask the person at the terminal about one destination."""
    try:
        with open("/dev/tty", "r+", buffering=1) as terminal:
            terminal.write(f"staddle: connect to {shown(event.what)}? [y/N] ")
            return terminal.readline().strip().lower() in ("y", "yes")
    except OSError:
        return False


def _before(parsed: Parsed) -> str:
    """Return the text of the policy file that the proposal adds to."""
    file = parsed.one("update")
    if file is None:
        file = parsed.one("policy")
        return "" if file is None or not os.path.isfile(file) else _text(file)
    for other in ("policy", "output"):
        if parsed.on(other):
            raise UsageError(f"--update and --{other} contradict each other", fix="leave one of them out")
    try:
        return _text(file)
    except OSError as error:
        raise UsageError(
            f"--update {file!r} cannot be read", why=error.strerror or "", fix="for a new file use -o FILE"
        ) from None


def _text(file: str) -> str:
    with open(file, encoding="utf-8", errors="replace") as text:
        return text.read(1 << 20)


def _check_output(parsed: Parsed, workspace: str | None) -> None:
    """Refuse, before anything runs, a file that exists or that no policy is read from."""
    file = parsed.one("output")
    if file is None:
        return
    path = os.path.realpath(file)
    if os.path.lexists(path):
        raise UsageError(
            f"{file!r} exists", why="it may be somebody's work", fix="use --update, or another name"
        )
    if workspace is not None and path.startswith(workspace.rstrip("/") + "/"):
        raise UsageError(
            f"{file!r} is in the workspace",
            why="a policy that an agent could change is never read",
            fix="name a file outside, such as ~/.config/staddle/NAME.toml",
        )


def _write(parsed: Parsed, learned: Learned) -> None:
    file = parsed.one("output") or parsed.one("update")
    if file is None:
        print(learned.text(), end="")
        sys.stdout.flush()
        return
    path = os.path.realpath(file)
    if parsed.on("output"):
        with open(path, "x", encoding="utf-8") as new:
            new.write(learned.text())
    else:
        beside = f"{path}.{os.getpid()}"
        try:
            with open(beside, "x", encoding="utf-8") as new:
                os.fchmod(new.fileno(), os.stat(path).st_mode & 0o7777)
                new.write(learned.text())
            os.replace(beside, path)
        except BaseException:
            if os.path.lexists(beside):
                os.unlink(beside)
            raise
    about = counted(len(learned.facts), "fact")
    say(f"{shown(file)}: written from {about} and {counted(learned.recording.calls, 'watched call')}")


def _say_refused(checked: Learned) -> None:
    wanted = [fact for fact in checked.facts if fact.state == "hidden" or fact in checked.refused]
    for fact in wanted[:10]:
        say(f"refused: {fact.use} of {shown(fact.path)} by {shown(fact.program)}")


def _diff(parsed: Parsed) -> int:
    from ..learn.policy_data import difference
    from ..policy import Policy

    if len(parsed.words) != 2:
        raise UsageError("--diff compares two policy files", fix="write staddle learn --diff BEFORE AFTER")
    before, after = (Policy.from_file(file, workspace=parsed.one("workspace")) for file in parsed.words)
    for line in difference(before, after):
        print(line)
    return 0
