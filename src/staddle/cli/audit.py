"""`staddle audit`: print selected lines of an audit log, and check whether any is missing."""

from __future__ import annotations

import os
import sys
import time

from ..display import shown
from ..errors import StaddleError, UsageError
from ..observe.audit import KINDS, AuditLine, AuditProblem, read
from ..policy.limits import parse_duration
from .kept import JSON, begin, print_json
from .options import HELP, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .options import Parsed

_OPTIONS = (
    Option("what", "KIND", "only lines of this kind: command, result, refused, …", many=True),
    Option("log", "NAME", "only lines of this log, by the beginning of its name"),
    Option("failed", "", "only results of commands that did not succeed"),
    Option("grep", "TEXT", "only lines in which this text stands, whatever its case"),
    Option("since", "TIME", "only lines of the last TIME, as 10m or 2h"),
    Option("check", "", "print no lines, only what is missing, changed or broken"),
    Option("last", "", "print only the hash of each log's last line, to keep it elsewhere"),
    Option("expect", "HASH", "a line with this hash, kept from --last, must be there", many=True),
    Option("follow", "", "continue with lines as they are written, until Ctrl-C", short="f"),
    JSON,
    HELP,
)
_HELP = """\
Read an audit log, and see whether it is whole.

usage: staddle audit FILE [options]

A log is written by Sandbox(audit=FILE), by `staddle run --audit FILE`, and by jails and
environments: one JSON line for each command, result, refusal and change of state. Every line has a
number and the hash of the line before it, so a missing or changed line shows. The exit status is 1
when something is missing, changed or broken. Whoever can write the file can also write new lines
with right hashes. That shows only with --expect, and a hash that was kept where they cannot write.

{options}

  staddle audit audit.jsonl --failed            the commands that did not succeed
  staddle audit audit.jsonl --what refused      what was refused
  staddle audit audit.jsonl --check             whether every line is there, and as it was written
  staddle audit audit.jsonl --last              the hashes to keep elsewhere
"""
#: Seconds between two checks of a followed file.
_POLL = 0.2


def main(words: Sequence[str]) -> int:
    """Print the selected lines."""
    parsed = begin(words, _OPTIONS, "audit", _HELP)
    if parsed is None:
        return 0
    if len(parsed.words) != 1:
        raise UsageError(
            "no audit log is named" if not parsed.words else "one audit log at a time",
            fix="write: staddle audit FILE",
        )
    if parsed.on("follow") and parsed.on("json"):
        raise UsageError(
            "--follow and --json do not go together", fix="the file itself is JSON, line by line"
        )
    wanted = _filter(parsed)
    path = parsed.words[0]
    try:
        file = sys.stdin.buffer if path == "-" else open(path, "rb")  # noqa: SIM115 - open until exit
    except OSError as error:
        raise StaddleError(
            f"{path!r} cannot be read", why=error.strerror or str(error), fix="name a file that you can read"
        ) from error
    whole = True
    kept: list[object] = []
    last: dict[str, AuditLine] = {}
    expected = set(parsed.many("expect"))
    is_quiet = parsed.on("check") or parsed.on("last")
    for found in read(_followed(file) if parsed.on("follow") else file):
        if isinstance(found, AuditProblem):
            whole = False
            print(f"staddle: {shown(path)}:{found.line}: {shown(found.why)}", file=sys.stderr)
            continue
        last[found.log] = found
        expected.discard(found.hash)
        if not is_quiet and wanted(found):
            if parsed.on("json"):
                kept.append(found.as_dict())
            else:
                print(_shown_line(found), flush=parsed.on("follow"))
    for missing in sorted(expected):
        print(f"staddle: {shown(path)}: no line has the hash {shown(missing)}", file=sys.stderr)
    if parsed.on("last"):
        kept = [{"log": each.log, "n": each.number, "hash": each.hash} for each in last.values()]
        if not parsed.on("json"):
            print(
                "".join(f"{each.hash}  {shown(each.log)} {each.number}\n" for each in last.values()), end=""
            )
    if parsed.on("json"):
        print_json(kept)
    return 0 if whole and not expected else 1


def _filter(parsed: Parsed) -> Callable[[AuditLine], bool]:
    kinds, log, text = frozenset(parsed.many("what")), parsed.one("log") or "", parsed.one("grep")
    unknown = sorted(kinds - set(KINDS))
    if unknown:
        raise UsageError(f"no line is of the kind {unknown[0]!r}", fix=f"choose {', '.join(KINDS)}")
    since = parsed.one("since")
    after = 0.0 if since is None else time.time() - parse_duration(since)

    def wanted(line: AuditLine) -> bool:
        if (kinds and line.what not in kinds) or not line.log.startswith(log) or line.at < after:
            return False
        if parsed.on("failed") and not (line.what == "result" and line.facts.get("ok") is False):
            return False
        return text is None or text.lower() in str(line.facts).lower()

    return wanted


def _shown_line(line: AuditLine) -> str:
    """Format one line for a person: time, log, number, kind, and the facts in their order."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.at))
    facts = " ".join(
        f"{name}={_fact(value)}" for name, value in line.facts.items() if value not in (None, "")
    )
    return shown(f"{when} {line.log[:6]} {line.number:>4} {line.what:<9} {facts}")


def _fact(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return repr(text) if isinstance(value, str) and (" " in text or "\n" in text) else text


def _followed(file: object) -> Iterator[bytes]:
    """Yield the lines of a file, including lines appended later, until Ctrl-C."""
    rest = b""
    while True:
        data = os.read(file.fileno(), 1 << 16)  # type: ignore[attr-defined]
        rest += data
        *lines, rest = rest.split(b"\n")
        yield from lines
        if not data:
            time.sleep(_POLL)
