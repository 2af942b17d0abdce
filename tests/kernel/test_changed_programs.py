"""Host programs that change themselves while a sandbox is open: limits, umask, user.

A call does its work or raises an error of ours, and the sandbox goes on when the change is undone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

import pytest

from tests.support.in_a_child import ROOT, python
from tests.support.waiting import until

_PRELUDE = """
import resource, signal, tempfile
import staddle
from staddle import Sandbox

def outcome(call):
    try:
        return call()
    except staddle.StaddleError as error:
        return type(error).__name__

def calls(sandbox):
    yield "run", lambda: sandbox.run("echo ok").stdout
    yield "exec", lambda: sandbox.exec(["echo", "ok"]).stdout
    yield "list", lambda: len(sandbox.files.list("."))
    yield "session", lambda: sandbox.session("other").run("echo ok").stdout
    yield "snapshot", lambda: sandbox.snapshot() and "ok"
    yield "fork", lambda: [fork.close() for fork in sandbox.fork()]
    yield "open", lambda: Sandbox().close()
    yield "commit", lambda: (sandbox.run("echo new > made"), sandbox.commit(), sorted(os.listdir(place)))[2]
    yield "keep", kept

def kept():
    name = f"changed-{os.getpid()}"
    with Sandbox(place, keep=name) as sandbox:
        said = sandbox.run("echo ok").stdout
    staddle.remove_kept(name)
    return said

def outcomes(sandbox):
    return [outcome(call) for _, call in calls(sandbox)]

place = tempfile.mkdtemp(dir="/var/tmp")
os.chmod(place, 0o755)
open(f"{place}/old", "w").close()
layers = os.environ["STADDLE_LAYERS"] = tempfile.mkdtemp(dir="/var/tmp")  # what goes wrong here stays here
os.chmod(layers, 0o755)
"""
_FINE = ["ok\n", "ok\n", 1, "ok\n", "ok", [None], None, ["made", "old"], "ok\n"]


def changed(during: str, undo: str) -> list[object]:
    """The outcomes of all calls after `during`, and those after `undo`."""
    said = python(
        f"""{_PRELUDE}
try:
    with Sandbox(place) as sandbox:
        sandbox.run("x=1")
        {during}
        first = outcomes(sandbox)
        {undo}
        sandbox.run("rm -f made")
        print([first, outcomes(sandbox)])
finally:
    import shutil
    shutil.rmtree(place)
    import atexit
    atexit._run_exitfuncs()
    shutil.rmtree(layers)
""",
        timeout=120,
    )
    return list(eval(said))  # noqa: S307 - what our own child has printed


@pytest.mark.parametrize("soft", [0, 10, 40])
def test_a_limit_on_open_files_that_is_lowered_for_a_while(soft: int) -> None:
    first, then = changed(
        f"before = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        f"        resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, before[1]))",
        f"assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == {soft}\n"
        "        resource.setrlimit(resource.RLIMIT_NOFILE, before)",
    )
    # With none, not even a poll is possible.
    assert first[0] == ("ok\n" if soft else "TooManyOpenFiles")  # type: ignore[index]
    assert not {"OSError", "SandboxLost"} & set(map(str, first))  # type: ignore[call-overload]
    assert {"LaunchFailed", "TooManyOpenFiles"} & set(map(str, first))  # type: ignore[call-overload]
    assert then == _FINE


def test_a_limit_on_the_size_of_files_that_is_lowered_for_a_while() -> None:
    first, then = changed(
        "before = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))",
        "resource.setrlimit(resource.RLIMIT_FSIZE, before)",
    )
    assert set(first) <= {"LaunchFailed", "LayerError", None}  # type: ignore[call-overload]
    assert then == _FINE


def test_a_umask_that_takes_every_right() -> None:
    first, then = changed("os.umask(0o777)", "os.umask(0o022)")
    assert first == _FINE
    assert then == _FINE


@pytest.fixture
def place() -> Iterator[str]:
    """A directory that every user can pass through."""
    found = tempfile.mkdtemp(dir="/var/tmp")
    os.chmod(found, 0o755)
    yield found

    def is_removed() -> bool:
        # The fork server of a program that is gone may remove it at the same time.
        subprocess.run(["chmod", "-R", "u+rwx", found], capture_output=True, check=False)
        shutil.rmtree(found, ignore_errors=True)
        return not os.path.exists(found)

    assert until(is_removed)


def test_after_such_a_umask_the_next_program_opens_sandboxes(place: str) -> None:
    for umask in ("0o777", "0o022"):
        said = python(f"""
os.environ["STADDLE_LAYERS"] = {place!r}
os.umask({umask})
from staddle import Sandbox
sandbox = Sandbox()
print(sandbox.run("echo ok").stdout)
sandbox.snapshot()
sys.stdout.flush()
os._exit(0)  # its layers stay, for the next program to remove
""")
        assert said == "ok"


@pytest.mark.skipif(not ROOT, reason="only root can become somebody else")
@pytest.mark.parametrize("way", ["os.seteuid(65534)", "os.setgid(65534); os.setuid(65534)"])
def test_a_program_that_becomes_another_user(way: str) -> None:
    said = python(f"""
import tempfile
from staddle import Sandbox, Snapshot
from staddle.errors import StaddleError
place = tempfile.mkdtemp()
sandbox = Sandbox(place)
sandbox.run("echo x > y")
os.rmdir(place)
taken = sandbox.snapshot()
taken.save(saved := f"{{place}}.snapshot")
os.chmod(saved, 0o644)
{way}
calls = [lambda: sandbox.run("true"), sandbox.diff, sandbox.pause, sandbox.commit, Sandbox]
calls += [lambda: taken.save("/tmp/none"), lambda: Snapshot.load(saved), lambda: Sandbox.from_snapshot(taken)]
for call in calls:
    try:
        call()
    except StaddleError as error:
        print(type(error).__name__, error.why)
sandbox.close()
""")
    of_this = "SessionError this process has opened it as uid 0, and runs as uid 65534 now"
    of_another = "LaunchFailed this process has opened sandboxes as uid 0, and runs as uid 65534 now"
    assert said.splitlines() == [*[of_this] * 4, *[of_another] * 4]
