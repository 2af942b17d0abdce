"""The packages installed in a sandbox, according to their managers' files in its layers; and downloads.

staddle asks no program inside. It reads the managers' files, which a sandbox may have forged. pip leaves a
directory `name-version.dist-info` with the list of its files, dpkg its status and a list for each package,
npm a `package.json` in each directory.

Downloads are kept for other sandboxes in a cache that all can read and none can change. Only a call from
outside fills it (`keep`), and only sandboxes that ask for it use it. It is a layer below their own caches:
their downloads go to their own layers. The caller of `keep` vouches for the downloads, because a sandbox can
put anything into its cache.
"""

from __future__ import annotations

import os
from bisect import bisect_left

from .. import places
from .._value import Value
from ..files import beneath
from ..layers.unified_diff import content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..hostinfo.package_sources import Manager
    from ..layers.changes import Change


_LARGEST = 16 << 20
#: No name and no version is longer.
_LONGEST = 200
_STATUS, _LISTS = "/var/lib/dpkg/status", "/var/lib/dpkg/info/"
#: Links to the same names in /usr on most current systems.
_MERGED = ("/bin/", "/sbin/", "/lib/", "/lib32/", "/lib64/")
_DIST_INFO, _MODULES = ".dist-info", "/node_modules/"


class Package(Value):
    """One package that was installed in the sandbox, and the number of changes that belong to it."""

    name: str
    version: str
    manager: Manager
    files: int = 0


def installed(changes: Sequence[Change]) -> tuple[Package, ...]:
    """The packages in `changes`, the changes of a sandbox since its start."""
    return fold(changes)[0]


def fold(changes: Sequence[Change]) -> tuple[tuple[Package, ...], list[Change]]:
    """The packages in `changes`, and the changes that belong to none."""
    by_path = {change.path: change for change in sorted(changes, key=lambda change: change.path)}
    ordered = list(by_path)
    owned: dict[str, Package] = {}
    found: dict[Package, int] = {}
    for package, paths in (*_pip(by_path, ordered), *_dpkg(by_path), *_npm(by_path, ordered)):
        found.setdefault(package, 0)
        for path in paths:
            owned.setdefault(path, package)
    for path in by_path:
        if path in owned:
            found[owned[path]] += 1
    rest = [change for change in changes if change.path not in owned]
    packages = (package.replace(files=count) for package, count in found.items())
    by_name = sorted(packages, key=lambda package: (package.manager, package.name, package.version))
    return tuple(by_name), _without_places(rest, owned)


def _without_places(rest: list[Change], owned: dict[str, Package]) -> list[Change]:
    """Leave out directories made only for packages, and the managers' own files."""
    kept = [change for change in rest if not _is_bookkeeping(change.path, owned)]
    needed: set[str] = set()
    for change in kept:
        if change.type != "directory":
            path = change.path
            while path not in needed and path:
                needed.add(path)
                path = path.rpartition("/")[0]
    places: set[str] = set()
    for path in owned:
        above = path.rpartition("/")[0]
        while above and above not in places:
            places.add(above)
            above = above.rpartition("/")[0]
    return [
        change
        for change in kept
        if not (change.type == "directory" and change.path in places and change.path not in needed)
    ]


def _is_bookkeeping(path: str, owned: dict[str, Package]) -> bool:
    if not owned:
        return False
    return "/__pycache__" in path or path.startswith(
        ("/var/lib/dpkg/", "/var/lib/apt/", "/var/cache/", "/var/log/")
    )


# ---------------------------------------------------------------- pip


def _pip(changes: dict[str, Change], ordered: list[str]) -> Iterator[tuple[Package, list[str]]]:
    for path, change in changes.items():
        place, _, name = path.rpartition("/")
        if name != "METADATA" or not place.endswith(_DIST_INFO) or change.kind != "added":
            continue
        site, _, directory = place.rpartition("/")
        project, _, version = directory.removesuffix(_DIST_INFO).partition("-")
        if not _plausible(project, version):
            continue
        record = changes.get(f"{place}/RECORD")
        listed = (content(record, _LARGEST, new=True) if record else None) or b""
        paths = [_from(site, row.partition(",")[0].strip('"')) for row in _rows(listed)]
        yield Package(project.replace("_", "-"), version, "pip"), [*paths, *_below(place, ordered)]


def _from(site: str, relative: str) -> str:
    """The absolute path of a file in a RECORD, whose paths are relative and may contain `..`."""
    parts = [] if relative.startswith("/") else site.split("/")[1:]
    for part in relative.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


# ---------------------------------------------------------------- dpkg


def _dpkg(changes: dict[str, Change]) -> Iterator[tuple[Package, list[str]]]:
    status = changes.get(_STATUS)
    if status is None:
        return
    before = _versions(content(status, _LARGEST, new=False) or b"")
    after = _versions(content(status, _LARGEST, new=True) or b"")
    for (name, architecture), version in after.items():
        if before.get((name, architecture)) == version or not _plausible(name, version):
            continue
        paths = []
        for key in (name, f"{name}:{architecture}"):
            listed = changes.get(f"{_LISTS}{key}.list")
            if listed is not None:
                for new in (True, False):  # a package of the host is replaced, with all its files
                    paths += _rows(content(listed, _LARGEST, new=new) or b"")
        merged = [f"/usr{path}" for path in paths if path.startswith(_MERGED)]
        yield Package(name, version, "apt"), [*paths, *merged]


def _versions(status: bytes) -> dict[tuple[str, str], str]:
    found = {}
    for paragraph in status.split(b"\n\n"):
        fields = {}
        for line in paragraph.split(b"\n"):
            key, mark, value = line.partition(b":")
            if mark and key in (b"Package", b"Version", b"Status", b"Architecture"):
                fields[key] = value.strip().decode("utf-8", "replace")
        if fields.get(b"Status") == "install ok installed" and b"Package" in fields:
            found[fields[b"Package"], fields.get(b"Architecture", "")] = fields.get(b"Version", "")
    return found


# ---------------------------------------------------------------- npm


def _npm(changes: dict[str, Change], ordered: list[str]) -> Iterator[tuple[Package, list[str]]]:
    for path, change in changes.items():
        place, _, name = path.rpartition("/")
        if name != "package.json" or _MODULES not in place or change.kind != "added":
            continue
        within = place.rpartition(_MODULES)[2]
        scoped = within.startswith("@")
        if within.count("/") != int(scoped):
            continue  # a file of a package that only has this name
        version = _version(content(change, 1 << 20, new=True) or b"")
        if _plausible(within, version):
            yield Package(within, version, "npm"), _below(place, ordered)


def _version(text: bytes) -> str:
    import json

    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    version = found.get("version") if isinstance(found, dict) else None
    return version if isinstance(version, str) else ""


# ---------------------------------------------------------------- both


def _below(place: str, ordered: list[str]) -> list[str]:
    """The directory and everything in it, from sorted paths."""
    inside = slice(bisect_left(ordered, f"{place}/"), bisect_left(ordered, f"{place}0"))  # "0" follows "/"
    return [place, *ordered[inside]]


def _rows(text: bytes) -> list[str]:
    return [row for row in text.decode("utf-8", "surrogateescape").split("\n") if row]


def _plausible(name: str, version: str) -> bool:
    return all(0 < len(text) <= _LONGEST and text.isprintable() for text in (name, version))


#: The cache directories of a home, and the parts to keep: pip's, uv's and npm's.
PLACES = (".cache", ".npm")
KEPT = (".cache/pip/", ".cache/uv/", ".npm/_cacache/")
#: Overrides the directory. As root, everybody must be able to traverse its parents.
VARIABLE = places.DOWNLOADS
_LARGEST_DOWNLOAD, _MOST_DOWNLOADS = 256 << 20, 16 << 30


def home_of_downloads() -> str:
    """Directory of downloads on the host: the user's own cache. Root's is readable by everybody."""
    if chosen := os.environ.get(VARIABLE):
        return os.path.abspath(chosen)
    if os.geteuid() == 0:
        return "/var/cache/staddle/downloads"
    return f"{places.of_user('cache')}/downloads"


def keep(changes: Iterable[Change], home: str) -> int:
    """Copy the caches of a sandbox with the home `home`; return the number of files."""
    place = home_of_downloads()
    os.makedirs(place, 0o755, exist_ok=True)
    root = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    count, room = 0, _MOST_DOWNLOADS
    try:
        for change in changes:
            path = change.path.removeprefix(f"{home}/")
            if change.type != "file" or path == change.path or not path.startswith(KEPT):
                continue
            data = content(change, min(_LARGEST_DOWNLOAD, room), new=True)
            if data is None:
                continue
            with beneath.pending(root, path) as file:
                file.write(data)
            count, room = count + 1, room - len(data)
    finally:
        os.close(root)
    return count


def trees(home: str, store: str, owner: int | None) -> dict[str, list[str]]:
    """The layers below the caches of a sandbox with the home `home`, topmost first; see `snapshot.extend`.

    `owner` is the host's id of the sandbox's user, unless that is us. Then `store` gets directories with that
    owner, on top of ours.
    """
    from .system_layer import repeated

    kept = home_of_downloads()
    found: dict[str, list[str]] = {}
    for name in PLACES:
        below = f"{kept}/{name}"
        if not os.path.isdir(below):
            continue
        own = [] if owner is None else [repeated(below, f"{store}/downloads-{os.urandom(6).hex()}", owner)]
        found[f"{home}/{name}"] = [*own, below]
    return found
