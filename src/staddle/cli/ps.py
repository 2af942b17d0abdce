"""`staddle ps`, `logs` and `stop`: the sandboxes and commands of a server."""

from __future__ import annotations

import sys
import time

from ..display import shown
from ..errors import StaddleError, UsageError
from .kept import JSON, age, print_json
from .options import HELP, Option, help_rows, parse_among

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..server.client import Client
    from .options import Parsed

#: Names the server, for every command that uses one.
SERVER = Option("server", "WHERE", "socket or URL of the server (default: this user's own)")
_STOP = (Option("all", "", "stop every sandbox and the server"), SERVER, HELP)
_LOGS = (
    Option("command", "ID", "only this command's output"),
    Option("follow", "", "wait for more, to the end of the newest command"),
    SERVER,
    HELP,
)
_PS_HELP = """\
List the sandboxes of a server, or with ID what is in one: commands, terminals, questions.

usage: staddle ps [options] [ID]

{options}
"""
_LOGS_HELP = """\
Print the output of the commands of a sandbox, as far as the server has it.

usage: staddle logs [options] ID

ID is an id or a name from `staddle ps`.

{options}
"""
_STOP_HELP = """\
Close sandboxes of a server, with everything that runs in them. Kept changes stay on disk.

usage: staddle stop [options] ID...
       staddle stop --all

{options}
"""


def client_from(parsed: Parsed, *, start: bool = False) -> Client | None:
    """Return a client of the named server. Without `start` None if this user's own does not run."""
    from ..server.client import connect
    from ..server.process import connected, default_socket

    where = parsed.one("server")
    if where is None and not start:
        found = connected(default_socket())
        if found is None:
            return None
        found.close()
    return connect(where)


def running_client(parsed: Parsed) -> Client:
    """Return a client of the named server. Raises StaddleError if it does not run."""
    found = client_from(parsed)
    if found is None:
        raise StaddleError(
            "no server runs",
            why="none of this user's listens",
            fix="start one: `staddle serve`, or connect()",
        )
    return found


def main(words: Sequence[str]) -> int:
    """List sandboxes."""
    table = (JSON, SERVER, HELP)
    parsed = parse_among(words, table, "ps")
    if parsed.on("help"):
        print(_PS_HELP.format(options=help_rows(table)), end="")
        return 0
    if len(parsed.words) > 1:
        raise UsageError(f"staddle ps does not understand {parsed.words[1]!r}", fix="give one id")
    client = client_from(parsed)
    if client is None:
        if parsed.on("json"):
            print_json([])
        else:
            print("no server runs; `staddle serve` starts one")
        return 0
    if parsed.words:
        return _one(client, parsed.words[0], as_json=parsed.on("json"))
    found = [sandbox.describe() for sandbox in client.list()]
    if parsed.on("json"):
        print_json(found)
    else:
        rows = [("ID", "NAME", "STATE", "COMMANDS", "OPENED", "WORKSPACE")]
        rows += [
            (
                each["id"],
                shown(each["name"] or "-"),
                each["state"] + (" ?" if each["questions"] else ""),
                str(each["commands"]),
                f"{age(each['opened'])} ago",
                shown(each["workspace"] or "-"),
            )
            for each in found
        ]
        _print(rows)
    return 0


def _one(client: Client, name: str, *, as_json: bool) -> int:
    sandbox = client.get(name)
    facts = {
        **sandbox.describe(),
        "commands": sandbox.commands(),
        "questions": [{**each, "event": str(each["event"])} for each in sandbox.questions()],
    }
    if as_json:
        print_json(facts)
        return 0
    rows = [("ID", "KIND", "STATE", "EXIT", "COMMAND")]
    rows += [
        (each["id"], each["kind"], each["state"], str(_or_dash(each["exit_code"])), _text(each)[:200])
        for each in facts["commands"]
    ]
    rows += [(each.id, "terminal", "open", "-", f"{each.cols}x{each.rows}") for each in sandbox.terminals()]
    rows += [(each["id"], "question", "waits", "-", each["event"]) for each in facts["questions"]]
    _print(rows)
    return 0


def _or_dash(value: object) -> object:
    return "-" if value is None else value


def _text(facts: dict[str, Any]) -> str:
    command = facts["command"]
    return shown(command if isinstance(command, str) else " ".join(command))


def _print(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def logs(words: Sequence[str]) -> int:
    """Print the output of a sandbox's commands."""
    parsed = parse_among(words, _LOGS, "logs")
    if parsed.on("help"):
        print(_LOGS_HELP.format(options=help_rows(_LOGS)), end="")
        return 0
    if len(parsed.words) != 1:
        raise UsageError("staddle logs needs one id", fix="see `staddle ps`")
    sandbox = running_client(parsed).get(parsed.words[0])
    found = sandbox.commands()
    if parsed.on("command"):
        found = [each for each in found if each["id"] == parsed.one("command")]
        if not found:
            raise UsageError(
                f"the sandbox has no command {parsed.one('command')!r}", fix="see `staddle ps ID`"
            )
    for at, each in enumerate(found):
        is_last = at == len(found) - 1
        began = time.strftime("%H:%M:%S", time.localtime(each["began"]))
        print(f"{began} {each['id']} $ {_text(each)}", file=sys.stderr, flush=True)
        for chunk in sandbox.output_of(each["id"], follow=is_last and parsed.on("follow")):
            sys.stdout.buffer.write(chunk.data)
            sys.stdout.buffer.flush()
    return 0


def stop(words: Sequence[str]) -> int:
    """Close sandboxes, or the server."""
    parsed = parse_among(words, _STOP, "stop")
    if parsed.on("help"):
        print(_STOP_HELP.format(options=help_rows(_STOP)), end="")
        return 0
    if bool(parsed.words) == parsed.on("all"):
        raise UsageError("staddle stop needs ids, or --all", fix="see `staddle ps`")
    if parsed.on("all"):
        client = client_from(parsed)
        if client is not None:
            client.stop()
        return 0
    client = running_client(parsed)
    for sandbox in [client.get(word) for word in parsed.words]:
        sandbox.close()
    return 0
