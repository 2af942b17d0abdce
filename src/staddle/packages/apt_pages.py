"""Read the pages of an apt repository: the signed InRelease, and the lists of packages that it names."""

from __future__ import annotations

import base64
import bz2
import glob
import gzip
import lzma
import os
import shutil
import subprocess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any

#: Where this host keeps the keys that it trusts for packages.
KEYRINGS = (
    *("/etc/apt/trusted.gpg", "/etc/apt/trusted.gpg.d/*", "/etc/apt/keyrings/*"),
    "/usr/share/keyrings/*",
)
_OPEN: dict[str, Callable[..., Any]] = {
    "Packages.xz": lzma.open,
    "Packages.gz": gzip.open,
    "Packages.bz2": bz2.open,
}
#: Bytes of a list that are read once it is unpacked; seconds for gpgv.
_LARGEST_LIST, _PATIENCE = 1 << 30, 20.0


def can_verify() -> bool:
    """Whether this host has gpgv."""
    return shutil.which("gpgv") is not None


def release_sums(signed: bytes) -> dict[str, str]:
    """Return the SHA-256 of each file that an InRelease names. ValueError if no trusted key has signed it.

    gpgv prints the signed text alone, and only that is read.
    """
    keys = os.memfd_create("keys", os.MFD_CLOEXEC)
    with open(keys, "wb") as file:
        for pattern in KEYRINGS:
            for path in sorted(glob.glob(pattern)):
                file.write(_keys(path))
        file.flush()
        done = subprocess.run(
            ["gpgv", "--status-fd", "2", "--keyring", f"/proc/self/fd/{keys}", "--output", "-", "-"],
            input=signed,
            capture_output=True,
            pass_fds=(keys,),
            timeout=_PATIENCE,
            check=False,
        )
    status = done.stderr.split(b"\n")
    kinds = {line.split()[1] for line in status if line.startswith(b"[GNUPG:] ")}
    if b"GOODSIG" not in kinds or b"BADSIG" in kinds:
        raise ValueError("no key that this host trusts has signed it")
    found: dict[str, str] = {}
    is_sums = False
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if not line.startswith(" "):
            is_sums = line.startswith("SHA256:")
        elif is_sums and len(words := line.split()) == 3:
            found[words[2]] = words[0].lower()
    return found


def _keys(path: str) -> bytes:
    """Return the keys of a file in binary form; none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read(1 << 20)
        if data.startswith(b"-----BEGIN PGP PUBLIC KEY BLOCK-----"):
            body = data.partition(b"\n\n")[2].partition(b"\n=")[0].partition(b"\n-----END")[0]
            return base64.b64decode(body)
    except (OSError, ValueError):
        return b""
    return data if data[:1] >= b"\x80" else b""  # else it is no list of keys


def package_sums(file: IO[bytes], name: str) -> dict[str, str]:
    """Return the SHA-256 of each package in a list with this file name."""
    found: dict[str, str] = {}
    path, left = "", _LARGEST_LIST
    with _OPEN[name](file) if name in _OPEN else file as lines:
        for line in lines:
            left -= len(line)
            if left < 0:
                raise ValueError("the list of packages is too large")
            if line.startswith(b"Filename:"):
                path = line[9:].strip().decode("utf-8", "replace")
            elif line.startswith(b"SHA256:"):
                found[path] = line[7:].strip().decode("ascii", "replace")
            elif not line.strip():
                path = ""
    return found
