"""UNIX sockets of the host: those that the policy names can be connected to, and no others."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Network, Policy, Sandbox, wrap
from tests.support.waiting import PATIENCE, until

#: Where the host's sockets are: a place that everybody sees, also through root's view.
PLACE = Path("/var" if os.geteuid() == 0 else "/var/tmp")
KIT = """
import errno, os, socket, sys, threading, time
def attempt(what, *args):
    try:
        what(*args)
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
def unix(kind=socket.SOCK_STREAM):
    return socket.socket(socket.AF_UNIX, kind)
def listening(name, kind=socket.SOCK_STREAM, backlog=16):
    server = unix(kind); server.bind(name); server.listen(backlog); return server
"""


_MARK = b"counted so far"


class Host:
    """A server outside the sandbox that counts who reaches it."""

    def __init__(self, name: str, kind: int = socket.SOCK_STREAM, family: int = socket.AF_UNIX) -> None:
        self._count = self._marks = self._marked = 0
        self._server = socket.socket(family, kind)
        self._server.bind(name if family == socket.AF_UNIX else ("127.0.0.1", 0))
        if family == socket.AF_UNIX and not name.startswith("\0"):
            os.chmod(name, 0o777)
        self.address = self._server.getsockname()
        self._stream = kind != socket.SOCK_DGRAM
        if self._stream:
            self._server.listen(64)
        self._server.settimeout(0.05)
        self._over = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def hits(self) -> int:
        """How many have reached it. Whoever waits is counted before: one of ours waits behind them."""
        with socket.socket(self._server.family, self._server.type) as mark:
            mark.settimeout(PATIENCE)
            mark.connect(self.address)
            self._marks += 1
            if self._stream:
                mark.recv(1)  # it is closed when it was counted
            else:
                mark.send(_MARK)
                assert until(lambda: self._marked == self._marks)
        return self._count - self._marks

    def _serve(self) -> None:
        while not self._over:
            try:
                if self._stream:
                    with self._server.accept()[0]:
                        self._count += 1
                else:
                    is_mark = self._server.recv(100) == _MARK
                    self._count += 1
                    self._marked += is_mark
            except TimeoutError:
                continue

    def close(self) -> None:
        self._over = True
        self._thread.join()
        self._server.close()


@pytest.fixture
def host() -> Iterator[Host]:
    """In a directory that no policy here grants, and that anybody may enter."""
    top = PLACE / f"staddle-{os.urandom(6).hex()}"
    top.mkdir()
    top.chmod(0o755)
    made = Host(str(top / "s"))
    yield made
    made.close()
    (top / "s").unlink()
    top.rmdir()


def inside(code: str, work: Path, *words: str, policy: Policy | None = None) -> list[str]:
    """What `code` prints inside, word by word."""
    (work / "code.py").write_text(KIT + code)
    (work / "code.py").chmod(0o644)
    allowed = (policy or Policy.agent()).with_write(str(work)).with_limits(timeout=60)
    wrapped = wrap(["/usr/bin/python3", "code.py", *words], allowed, backend="landlock", cwd=str(work))
    done = wrapped.run(capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(done.stdout).split()


def outside(code: str, work: Path, *words: str) -> list[str]:
    """The control: the same without a sandbox."""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", KIT + code, *words], cwd=work, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_its_own_sockets_work(work: Path) -> None:
    code = """
os.mkdir("d"); os.symlink("d", "link")
servers = [listening("d/s"), listening(os.path.abspath("t"), socket.SOCK_SEQPACKET)]
servers.append(listening("\\0own" + str(os.getpid())))
for name, kind in (("d/s", 1), ("./d/../d//s", 1), ("link/s", 1), (os.path.abspath("d/s"), 1), ("t", 5),
                   (servers[2].getsockname(), 1)):
    print(attempt(unix(socket.SocketKind(kind)).connect, name))
in_tmp = os.environ["TMPDIR"] + "/s"
server = listening(in_tmp); client = unix(); client.connect(in_tmp); peer, _ = server.accept()
client.sendall(b"hello"); print(peer.recv(5).decode())
import struct
print(struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1] == os.getuid())
"""
    assert inside(code, work) == ["done"] * 6 + ["hello", "True"]


ATTACKS = {
    "by its path": "print(attempt(unix().connect, sys.argv[1]))",
    "by a relative path": "print(attempt(unix().connect, os.path.relpath(sys.argv[1])))",
    "by a path with dots": "print(attempt(unix().connect, '/..' * 9 + sys.argv[1]))",
    "by a link": "os.symlink(sys.argv[1], 'l1'); print(attempt(unix().connect, 'l1'))",
    "by a linked directory": """
os.symlink(os.path.dirname(sys.argv[1]), "l2"); print(attempt(unix().connect, "l2/s"))""",
    "by the root of a process": "print(attempt(unix().connect, '/proc/self/root' + sys.argv[1]))",
    "by a descriptor of its directory": """
fd = os.open(os.path.dirname(sys.argv[1]), os.O_PATH)
print(attempt(unix().connect, f"/proc/self/fd/{fd}/s"))""",
    "by a descriptor of its own": """
fd = os.open(sys.argv[1], os.O_PATH); print(attempt(unix().connect, f"/proc/self/fd/{fd}"))""",
    "from its directory": "os.chdir(os.path.dirname(sys.argv[1])); print(attempt(unix().connect, 's'))",
    "from a thread with files of its own": """
import ctypes
def run():
    ctypes.CDLL(None).unshare(0x600)
    os.chdir(os.path.dirname(sys.argv[1])); print(attempt(unix().connect, "s"))
thread = threading.Thread(target=run); thread.start(); thread.join()""",
    "without blocking": "s = unix(); s.setblocking(False); print(attempt(s.connect, sys.argv[1]))",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_socket_of_the_host_cannot_be_reached(attack: str, work: Path, host: Host) -> None:
    assert inside(attack, work, host.address) == ["EACCES"]
    assert host.hits == 0
    for link in ("l1", "l2"):
        (work / link).unlink(missing_ok=True)
    assert outside(attack, work, host.address) == ["done"]


def test_a_hard_link_to_it_cannot_be_made(work: Path, host: Host) -> None:
    code = "print(attempt(os.link, sys.argv[1], 'h'), attempt(unix().connect, 'h'))"
    assert inside(code, work, host.address)[0] in ("EACCES", "EXDEV", "EPERM")
    assert host.hits == 0


def test_an_abstract_socket_of_the_host_cannot_be_reached(work: Path) -> None:
    name = f"\0staddle-{os.urandom(6).hex()}"
    host = Host(name)
    attack = "print(attempt(unix().connect, '\\0' + sys.argv[1]))"
    try:
        assert inside(attack, work, name[1:]) == ["EACCES"]
        assert host.hits == 0
        assert outside(attack, work, name[1:]) == ["done"]
    finally:
        host.close()


def test_datagrams_cannot_be_sent_to_the_host(work: Path) -> None:
    path = str(PLACE / f"staddle-{os.urandom(6).hex()}")
    host = Host(path, socket.SOCK_DGRAM)
    attack = """
print(attempt(lambda: unix(socket.SOCK_DGRAM).sendto(b"x", sys.argv[1])))
print(attempt(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", sys.argv[1])))
print(attempt(lambda: socket.socketpair()[0].sendto(b"x", sys.argv[1])))
"""
    try:
        assert inside(attack, work, path) == ["EPERM", "EPERM", "EISCONN"]
        assert host.hits == 0
        assert outside(attack, work, path)[:2] == ["done", "done"]
    finally:
        host.close()
        os.unlink(path)


@pytest.mark.slow
def test_a_swap_between_the_look_and_the_connection_does_not_help(work: Path, host: Host) -> None:
    """Two names are exchanged as fast as can be: a directory of its own and a link to the host's."""
    code = """
import ctypes
libc = ctypes.CDLL(None)
os.mkdir("real"); server = listening("real/s", backlog=128); server.setblocking(False)
os.symlink(os.path.dirname(sys.argv[1]), "fake")
over = time.monotonic() + 3
def swap():
    while time.monotonic() < over:
        libc.renameat2(-100, b"real", -100, b"fake", 2)
def drain():
    while time.monotonic() < over:
        try:
            server.accept()[0].close()
        except BlockingIOError:
            time.sleep(0.001)
for work in (swap, drain):
    threading.Thread(target=work).start()
seen = {}
while time.monotonic() < over:
    for name in ("real/s", "fake/s"):
        with unix() as client:
            answer = attempt(client.connect, name)
        seen[answer] = seen.get(answer, 0) + 1
print(sum(seen.values()), seen.get("done", 0), *seen)
"""
    tried, reached, *answers = inside(code, work, host.address)
    assert int(tried) > 100
    assert int(reached) > 10
    assert set(answers) <= {"done", "EACCES", "ENOENT", "ECONNREFUSED"}
    assert host.hits == 0


@pytest.mark.slow
def test_an_address_that_changes_while_it_is_read_does_not_help(work: Path, host: Host) -> None:
    code = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
own = os.path.abspath("s").encode(); server = listening(own, backlog=128); server.setblocking(False)
names = [struct.pack("H", 1) + name.ljust(107, b"\\0") for name in (own, sys.argv[1].encode())]
buffer = ctypes.create_string_buffer(names[0], 109)
over = time.monotonic() + 2
def flip():
    turn = 0
    while time.monotonic() < over:
        turn += 1
        ctypes.memmove(buffer, names[turn % 2], 109)
threading.Thread(target=flip).start()
done = 0
while time.monotonic() < over:
    with unix() as client:
        done += libc.connect(client.fileno(), buffer, 109) == 0
    try:
        server.accept()[0].close()
    except BlockingIOError:
        pass
print(done > 10)
"""
    assert inside(code, work, host.address) == ["True"]
    assert host.hits == 0


def test_a_socket_that_the_policy_names_can_be_reached(work: Path, host: Host) -> None:
    policy = Policy.agent().with_sockets(host.address)
    assert inside("print(attempt(unix().connect, sys.argv[1]))", work, host.address, policy=policy) == [
        "done"
    ]
    assert host.hits == 1


def test_errors_are_the_kernels_own(work: Path) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def raw(fd, address, length):
    return "done" if libc.connect(fd, address, length) == 0 else errno.errorcode[ctypes.get_errno()]
open("file", "w").close(); closed = unix(); closed.bind("dead"); closed.close()
s = unix().detach()
print(attempt(unix().connect, "missing"), attempt(unix().connect, "file"), attempt(unix().connect, "dead"))
print(raw(999, b"\\1\\0x", 3), raw(os.open("file", 0), b"\\1\\0file\\0", 7), raw(s, ctypes.c_void_p(1), 10))
print(raw(s, b"\\1\\0x", 1), raw(s, b"\\1\\0x", 500), raw(s, b"\\1\\0", 2))
server = listening("s2"); client = unix(); client.connect("s2"); print(attempt(client.connect, "s2"))
"""
    confined = inside(code, work)
    for name in ("file", "dead", "s2"):
        (work / name).unlink()
    assert confined == outside(code, work)


def test_a_server_that_does_not_accept_holds_nobody_else_up(work: Path) -> None:
    code = """
slow = listening("slow", backlog=0); quick = listening("quick")
first = unix(); first.connect("slow")  # fills the queue
stuck = [threading.Thread(target=attempt, args=(unix().connect, "slow"), daemon=True) for _ in range(5)]
for thread in stuck:
    thread.start()
time.sleep(0.2)
began = time.monotonic()
print(attempt(unix().connect, "quick"), time.monotonic() - began < 30)
waiting = unix(); waiting.setblocking(False)
print(attempt(waiting.connect, "slow"))
for _ in range(6):
    slow.accept()
for thread in stuck:
    thread.join(60)
print(not any(thread.is_alive() for thread in stuck))
os._exit(0) if sys.stdout.flush() is None else None
"""
    assert inside(code, work) == ["done", "True", "EAGAIN", "True"]


def test_whoever_is_killed_while_it_waits_leaves_the_others_alone(work: Path) -> None:
    code = """
slow = listening("slow", backlog=0); quick = listening("quick", backlog=200)
first = unix(); first.connect("slow")
for _ in range(20):
    child = os.fork()
    if child == 0:
        unix().connect("slow"); os._exit(0)
    time.sleep(0.01); os.kill(child, 9); os.waitpid(child, 0)
print(sum(attempt(unix().connect, "quick") == "done" for _ in range(50)))
"""
    assert inside(code, work) == ["50"]


@pytest.mark.slow
def test_many_at_once(work: Path) -> None:
    code = """
server = listening("s", backlog=4096)
answers = []
threads = [threading.Thread(target=lambda: answers.append(attempt(unix().connect, "s"))) for _ in range(300)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(answers), set(answers) == {"done"})
"""
    assert inside(code, work) == ["300", "True"]


def test_without_a_network_no_address_is_connected_to(work: Path) -> None:
    code = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
print(attempt(socket.socket, socket.AF_INET), attempt(socket.socket, socket.AF_INET6))
address = struct.pack(">HH4s8x", 0x0200, int(sys.argv[1]), socket.inet_aton("127.0.0.1"))
own = unix()
print(libc.connect(own.fileno(), address, 16), errno.errorcode[ctypes.get_errno()])
"""
    host = Host("", family=socket.AF_INET)
    try:
        assert inside(code, work, str(host.address[1])) == ["EAFNOSUPPORT", "EAFNOSUPPORT", "-1", "EACCES"]
        assert host.hits == 0
    finally:
        host.close()


def test_with_an_open_network_connections_are_made(work: Path) -> None:
    code = """
port = int(sys.argv[1])
print(attempt(socket.socket().connect, ("127.0.0.1", port)))
s = socket.socket(); s.setblocking(False); print(s.connect_ex(("127.0.0.1", port)) in (0, errno.EINPROGRESS))
print(attempt(socket.socket().connect, ("127.0.0.1", 1)))
udp = socket.socket(type=socket.SOCK_DGRAM)
print(attempt(udp.connect, ("127.0.0.1", 9)), udp.getpeername()[1])
import ctypes
print(ctypes.CDLL(None).connect(udp.fileno(), bytes(16), 16))  # AF_UNSPEC: not connected any more
print(attempt(unix().connect, sys.argv[2]))
"""
    host = Host("", family=socket.AF_INET)
    top = PLACE / f"staddle-{os.urandom(6).hex()}"
    other = Host(str(top))
    try:
        found = inside(
            code, work, str(host.address[1]), str(top), policy=Policy.agent().with_network(Network.open())
        )
        assert found == ["done", "True", "ECONNREFUSED", "done", "9", "0", "EACCES"]
        assert host.hits in (1, 2)
        assert other.hits == 0
    finally:
        host.close()
        other.close()
        top.unlink()


# ---------------------------------------------------------------- sockets in a granted directory


#: What becomes of a connection to each of these paths.
CONNECT = """
import json, os, socket, sys
def connected(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5)
        try:
            s.connect(path)
            return s.recv(9).decode()
        except OSError as error:
            return type(error).__name__
print(json.dumps({path: connected(path) for path in sys.argv[1:]}))
"""
REFUSED = ("ConnectionRefusedError", "PermissionError", "FileNotFoundError")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with two servers in it, at `a.sock` and `sub/named.sock`. Such a path may not be long."""
    with tempfile.TemporaryDirectory(prefix="sockets-", dir="/tmp") as made:
        Path(made, "sub").mkdir(mode=0o755)
        Path(made).chmod(0o755)
        servers = [_server(Path(made, name)) for name in ("a.sock", "sub/named.sock")]
        yield Path(made)
        for server in servers:
            server.close()


def _server(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    path.chmod(0o666)
    made.listen()

    def serve() -> None:
        try:
            while True:
                with made.accept()[0] as connection:
                    connection.sendall(b"hello")
        except OSError:
            return

    threading.Thread(target=serve, daemon=True).start()
    return made


def ask(*paths: object) -> list[str]:
    return ["python3", "-c", CONNECT, *map(str, paths)]


@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("backend", ["namespaces", "bwrap", "landlock"])
def test_only_those_that_are_named_can_be_connected_to(place: Path, backend: str, access: str) -> None:
    other, named = place / "a.sock", place / "sub/named.sock"
    policy = getattr(Policy.agent(), f"with_{access}")(place).with_sockets(named)
    done = wrap(ask(other, named), policy, backend=backend).run(capture_output=True)
    answers = json.loads(done.stdout)
    assert answers[str(named)] == "hello"
    assert answers[str(other)] in REFUSED


@pytest.mark.parametrize("mode", ["overlay", "readonly", "bind"])
def test_a_session_has_none_of_its_workspace(place: Path, mode: str) -> None:
    with Sandbox(place, mode=mode) as sandbox:
        done = sandbox.exec(ask("/workspace/a.sock", "/workspace/sub/named.sock"), check=True)
        assert set(json.loads(done.stdout).values()) <= set(REFUSED)
        # What it makes itself, it can use.
        own = (
            "import socket; s = socket.socket(socket.AF_UNIX); s.bind('/tmp/own'); s.listen();"
            "socket.socket(socket.AF_UNIX).connect('/tmp/own')"
        )
        assert sandbox.exec(["python3", "-c", own]).ok


def test_one_that_is_started_anew_is_covered_in_the_next_sandbox(tmp_path: Path) -> None:
    """Although it shares a view with the one before, in which what covered the old one is gone."""
    tmp_path.chmod(0o755)
    policy = Policy.agent().with_read(tmp_path)
    for _ in range(2):
        server = _server(tmp_path / "a.sock")
        with Sandbox(policy=policy) as sandbox:
            done = sandbox.exec(ask(tmp_path / "a.sock"), check=True)
            assert set(json.loads(done.stdout).values()) <= set(REFUSED)
            server.close()
            (tmp_path / "a.sock").unlink()


def test_one_that_is_gone_by_the_time_of_the_start_is_no_problem(place: Path) -> None:
    policy = Policy.agent().with_write(place)
    for backend in ("namespaces", "bwrap"):
        wrapped = wrap(["ls", str(place)], policy, backend=backend)
        assert [item.path for item in wrapped.plan.closed] == [
            str(place / "a.sock"),
            str(place / "sub/named.sock"),
        ]
        os.rename(place / "a.sock", place / "sub/moved")
        done = wrapped.run(capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "sub\n"), done.stderr
        os.rename(place / "sub/moved", place / "a.sock")
    assert sorted(os.listdir(place)) == ["a.sock", "sub"]


def test_it_is_said_what_is_covered(place: Path) -> None:
    from staddle.backends import get

    wrapped = wrap(["true"], Policy.agent().with_read(place), backend="namespaces")
    steps = [str(step.action) for step in get("namespaces").steps(wrapped.plan)]
    assert f"hide the file {place}/a.sock" in steps
    wrapped.close()
