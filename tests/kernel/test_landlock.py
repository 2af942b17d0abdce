"""Landlock's bindings do what they say, in a child each."""

from __future__ import annotations

import textwrap
from pathlib import Path

import landlockpy
import pytest

from staddle.linux import landlock
from tests.support.in_a_child import own_processes, python

RESTRICT = """
from staddle.linux import landlock as L, process
process.no_new_privs()
def restrict(*paths, rights=L.READ, handled=L.FILES, net=frozenset(), scoped=frozenset(), ports=()):
    with L.Ruleset(L.bits(handled, "fs"), L.bits(net, "net"), L.bits(scoped, "scope")) as ruleset:
        for path in paths:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            ruleset.allow_beneath(fd, L.bits(rights, "fs"))
            os.close(fd)
        for port in ports:
            ruleset.allow_port(port, L.bits(net, "net"))
        ruleset.restrict()
def attempt(what, *args, **kwargs):
    try:
        what(*args, **kwargs)
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
"""


def restricted(code: str, **kwargs: object) -> str:
    return python(RESTRICT + textwrap.dedent(code), **kwargs)  # type: ignore[arg-type]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    return tmp_path


def test_the_version_is_what_landlockpy_says() -> None:
    assert landlock.abi() == landlockpy.abi_version() > 0
    assert landlock.why_not() == ""


def test_nothing_is_restricted_by_making_a_ruleset(work: Path) -> None:
    code = f"""
        ruleset = L.Ruleset(L.bits(L.FILES, "fs"))
        print(attempt(open, {str(work / "outside/file")!r}), attempt(os.listdir, "/"))
        ruleset.close(); ruleset.close()
    """
    assert restricted(code) == "done done"


def test_a_file_takes_only_the_rights_that_mean_something_for_it(work: Path) -> None:
    code = f"""
        file = {str(work / "inside/file")!r}
        restrict(file, rights=L.WRITE)
        print(attempt(open, file, "a"), attempt(os.unlink, file))
    """
    assert restricted(code) == "done EACCES"


def test_a_signal_to_everybody_reaches_exactly_the_domain() -> None:
    """What the supervisor relies on, with a chain of forks that no walk through /proc catches."""
    code = """
        outside = os.fork()
        if outside == 0:
            time.sleep(60)
        warden = os.fork()
        if warden == 0:
            process.subreaper()
            restrict(handled=(), scoped={"signal"})
            command = os.fork()
            if command == 0:
                restrict("/", rights=L.FILES, scoped={"signal"})
                if os.fork() == 0:
                    os.setsid()
                    time.sleep(60)
                while True:
                    if os.fork():
                        os._exit(0)
            time.sleep(0.3)
            os.kill(-1, 9)
            try:
                while True:
                    os.waitpid(-1, 0)
            except ChildProcessError:
                os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(warden, 0)[1]), os.waitpid(outside, os.WNOHANG) == (0, 0),
              len([pid for pid in os.listdir("/proc") if pid.isdigit()]) <= 4)
    """
    assert restricted(code, around=own_processes()) == "0 True True"


def test_abstract_sockets_outside_cannot_be_reached_and_those_inside_can() -> None:
    code = """
        import socket
        def listening(name):
            s = socket.socket(socket.AF_UNIX); s.bind(name); s.listen(); return s
        name = f"\\0staddle-test-{os.getpid()}"
        outside = listening(name)
        print(attempt(socket.socket(socket.AF_UNIX).connect, name))
        restrict("/", rights=L.FILES, scoped={"abstract_unix_socket"})
        inside = listening(name + "-inside")
        connect = socket.socket(socket.AF_UNIX).connect
        print(attempt(connect, name), attempt(connect, name + "-inside"))
    """
    assert restricted(code).split() == ["done", "EPERM", "done"]


def test_only_allowed_ports_can_be_used() -> None:
    code = """
        import socket
        servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        allowed, other = (server.getsockname()[1] for server in servers)
        restrict("/", rights=L.FILES, net=L.TCP, ports=[allowed])
        print(*(attempt(socket.socket().connect, ("127.0.0.1", port)) for port in (allowed, other)))
    """
    assert restricted(code) == "done EACCES"


def test_restricting_takes_no_new_privs_first() -> None:
    code = """
        from staddle.linux import landlock as L, process
        process.drop_capabilities()
        try:
            L.Ruleset(L.bits(L.FILES, "fs")).restrict()
            print("restricted")
        except PermissionError:
            print("refused")
    """
    assert python(code) == "refused"


def test_what_the_kernel_does_not_know_is_an_error() -> None:
    with pytest.raises(OSError, match="landlock_create_ruleset"):
        landlock.Ruleset(1 << 40)
