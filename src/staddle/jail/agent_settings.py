"""Fingerprints of the configuration that makes a coding agent run commands; compared before and after a run.

The agent's configuration is writable in its jail, or it could not log in or remember anything.
Part of it is obeyed when the user's own agent starts outside: hooks, servers, instructions.
That part is compared, and a change is reported. It is not undone: it may be the user's.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Larger files are compared by size, mtime and ctime; a program cannot set the ctime.
MOST_BYTES = 4 << 20
MOST_BYTES_IN_ALL = 64 << 20
#: Files beyond this number are not compared: a directory of settings has fewer.
MOST_FILES = 100_000

Fingerprint = dict[str, tuple[object, ...]]


def fingerprint(paths: Iterable[str], mixed: Iterable[tuple[str, tuple[str, ...]]] = ()) -> Fingerprint:
    """Every file at and below `paths`, by what it holds. Follows no link and never raises.

    `mixed` are (JSON file, keys): state and settings in one, of which only what stands under
    these keys, at any depth, is compared.
    """
    keys = {os.path.expanduser(path): names for path, names in mixed}
    seen: Fingerprint = {}
    pending = [*(os.path.expanduser(path) for path in paths), *keys]
    left = MOST_BYTES_IN_ALL
    while pending and len(seen) < MOST_FILES:
        path = pending.pop()
        try:
            info = os.lstat(path)
            if stat.S_ISDIR(info.st_mode):
                pending += sorted((f"{path}/{name}" for name in os.listdir(path)), reverse=True)
            elif stat.S_ISLNK(info.st_mode):
                seen[path] = ("link", os.readlink(path))
            elif not stat.S_ISREG(info.st_mode):
                seen[path] = (stat.S_IFMT(info.st_mode),)
            elif info.st_size > min(MOST_BYTES, left):
                seen[path] = (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
            else:
                left -= info.st_size
                seen[path] = (info.st_mode & 0o111, _digest(path, keys.get(path, ())))
        except OSError:
            continue
    return seen


def changed(before: Fingerprint, after: Fingerprint) -> tuple[str, ...]:
    """The paths that were added, removed or changed, sorted."""
    return tuple(sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p)))


def _digest(path: str, keys: tuple[str, ...]) -> bytes:
    import hashlib

    # An agent of another run may have put something else there since we looked.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    return hashlib.sha256(_only(content, keys) if keys else content).digest()


def _only(content: bytes, keys: tuple[str, ...]) -> bytes:
    """The values of these keys as canonical JSON; the whole content if it is not JSON."""
    import json

    try:
        found = list(_under(json.loads(content), keys, ()))
    except (ValueError, RecursionError):
        return content
    return json.dumps(found, sort_keys=True).encode()


def _under(
    data: object, keys: tuple[str, ...], way: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(data, dict):
        for name in sorted(data):
            if name in keys:
                if data[name]:  # an empty list of servers is none
                    yield (*way, name), data[name]
            else:
                yield from _under(data[name], keys, (*way, name))
    elif isinstance(data, list):
        for item in data:
            yield from _under(item, keys, way)
