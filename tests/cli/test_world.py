"""Another world on the command line: who it is, which variables it has, which system is inside."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.roots import small_root
from tests.support.staddle_command import environment, is_one_error, staddle, start
from tests.support.waiting import until
from tests.unit.bases.images import docker_save, layer


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_root(tmp_path_factory.mktemp("base") / "root")


@pytest.fixture
def bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STADDLE_BASES", str(tmp_path / "bases"))
    return tmp_path / "bases"


@pytest.mark.slow
def test_who_it_is(tmp_path: Path) -> None:
    done = staddle(
        *("run", "--identity", "user=ada", "--identity", "host=box", "-c", "id -un; hostname; echo ~"),
        cwd=tmp_path,
    )
    assert done.stdout == "ada\nbox\n/home/ada\n", done.stderr
    assert (
        staddle("run", "--identity", "uid=0", "-c", "id -un; echo ~", cwd=tmp_path).stdout == "root\n/root\n"
    )
    for wrong in ("ada", "name=ada", "uid=x", "home=/usr/x", "user=a:b"):
        done = staddle("run", "--identity", wrong, "-c", "id", cwd=tmp_path)
        assert done.returncode == 125
        assert is_one_error(done.stderr)


def test_which_variables_it_has(tmp_path: Path) -> None:
    host = {**environment(), "MY_SETTING": "1", "MY_TOKEN": "2"}
    seen = {
        preset: staddle("run", "--environment", preset, "--", "env", cwd=tmp_path, env=host).stdout
        for preset in ("linux", "inherit", "empty")
    }
    assert "MY_" not in seen["linux"]
    assert "MY_SETTING=1" in seen["inherit"]
    assert "MY_TOKEN" not in seen["inherit"]
    assert seen["empty"] == ""
    assert staddle("run", "--environment", "mine", "--", "env").returncode == 125


def test_a_policy_file_says_it_too(tmp_path: Path, root: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "policy.toml").write_text(
        f'environment = "empty"\nbase = "{root}"\n[identity]\nuser = "ada"\nuid = 7\n[env]\nPATH = "/bin"\n'
    )
    command = ("run", "--policy", "../policy.toml", "-c", "id -u; env; cat /etc/os-release")
    done = staddle(*command, cwd=tmp_path / "work")
    assert done.stdout.splitlines()[0] == "7", done.stderr
    assert "HOME=" not in done.stdout
    assert 'NAME="Tiny"' in done.stdout
    (tmp_path / "policy.toml").write_text('[identity]\nshell = "x"\n')
    assert "there is no such key" in staddle(*command, cwd=tmp_path / "work").stderr


@pytest.mark.slow
def test_another_system_is_imported_used_listed_and_removed(tmp_path: Path, root: Path, bases: Path) -> None:
    import io
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(root, arcname=".")
    image = docker_save(tmp_path / "tiny.tar", [out.getvalue()])
    done = staddle("base", "import", str(image))
    assert done.stdout.startswith("tiny: "), done.stderr
    ran = staddle("run", "--base", "tiny", "-c", "cat /etc/os-release", cwd=tmp_path)
    assert ran.stdout == 'NAME="Tiny"\n', ran.stderr
    assert f"{bases}/tiny/root" in staddle("explain", "--base", "tiny", cwd=tmp_path).stdout
    assert staddle("base", "ls").stdout.startswith("tiny ")
    listed = json.loads(staddle("base", "ls", "--json").stdout)
    assert [(base["name"], base["source"]) for base in listed] == [("tiny", "some/image:1")]
    assert "already" in staddle("base", "import", str(image)).stderr
    assert staddle("base", "rm", "tiny").returncode == 0
    assert staddle("base", "rm", "tiny").returncode == 125
    assert staddle("base", "ls").stdout == ""
    assert os.listdir(bases) == []


@pytest.mark.parametrize(
    "words", [(), ("import",), ("import", "a", "b", "c"), ("rm",), ("ls", "x"), ("get",)]
)
def test_what_is_not_understood_is_said(bases: Path, words: tuple[str, ...]) -> None:
    done = staddle("base", *words)
    assert done.returncode == 125
    assert "base import IMAGE.tar" in done.stderr


def test_an_import_that_is_ended_leaves_nothing(tmp_path: Path, bases: Path) -> None:
    os.mkfifo(tmp_path / "endless.tar")  # nobody ever writes to it
    importing = start("base", "import", str(tmp_path / "endless.tar"))
    try:
        assert until(lambda: bases.is_dir() and os.listdir(bases))
        importing.send_signal(signal.SIGTERM)
        assert importing.wait(30) == 128 + signal.SIGTERM
    finally:
        importing.kill()
        importing.communicate()
    assert os.listdir(bases) == []


def test_an_image_that_is_refused_is_one_sentence(tmp_path: Path, bases: Path) -> None:
    (tmp_path / "x.tar").write_bytes(layer())
    done = staddle("base", "import", str(tmp_path / "x.tar"))
    assert done.returncode == 125
    assert "docker save" in done.stderr
    assert is_one_error(done.stderr)


def test_where_packages_come_from_may_be_reached(tmp_path: Path) -> None:
    host = {
        **environment(),
        "PIP_INDEX_URL": "http://me:pw@127.0.0.1:3141/simple",
        "PIP_CONFIG_FILE": "/dev/null",
    }
    done = staddle("explain", "--network", "packages", "--allow", "api.example.com", cwd=tmp_path, env=host)
    assert "127.0.0.1:3141" in done.stdout, done.stderr
    assert "api.example.com" in done.stdout
    assert "pw" not in done.stdout.split()
    assert ":pw@" not in done.stdout
