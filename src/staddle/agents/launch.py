"""Start a coding agent once: its shell in a sandbox, or its tools, until it exits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess

from .. import places
from ..errors import CommandNotFound, InvalidCall
from .table import MCP, SHELL, codex_environments, gemini_mcp, mcp_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ..sandbox.sandbox import Sandbox
    from .table import CodingAgent


#: Permissions of opencode that allow none of its own tools: after an installation, and during a check.
_OURS = ("allow", {"*": "deny", "staddle_*": "allow"})


def program_of(agent: CodingAgent) -> str:
    """The agent's program, or CommandNotFound."""
    found = shutil.which(agent.program)
    if found is None:
        raise CommandNotFound(
            f"{agent.program} is not on the PATH",
            why=f"{agent.title} is not installed",
            fix="install it first",
        )
    return found


def installation_of(program: str) -> list[str]:
    """The npm or virtual environment directory of a program, if it is in one; else the program itself."""
    real = os.path.realpath(program)
    head, modules, _ = real.rpartition("/node_modules/")
    if modules:
        return [f"{head}/node_modules"]
    above = os.path.dirname(os.path.dirname(os.path.abspath(program)))
    try:
        with open(f"{above}/pyvenv.cfg") as file:
            settings = dict(line.strip().split(" = ", 1) for line in file if " = " in line)
    except FileNotFoundError:
        return [real]
    base = os.path.dirname(settings.get("home", "/usr/bin"))  # of the environment's base interpreter
    return [above] if base == "/usr" else [above, base]


def run_with_shell(
    agent: CodingAgent,
    sandbox: Sandbox,
    words: Sequence[str],
    *,
    variables: dict[str, str] | None = None,
    ended: Callable[[], object] = lambda: None,
) -> int:
    """Run the agent with its shell in `sandbox`; return the agent's exit status.

    `ended` is called after the agent exits, before the sandbox is closed.
    """
    from .broker import ShellBroker

    program = program_of(agent)
    way = agent.ways[SHELL]
    with ShellBroker(sandbox) as broker:
        environment = {**os.environ, **(variables or {})}
        environment |= way.variables(broker.home)
        if agent.name == "opencode":
            environment["OPENCODE_CONFIG_CONTENT"] = _with(environment, {"shell": f"{broker.home}/bash"})
        extra = way.words(broker.home, [])
        if extra and any(word.partition("=")[0] == extra[0] for word in words):
            raise InvalidCall(
                f"{extra[0]} cannot be given",
                why=f"staddle sets it: {agent.title} would take only one of them",
                fix="put these settings in a file that it reads by itself",
            )
        words = [*extra, *words]
        if agent.name == "codex":
            real = environment.get("CODEX_HOME") or "~/.codex"
            with LinkedDirectory(real, "environments.toml", codex_environments(broker.home)) as home:
                status = _attended([program, *words], {**environment, "CODEX_HOME": home})
        else:
            status = _attended([program, *words], environment)
        ended()
    return status


def run_with_mcp(
    agent: CodingAgent,
    server: Sequence[str],
    words: Sequence[str],
    *,
    variables: dict[str, str] | None = None,
) -> int:
    """Run the agent without its own tools, with the tools of the MCP server that `server` starts."""
    program, way = program_of(agent), agent.ways[MCP]
    environment = {**os.environ, **(variables or {})}
    if agent.name == "opencode":
        refuse_other_permissions(environment)
        # A project's config could allow opencode's own tools.
        environment["OPENCODE_DISABLE_PROJECT_CONFIG"] = "1"
        edits = way.edits("", list(server)) if way.edits else []
        environment["OPENCODE_CONFIG_CONTENT"] = _with(environment, *(edit.merge or {} for edit in edits))
        return _attended([program, *words], environment)
    if agent.name == "gemini":
        refuse_settings_of_project()
        real = f"{environment.get('GEMINI_CLI_HOME') or os.path.expanduser('~')}/.gemini"
        text = json.dumps({**_settings(f"{real}/settings.json"), **gemini_mcp(list(server))})
        with LinkedDirectory(real, "settings.json", text, below=".gemini") as home:
            return _attended([program, *words], {**environment, "GEMINI_CLI_HOME": home})
    extra = way.words("", list(server))
    if not extra:
        raise InvalidCall(
            f"{agent.title} cannot be started with other tools",
            fix="use --install, or another --way",
            why="its tools are set in its settings only",
        )
    return _attended([program, *extra, *words], environment)


def refuse_settings_of_project() -> None:
    """Refuse project settings of Gemini CLI with tools or servers: they would replace the user's."""
    place = os.path.abspath(".gemini/settings.json")
    for name in _settings(place).keys() & {"tools", "mcp", "mcpServers"}:
        raise InvalidCall(
            f"{place} sets {name!r}",
            why="it replaces what staddle sets: the agent would have other tools",
            fix="take it out, or use --way inside",
        )


def refuse_other_permissions(environment: Mapping[str, str]) -> None:
    """Refuse permissions in the user's settings of opencode.

    opencode merges all settings, and the last matching rule decides: one of these could allow its own tools.
    """
    top = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    places = [f"{top}/opencode/{name}" for name in ("config.json", "opencode.json", "opencode.jsonc")]
    places += [value] if (value := environment.get("OPENCODE_CONFIG")) else []
    found = {place: _settings(place) for place in places}
    found["OPENCODE_CONFIG_CONTENT"] = json.loads(environment.get("OPENCODE_CONFIG_CONTENT") or "{}")
    for place, settings in found.items():
        agents = [each for name in ("agent", "mode") for each in _members(settings.get(name))]
        for part in (settings, *agents):
            named = [name for name in ("permission", "tools") if name in part]
            if named and (part is not settings or part[named[0]] not in _OURS):
                raise InvalidCall(
                    f"{place} sets {named[0]!r}",
                    why="opencode merges it with that of staddle: it could allow opencode's own tools",
                    fix="take it out, or use --way inside",
                )


def _members(value: object) -> list[dict[str, Any]]:
    return [each for each in value.values() if isinstance(each, dict)] if isinstance(value, dict) else []


def _settings(path: str) -> dict[str, Any]:
    """The settings in a JSON file; empty if the file does not exist."""
    from .json_text import parse

    try:
        with open(path) as file:
            found = parse(file.read()).value
    except FileNotFoundError:
        return {}
    except ValueError:
        raise InvalidCall(
            f"{path} is not JSON", why="it is damaged", fix="correct it, or move it away"
        ) from None
    return found if isinstance(found, dict) else {}


def _with(environment: dict[str, str], *more: dict[str, object]) -> str:
    """opencode's settings from a variable, merged with these."""
    given = json.loads(environment.get("OPENCODE_CONFIG_CONTENT") or "{}")
    for each in more:
        given |= each
    return json.dumps(given)


class LinkedDirectory:
    """A directory with links to the content of another one, and one file of ours."""

    def __init__(self, real: str, name: str, text: str, *, below: str = "") -> None:
        self._real, self._name, self._text, self._below = os.path.expanduser(real), name, text, below

    def __enter__(self) -> str:
        import tempfile

        self._top = tempfile.mkdtemp(prefix="agent-", dir=places.make_private(places.runtime()))
        self._made = f"{self._top}/{self._below}".rstrip("/")
        os.makedirs(self._made, exist_ok=True)
        if os.path.isdir(self._real):
            for name in os.listdir(self._real):
                if name != self._name:
                    os.symlink(f"{self._real}/{name}", f"{self._made}/{name}")
        with open(f"{self._made}/{self._name}", "w") as file:
            file.write(self._text)
        return self._top

    def __exit__(self, *_: object) -> None:
        for name in os.listdir(self._made):
            made, real = f"{self._made}/{name}", f"{self._real}/{name}"
            if name != self._name and not os.path.islink(made) and not os.path.lexists(real):
                os.makedirs(self._real, 0o700, exist_ok=True)
                shutil.move(made, real)  # from the first login, the first conversation
        shutil.rmtree(self._top, ignore_errors=True)


def _attended(argv: Sequence[str], environment: dict[str, str]) -> int:
    """Run it on our terminal. The terminal sends Ctrl-C to both; only the agent handles it."""
    # A handler, not SIG_IGN, which the agent would inherit.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        with subprocess.Popen(argv, env=environment) as child:

            def passed(number: int, _: object) -> None:
                child.send_signal(number)

            for number in (signal.SIGTERM, signal.SIGHUP):
                before[number] = signal.signal(number, passed)
            status = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - status if status < 0 else status


def server_words(workspace: str | None, *options: str) -> list[str]:
    """The words that start `staddle mcp` for this workspace."""
    first, *rest = mcp_server(None)
    return [first, *rest, *options, *([workspace] if workspace else ())]
