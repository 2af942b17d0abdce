"""What belongs to whoever made the sandbox: its control files, its first process, the tree it came from.

Elsewhere than in a session there may be none of it, and then there is nothing to be had.
"""

from __future__ import annotations

import os

from .kit import Refused, World, attack

CONTROL = "/dev/.staddle"
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


#: What a sandbox has to itself: file systems of its own, its layers, and its view of the kernel.
OWN_KINDS = ("overlay", "proc", "devpts", "mqueue", "sysfs")
OWN_PLACES = ("/dev/shm", "/home", "/run", "/tmp", "/var/tmp")


@attack("write", "nothing", control="", twin="create-in-work")
def write_to_what_others_see(world: World) -> str:
    """In every mount that is not the sandbox's own, and in the directories in it.

    No control: unconfined everything is what others see.
    """
    if not os.path.isdir(CONTROL):
        raise Refused("no session")
    with open("/proc/self/mountinfo") as file:
        rows = [line.split() for line in file]
    for row in rows:
        point, kind = row[4], row[row.index("-") + 1]
        if kind in OWN_KINDS or point.startswith((*OWN_PLACES, world["work"])) or _mount_at(point) != row[0]:
            continue  # or something is mounted over it
        for directory in _directories(point):
            for change in (_make_one, os.utime, lambda path: os.chmod(path, 0o700)):
                try:
                    change(directory)
                    return directory
                except OSError:
                    continue
    raise Refused("no change anywhere")


def _mount_at(path: str) -> str:
    fd = os.open(path, os.O_PATH)
    try:
        with open(f"/proc/self/fdinfo/{fd}") as file:
            return file.read().partition("mnt_id:")[2].split()[0]
    finally:
        os.close(fd)


def _make_one(directory: str) -> None:
    os.mkdir(f"{directory}/planted")
    os.rmdir(f"{directory}/planted")


def _directories(point: str) -> list[str]:
    """That of the mount, and some below it, in the same mount."""
    found = [point] if os.path.isdir(point) else []
    for directory in found:
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        for path in (os.path.join(directory, name) for name in names[:50]):
            inner = os.path.isdir(path) and not os.path.islink(path) and not os.path.ismount(path)
            if inner and len(found) < 500:
                found.append(path)
    return found


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
