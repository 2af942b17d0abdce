"""Holes in what is granted: paths that are denied, and names that are protected from changes."""

from __future__ import annotations

import os
import time

from .files import AWAY, own_directory, read
from .kit import Refused, World, attack

# ------------------------------------------------------------------ denied paths


@attack("deny", AWAY, twin="read-what-is-granted")
def read_denied_file(world: World) -> str:
    return read(world["denied_file"])


@attack("deny", AWAY + " nothing", twin="read-what-is-granted")
def read_denied_file_contents(world: World) -> str:
    """A mask may be readable, but then it is empty."""
    text = read(world["denied_file"])
    if not text:
        raise Refused("empty")
    return text


@attack("deny", AWAY + " nothing", twin="read-what-is-granted")
def list_denied_directory(world: World) -> list[str]:
    found = os.listdir(world["denied_directory"])
    if not found:
        raise Refused("empty")
    return found


@attack("deny", AWAY, twin="read-what-is-granted")
def read_in_denied_directory(world: World) -> str:
    return read(os.path.join(world["denied_directory"], "secret"))


@attack("deny", AWAY, twin="read-what-is-granted")
def read_denied_by_link(world: World) -> str:
    link = os.path.join(own_directory(world, "work"), "link")
    os.symlink(world["denied_directory"], link)
    return read(os.path.join(link, "secret"))


@attack("deny", AWAY, twin="read-what-is-granted")
def read_denied_by_descriptor(world: World) -> str:
    parent = os.open(os.path.dirname(world["denied_directory"]), os.O_PATH)
    fd = os.open(os.path.basename(world["denied_directory"]) + "//./secret", os.O_RDONLY, dir_fd=parent)
    return os.read(fd, 100).decode()


@attack("deny", "EBUSY EACCES EPERM EROFS EXDEV ENOENT", twin="rename-in-work")
def rename_parent_of_denied(world: World) -> str:
    parent = os.path.dirname(world["denied_deep"])
    os.rename(parent, parent + "-moved")
    return read(os.path.join(parent + "-moved", os.path.basename(world["denied_deep"])))


@attack("deny", AWAY + " EBUSY", twin="create-in-work")
def write_in_denied_directory(world: World) -> str:
    path = os.path.join(world["denied_directory"], "planted")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    return path


@attack("deny", AWAY + " EBUSY EISDIR", twin="remove-in-work")
def remove_denied_file(world: World) -> str:
    os.unlink(world["denied_file"])
    return "removed"


@attack("deny", AWAY + " EBUSY EEXIST EISDIR", twin="create-in-work")
def create_denied_name_that_was_missing(world: World) -> str:
    path = world["denied_missing"]
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    return path


@attack("deny", AWAY, twin="read-what-is-granted")
def read_denied_name_that_appears(world: World) -> str:
    """It was missing when the policy was made; the host makes it while we run."""
    for _ in range(100):
        try:
            return read(world["denied_late"])
        except FileNotFoundError as error:
            last = error
            time.sleep(0.01)
    raise last


# ------------------------------------------------------------------ protected names

HELD = "EROFS EACCES EPERM EBUSY EXDEV ENOTEMPTY ENOTDIR EISDIR"


def _git(world: World) -> str:
    return os.path.join(own_directory(world, "work"), ".git")


@attack("guard", HELD, twin="append-in-work")
def append_to_git_config(world: World) -> str:
    with open(os.path.join(_git(world), "config"), "a") as file:
        file.write("[core]\n\tfsmonitor = /bin/false\n")
    return "written"


@attack("guard", HELD, twin="create-in-work")
def plant_a_git_hook(world: World) -> str:
    path = os.path.join(_git(world), "hooks", "post-checkout")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o755))
    return path


@attack("guard", HELD, twin="rename-in-work")
def replace_git_config(world: World) -> str:
    own = os.path.join(own_directory(world, "work"), "file")
    os.rename(own, os.path.join(_git(world), "config"))
    return "replaced"


@attack("guard", HELD, twin="rename-in-work")
def replace_git_directory(world: World) -> str:
    os.rename(_git(world), _git(world) + "-away")
    os.mkdir(_git(world))
    return "replaced"


@attack("guard", HELD, twin="remove-in-work")
def remove_git_config(world: World) -> str:
    os.unlink(os.path.join(_git(world), "config"))
    return "removed"


@attack("guard", HELD, twin="make-hard-link-in-work")
def write_git_config_by_hard_link(world: World) -> str:
    mine = os.path.join(own_directory(world, "work"), "hard")
    os.link(os.path.join(_git(world), "config"), mine)
    with open(mine, "a") as file:
        file.write("x")
    return mine


@attack("guard", HELD, twin="set-mode-in-work")
def set_mode_of_git_config(world: World) -> str:
    os.chmod(os.path.join(_git(world), "config"), 0o666)
    return "changed"


@attack("guard", HELD, twin="append-in-work")
def append_to_a_shell_start_file(world: World) -> str:
    with open(os.path.join(own_directory(world, "work"), ".bashrc"), "a") as file:
        file.write("x")
    return "written"


@attack("guard", HELD, twin="create-in-work")
def plant_agent_settings(world: World) -> str:
    path = os.path.join(own_directory(world, "work"), ".claude", "settings.json")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    return path


@attack("guard", HELD, twin="rename-in-work")
def replace_editor_settings(world: World) -> str:
    base = own_directory(world, "work")
    os.rename(os.path.join(base, ".vscode"), os.path.join(base, "away"))
    os.mkdir(os.path.join(base, ".vscode"))
    return "replaced"
