"""The package cache: real pip and npm, an index with TLS, and what must never be stored or served."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from staddle import Network, Policy, Sandbox, wrap
from staddle.errors import PolicyError
from staddle.hostinfo.package_hosts import read
from staddle.packages.cache import PackageCache
from staddle.packages.mirror import PackageMirror, with_mirror
from staddle.policy.compiler import compile
from tests.support.inspection import authority, reply, web_server
from tests.support.package_indexes import Indexes

POLICY = Policy.agent().with_package_cache()


class Index:
    """An index with TLS: `answers` by path. `stop` ends it."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.redirects: dict[str, str] = {}
        self.delay = 0.0
        self._running = ExitStack()
        roots, certificate = authority(place, "localhost")
        self.port = self._running.enter_context(web_server(certificate, self._answer))[0]
        self.url = f"https://localhost:{self.port}"
        self._made = Indexes(place / "made")
        self._made._server.server_close()  # only its packages are needed
        for name in [name for name in os.environ if name.startswith(("PIP_", "NPM_CONFIG", "npm_config"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("SSL_CERT_FILE", str(roots))
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"{self.url}/simple")
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", f"{self.url}/npm/")
        monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        self.sources = read(("pip", "npm"))
        monkeypatch.setattr("staddle.packages.mirror.read", lambda: self.sources)
        self.cache = PackageCache()
        assert self.cache.place == f"{place}/cache/staddle/packages"

    def _answer(self, handler: BaseHTTPRequestHandler, _: bytes) -> None:
        self.asked.append(handler.path)
        time.sleep(self.delay)
        if (target := self.redirects.get(handler.path)) is not None:
            reply(handler, 302, b"", ("Location", target))
            return
        body = self.answers.get(handler.path.lower().replace("%2f", "/"))
        reply(handler, 404 if body is None else 200, body or b"")

    def wheel(self, name: str, text: str = "x = 1\n", *, hashed: bool = True) -> bytes:
        data = self._made.wheel(name, "1.0", {f"{name}.py": text}).read_bytes()
        file = f"{name}-1.0-py3-none-any.whl"
        digest = f"#sha256={hashlib.sha256(data).hexdigest()}" if hashed else ""
        self.answers[f"/simple/{name}/"] = f'<a href="/files/{file}{digest}">{file}</a>'.encode()
        self.answers[f"/files/{file}"] = data
        return data

    def module(self, name: str) -> None:
        self._made.node_module(name, "1.0.0", {"index.js": "module.exports = 7\n"})
        about = json.loads((self._made.place / name).read_text())
        for version in about["versions"].values():
            version["dist"]["tarball"] = f"{self.url}/npm/{name}/-/{name}-1.0.0.tgz"
        self.answers[f"/npm/{name}"] = json.dumps(about).encode()
        self.answers[f"/npm/{name}/-/{name}-1.0.0.tgz"] = (
            self._made.place / f"{name}-1.0.0.tgz"
        ).read_bytes()

    def stop(self) -> None:
        self._running.close()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    made = Index(tmp_path, monkeypatch)
    yield made
    made.stop()


@pytest.fixture
def mirror(index: Index) -> Iterator[PackageMirror]:
    sources = read(("pip", "npm"))
    mirrored = tuple(each for each in sources.indexes if each.kind in ("index-url", "registry"))
    made = PackageMirror(mirrored, index.cache)
    yield made
    made.close()


def get(mirror: PackageMirror, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{mirror.port}{path}", timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def bodies(index: Index) -> list[str]:
    return [file.name for file in index.cache.files() if not file.name.startswith("page-")]


def test_another_sandbox_installs_while_the_index_is_down(index: Index) -> None:
    index.wheel("speaker", "print('greetings')\n")
    index.module("left")
    job = "pip install -q speaker && python3 -c 'import speaker'"
    job += " && npm install --silent left && node -p 'require(\"left\")'"
    with Sandbox(policy=POLICY) as sb:
        assert sb.run(job, check=True, timeout=120).stdout.split() == ["greetings", "7"]
        assert "127.0.0.1" not in sb.run("cat package-lock.json").stdout
        direct = sb.run(f"curl -sk {index.url}/simple/speaker/")
        assert direct.exit_code, "only the mirror is reachable, not the index itself"
        assert index.asked
    index.stop()
    with Sandbox(policy=POLICY) as sb:
        assert sb.run(job, check=True, timeout=120).stdout.split() == ["greetings", "7"]
        (fork,) = sb.fork()
        with fork:
            fork.run("pip uninstall -qy speaker && " + job, check=True, timeout=120)
    index.cache.clear()
    with Sandbox(policy=POLICY) as sb:
        assert sb.run(job, timeout=120).exit_code, "the control: without the cache it fails"


def test_a_single_command_uses_it(index: Index) -> None:
    index.wheel("speaker")
    command = ["pip", "download", "-q", "--no-deps", "-d", "/tmp/got", "speaker"]
    done = wrap(command, POLICY).run(capture_output=True)
    assert done.returncode == 0, done
    assert len(bodies(index)) == 1


def test_it_is_off_unless_the_policy_has_it(index: Index) -> None:
    index.wheel("speaker")
    with Sandbox() as sb:
        assert sb.run("pip download --no-deps speaker", timeout=60).exit_code
        assert "PIP_INDEX_URL" not in sb.run("env").stdout
    assert index.asked == []
    assert not os.path.exists(index.cache.place)


def test_bytes_without_the_hash_of_the_index_are_never_stored_or_served(
    index: Index, mirror: PackageMirror
) -> None:
    path = "/pip/0/speaker/speaker-1.0-py3-none-any.whl"
    good = index.wheel("speaker")
    index.answers["/files/speaker-1.0-py3-none-any.whl"] = good + b"planted"
    status, body = get(mirror, path)
    assert (status, b"planted" in body) == (502, False)
    assert b"does not have the hash" in body
    assert bodies(index) == []
    index.answers["/files/speaker-1.0-py3-none-any.whl"] = good
    assert get(mirror, path) == (200, good)


def test_the_end_of_a_large_file_waits_for_its_hash(index: Index, mirror: PackageMirror) -> None:
    data = index.wheel("large", "#" + "x" * 50 + "\n")
    big = data + os.urandom(3 << 20)
    file = "large-1.0-py3-none-any.whl"
    index.answers["/simple/large/"] = (
        f'<a href="/files/{file}#sha256={hashlib.sha256(big).hexdigest()}">{file}</a>'.encode()
    )
    index.answers[f"/files/{file}"] = big[:-1] + bytes([big[-1] ^ 1])
    with pytest.raises(Exception, match=r"IncompleteRead|reset"):
        get(mirror, f"/pip/0/large/{file}")
    assert bodies(index) == []
    index.answers[f"/files/{file}"] = big
    assert get(mirror, f"/pip/0/large/{file}") == (200, big)


def test_a_file_that_was_changed_in_the_cache_is_not_served(index: Index, mirror: PackageMirror) -> None:
    good = index.wheel("speaker")
    path = "/pip/0/speaker/speaker-1.0-py3-none-any.whl"
    assert get(mirror, path) == (200, good)
    stored = Path(index.cache.place, bodies(index)[0])
    stored.write_bytes(good[:-1] + b"!")
    assert get(mirror, path) == (200, good)
    assert stored.read_bytes() == good


@pytest.mark.parametrize(
    "path",
    [
        "/pip/0/speaker/other-1.0.whl",
        "/pip/7/speaker/",
        "/pip/0/../../etc/passwd",
        "/pip/0/%2e%2e%2fpasswd/",
        "/pip/0/speaker/%2e%2e%2f%2e%2e",
        "/pip/0/https:%2f%2flocalhost/",
        "/npm/0/left/-/..%2f..%2fpasswd",
        "/npm/0/-/v1/search",
        "http://localhost/secret",
        "/",
    ],
)
def test_a_sandbox_cannot_choose_a_url(index: Index, mirror: PackageMirror, path: str) -> None:
    index.wheel("speaker")
    index.answers["/secret"] = index.answers["/files/other-1.0.whl"] = b"secret"
    status, body = get(mirror, path if path.startswith("/") else f"/{path}")
    assert status == 404
    assert b"secret" not in body
    assert [each for each in index.asked if not each.startswith("/simple/speaker/")] == []
    assert bodies(index) == []


@pytest.mark.parametrize("scheme", ["file:///etc/passwd", "http://localhost/x.whl", "ftp://localhost/x.whl"])
def test_an_index_cannot_name_other_than_tls(index: Index, mirror: PackageMirror, scheme: str) -> None:
    digest = hashlib.sha256(Path("/etc/passwd").read_bytes()).hexdigest()
    index.answers["/simple/speaker/"] = f'<a href="{scheme}#sha256={digest}">x</a>'.encode()
    name = scheme.rpartition("/")[2]
    assert get(mirror, f"/pip/0/speaker/{name}")[0] == 404
    assert bodies(index) == []


def test_redirects_stay_on_tls(index: Index, mirror: PackageMirror, repository: Indexes) -> None:
    good = index.wheel("speaker")
    file = "/files/speaker-1.0-py3-none-any.whl"
    index.answers["/elsewhere"] = good
    (repository.place / "plain").write_bytes(good)
    path = "/pip/0/speaker/speaker-1.0-py3-none-any.whl"
    for target in (f"{repository.url}/plain", "file:///etc/passwd"):
        index.redirects[file] = target
        assert get(mirror, path)[0] in (404, 502)
    assert (repository.asked, bodies(index)) == ([], [])
    index.redirects[file] = f"{index.url}/elsewhere"
    assert get(mirror, path) == (200, good)


def test_a_file_without_a_hash_is_left_to_the_index(index: Index, mirror: PackageMirror) -> None:
    index.wheel("speaker", hashed=False)
    assert f"{index.url}/files/speaker" in get(mirror, "/pip/0/speaker/")[1].decode()
    assert get(mirror, "/pip/0/speaker/speaker-1.0-py3-none-any.whl")[0] == 404
    about = {"versions": {"1": {"dist": {"tarball": f"{index.url}/x-1.tgz", "shasum": "0" * 40}}}}
    index.answers["/npm/x"] = json.dumps(about).encode()
    assert f"{index.url}/x-1.tgz" in get(mirror, "/npm/0/x")[1].decode()
    assert get(mirror, "/npm/0/x/-/x-1.tgz")[0] == 404


def test_an_index_that_the_host_does_not_trust_is_not_asked(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.wheel("speaker")
    monkeypatch.delenv("SSL_CERT_FILE")
    made = PackageMirror(read(("pip",)).of("pip"), index.cache)
    try:
        status, why = get(made, "/pip/0/speaker/")
        assert (status, b"certificate" in why) == (502, True)
    finally:
        made.close()
    assert index.cache.files() == []


def test_pages_of_both_kinds_keep_what_pip_needs(index: Index, mirror: PackageMirror) -> None:
    about, digest = hashlib.sha256(b"about").hexdigest(), "a" * 64
    page = {
        "files": [
            {
                "filename": "s-1.whl",
                "url": f"{index.url}/files/s-1.whl",
                "hashes": {"sha256": digest},
                "requires-python": ">=3.8",
                "yanked": "broken",
                "core-metadata": {"sha256": about},
            },
            {"filename": "s-2.whl", "url": f"{index.url}/files/s-2.whl", "hashes": {}},
        ]
    }
    index.answers["/simple/s/"] = json.dumps(page).encode()
    index.answers["/files/s-1.whl.metadata"] = b"about"
    first, second = get(mirror, "/pip/0/s/")[1].decode().split("<a ")[1:]
    assert f'href="s-1.whl#sha256={digest}"' in first
    assert 'data-requires-python="&gt;=3.8"' in first
    assert 'data-yanked="broken"' in first
    assert f'data-core-metadata="sha256={about}"' in first
    assert f'href="{index.url}/files/s-2.whl"' in second
    assert get(mirror, "/pip/0/s/s-1.whl.metadata") == (200, b"about")


def test_the_least_recently_used_are_dropped(index: Index) -> None:
    small = PackageCache(index.cache.place, most=250_000)
    mirror = PackageMirror(read(("pip",)).of("pip")[:1], small)
    try:
        for number in range(4):
            name = f"p{number}"
            index.wheel(name, "#" + os.urandom(50_000).hex())
            get(mirror, f"/pip/0/{name}/{name}-1.0-py3-none-any.whl")
            get(mirror, "/pip/0/p0/p0-1.0-py3-none-any.whl")
            time.sleep(0.02)
            assert sum(file.size for file in small.files()) <= 250_000
    finally:
        mirror.close()
    assert [name.split("-")[2] for name in bodies(index)] == ["p3", "p0"]


def test_two_sandboxes_at_once(index: Index, mirror: PackageMirror) -> None:
    good = index.wheel("speaker", "#" + os.urandom(400_000).hex())
    index.delay = 0.3
    with ThreadPoolExecutor(4) as pool:
        path = "/pip/0/speaker/speaker-1.0-py3-none-any.whl"
        found = list(pool.map(lambda _: get(mirror, path), range(4)))
    assert found == [(200, good)] * 4
    assert len(bodies(index)) == 1
    assert not [name for name in os.listdir(index.cache.place) if name.startswith(".new-")]


def test_a_killed_program_leaves_no_half_file(index: Index) -> None:
    os.makedirs(index.cache.place, 0o700)
    code = (
        "import sys, time; from staddle.packages.cache import PackageCache\n"
        f"with PackageCache({index.cache.place!r}).new() as file:\n"
        "    file.write(b'half'); file.flush(); print('ready', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    (left,) = os.listdir(index.cache.place)
    assert index.cache.files() == []
    os.utime(f"{index.cache.place}/{left}", (0, 0))
    index.cache.keep_page("https://x/", b"page")
    assert left not in os.listdir(index.cache.place)


def test_no_sandbox_reads_or_writes_the_cache(index: Index, tmp_path: Path) -> None:
    index.cache.keep_page("https://x/", b"page")
    assert os.stat(index.cache.place).st_mode & 0o777 == 0o700
    with pytest.raises(PolicyError), Sandbox(policy=POLICY.with_write(index.cache.place)):
        pass
    with Sandbox(policy=POLICY.with_write(str(tmp_path))) as sb:
        assert sb.run(f"echo planted > {index.cache.place}/planted").exit_code
    assert "planted" not in os.listdir(index.cache.place)


def test_the_network_of_the_sandbox_has_only_the_mirror_in_addition(index: Index) -> None:
    for network in (Network.deny(), Network.loopback([5000]), Network.allow("example.com")):
        plan = with_mirror(compile(POLICY.with_network(network), cwd="/"))
        address = plan.environment()["PIP_INDEX_URL"]
        port = int(address.split(":")[2].partition("/")[0])
        assert plan.network.permits("127.0.0.1", port)
        assert not plan.network.permits("localhost", index.port)
        assert plan.network.permits("example.com", 443) == network.permits("example.com", 443)
    with Sandbox(policy=POLICY.with_network(Network.allow("example.com"))) as sb:
        index.wheel("speaker")
        sb.set_network(Network.allow("example.org"))
        sb.run("pip download -q --no-deps speaker", check=True, timeout=60)


def test_an_index_that_is_refused_is_left_out(index: Index) -> None:
    refused = POLICY.with_network(Network.allow("example.com", "!localhost"))
    with pytest.raises(PolicyError, match="no package index"):
        with_mirror(compile(refused, cwd="/"))


def test_an_index_with_a_password_is_left_out(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"https://ada:secret@localhost:{index.port}/simple")
    index.sources = read(("pip", "npm"))
    variables = with_mirror(compile(POLICY, cwd="/")).environment()
    assert "PIP_INDEX_URL" not in variables
    assert variables["NPM_CONFIG_REGISTRY"].startswith("http://127.0.0.1:")


def test_too_many_connections_are_closed(index: Index, mirror: PackageMirror) -> None:
    import socket

    with ExitStack() as held:
        for _ in range(128):
            held.enter_context(socket.create_connection(("127.0.0.1", mirror.port)))
        time.sleep(0.3)
        with socket.create_connection(("127.0.0.1", mirror.port)) as late:
            late.settimeout(10)
            assert late.recv(1) == b""
    time.sleep(0.5)
    assert get(mirror, "/")[0] == 404


def test_the_command_lists_and_clears(index: Index, mirror: PackageMirror) -> None:
    index.wheel("speaker")
    get(mirror, "/pip/0/speaker/speaker-1.0-py3-none-any.whl")

    def staddle(*words: str) -> str:
        command = [sys.executable, "-m", "staddle", "cache", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert staddle("path") == f"{index.cache.place}\n"
    assert "speaker-1.0-py3-none-any.whl" in staddle("ls")
    assert len(json.loads(staddle("ls", "--json"))) == 2
    assert "bytes removed" in staddle("clear")
    assert staddle("ls").startswith("no package is cached")


def test_the_option_of_the_command_line(index: Index, tmp_path: Path) -> None:
    index.wheel("speaker")
    job = "pip download -q --no-deps -d /tmp/got speaker && ls /tmp/got"
    command = [sys.executable, "-m", "staddle", "run", "--package-cache", "-c", job]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == "speaker-1.0-py3-none-any.whl\n", done.stderr
    command[4:5] = ["--keep", f"cache-{os.getpid()}", "--package-cache"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert "speaker" in done.stdout, done.stderr
        again = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert "speaker" in again.stdout, again.stderr
    finally:
        subprocess.run(
            [sys.executable, "-m", "staddle", "rm", f"cache-{os.getpid()}"], capture_output=True, check=False
        )


# ---------------------------------------------------------------- apt


@pytest.fixture
def repository(
    index: Index, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Indexes]:
    """A signed repository that this host trusts, without TLS as most are."""
    place = tmp_path_factory.mktemp("apt")  # short: the path of gpg's socket is in it
    with Indexes(place) as made:
        made.deb("greeter", "1.0", {"usr/bin/greeter": "#!/bin/sh\necho greetings\n"}, {})
        made.sign()
        (place / "key.asc").write_bytes(made.key)
        monkeypatch.setattr("staddle.packages.apt_pages.KEYRINGS", (str(place / "key.asc"),))
        index.sources.add("apt", f"{made.url}/debian", "sources", "a test")
        yield made


def proxied(mirror: PackageMirror, url: str) -> tuple[int, bytes]:
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({"http": f"http://127.0.0.1:{mirror.port}"})
    )
    try:
        with opener.open(url, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.fixture
def proxy(index: Index, repository: Indexes) -> Iterator[PackageMirror]:
    made = PackageMirror(index.sources.of("apt"), index.cache)
    yield made
    made.close()


def test_apt_installs_while_the_repository_is_down(index: Index, repository: Indexes) -> None:
    prepare = (
        "rm -rf /etc/apt/sources.list* /var/lib/apt/lists/* && mkdir -p /etc/apt/keyrings"
        f" && echo 'deb [signed-by=/etc/apt/keyrings/test.asc] {repository.url}/debian test main'"
        " > /etc/apt/sources.list && cat > /etc/apt/keyrings/test.asc"
    )
    for is_down in (False, True):
        if is_down:
            repository.__exit__()
        with Sandbox(policy=POLICY) as sb:
            sb.run(prepare, stdin=repository.key, user="root", check=True)
            sb.run("apt-get update && apt-get install -y greeter", user="root", check=True, timeout=120)
            assert sb.run("greeter").stdout == "greetings\n"
    assert len(bodies(index)) == 2


def test_only_what_a_trusted_key_has_signed_is_stored(
    index: Index, repository: Indexes, proxy: PackageMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = f"{repository.url}/debian"
    release = repository.place / "debian/dists/test/InRelease"
    package = repository.place / "debian/pool/greeter_1.0_all.deb"
    good = release.read_bytes()
    assert proxied(proxy, f"{base}/pool/{package.name}")[0] == 404, "nothing has named it yet"
    for false in (
        good.replace(b"Origin: test", b"Origin: else"),
        good.split(b"-----BEGIN PGP SIGNATURE")[0],
        b"SHA256:\n " + b"0" * 64 + b" 1 main/x\n",
    ):
        release.write_bytes(false)
        assert proxied(proxy, f"{base}/dists/test/InRelease")[0] == 502
    monkeypatch.setattr("staddle.packages.apt_pages.KEYRINGS", ())
    release.write_bytes(good)
    assert proxied(proxy, f"{base}/dists/test/InRelease")[0] == 502
    assert index.cache.files() == []


def test_a_package_of_apt_has_the_hash_of_its_list(
    index: Index, repository: Indexes, proxy: PackageMirror
) -> None:
    base = f"{repository.url}/debian"
    package = repository.place / "debian/pool/greeter_1.0_all.deb"
    deb = package.read_bytes()
    listed = (repository.place / "debian/dists/test/main/binary-all/Packages.gz").read_bytes()
    assert proxied(proxy, f"{base}/dists/test/InRelease")[0] == 200
    by_hash = f"{base}/dists/test/main/binary-all/by-hash/SHA256/{hashlib.sha256(listed).hexdigest()}"
    assert proxied(proxy, by_hash) == (200, listed)
    package.write_bytes(deb + b"planted")
    assert proxied(proxy, f"{base}/pool/{package.name}")[0] == 502
    package.write_bytes(deb)
    assert proxied(proxy, f"{base}/pool/{package.name}") == (200, deb)
    package.unlink()
    assert proxied(proxy, f"{base}/pool/{package.name}") == (200, deb)


@pytest.mark.parametrize("path", ["/secret", "/debian/../secret", "/debian/%2e%2e/secret", "/debian/pool/x"])
def test_apts_proxy_is_for_named_files_of_its_repositories(
    repository: Indexes, proxy: PackageMirror, path: str
) -> None:
    (repository.place / "secret").write_text("secret")
    assert proxied(proxy, f"{repository.url}/debian/dists/test/InRelease")[0] == 200
    asked = len(repository.asked)
    assert proxied(proxy, repository.url + path)[0] == 404
    assert len(repository.asked) == asked
