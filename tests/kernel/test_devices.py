"""A granted device opens inside, and nothing else does. The device is a second node of /dev/full: harmless.

Only root can make such a node, so root's run tries the ordinary user as well.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Policy, backends, wrap
from staddle.errors import LaunchFailed, PathEscape, PolicyError
from staddle.mounts.host import open_device
from staddle.mounts.operations import DeviceNode
from staddle.policy.compiler import compile
from tests.support.in_a_child import SRC, captured

pytestmark = pytest.mark.needs_root

BACKENDS = ("namespaces", "bwrap", "landlock")
FULL, ZERO = os.makedev(1, 7), os.makedev(1, 5)
#: An id without an account.
USER = 61234


def make_node(path: str, number: int) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, number)
    os.chmod(path, 0o666)


@pytest.fixture(scope="module")
def granted() -> Iterator[str]:
    path = f"/dev/staddle-test-{os.getpid()}-granted"
    make_node(path, FULL)
    yield path
    os.unlink(path)


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    path = f"/dev/staddle-test-{os.getpid()}-other"
    make_node(path, ZERO)
    yield path
    os.unlink(path)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that an ordinary user can read, with a copy of the package."""
    path = Path(tempfile.mkdtemp(prefix="staddle-devices-", dir="/var/tmp"))
    path.chmod(0o755)
    shutil.copytree(SRC, path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    captured(["chmod", "-R", "a+rX", str(path)])
    (path / "work").mkdir()
    os.chown(path / "work", USER, USER)
    make_node(str(path / "work" / "planted"), FULL)
    yield path
    shutil.rmtree(path)


#: Opens each path and prints the error, or nothing; then what else it can do to the first.
PROBE = """
import errno, json, os, sys
def opened(path, flags=os.O_RDWR):
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK))
    except OSError as error:
        return errno.errorcode[error.errno]
    return ""
def attempted(work):
    try:
        work()
    except OSError as error:
        return errno.errorcode[error.errno]
    return ""
first = sys.argv[1]
print(json.dumps({
    "opened": {path: opened(path) for path in sys.argv[1:]},
    "usual": [opened("/dev/" + name) for name in ("null", "zero", "full", "random", "urandom")],
    "planted": opened("planted"),
    "chmod": attempted(lambda: os.chmod(first, 0o666)),
    "made": attempted(lambda: os.mkdir(first + "-made") or os.rmdir(first + "-made")),
    "listed": sorted(os.listdir("/dev")) if not attempted(lambda: os.listdir("/dev")) else [],
    "number": os.stat(first).st_rdev if not attempted(lambda: os.stat(first)) else 0,
}))
"""
#: Runs the probe in a session and as a single command, with and without the grant.
HOST = """
import json, subprocess, sys
from staddle import Policy, Sandbox, wrap
backend, work, probe, granted, other = sys.argv[1:]
argv = ["python3", "-c", probe, granted, other]
found = {"control": json.loads(subprocess.run(argv, cwd=work, capture_output=True).stdout)}
plain = Policy.agent()
for name, policy in {
    "with": plain.with_devices(granted),
    "without": plain,
    "denied": plain.with_devices(granted).with_deny(granted),
    "denied by another path": plain.with_devices(granted).with_deny("/dev/full"),
}.items():
    done = wrap(argv, policy.with_read(work), backend=backend, cwd=work).run(capture_output=True)
    found[f"command, {name}"] = json.loads(done.stdout or repr(done.stderr.decode()))
    with Sandbox(workspace=work, policy=policy, backend=backend, mode="readonly") as sandbox:
        done = sandbox.exec(argv)
        found[f"session, {name}"] = json.loads(done.stdout or repr(done.stderr))
print(json.dumps(found))
"""


@pytest.mark.parametrize("who", ["root", "user"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_granted_device_opens(who: str, backend: str, granted: str, other: str, place: Path) -> None:
    around = [] if who == "root" else ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    home = "/root" if who == "root" else str(place / "work")
    done = captured(
        [*around, sys.executable, "-c", HOST, backend, str(place / "work"), PROBE, granted, other],
        env={**os.environ, "PYTHONPATH": str(place / "src"), "HOME": home, "TMPDIR": "/tmp"},
        cwd=place,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    control = found["control"]
    assert set(control["opened"].values()) == {""}, "the probe opens both where nothing confines it"
    assert control["planted"] == ""
    for kind in ("command", "session"):
        seen = found[f"{kind}, with"]
        assert seen["opened"][granted] == "", (kind, seen)
        assert seen["number"] == FULL
        assert seen["opened"][other] in ("ENOENT", "EACCES"), (kind, seen)
        assert seen["chmod"] in ("EROFS", "EPERM"), (kind, seen)
        assert seen["made"] in ("EROFS", "EACCES", "EPERM"), (kind, seen)
        for name in ("without", "denied", "denied by another path"):
            assert found[f"{kind}, {name}"]["opened"][granted] in ("ENOENT", "EACCES"), (kind, name)
        assert found[f"{kind}, without"]["usual"] == seen["usual"] == [""] * 5
        if backend != "landlock":  # it has the host's /dev, of which it opens no more
            new = {os.path.basename(granted)}
            assert set(seen["listed"]) - set(found[f"{kind}, without"]["listed"]) == new
            assert seen["planted"] == "EACCES", "the workspace allows no devices"


def test_a_device_is_there_after_a_restore_and_in_a_fork(granted: str) -> None:
    from staddle import Sandbox

    look = ["head", "-c", "1", granted]
    with Sandbox(policy=Policy.agent().with_devices(granted), backend="namespaces") as sandbox:
        before = sandbox.snapshot("before")
        holder = sandbox.start(f"exec 3<>{granted}; echo holds; exec sleep 1000")
        holder.wait_for_output(10)
        sandbox.snapshot("while a process holds it")
        assert holder.poll() is None, "a snapshot ends nothing"
        (fork,) = sandbox.fork(1)
        with fork:
            assert fork.exec(look).ok
        sandbox.restore(before)
        assert holder.wait(10) is not None
        assert sandbox.exec(look).ok


def test_sandboxes_with_and_without_a_device_at_the_same_time(granted: str) -> None:
    from staddle import Sandbox

    policy = Policy.agent()
    with (
        Sandbox(policy=policy, backend="namespaces") as plain,
        Sandbox(policy=policy.with_devices(granted), backend="namespaces") as one,
        Sandbox(policy=policy, backend="namespaces") as other,
    ):
        answers = [sandbox.run(f"test -e {granted}").exit_code for sandbox in (plain, one, other)]
    assert answers == [1, 0, 1]


def test_a_device_that_became_another_is_not_shown() -> None:
    path = f"/dev/staddle-test-{os.getpid()}-changed"
    make_node(path, FULL)
    try:
        plan = compile(Policy.agent().with_devices(path), cwd="/")
        os.close(open_device(DeviceNode(path, 1, 7, "")))
        os.unlink(path)
        make_node(path, ZERO)
        for name in BACKENDS:
            with pytest.raises(LaunchFailed, match=r"not as it was|no longer the device"):
                started(name, plan)
        os.unlink(path)
        os.symlink("/dev/full", path)
        for name in BACKENDS:
            with pytest.raises(LaunchFailed, match=r"not as it was|there is a link"):
                started(name, plan)
    finally:
        os.unlink(path)


def started(backend: str, plan: object) -> None:
    """Start a command with a plan that was made earlier."""
    import subprocess

    launch = backends.get(backend).prepare(plan, ["true"])  # type: ignore[arg-type]
    try:
        done = subprocess.run(
            launch.argv, env=launch.env, pass_fds=launch.pass_fds, capture_output=True, check=False
        )
        os.set_blocking(launch.status, False)
        said = os.read(launch.status, 1 << 16) if done.returncode else b""
    finally:
        launch.close()
    if done.returncode:
        raise LaunchFailed(said.decode("utf-8", "replace") + done.stderr.decode(), why="", fix="")


def test_what_is_no_device_of_its_own_is_refused(granted: str, other: str) -> None:
    link = f"{granted}-link"
    os.symlink(granted, link)
    try:
        for path, why in (
            (link, "it is a link to"),
            ("/dev/net", "it is a directory"),
            (f"{granted}-missing", "it does not exist"),
        ):
            with pytest.raises((PolicyError, PathEscape)) as caught:
                compile(Policy.agent().with_devices(path), cwd="/")
            assert why in caught.value.why, path
            assert caught.value.fix
    finally:
        os.unlink(link)


def test_memory_disks_and_terminals_are_refused_under_any_name() -> None:
    path = f"/dev/staddle-test-{os.getpid()}-refused"
    for kind, number in (
        (stat.S_IFCHR, os.makedev(1, 1)),
        (stat.S_IFCHR, os.makedev(1, 11)),
        (stat.S_IFCHR, os.makedev(5, 0)),
        (stat.S_IFCHR, os.makedev(13, 64)),
        (stat.S_IFBLK, os.makedev(7, 0)),
    ):
        os.mknod(path, kind | 0o666, number)
        try:
            with pytest.raises(PolicyError, match="devices names"):
                compile(Policy.agent().with_devices(path), cwd="/")
        finally:
            os.unlink(path)


def test_roots_sandbox_needs_a_device_that_all_users_may_open(granted: str) -> None:
    os.chmod(granted, 0o660)
    try:
        with pytest.raises(PolicyError) as caught:
            compile(Policy.agent().with_devices(granted), cwd="/")
        assert "0660" in caught.value.why
        assert "udev" in caught.value.fix
    finally:
        os.chmod(granted, 0o666)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [*BACKENDS, "session"])
def test_the_containment_catalogue_with_a_granted_device(backend: str, granted: str) -> None:
    """Nothing more gets through than without the device."""
    through = []
    for grants in ({}, {"devices": [granted]}):
        below = "readable" if backend == "landlock" else "work"
        asked = json.dumps({"backend": backend, "grants": grants, "deny_below": below})
        done = captured(
            [sys.executable, "-m", "tests.containment.session", asked],
            cwd=SRC.parent,
            env={**os.environ, "PYTHONPATH": f"{SRC}:{SRC.parent}"},
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert len(found["answers"]) > 200
        through.append(
            {name for name, answer in found["answers"].items() if answer.get("outcome") == "through"}
            | {f"damage: {name}" for name in found["damage"]}
            | {f"leak: {name}" for name in found["leaks"]}
        )
    assert through[1] - through[0] == set()


#: Names another thread, as CUDA does at its start, and tries the same with processes around it.
NAMES = """
import os, subprocess, sys, threading
def written(path, text="x"):
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as error:
        return type(error).__name__
    return ""
wait = threading.Event()
thread = threading.Thread(target=wait.wait)
thread.start()
own = written(f"/proc/self/task/{thread.native_id}/comm")
wait.set()
outer = [written(f"/proc/{os.getppid()}/{name}", "1000") for name in ("oom_score_adj", "comm", "clear_refs")]
child = subprocess.run(["sh", "-c", "echo x > /proc/$$/comm"], capture_output=True).returncode
print(repr(own), outer, child)
"""


def test_a_program_on_landlock_may_name_its_threads_if_it_has_a_device(granted: str) -> None:
    argv = ["/usr/bin/python3", "-c", NAMES]
    # Unconfined, it changes its parent, so that has to be a process of the test's own.
    control = captured(["sh", "-c", '"$@"; exit', "sh", *argv])
    assert control.stdout.startswith("'' [''")
    policy = Policy.agent()
    done = {
        has: wrap(argv, policy.with_devices(*([granted] if has else [])), backend="landlock").run(
            capture_output=True
        )
        for has in (True, False)
    }
    errors = ("PermissionError", "FileNotFoundError")  # the latter where processes of others are hidden
    assert done[True].stdout.decode() in [f"'' ['{error}', '{error}', '{error}'] 2\n" for error in errors], (
        done
    )
    assert done[False].stdout.startswith(b"'PermissionError'"), done
