"""Sockets, shared memory, queues, keys and descriptors of the host."""

from __future__ import annotations

import ctypes
import os
import socket

from .kit import Refused, World, address, attack, call, checked, libc, twin

SOCKET_AWAY = "ENOENT EACCES EPERM ECONNREFUSED ELOOP ENOTDIR"
TWIN = "socketpair-and-own-socket"


def _connect(where: str | bytes, kind: int = socket.SOCK_STREAM) -> str:
    with socket.socket(socket.AF_UNIX, kind) as s:
        s.settimeout(3)
        s.connect(where)
    return repr(where)


@attack("sockets", SOCKET_AWAY, twin=TWIN)
def connect_to_a_socket_outside(world: World) -> str:
    return _connect(world["socket_outside"])


@attack("sockets", SOCKET_AWAY, twin=TWIN)
def connect_to_a_socket_in_tmp(world: World) -> str:
    return _connect(world["socket_tmp"])


@attack("sockets", SOCKET_AWAY, twin=TWIN)
def connect_to_a_socket_by_link(world: World) -> str:
    link = os.path.join(world["work"], world["name"], "link")
    os.symlink(world["socket_outside"], link)
    return _connect(link)


@attack("sockets", SOCKET_AWAY, twin=TWIN)
def connect_to_a_socket_by_descriptor(world: World) -> str:
    parent = os.open(os.path.dirname(world["socket_outside"]), os.O_PATH | os.O_DIRECTORY)
    return _connect(f"/proc/self/fd/{parent}/{os.path.basename(world['socket_outside'])}")


@attack("sockets", SOCKET_AWAY, twin=TWIN)
def connect_to_a_socket_by_relative_path(world: World) -> str:
    os.chdir(os.path.dirname(world["socket_outside"]))
    return _connect(os.path.basename(world["socket_outside"]))


@attack("sockets", SOCKET_AWAY, twin=TWIN)
def connect_to_a_socket_in_a_read_grant(world: World) -> str:
    """A read-only mount does not stop connect()."""
    return _connect(world["socket_readable"])


@attack("sockets", SOCKET_AWAY, twin=TWIN)
def connect_to_a_socket_in_a_write_grant(world: World) -> str:
    return _connect(world["socket_writable"])


@attack("sockets", SOCKET_AWAY + " EPROTOTYPE", twin=TWIN)
def send_to_a_datagram_socket(world: World) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.sendto(b"reached", world["socket_datagram"])
    return "sent"


@attack("sockets", SOCKET_AWAY + " EISCONN", twin=TWIN)
def aim_a_pair_at_a_datagram_socket(world: World) -> str:
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.connect(world["socket_datagram"])
    one.send(b"reached")
    return "sent"


@attack("sockets", SOCKET_AWAY, twin=TWIN)
def connect_to_an_abstract_socket(world: World) -> str:
    return _connect(b"\0" + world["abstract"].encode())


@attack("sockets", SOCKET_AWAY + " EPROTOTYPE", twin=TWIN)
def send_to_an_abstract_datagram_socket(world: World) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.sendto(b"reached", b"\0" + world["abstract_datagram"].encode())
    return "sent"


NOT_OURS = "ENOENT EINVAL EIDRM ENOSYS EPERM EACCES"


@attack("ipc", NOT_OURS, twin="own-shared-memory")
def attach_shared_memory(world: World) -> bytes:
    libc.shmat.restype = ctypes.c_void_p
    for identifier in (world["shm_id"], libc.shmget(world["ipc_key"], 0, 0)):
        where = libc.shmat(identifier, None, 0)
        if where not in (None, ctypes.c_void_p(-1).value):
            return ctypes.string_at(where, 40)
    raise OSError(ctypes.get_errno(), "shmat")


@attack("ipc", NOT_OURS, twin="own-shared-memory")
def change_a_semaphore(world: World) -> int:
    # SETVAL of the first semaphore; by key, so that an id of our own is never taken for the host's.
    identifier = checked(libc.semget(world["ipc_key"], 1, 0))
    return checked(libc.semctl(identifier, 0, 16, 7))


@attack("ipc", NOT_OURS + " ENOMSG", twin="own-shared-memory")
def take_a_message(world: World) -> bytes:
    identifier = checked(libc.msgget(world["ipc_key"], 0))
    buffer = ctypes.create_string_buffer(8 + 100)
    size = checked(libc.msgrcv(identifier, buffer, 100, 0, 0o4000))
    return buffer.raw[8 : 8 + size]


@attack("ipc", NOT_OURS, twin="own-shared-memory")
def open_a_message_queue(world: World) -> int:
    return call("mq_open", world["mq_name"].encode(), os.O_RDWR | os.O_NONBLOCK, 0, 0)


@attack("keyring", "ENOSYS EPERM EACCES ENOKEY", twin="forks-and-threads")
def read_a_key(world: World) -> bytes:
    """Search the session keyring that was inherited, then read what is found."""
    found = call("keyctl", 10, -3 & 0xFFFFFFFF, b"user\0", world["key_name"].encode() + b"\0", 0)
    buffer = ctypes.create_string_buffer(200)
    size = call("keyctl", 11, found, address(buffer), 200, 0)
    return buffer.raw[:size]


@attack("keyring", "ENOSYS EPERM EACCES ENOKEY", twin="forks-and-threads")
def request_a_key(world: World) -> int:
    return call("request_key", b"user\0", world["key_name"].encode() + b"\0", 0, 0)


@attack("keyring", "ENOENT EACCES EPERM nothing", twin="forks-and-threads")
def list_keys(world: World) -> str:
    with open("/proc/keys") as file:
        text = file.read()
    if world["key_name"] not in text:
        raise Refused("no key of the host")
    return text


@attack("keyring", "ENOENT EACCES EPERM nothing", twin="forks-and-threads")
def count_keys(world: World) -> str:
    with open("/proc/key-users") as file:
        return file.read() or _nothing()


def _nothing() -> str:
    raise Refused("empty")


@attack("descriptors", "nothing", twin="forks-and-threads")
def find_open_descriptors(world: World) -> dict[str, str]:
    listing = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
    found = {}
    for name in os.listdir(listing):
        if int(name) > 2 and int(name) != listing:
            try:
                found[name] = os.readlink(f"/proc/self/fd/{name}")
            except FileNotFoundError:
                continue  # the one that listdir itself opened
    if not found:
        raise Refused("0, 1 and 2")
    return found


@attack("environment", "nothing", twin="forks-and-threads")
def find_variables_of_the_host(world: World) -> list[str]:
    with open("/proc/self/environ", "rb") as file:
        at_start = file.read()
    found = [
        name for name in world["host_variables"] if name in os.environ or name.encode() + b"=" in at_start
    ]
    if not found:
        raise Refused("none of them")
    return found


@attack("environment", "nothing EACCES EPERM", twin="forks-and-threads")
def find_the_secret_in_any_environment(world: World) -> str:
    """Of every process that can be seen, PID 1 and our own launcher included."""
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if world["environment_secret"].encode() in file.read():
                    return pid
        except OSError:
            continue
    raise Refused("in none")


@twin
def own_shared_memory(world: World) -> str:
    from multiprocessing import shared_memory

    block = shared_memory.SharedMemory(create=True, size=16)
    block.buf[:2] = b"ok"
    again = shared_memory.SharedMemory(block.name)
    assert bytes(again.buf[:2]) == b"ok"
    again.close()
    block.close()
    block.unlink()
    return "shared"


@twin
def send_a_descriptor(world: World) -> str:
    one, other = socket.socketpair()
    reader, writer = os.pipe()
    socket.send_fds(one, [b"x"], [writer])
    _, (received,), _, _ = socket.recv_fds(other, 1, 1)
    os.write(received, b"ok")
    assert os.read(reader, 2) == b"ok"
    return "sent"
