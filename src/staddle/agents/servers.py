"""MCP servers in a coding agent's settings: what each needs to run in the agent's sandbox."""

from __future__ import annotations

import json
import os
import shutil

from .._value import Value
from ..policy.presets import DOORS
from .launch import installation_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..jail.agents import Agent
    from ..policy import Network

#: Files that mark the directory of a program.
_MARKS = ("package.json", "pyproject.toml", "pyvenv.cfg", ".git")
#: Programs that need a daemon of the host.
_DAEMONS = ("docker", "podman", "nerdctl")


class Server(Value):
    """A server by name, with the paths that it reads. `missing` says why it does not work inside."""

    name: str
    paths: tuple[str, ...] = ()
    missing: str = ""


def servers(agent: Agent, project: str, network: Network) -> list[Server]:
    """The user's servers, for a sandbox with this network."""
    found = {}
    for file, keys in agent.servers:
        data: Any = _settings(os.path.expanduser(file))
        for key in keys:
            data = data.get(key.replace("{project}", project)) if isinstance(data, dict) else None
        for name, entry in data.items() if isinstance(data, dict) else ():
            if isinstance(entry, dict) and not entry.get("disabled"):
                found[name] = _server(name, entry, network)
    return list(found.values())


def _settings(path: str) -> object:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if path.endswith(".toml"):
            import tomllib

            return tomllib.loads(text)
        if path.endswith(".json"):
            return json.loads(text)
        from .json_text import parse

        return parse(text).value
    except (OSError, ValueError):
        return None


def _server(name: str, entry: dict[str, Any], network: Network) -> Server:
    from urllib.parse import urlsplit

    for key in ("url", "httpUrl", "serverUrl"):
        if isinstance(entry.get(key), str):
            parts = urlsplit(entry[key])
            host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
            if host == "localhost":
                host = "127.0.0.1"
            return Server(name, missing="" if network.permits(host, port) else f"--allow {host}:{port}")
    command = entry.get("command")
    words = [*(command if isinstance(command, list) else [command]), *(entry.get("args") or ())]
    words = [os.path.expanduser(word) for word in words if isinstance(word, str)]
    program = shutil.which(words[0]) if words else None
    if program is None:
        return Server(name, missing=f"{words[0] if words else 'its command'} is not installed")
    if os.path.basename(program) in _DAEMONS:
        return Server(name, missing=f"{os.path.basename(program)} is not there")
    files = [word.partition("=")[2] if word.startswith("-") else word for word in words[1:]]
    own = [place for file in files if os.path.isabs(file) and os.path.exists(file) for place in _around(file)]
    return Server(name, tuple(dict.fromkeys((*installation_of(program), program, *own))))


def _around(file: str) -> Iterator[str]:
    """The directory of the program that `file` belongs to; the file itself if nothing marks one."""
    home = os.path.realpath(os.path.expanduser("~"))
    above = file if os.path.isdir(file) else os.path.dirname(file)
    while above not in ("/", home) and not home.startswith(f"{above}/") and not above.startswith(DOORS):
        if any(os.path.lexists(f"{above}/{name}") for name in _MARKS):
            yield above
            return
        above = os.path.dirname(above)
    if os.path.isfile(file):
        yield file
