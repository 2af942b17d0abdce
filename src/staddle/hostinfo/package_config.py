"""Configuration files for package managers inside: the indexes, and permission to install.

Debian's pip refuses to install next to the system's packages, because it might break them. In a sandbox this
is harmless: installed files are in its layer.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .package_sources import PackageIndex

_PIP = "[global]\nbreak-system-packages = true\ndisable-pip-version-check = true\n"
_NPM = "prefix=${HOME}/.local\nupdate-notifier=false\nfund=false\n"
#: One retry: without any, pip does not report the reason.
_PIP_ONCE, _NPM_ONCE = "retries = 1\n", "fetch-retries=0\n"
#: Directories visible inside at the same path. Certificates elsewhere would not be found.
_VISIBLE = ("/etc/ssl/certs/", "/usr/")


def configuration(network: str) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return files for /etc by path, and files for a home by name. `network` is the policy's mode.

    Without network access, they contain no indexes, and managers do not retry.
    """
    if network not in ("allow", "open"):
        etc = {"/etc/pip.conf": f"{_PIP}{_PIP_ONCE}".encode()}
        return etc, {".npmrc": f"{_NPM}{_NPM_ONCE}".encode()}
    from .package_hosts import read

    found = read(("pip", "npm"))
    certificate = next((path for path in found.certificates if path.startswith(_VISIBLE)), "")
    etc = {"/etc/pip.conf": pip(found.of("pip"), certificate).encode()}
    if text := uv(found.of("pip"), certificate):
        etc["/etc/uv/uv.toml"] = text.encode()
    return etc, {".npmrc": npm(found.of("npm"), certificate).encode()}


def pip(indexes: Sequence[PackageIndex], certificate: str = "") -> str:
    """Return a pip.conf for these indexes, without passwords. Pure."""
    lines = [_PIP]
    if (first := _first(indexes, "index-url")) is not None:
        lines.append(f"index-url = {first.url}\n")
    if others := [index.url for index in indexes if index.kind == "extra-index-url"]:
        lines.append(f"extra-index-url = {' '.join(others)}\n")
    if plain := sorted({index.host for index in indexes if index.scheme == "http"}):
        lines.append(f"trusted-host = {' '.join(plain)}\n")
    if certificate:
        lines.append(f"cert = {certificate}\n")
    return "".join(lines)


def uv(indexes: Sequence[PackageIndex], certificate: str = "") -> str:
    """Return a uv.toml for these indexes. Pure. uv uses the system's certificates only with `native-tls`."""
    first = _first(indexes, "index-url")
    index = "" if first is None else f'index-url = "{first.url}"\n'
    return index + ("native-tls = true\n" if certificate else "")


def npm(indexes: Sequence[PackageIndex], certificate: str = "") -> str:
    """Return an .npmrc for these indexes. Pure."""
    first = _first(indexes, "registry")
    registry = "" if first is None else f"registry={first.url}\n"
    return _NPM + registry + (f"cafile={certificate}\n" if certificate else "")


def _first(indexes: Sequence[PackageIndex], kind: str) -> PackageIndex | None:
    return next((index for index in indexes if index.kind == kind), None)
