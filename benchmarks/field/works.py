"""What is measured: each work yields cells, and a cell is a function that returns one figure.

Seconds are figures of what a user waits for. What a program inside takes it measures by itself,
so that the start of a sandbox, which is a work of its own, is not in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from benchmarks.field.peers import CannotRun, Job, Peer, Place, first_line

SECONDS = 60.0
Cell = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Work:
    """One measurement. `cells` yields (peer, x, cell) for those that can take part."""

    name: str
    title: str
    unit: str
    cells: Callable[[Field], Iterator[tuple[str, int, Cell]]]
    #: Seconds that all of it takes, warm-up included.
    seconds: float
    #: What x counts, where there is more than one.
    x: str = ""
    higher_is_better: bool = False
    warm_up: bool = True


class Field:
    """The peers at work: places, processes and everything that must be gone afterwards."""

    def __init__(self, place: Place, peers: dict[str, Peer], *, quick: bool = False) -> None:
        self.place, self.peers, self.quick = place, peers, quick
        #: Figures of another work, which come for nothing with those of this one.
        self.beside: dict[tuple[str, str, int], list[float]] = {}
        self._end = contextlib.ExitStack()

    def __enter__(self) -> Field:
        self.base = Path(
            self._end.enter_context(tempfile.TemporaryDirectory(prefix="staddle-field-", dir="/var/tmp"))
        )
        self.scratch = self.base / "scratch"
        self.workspace = self.base / "workspace"
        self.home = self.base / "home"
        for path in (self.scratch, self.workspace, self.home):
            path.mkdir()
        self.environment = self.place.environment(str(self.home))
        return self

    def __exit__(self, *error: object) -> None:
        self._end.close()

    def job(self, command: list[str], *, host: str = "") -> Job:
        return Job(str(self.workspace), command, str(self.scratch), host=host)

    def confining(self, work: str, network: bool = False) -> Iterator[Peer]:
        """The peers with a command line, for this work."""
        for peer in self.peers.values():
            if peer.line and (not peer.only or work in peer.only) and (peer.network or not network):
                yield peer

    def line(self, peer: Peer, command: list[str], host: str = "") -> list[str]:
        assert peer.line
        return peer.line(self.place, self.job(command, host=host))

    def start(self, words: list[str], **streams: object) -> subprocess.Popen[bytes]:
        """A process group of its own, so that all of it can be ended."""
        return subprocess.Popen(
            words, cwd=self.workspace, env=self.environment, start_new_session=True, **streams
        )  # type: ignore[call-overload,no-any-return]

    def run(self, words: list[str], timeout: float = SECONDS) -> bytes:
        """Its output. CannotRun with its own error when it fails."""
        process = self.start(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise CannotRun(f"not finished after {timeout:.0f} s") from None
        finally:
            end(process)
        if process.returncode:
            said = first_line(err.decode("utf-8", "replace")) or f"ended with {process.returncode}"
            raise CannotRun(said)
        return out

    def driver(self, python: str, program: str) -> Driver:
        return self._end.enter_context(Driver(self, python, program))

    def keep(self, made: contextlib.AbstractContextManager[object]) -> object:
        return self._end.enter_context(made)


def end(process: subprocess.Popen[bytes]) -> None:
    """Nothing of it is left, with what it started in other process groups while it runs."""
    more = below([process.pid]) - {process.pid} if process.poll() is None else set()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, 9)
    for pid in more:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, 9)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            with contextlib.suppress(OSError):
                stream.close()
    process.wait()


class Driver:
    """A program with something open: it reads a count, does it so often, and answers with the seconds."""

    def __init__(self, field: Field, python: str, program: str) -> None:
        words = [python, "-c", _DRIVER + textwrap.dedent(program)]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end
        self._process = field.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)

    def __enter__(self) -> Driver:
        self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        end(self._process)
        self._errors.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def __call__(self, count: int = 1) -> list[float]:
        assert self._process.stdin
        try:
            self._process.stdin.write(b"%d\n" % count)
            self._process.stdin.flush()
        except OSError:
            pass  # the answer says why
        found: list[float] = json.loads(self._answer())
        return found

    def _answer(self) -> bytes:
        assert self._process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while selector.select(SECONDS):
                line = self._process.stdout.readline()
                if line.startswith(b"@"):
                    return line[1:]
                if not line:
                    break
        self._errors.seek(0)
        raise CannotRun(first_line(self._errors.read().decode("utf-8", "replace")) or "no answer")


#: Before each driver's program, which calls `serve(operation)`.
_DRIVER = r"""
import json, sys, time
def serve(operation):
    print("@ready", flush=True)
    for line in sys.stdin:
        found = []
        for _ in range(int(line)):
            began = time.perf_counter()
            operation()
            found.append(time.perf_counter() - began)
        print("@" + json.dumps(found), flush=True)
"""


def _staddle_session(command: str) -> str:
    return f"""
        from staddle import Sandbox
        with Sandbox() as sandbox:
            serve(lambda: sandbox.run({command!r}, check=True))
    """


def _bash(command: str) -> str:
    return f"""
        import subprocess
        with subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
            def once():
                shell.stdin.write(({command!r} + "; echo $?\\n").encode())
                shell.stdin.flush()
                assert shell.stdout.readline() == b"0\\n"
            serve(once)
    """


def _swerex(command: str) -> str:
    return f"""
        import asyncio
        from swerex.deployment.local import LocalDeployment
        from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
        loop = asyncio.new_event_loop()
        local = LocalDeployment()
        loop.run_until_complete(local.start())
        loop.run_until_complete(local.runtime.create_session(CreateBashSessionRequest()))
        serve(lambda: loop.run_until_complete(local.runtime.run_in_session(BashAction(command={command!r}))))
        loop.run_until_complete(local.stop())
    """


def _langchain(command: str) -> str:
    return f"""
        import os
        from pathlib import Path
        from langchain.agents.middleware.shell_tool import HostExecutionPolicy, ShellSession
        session = ShellSession(Path(os.getcwd()), HostExecutionPolicy(), ("/bin/bash",), {{}})
        session.start()
        serve(lambda: session.execute({command!r}, timeout=10))
        session.stop(timeout=5)
    """


SESSIONS: dict[str, Callable[[str], str]] = {
    "nothing": _bash,
    "staddle": _staddle_session,
    "SWE-ReX": _swerex,
    "LangChain": _langchain,
}
#: A confined `true` from a program that has the library loaded.
LIBRARIES = {
    "staddle, library": """
        from staddle import Policy, wrap
        def once():
            assert wrap(["true"], Policy.agent()).run().returncode == 0
        serve(once)
    """,
    "staddle, Sandbox()": """
        from staddle import Sandbox
        def once():
            with Sandbox() as sandbox:
                sandbox.run("true", check=True)
        serve(once)
    """,
    "sandlock, library": """
        import os
        from sandlock import Sandbox
        seen = [p for p in ("/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev") if os.path.exists(p)]
        def once():
            assert Sandbox(fs_readable=seen, fs_writable=[os.getcwd()]).run(["true"]).success
        serve(once)
    """,
}


def _python_of(field: Field, name: str) -> str:
    return sys.executable if name.startswith(("staddle", "nothing")) else field.place.python


def starts(field: Field) -> Iterator[tuple[str, int, Cell]]:
    """`true`, from the start of the peer's program to its end; a library is in an open program."""
    for peer in field.confining("start"):
        yield peer.name, 0, _started(field, peer)
    for name in filter(LIBRARIES.__contains__, field.peers):
        yield name, 0, _driven(field, name, LIBRARIES[name])


def _started(field: Field, peer: Peer) -> Cell:
    def once() -> float:
        words = field.line(peer, ["true"])
        began = time.perf_counter()
        field.run(words)
        return time.perf_counter() - began

    return once


def _driven(field: Field, name: str, program: str, count: int = 1) -> Cell:
    """The median of `count` operations in a program that stays open. It is opened with the first."""
    made: list[Driver] = []

    def once() -> float:
        if not made:
            made.append(field.driver(_python_of(field, name), program))
        found = sorted(made[0](count))
        return found[len(found) // 2]

    return once


def sessions(field: Field) -> Iterator[tuple[str, int, Cell]]:
    for name in filter(SESSIONS.__contains__, field.peers):
        yield name, 0, _driven(field, name, SESSIONS[name]("true"), 15)


_FILES = """
import os, shutil, sys, time
began = time.perf_counter()
for directory in range(int(sys.argv[1])):
    os.makedirs(f"t/{directory}")
    for number in range(50):
        with open(f"t/{directory}/{number}", "w") as file:
            file.write("some text\\n" * 10)
for directory in range(int(sys.argv[1])):
    for number in range(50):
        with open(f"t/{directory}/{number}") as file:
            assert len(file.read()) == 100
        os.unlink(f"t/{directory}/{number}")
shutil.rmtree("t")
print("took", time.perf_counter() - began)
"""
_COMPILE = """
import os, subprocess, sys, time
os.makedirs("c", exist_ok=True)
for number in range(int(sys.argv[1])):
    with open(f"c/f{number}.c", "w") as file:
        file.write("#include <stdio.h>\\n#include <stdlib.h>\\n#include <string.h>\\n")
        for function in range(40):
            file.write(f"int f{number}_{function}(int x) {{ char b[64]; ")
            file.write(f"snprintf(b, sizeof b, \\"%d\\", x); return atoi(b) + {function}; }}\\n")
began = time.perf_counter()
for number in range(int(sys.argv[1])):
    subprocess.run(["gcc", "-O1", "-c", f"c/f{number}.c", "-o", f"c/f{number}.o"], check=True)
print("took", time.perf_counter() - began)
"""


def _timed_inside(
    work: str, program: str, size: int, small: int
) -> Callable[[Field], Iterator[tuple[str, int, Cell]]]:
    """Work that prints its own time."""

    def cells(field: Field) -> Iterator[tuple[str, int, Cell]]:
        command = ["/usr/bin/python3", "-I", "-c", program, str(small if field.quick else size)]
        for peer in field.confining(work):
            yield peer.name, 0, _took(field, peer, command)

    return cells


def _took(field: Field, peer: Peer, command: list[str]) -> Cell:
    def once() -> float:
        out = field.run(field.line(peer, command))
        words = out.split()
        if b"took" not in words:
            raise CannotRun("the command printed nothing")
        for name in ("t", "c"):
            shutil.rmtree(field.workspace / name, ignore_errors=True)
        return float(words[words.index(b"took") + 1])

    return once


def snapshots(field: Field) -> Iterator[tuple[str, int, Cell]]:
    """After x changed files: staddle's snapshot, and what people use without one."""
    for count in (1, 10, 100) if field.quick else (1, 10, 100, 1_000, 10_000):
        for name, program in (("staddle", _SNAPSHOT), ("cp -a", _COPY), ("git", _COMMIT)):
            if name != "staddle" or name in field.peers:
                before = _GIT_INIT if name == "git" else "pass"
                yield name, count, _driven(field, "staddle", program.format(count=count, before=before))


#: The change, which is not measured, is made before each operation; `serve` is given both.
_SNAPSHOT = """
        from staddle import Sandbox
        import os, tempfile
        change = "import os; os.makedirs('d', exist_ok=True); t = os.urandom(20).hex()"
        change += "; [open(f'd/{{i}}', 'w').write(t) for i in range({count})]"
        with tempfile.TemporaryDirectory(dir=".") as place, Sandbox(place) as sandbox:
            for line in (print("@ready", flush=True) or sys.stdin):
                sandbox.run("python3 -c \\"" + change + "\\"", check=True)
                time.sleep(0.05)
                began = time.perf_counter()
                taken = sandbox.snapshot()
                took = time.perf_counter() - began
                taken.close()
                print("@" + json.dumps([took]), flush=True)
"""
_BESIDE = """
        import os, subprocess, tempfile
        with tempfile.TemporaryDirectory(dir=".") as place:
            os.makedirs(place + "/w/d")
            {before}
            for number, line in enumerate(print("@ready", flush=True) or sys.stdin):
                text = os.urandom(20).hex()
                for i in range({count}):
                    open(f"{{place}}/w/d/{{i}}", "w").write(text)
                began = time.perf_counter()
"""
_GIT_INIT = 'subprocess.run(["git", "init", "-q", place + "/w"], check=True)'
_AFTER = """
                print("@" + json.dumps([time.perf_counter() - began]), flush=True)
                subprocess.run(["rm", "-rf", place + "/copy"])
"""
_COPY = f"""{_BESIDE}
                subprocess.run(["cp", "-a", place + "/w", place + "/copy"], check=True)
{_AFTER}"""
_COMMIT = f"""{_BESIDE}
                subprocess.run(["git", "-C", place + "/w", "add", "-A"], check=True)
                tree = ["git", "-C", place + "/w", "write-tree"]
                subprocess.run(tree, check=True, stdout=subprocess.DEVNULL)
{_AFTER}"""


def rates(field: Field) -> Iterator[tuple[str, int, Cell]]:
    """How many confined `true` a second, from x threads at once."""
    for threads in (1, 2, 4):
        for peer in field.confining("rate"):
            yield peer.name, threads, _rate(field, peer, threads)
        for name in filter(_RATES.__contains__, field.peers):
            yield name, threads, _own_rate(field, name, threads)


#: The input is a number of threads; the answer is sandboxes a second, each opened, used once and closed.
_RATES = {
    "staddle, Sandbox()": """
        import threading
        from staddle import Sandbox
        with Sandbox() as first:
            first.run("true", check=True)
        print("@ready", flush=True)
        for line in sys.stdin:
            done, began = [], time.perf_counter()
            def work():
                while time.perf_counter() - began < {moment}:
                    with Sandbox() as sandbox:
                        sandbox.run("true", check=True)
                    done.append(1)
            each = [threading.Thread(target=work) for _ in range(int(line))]
            for thread in each: thread.start()
            for thread in each: thread.join()
            print("@" + json.dumps([len(done) / (time.perf_counter() - began)]), flush=True)
    """,
}


def _own_rate(field: Field, name: str, threads: int) -> Cell:
    program = _RATES[name].format(moment=0.5 if field.quick else 1.0)

    def once() -> float:
        with Driver(field, _python_of(field, name), program) as driver:
            return driver(threads)[0]

    return once


def _rate(field: Field, peer: Peer, threads: int) -> Cell:
    moment = 0.5 if field.quick else 1.0

    def once() -> float:
        finished: list[int] = []
        wrong: list[CannotRun] = []
        began = time.perf_counter()

        def work() -> None:
            try:
                while time.perf_counter() - began < moment:
                    field.run(field.line(peer, ["true"]))
                    finished.append(1)
            except CannotRun as error:
                wrong.append(error)

        each = [threading.Thread(target=work) for _ in range(threads)]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()
        if wrong:
            raise wrong[0]
        return len(finished) / (time.perf_counter() - began)

    return once


#: Says that it is there, and stays until its input ends.
_WAITS = ["sh", "-c", "echo ready; exec cat"]


def crowds(field: Field) -> Iterator[tuple[str, int, Cell]]:
    """MiB of x sandboxes that wait, shared pages divided; and the seconds until all x are ready."""
    known: dict[str, tuple[int, float, float]] = {}
    for count in (1, 10, 30) if field.quick else (1, 10, 100, 300, 1_000):
        for peer in field.confining("memory"):
            yield peer.name, count, _crowd(field, peer, count, known)
        for name in filter(_CROWDS.__contains__, field.peers):
            yield name, count, _own_crowd(field, name, count, known)


def _note(
    field: Field,
    name: str,
    count: int,
    known: dict[str, tuple[int, float, float]],
    seconds: float,
    mebibytes: float,
) -> float:
    known[name] = (count, seconds, mebibytes)
    field.beside.setdefault(("many", name, count), []).append(seconds)
    return mebibytes


def _bounded(name: str, count: int, known: dict[str, tuple[int, float, float]]) -> None:
    """Refuse a crowd that would need more than 70 % of the free memory, or much of a minute."""
    if name not in known:
        return
    before, seconds, mebibytes = known[name]
    grown = count / before
    free = _available()
    if mebibytes * grown > 0.7 * free:
        raise CannotRun(f"{count} would need {mebibytes * grown:.0f} MiB of {free:.0f} MiB that are free")
    if count > before and seconds * grown > 25:
        raise CannotRun(f"{count} would take {seconds * grown:.0f} s")


def _crowd(field: Field, peer: Peer, count: int, known: dict[str, tuple[int, float, float]]) -> Cell:
    def once() -> float:
        _bounded(peer.name, count, known)
        lines = [field.line(peer, _WAITS) for _ in range(count)]
        processes: list[subprocess.Popen[bytes]] = []
        with tempfile.TemporaryFile() as errors, selectors.DefaultSelector() as selector:
            began = time.perf_counter()
            try:
                for line in lines:
                    made = field.start(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
                    processes.append(made)
                    assert made.stdout
                    selector.register(made.stdout, selectors.EVENT_READ)
                while selector.get_map():
                    ready = selector.select(30)
                    for key, _ in ready:
                        selector.unregister(key.fileobj)
                        if b"ready" not in os.read(key.fd, 100):
                            errors.seek(0)
                            said = errors.read(100_000).decode("utf-8", "replace")
                            raise CannotRun(first_line(said) or "it ended before it was ready")
                    if not ready:
                        raise CannotRun(f"{len(selector.get_map())} of {count} were not ready after 30 s")
                seconds = time.perf_counter() - began
                mebibytes = proportional([process.pid for process in processes])
                return _note(field, peer.name, count, known, seconds, mebibytes)
            finally:
                for process in processes:
                    assert process.stdin
                    with contextlib.suppress(OSError):
                        process.stdin.close()
                deadline = time.monotonic() + 5
                for process in processes:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.01, deadline - time.monotonic()))
                    end(process)

    return once


_CROWDS = {
    "staddle, Sandbox()": """
        import concurrent.futures
        from staddle import Sandbox
        def opened(_):
            made = Sandbox()
            made.run("x=1", check=True)
            return made
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            print("@ready", flush=True)
            for line in sys.stdin:
                began = time.perf_counter()
                made = list(pool.map(opened, range(int(line))))
                print("@" + json.dumps([time.perf_counter() - began]), flush=True)
                sys.stdin.readline()
                list(pool.map(lambda one: one.close(), made))
                print("@[0]", flush=True)
    """,
}


def _own_crowd(field: Field, name: str, count: int, known: dict[str, tuple[int, float, float]]) -> Cell:
    """Sessions with a shell each, held by one program, whose memory is in the figure."""

    def once() -> float:
        _bounded(name, count, known)
        with Driver(field, _python_of(field, name), _CROWDS[name]) as driver:
            seconds = driver(count)[0]
            mebibytes = proportional([driver.pid])
            driver(0)
        return _note(field, name, count, known, seconds, mebibytes)

    return once


def nothing(_: Field) -> Iterator[tuple[str, int, Cell]]:
    return iter(())


def below(roots: list[int]) -> set[int]:
    """These processes and all that they and their children started."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{name}/stat").read_bytes()
            parents[int(name)] = int(stat.rpartition(b")")[2].split()[1])
    ours = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in ours and pid not in ours}:
        ours |= more
    return ours


def proportional(roots: list[int]) -> float:
    """MiB of these processes and all below them: each page divided among those that share it."""
    total = 0
    for pid in below(roots):
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def _available() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 1024


def transfers(field: Field) -> Iterator[tuple[str, int, Cell]]:
    """A download by curl from a server on this host; for those that filter, from an allowed address."""
    size = (32 if field.quick else 512) << 20
    server: list[str] = []

    def address() -> str:
        if not server:
            server.append(str(field.keep(_serving(size))))
        return server[0]

    def cell(peer: Peer) -> Cell:
        def once() -> float:
            host = address()
            command = [
                "curl",
                "-sS",
                "-f",
                "-o",
                "/dev/null",
                "-w",
                "took %{time_total} %{size_download}",
                f"http://{host}/",
            ]
            words = field.run(field.line(peer, command, host)).split()
            if len(words) != 3 or float(words[2]) != size:
                raise CannotRun(f"it downloaded {words[2:] or 'nothing'} of {size} bytes")
            return float(words[1])

        return once

    for peer in field.confining("network", network=True):
        yield peer.name, 0, cell(peer)


@contextlib.contextmanager
def _serving(size: int) -> Iterator[str]:
    """ADDRESS:PORT of a server that answers every request with `size` bytes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        try:
            found.connect(("192.0.2.1", 9))  # sends nothing: which of our addresses would be used
            own = found.getsockname()[0]
        except OSError:
            own = "127.0.0.1"
    listener = socket.create_server((own, 0), backlog=64)
    address = f"{own}:{listener.getsockname()[1]}"
    child = os.fork()
    if child == 0:
        try:
            while True:
                _answer(listener.accept()[0], size)
        finally:
            os._exit(1)
    listener.close()
    try:
        yield address
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def _answer(connection: socket.socket, size: int) -> None:
    with connection, contextlib.suppress(OSError):
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size)
        block = bytes(1 << 20)
        for _ in range(size >> 20):
            connection.sendall(block)


WORKS = {
    work.name: work
    for work in (
        Work("start", "Start one command", "ms", starts, 60),
        Work("session", "Run a command in an open session", "ms", sessions, 15),
        Work(
            "files",
            "Create, read and delete 2,000 small files",
            "ms",
            _timed_inside("files", _FILES, 40, 4),
            75,
        ),
        Work("compile", "Compile 8 files of C", "ms", _timed_inside("compile", _COMPILE, 8, 1), 90),
        Work("snapshot", "Keep a state to come back to", "ms", snapshots, 70, "changed files"),
        Work("rate", "Commands a second", "1/s", rates, 80, "threads", higher_is_better=True, warm_up=False),
        Work("memory", "Memory of sandboxes that wait", "MiB", crowds, 170, "sandboxes", warm_up=False),
        Work("many", "Start many at once", "ms", nothing, 0, "sandboxes"),  # measured with their memory
        Work("network", "Download 512 MiB", "ms", transfers, 45),
    )
}
