"""`/` itself: directories that are made in it, as people and models make them in a container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Identity, Policy, PolicyNotEnforceable, Sandbox, remove_kept, wrap
from tests.support.waiting import until

AS_ROOT = "mkdir -p /app/src /testbed /data /logs /home/x && echo 1 > /app/src/one && git init -q /repo"


@pytest.fixture(scope="module")
def sb() -> Iterator[Sandbox]:
    with Sandbox(backend="namespaces") as made:
        made.run(AS_ROOT, user="root").check()
        yield made


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("cat /app/src/one", "1\n"),
        ("sudo mkdir /by-sudo && ls -d /by-sudo", "/by-sudo\n"),
        ("cd /app && pwd && sudo touch here && ls; cd /workspace", "/app\nhere\nsrc\n"),
        ("ls -d /srv /mnt /media", "/media\n/mnt\n/srv\n"),
        ("ls -A / | grep staddle; ls -d /.* 2>/dev/null | grep -v '/\\.\\.*$'; true", ""),
        ("stat -c %a /tmp /var/tmp", "1777\n1777\n"),
        ("git init -q w && git -C w commit -q --allow-empty -m x", ""),
        ("sudo git -C w worktree add -q -b wt /wt 2>&1 && ls -d /wt", "/wt\n"),
        ("cd / && sudo mkdir up && cd /up/.. && ls -d up; cd /workspace", "up\n"),
    ],
)
def test_a_line(sb: Sandbox, line: str, printed: str) -> None:
    got = sb.run(line)
    assert (got.stdout, got.stderr) == (printed, "")


@pytest.mark.needs_root
def test_root_has_tmp_and_what_is_in_the_root(sb: Sandbox) -> None:
    owners = sb.run("stat -c %U /tmp /var/tmp / /srv /app /home /home/user").stdout.split()
    assert owners == [*["root"] * 6, "user"]
    got = sb.run("mkdir /mine")
    assert got.exit_code == 1
    assert "Permission denied" in got.stderr


def test_it_is_part_of_snapshots_forks_and_the_diff() -> None:
    with Sandbox(backend="namespaces") as sb:
        sb.run(f"{AS_ROOT}; echo mine > w", user="root").check()
        assert [change.path for change in sb.diff()] == ["/workspace/w"]
        found = {change.path: change for change in sb.diff(everything=True)}
        assert found["/app/src/one"].elsewhere
        assert "/home/x" in found
        assert "/home" not in found
        assert [change.path for change in sb.diff(["/app/src"])] == ["/app/src", "/app/src/one"]
        before = sb.snapshot("before")
        assert before.method == "swap"
        sb.run("cd /app; sudo rm -r /app/src /testbed; sudo mkdir /later")
        sb.restore(before)
        assert sb.run("cat /app/src/one; ls -d /testbed /later").stdout == "1\n/testbed\n"
        (fork,) = sb.fork()
        with fork:
            assert (
                fork.run("cat /app/src/one && sudo touch /app/forked && ls /app").stdout == "1\nforked\nsrc\n"
            )
        assert sb.run("ls /app").stdout == "src\n"


def test_it_is_written_beside_programs_that_run() -> None:
    with Sandbox(backend="namespaces") as sb:
        server = sb.start("cd /tmp; echo on > log; while sleep 0.05; do date >> log; done")
        assert until(lambda: sb.files.exists("/tmp/log"))
        sb.run(AS_ROOT, user="root").check()
        size = int(sb.run("stat -c %s /tmp/log").stdout)
        assert until(lambda: int(sb.run("stat -c %s /tmp/log").stdout) > size)
        assert sb.snapshot().method == "copy"
        assert server.poll() is None


@pytest.mark.slow
def test_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STADDLE_LAYERS", str(tmp_path))
    for policy in (Policy.agent(), Policy.agent().replace(world="writable")):
        name = f"kept-{policy.world}"
        with Sandbox(backend="namespaces", keep=name, policy=policy) as sb:
            sb.run(AS_ROOT, user="root").check()
        with Sandbox(backend="namespaces", keep=name, policy=policy) as sb:
            assert sb.run("cat /app/src/one; sudo touch /app/two; ls /app").stdout == "1\nsrc\ntwo\n"
        remove_kept(name)


def test_the_policy_gives_it_to_the_user() -> None:
    with Sandbox(backend="namespaces", policy=Policy.agent().replace(world="writable")) as sb:
        assert sb.run("mkdir /app && echo x > /app/x && cat /app/x").stdout == "x\n"
        assert sb.run("sudo mkdir /app/y /z && ls /app").stdout == "x\ny\n"
        sb.snapshot("a")
        sb.run("rm -rf /app /z")
        sb.restore("a")
        assert sb.run("cat /app/x").stdout == "x\n"


def test_a_session_that_is_root_has_it_at_once() -> None:
    with Sandbox(backend="namespaces", identity=Identity(uid=0)) as sb:
        assert sb.run("mkdir /app && cd /app && pwd").stdout == "/app\n"


def test_where_it_cannot_be_had_that_is_said(tmp_path: Path) -> None:
    policy = Policy.agent().replace(world="writable")
    with pytest.raises(PolicyNotEnforceable, match="`/` cannot be written"):
        wrap(["true"], policy)
    with pytest.raises(PolicyNotEnforceable, match="`/` cannot be written"):
        Sandbox(tmp_path, mode="bind", policy=policy)


ATTACKS = """
mv /home /elsewhere; ln -s /etc /home; rmdir /home/user; mv /usr /us; rm -rf /dev/.staddle; mv /dev /d
mount --bind /etc /home; umount /etc; ln -sf /etc /workspace; ls -d /home/user /usr/bin /workspace/. /dev/null
"""


def test_nothing_that_is_mounted_can_be_moved_away_or_replaced(sb: Sandbox) -> None:
    got = sb.run(ATTACKS, user="root")
    assert got.stdout == "/dev/null\n/home/user\n/usr/bin\n/workspace/.\n"
    sb.snapshot("after the attacks")
    assert sb.run("sudo touch /app/on && ls /app/on ~/.bashrc").stdout == "/app/on\n/home/user/.bashrc\n"


def test_the_template_of_all_sandboxes_stays_as_it_is(sb: Sandbox) -> None:
    sb.run("mkdir /app /only-here; rm -rf /srv; echo x > /mnt/x", user="root")
    with Sandbox(backend="namespaces") as other:
        assert other.run("ls -d /srv /mnt; ls /mnt; ls -d /only-here").stdout == "/mnt\n/srv\n"
