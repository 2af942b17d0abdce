"""What belongs to whoever made the sandbox: its control files, its first process, the tree it came from.

Elsewhere than in a session there may be none of it, and then there is nothing to be had.
"""

from __future__ import annotations

import os

from .kit import Refused, World, attack

CONTROL = "/.staddle"
HELD = "EROFS EACCES EPERM ENOENT"


def _control_files() -> list[str]:
    return [os.path.join(CONTROL, name) for name in sorted(os.listdir(CONTROL))]


@attack("write", HELD + " nothing", control="", twin="append-in-work")
def change_a_control_file(world: World) -> str:
    """No control: unconfined there are none. What a shell is told is in plain files; its pipes are open."""
    refused: OSError | None = None
    for path in _control_files():
        if not os.path.isfile(path):
            continue
        try:
            os.close(os.open(path, os.O_WRONLY))
            return path
        except OSError as error:
            refused = error
    raise refused or Refused("no file")


@attack("write", HELD + " nothing", control="", twin="remove-in-work")
def remove_a_control_file(world: World) -> str:
    """No control: unconfined there are none."""
    for path in _control_files():
        os.unlink(path)
        return path
    raise Refused("no file")


@attack("write", HELD, control="", twin="create-in-work")
def plant_a_control_file(world: World) -> str:
    """No control: unconfined there is no such directory."""
    path = os.path.join(CONTROL, "planted")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    return path


@attack("read", "nothing", control="", twin="read-what-is-granted")
def find_what_is_kept_aside(world: World) -> list[str]:
    """No control: unconfined nothing is. Mounts that were needed only while the sandbox was made."""
    with open("/proc/self/mountinfo") as file:
        points = [line.split()[4] for line in file]
    if found := [point for point in points if point.startswith(CONTROL + "/")]:
        return found
    raise Refused("nothing")


@attack("read", "nothing", twin="read-what-is-granted")
def read_outside_through_any_process(world: World) -> str:
    """By the root, the directory and the open files of every process that can be seen."""
    secret = world["secret"]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for place in (*_doors(f"/proc/{pid}"), *_doors(f"/proc/{pid}/task/{pid}")):
            for way in (place + secret, place + "/.." * 12 + secret):
                try:
                    with open(way) as file:
                        return f"{way}: {file.read()}"
                except OSError:
                    continue
    raise Refused("no way leads there")


def _doors(process: str) -> list[str]:
    try:
        return [
            f"{process}/root",
            f"{process}/cwd",
            *(f"{process}/fd/{fd}" for fd in os.listdir(f"{process}/fd")),
        ]
    except OSError:
        return [f"{process}/root", f"{process}/cwd"]
