"""Options that commands of `staddle jail` share, and its configuration file.

The file contains default options. Its path is `$STADDLE_JAIL_CONFIG`, else `jail.toml` in the user's
`staddle` configuration directory. A key is the name of an option; options of `jail reap` are in the table
`[reap]`. An unknown key is an error. A remote can be given only on the command line.
"""

from __future__ import annotations

import os

from .. import places
from ..errors import UsageError
from .options import Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .options import Parsed

AUTHOR = Option("author", "WHO", "who commits: 'Name <address>'")
PROMPT_FILE = Option("prompt-file", "FILE", "read the prompt from this file, or from standard input for -")
#: Options that a file cannot set: the subject of one run, and the remote.
_ONLY_SAID = (
    "help",
    "json",
    "command",
    "prompt",
    "prompt-file",
    "resume",
    "remote",
    "message",
    "reference",
    "title",
    "session",
)
#: Groups of options: if the command line sets one of a group, the file's values for the group are ignored.
_TOGETHER = (("network", "allow"), ("key-env", "key-file"))
#: Options of the agent, which do not apply to an explicit command.
_OF_THE_AGENT = ("agent", "model", "key-env", "key-file")
_LARGEST = 1 << 20


def config_file() -> str:
    """Return the path of the file, which need not exist."""
    said = os.environ.get(places.JAIL_CONFIG)
    return f"{places.of_user('config')}/jail.toml" if said is None else said


def with_defaults(
    parsed: Parsed, options: Sequence[Option], tables: Mapping[str, Sequence[Option]], table: str = ""
) -> Parsed:
    """Return `parsed` with the values from `table` of the file for those `options` that are not given.

    `tables` are the options that each table may contain; "" is the top of the file.
    """
    said = _read(config_file(), tables)[table]
    given = set(parsed.options)
    for group in _TOGETHER:
        if given & {*group}:
            given |= {*group}
    if "agent" not in given and ("command" in given or (parsed.dashed and parsed.words[1:])):
        given |= {*_OF_THE_AGENT}
    # An option of another meaning can have the same name: --allow of `run` names hosts, of `commit` files.
    mine = {option.name for option in options if option in tables[table]}
    found = {name: values for name, values in said.items() if name in mine and name not in given}
    return parsed.replace(options={**parsed.options, **found})


def _read(path: str, tables: Mapping[str, Sequence[Option]]) -> dict[str, dict[str, list[str]]]:
    data = _data(path)
    found = {}
    for table, options in tables.items():
        known = {option.name: option for option in options if option.name not in _ONLY_SAID}
        rows = data.get(table, {}) if table else {key: data[key] for key in data if key not in tables}
        if not isinstance(rows, dict):
            raise UsageError(f"{path}: {table} is {rows!r}", fix=f"write its keys below a line [{table}]")
        found[table] = {
            name: _values(path, name, value, known) for name, value in rows.items() if value is not False
        }
    return found


def _data(path: str) -> dict[str, object]:
    import tomllib

    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            return tomllib.loads(file.read(_LARGEST).decode())
    except FileNotFoundError:
        if "STADDLE_JAIL_CONFIG" in os.environ:
            raise UsageError(
                f"there is no file {path!r}",
                why="STADDLE_JAIL_CONFIG names it",
                fix="make it, or unset STADDLE_JAIL_CONFIG",
            ) from None
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: this is not TOML", why=str(error), fix="correct the line that it names"
        ) from None


def _values(path: str, name: str, value: object, known: dict[str, Option]) -> list[str]:
    option = known.get(name)
    if option is None:
        raise UsageError(f"{path}: there is no key {name!r}", fix=f"choose among {', '.join(sorted(known))}")
    if not option.value:
        if value is not True:
            raise UsageError(f"{path}: {name} is {value!r}", fix="write true or false")
        return [""]
    values = value if option.many and isinstance(value, list) else [value]
    if not all(isinstance(item, str | int | float) and not isinstance(item, bool) for item in values):
        raise UsageError(
            f"{path}: {name} is {value!r}", fix="write a text" if not option.many else "write a list of texts"
        )
    return [str(item) for item in values]


def prompt_of(parsed: Parsed) -> str | None:
    """Return the prompt from --prompt or --prompt-file, if any."""
    file = parsed.one("prompt-file")
    if file is None:
        return parsed.one("prompt")
    if parsed.on("prompt"):
        raise UsageError("--prompt and --prompt-file are both given", fix="leave one of them out")
    source: str | int = 0 if file == "-" else file
    with open(source, encoding="utf-8", errors="surrogateescape", closefd=file != "-") as opened:
        return opened.read(_LARGEST)
