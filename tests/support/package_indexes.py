"""Indexes of a test's own on the host's loopback: a simple PyPI, a signed Debian repository, an npm registry.

Their packages are made here, small, and by hand where that is simpler than any tool.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.server
import io
import json
import os
import subprocess
import tarfile
import threading
import zipfile
from pathlib import Path
from typing import Any


class Indexes:
    """Files below a directory, served on a port of 127.0.0.1 while the test is in it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        self.asked: list[str] = []
        self.key = b""  # of the Debian repository, once it is signed
        asked = self.asked

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args, directory=str(place))

            def log_message(self, format: str, *args: Any) -> None:
                asked.append(self.path)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Indexes:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # ------------------------------------------------------------ PyPI

    def wheel(self, name: str, version: str, modules: dict[str, str]) -> Path:
        """A wheel of these modules, with a command `name` when there is a function `main` in the first."""
        record: list[str] = []
        path = self._simple(name) / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        files = {
            **modules,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
        }
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in files.items():
                data = text.encode()
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                record.append(f"{file},sha256={digest},{len(data)}")
                archive.writestr(file, data)
            archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
        return path

    def sdist(self, name: str, version: str, files: dict[str, str]) -> Path:
        """A source distribution, to be built where it is installed."""
        path = self._simple(name) / f"{name}-{version}.tar.gz"
        top = f"{name}-{version}"
        texts = {"PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", **files}
        path.write_bytes(_tar_gz({f"{top}/{file}": text.encode() for file, text in texts.items()}))
        return path

    def _simple(self, name: str) -> Path:
        place = self.place / "simple" / name
        place.mkdir(parents=True, exist_ok=True)
        return place

    # ------------------------------------------------------------ npm

    def node_module(self, name: str, version: str, files: dict[str, str]) -> None:
        """A package of the registry."""
        description: dict[str, object] = {
            "name": name,
            "version": version,
            "main": "index.js",
            "bin": "index.js",
        }
        texts = {"package.json": json.dumps(description), **files}
        data = _tar_gz({f"package/{file}": text.encode() for file, text in texts.items()})
        archive = f"{name}-{version}.tgz"
        (self.place / archive).write_bytes(data)
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
        known = self.place / name
        entry: dict[str, Any] = (
            json.loads(known.read_text()) if known.exists() else {"name": name, "versions": {}}
        )
        entry["dist-tags"] = {"latest": version}
        entry["versions"][version] = {
            **description,
            "dist": {
                "tarball": f"{self.url}/{archive}",
                "integrity": integrity,
                "shasum": hashlib.sha1(data).hexdigest(),  # noqa: S324 - the registry's format
            },
        }
        known.write_text(json.dumps(entry))

    # ------------------------------------------------------------ Debian

    def deb(self, name: str, version: str, files: dict[str, str], scripts: dict[str, str]) -> None:
        """A package of the repository, of all architectures."""
        tree = self.place / "trees" / f"{name}_{version}"
        control = tree / "DEBIAN"
        control.mkdir(parents=True)
        (control / "control").write_text(
            f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: A Test <test@example.com>\n"
            f"Description: a package of a test\n"
        )
        for script, text in scripts.items():
            (control / script).write_text(text)
            (control / script).chmod(0o755)
        for file, text in files.items():
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            (tree / file).write_text(text)
            (tree / file).chmod(0o755)
        pool = self.place / "debian" / "pool"
        pool.mkdir(parents=True, exist_ok=True)
        target = pool / f"{name}_{version}_all.deb"
        command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", str(tree), str(target)]
        subprocess.run(command, check=True, capture_output=True)

    def sign(self) -> None:
        """Make the repository's index of what is in its pool, and sign it; `key` is the public key."""
        debian = self.place / "debian"
        listed = []
        for path in sorted((debian / "pool").iterdir()):
            control = subprocess.run(
                ["dpkg-deb", "-f", str(path)], check=True, capture_output=True, text=True
            )
            data = path.read_bytes()
            listed.append(
                f"{control.stdout}Filename: pool/{path.name}\nSize: {len(data)}\n"
                f"SHA256: {hashlib.sha256(data).hexdigest()}\n"
            )
        place = debian / "dists/test/main/binary-all"
        place.mkdir(parents=True, exist_ok=True)
        packages = "\n".join(listed).encode()
        files = {"Packages": packages, "Packages.gz": gzip.compress(packages)}
        sums = []
        for name, data in files.items():
            (place / name).write_bytes(data)
            sums.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} main/binary-all/{name}")
        release = debian / "dists/test/Release"
        release.write_text(
            "Origin: test\nSuite: test\nCodename: test\nArchitectures: all\nComponents: main\n"
            "Date: Sun, 01 Nov 2026 00:00:00 UTC\nSHA256:\n" + "\n".join(sums) + "\n"
        )
        keys = self.place / "keys"
        keys.mkdir(mode=0o700, exist_ok=True)
        gpg = ["gpg", "--homedir", str(keys), "--batch", "--yes", "--no-tty", "--pinentry-mode", "loopback"]
        environment = {"PATH": os.defpath, "HOME": str(keys)}

        def run(*words: str) -> bytes:
            return subprocess.run(
                [*gpg, *words], check=True, capture_output=True, env=environment, timeout=60
            ).stdout

        try:
            if not run("--list-secret-keys"):
                run("--passphrase", "", "--quick-gen-key", "test@example.com", "ed25519", "sign", "never")
            run("--clearsign", "-o", str(release.with_name("InRelease")), str(release))
            self.key = run("--export", "--armor")
        finally:
            subprocess.run(
                ["gpgconf", "--homedir", str(keys), "--kill", "all"], check=False, env=environment, timeout=60
            )


def _tar_gz(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()
