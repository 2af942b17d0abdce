"""A mirror of this host's package indexes for sandboxes, which fills the package cache.

It is a server of the host program on 127.0.0.1. pip and npm inside are pointed at it by variables:

    /pip/0/requests/                        the page of a project in the first index
    /pip/0/requests/requests-2.32.3.tar.gz  a file that this page names
    /npm/0/left-pad                         the description of a package
    /npm/0/left-pad/-/left-pad-1.3.0.tgz    an archive that it names
    http://deb.debian.org/debian/dists/...  a file of a repository of apt, which uses it as a proxy

A sandbox chooses a project and a file, never a URL outside of an index. The mirror asks the index over TLS,
verified with the host's authorities, and fetches only files that the index names with a hash. The pages of
apt's repositories are instead signed by a key that the host trusts. It sends the last part of a file
after the whole of it has this hash. Nothing that a sandbox sends is stored.
"""

from __future__ import annotations

import os
import re
import ssl
import threading
import time
import urllib.request
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError
from urllib.parse import quote, unquote

from ..background import start_thread
from ..errors import PolicyError
from ..hostinfo.package_hosts import read
from ..hostnames import parse
from ..paths import covers
from ..policy.egress import PLACE
from ..policy.network import Network
from ..policy.plan import Text, Variable
from .apt_pages import can_verify, package_sums, release_sums
from .cache import PackageCache, home_of_cache
from .index_pages import FILE, NPM_PACKAGE, PROJECT, IndexFile, read_npm, read_pip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import IO, Any

    from ..hostinfo.package_sources import PackageIndex
    from ..policy.plan import Plan

#: The origin of its variables in a plan.
ORIGIN = "package cache"
_APT_CONF = f"{PLACE}/apt.conf"
_PIP = re.compile(rf"/pip/(\d{{1,2}})/({PROJECT})/({FILE})?", re.ASCII)
_NPM = re.compile(rf"/npm/(\d{{1,2}})/({NPM_PACKAGE})(?:/-/({FILE}))?", re.ASCII)
_APT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.~+:-]*(?:/[A-Za-z0-9_~+:][A-Za-z0-9_.~+:-]*)*", re.ASCII)
_BY_HASH = re.compile(r"(.+)/by-hash/SHA256/([0-9a-f]{64})")
_PIP_TYPES = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_NPM_INSTALL, _NPM_FULL = "application/vnd.npm.install-v1+json", "application/json"
#: Seconds for an index to send something, for a sandbox to ask or read, and to do without a dead index.
_INDEX, _SANDBOX, _DEAD = 10.0, 30.0, 30.0
#: Connections at a time; bytes of a page, of a file.
_CONNECTIONS, _LARGEST_PAGE, _LARGEST_FILE = 128, 64 << 20, 4 << 30
_BLOCK = 1 << 18


class Unavailable(Exception):
    """The mirror cannot serve a page or a file. It answers with this status and reason."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class PackageMirror(ThreadingHTTPServer):
    """A running mirror of these indexes. It serves until `close`, or until the program ends."""

    daemon_threads, block_on_close, request_queue_size = True, False, 64

    def __init__(
        self,
        indexes: tuple[PackageIndex, ...],
        cache: PackageCache | None = None,
        certificates: Iterable[str] = (),
    ) -> None:
        self.indexes, self.cache = indexes, cache or PackageCache()
        self._room = threading.BoundedSemaphore(_CONNECTIONS)
        self._dead: dict[str, float] = {}
        #: The roots of apt's repositories; what their pages and lists name, by URL and by hash.
        self._roots = tuple(f"{index.url.rstrip('/')}/" for index in indexes if index.manager == "apt")
        self._releases: dict[str, tuple[bytes, dict[str, str]]] = {}
        self._lists: dict[str, dict[str, str]] = {}
        trust = ssl.create_default_context()
        for path in certificates:
            try:
                trust.load_verify_locations(path)
            except (OSError, ssl.SSLError):
                continue  # then it vouches for nobody
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=trust), _TlsOnly(self._roots)
        )
        super().__init__(("127.0.0.1", 0), _MirrorRequest)
        self.port: int = self.server_address[1]
        start_thread(self.serve_forever, "staddle-packages")

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, or close it if there are too many."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a sandbox has closed its connection."""

    # ------------------------------------------------------------ pages

    def pip(self, index: PackageIndex, project: str, *, fresh: bool) -> tuple[dict[str, IndexFile], bytes]:
        """Return the files of a project, and its page. A stored page serves unless it is to be `fresh`."""
        url, page = self._page(f"{index.url.rstrip('/')}/{project}/", _PIP_TYPES, fresh=fresh)
        return read_pip(page, url)

    def npm(
        self, index: PackageIndex, name: str, base: str, types: str = _NPM_INSTALL, *, fresh: bool
    ) -> tuple[dict[str, IndexFile], bytes]:
        """Return the archives of a package, and its description."""
        return read_npm(
            self._page(f"{index.url.rstrip('/')}/{quote(name, safe='@')}", types, fresh=fresh)[1], base
        )

    def apt(self, url: str) -> IndexFile | bytes:
        """Return the signed page at `url` of a repository, or the file that such a page names."""
        root = next((root for root in self._roots if url.startswith(root)), "")
        path = unquote(url[len(root) :])
        if not root or not _APT.fullmatch(path):
            raise Unavailable(404, "it is in no repository of this host")
        suite, _, name = path.rpartition("/")
        known = (self.cache.page(f"apt {root}") or b"").decode().split()
        if name == "InRelease":
            page = self._release(root, suite, fresh=True)[0]
            if suite not in known:
                self.cache.keep_page(f"apt {root}", " ".join([*known, suite]).encode())
            return page
        for suite in known:
            sums = self._release(root, suite, fresh=False)[1]
            if path.startswith(f"{suite}/"):
                if match := _BY_HASH.fullmatch(path):
                    path = next((f"{suite}/{each}" for each in sums if sums[each] == match[2]), path)
                if digest := sums.get(path.removeprefix(f"{suite}/")):
                    return IndexFile(path.rpartition("/")[2], root + quote(path), "sha256", digest)
            elif digest := self._in_lists(sums, path):
                return IndexFile(name, root + quote(path), "sha256", digest)
        raise Unavailable(404, "no page of the repository names it")

    def _release(self, root: str, suite: str, *, fresh: bool) -> tuple[bytes, dict[str, str]]:
        """Return the InRelease of a suite, and the hashes in it."""
        url = f"{root}{quote(suite)}/InRelease"
        page = self._page(url, "*/*", fresh=fresh, check=release_sums)[1]
        if url not in self._releases or self._releases[url][0] != page:
            self._releases[url] = page, release_sums(page)
        return self._releases[url]

    def _in_lists(self, sums: dict[str, str], path: str) -> str:
        """Return the hash of a package in the lists that were fetched."""
        for listed, digest in sums.items():
            name = listed.rpartition("/")[2]
            if digest not in self._lists and name.partition(".")[0] == "Packages":
                file = self.cache.body(IndexFile(name, "", "sha256", digest))
                if file is None:
                    continue
                with file:
                    self._lists[digest] = package_sums(file, name)
            if found := self._lists.get(digest, {}).get(path):
                return found
        return ""

    def _page(
        self, url: str, types: str, *, fresh: bool, check: Callable[[bytes], object] = bytes
    ) -> tuple[str, bytes]:
        """Return the page at `url` of an index, and its final URL.

        `check` raises ValueError for a false page.
        """
        key = f"{url} {types}"
        stored = self.cache.page(key)
        host = url.split("/")[2]
        if stored is None or (fresh and self._dead.get(host, 0.0) < time.monotonic()):
            try:
                with self.fetch(url, types) as answer:
                    data = answer.read(_LARGEST_PAGE + 1)
                    if len(data) > _LARGEST_PAGE:
                        raise Unavailable(502, "the page of the index is too large")
                    check(data)
                    stored = answer.geturl().encode() + b"\n" + data
                self.cache.keep_page(key, stored)
            except Unavailable as error:
                if error.status != 502 or stored is None:
                    raise
                self._dead[host] = time.monotonic() + _DEAD
        found, _, page = stored.partition(b"\n")
        return found.decode(), page

    def fetch(self, url: str, types: str = "*/*") -> Any:
        """Ask for a URL that an index named. The caller closes the answer."""
        if not url.startswith(("https://", *self._roots)):  # the opener would open file: and ftp:
            raise Unavailable(502, "the index names a URL that is not https")
        request = urllib.request.Request(  # noqa: S310 - it is https
            url, headers={"Accept": types, "User-Agent": "staddle", "Accept-Encoding": "identity"}
        )
        try:
            return self._opener.open(request, timeout=_INDEX)
        except HTTPError as error:
            error.close()
            status = 502 if error.code >= 500 or error.code == 429 else 404
            raise Unavailable(status, f"the index answered {error.code}") from None
        except (OSError, ValueError) as error:
            raise Unavailable(502, f"the index cannot be reached: {error}") from None


class _TlsOnly(urllib.request.HTTPRedirectHandler):
    def __init__(self, roots: tuple[str, ...]) -> None:
        self._roots = roots

    def redirect_request(  # noqa: PLR0917 - as in the base class
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith(("https://", *self._roots)):
            raise Unavailable(502, "the index redirects to a URL that is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _MirrorRequest(BaseHTTPRequestHandler):
    server: PackageMirror
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "staddle", ""
    timeout = _SANDBOX
    _has_begun = False

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self._has_begun = False
        try:
            self._answer()
        except Unavailable as error:
            self._fail(error.status, str(error))
        except (ValueError, KeyError, RecursionError, HTTPException):
            self._fail(502, "the index sent a page that cannot be read")
        except OSError as error:
            self._fail(502, f"the package cache failed: {error.strerror}")

    def _answer(self) -> None:
        path = unquote(self.path.partition("?")[0])
        if self.path.startswith("http://"):
            found = self.server.apt(self.path)
            if isinstance(found, IndexFile):
                self._file(found)
            else:
                self._begin(len(found), "text/plain")
                self._write(found)
            return
        if match := _PIP.fullmatch(path):
            index = self._index("pip", match[1])
            files, page = self.server.pip(index, match[2], fresh=not match[3])
            if match[3] and match[3] not in files:
                files, page = self.server.pip(index, match[2], fresh=True)
        elif match := _NPM.fullmatch(path):
            index = self._index("npm", match[1])
            base = f"http://127.0.0.1:{self.server.port}/npm/{match[1]}/{quote(match[2], safe='@/')}"
            short = match[3] or _NPM_INSTALL in self.headers.get("Accept", "")
            types = _NPM_INSTALL if short else _NPM_FULL
            files, page = self.server.npm(index, match[2], base, types, fresh=not match[3])
            if match[3] and match[3] not in files:
                files, page = self.server.npm(index, match[2], base, fresh=True)
        else:
            raise Unavailable(404, "the mirror has packages of pip, npm and apt only")
        if not match[3]:
            self._begin(len(page), "text/html" if path.startswith("/pip/") else "application/json")
            self._write(page)
        elif match[3] in files:
            self._file(files[match[3]])
        else:
            raise Unavailable(404, "the index names no such file with a hash")

    def _index(self, manager: str, number: str) -> PackageIndex:
        mine = [index for index in self.server.indexes if index.manager == manager]
        if int(number) >= len(mine):
            raise Unavailable(404, "there is no such index")
        return mine[int(number)]

    def _file(self, file: IndexFile) -> None:
        found = self.server.cache.body(file)
        if found is None and not self._fetched(file):
            found = self.server.cache.body(file)
            if found is None:
                raise Unavailable(502, "the package cache has no room for it")
        if found is not None:
            with found:
                self._begin(os.fstat(found.fileno()).st_size)
                while data := found.read(_BLOCK):
                    self._write(data)

    def _fetched(self, file: IndexFile) -> bool:
        """Fetch and store a file. Whether it was also sent, all but its last part before it was checked."""
        with self.server.fetch(file.url) as answer, self.server.cache.new() as new:
            length = answer.headers.get("Content-Length", "")
            passes: bool = length.isdigit()
            held, size = b"", 0
            while data := answer.read(_BLOCK):
                size += len(data)
                if size > _LARGEST_FILE:
                    raise Unavailable(502, "the file is too large")
                new.write(data)
                if passes and held:
                    self._begin(int(length))
                    self._write(held)
                held = data
            if passes and size != int(length):
                raise Unavailable(502, "the index did not send all of the file")
            try:
                self.server.cache.keep(new, file)
            except ValueError as error:
                raise Unavailable(502, str(error)) from None
        if passes:
            self._begin(size)
            self._write(held)
        return passes

    def _begin(self, length: int, kind: str = "application/octet-stream") -> None:
        if self._has_begun:
            return
        self._has_begun = True
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _write(self, data: bytes) -> None:
        if self.command != "HEAD":
            self.wfile.write(data)

    def _fail(self, status: int, why: str) -> None:
        if self._has_begun:
            self.close_connection = True  # the client sees that the end is missing
            return
        text = f"staddle: {why}\n".encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self._write(text)


# ---------------------------------------------------------------- sandboxes

_LOCK = threading.Lock()
#: The mirrors of this process. Sandboxes with the same indexes share one, so that its port stays the same.
_MIRRORS: dict[tuple[object, ...], PackageMirror] = {}
_EXTRA = "extra-index-url"


def with_mirror(plan: Plan) -> Plan:
    """Return the plan of a sandbox that reaches a mirror of this host's indexes; start it if needed.

    Left out are indexes that need a password, or that an entry of the network refuses; those of pip and npm
    without TLS; and those of apt with TLS, because no proxy sees what is in it.
    """
    sources = read()
    kinds = {"pip": ("index-url", _EXTRA), "npm": ("registry",), "apt": ("sources",) if can_verify() else ()}
    indexes = tuple(
        index
        for index in sources.indexes
        if index.kind in kinds[index.manager]
        and index.scheme == ("http" if index.manager == "apt" else "https")
        and index not in sources.credentials
        and not any(rule.deny and rule.matches(index.host, index.port) for rule in plan.network.rules)
    )
    if not indexes:
        raise PolicyError(
            "there is no package index to cache",
            why="the indexes of pip and npm on this host have no TLS, need a password, or are refused",
            fix="configure an index with https, or leave the package cache out",
        )
    port = _mirror(indexes, sources.certificates).port
    found = {variable.name: variable for variable in plan.variables}
    for name, value in _variables(indexes, sources.of("pip"), f"http://127.0.0.1:{port}").items():
        found.setdefault(name, Variable(name, value, ORIGIN))
    texts = plan.texts
    hosts = sorted({index.host for index in indexes if index.manager == "apt"})
    if hosts and not any(covers(grant.path, PLACE) for grant in plan.grants):
        lines = [f'Acquire::http::Proxy::{host} "http://127.0.0.1:{port}";\n' for host in hosts]
        content = "".join([*lines, 'Acquire::PDiffs "false";\n']).encode()
        texts = tuple(sorted((*texts, Text(_APT_CONF, content, ORIGIN)), key=lambda text: text.path))
        found.setdefault("APT_CONFIG", Variable("APT_CONFIG", _APT_CONF, ORIGIN))
    variables = tuple(found[name] for name in sorted(found))
    return plan.replace(network=reaching(plan.network, port), variables=variables, texts=texts)


def reaching(network: Network, port: int) -> Network:
    """Return `network` with this port of the host's 127.0.0.1."""
    if network.mode == "open":
        return network
    if network.mode == "allow":
        return network.replace(rules=tuple(sorted({*network.rules, parse(f"127.0.0.1:{port}")}, key=str)))
    return Network.loopback((*network.ports, port))


def port_in(plan: Plan) -> int:
    """Return the port of the mirror that the plan of an open sandbox reaches."""
    with _LOCK:
        ports = [mirror.port for mirror in _MIRRORS.values()]
    return next(port for port in ports if plan.network.permits("127.0.0.1", port))


def _mirror(indexes: tuple[PackageIndex, ...], certificates: Iterable[str]) -> PackageMirror:
    key = os.getpid(), home_of_cache(), os.environ.get("SSL_CERT_FILE"), *indexes
    with _LOCK:
        if key not in _MIRRORS:
            _MIRRORS[key] = PackageMirror(indexes, certificates=certificates)
        return _MIRRORS[key]


def _variables(
    mirrored: tuple[PackageIndex, ...], pip: tuple[PackageIndex, ...], base: str
) -> dict[str, str]:
    ours = {
        index: f"{base}/{manager}/{number}/"
        for manager in ("pip", "npm")
        for number, index in enumerate(each for each in mirrored if each.manager == manager)
    }
    found: dict[str, str] = {}
    for index, url in ours.items():
        if index.kind == "index-url":
            found.setdefault("PIP_INDEX_URL", url)
        elif index.kind == "registry":
            found.setdefault("NPM_CONFIG_REGISTRY", url)
    if any(index.kind == _EXTRA for index in ours):
        others = [ours.get(index, index.url) for index in pip if index.kind == _EXTRA]
        found["PIP_EXTRA_INDEX_URL"] = " ".join(others)
    if "NPM_CONFIG_REGISTRY" in found:  # a lock file is for machines that do not have this mirror
        found["NPM_CONFIG_OMIT_LOCKFILE_REGISTRY_RESOLVED"] = "true"
        found["NPM_CONFIG_AUDIT"] = "false"
    return found
