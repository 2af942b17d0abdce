"""A sandbox on another system than the host's: its programs, its files, its links, and nothing of ours."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from staddle import Identity, Policy, PolicyNotEnforceable, Sandbox, wrap
from staddle.bases.store import import_image
from staddle.errors import CommandNotFound, PolicyError
from staddle.policy import base
from tests.support.roots import small_root
from tests.unit.bases.images import docker_save, file, layer, oci

pytestmark = pytest.mark.both_users


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_root(tmp_path_factory.mktemp("base") / "root")


def test_a_session_runs_on_it(root: Path, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("from the host\n")
    with Sandbox(workspace=tmp_path, base=root) as sb:
        got = sb.run(". /etc/os-release; echo $NAME; cat /workspace/f; ls /usr/bin; echo x > /workspace/new")
        assert got.stdout.split() == [
            *("Tiny", "from", "the", "host"),
            *("bash", "cat", "env", "getent", "id", "ls", "readlink", "touch"),
        ]
        assert sb.run("id -un; getent passwd user www | cat").stdout.splitlines() == [
            "user",
            "user:x:1000:1000::/home/user:/bin/bash",
            "www:x:33:33::/:/bin/bash",
        ]
        # It is read-only, and beside it everything is as in any other sandbox.
        assert not sb.run("touch /usr/x").ok
        assert not sb.run("touch /etc/x").ok
        assert sb.run("touch /tmp/x ~/x /dev/shm/x && ls -A ~ && ls /proc/self/fd > /dev/null").ok
        assert sb.exec(["git", "status"]).exit_code == 127  # the host's own are not there
        assert [change.path for change in sb.diff() if change.path.startswith("/workspace")] == [
            "/workspace/new"
        ]
        snapshot = sb.snapshot("before")
        sb.run("echo y > /workspace/new")
        sb.restore(snapshot)
        assert sb.run("cat /workspace/new").stdout == "x\n"
    assert not (root / "usr/x").exists()


@pytest.mark.parametrize("backend", ["namespaces", "bwrap"])
def test_a_single_command_runs_on_it_and_grants_are_on_top(root: Path, tmp_path: Path, backend: str) -> None:
    (tmp_path / "granted").mkdir()
    (tmp_path / "granted/f").write_text("host\n")
    policy = (
        Policy.agent().with_base(root).with_read(tmp_path / "granted", "/usr/share").with_deny("/bin/touch")
    )
    script = (
        f"cat /etc/os-release {tmp_path}/granted/f; ls -d /usr/share/[a-z]* | cat; touch /tmp/x || echo none"
    )
    done = wrap(["bash", "-c", script], policy, backend=backend, cwd="/").run(capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[:2] == ['NAME="Tiny"', "host"], done.stderr
    assert len(lines) > 5  # the host's /usr/share, which the base does not have
    assert lines[-1] == "none"


def test_its_user_may_be_root(root: Path) -> None:
    with Sandbox(base=root, identity=Identity(uid=0)) as sb:
        assert sb.run("id -un; echo ~; touch ~/x; ls ~").stdout == "root\n/root\nx\n"


@pytest.fixture
def with_app(root: Path, tmp_path: Path) -> Path:
    """A base with an application, which only its owner may look into, in a directory of the same kind."""
    base = tmp_path / "closed/base"
    shutil.copytree(root, base, symlinks=True)
    (base / "app/src").mkdir(parents=True)
    (base / "app/main").write_text("as it was\n")
    (base / "app/src/part").write_text("as it was\n")
    (base / "app/main").chmod(0o600)
    for path in (base / "app/src", base / "app", base.parent):
        path.chmod(0o700)
    return base


def _writes_its_app(sb: Sandbox, user: str | None) -> None:
    assert sb.run("cat /app/main", user=user).stdout == "as it was\n"
    script = "echo 1 > /app/main; echo 2 >> /app/src/part; echo 3 > /app/new; touch /data /usr/bin/x"
    assert sb.run(script, user=user).ok
    told = sb.run("cat /app/main /app/src/part /app/new; ls /app", user=user)
    assert told.stdout == "1\nas it was\n2\n3\nmain\nnew\nsrc\n"


@pytest.mark.parametrize("session_is_root", [False, True])
def test_root_writes_what_a_base_has(with_app: Path, session_is_root: bool) -> None:
    with Sandbox(base=with_app, identity=Identity(uid=0) if session_is_root else Identity()) as sb:
        _writes_its_app(sb, None if session_is_root else "root")
        snapshot = sb.snapshot()
        sb.run("echo 4 > /app/main", user=None if session_is_root else "root")
        sb.restore(snapshot)
        assert sb.run("cat /app/new").stdout == "3\n"
    assert (with_app / "app/main").read_text() == "as it was\n"
    assert sorted(os.listdir(with_app / "app")) == ["main", "src"]


@pytest.mark.needs_root
def test_root_writes_a_base_of_another_owner(with_app: Path) -> None:
    for place, _, files in os.walk(with_app):
        for name in (place, *(os.path.join(place, inner) for inner in files)):
            os.chown(name, 4321, 4321, follow_symlinks=False)
    with Sandbox(base=with_app) as sb:
        _writes_its_app(sb, "root")
        assert not sb.run("echo 5 > /app/main").ok, "the user of the sandbox is not its root"


def test_a_workspace_in_the_place_of_what_a_base_has(with_app: Path, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/mine").write_text("from the host\n")
    with Sandbox(tmp_path / "project", base=with_app, workspace_at="/app") as sb:
        told = sb.run("pwd -P; ls; cat /app/mine; touch /app/new").stdout
        assert told == "/app\nmine\nfrom the host\n"
        assert sb.run("ls /app; touch /data", user="root").stdout == "mine\nnew\n"
    with pytest.raises(PolicyError, match="/app is shown from outside there"):
        Sandbox(tmp_path / "project", base=with_app, workspace_at="/app/src")


def test_links_of_a_hostile_base_lead_to_nothing_of_the_host(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host\n")
    evil = small_root(tmp_path / "evil")
    for name, target in {
        "etc/shadow": str(secret),
        "etc/link": str(secret),
        "etc/resolv.conf": str(secret),
        "etc/hosts": str(secret),
        "opt": str(tmp_path),
        "srv": "/proc/1/root",
        "mnt": "../../../../../../../../../" + str(tmp_path),
        "usr/share": str(tmp_path),
        "usr/lib/locale": os.path.join("/proc/self", "root") + str(tmp_path),
    }.items():
        (evil / name).symlink_to(target)
    (evil / "var").symlink_to(str(tmp_path))
    (evil / os.fsdecode(b"\xff\n")).mkdir()
    (evil / os.fsdecode(b"etc/\xfe\t")).write_text("odd")
    with Sandbox(base=evil) as sb:
        got = sb.run(
            "cat /etc/link /etc/shadow /etc/resolv.conf /etc/hosts /opt/secret /srv/etc/passwd /mnt/secret "
            "/usr/share/secret /usr/lib/locale/secret /var/secret /var/tmp/secret; ls / | cat"
        )
        assert "of the host" not in got.stdout
        assert "root:" not in got.stdout
        assert "127.0.0.1 localhost" in got.stdout


OURS = ("dev", "proc", "sys", "tmp", "home", "run", "etc", "workspace", "var", "usr", "media", "mnt", "srv")
ODD = {"a file": Path.touch, "a link": lambda path: path.symlink_to("/etc"), "a pipe": os.mkfifo}


@pytest.mark.parametrize("kind", ODD)
def test_a_base_may_have_anything_in_the_place_of_ours(root: Path, tmp_path: Path, kind: str) -> None:
    shutil.copytree(root / "usr", tmp_path / "base/.system", copy_function=os.link)
    for name in ("bin", "lib", "lib64"):
        (tmp_path / "base" / name).symlink_to(f"/.system/{name}")
    for name in OURS:
        ODD[kind](tmp_path / "base" / name)
    with Sandbox(base=tmp_path / "base") as sb:
        got = sb.run("id -un; touch /tmp/x /var/tmp/x /workspace/x ~/x && ls ~ /workspace | cat")
        assert got.stdout.split() == ["user", "/home/user:", "x", "/workspace:", "x"]


def test_without_a_shell_there_is_no_session(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CommandNotFound, match=r"the base .* has no program 'bash'") as error:
        Sandbox(base=tmp_path / "empty")
    assert error.value.fix


def test_a_session_on_another_backend_has_no_base(root: Path) -> None:
    with pytest.raises(PolicyNotEnforceable, match="needs the host's Python"):
        Sandbox(base=root, backend="bwrap", mode="readonly")


@pytest.mark.slow
def test_an_image_is_run_by_its_name(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(base.VARIABLE, str(tmp_path / "bases"))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(root, arcname=".")
    above = layer(file("etc/os-release", b"NAME=Above\n"), file("usr/bin/.wh.touch"))
    for name, write in (("docker", docker_save), ("oci", oci)):
        import_image(str(write(tmp_path / f"{name}.tar", [out.getvalue(), above])))
        with Sandbox(base=name) as sb:
            assert (
                sb.run("cat /etc/os-release; touch /tmp/x || ls -d /usr/bin | cat").stdout
                == "NAME=Above\n/usr/bin\n"
            )
