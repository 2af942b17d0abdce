"""Host programs with odd settings: SIGCHLD ignored, standard streams closed."""

from __future__ import annotations

import os
import sys

import pytest

from tests.support.in_a_child import SRC, captured, python

_PRELUDE = """
import signal, threading
from staddle import LocalEnvironment, Policy, Sandbox, wrap
"""
_WAYS = {
    "Sandbox": """
with Sandbox(backend=backend) as sandbox:
    told = [sandbox.run("sh -c 'exit 3'").exit_code, sandbox.exec(["sh", "-c", "exit 4"]).exit_code]
    told.append(sandbox.run("echo works").stdout)
""",
    "wrap": """
def ended(status):
    return wrap(["sh", "-c", f"exit {status}"], Policy.agent(), backend=backend).run().returncode
told = [ended(3), ended(4)]
told.append(wrap(["echo", "works"], Policy.agent(), backend=backend).run(capture_output=True).stdout.decode())
""",
}


@pytest.mark.parametrize("backend", ["namespaces", "bwrap", "landlock"])
@pytest.mark.parametrize("way", _WAYS)
def test_a_program_that_ignores_the_ends_of_its_children(way: str, backend: str) -> None:
    said = python(
        f"""{_PRELUDE}
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
backend = {backend!r}
def work():
    global told
    exec({_WAYS[way]!r}, globals())
for _ in range(2):
    work()
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(told, signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN)
with open("/proc/self/status") as file:
    ignored = next(int(line.split()[1], 16) for line in file if line.startswith("SigIgn"))
print(bool(ignored >> 16 & 1))
""",
        timeout=60,
    )
    assert said == "[3, 4, 'works\\n'] True\nTrue"


@pytest.mark.parametrize("closed", ["0", "1", "2", "0, 1", "1, 2", "0, 2", "0, 1, 2"])
@pytest.mark.parametrize("way", _WAYS)
def test_a_program_without_standard_streams(way: str, closed: str) -> None:
    said = python(
        f"""{_PRELUDE}
out, backend = os.dup(1), "auto"
for number in ({closed},):
    os.close(number)
{_WAYS[way]}
os.write(out, repr(told).encode())
""",
        timeout=60,
    )
    assert said == "[3, 4, 'works\\n']"


_EVERYTHING = """
import os, sys, tempfile, warnings
warnings.simplefilter("error")
from staddle import Policy, Sandbox, wrap
place = tempfile.mkdtemp(dir="/var/tmp")
os.chmod(place, 0o755)
try:
    with Sandbox(place) as sb:
        assert sb.run("echo hi > f; cat f").stdout == "hi\\n"
        moment = sb.snapshot()
        assert [change.path for change in sb.diff()] == ["/workspace/f"]
        for other in sb.fork(1):
            other.close()
        sb.restore(moment)
        assert sb.files.read("f") == "hi\\n"
    with Sandbox(place, mode="copy") as sb:
        assert sb.run("pwd").stdout == "/workspace\\n"
    assert wrap(["/bin/echo", "x"], Policy.agent()).run(capture_output=True).stdout == b"x\\n"
finally:
    os.rmdir(place)
print("works")
"""
_GONE = None
#: Changes to the environment, and options of the interpreter.
_ODD: dict[str, tuple[dict[str, str | None], tuple[str, ...]]] = {
    "a home that is not there": ({"HOME": "/nonexistent/x"}, ()),
    "a home that is a file": ({"HOME": "/etc/passwd"}, ()),
    "a home with a line end": ({"HOME": "/tmp/a\nb"}, ()),
    "an unknown locale": ({"LC_ALL": "xx_YY.bad"}, ()),
    "latin-1": ({"LC_ALL": "en_US.ISO-8859-1", "PYTHONUTF8": "0"}, ()),
    "no PATH": ({"PATH": _GONE}, ()),
    "a relative PATH": ({"PATH": ".:bin"}, ()),
    "no temporary directory": ({"TMPDIR": "/nonexistent"}, ()),
    "one that cannot be written": ({"TMPDIR": "/proc"}, ()),
    "XDG directories that are not there": (
        {"XDG_STATE_HOME": "/nonexistent/a", "XDG_CONFIG_HOME": "/nonexistent/b", "XDG_RUNTIME_DIR": "z"},
        (),
    ),
    "variables of bash": (
        {"BASH_ENV": "/nonexistent", "SHELLOPTS": "errexit", "PS4": "$(id)", "IFS": "e"},
        (),
    ),
    "a time zone that does not exist": ({"TZ": "Mars/Phobos", "COLUMNS": "x", "TERM": ""}, ()),
    "python -OO": ({}, ("-OO",)),
    "python -X dev": ({}, ("-X", "dev")),
    "python -S": ({}, ("-S",)),
    "a debugging allocator": ({"PYTHONMALLOC": "debug", "MALLOC_PERTURB_": "165"}, ()),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", _ODD)
def test_an_odd_environment(case: str) -> None:
    changes, options = _ODD[case]
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    for name, value in changes.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    done = captured([sys.executable, *options, "-c", _EVERYTHING], env=env, errors="replace")
    assert (done.returncode, done.stdout, done.stderr) == (0, "works\n", "")


@pytest.mark.parametrize("home", ["rel", "./x"])
def test_a_relative_home_is_refused_with_the_way_out(home: str) -> None:
    said = python(f"""
from staddle import Sandbox
from staddle.errors import PolicyError
os.environ["HOME"] = {home!r}
try:
    Sandbox()
except PolicyError as error:
    print(error.fix)
""")
    assert said == "set HOME to an absolute path"


def test_a_current_directory_that_was_removed() -> None:
    said = python("""
import tempfile
from staddle import Policy, Sandbox, wrap
from staddle.errors import InvalidCall
place = tempfile.mkdtemp()
os.chdir(place)
os.rmdir(place)
with Sandbox() as sb:
    print(sb.run("echo works").stdout, end="")
print(wrap(["true"], Policy.agent()).run().returncode)
for path in (".", "below"):
    try:
        Sandbox(path)
    except InvalidCall as error:
        print(error.why)
""")
    gone = "the current directory of this program no longer exists"
    assert said.splitlines() == ["works", "0", gone, gone]


def test_a_program_without_room_for_a_thread() -> None:
    said = python("""
import _thread
from staddle import Sandbox
from staddle.errors import LaunchFailed
def full(*args, **kwargs):
    raise RuntimeError("can't start new thread")
_thread.start_new_thread = full
import threading
threading._start_new_thread = threading._start_joinable_thread = full
from staddle import background
background._thread.start_new_thread = full
try:
    with Sandbox() as sb:
        print(sb.run("echo works").stdout, end="")
except LaunchFailed as error:
    print("ulimit -u" in error.fix)
""")
    assert said in {"True", "works"}
