"""Files: reading, writing, metadata, denied paths, protected names, private directories."""

from __future__ import annotations

import errno
import mmap
import os
import socket
import stat
import subprocess

from .kit import Refused, World, attack, call, twin

AWAY = "ENOENT EACCES EPERM EROFS ELOOP ENOTDIR EXDEV"
# What refuses a change: a read-only mount, a missing path, a Landlock rule, another owner.
NO_CHANGE = "EROFS EACCES ENOENT EPERM EXDEV EBUSY ENOTDIR ENOTEMPTY"


def own_directory(world: World, zone: str) -> str:
    """The directory that belongs to this attack alone in `zone`: outside, readable or work."""
    return os.path.join(world[zone], world["name"])


def read(path: str) -> str:
    with open(path) as file:
        return file.read()


# ------------------------------------------------------------------ reading


@attack("read", AWAY, twin="read-what-is-granted")
def read_outside(world: World) -> str:
    return read(world["secret"])


@attack("read", AWAY, twin="read-what-is-granted")
def list_outside(world: World) -> list[str]:
    found = os.listdir(world["outside"])
    if not found:
        raise Refused("an empty directory")
    return found


@attack("read", AWAY, twin="read-what-is-granted")
def read_outside_by_link(world: World) -> str:
    link = os.path.join(own_directory(world, "work"), "link")
    os.symlink(world["secret"], link)
    return read(link)


@attack("read", AWAY, twin="read-what-is-granted")
def read_outside_by_chain_of_links(world: World) -> str:
    base = own_directory(world, "work")
    os.symlink(os.path.relpath(os.path.dirname(world["secret"]), base), os.path.join(base, "one"))
    os.symlink("one", os.path.join(base, "two"))
    return read(os.path.join(base, "two", os.path.basename(world["secret"])))


@attack("read", AWAY, twin="read-what-is-granted")
def read_outside_by_own_root(world: World) -> str:
    return read("/proc/self/root" + world["secret"])


@attack("read", AWAY, twin="read-what-is-granted")
def read_outside_by_own_directory(world: World) -> str:
    return read("/proc/self/cwd/" + "../" * 20 + world["secret"].lstrip("/"))


@attack("read", AWAY + " nothing", twin="read-what-is-granted")
def read_outside_by_other_roots(world: World) -> str:
    """Through the root or directory of any process that is not a child of ours, PID 1 first."""
    ours = os.readlink("/proc/self/root")
    for pid in sorted((name for name in os.listdir("/proc") if name.isdigit()), key=int):
        for door in ("root", "cwd"):
            try:
                if pid in (str(os.getpid()), str(os.getppid())) and ours != "/":
                    continue
                return read(f"/proc/{pid}/{door}/" + "../" * 20 + world["secret"].lstrip("/"))
            except OSError:
                continue
    raise Refused("no process has a root of its own that can be entered")


@attack("read", AWAY, twin="read-what-is-granted")
def list_the_real_home(world: World) -> list[str]:
    found = os.listdir(world["home"])
    if world["home_entry"] not in found:
        raise OSError(errno.ENOENT, "a home, but not the real one")
    return found


@attack("read", AWAY, twin="read-what-is-granted")
def run_a_program_from_outside(world: World) -> int:
    return subprocess.run([world["program"]], check=True).returncode


KERNEL_FILES = (
    "/proc/kcore", "/proc/kpagecount", "/proc/timer_list", "/proc/vmallocinfo", "/proc/slabinfo",
    "/sys/kernel/notes", "/sys/kernel/debug/gpio", "/sys/firmware/acpi/tables/DSDT", "/sys/kernel/vmcoreinfo",
)  # fmt: skip


@attack("read", AWAY, control="root", twin="read-what-is-granted")
def read_files_about_the_kernel(world: World) -> list[str]:
    """A mask may be readable, but then it is empty."""
    last = OSError(errno.ENOENT, "none is there")
    opened = []
    for path in KERNEL_FILES:
        try:
            with open(path, "rb", buffering=0) as file:
                opened += [path] if file.read(1) else []
        except OSError as error:
            last = error
    if not opened:
        raise last
    return opened


@attack("metadata", AWAY, twin="read-what-is-granted")
def stat_outside(world: World) -> int:
    return os.stat(world["secret"]).st_size


@attack("metadata", AWAY, twin="read-what-is-granted")
def enter_outside(world: World) -> str:
    os.chdir(world["outside"])
    return os.getcwd()


@attack("metadata", AWAY + " ENOSPC", twin="read-what-is-granted")
def watch_outside(world: World) -> int:
    import ctypes

    from .kit import checked, libc

    watcher = checked(libc.inotify_init())
    return checked(libc.inotify_add_watch(watcher, os.fsencode(world["outside"]), ctypes.c_uint32(0x100)))


# ------------------------------------------------------------------ changing


def _create(base: str) -> None:
    os.close(os.open(os.path.join(base, "new"), os.O_CREAT | os.O_WRONLY | os.O_EXCL))


def _make_file(base: str) -> None:
    """Without opening it: another right than that to write."""
    os.mknod(os.path.join(base, "node"), stat.S_IFREG | 0o600)


def _append(base: str) -> None:
    with open(os.path.join(base, "file"), "a") as file:
        file.write("x")


def _truncate(base: str) -> None:
    os.truncate(os.path.join(base, "file"), 0)


def _overwrite(base: str) -> None:
    with open(os.path.join(base, "file"), "r+b") as file:
        file.write(b"overwritten")


def _map(base: str) -> None:
    with open(os.path.join(base, "file"), "r+b") as file, mmap.mmap(file.fileno(), 4) as mapped:
        mapped[:4] = b"mmap"


def _allocate(base: str) -> None:
    fd = os.open(os.path.join(base, "file"), os.O_WRONLY)
    os.posix_fallocate(fd, 0, 100_000)


def _remove(base: str) -> None:
    os.unlink(os.path.join(base, "file"))


def _rename(base: str) -> None:
    os.rename(os.path.join(base, "file"), os.path.join(base, "renamed"))


def _make_directory(base: str) -> None:
    os.mkdir(os.path.join(base, "made"))


def _remove_directory(base: str) -> None:
    os.rmdir(os.path.join(base, "directory"))


def _make_link(base: str) -> None:
    os.symlink("x", os.path.join(base, "link"))


def _make_hard_link(base: str) -> None:
    os.link(os.path.join(base, "file"), os.path.join(base, "hard"))


def _make_fifo(base: str) -> None:
    os.mkfifo(os.path.join(base, "fifo"))


def _make_nameless(base: str) -> None:
    os.open(base, os.O_TMPFILE | os.O_RDWR, 0o600)


def _make_socket(base: str) -> None:
    os.chdir(base)
    socket.socket(socket.AF_UNIX).bind("socket")


def _exchange(base: str) -> None:
    """renameat2(RENAME_EXCHANGE): a rename that needs no free name."""
    one, other = (os.fsencode(os.path.join(base, name)) for name in ("file", "other"))
    call("renameat2", -100, one, -100, other, 2)


CHANGES = {
    "create": _create,
    "make-file": _make_file,
    "append": _append,
    "truncate": _truncate,
    "overwrite": _overwrite,
    "map": _map,
    "allocate": _allocate,
    "remove": _remove,
    "rename": _rename,
    "exchange": _exchange,
    "make-directory": _make_directory,
    "remove-directory": _remove_directory,
    "make-link": _make_link,
    "make-hard-link": _make_hard_link,
    "make-fifo": _make_fifo,
    "make-nameless": _make_nameless,
    "make-socket": _make_socket,
}


def _set_mode(base: str) -> None:
    os.chmod(os.path.join(base, "file"), 0o600)


def _set_owner(base: str) -> None:
    path = os.path.join(base, "file")
    before = os.stat(path).st_ctime_ns
    os.chown(path, os.getuid(), os.getgid())
    # For a root with one id the call only says that it succeeds.
    if os.stat(path).st_ctime_ns == before and not os.access(path, os.W_OK):
        raise PermissionError(errno.EPERM, "nothing was changed", path)


def _set_times(base: str) -> None:
    os.utime(os.path.join(base, "file"))


def _set_attribute(base: str) -> None:
    os.setxattr(os.path.join(base, "file"), "user.staddle", b"x")


METADATA = {
    "set-mode": _set_mode,
    "set-owner": _set_owner,
    "set-times": _set_times,
    "set-attribute": _set_attribute,
}


def _declare_changes() -> None:
    for protection, changes in (("write", CHANGES), ("metadata", METADATA)):
        for verb, change in changes.items():

            def act(world: World, change=change, zone: str = "") -> str:
                change(own_directory(world, zone))
                return "changed"

            for zone in ("outside", "readable"):

                def one(world: World, act=act, zone=zone) -> str:
                    return act(world, zone=zone)

                # Landlock says EACCES (EXDEV for a rename or link), a read-only mount EROFS.
                attack(protection, NO_CHANGE, name=f"{verb}-{zone}", twin=f"{verb}-in-work")(one)

            def allowed(world: World, act=act) -> str:
                return act({**world, "name": world["name"]}, zone="work")

            allowed.__name__ = f"{verb}-in-work"
            twin(allowed)


_declare_changes()


def _through_link(world: World, target: str, *, parent: bool = False) -> str:
    base = own_directory(world, "work")
    link = os.path.join(base, "link")
    os.symlink(target, link)
    path = os.path.join(link, "planted") if parent else link
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    return path


@attack("write", NO_CHANGE + " ELOOP", twin="create-in-work")
def write_outside_by_link(world: World) -> str:
    return _through_link(world, os.path.join(own_directory(world, "outside"), "file"))


@attack("write", NO_CHANGE + " ELOOP", twin="create-in-work")
def create_outside_by_dangling_link(world: World) -> str:
    return _through_link(world, os.path.join(own_directory(world, "outside"), "planted"))


@attack("write", NO_CHANGE + " ELOOP", twin="create-in-work")
def create_outside_by_linked_parent(world: World) -> str:
    base = own_directory(world, "work")
    return _through_link(world, os.path.relpath(own_directory(world, "outside"), base), parent=True)


@attack("write", "EXDEV ENOENT EACCES EPERM EROFS", twin="make-hard-link-in-work")
def link_outside_file_into_work(world: World) -> str:
    mine = os.path.join(own_directory(world, "work"), "hard")
    os.link(os.path.join(own_directory(world, "outside"), "file"), mine)
    with open(mine, "a") as file:
        file.write("x")
    return mine


@attack("write", "EXDEV EACCES EPERM EROFS", twin="make-hard-link-in-work")
def link_readable_file_into_work(world: World) -> str:
    mine = os.path.join(own_directory(world, "work"), "hard")
    os.link(os.path.join(own_directory(world, "readable"), "file"), mine)
    with open(mine, "a") as file:
        file.write("x")
    return mine


SYSTEM = ("/usr", "/usr/bin", "/usr/lib", "/etc", "/bin", "/lib", "/opt", "/boot", "/var/lib", "/dev", "/")


@attack("write", NO_CHANGE, control="", twin="create-in-work")
def create_in_system_directories(world: World) -> str:
    """Nothing of the system is writable, whoever started the sandbox. No control: it would be real."""
    last = OSError(errno.ENOENT, "none is there")
    for directory in SYSTEM:
        if os.path.realpath(directory) == "/var/tmp":
            continue  # a private directory: see those below
        path = os.path.join(directory, f"staddle-{world['name']}")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.unlink(path)
        except OSError as error:
            last = error
        else:
            return path
    raise last


# ------------------------------------------------------------------ private directories


@attack("tmp", AWAY, twin="write-to-private-directories")
def read_host_tmp(world: World) -> str:
    return read(world["host_tmp"])


@attack("tmp", AWAY, twin="write-to-private-directories")
def read_host_shm(world: World) -> str:
    return read(world["host_shm"])


@attack("tmp", AWAY, twin="write-to-private-directories")
def write_host_shm(world: World) -> str:
    with open(world["host_shm"] + "-other", "r+") as file:
        file.write("x")
    return "written"


@attack("tmp", "nothing", twin="write-to-private-directories", silent=True)
def leave_something_in_tmp(world: World) -> str:
    left = ""
    for directory in ("/tmp", "/var/tmp", "/dev/shm", "/run", os.environ.get("HOME", "/home/user")):
        try:
            with open(os.path.join(directory, world["left_name"]), "w") as file:
                file.write("x")
            left += directory + " "
        except OSError:
            continue
    return left


# ------------------------------------------------------------------ twins


@twin
def read_what_is_granted(world: World) -> str:
    text = read(os.path.join(world["readable"], "plain"))
    assert text == "readable", text
    return text


@twin
def write_to_private_directories(world: World) -> str:
    for directory in (os.environ["HOME"], os.environ.get("TMPDIR", "/tmp"), "/dev/shm"):
        _write_and_read(directory, world)
    with open("/dev/null", "w") as file:
        file.write("x")
    return "written"


@twin
def write_to_tmp_by_its_usual_name(world: World) -> str:
    return _write_and_read("/tmp", world)


def _write_and_read(directory: str, world: World) -> str:
    path = os.path.join(directory, "twin-" + world["name"])
    with open(path, "w") as file:
        file.write("mine")
    assert read(path) == "mine"
    os.unlink(path)
    return path


@twin
def move_between_directories(world: World) -> str:
    """Every Landlock layer refuses this unless it allows `refer`, also one that only scopes."""
    base = own_directory(world, "work")
    os.rename(os.path.join(base, "file"), os.path.join(base, "directory", "moved"))
    os.link(os.path.join(base, "directory", "moved"), os.path.join(base, "linked"))
    return "moved"


@twin
def kinds_of_files_in_work(world: World) -> str:
    base = own_directory(world, "work")
    path = os.path.join(base, "regular")
    os.mknod(path, stat.S_IFREG | 0o600)
    os.chmod(path, 0o755)
    assert os.access(path, os.X_OK)
    return path
