"""Parse pages of package indexes: the files that they name, with URLs and hashes. Pure.

    read_pip(page, url)       a project's page of the simple index, HTML or JSON
    read_npm(page, base)      a package's description of the npm registry

Each returns the files that have a strong hash, by name, and the page as a sandbox gets it. There these files
have a URL of the mirror. A file without such a hash keeps the index's URL: the mirror never serves it.
"""

from __future__ import annotations

import binascii
import html
import json
import re
from html.parser import HTMLParser
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Names of projects, of npm's packages, and of their files. None has a slash or begins with a dot.
PROJECT = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
NPM_PACKAGE = r"(?:@[A-Za-z0-9~_][\w.~-]{0,99}/)?[A-Za-z0-9~_][\w.~-]{0,213}"
FILE = r"[A-Za-z0-9~_][\w.~+!-]{0,199}"
_FILE = re.compile(FILE, re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HTML = ("data-requires-python", "data-yanked", "data-core-metadata", "data-dist-info-metadata")


class IndexFile(Value):
    """A file that an index names, and the hash by which it names it."""

    name: str
    url: str
    algorithm: str
    digest: str


def read_pip(page: bytes, url: str) -> tuple[dict[str, IndexFile], bytes]:
    """Return the files of a project, and its page in HTML. ValueError if the page is not one."""
    files: dict[str, IndexFile] = {}
    lines = ["<!DOCTYPE html><html><head><meta name='pypi:repository-version' content='1.0'></head><body>"]
    for named in _of_json(page) if page.lstrip()[:1] == b"{" else _of_html(page):
        link = named
        where = urljoin(url, link["href"])
        name = unquote(urlsplit(where).path.rpartition("/")[2])
        digest = link.get("sha256", "")
        href = where
        if digest and _FILE.fullmatch(name) and where.startswith("https://"):
            files[name] = IndexFile(name, where, "sha256", digest)
            href = f"{quote(name)}#sha256={digest}"
            about = link.get("data-core-metadata", link.get("data-dist-info-metadata", ""))
            if _SHA256.fullmatch(about.removeprefix("sha256=")):
                more = f"{name}.metadata"
                files[more] = IndexFile(more, f"{where}.metadata", "sha256", about.removeprefix("sha256="))
            else:  # its metadata has no hash: pip then reads it from the file
                link = {key: value for key, value in link.items() if not key.endswith("-metadata")}
        shown = "".join(f' {key}="{html.escape(link[key])}"' for key in _HTML if key in link)
        lines.append(f'<a href="{html.escape(href)}"{shown}>{html.escape(name)}</a><br>')
    return files, "\n".join([*lines, "</body></html>"]).encode()


def _of_json(page: bytes) -> list[dict[str, str]]:
    found = []
    for file in _table(json.loads(page)).get("files", ()):
        entry = _table(file)
        link = {"href": str(entry["url"]), "sha256": str(_table(entry.get("hashes") or {}).get("sha256", ""))}
        if not _SHA256.fullmatch(link["sha256"]):
            del link["sha256"]
        if entry.get("requires-python"):
            link["data-requires-python"] = str(entry["requires-python"])
        if yanked := entry.get("yanked"):
            link["data-yanked"] = yanked if isinstance(yanked, str) else ""
        about = entry.get("core-metadata") or entry.get("dist-info-metadata")
        if isinstance(about, dict) and "sha256" in about:
            link["data-core-metadata"] = f"sha256={about['sha256']}"
        found.append(link)
    return found


def _of_html(page: bytes) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            link = {key: value or "" for key, value in attrs if key == "href" or key in _HTML}
            if tag == "a" and "href" in link:
                link["href"], fragment = urldefrag(link["href"])
                if fragment.startswith("sha256=") and _SHA256.fullmatch(fragment[7:]):
                    link["sha256"] = fragment[7:]
                found.append(link)

    Links().feed(page.decode("utf-8", "replace"))
    return found


def read_npm(page: bytes, base: str) -> tuple[dict[str, IndexFile], bytes]:
    """Return the archives of a package, and its description with URLs below `base`.

    ValueError if the page is not a description.
    """
    files: dict[str, IndexFile] = {}
    about = _table(json.loads(page))
    for version in _table(about.get("versions") or {}).values():
        dist = _table(version).get("dist")
        if not isinstance(dist, dict):
            continue
        url, digest = str(dist.get("tarball", "")), _sha512(str(dist.get("integrity", "")))
        name = unquote(urlsplit(url).path.rpartition("/")[2])
        if digest and _FILE.fullmatch(name) and url.startswith("https://"):
            files[name] = IndexFile(name, url, "sha512", digest)
            dist["tarball"] = f"{base}/-/{quote(name)}"
    return files, json.dumps(about).encode()


def _sha512(integrity: str) -> str:
    for each in integrity.split():
        if each.startswith("sha512-"):
            try:
                found = binascii.a2b_base64(each[7:].partition("?")[0])
            except binascii.Error:
                continue
            if len(found) == 64:
                return found.hex()
    return ""


def _table(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is not a table")
    return value
