"""Kernels of distributions, each started by qemu over a small Debian system with staddle in it.

qemu emulates the processor, so nothing here is timed. The kernels and the system are downloaded once, to a
cache below /var/tmp. In each, as root and as an ordinary user, doctor, a strict run and a session are tried.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.containers import TREE

PLACE = Path("/var/tmp/staddle-hosts")
DEBIAN, UBUNTU = "http://deb.debian.org/debian", "http://archive.ubuntu.com/ubuntu"
#: Programs that are needed, by the package that has them.
NEEDED = {
    "debootstrap": "debootstrap",
    "qemu-system-x86_64": "qemu-system-x86",
    "depmod": "kmod",
    "mke2fs": "e2fsprogs",
    "cpio": "cpio",
    "busybox": "busybox-static",
}
_SYSTEM = "python3,bubblewrap,iproute2,procps"
_MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "overlay")
_SECONDS = 900
_PARTS = tuple(f"Package: linux-{part}-" for part in ("image", "binary", "base", "modules"))
NAMESPACES, NOTHING = "namespaces", "-"


@dataclass(frozen=True)
class Kernel:
    """A distribution's kernel, and what is expected: the backend of `auto` as root and as a user.

    With `fixed`, the user tries again when root has run `staddle doctor --fix`: the backend then.
    """

    name: str
    archive: str
    suite: str
    root: str = NAMESPACES
    user: str = NAMESPACES
    #: Settings that the distribution makes when it boots.
    sysctls: tuple[str, ...] = ()
    #: Words of the reason why namespaces cannot be used.
    reason: str = ""
    fixed: str = ""

    def expected(self) -> dict[str, str]:
        """The backend of `auto`, by who tries."""
        found = {"root": self.root, "user": self.user}
        return {**found, "fixed": self.fixed} if self.fixed else found


KERNELS = (
    Kernel("Debian 11", DEBIAN, "bullseye", "bwrap", "bwrap", reason="5.12"),
    Kernel("Debian 12", DEBIAN, "bookworm"),
    Kernel("Ubuntu 24.04, user namespaces allowed", UBUNTU, "noble"),
    Kernel(
        "Ubuntu 24.04",
        UBUNTU,
        "noble",
        root=NOTHING,
        user=NOTHING,
        sysctls=("kernel.apparmor_restrict_unprivileged_userns=1",),
        reason="AppArmor",
        fixed=NAMESPACES,
    ),
    Kernel("Debian 13", DEBIAN, "trixie"),
    Kernel("Debian sid", DEBIAN, "sid"),
)

TRIED = """
import json, os, subprocess, sys, warnings
warnings.simplefilter("ignore")
from staddle import Sandbox, StaddleError
def staddle(*words):
    done = subprocess.run([sys.executable, "-m", "staddle", *words], capture_output=True, text=True, cwd="/")
    return done.returncode, done.stdout, done.stderr
found = {"kernel": os.uname().release}
said = json.loads(staddle("doctor", "--json")[1])
found["auto"] = said["auto"]
found["usable"] = [n for n, b in said["backends"].items() if b["usable"] and n != "native"]
found["why"] = {n: b.get("why", "") for n, b in said["backends"].items()}
found["strict"], _, found["told"] = staddle("run", "--", "true")
place = sys.argv[1]
os.makedirs(place, exist_ok=True)
try:
    with Sandbox(place) as sb:
        sb.run("x=1; echo one > a")
        before = sb.snapshot()
        sb.run("x=2; rm a")
        sb.restore(before)
        found["session"] = sb.enforced.backend
        found["works"] = sb.run("cat a; echo $x").stdout == "one\\n1\\n" and len(sb.diff()) == 1
        found["snapshot"] = before.method
        found["limits"] = {limit.limit: limit.by for limit in sb.enforced.limits}
        sb.commit()
    found["works"] = found["works"] and open(place + "/a").read() == "one\\n"
except StaddleError as error:
    found["refused"] = str(error)
print("RESULT " + json.dumps(found))
"""
_INIT = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin PYTHONPATH=/staddle HOME=/root LANG=C.UTF-8
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm; mount -t devpts devpts /dev/pts; mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup; mount -t tmpfs run /run
echo +memory +cpu +pids > /sys/fs/cgroup/cgroup.subtree_control
mount -t securityfs securityfs /sys/kernel/security 2>/dev/null
ip link set lo up; hostname box
for setting in $(cat /sysctls); do sysctl -qw $setting; done
mkdir -p /home/box; chown 1000:1000 /home/box
cd /
echo AS root
python3 /tried.py /srv/project
echo AS user
HOME=/home/box setpriv --reuid=1000 --regid=1000 --clear-groups python3 /tried.py /home/box/project
if [ -s /fix ]; then
    python3 -m staddle doctor --fix --yes
    echo AS fixed
    HOME=/home/box setpriv --reuid=1000 --regid=1000 --clear-groups python3 /tried.py /home/box/other
fi
exec /busybox reboot -f
"""
_FIRST = """#!/busybox sh
/busybox mount -t devtmpfs dev /dev
for module in $(/busybox cat /order); do /busybox insmod /modules/$module; done
until [ -b /dev/vda ]; do /busybox sleep 0.1; done
/busybox mount -t ext4 /dev/vda /root
exec /busybox switch_root /root /init
"""


def missing() -> str:
    """The command that installs what is not there; empty if nothing is missing."""
    packages = [package for program, package in NEEDED.items() if not shutil.which(program)]
    return f"apt-get install {' '.join(packages)}" if packages else ""


def run(kernel: Kernel) -> dict[str, Any]:
    """What was found, by who tried."""
    files = _unpacked(kernel)
    with tempfile.TemporaryDirectory(prefix="staddle-kernel-") as directory:
        place = Path(directory)
        _disk(place, kernel)
        _initrd(place, files)
        words = ["-accel", "tcg", "-cpu", "max", "-m", "2048", "-smp", "2", "-nographic", "-no-reboot"]
        words += ["-nic", "none", "-drive", f"file={place / 'disk'},if=virtio,format=raw"]
        words += ["-kernel", str(_image(files)), "-initrd", str(place / "initrd")]
        words += ["-append", "console=ttyS0 panic=-1 quiet loglevel=3"]
        done = subprocess.run(
            ["qemu-system-x86_64", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    text = done.stdout.decode(errors="replace")
    results = re.findall(r"AS (\w+)\s+RESULT (\{.*\})\s*$", text, re.MULTILINE)
    assert len(results) == len(kernel.expected()), (
        f"{kernel.name} printed:\n{text[:6000]}{done.stderr.decode()[-500:]}"
    )
    return {who: json.loads(found) for who, found in results}


def _image(files: Path) -> Path:
    (found,) = (path for place in ("boot", "usr/lib/modules/*") for path in files.glob(f"{place}/vmlinuz*"))
    return found


def judged(kernel: Kernel, results: dict[str, Any]) -> Iterator[str]:
    """What does not agree, or is not as expected."""
    for who, expected in kernel.expected().items():
        found = results[who]
        if (found["auto"] or NOTHING) != expected:
            yield f"as {who} auto is {found['auto']}: {found['why']}"
        if (found["strict"] == 0) != (found["auto"] is not None):
            yield f"as {who} doctor says {found['auto']}, and a strict run exits with {found['strict']}"
        if found.get("session", NOTHING) != expected:
            yield f"as {who} the session is on {found.get('session')}: {found.get('refused', '')}"
        if "session" in found and not found["works"]:
            yield f"as {who} snapshot, restore, diff or commit do not work"
        if expected != NAMESPACES and kernel.reason not in found["why"][NAMESPACES]:
            yield f"as {who} the reason does not say {kernel.reason}: {found['why'][NAMESPACES]}"


def rows(kernel: Kernel, results: dict[str, Any]) -> Iterator[str]:
    """Lines of the table."""
    for who, found in results.items():
        usable = ", ".join(f"`{name}`" for name in found["usable"]) or "none"
        session = f"`{found['session']}`, {found['snapshot']}" if "session" in found else "refused"
        limits = ", ".join(f"{name}: {how}" for name, how in found.get("limits", {}).items())
        release = found["kernel"].split("-")[0].split("+")[0]
        auto = found["auto"] or "refused"
        name = "user, after `doctor --fix`" if who == "fixed" else who
        yield f"| {kernel.name}, {release}, {name} | {usable} | `{auto}` | {session} | {limits} |"


def _unpacked(kernel: Kernel) -> Path:
    """The directory with the newest kernel of a suite and its modules, as far as they are needed."""
    place = PLACE / kernel.suite
    if place.exists():
        return place
    packages = _packages(kernel.archive, kernel.suite)
    meta = packages["linux-image-amd64" if kernel.archive == DEBIAN else "linux-image-generic"]
    depends = meta["Depends"]
    image = re.search(r"linux-image-\d[^ ,]*", depends)
    assert image, depends
    wanted = [
        image.group().replace("-image-", f"-{part}-") for part in ("image", "binary", "base", "modules")
    ]
    part = place.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name in wanted:
        if name in packages:
            archive = part / "package"
            urllib.request.urlretrieve(f"{kernel.archive}/{packages[name]['Filename']}", archive)
            subprocess.run(["dpkg-deb", "-x", str(archive), str(part)], check=True)
            archive.unlink()
    if not (part / "lib").exists():  # merged
        (part / "lib").symlink_to("usr/lib")
    (version,) = os.listdir(part / "lib/modules")
    subprocess.run(["depmod", "-b", str(part), version], check=True)
    part.rename(place)
    return place


def _packages(archive: str, suite: str) -> dict[str, dict[str, str]]:
    """The packages of a suite, by name."""
    base = f"{archive}/dists/{suite}/main/binary-amd64/Packages"
    if archive == DEBIAN:
        text = lzma.decompress(urllib.request.urlopen(f"{base}.xz").read()).decode()
    else:
        text = gzip.decompress(urllib.request.urlopen(f"{base}.gz").read()).decode()
    found = {}
    for block in text.split("\n\n"):
        if block.startswith(_PARTS):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if re.match(r"[\w-]+: ", line))
            found[fields["Package"]] = fields
    return found


def _disk(place: Path, kernel: Kernel) -> None:
    """Make the disk of a machine: the small system, staddle, and what is to be run."""
    tree = PLACE / "tree"
    if not tree.exists():
        part = PLACE / "tree.part"
        shutil.rmtree(part, ignore_errors=True)
        PLACE.mkdir(exist_ok=True)
        words = ["--variant=minbase", f"--include={_SYSTEM}", "trixie", str(part), DEBIAN]
        subprocess.run(["debootstrap", *words], check=True, stdout=subprocess.DEVNULL)
        part.rename(tree)
    shutil.rmtree(tree / "staddle", ignore_errors=True)
    shutil.copytree(
        TREE / "src/staddle", tree / "staddle/staddle", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(shutil.which("busybox") or "", tree / "busybox")
    (tree / "init").write_text(_INIT)
    (tree / "init").chmod(0o755)
    (tree / "tried.py").write_text(TRIED)
    (tree / "sysctls").write_text("\n".join(kernel.sysctls))
    (tree / "fix").write_text(kernel.fixed)
    if "box:" not in (tree / "etc/passwd").read_text():
        with (tree / "etc/passwd").open("a") as file:
            file.write("box:x:1000:1000::/home/box:/bin/bash\n")
    subprocess.run(["mke2fs", "-qF", "-t", "ext4", "-d", str(tree), str(place / "disk"), "2G"], check=True)


def _initrd(place: Path, files: Path) -> None:
    """Make the first file system: busybox, and the modules that the disk needs, in the order of loading."""
    root = place / "first"
    for name in ("modules", "dev", "root"):
        (root / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox
    shutil.copy(busybox, root / "busybox")
    (root / "init").write_text(_FIRST)
    (root / "init").chmod(0o755)
    (modules,) = (files / "lib/modules").iterdir()
    depends = dict(line.split(":", 1) for line in (modules / "modules.dep").read_text().splitlines())
    by_name = {re.sub(r"\.ko.*", "", Path(path).name).replace("-", "_"): path for path in depends}
    order: list[str] = []
    for name in _MODULES:
        if name in by_name:
            path = by_name[name]
            order += [one for one in (*reversed(depends[path].split()), path) if one not in order]
    for path in order:
        _plain(modules / path, root / "modules" / re.sub(r"(\.ko).*", r"\1", Path(path).name))
    names = [re.sub(r"(\.ko).*", r"\1", Path(path).name) for path in order]
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


def table(chosen: str | None = None) -> tuple[list[str], int, bool]:
    """Try all, or the chosen ones, and print a line for each.

    Returns rows of the table, how many failed, whether it was skipped.
    """
    if command := missing():
        print(f"skipped: kernels of distributions need qemu and other programs: {command}")
        return [], 0, True
    lines, failed = [], 0
    for kernel in KERNELS if chosen is None else [one for one in KERNELS if chosen in one.name]:
        began = time.monotonic()
        try:
            results = run(kernel)
            wrong = list(judged(kernel, results))
            lines += rows(kernel, results)
        except (AssertionError, subprocess.SubprocessError, OSError) as error:
            wrong = [str(error)[-2500:] or type(error).__name__]
        failed += bool(wrong)
        print(f"{'FAILED' if wrong else 'ok'}: {kernel.name} ({time.monotonic() - began:.0f} s)", flush=True)
        for words in wrong:
            print(f"    {words}")
    return lines, failed, False


if __name__ == "__main__":
    print(*table(sys.argv[1] if len(sys.argv) > 1 else None)[0], sep="\n")
