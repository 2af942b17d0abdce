"""The files of the page, read once, each with its path and headers. No request names a file of the host."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from .http import Response

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
#: Scripts and styles come from files only, and no text becomes markup (trusted types): a name or an output
#: from inside that looks like markup stays text, even if a module had a mistake.
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _CONTENT_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@cache
def page_files() -> dict[str, Response]:
    """Return the answers for all files of the page, by the path of the request."""
    top = files("staddle.server") / "page"
    found = {
        f"/page/{path}": Response(body=file.read_bytes(), kind=kind, more=_HEADERS)
        for path, file in _walk(top, "")
        if (kind := _KINDS.get(path.rpartition(".")[2])) is not None
    }
    return {"/": found.pop("/page/index.html"), **found}


def _walk(directory: Traversable, before: str) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for each in directory.iterdir():
        if each.is_dir():
            found += _walk(each, f"{before}{each.name}/")
        else:
            found.append((before + each.name, each))
    return found
