"""Images made by the tests: layers as tars, in an OCI layout or as `docker save` writes it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Change = tuple[str, bytes | str | None]


def layer(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> bytes:
    """The tar of these members."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member in members:
            info, data = member if isinstance(member, tuple) else (member, b"")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def file(name: str, data: bytes = b"", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.mode = mode
    return info, data


def directory(name: str, mode: int = 0o755) -> tarfile.TarInfo:
    return other(name, tarfile.DIRTYPE, mode=mode)


def symlink(name: str, target: str) -> tarfile.TarInfo:
    return other(name, tarfile.SYMTYPE, target)


def link(name: str, target: str) -> tarfile.TarInfo:
    return other(name, tarfile.LNKTYPE, target)


def other(name: str, kind: bytes, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info


def plain(data: bytes) -> bytes:
    return data


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, 1)


def zstandard(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def archive(path: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    path.write_bytes(layer(*(file(name, data) for name, data in files)))
    return path


def docker_save(path: Path, layers: Iterable[bytes], **changes: Any) -> Path:
    """What `docker save` writes. `changes` are of its manifest."""
    made = list(layers)
    config = json.dumps({"rootfs": {"diff_ids": [f"sha256:{digest(data)}" for data in made]}}).encode()
    names = [f"{number}/layer.tar" for number in range(len(made))]
    manifest = {"Config": f"{digest(config)}.json", "RepoTags": ["some/image:1"], "Layers": names, **changes}
    files = [*zip(names, made, strict=True), (f"{digest(config)}.json", config)]
    return archive(path, [*files, ("manifest.json", json.dumps([manifest]).encode())])


def oci(
    path: Path,
    layers: Iterable[bytes],
    compress: Callable[[bytes], bytes] = gzipped,
    *,
    change: Callable[[dict[str, bytes]], object] = lambda files: None,
    platforms: Iterable[str] = (),
) -> Path:
    """An OCI layout in a tar. `change` may do something to its files before they are written."""
    files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(data: bytes, **more: Any) -> dict[str, Any]:
        files[f"blobs/sha256/{digest(data)}"] = data
        return {"digest": f"sha256:{digest(data)}", "size": len(data), **more}

    made = list(layers)
    config = blob(json.dumps({"rootfs": {"diff_ids": [f"sha256:{digest(data)}" for data in made]}}).encode())
    manifest = blob(
        json.dumps({"config": config, "layers": [blob(compress(data)) for data in made]}).encode()
    )
    others = [
        blob(
            json.dumps({"layers": [], "config": config}).encode(),
            platform={"architecture": name, "os": "linux"},
        )
        for name in platforms
    ]
    files["index.json"] = json.dumps({"manifests": [*others, manifest]}).encode()
    change(files)
    return archive(path, files.items())
