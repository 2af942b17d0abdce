"""Changes as a patch for `git apply`: text, binary content, links and the executable bit."""

from __future__ import annotations

import zlib
from base64 import b85encode
from hashlib import sha1

from ..errors import LayerError
from .unified_diff import MOST_LINES, content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    from .changes import Change

    #: A file or link as git stores it: mode and content.
    Blob: TypeAlias = tuple[bytes, bytes]

#: The largest file in a patch.
_LARGEST = 256 << 20
_LINK = b"120000"


def git_patch(changes: Iterable[Change], root: str) -> Iterator[bytes]:
    """Yield each change below `root` as a part of a patch, with relative paths.

    A rename is a deletion and an addition. Git tracks neither directories nor devices, so they are left out.
    """
    for change in changes:
        old, new = _blob(change, new=False), _blob(change, new=True)
        was, now = (_name(path, root) for path in (change.old_path or change.path, change.path))
        if old is not None and new is not None and (was != now or (old[0] == _LINK) != (new[0] == _LINK)):
            yield _part(was, old, None) + _part(now, None, new)
        elif old is not None or new is not None:
            yield _part(now, old, new)


def _blob(change: Change, *, new: bool) -> Blob | None:
    kind, mode = (change.type, change.mode) if new else (change.old_type, change.old_mode)
    if kind == "symlink":
        target = change.target if new else change.old_target
        return _LINK, (target or "").encode("utf-8", "surrogateescape")
    if kind != "file":
        return None
    data = content(change, _LARGEST, new=new)
    if data is None:
        raise LayerError(
            f"{change.path!r} cannot be put into a patch",
            why=f"its content is gone, has changed since, or is larger than {_LARGEST >> 20} MiB",
            fix="name the other paths, or use `staddle commit`",
        )
    return (b"100755" if (mode or 0) & 0o100 else b"100644"), data


def _name(path: str, root: str) -> bytes:
    return path.removeprefix(root.rstrip("/") + "/").encode("utf-8", "surrogateescape")


def _part(name: bytes, old: Blob | None, new: Blob | None) -> bytes:
    lines = [b"diff --git %s %s\n" % (_quoted(b"a/" + name), _quoted(b"b/" + name))]
    if old is None and new is not None:
        lines.append(b"new file mode %s\n" % new[0])
    elif new is None and old is not None:
        lines.append(b"deleted file mode %s\n" % old[0])
    elif old is not None and new is not None and old[0] != new[0]:
        lines.append(b"old mode %s\nnew mode %s\n" % (old[0], new[0]))
    before, after = (b"" if blob is None else blob[1] for blob in (old, new))
    if before == after:
        return b"".join(lines)
    if b"\0" in before or b"\0" in after:
        sums = (b"0" * 40 if blob is None else _object_name(blob[1]) for blob in (old, new))
        return b"".join(lines) + b"index %s..%s\nGIT binary patch\n" % tuple(sums) + _literal(after) + b"\n"
    was = b"/dev/null" if old is None else _quoted(b"a/" + name)
    now = b"/dev/null" if new is None else _quoted(b"b/" + name)
    return b"".join([*lines, b"--- %s\n+++ %s\n" % (was, now), *_hunks(before, after)])


def _hunks(before: bytes, after: bytes) -> Iterator[bytes]:
    old, new = (_lines(data) for data in (before, after))
    if len(old) > MOST_LINES or len(new) > MOST_LINES:  # difflib would take minutes: replace all lines
        yield b"@@ -%d,%d +%d,%d @@\n" % (bool(old), len(old), bool(new), len(new))
        marked = [*((b"-", line) for line in old), *((b"+", line) for line in new)]
        yield from (_ended(mark + line) for mark, line in marked)
        return
    import difflib

    was, now = ([line.decode("latin-1") for line in lines] for lines in (old, new))
    found = difflib.unified_diff(was, now)
    yield from (_ended(line.encode("latin-1")) for number, line in enumerate(found) if number > 1)


def _ended(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"


def _lines(data: bytes) -> list[bytes]:
    """Split into lines, which end only at a newline."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _object_name(data: bytes) -> bytes:
    # Git's own names of objects; nothing here relies on the hash.
    return sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest().encode()


def _literal(data: bytes) -> bytes:
    """Encode content in git's base85: 52 bytes a line, each with its length before it."""
    packed = zlib.compress(data)
    lines = [b"literal %d\n" % len(data)]
    for at in range(0, len(packed), 52):
        row = packed[at : at + 52]
        length = (b"A"[0] + len(row) - 1) if len(row) <= 26 else (b"a"[0] + len(row) - 27)
        lines.append(bytes([length]) + b85encode(row, pad=True) + b"\n")
    return b"".join(lines)


def _quoted(name: bytes) -> bytes:
    """Quote a name as git does, if it has a quote, a backslash or a control character."""
    if not any(byte < 0x20 or byte in b'"\\\x7f' for byte in name):
        return name
    letters = {0x22: b'\\"', 0x5C: b"\\\\"}
    return (
        b'"'
        + b"".join(letters.get(b, b"\\%03o" % b if b < 0x20 or b == 0x7F else bytes([b])) for b in name)
        + b'"'
    )
