"""A real systemd of our own, for the tests of the systemd backend. Needs root.

`PrivateSystemd()` boots the machine's systemd as PID 1 of new mount, pid, uts, ipc, network
and cgroup namespaces, on a throw-away overlay of `/`, with one ordinary user whose user
manager runs. The host sees one sub-cgroup and one empty directory, with names of this
instance alone, and both are gone afterwards:

    pytest ──pipe──▶ keeper ──fork──▶ PID 1 of the namespaces (systemd)

The keeper is this file, run as a program. It outlives whatever happens to the test run:
when the pipe from it closes, it kills PID 1 (and with it everything inside) and tidies up.
When the keeper itself dies, the kernel kills PID 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGES = "systemd, dbus, dbus-user-session and libpam-systemd"
BOOT_SECONDS = 60.0
STOP_SECONDS = 20.0

#: Where the source tree is inside; readable by everyone, wherever the repository lives.
SOURCE_INSIDE = "/opt/staddle-under-test"
USER = "staddle-test"
TARGET = "staddle-test.target"
#: Memory of its own: file systems there can translate owners, which overlayfs cannot.
WORK = "/srv"

#: Units that would only warm the processor, or reach for hardware that is not theirs.
MASKED = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "cron.service",
    "dev-hugepages.mount",
    "e2scrub_reap.service",
    "getty.target",
    "ldconfig.service",
    "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-binfmt.service",
    "systemd-modules-load.service",
    "systemd-networkd.service",
    "systemd-pstore.service",
    "systemd-random-seed.service",
    "systemd-remount-fs.service",
    "systemd-resolved.service",
    "systemd-sysctl.service",
    "systemd-timesyncd.service",
    "systemd-tmpfiles-setup-dev.service",
    "systemd-udev-trigger.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    "systemd-udevd.service",
)

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
NEW_MOUNTS, NEW_CGROUP, NEW_UTS, NEW_IPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEW_PIDS, NEW_NETWORK = 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 1, 24
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
#: What PID 1 must not be able to do to the real machine: raw I/O, modules, the clock, the log.
DROPPED_CAPABILITIES = (16, 17, 25, 34)

_libc = ctypes.CDLL(None, use_errno=True)


class PrivateSystemd:
    """One booted systemd: `with PrivateSystemd() as machine: machine.run([...], user=True)`."""

    def __init__(self) -> None:
        self.uid = _free_id()
        self.gid = self.uid
        self.user = USER
        self.home = f"/home/{USER}"
        self.init = 0
        self._keeper: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the machine

    def __enter__(self) -> PrivateSystemd:
        if os.geteuid() != 0:
            raise RuntimeError("a private systemd can only be started by root")
        for program in ("/lib/systemd/systemd", "/usr/bin/dbus-daemon", "/usr/bin/nsenter"):
            if not os.access(program, os.X_OK):
                raise RuntimeError(f"{program} is missing: install {PACKAGES}")
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(SOURCE), str(self.uid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for the test run; the keeper tidies up after it
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        try:
            self._wait_until_booted()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        keeper.stdin.close()
        try:
            keeper.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()
            raise RuntimeError(f"the private systemd did not stop\n{self.log()}") from None
        finally:
            keeper.stdout.close()

    def log(self) -> str:
        """What the keeper and systemd wrote so far."""
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")

    def outside(self, path: str) -> Path:
        """How root on the host names `path` of the private machine."""
        return Path(f"/proc/{self.init}/root{path}")

    def enter(self, argv: list[str], *, user: bool, env: dict[str, str] | None = None) -> list[str]:
        """The command line that runs `argv` inside, as the ordinary user or as root."""
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}
        # Who kills what we start here kills nsenter, whose child must go with it.
        identity = ["setpriv", "--pdeathsig=KILL"]
        if user:
            runtime = f"/run/user/{self.uid}"
            variables |= {"HOME": self.home, "USER": self.user, "LOGNAME": self.user}
            variables |= {"XDG_RUNTIME_DIR": runtime, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus"}
            identity += [f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups"]
        else:
            variables |= {"HOME": "/root", "USER": "root", "LOGNAME": "root"}
        variables |= env or {}
        enter = ["nsenter", f"--target={self.init}", "-m", "-p", "-u", "-i", "-n", "-C", "--"]
        return [*enter, *identity, "--", "env", "-i", *(f"{k}={v}" for k, v in variables.items()), *argv]

    def work_place(self, name: str, *, user: bool) -> str:
        """A new directory inside that belongs to the user, or to root."""
        path = f"{WORK}/{name}"
        self.outside(path).mkdir()
        if user:
            os.chown(self.outside(path), self.uid, self.gid)
        return path

    def copy_in(self, file: Path, path: str) -> None:
        """Put a copy of a file of ours at `path`, readable by everyone there."""
        shutil.copyfile(file, self.outside(path))
        self.outside(path).chmod(0o644)

    def run(
        self,
        argv: list[str],
        *,
        user: bool,
        env: dict[str, str] | None = None,
        input: bytes = b"",
        timeout: float = 240,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `argv` inside to its end."""
        return subprocess.run(
            self.enter(argv, user=user, env=env),
            input=input,
            capture_output=True,
            timeout=timeout,
            check=False,
        )

    def popen(
        self, argv: list[str], *, user: bool, env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start `argv` inside with pipes on all three standard descriptors."""
        pipe = subprocess.PIPE
        return subprocess.Popen(self.enter(argv, user=user, env=env), stdin=pipe, stdout=pipe, stderr=pipe)

    def _wait_until_booted(self) -> None:
        assert self._keeper is not None
        assert self._keeper.stdout is not None
        end = time.monotonic() + BOOT_SECONDS
        ready, _, _ = select.select([self._keeper.stdout], [], [], BOOT_SECONDS)
        told = self._keeper.stdout.readline() if ready else b""
        if not told:
            raise RuntimeError(f"the private systemd did not start\n{self.log()}")
        self.init = int(told)
        bus, manager = (self.outside(f"/run/user/{self.uid}/{name}") for name in ("bus", "systemd/private"))
        while not (bus.exists() and manager.exists()):
            if self._keeper.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the user manager did not start in {BOOT_SECONDS:.0f} s\n{self.log()}")
            time.sleep(0.05)
        for user in (True, False):
            command = ["systemd-run", *(["--user"] if user else []), "--wait", "--collect", "--quiet", "true"]
            answer = self.run(command, user=user, timeout=max(end - time.monotonic(), 1))
            if answer.returncode != 0:
                raise RuntimeError(f"the private systemd starts no unit: {answer.stderr!r}\n{self.log()}")


def _free_id() -> int:
    """An id that is neither a user nor a group of the host."""
    taken: set[str] = set()
    for table in ("/etc/passwd", "/etc/group"):
        taken |= {line.split(":")[2] for line in Path(table).read_text().splitlines() if line.count(":") > 2}
    return next(number for number in range(4200, 60000) if str(number) not in taken)


# ---------------------------------------------------------------- the keeper


def keep(source: str, uid: int) -> None:
    """Start PID 1, tell its pid on stdout, and end everything when stdin closes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    group = Path(_cgroup2_mount()) / f"staddle-test-{os.getpid()}"
    base = Path(tempfile.mkdtemp(prefix="private-systemd-"))
    init = 0
    try:
        group.mkdir()
        _check(_libc.unshare(NEW_PIDS), "a pid namespace")
        init = os.fork()
        if init == 0:
            _become_init(source, uid, group, base)
        os.write(1, b"%d\n" % init)
        lost = os.pidfd_open(init)
        select.select([0, lost], [], [])
    finally:
        if init:
            os.kill(init, signal.SIGKILL)
            os.waitpid(init, 0)  # returns when every process of its namespace is gone
        _remove_cgroups(group)
        base.rmdir()


def _remove_cgroups(group: Path) -> None:
    end = time.monotonic() + 60
    while group.exists() and time.monotonic() < end:
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):  # busy for a moment: its last process is still ending
                os.rmdir(folder)
        time.sleep(0.01)


def _cgroup2_mount() -> str:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, kind, *_ = line.split()
        if kind == "cgroup2":
            return target
    raise RuntimeError("no cgroup2 hierarchy is mounted; systemd needs one")


def _become_init(source: str, uid: int, group: Path, base: Path) -> None:
    """Runs as root, PID 1 of a new pid namespace, and never returns."""
    try:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != 0:
            raise RuntimeError("not in a pid namespace of our own")
        (group / "cgroup.procs").write_text("0")
        spaces = NEW_MOUNTS | NEW_CGROUP | NEW_UTS | NEW_IPC | NEW_NETWORK
        _check(_libc.unshare(spaces), "the namespaces")
        _mount("none", "/", "", MS_REC | MS_PRIVATE)
        _switch_loopback_on()
        root = _make_root(base)
        _add_user(root, uid)
        _fill(root, source, uid)
        os.chdir(root)
        _check(_libc.syscall(_pivot_root_number(), b".", b"."), "pivot_root")
        _check(_libc.umount2(b".", MNT_DETACH), "umount of the old root")
        os.chdir("/")
        for capability in DROPPED_CAPABILITIES:
            _check(_libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), "capability drop")
        os.dup2(os.open("/dev/null", os.O_RDWR), 0)
        os.dup2(2, 1)
        words = ["--log-target=console", "--log-level=notice", "--show-status=false", f"--unit={TARGET}"]
        environment = {"container": "staddle-test", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        os.execve("/lib/systemd/systemd", ["systemd", *words], environment)  # noqa: S606
    except BaseException as error:
        print(f"private systemd: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(1)


def _switch_loopback_on() -> None:
    interface = struct.pack("16sH22x", b"lo", IFF_UP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, interface)


def _make_root(base: Path) -> Path:
    """The overlay of `/` with kernel file systems of its own; no device, no sysctl of the host writable."""
    _mount("tmpfs", base, "tmpfs", options="size=2g,mode=755")
    upper, work, root = base / "upper", base / "work", base / "root"
    for folder in (upper, work, root):
        folder.mkdir()
    upper.chmod(0o755)
    _mount("overlay", root, "overlay", options=f"lowerdir=/,upperdir={upper},workdir={work}")
    _mount("proc", root / "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    # PID 1 raises the machine's file limits at boot: /proc/sys is read-only for it. The kernel
    # lets a user namespace mount its own /proc only where a whole one is mounted somewhere, as
    # on any real machine, so that an unmasked one waits where nobody looks.
    (root / WORK.lstrip("/")).mkdir(exist_ok=True)
    whole = root / "var/lib/whole-proc"
    whole.mkdir(mode=0o700)
    _mount("proc", whole, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in ("sys", "sysrq-trigger", "irq", "bus"):
        path = root / "proc" / name
        if path.exists():
            _mount(path, path, "", MS_BIND)
            _mount("none", path, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _mount("sysfs", root / "sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _mount("cgroup2", root / "sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _mount("tmpfs", root / "dev", "tmpfs", MS_NOSUID, "mode=755")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        (root / "dev" / name).touch()
        _mount(f"/dev/{name}", root / "dev" / name, "", MS_BIND)
    for name in ("pts", "shm"):
        (root / "dev" / name).mkdir()
    _mount("devpts", root / "dev/pts", "devpts", options="newinstance,ptmxmode=0666,mode=620")
    _mount("tmpfs", root / "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    _mount("tmpfs", root / "run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    _mount("tmpfs", root / "tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    _mount("tmpfs", root / WORK.lstrip("/"), "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
    for name, target in links.items():
        (root / "dev" / name).symlink_to(target)
    (root / "run/lock").mkdir()
    return root


def _add_user(root: Path, uid: int) -> None:
    entries = {
        "passwd": f"{USER}:x:{uid}:{uid}::/home/{USER}:/bin/bash\n",
        "shadow": f"{USER}:*:19000:0:99999:7:::\n",
        "group": f"{USER}:x:{uid}:\n",
    }
    for table, line in entries.items():
        with (root / "etc" / table).open("a") as file:
            file.write(line)
    home = root / "home" / USER
    home.mkdir(parents=True)
    home.chmod(0o700)
    os.chown(home, uid, uid)
    linger = root / "var/lib/systemd/linger"
    linger.mkdir(parents=True, exist_ok=True)
    (linger / USER).touch()


def _fill(root: Path, source: str, uid: int) -> None:
    units = root / "etc/systemd/system"
    units.mkdir(parents=True, exist_ok=True)
    for unit in MASKED:
        path = units / unit
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/null")
    needed = f"basic.target dbus.service systemd-logind.service user@{uid}.service"
    (units / TARGET).write_text(f"[Unit]\nRequires={needed}\nAfter={needed}\n")
    (root / "etc/fstab").write_text("")
    (root / "etc/hostname").write_text("staddle-test\n")
    identity = root / "etc/machine-id"
    if not identity.exists() or not identity.read_text().strip():
        identity.write_text("0123456789abcdef0123456789abcdef\n")
    inside = root / SOURCE_INSIDE.lstrip("/")
    shutil.copytree(source, inside, ignore=shutil.ignore_patterns("*.pyc.*"))  # not what is half written
    for folder, _, files in os.walk(inside):  # readable whatever the umask of the clone was
        os.chmod(folder, 0o755)
        for name in files:
            os.chmod(os.path.join(folder, name), 0o644)


def _pivot_root_number() -> int:
    return {"x86_64": 155, "aarch64": 41}[os.uname().machine]


def _mount(source: object, target: object, kind: str, flags: int = 0, options: str = "") -> None:
    arguments = (os.fsencode(str(source)), os.fsencode(str(target)), kind.encode() or None)
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None), f"mount of {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    keep(sys.argv[1], int(sys.argv[2]))
