"""Virtual machines: a distribution's kernel over a small Debian system with staddle in it, started by qemu.

qemu emulates the processor, so nothing here is timed. Kernels and systems are downloaded once, to a cache
below /var/tmp. A system is made by debootstrap; one for another processor is unpacked, since no program of it
can be run here.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from tests.support.containers import TREE

PLACE = Path("/var/tmp/staddle-hosts")
DEBIAN, UBUNTU = "http://deb.debian.org/debian", "http://archive.ubuntu.com/ubuntu"
_QEMU = "qemu-system-"
#: Programs that are needed, by the package that has them.
NEEDED = {
    "debootstrap": "debootstrap",
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-system-aarch64": "qemu-system-arm",
    "depmod": "kmod",
    "mke2fs": "e2fsprogs",
    "cpio": "cpio",
    "busybox": "busybox-static",
}
#: By processor: Debian's name of it, the machine that qemu plays, and its console.
_PROCESSORS = {
    "x86_64": ("amd64", ("-cpu", "max"), "ttyS0"),
    "aarch64": ("arm64", ("-machine", "virt", "-cpu", "max,pauth-impdef=on"), "ttyAMA0"),
}
_SUITE = "trixie"
_PLAIN = "python3,bubblewrap,iproute2,procps"
#: With the program that loads AppArmor's profiles, which Ubuntu has.
_WITH_APPARMOR = f"{_PLAIN},apparmor"
_SYSTEMD = f"{_PLAIN},systemd-sysv,dbus,dbus-user-session,libpam-systemd,login"
#: With pytest, for a machine that runs tests.
_WITH_PYTEST = f"{_SYSTEMD},python3-pytest"
_UNPACKED = "base-files bash coreutils dash findutils grep libc-bin mount sed util-linux hostname " + (
    _PLAIN.replace(",", " ")
)
_MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "overlay")
#: One thread plays all processors. With several, a kernel that changes its own code while another processor
#: runs it may stop with an error, as at the first limit on `cpu`.
_ACCELERATION = "tcg,thread=single"
_SECONDS = 1500
#: Where a machine that runs tests has this tree.
TESTED = "/tree"
_COPIED = ("src", "tests", "pyproject.toml")
_PARTS = ("image", "binary", "base", "modules")
_FIRST = """#!/busybox sh
/busybox mount -t devtmpfs dev /dev
for module in $(/busybox cat /order); do /busybox insmod /modules/$module; done
until [ -b /dev/vda ]; do /busybox sleep 0.1; done
/busybox mount -t ext4 /dev/vda /root
exec /busybox switch_root /root %s
"""
_PASSWD = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n"
_GROUP = "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"

#: A file that begins with this is a link to what follows.
LINK = "-> "

#: The user of a machine, who may log in.
_BOX = {
    "passwd": "box:x:1000:1000::/home/box:/bin/bash\n",
    "group": "box:x:1000:\n",
    "shadow": "box:*:20000:0:99999:7:::\n",
}

_Packages = dict[str, dict[str, str]]


def missing(processors: Collection[str]) -> str:
    """The command that installs what machines with these processors need; empty if nothing is missing."""
    needed = {
        program: package
        for program, package in NEEDED.items()
        if not program.startswith(_QEMU) or program.removeprefix(_QEMU) in processors
    }
    packages = [package for program, package in needed.items() if not shutil.which(program)]
    return f"apt-get install {' '.join(packages)}" if packages else ""


def run(
    archive: str,
    suite: str,
    files: Mapping[str, str],
    *,
    processor: str = "x86_64",
    systemd: bool = False,
    tests: bool = False,
    seconds: float = _SECONDS,
) -> str:
    """Start the newest kernel of a suite over a system with `files` in it; what was printed on its console.

    The first program is /init, or systemd; the machine has to end by itself. With `tests`, which needs
    systemd, pytest and this tree are in it.
    """
    debian, machine, terminal = _PROCESSORS[processor]
    kernel = _kernel(archive, suite, debian)
    tree = _unpacked_system(debian) if processor != "x86_64" else _system(systemd, tests)
    if tests:
        _copy_tree(tree)
    with tempfile.TemporaryDirectory(prefix="staddle-kernel-") as directory:
        place = Path(directory)
        _disk(place, tree, files)
        _initrd(place, kernel, tree, "/sbin/init" if systemd else "/init")
        words = [f"{_QEMU}{processor}", "-accel", _ACCELERATION, *machine, "-m", "2048", "-smp", "2"]
        words += ["-nographic", "-no-reboot", "-nic", "none"]
        words += ["-drive", f"file={place / 'disk'},if=virtio,format=raw"]
        words += ["-kernel", str(_image(kernel)), "-initrd", str(place / "initrd")]
        words += ["-append", f"console={terminal} panic=-1 quiet loglevel=3 systemd.show_status=0"]
        console = place / "console"  # a file, to look at while the machine runs
        with console.open("wb") as file:
            subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            )
        return console.read_text(errors="replace")


# ---------------------------------------------------------------- kernels


def _kernel(archive: str, suite: str, debian: str) -> Path:
    """The directory with the newest kernel of a suite and its modules."""
    place = PLACE / (suite if debian == "amd64" else f"{suite}-{debian}")
    if place.exists():
        return place
    packages = _packages(archive, suite, debian)
    depends = packages[f"linux-image-{debian}" if archive == DEBIAN else "linux-image-generic"]["Depends"]
    image = re.search(r"linux-image-\d[^ ,]*", depends)
    assert image, depends
    with _Complete(place) as part:
        for kind in _PARTS:
            name = image.group().replace("-image-", f"-{kind}-")
            if name in packages:
                _unpack(archive, packages[name], part)
        if not (part / "lib").exists():  # merged
            (part / "lib").symlink_to("usr/lib")
        (version,) = os.listdir(part / "lib/modules")
        subprocess.run(["depmod", "-b", str(part), version], check=True, stderr=subprocess.DEVNULL)
    return place


def _image(kernel: Path) -> Path:
    (found,) = (path for place in ("boot", "usr/lib/modules/*") for path in kernel.glob(f"{place}/vmlinuz*"))
    return found


def _packages(archive: str, suite: str, debian: str) -> _Packages:
    """The packages of a suite, by name."""
    base = f"{archive}/dists/{suite}/main/binary-{debian}/Packages"
    if archive == DEBIAN:
        text = lzma.decompress(urllib.request.urlopen(f"{base}.xz").read()).decode()
    else:
        text = gzip.decompress(urllib.request.urlopen(f"{base}.gz").read()).decode()
    found = {}
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if re.match(r"[\w-]+: ", line))
        if fields:
            found[fields["Package"]] = fields
    return found


def _unpack(archive: str, package: Mapping[str, str], place: Path) -> None:
    with tempfile.NamedTemporaryFile(suffix=".deb") as file:
        urllib.request.urlretrieve(f"{archive}/{package['Filename']}", file.name)
        subprocess.run(["dpkg-deb", "-x", file.name, str(place)], check=True)


class _Complete:
    """A directory that is there when it is complete."""

    def __init__(self, place: Path) -> None:
        self._place, self._part = place, place.with_suffix(".part")

    def __enter__(self) -> Path:
        shutil.rmtree(self._part, ignore_errors=True)
        self._part.mkdir(parents=True)
        return self._part

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._part.rename(self._place)


# ---------------------------------------------------------------- systems


def _system(systemd: bool, tests: bool) -> Path:
    """A system for this processor, made by debootstrap."""
    name, packages = ("tree-systemd", _SYSTEMD) if systemd else ("tree", _WITH_APPARMOR)
    if tests:
        name, packages = "tree-tests", _WITH_PYTEST
    place = PLACE / name
    if not place.exists():
        with _Complete(place) as part:
            words = [
                "--variant=minbase",
                f"--include={packages}",
                _SUITE,
                str(part),
            ]
            subprocess.run(["debootstrap", *words, DEBIAN], check=True, stdout=subprocess.DEVNULL)
    return place


def _unpacked_system(debian: str) -> Path:
    """A system for another processor: packages that are unpacked and not configured, which is enough."""
    place = PLACE / f"tree-{debian}"
    if not place.exists():
        packages = _packages(DEBIAN, _SUITE, debian)
        with _Complete(place) as part:
            for name in _with_dependencies(packages, [*_UNPACKED.split(), "busybox-static"]):
                _unpack(DEBIAN, packages[name], part)
            for name, text in (("passwd", _PASSWD), ("group", _GROUP)):
                (part / "etc" / name).write_text(text)
            for name in ("proc", "sys", "dev", "run", "tmp", "root"):
                (part / name).mkdir(exist_ok=True)
            (part / "tmp").chmod(0o1777)
    return place


def _with_dependencies(packages: _Packages, names: Iterable[str]) -> list[str]:
    """The packages and all that they need; of alternatives the first that there is."""
    found = list(names)
    for name in found:
        fields = packages[name]
        needs = ", ".join(fields[kind] for kind in ("Pre-Depends", "Depends") if kind in fields)
        for need in filter(None, needs.split(", ")):
            choices = [re.split(r"[ (:]", choice, maxsplit=1)[0] for choice in need.split(" | ")]
            if not any(choice in found for choice in choices):
                found += [choice for choice in choices if choice in packages][:1]
    return found


def _copy_tree(tree: Path) -> None:
    """Copy our sources and tests to a system."""
    target = tree / TESTED.lstrip("/")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for name in _COPIED:
        if (TREE / name).is_dir():
            shutil.copytree(TREE / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(TREE / name, target)


def _disk(place: Path, tree: Path, files: Mapping[str, str]) -> None:
    """Make the disk of a machine: the system, staddle, and `files`."""
    shutil.rmtree(tree / "staddle", ignore_errors=True)
    shutil.copytree(
        TREE / "src/staddle", tree / "staddle/staddle", ignore=shutil.ignore_patterns("__pycache__")
    )
    theirs = [path for name in ("bin", "usr/bin") if (path := tree / name / "busybox").exists()]
    shutil.copy(theirs[0] if theirs else shutil.which("busybox") or "", tree / "busybox")
    for name, text in files.items():
        path = tree / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if text.startswith(LINK):
            path.symlink_to(text.removeprefix(LINK))
            continue
        path.write_text(text)
        path.chmod(0o755 if text.startswith("#!") else 0o644)
    for name, line in _BOX.items():
        path = tree / "etc" / name
        if path.exists() and line not in (text := path.read_text()):
            path.write_text(text + line)
    subprocess.run(["mke2fs", "-qF", "-t", "ext4", "-d", str(tree), str(place / "disk"), "2G"], check=True)


def _initrd(place: Path, kernel: Path, tree: Path, init: str) -> None:
    """Make the first file system: busybox, and the modules that the disk needs, in the order of loading."""
    root = place / "first"
    for name in ("modules", "dev", "root"):
        (root / name).mkdir(parents=True)
    shutil.copy(tree / "busybox", root)
    (root / "init").write_text(_FIRST % init)
    (root / "init").chmod(0o755)
    (modules,) = (kernel / "lib/modules").iterdir()
    depends = dict(line.split(":", 1) for line in (modules / "modules.dep").read_text().splitlines())
    by_name = {re.sub(r"\.ko.*", "", Path(path).name).replace("-", "_"): path for path in depends}
    order: list[str] = []
    for name in _MODULES:
        if name in by_name:
            path = by_name[name]
            order += [one for one in (*reversed(depends[path].split()), path) if one not in order]
    names = [re.sub(r"(\.ko).*", r"\1", Path(path).name) for path in order]
    for path, name in zip(order, names, strict=True):
        _plain(modules / path, root / "modules" / name)
    (root / "order").write_text("\n".join(names))
    listed = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    with (place / "initrd").open("wb") as file:
        subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=listed.encode(), stdout=file, check=True
        )


def _plain(module: Path, target: Path) -> None:
    """Copy a module; some distributions compress them, which busybox does not read."""
    if module.suffix == ".xz":
        target.write_bytes(lzma.decompress(module.read_bytes()))
    elif module.suffix == ".zst":
        subprocess.run(["zstd", "-qdf", str(module), "-o", str(target)], check=True)
    else:
        shutil.copy(module, target)
