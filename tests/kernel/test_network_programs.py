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
import zipfile
from pathlib import Path

import pytest

from staddle.linux.syscalls import call
from staddle.linux.userns import CLONE_NEWIPC, CLONE_NEWUSER, map_ids
from tests.kernel.network_servers import certificate_for, echo, listening
from tests.kernel.network_world import PUBLIC, apart, in_a_world, sandbox
from tests.kernel.waiting import until

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


def test_http2_and_websockets_pass(tmp_path: Path) -> None:
    both = certificate_for(tmp_path, "api.example.com")
    server = """
const http2 = require("http2"), http = require("http");
const pem = require("fs").readFileSync(process.argv[1]);
const one = http2.createSecureServer({key: pem, cert: pem});
one.on("stream", (s, h) => { s.respond({":status": 200}); s.end("h2 for " + h[":authority"]); });
const two = http.createServer();
two.on("upgrade", (request, socket) => {
  socket.write("HTTP/1.1 101 Go on\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n");
  socket.pipe(socket);
});
one.listen(443, "HOST"); two.listen(80, "HOST");
""".replace("HOST", PUBLIC)
    client = """
import socket
s = socket.create_connection(("api.example.com", 80))
s.sendall(b"GET /chat HTTP/1.1\\r\\nHost: api.example.com\\r\\n")
s.sendall(b"Upgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n")
assert s.recv(1000).startswith(b"HTTP/1.1 101")
for frame in (b"\\x81\\x02hi", bytes(70000)):
    s.sendall(frame)
    assert s.recv(len(frame), socket.MSG_WAITALL) == frame
print("frames")
"""

    @in_a_world
    def world() -> None:
        apart(lambda: os.execvp("node", ["node", "-e", server, str(both)]))  # noqa: S606
        with sandbox("api.example.com:80,443", hosts={"api.example.com": PUBLIC}) as inside:
            curl = [
                "curl",
                "-sS",
                "--http2",
                "--cacert",
                str(tmp_path / "cert.pem"),
                "https://api.example.com/",
            ]
            assert until(lambda: inside.run(*curl)[1] == "h2 for api.example.com", 20)
            assert inside.python(client) == "frames"

    world()
