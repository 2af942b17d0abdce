"""What the made-up host offers: a page, a git repository, a wheel and an npm package, with a word in each."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

PACKAGE = "hello-staddle"
WORD = "hello from the made-up host"


def page(www: Path) -> None:
    (www / "word").write_text(WORD)


def repository(www: Path, work: Path) -> None:
    """A repository that can be cloned from a plain web server, and over ssh."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@x", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "-q", str(work)], check=True)
    (work / "word").write_text(WORD)
    subprocess.run([*git, "-C", str(work), "add", "word"], check=True)
    subprocess.run([*git, "-C", str(work), "commit", "-qm", "first"], check=True)
    bare = www / "repo.git"
    subprocess.run([*git, "clone", "-q", "--bare", str(work), str(bare)], check=True)
    subprocess.run([*git, "-C", str(bare), "update-server-info"], check=True)


def wheel(www: Path) -> None:
    """A package index with one wheel."""
    simple = www / "simple" / PACKAGE
    simple.mkdir(parents=True)
    name, info = "hello_staddle-1.0-py3-none-any.whl", "hello_staddle-1.0.dist-info"
    contents = {
        "hello_staddle.py": f"WORD = {WORD!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: a\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    contents[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*contents, f"{info}/RECORD"))
    with zipfile.ZipFile(simple / name, "w") as archive:
        for path, content in contents.items():
            archive.writestr(path, content)
    (simple / "index.html").write_text(f'<a href="{name}">{name}</a>')


def npm_package(www: Path, host: str) -> None:
    """A registry with one package, in a document at its name."""
    package = json.dumps({"name": PACKAGE, "version": "1.0.0", "main": "index.js"}).encode()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        program = f"module.exports = {json.dumps(WORD)}\n".encode()
        for path, content in (("package/package.json", package), ("package/index.js", program)):
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    (www / "package.tgz").write_bytes(archive.getvalue())
    digest = base64.b64encode(hashlib.sha512(archive.getvalue()).digest()).decode()
    dist = {"tarball": f"https://{host}/package.tgz", "integrity": f"sha512-{digest}"}
    version = {"name": PACKAGE, "version": "1.0.0", "dist": dist}
    document = {"name": PACKAGE, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (www / PACKAGE).write_text(json.dumps(document))
