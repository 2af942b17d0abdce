"""Rights: capabilities, other users, namespaces, mounts, devices, the machine's own settings."""

from __future__ import annotations

import ctypes
import os
import stat
import struct

from .kit import Refused, World, address, attack, call, twin

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
NEWCGROUP, NEWTIME = 0x2000000, 0x80
NO = "EPERM ENOSYS EACCES ENOSPC"


def _status(field: str) -> str:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field + ":"):
                return line.split(":", 1)[1].strip()
    raise Refused(f"no {field}")


@attack("capabilities", "nothing", optional="nothing")
def have_a_capability(world: World) -> str:
    found = {name: _status(name) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    # A root inside has some, over what is the sandbox's.
    if not any(int(value, 16) & ~world.get("rights", 0) for value in found.values()):
        raise Refused("none in any set that it should not have")
    return repr(found)


@attack("capabilities", "nothing")
def gain_privileges_by_exec(world: World) -> str:
    if _status("NoNewPrivs") == "1":
        raise Refused("no_new_privs is set")
    return "a set-user-id program would give its rights"


@attack("capabilities", "EPERM EINVAL", control="root")
def become_another_user(world: World) -> str:
    for uid in (0, 1, 65534):
        if uid != os.getuid():
            os.setresuid(uid, uid, uid)
            return f"is {uid} now"
    raise Refused("nobody to become")


@attack("capabilities", "EPERM EINVAL", control="root")
def change_groups(world: World) -> str:
    os.setgroups([4])
    return "in another group"


@attack("capabilities", "nothing", control="")
def be_in_a_group_of_the_host(world: World) -> str:
    """No control: whoever runs the tests may be in no other group."""
    others = set(os.getgroups()) - {os.getgid(), 65534}
    if not others:
        raise Refused("in none")
    return repr(others)


@attack("filter", "nothing")
def run_without_a_filter(world: World) -> str:
    if _status("Seccomp") == "2":
        raise Refused("it is on")
    return "no filter"


# ------------------------------------------------------------------ namespaces

SPACES = {
    "user": NEWUSER,
    "mount": NEWNS,
    "pid": NEWPID,
    "network": NEWNET,
    "ipc": NEWIPC,
    "host-name": NEWUTS,
    "cgroup": NEWCGROUP,
    "time": NEWTIME,
}


def _declare_namespaces() -> None:
    for name, flag in SPACES.items():

        def leave(world: World, flag=flag) -> str:
            call("unshare", flag)
            return "left"

        attack("filter", NO, name=f"unshare-{name}", control="plain" if name == "user" else "contained")(
            leave
        )


_declare_namespaces()


@attack("filter", NO)
def clone_into_a_user_namespace(world: World) -> str:
    child = call("clone", NEWUSER | 17, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "cloned"


@attack("filter", NO)
def clone3_into_a_user_namespace(world: World) -> str:
    arguments = (ctypes.c_uint64 * 8)(NEWUSER, 0, 0, 0, 17, 0, 0, 0)
    child = call("clone3", address(arguments), 64)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "cloned"


@attack("filter", "EPERM ENOSYS ENOENT EACCES EINVAL", control="contained")
def join_a_namespace(world: World) -> str:
    fd = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    call("setns", fd, NEWNS)
    return "joined"


# ------------------------------------------------------------------ mounts


def _own(world: World) -> bytes:
    return os.fsencode(os.path.join(world["work"], world["name"]))


@attack("filter", NO, control="contained")
def mount_a_file_system(world: World) -> str:
    call("mount", b"none\0", _own(world) + b"\0", b"tmpfs\0", 0, 0)
    return "mounted"


@attack("filter", NO, control="contained")
def bind_outside_into_work(world: World) -> str:
    call("mount", os.fsencode(world["outside"]) + b"\0", _own(world) + b"\0", 0, 4096, 0)
    return "mounted"


@attack("filter", NO, control="contained")
def make_a_read_only_mount_writable(world: World) -> str:
    call("mount", b"none\0", b"/\0", 0, 4096 | 32, 0)
    return "remounted"


@attack("filter", NO, control="contained")
def mount_by_the_new_calls(world: World) -> str:
    fd = call("fsopen", b"tmpfs\0", 0)
    call("fsconfig", fd, 6, 0, 0, 0)
    mounted = call("fsmount", fd, 0, 0)
    call("move_mount", mounted, b"\0", -100, _own(world) + b"\0", 4)
    return "mounted"


@attack("filter", NO, control="contained", reached="EINVAL")
def clone_a_mount(world: World) -> int:
    return call("open_tree", -100, b"/\0", 1)


@attack("filter", NO, control="contained")
def change_a_mount(world: World) -> str:
    attributes = (ctypes.c_uint64 * 4)(0, 1, 0, 0)
    call("mount_setattr", -100, b"/\0", 0, address(attributes), 32)
    return "changed"


@attack("filter", NO + " EINVAL", control="contained", reached="EBUSY")
def change_the_root(world: World) -> str:
    call("chroot", _own(world) + b"\0")
    return "changed"


@attack("filter", NO, control="contained", reached="EINVAL EBUSY")
def exchange_the_root(world: World) -> str:
    call("pivot_root", b"/\0", b"/\0")
    return "exchanged"


@attack("filter", NO + " ENOENT", control="contained", reached="EINVAL EBUSY")
def uncover_the_first_process(world: World) -> str:
    call("umount2", b"/proc/1\0", 2)
    return "uncovered"


@attack("filter", NO + " ENOENT", control="contained", reached="EINVAL EBUSY")
def uncover_a_denied_path(world: World) -> str:
    call("umount2", os.fsencode(world["denied_directory"]) + b"\0", 2)
    return "uncovered"


# ------------------------------------------------------------------ devices

#: Devices that hold or reach something; reading a byte of none of them is tried, only opening.
DEVICES = (
    "mem", "kmsg", "port", "kvm", "fuse", "net/tun", "loop-control", "vda", "sda", "nvme0n1", "dm-0",
    "snapshot", "vsock", "vhost-vsock", "hwrng", "userfaultfd", "uinput", "rfkill", "mapper/control", "cuse",
    "btrfs-control", "hpet", "rtc0", "ppp", "autofs", "vga_arbiter", "nvram", "mcelog",
)  # fmt: skip


@attack("devices", "ENOENT EACCES EPERM nothing", control="root", twin="usual-devices")
def open_a_device(world: World) -> list[str]:
    opened = []
    for name in DEVICES:
        try:
            os.close(os.open(f"/dev/{name}", os.O_RDONLY | os.O_NONBLOCK))
            opened.append(name)
        except OSError:
            continue
    if not opened:
        raise Refused("none of them")
    return opened


@attack("devices", "EPERM EACCES EROFS", control="root", twin="kinds-of-files-in-work")
def make_a_device(world: World) -> str:
    path = os.path.join(os.fsdecode(_own(world)), "null")
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    return path


@attack("filter", "EPERM EACCES EROFS", twin="kinds-of-files-in-work")
def make_a_whiteout(world: World) -> str:
    """A character device 0:0 needs no capability, and hides a file in an overlay."""
    path = os.path.join(os.fsdecode(_own(world)), "whiteout")
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))
    return path


@attack("filter", "EPERM EINVAL", twin="kinds-of-files-in-work")
def make_a_whiteout_by_rename(world: World) -> str:
    base = _own(world)
    call("renameat2", -100, base + b"/file\0", -100, base + b"/renamed\0", 4)
    return "renamed"


@attack("filter", "EPERM EACCES", twin="set-mode-in-work")
def set_the_user_id_bit(world: World) -> str:
    """The file lies on the host: whoever runs it there gets the rights of its owner."""
    path = os.path.join(os.fsdecode(_own(world)), "made")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o755))
    os.chmod(path, 0o4755)
    if not os.stat(path).st_mode & stat.S_ISUID:
        raise PermissionError(1, "it was not kept")
    return path


@attack("capabilities", "EPERM EACCES ENOTSUP EINVAL", control="root", twin="set-attribute-in-work")
def give_a_file_capabilities(world: World) -> str:
    """cap_setuid, effective: whoever runs the file on the host gets it."""
    path = os.path.join(os.fsdecode(_own(world)), "file")
    os.setxattr(path, "security.capability", struct.pack("<5I", 0x02000001, 1 << 7, 0, 0, 0))
    return path


# ------------------------------------------------------------------ settings of the machine

SETTINGS = {
    "core-pattern": "/proc/sys/kernel/core_pattern",
    "modprobe": "/proc/sys/kernel/modprobe",
    "sysrq": "/proc/sysrq-trigger",
    "overcommit": "/proc/sys/vm/overcommit_memory",
    "forwarding": "/proc/sys/net/ipv4/ip_forward",
    "uevent-helper": "/sys/kernel/uevent_helper",
    "cgroup": "/sys/fs/cgroup/cgroup.procs",
}


def _declare_settings() -> None:
    for name, path in SETTINGS.items():

        def opened(world: World, path=path) -> str:
            os.close(os.open(path, os.O_WRONLY))  # opened, never written
            return path

        attack(
            "write",
            "ENOENT EACCES EROFS EPERM",
            name=f"open-setting-{name}",
            control="root",
            optional="ENOENT",
        )(opened)


_declare_settings()


@twin
def usual_devices(world: World) -> str:
    for name in ("null", "zero", "full", "random", "urandom"):
        with open(f"/dev/{name}", "rb") as file:
            assert name == "null" or len(file.read(4)) == 4
    import pty

    main, other = pty.openpty()
    os.write(main, b"x\n")
    assert os.read(other, 10) == b"x\n"
    return "read"
