"""A second sandbox of the same user, at the same time, is as far away as the host."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket

from .kit import Refused, World, attack, libc

AWAY = "ENOENT EACCES EPERM"


@attack("tmp", AWAY, twin="write-to-private-directories")
def read_a_neighbours_tmp(world: World) -> str:
    with open(os.path.join(world["neighbour"]["tmp"], "secret")) as file:
        return file.read()


@attack("tmp", AWAY, twin="write-to-private-directories")
def read_a_neighbours_shared_memory(world: World) -> str:
    with open(os.path.join("/dev/shm", world["neighbour"]["name"])) as file:
        return file.read()


@attack("sockets", AWAY + " ECONNREFUSED", twin="socketpair-and-own-socket")
def connect_to_a_neighbours_socket(world: World) -> str:
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(b"\0" + world["neighbour"]["name"].encode())
    return "connected"


@attack("ipc", "ENOENT EINVAL ENOSYS EPERM EACCES nothing", twin="own-shared-memory")
def attach_a_neighbours_memory(world: World) -> bytes:
    if not world["neighbour"]["memory"]:
        raise Refused("the neighbour has none to begin with")
    identifier = libc.shmget(world["neighbour"]["memory"], 0, 0)
    libc.shmat.restype = ctypes.c_void_p
    where = libc.shmat(identifier, None, 0) if identifier >= 0 else None
    if where in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "shmat")
    return ctypes.string_at(where, 40)


@attack("processes", "nothing", twin="signal-and-trace-own-child")
def see_a_neighbour(world: World) -> str:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                if world["neighbour"]["name"] in file.read():
                    return pid
        except OSError:
            continue
    raise Refused("nobody is there")


@attack("signals", "ESRCH EPERM", twin="signal-and-trace-own-child")
def kill_a_neighbour(world: World) -> str:
    from .processes import _of_the_host

    os.kill(_of_the_host(world["neighbour"]["pid"]), signal.SIGTERM)
    return "sent"


def main(asked: dict) -> None:
    """Be the neighbour: have something of every kind, say where, and stay until standard input ends."""
    name, secret = asked["name"], asked["secret"]
    os.umask(0)
    tmp = os.path.join(os.environ.get("TMPDIR", "/tmp"), name)
    os.mkdir(tmp)
    for path in (os.path.join(tmp, "secret"), os.path.join("/dev/shm", name)):
        with open(path, "w") as file:
            file.write(secret)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(b"\0" + name.encode())
    listener.listen()
    key = 1 << 20 | os.getpid() << 8 | 7
    memory = libc.shmget(key, 4096, 0o3666)
    if memory >= 0:
        libc.shmat.restype = ctypes.c_void_p
        ctypes.memmove(libc.shmat(memory, None, 0), secret.encode(), len(secret))
    print(json.dumps({"tmp": tmp, "memory": key if memory >= 0 else 0}), flush=True)
    os.read(0, 1)
    if memory >= 0:
        libc.shmctl(memory, 0, None)
    os.unlink(os.path.join("/dev/shm", name))
    os.unlink(os.path.join(tmp, "secret"))
    os.rmdir(tmp)
