"""A scripted agent that tries to leave its jail, and the doors that are really open to the user beside it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

#: Runs inside, and outside as the control: prints the names of what it reached, as JSON.
LEAVE = """
import json, os, socket, subprocess, sys
reached = []
for name, way, place in json.loads(sys.argv[1]):
    try:
        if way == "connect":
            door = socket.socket(socket.AF_UNIX)
            door.settimeout(5)
            door.connect("\\0" + place[1:] if place[0] == "@" else place)
        elif way == "read":
            os.listdir(place) if os.path.isdir(place) else open(place, "rb").read()
        elif way == "add":
            open(place, "ab").close()
        elif way == "change":
            open(place, "r+b").close()
        elif way == "run":
            subprocess.run(place.split(), check=True, timeout=20, capture_output=True)
        elif way == "variable":
            os.environ[place]
        reached.append(name)
    except (OSError, KeyError, subprocess.SubprocessError):
        pass
print(json.dumps(reached))
"""

Ways = list[tuple[str, str, str]]


def leave(ways: Ways) -> list[str]:
    """The command line that tries them all."""
    return ["/usr/bin/python3", "-I", "-c", LEAVE, json.dumps(ways)]


def reached(output: bytes) -> list[str]:
    """What the last line of its output says."""
    names: list[str] = json.loads(output.splitlines()[-1])
    return names


def reached_outside(ways: Ways) -> list[str]:
    """The control: the same attempts as the user, unconfined."""
    done = subprocess.run(leave(ways), capture_output=True, timeout=60, check=True)
    return reached(done.stdout)


class Doors:
    """Listening sockets with the names of agents and daemons; nobody needs to answer for a connection."""

    def __init__(self, *names: Path | str) -> None:
        self._open = []
        for name in names:
            door = socket.socket(socket.AF_UNIX)
            if isinstance(name, str):
                door.bind("\0" + name.removeprefix("@"))
            else:
                name.parent.mkdir(parents=True, exist_ok=True)
                here = os.open(name.parent, os.O_RDONLY | os.O_DIRECTORY)
                door.bind(f"/proc/self/fd/{here}/{name.name}")  # a name may be longer than 108 bytes
                os.close(here)
            door.listen(8)
            self._open.append(door)

    def __enter__(self) -> Doors:
        return self

    def __exit__(self, *_: object) -> None:
        for door in self._open:
            door.close()
