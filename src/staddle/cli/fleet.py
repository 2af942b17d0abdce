"""`staddle fleet`: run commands in sandboxes on the nodes of a Ray cluster, and show open fleets."""

from __future__ import annotations

import json
import os
import sys

from ..display import shown
from ..errors import StaddleError, UsageError
from .kept import JSON, age, begin, print_json
from .options import HELP, RUNNING, Option, help_rows, parse, reworded, sandbox_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import IO, Any

    from ..fleet import TaskOutcome

_ADDRESS = Option("address", "HOST:PORT", "the cluster (default: $RAY_ADDRESS, or a Ray on this machine)")
_STATUS_OPTIONS = (_ADDRESS, JSON, HELP)
_LEFT_OUT = ("output-cap", "audit", "no-redact", "pass-env", "help", "json")
_RUN_OPTIONS = (
    _ADDRESS,
    Option("concurrency", "N", "run so many at a time (default: two for each CPU of the cluster)"),
    Option("gpus", "N", "reserve N GPUs of each node with Ray; each command has one for itself (default: 0)"),
    Option("retries", "N", "run a command again, at most N times, when its node is lost (default: 0)"),
    Option("unordered", "", "print results as they come, not in the order of the items"),
    *reworded(
        tuple(option for option in RUNNING if option.name not in _LEFT_OUT),
        timeout="of each command: 90, 2m, none (default: the policy's, 120)",
        mode="the workspace: overlay (default, changes are dropped) or readonly",
    ),
    JSON,
    HELP,
)
_HELP = """\
Run commands in sandboxes on the nodes of a Ray cluster. Needs: pip install 'staddle[ray]'

usage: staddle fleet run [options] -- COMMAND [ITEM...]   once for each item, which is in $ITEM
       staddle fleet status [--address HOST:PORT] [--json]

COMMAND is one word of shell text. Without items they are the lines of standard input. The workspace is
sent to each node once. Each command has a fresh sandbox. The exit status is 0 when all commands had 0,
1 when one had not, 125 when one was not run or its node was lost.

Options of run:
{options}

  staddle fleet run -- 'pytest -q "$ITEM"' tests/test_a.py tests/test_b.py
  ls seeds | staddle fleet run --address auto --concurrency 64 --json -- './simulate "$ITEM"'
"""


def verbs() -> dict[str, tuple[Option, ...]]:
    """Return the options of each of its commands."""
    return {"run": _RUN_OPTIONS, "status": _STATUS_OPTIONS}


def main(words: Sequence[str]) -> int:
    """Run commands, or show the status."""
    verb, *rest = words or ("--help",)
    if verb in ("--help", "-h"):
        print(_HELP.format(options=help_rows(_RUN_OPTIONS)), end="")
        return 0
    if verb == "status":
        return _status(rest)
    if verb == "run":
        return _run(rest)
    raise UsageError(f"staddle fleet does not understand {verb!r}", fix="write: fleet run, or fleet status")


def _status(words: Sequence[str]) -> int:
    parsed = begin(words, _STATUS_OPTIONS, "fleet status", _HELP)
    if parsed is None:
        return 0
    from ..fleet.cluster import survey

    found = survey(parsed.one("address"))
    if parsed.on("json"):
        print_json(found)
        return 0
    for node in found["nodes"]:
        state = "alive" if node["alive"] else "left"
        print(f"node {node['node'][:8]}  {state}  {node['cpus']:g} CPUs  {shown(node['address'])}")
    for keeper in found["keepers"]:
        counts = f"{keeper['open']} open, {keeper['warm']} warm, room for {keeper['capacity']}"
        done = f"{keeper['created']} created, {keeper['commands']} commands"
        since = age(keeper["began"])
        print(f"fleet {keeper['fleet']}  node {keeper['node'][:8]}  {counts}; {done} in {since}")
    if not found["keepers"]:
        print("no fleet is open on this cluster")
    return 0


def _run(words: Sequence[str]) -> int:
    parsed = parse(words, _RUN_OPTIONS, "fleet run")
    if parsed.on("help"):
        print(_HELP.format(options=help_rows(_RUN_OPTIONS)), end="")
        return 0
    if not parsed.words:
        raise UsageError("there is no command", fix="staddle fleet run -- 'COMMAND with $ITEM' ITEM...")
    command, *items = parsed.words
    options = {**parsed.options}
    options.setdefault("mode", ["overlay"])
    policy, workspace, mode = sandbox_from(parsed.replace(options=options))
    if mode == "bind":
        raise UsageError("--mode bind does not work in a fleet", fix="choose overlay or readonly")
    from ..fleet import Fleet

    # Ray prints its own messages to standard output. Redirect them, so that only command output is there.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    numbers = {name: _number(parsed.one(name), name) for name in ("concurrency", "retries", "gpus")}
    worst = 0
    with Fleet(
        parsed.one("address"), policy=policy, workspace=workspace, mode=mode, gpus=numbers["gpus"] or 0
    ) as fleet:
        outcomes = fleet.map(
            command,
            items or _lines(),
            concurrency=numbers["concurrency"],
            retries=numbers["retries"] or 0,
            ordered=not parsed.on("unordered"),
            progress=True,
            backend=parsed.one("backend"),
            best_effort=parsed.on("best-effort") or None,
        )
        for outcome in outcomes:
            worst = max(worst, _show(outcome, parsed.on("json"), out))
    return worst


def _number(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--{name} {text!r} is not a number", fix="write digits, as in 4")
    return int(text)


def _lines() -> Iterator[str]:
    for line in sys.stdin:
        yield line.rstrip("\n")


def _show(outcome: TaskOutcome, as_json: bool, out: IO[bytes]) -> int:
    """Print one outcome. Returns its exit status."""
    facts: dict[str, Any] = {"index": outcome.index, "item": outcome.item, "node": outcome.node}
    if outcome.error is not None:
        if not isinstance(outcome.error, StaddleError | OSError):
            raise outcome.error
        if as_json:
            _print_line(out, {**facts, "error": str(outcome.error)})
        else:
            print(f"staddle: {shown(str(outcome.item))}: {shown(str(outcome.error))}", file=sys.stderr)
        return 125
    result = outcome.value
    if as_json:
        _print_line(out, {**facts, "result": result.as_dict()})
    else:
        out.write(result.stdout_bytes)
        out.flush()
        sys.stderr.buffer.write(result.stderr_bytes)
        sys.stderr.flush()
        if not result.ok:
            print(f"staddle: {shown(str(outcome.item))}: ended with {result.exit_code}", file=sys.stderr)
    return 0 if result.ok else 1


def _print_line(out: IO[bytes], facts: dict[str, Any]) -> None:
    out.write(json.dumps(facts).encode() + b"\n")
    out.flush()
