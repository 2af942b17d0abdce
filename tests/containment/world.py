"""What stands around the sandbox: canaries of every kind, and whether anything happened to them.

Everything is open to everyone (files 0666, directories 0777, IPC objects 0666), so that
nothing but the sandbox stands between an attack and its target.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from staddle.linux.syscalls import call
from staddle.testing import Canary, Trace, trace

from .probes import ATTACKS

#: Made in every network namespace by the kernel itself.
PSEUDO_INTERFACES = [
    "lo",
    "tunl0",
    "sit0",
    "ip6tnl0",
    "gre0",
    "gretap0",
    "erspan0",
    "ip_vti0",
    "ip6_vti0",
    "ip6gre0",
]
PRIVATE_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run")
libc = ctypes.CDLL(None, use_errno=True)


class World:
    """One set of canaries. `with World(names) as world: ...; world.damage()`.

    `names` are the attacks and twins to be run: each has files, and a process, of its own.
    `deny_below` says in which zone the denied paths lie, `work` or `readable`.
    """

    def __init__(self, names: Iterable[str], *, deny_below: str = "work", place: str = "/var/tmp") -> None:
        self._deny_below = deny_below
        self._place = place
        self._names = set(names)
        self._attacks = {name: attack for name, attack in ATTACKS.items() if name in self._names}
        self.facts: dict[str, Any] = {}
        self.canary = Canary()
        self.hits: dict[str, int] = {}
        self._undo = contextlib.ExitStack()
        self._before: dict[str, Trace] = {}
        self._victims: dict[str, subprocess.Popen[bytes]] = {}
        self._hurt: list[tuple[str, str]] = []

    def __enter__(self) -> World:
        try:
            self._tag = f"staddle-{os.getpid()}-{random.getrandbits(40):010x}"
            old = os.umask(0)
            try:
                self._make_files()
                self._make_sockets()
                self._make_ipc()
            finally:
                os.umask(old)
            self._make_processes()
            self._make_environment()
            self._make_key()
            self.facts |= {"starter": os.getpid(), "typed": "typed\n"}
            self.remember()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    # ------------------------------------------------------------------ making

    def _make_files(self) -> None:
        base = tempfile.mkdtemp(prefix="staddle-world-", dir=self._place)
        self._undo.callback(shutil.rmtree, base, ignore_errors=True)
        os.chmod(base, 0o755)
        facts = self.facts
        for zone in ("outside", "readable", "work"):
            facts[zone] = os.path.join(base, zone)
            os.mkdir(facts[zone])
        facts["secret"] = self._file("outside/secret", base)
        facts["program"] = shutil.copyfile("/usr/bin/true", os.path.join(base, "outside/program"))
        os.chmod(facts["program"], 0o755)
        self._file("readable/plain", base, "readable")
        for name in self._names:
            zones = ["work"]
            if name in ATTACKS and ATTACKS[name].protection in ("write", "metadata"):
                zones += ["outside", "readable"]
            for zone in zones:
                own = f"{zone}/{name}"
                os.makedirs(os.path.join(base, own, "directory"))
                self._file(f"{own}/file", base)
                self._file(f"{own}/other", base)
            if name in ATTACKS and ATTACKS[name].protection == "guard":
                for directory in ("objects", "refs", "hooks"):
                    os.makedirs(os.path.join(base, "work", name, ".git", directory))
                self._file(f"work/{name}/.git/HEAD", base, "ref: refs/heads/main\n")
                self._file(f"work/{name}/.git/config", base, "[core]\n")
                self._file(f"work/{name}/.bashrc", base, "# mine\n")
                for directory in (".claude", ".vscode"):
                    os.makedirs(os.path.join(base, "work", name, directory))
        facts["denied"] = denied = os.path.join(base, self._deny_below, "denied")
        facts["denied_directory"] = os.path.join(denied, "directory")
        os.makedirs(facts["denied_directory"])
        self._file("directory/secret", denied)
        facts["denied_file"] = self._file("file", denied)
        os.makedirs(os.path.join(denied, "parent"))
        facts["denied_deep"] = self._file("parent/deep", denied)
        facts["denied_missing"] = os.path.join(facts["readable"], "missing")
        facts["late"] = os.path.join(base, "late")
        os.mkdir(facts["late"])
        facts["denied_late"] = os.path.join(facts["late"], "appears")
        facts["host_tmp"] = self._temporary(f"/tmp/{self._tag}")
        facts["host_shm"] = self._temporary(f"/dev/shm/{self._tag}")
        self._temporary(facts["host_shm"] + "-other")
        facts["home"] = os.path.expanduser("~")
        facts["home_entry"] = os.path.basename(self._temporary(os.path.join(facts["home"], f".{self._tag}")))
        facts["left_name"] = f"{self._tag}-left"

    def denies(self) -> list[str]:
        """What the policy denies."""
        return [self.facts[f"denied_{name}"] for name in ("directory", "file", "deep", "missing", "late")]

    def appear(self) -> None:
        """Make what was missing at the start."""
        self._file(self.facts["denied_late"], "/")

    def _file(self, name: str, base: str, text: str | None = None, mode: int = 0o666) -> str:
        path = os.path.join(base, name)
        with open(path, "w") as file:
            file.write(self.canary.text if text is None else text)
        os.chmod(path, mode)
        return path

    def _temporary(self, path: str) -> str:
        self._file(path, "/")
        self._undo.callback(_remove, path)
        return path

    def _make_sockets(self) -> None:
        facts = self.facts
        selector = selectors.DefaultSelector()
        self._undo.callback(selector.close)
        wake, woken = socket.socketpair()
        selector.register(woken, selectors.EVENT_READ, "stop")

        def add(label: str, family: int, kind: int, where: Any) -> socket.socket:
            s = socket.socket(family, kind)
            self._undo.callback(s.close)
            s.bind(where)
            if kind == socket.SOCK_STREAM:
                s.listen(64)
            s.setblocking(False)
            selector.register(s, selectors.EVENT_READ, label)
            self.hits[label] = 0
            return s

        stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
        facts["tcp_port"] = add("network: tcp", socket.AF_INET, stream, ("127.0.0.1", 0)).getsockname()[1]
        facts["udp_port"] = add("network: udp", socket.AF_INET, datagram, ("127.0.0.1", 0)).getsockname()[1]
        facts["tcp6_port"] = add("network: tcp6", socket.AF_INET6, stream, ("::1", 0)).getsockname()[1]
        places = {
            "socket_outside": os.path.join(facts["outside"], "listener"),
            "socket_readable": os.path.join(facts["readable"], "listener"),
            "socket_writable": os.path.join(facts["work"], "listener"),
            "socket_tmp": f"/tmp/{self._tag}-socket",
        }
        for name, path in places.items():
            facts[name] = path
            add(f"sockets: {name}", socket.AF_UNIX, stream, path)
        facts["socket_datagram"] = os.path.join(facts["outside"], "datagram")
        add("sockets: datagram", socket.AF_UNIX, datagram, facts["socket_datagram"])
        self._undo.callback(_remove, places["socket_tmp"])
        facts["abstract"], facts["abstract_datagram"] = f"{self._tag}-a", f"{self._tag}-d"
        add("sockets: abstract", socket.AF_UNIX, stream, b"\0" + facts["abstract"].encode())
        add(
            "sockets: abstract datagram",
            socket.AF_UNIX,
            datagram,
            b"\0" + facts["abstract_datagram"].encode(),
        )
        facts["interfaces"] = [name for _, name in socket.if_nameindex()]
        facts["pseudo_interfaces"] = PSEUDO_INTERFACES

        def listen() -> None:
            while True:
                for key, _ in selector.select():
                    if key.data == "stop":
                        return
                    self.hits[key.data] += 1
                    with contextlib.suppress(OSError):
                        s: Any = key.fileobj
                        if s.type == socket.SOCK_STREAM:
                            s.accept()[0].close()
                        else:
                            s.recv(100)

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()

        def stop() -> None:
            wake.send(b"x")
            listener.join(60)
            wake.close()
            woken.close()

        self._undo.callback(stop)

    def _make_ipc(self) -> None:
        facts = self.facts
        key = 1 << 20 | random.getrandbits(28)
        create = 0o1000 | 0o2000 | 0o666
        shm = _checked(libc.shmget(key, 4096, create))
        self._undo.callback(libc.shmctl, shm, 0, None)
        libc.shmat.restype = ctypes.c_void_p
        where = libc.shmat(shm, None, 0)
        ctypes.memmove(where, self.canary.text.encode(), len(self.canary.text))
        libc.shmdt(ctypes.c_void_p(where))
        sem = _checked(libc.semget(key, 1, create))
        self._undo.callback(libc.semctl, sem, 0, 0)
        msg = _checked(libc.msgget(key, create))
        self._undo.callback(libc.msgctl, msg, 0, None)
        text = self.canary.text.encode()
        _checked(libc.msgsnd(msg, (1).to_bytes(8, "little") + text, len(text), 0o4000))
        name = f"{self._tag}-mq"
        os.close(call("mq_open", name.encode() + b"\0", os.O_CREAT | os.O_RDWR, 0o666, 0))
        self._undo.callback(_quietly, call, "mq_unlink", name.encode() + b"\0")
        facts |= {"ipc_key": key, "shm_id": shm, "mq_name": name + "\0"}
        self._ipc = (sem, msg)

    def _make_processes(self) -> None:
        marker = f"{self._tag}-victim"
        self.facts["marker"] = marker
        for name in ("anybody", *self._attacks):
            if name == "anybody" or self._attacks[name].protection in ("signals", "processes"):
                started = subprocess.Popen(
                    [marker, "600"],
                    executable="/usr/bin/sleep",
                    stdin=subprocess.DEVNULL,
                    env={"VICTIM": self.canary.text},
                )
                self._victims[name] = started
                self._undo.callback(_end, started)
        self.facts["victims"] = {name: started.pid for name, started in self._victims.items()}
        self._victims_before = {name: _state(v) for name, v in self._victims.items()}

    def _make_environment(self) -> None:
        secret = f"{self.canary.text}-environment"
        variables = {
            "STADDLE_HOST_SECRET": secret,
            "SSH_AUTH_SOCK": self.facts["socket_outside"],
            "DISPLAY": ":99",
            "DOCKER_HOST": f"unix://{self.facts['socket_outside']}",
            "BASH_ENV": "/dev/null",
            "GIT_CONFIG_GLOBAL": self.facts["secret"],
            "NODE_OPTIONS": "--no-warnings",
            "LD_LIBRARY_PATH": "/nonexistent",
            "PERL5LIB": "/nonexistent",
        }
        for name, value in variables.items():
            old = os.environ.get(name)
            os.environ[name] = value
            self._undo.callback(_restore, name, old)
        self.facts |= {
            "host_variables": [*variables, "DBUS_SESSION_BUS_ADDRESS"],
            "environment_secret": secret,
        }

    def _make_key(self) -> None:
        """In a session keyring of our own, which the sandbox inherits like every child does."""
        self.facts["key_name"] = f"{self._tag}-key"
        try:
            call("keyctl", 1, 0)  # join a new, anonymous session keyring
        except PermissionError:
            return  # in a container: its filter refuses keys to everybody
        text = self.canary.text.encode()
        key = call(
            "add_key", b"user\0", self.facts["key_name"].encode() + b"\0", text, len(text), -3 & 0xFFFFFFFF
        )
        call("keyctl", 5, key, 0x3F3F3F3F)  # everyone may do everything
        self._undo.callback(_quietly, call, "keyctl", 3, key)  # revoke

    # ------------------------------------------------------------------ looking afterwards

    def remember(self) -> None:
        """From now on, a change is damage."""
        self._before = {zone: trace(self.facts[zone]) for zone in ("outside", "readable", "denied")}

    def hurt(self, protection: str, what: str) -> None:
        """Damage that somebody else has seen."""
        self._hurt.append((protection, what))

    def damage(self) -> dict[str, list[str]]:
        """What happened outside, by the protection that should have prevented it."""
        time.sleep(0.05)  # a connection is counted by another thread
        found: dict[str, list[str]] = {}

        def add(protection: str, what: str) -> None:
            found.setdefault(protection, []).append(what)

        for protection, what in self._hurt:
            add(protection, what)
        for zone, before in self._before.items():
            after = trace(self.facts[zone])
            for name in before.keys() | after.keys():
                if before.get(name) != after.get(name):
                    if zone == "denied":
                        add("deny", name)
                        continue
                    owner = ATTACKS.get(name.split("/")[0])
                    add(owner.protection if owner else "write", f"{zone}/{name}")
        for name, attack in self._attacks.items():
            own = os.path.join(self.facts["work"], name)
            if attack.protection == "guard" and _protected_names(own) != UNTOUCHED:
                add("guard", f"{name}: {_protected_names(own)}")
        for label, count in self.hits.items():
            if count:
                add(label.split(":")[0], f"{label} x{count}")
        for name, victim in self._victims.items():
            if _state(victim) != self._victims_before[name]:
                add("signals", f"{name}: {self._victims_before[name]} -> {_state(victim)}")
        sem, msg = self._ipc
        if libc.semctl(sem, 0, 12) != 0:
            add("ipc", "the semaphore was changed")
        if libc.msgrcv(msg, ctypes.create_string_buffer(200), 100, 0, 0o4000 | 0o10000) < 0:
            add("ipc", "the message was taken")
        for place in (*PRIVATE_PLACES, self.facts["home"], "/home/user"):
            path = os.path.join(place, self.facts["left_name"])
            if os.path.lexists(path):
                add("tmp", path)
                _remove(path)
        if trace(self.facts["host_shm"] + "-other")["."][-1] != trace(self.facts["host_shm"])["."][-1]:
            add("tmp", "the file in /dev/shm was changed")
        return found


UNTOUCHED = ["# mine\n", "[core]\n", [], [], True]


def _protected_names(own: str) -> list[object]:
    """What can be seen of the protected names in one attack's directory."""
    try:
        texts: list[object] = [Path(own, name).read_text() for name in (".bashrc", ".git/config")]
        listed = [os.listdir(os.path.join(own, name)) for name in (".git/hooks", ".claude")]
        return [*texts, *listed, not os.path.exists(os.path.join(own, "away"))]
    except OSError as error:
        return [str(error)]


def _state(victim: subprocess.Popen[bytes]) -> object:
    if victim.poll() is not None:
        return f"ended with {victim.returncode}"
    with open(f"/proc/{victim.pid}/oom_score_adj") as file:
        score = file.read().strip()
    with open(f"/proc/{victim.pid}/limits") as file:
        files = next(line for line in file if line.startswith("Max open files"))
    return (
        os.getpriority(os.PRIO_PROCESS, victim.pid),
        sorted(os.sched_getaffinity(victim.pid)),
        score,
        files.split(),
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    process.wait()


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _quietly(function: Any, *arguments: Any) -> None:
    with contextlib.suppress(OSError):
        function(*arguments)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
