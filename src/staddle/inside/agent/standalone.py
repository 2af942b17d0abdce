"""The agent as a separate program, for backends without a fork server.

The backend starts `python -I -S -c LOADER`, confined like any command, with one end of a socket pair as its
standard input. The code comes over that socket in a memory file. So only the interpreter and its library need
be visible inside, and none of our files.

The backend sets the environment and the directory of that command from the plan. A shell that is requested
without either gets these.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Sequence
    from types import CodeType
    from typing import NoReturn

#: The agent's modules, in the order of import.
_PACKAGES = (
    *("staddle", "staddle.linux", "staddle.ipc", "staddle.inside", "staddle.inside.agent"),
    *("staddle.network", "staddle.network.namespace"),
)
_MODULES = (
    *("staddle.linux.procfs", "staddle.linux.syscalls", "staddle.linux.process"),
    *("staddle.linux.fileio", "staddle.ipc.wire", "staddle.inside.child"),
    *("staddle.ipc.agent_messages", "staddle.inside.agent.shell_files"),
    *("staddle.inside.agent.process_tree", "staddle.inside.agent.loader"),
    *("staddle.inside.agent.processes", "staddle.inside.agent.usage"),
    *("staddle._value", "staddle.ipc.gateway_messages", "staddle.network.namespace.socket_handoff"),
    *("staddle.inside.agent.starter", "staddle.inside.agent.sudo"),
    *("staddle.inside.agent.agent", "staddle.inside.agent.standalone"),
)

#: The modules of a file server.
_FILE_SERVER_PACKAGES = (*_PACKAGES, "staddle.files")
_FILE_SERVER_MODULES = (
    *("staddle._value", "staddle.errors", "staddle.linux.syscalls", "staddle.linux.openat2"),
    *("staddle.linux.procfs", "staddle.linux.process", "staddle.linux.fileio"),
    *("staddle.ipc.wire", "staddle.ipc.file_messages"),
    *("staddle.files.globs", "staddle.files.beneath", "staddle.files.tree", "staddle.files.tar"),
    *("staddle.inside.agent.tar", "staddle.inside.agent.file_server"),
)

#: Runs inside. It reads everything before it runs anything; the memory file is gone afterwards.
LOADER = """
import _socket, marshal, os, sys
socket = _socket.socket(fileno=os.dup(0))
os.dup2(null := os.open("/dev/null", 2), 0)
_, extra, _, _ = socket.recvmsg(1, 32)
if not extra:
    sys.exit(0)
code = int.from_bytes(extra[0][2][:4], sys.byteorder)
data = b""
while chunk := os.pread(code, 1 << 20, len(data)):
    data += chunk
os.close(code)
os.close(null)
loader, rows = marshal.loads(data)
exec(loader, space := {"__name__": "loader"})
space["load"](rows)
sys.modules["staddle.inside.agent.standalone"].serve(socket)
"""


def command() -> tuple[str, ...]:
    """Return the agent's command line, for a backend's `prepare`."""
    import sys

    return (os.path.realpath(sys.executable), "-I", "-S", "-c", LOADER)


#: Compiled code, by modules: they do not change while a program runs.
_compiled: dict[tuple[str, ...], bytes] = {}


def code(packages: Sequence[str] = _PACKAGES, modules: Sequence[str] = _MODULES) -> bytes:
    """Return the loader and the modules for LOADER, compiled once by this interpreter."""
    key = tuple(modules)
    if key not in _compiled:
        _compiled[key] = _code(packages, modules)
    return _compiled[key]


def _code(packages: Sequence[str], modules: Sequence[str]) -> bytes:
    import importlib.util
    import marshal

    def compiled(name: str) -> CodeType:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            raise ImportError(f"{name} does not exist")
        return spec.loader.get_code(name)  # type: ignore[attr-defined,no-any-return]

    rows: list[tuple[str, bool, CodeType | None]] = [(name, True, None) for name in packages]
    rows += [(name, False, compiled(name)) for name in modules]
    return marshal.dumps((compiled("staddle.inside.agent.loader"), rows))


def file_server_code() -> bytes:
    """Return the modules of a file server, for `processes.load`."""
    return code(_FILE_SERVER_PACKAGES, _FILE_SERVER_MODULES)


def send_code(socket: _socket.socket) -> None:
    """Send the loader at the other end of `socket` its code."""
    from ...ipc.wire import send
    from ...linux.fileio import memory_file

    file = memory_file(code())
    try:
        send(socket, b"c", (file,))
    finally:
        os.close(file)


def serve(socket: _socket.socket) -> NoReturn:
    """Be the agent. The loader calls this in the sandbox."""
    from ...linux import process
    from ...network.namespace.socket_handoff import ForwardSockets
    from .agent import SandboxAgent
    from .processes import execute
    from .shell_files import Nameless

    # The environment at our start: the interpreter has added to it since.
    with open("/proc/self/environ", "rb") as file:
        own = tuple(item for item in file.read().split(b"\0") if b"=" in item)

    def become(argv: tuple[bytes, ...], environment: tuple[bytes, ...], directory: bytes) -> NoReturn:
        execute(argv, environment or own, directory or b".")

    process.subreaper()  # our children and their orphans stay below us
    # A file server is as confined as we are.
    agent = SandboxAgent(become, confine=lambda _: os.chdir("/"))
    agent.begin(socket, Nameless(), ForwardSockets())
    agent.serve()
