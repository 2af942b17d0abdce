"""A command as the sandbox's root: it has the whole system to write in, and is held as any other is."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import AsyncSandbox, Identity, Policy, Reason, Sandbox
from staddle.errors import InvalidCall, RootUnavailable
from staddle.files.remove_tree import remove
from tests.support.in_a_child import SRC, captured
from tests.support.waiting import until

pytestmark = pytest.mark.both_users

BOMB = """
import os, time
for turn in range(200):
    if not os.fork():
        time.sleep(60)
        os._exit(0)
"""


@pytest.fixture(params=["once", "always"])
def how(request: pytest.FixtureRequest) -> str:
    """One command as root, or a session that is root."""
    return str(request.param)


def opened(how: str, **limits: object) -> tuple[Sandbox, str | None]:
    policy = Policy.agent().with_limits(**limits)
    identity = Identity(uid=0) if how == "always" else None
    return Sandbox(policy=policy, backend="namespaces", identity=identity), "root" if how == "once" else None


def counted(sb: Sandbox) -> str:
    return sb.files.read("/tmp/n")


def test_it_is_root_where_the_session_is_and_the_session_stays_who_it_is() -> None:
    with Sandbox(backend="namespaces") as sb:
        sb.run("mkdir sub && cd sub && export COLOUR=red && plain=1")
        look = "id -u; whoami; pwd; echo $HOME $USER $COLOUR $plain; cd /; export COLOUR=blue"
        said = sb.run(look, user="root")
        assert said.stdout == "0\nroot\n/workspace/sub\n/root root red\n"
        assert sb.exec(["id", "-un"], user="root", env={"A": "1"}).stdout == "root\n"
        assert sb.run("id -un; pwd; echo $COLOUR").stdout == "user\n/workspace/sub\nred\n"
        assert sb.run("id -un", user="user").stdout == "user\n"
        assert sb.run("exit 3", user="root").exit_code == 3
        with pytest.raises(InvalidCall, match="no user 'admin'"):
            sb.run("true", user="admin")


def test_the_same_in_an_event_loop() -> None:
    async def install() -> None:
        async with AsyncSandbox(backend="namespaces") as sb:
            said = await sb.run("id -u; touch /usr/bin/new && ls /usr/bin/new", user="root")
            assert said.stdout == "0\n/usr/bin/new\n"
            assert (await sb.exec(["id", "-u"], user="root")).stdout == "0\n"

    asyncio.run(install())


def test_a_session_may_be_root_from_the_beginning() -> None:
    with Sandbox(backend="namespaces", identity=Identity(uid=0)) as sb:
        sb.run("cd /usr/local/bin; printf '#!/bin/sh\\necho mine\\n' > tool; chmod +x tool; x=1", check=True)
        assert sb.run("tool; pwd; echo $x; echo ~; id -un").stdout == "mine\n/usr/local/bin\n1\n/root\nroot\n"
        assert sb.run("id -u", user="root").stdout == "0\n"
        other = sb.session("other")
        assert other.run("tool && rm /usr/local/bin/tool").ok
        point = sb.snapshot()
        sb.run("mkdir /opt/thing /etc/thing ~/thing")
        made = sorted(change.path for change in sb.diff(everything=True))
        assert made == ["/etc/thing", "/opt/thing", f"{sb.state.env['HOME']}/thing"]
        sb.restore(point)
        assert sb.diff(everything=True) == []
        sb.files.write("/etc/written", "by the host program")
        assert sb.run("cat /etc/written").stdout == "by the host program"
    assert not os.path.exists("/usr/local/bin/tool")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bind", "readonly"])
def test_without_layers_it_is_root_of_a_system_that_stays_as_it_is(mode: str, tmp_path: Path) -> None:
    for identity in (None, Identity(uid=0)):
        with Sandbox(tmp_path, backend="namespaces", mode=mode, identity=identity) as sb:
            said = sb.run("id -u; touch /usr/bin/new /etc/new", user="root")
            assert said.stdout == "0\n"
            assert said.stderr.count("Read-only file system") == 2


def test_other_backends_have_no_root() -> None:
    with (
        Sandbox(backend="native", best_effort=True, mode="readonly") as sb,
        pytest.raises(RootUnavailable, match="namespaces"),
    ):
        sb.run("true", user="root")


# ---------------------------------------------------------------- limits


def test_it_ends_in_time_with_all_that_it_started(how: str) -> None:
    sb, user = opened(how)
    with sb:
        done = sb.run("sleep 77 & (setsid sleep 77 &) ; sleep 77", user=user, timeout=0.5)
        assert done.reason is Reason.timeout
        look = ["/bin/sh", "-c", "cat /proc/[0-9]*/comm 2>/dev/null | grep -c sleep"]
        assert until(lambda: sb.exec(look, user=user).stdout == "0\n")


def test_it_can_be_interrupted_and_stopped(how: str) -> None:
    sb, user = opened(how)
    with sb:
        results = []
        script = "touch /tmp/begun; sleep 60"
        thread = threading.Thread(target=lambda: results.append(sb.run(script, user=user)))
        thread.start()
        assert until(lambda: sb.files.exists("/tmp/begun"))
        sb.interrupt()
        thread.join(60)
        assert [result.reason for result in results] == [Reason.cancelled]
        count = "n=0; while :; do n=$((n+1)); echo $n > /tmp/m; mv /tmp/m /tmp/n; done"
        process = threading.Thread(target=lambda: results.append(sb.run(count, user=user, timeout=20)))
        process.start()
        assert until(lambda: sb.files.exists("/tmp/n"))
        sb.pause()
        stopped = counted(sb)
        time.sleep(0.2)
        assert counted(sb) == stopped
        sb.resume()
        assert until(lambda: counted(sb) != stopped)
        sb.interrupt()
        process.join(60)
        assert results[-1].reason is Reason.cancelled


def test_its_processes_are_counted_with_all_others(how: str) -> None:
    sb, user = opened(how, processes=20)
    with sb:
        done = sb.exec(["/usr/bin/python3", "-c", BOMB], user=user, timeout=20)
        assert not done.ok
        assert sb.run("echo here").stdout == "here\n"


@pytest.mark.slow
def test_its_memory_is_counted_with_that_of_all_others(how: str) -> None:
    sb, user = opened(how, memory="200M")
    with sb:
        hungry = "import time; x = bytearray(600 << 20); time.sleep(20); print(len(x))"
        done = sb.exec(["/usr/bin/python3", "-c", hungry], user=user, timeout=30)
        assert (done.ok, done.stdout) == (False, "")
        assert sb.run("echo here").stdout == "here\n"


def test_what_it_writes_to_the_system_counts(how: str) -> None:
    sb, user = opened(how, disk="20M")
    with sb:
        done = sb.run("head -c 60M /dev/zero > /usr/local/big; sleep 20", user=user, timeout=30)
        assert done.reason is Reason.disk


# ---------------------------------------------------------------- kept

KEEP = """
import sys
from staddle import Identity, Sandbox
how, script = sys.argv[1:]
identity = Identity(uid=0) if how == "always" else None
with Sandbox(keep="of-root", backend="namespaces", identity=identity) as sb:
    done = sb.run(script, user=None if how == "always" else "root")
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)
"""


@pytest.fixture
def state() -> Iterator[str]:
    """Where sessions are kept: also somebody who is not root can pass through."""
    place = tempfile.mkdtemp(prefix="kept-", dir="/dev/shm")
    os.chmod(place, 0o711)
    yield place
    remove((os.fsencode(place),))


@pytest.mark.slow
def test_what_root_changed_is_kept_and_roots_also_for_another_process(how: str, state: str) -> None:
    def run(script: str) -> str:
        done = captured(
            [sys.executable, "-c", KEEP, how, script],
            env={**os.environ, "PYTHONPATH": str(SRC), "XDG_STATE_HOME": state},
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    run("echo 1 > /etc/mine; mkdir -m 700 /opt/closed; echo 2 > /opt/closed/file; touch /usr/bin/x")
    again = run(
        "cat /etc/mine /opt/closed/file; stat -c %U /etc/mine /usr/bin/x /etc/passwd; echo 3 >> /etc/mine"
    )
    assert again == "1\n2\nroot\nroot\nroot\n"
    assert run("cat /etc/mine; touch /usr/local/bin/y /etc/passwd && rm /usr/bin/x; id -un") == "1\n3\nroot\n"


@pytest.mark.slow
@pytest.mark.needs_root
def test_toolchains_below_the_home_of_the_hosts_root_stay_visible() -> None:
    with tempfile.TemporaryDirectory(dir="/root") as tools:
        os.chmod(tools, 0o755)
        (Path(tools) / "tool").write_text("#!/bin/sh\necho tooled\n")
        (Path(tools) / "tool").chmod(0o755)
        with Sandbox(policy=Policy.agent().replace(read=(tools,)), backend="namespaces") as sb:
            assert sb.run(f"{tools}/tool").stdout == "tooled\n"
            assert sb.run("id -u", user="root").stdout == "0\n"
            assert sb.run(f"{tools}/tool").stdout == "tooled\n"


@pytest.mark.slow
@pytest.mark.needs_root
def test_a_kept_system_stays_with_the_root_that_wrote_it(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where there are two: an ordinary user is one and the same."""
    monkeypatch.setenv("XDG_STATE_HOME", state)
    with Sandbox(keep="one", backend="namespaces", identity=Identity(uid=0)) as sb:
        sb.run("touch /usr/bin/x", check=True)
    with pytest.raises(InvalidCall, match=r"Identity\(uid=0\)"):
        Sandbox(keep="one", backend="namespaces")
    with Sandbox(keep="one", backend="namespaces", identity=Identity(uid=0)) as sb:
        sb.run("rm /usr/bin/x", check=True)


def test_everything_that_starts_something_takes_a_user() -> None:
    with Sandbox(backend="namespaces") as sb:
        sb.run("export COLOUR=red; cd /tmp")
        look = "id -un; pwd; echo $HOME $COLOUR"
        with sb.stream(look, user="root") as stream:
            assert "".join(map(str, stream)) == "root\n/tmp\n/root red\n"
        assert stream.result is not None
        assert stream.result.exit_code == 0
        started = sb.start("id -un; sleep 1000", user="root")
        assert until(lambda: started.output() == "root\n")
        session = sb.session("admin", user="root")
        assert session.run("x=5; id -un; cd /etc; echo 1 > mine").stdout == "root\n"
        assert session.run("echo $x; pwd; cat mine").stdout == "5\n/etc\n1\n"
        assert sb.session("admin") is session
        assert session.run("kill -9 $$").shell_exited
        assert session.run("id -un; echo $x; pwd").stdout == "root\n5\n/etc\n"
        with sb.terminal(["id", "-un"], user="root") as terminal:
            assert terminal.wait(60) == 0
            assert b"root" in terminal.read(60)
        assert sb.run("id -un; pwd").stdout == "user\n/tmp\n"
        sb.session("other")
        for refused in ("other", "main"):
            with pytest.raises(InvalidCall, match="not root's"):
                sb.session(refused, user="root")
        for call in (sb.stream, sb.start, sb.session, lambda _, user: sb.terminal(["id"], user=user)):
            with pytest.raises(InvalidCall, match="no user 'admin'"):
                call("true", user="admin")


def test_the_same_awaited() -> None:
    async def look() -> None:
        async with AsyncSandbox(backend="namespaces") as sb:
            async with sb.stream("id -un", user="root") as stream:
                assert [str(chunk) async for chunk in stream] == ["root\n"]
            session = await sb.session("admin", user="root")
            assert (await session.run("id -un")).stdout == "root\n"
            started = await sb.start(["id", "-un"], user="root")
            assert await started.wait(60) == 0
            assert started.output() == "root\n"
            async with await sb.terminal(["id", "-un"], user="root") as terminal:
                assert await terminal.wait(60) == 0

    asyncio.run(look())


def test_what_a_command_of_root_leaves_in_the_background_goes_on() -> None:
    with Sandbox(backend="namespaces") as sb:
        pid = sb.run("sleep 1000 & echo $!", user="root").stdout.strip()
        assert sb.run(f"kill -0 {pid}; true", user="root").stderr == ""
        sb.run("setsid sh -c 'while :; do date > /tmp/alive; sleep 0.01; done' &", user="root")
        assert until(lambda: sb.files.exists("/tmp/alive"))
        before = sb.files.stat("/tmp/alive").modified
        assert until(lambda: sb.files.stat("/tmp/alive").modified != before)


def test_a_session_of_root_is_not_continued_by_a_fork() -> None:
    with Sandbox(backend="namespaces") as sb:
        sb.session("admin", user="root").run("x=1; echo kept > /etc/mine")
        sb.session("mine").run("x=2")
        (other,) = sb.fork()
        with other:
            assert other.session("mine").run("echo $x; id -un; cat /etc/mine").stdout == "2\nuser\nkept\n"
            assert other.session("admin", user="root").run("echo $x; id -un").stdout == "\nroot\n"


def test_files_as_root() -> None:
    with Sandbox(backend="namespaces") as sb:
        files = sb.files.as_user("root")
        files.write("/etc/mine", "1")
        assert sb.run("stat -c %U /etc/mine", user="root").stdout == "root\n"
        files.write("/etc/large", b"x" * 500_000)
        files.mkdir("/opt/deep/er", parents=True)
        files.write("/opt/deep/secret", "2")
        sb.run("chmod 600 /opt/deep/secret; chmod 700 /opt/deep", user="root")
        assert files.read("/opt/deep/secret") == "2"
        if os.geteuid() == 0:  # for an ordinary user of the host one id serves for both
            with pytest.raises(PermissionError):
                sb.files.read("/opt/deep/secret")
            with pytest.raises(PermissionError):
                sb.files.write("/etc/other", "3")
        assert sb.files.read_bytes("/etc/large") == b"x" * 500_000
        assert {each.name for each in files.list("/opt/deep")} == {"er", "secret"}
        files.rename("/etc/mine", "/etc/yours")
        files.remove("/opt/deep", recursive=True)
        assert not files.exists("/opt/deep")
        assert sb.files.as_user("user").read("/etc/yours") == "1"
        with pytest.raises(InvalidCall, match="no user 'admin'"):
            sb.files.as_user("admin")

    async def look() -> None:
        async with AsyncSandbox(backend="namespaces") as sb:
            await sb.files.as_user("root").write("/etc/mine", "1")
            assert await sb.files.read("/etc/mine") == "1"
            with pytest.raises(InvalidCall, match="no user 'admin'"):
                await sb.files.as_user("admin").read("/etc/mine")

    asyncio.run(look())


def test_the_file_server_of_root_cannot_do_more_than_root_inside() -> None:
    with Sandbox(backend="namespaces") as sb:
        files = sb.files.as_user("root")
        for path in ("/proc/sys/kernel/hostname", "/sys/power/state", "/proc/sysrq-trigger"):
            with pytest.raises(OSError, match=r"denied|Read-only|permitted|No such|Invalid"):
                files.write(path, "x")
