"""git, pip and npm inside fetch from allowed hosts as they do everywhere, and from no other."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import pytest

from staddle.linux.syscalls import call
from staddle.linux.userns import CLONE_NEWIPC, CLONE_NEWUSER, map_ids
from staddle.network.starting import Limits
from staddle.policy.network import Network
from tests.kernel.network_servers import echo, listening, udp_echo
from tests.kernel.network_world import OTHER, PUBLIC, apart, in_a_world, network_of, sandbox, until

POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def files(host: str, directory: Path) -> int:
    """A web server for these files."""

    def serve(connection: socket.socket) -> None:
        functools.partial(Files, directory=str(directory))(connection, ("", 0), None)  # type: ignore[arg-type]
        connection.close()

    return listening(host, 80, serve)


def test_git_clones_from_an_allowed_host(tmp_path: Path) -> None:
    work, bare = tmp_path / "work", tmp_path / "www" / "repo.git"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "-q", str(work)], check=True)
    (work / "README").write_text("hello")
    subprocess.run([*git, "-C", str(work), "add", "."], check=True)
    subprocess.run([*git, "-C", str(work), "commit", "-qm", "first"], check=True)
    subprocess.run([*git, "clone", "-q", "--bare", str(work), str(bare)], check=True)
    subprocess.run([*git, "-C", str(bare), "update-server-info"], check=True)

    @in_a_world
    def world() -> None:
        files(PUBLIC, tmp_path / "www")
        with sandbox("git.example.com:80", hosts={"git.example.com": PUBLIC}) as inside:
            status, _, error = inside.run(
                "git", "clone", "-q", "http://git.example.com/repo.git", str(tmp_path / "clone")
            )
            assert (status, (tmp_path / "clone" / "README").read_text()) == (0, "hello"), error
            assert inside.run("git", "ls-remote", "http://evil.com/repo.git")[0] == 128
            assert "evil.com:0" in inside.refused()

    world()


def test_pip_installs_from_an_allowed_index(tmp_path: Path) -> None:
    simple = tmp_path / "www" / "simple" / "hello-staddle"
    simple.mkdir(parents=True)
    name = "hello_staddle-1.0-py3-none-any.whl"
    with zipfile.ZipFile(simple / name, "w") as wheel:
        info = "hello_staddle-1.0.dist-info"
        wheel.writestr("hello_staddle.py", "WORD = 'installed'\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: hello-staddle\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: a\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(
            f"{info}/RECORD", f"hello_staddle.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )
    (simple / "index.html").write_text(f'<a href="{name}">{name}</a>')

    @in_a_world
    def world() -> None:
        files(PUBLIC, tmp_path / "www")
        with sandbox("pypi.example.com", hosts={"pypi.example.com": PUBLIC}) as inside:
            pip = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--no-cache-dir",
                "--disable-pip-version-check",
            ]
            pip += [
                "--target",
                str(tmp_path / "site"),
                "--retries",
                "0",
                "--trusted-host",
                "pypi.example.com",
            ]
            done = inside.run(*pip, "--index-url", "http://pypi.example.com/simple/", "hello-staddle")
            assert done[0] == 0, done
            assert (tmp_path / "site" / "hello_staddle.py").exists()
            assert (
                inside.run(*pip, "--index-url", "http://other.example.com/simple/", "hello-staddle")[0] == 1
            )

    world()


@pytest.mark.skipif(not shutil.which("npm"), reason="npm is one of the programs, where there is one")
def test_npm_installs_from_an_allowed_registry(tmp_path: Path) -> None:
    www, project = tmp_path / "www", tmp_path / "project"
    www.mkdir()
    project.mkdir()
    package = json.dumps({"name": "hello-staddle", "version": "1.0.0", "main": "index.js"}).encode()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for path, content in (("package/package.json", package), ("package/index.js", b"module.exports = 7")):
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    (www / "hello-staddle-1.0.0.tgz").write_bytes(archive.getvalue())
    digest = base64.b64encode(hashlib.sha512(archive.getvalue()).digest()).decode()
    dist = {"tarball": "http://npm.example.com/hello-staddle-1.0.0.tgz", "integrity": f"sha512-{digest}"}
    version = {"name": "hello-staddle", "version": "1.0.0", "dist": dist}
    document = {"name": "hello-staddle", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (www / "hello-staddle").write_text(json.dumps(document))

    @in_a_world
    def world() -> None:
        files(PUBLIC, www)
        with sandbox("npm.example.com:80", hosts={"npm.example.com": PUBLIC}) as inside:
            npm = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(project)]
            env = {"HOME": str(tmp_path), "npm_config_cache": str(tmp_path / "cache")}
            done = inside.run(*npm, "--registry", "http://npm.example.com/", "hello-staddle", env=env)
            assert done[0] == 0, done
            assert (project / "node_modules" / "hello-staddle" / "index.js").exists()

    world()


@pytest.mark.skipif(not shutil.which("ssh"), reason="ssh is one of the programs, where there is one")
@in_a_world
def test_ssh_hears_the_server_of_an_allowed_host() -> None:
    echo(PUBLIC, 22, b"SSH-2.0-staddle-test\r\n")
    with sandbox("git.example.com:22", hosts={"git.example.com": PUBLIC}) as inside:
        options = ["-v", "-F", "none", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
        assert "remote software version staddle-test" in inside.run("ssh", *options, "git.example.com")[2]
        assert "Could not resolve hostname" in inside.run("ssh", *options, "evil.com")[2]
        assert "Connection refused" in inside.run("ssh", *options, PUBLIC)[2]


@pytest.mark.skipif(not POSTGRES or not shutil.which("psql"), reason="no PostgreSQL server is installed here")
def test_psql_talks_to_a_real_server(tmp_path: Path) -> None:
    data = tmp_path / "data"

    def server() -> None:
        # PostgreSQL does not run as root, so here it is called 1000; its shared memory ends with it.
        call("unshare", CLONE_NEWUSER | CLONE_NEWIPC)
        map_ids(0, 0, 1000, 1000)
        programs = POSTGRES[-1]
        with (tmp_path / "log").open("w") as log:
            initdb = [str(programs / "initdb"), "-D", str(data), "-U", "me", "-A", "trust", "--no-sync"]
            subprocess.run(initdb, check=True, stdout=log, stderr=log)
            with (data / "pg_hba.conf").open("a") as file:
                file.write("host all all 0.0.0.0/0 trust\n")
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        options = ["-h", PUBLIC, "-k", "", "-c", "dynamic_shared_memory_type=sysv", "-c", "fsync=off"]
        postgres = str(programs / "postgres")
        os.execv(postgres, [postgres, "-D", str(data), *options])  # noqa: S606

    @in_a_world
    def world() -> None:
        (tmp_path / "data").mkdir(0o700)
        apart(server)
        with sandbox("db.example.com:5432", hosts={"db.example.com": PUBLIC}) as inside:
            psql = ["psql", "-X", "-At", "-U", "me", "-d", "postgres", "-c", "select 6 * 7"]

            last: list[object] = []

            def answers() -> bool:
                last[:] = inside.run(*psql, "-h", "db.example.com")
                return last == [0, "42\n", ""]

            assert until(answers, 30), (last, (tmp_path / "log").read_text())
            assert "could not translate" in inside.run(*psql, "-h", "other.example.com")[2]

    world()


@in_a_world
def test_an_idle_connection_stays() -> None:
    echo(PUBLIC, 9000)
    with sandbox("api.example.com", hosts={"api.example.com": PUBLIC}) as inside:
        code = """
import socket, time
s = socket.create_connection(("api.example.com", 9000)); s.sendall(b"\\0one"); print(s.recv(9))
t = socket.create_connection(("api.example.com", 9000))
time.sleep(6)
s.sendall(b"two"); print(s.recv(9))
t.sendall(b"\\0late"); print(t.recv(9))
"""
        assert inside.python(code).split("\n") == ["b'\\x00one'", "b'two'", "b'\\x00late'"]


@in_a_world
def test_somebody_may_be_asked_and_anything_but_yes_is_no() -> None:
    echo(PUBLIC, 9000)
    echo(OTHER, 9000)
    udp_echo(PUBLIC, 53)
    answers = {"yes.example.com": True, "no.example.com": False, "odd.example.com": "yes", PUBLIC: True}
    hosts = dict.fromkeys(
        ["yes.example.com", "no.example.com", "odd.example.com", "denied.example.com"], PUBLIC
    )
    asked: list[tuple[str, int]] = []
    network = Network.allow("api.example.com", "!denied.example.com")
    with network_of(network, hosts, limits=Limits(asks=2)) as inside:
        gateway = inside.gateway
        assert gateway is not None
        told = []
        done = threading.Event()

        def decide() -> None:
            while not done.is_set():
                told.extend(gateway.attempts())
                for question in gateway.questions():
                    asked.append((question.host, question.port))
                    if question.host in answers:
                        gateway.decide(question, answers[question.host])
                time.sleep(0.01)

        threading.Thread(target=decide, daemon=True).start()
        code = """
import socket
def ask(host):
    try:
        s = socket.create_connection((host, 9000), 8); s.sendall(b"\\0hi"); return s.recv(9) == b"\\0hi"
    except OSError as error:
        return type(error).__name__
for host in {hosts!r}: print(ask(host))
""".replace("{hosts!r}", repr([*hosts, PUBLIC, OTHER, "yes.example.com"]))
        lines = inside.python(code).split("\n")
        done.set()
        reset = "ConnectionResetError"
        assert lines == ["True", reset, reset, "gaierror", "True", reset, "True"]
        assert asked == [
            (host, 9000) for host in ("yes.example.com", "no.example.com", "odd.example.com", PUBLIC, OTHER)
        ]
        time.sleep(0.1)
        assert {a.host for a in told if a.outcome == "refused"} >= {
            "no.example.com",
            OTHER,
            "denied.example.com",
        }
