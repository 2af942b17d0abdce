"""Devices of this host: the nodes of each vendor's GPUs, and the devices that no policy can grant.

staddle finds GPUs in /proc and /sys, without a vendor's program. `root` is the root of a stand-in tree, for
tests. The tables for AMD and Intel are from the vendors' documentation.
"""

from __future__ import annotations

import os
import re
import stat

from .._value import Value
from ..errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Variables that select among visible GPUs. Each vendor's libraries read their own.
VARIABLES = {
    "nvidia": ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "intel": ("ZE_AFFINITY_MASK",),
}
#: Nodes that every GPU of a vendor needs, besides its own.
SHARED = {"nvidia": ("nvidiactl", "nvidia-uvm"), "amd": ("kfd",), "intel": ()}
#: PCI vendors in /sys/class/drm/renderD*/device/vendor.
_PCI = {"0x1002": "amd", "0x8086": "intel"}
#: Directories of /sys that a vendor's libraries read, besides that of the GPU.
_SYS = {"nvidia": (), "amd": ("/sys/class/kfd", "/sys/devices/virtual/kfd"), "intel": ()}
#: In every sandbox.
USUAL = frozenset(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))

#: The directory of the nodes for parts of a divided GPU. They are only ever read.
CAPABILITIES = "/dev/nvidia-caps/"
_NVIDIA_GPUS = "/proc/driver/nvidia/gpus"
_NVIDIA_CAPS = "/proc/driver/nvidia/capabilities"
_REQUEST = re.compile(r"(?:(nvidia|amd|intel):)?(\d{1,3}|all)(?::(\d{1,3}):(\d{1,3}))?")
_HOW = 'use "all", a number as in "0", or a vendor and a number as in "nvidia:0"'

_DRM = 226  # its major number
_MEMORY = "it reads or writes the memory, ports or messages of the whole host"
_TERMINAL = "it is a terminal or console of the host"
_INPUT = "it reads or makes key strokes and pointer events of the host"
_DISK = "it reads or writes a disk below its file system"
_MACHINE = "it controls the whole host"
_SCREEN = "it controls the screen"
#: Character devices that nobody can grant: major number, first and last minor number, reason.
_REFUSED_NUMBERS = (
    *((1, minor, minor, _MEMORY) for minor in (1, 2, 4, 6, 11, 12)),
    *((major, 0, 1 << 20, _TERMINAL) for major in (2, 3, 4, 5, 7, *range(136, 144))),
    (13, 0, 1 << 20, _INPUT),
    *((10, minor, minor, _INPUT) for minor in (223, 239, 1)),
    *((major, 0, 1 << 20, _DISK) for major in (9, 21, 90, 162)),
    *((10, minor, minor, _DISK) for minor in (234, 236, 237)),
    *((10, minor, minor, _MACHINE) for minor in (130, 144, 184, 196, 203, 224, 227, 231, 235, 242)),
    (10, 229, 229, "a file system that a command serves can block the programs that use it"),
    *((major, 0, 1 << 20, _MACHINE) for major in (89, 202, 203)),
    (189, 0, 1 << 20, "it is a whole USB device"),
    (29, 0, 1 << 20, _SCREEN),
    (_DRM, 0, 127, _SCREEN),
)
#: The same by the kernel's name: a class of /sys, or a driver of /proc/devices. Their numbers vary.
_REFUSED_NAMES = {
    "mem": "",  # by number: it has null and zero as well
    **dict.fromkeys(("tty", "vc", "vtconsole", "pts", "ptm"), _TERMINAL),
    **dict.fromkeys(("input", "hidraw", "hiddev", "uinput"), _INPUT),
    **dict.fromkeys(("nvme", "nvme-generic", "scsi_generic", "bsg", "mtd", "ubi", "raw", "sg"), _DISK),
    **dict.fromkeys(("watchdog", "vfio", "vfio-dev", "vfio-pci", "tpm", "tpmrm", "ipmi"), _MACHINE),
    **dict.fromkeys(("mei", "msr", "cpuid", "i2c-dev", "spidev", "gpio", "rpmb", "iommu"), _MACHINE),
    **dict.fromkeys(("usbmon", "usb_device"), "it is a whole USB device, or reads all of them"),
    **dict.fromkeys(("cpu_dma_latency", "snapshot", "userfaultfd"), _MACHINE),
    "vga_arbiter": _SCREEN,
    "uio": _MEMORY,
    "dax": _MEMORY,
}


class Gpu(Value):
    """One GPU: its number among those of its vendor, its own node, and its directory in /sys.

    `uuid` is NVIDIA's name of it (empty: unknown). `instances` are the parts of a divided GPU (MIG): the
    number of the GPU instance, that of the compute instance, and the nodes of both.
    """

    vendor: str
    number: int
    node: str
    uuid: str = ""
    sys: str = ""
    instances: tuple[tuple[int, int, tuple[str, str]], ...] = ()

    @property
    def name(self) -> str:
        """The name of it in a policy."""
        return f"{self.vendor}:{self.number}"


class GpuGrant(Value):
    """The nodes that one requested GPU needs, and the paths of /sys that its libraries read."""

    gpu: Gpu
    nodes: tuple[str, ...]
    reads: tuple[str, ...]
    #: Only a part of the GPU is granted. CUDA then has no number or known name for it.
    partial: bool = False


def checked_gpus(names: Iterable[object]) -> tuple[str, ...]:
    """Return the requests for GPUs: valid, sorted, without duplicates. "all" includes all others."""
    found = set()
    for name in names:
        vendor, number, instance, compute = _parts(name)
        words = [*([vendor] if vendor else []), number if number == "all" else str(int(number))]
        words += [str(int(part)) for part in (instance, compute) if part is not None]
        found.add(":".join(words))
    return ("all",) if "all" in found else tuple(sorted(found))


def _parts(name: object) -> tuple[str | None, str, str | None, str | None]:
    match = _REQUEST.fullmatch(name) if isinstance(name, str) and name.isascii() else None
    if match is None or (match[3] and (match[1] != "nvidia" or match[2] == "all")):
        raise PolicyError(f"gpu is {name!r}", why="it names no GPU", fix=_HOW)
    return match[1], match[2], match[3], match[4]


def gpus(root: str = "") -> tuple[Gpu, ...]:
    """Return the GPUs of this host, by vendor and number, as their drivers list them."""
    return (*_nvidia(root), *_rendering(root))


def _nvidia(root: str) -> Iterator[Gpu]:
    found = []
    for address in _names(root + _NVIDIA_GPUS):
        lines = _text(f"{root}{_NVIDIA_GPUS}/{address}/information").split("\n")
        facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        minor = facts.get("Device Minor", "")
        if minor.isascii() and minor.isdigit():
            uuid = facts.get("GPU UUID", "")
            known = re.fullmatch(r"GPU-[0-9a-f-]{36}", uuid)  # question marks until the GPU is first used
            found.append((int(minor), uuid if known else "", f"/sys/bus/pci/devices/{address}"))
    if not found:  # in a container that hides this part of /proc
        found = [(number, "", "") for number in _numbered(f"{root}/dev", "nvidia")]
    for number, uuid, sys in sorted(found):
        yield Gpu("nvidia", number, f"/dev/nvidia{number}", uuid, sys, tuple(_instances(root, number)))


def _instances(root: str, number: int) -> Iterator[tuple[int, int, tuple[str, str]]]:
    """Yield the instances of a divided GPU, from NVIDIA's tree of capabilities."""
    top = f"{root}{_NVIDIA_CAPS}/gpu{number}/mig"
    for instance in _numbered(top, "gi"):
        for compute in _numbered(f"{top}/gi{instance}", "ci"):
            nodes = [_capability(f"{top}/gi{instance}/{part}access") for part in ("", f"ci{compute}/")]
            if all(nodes):
                yield instance, compute, (nodes[0], nodes[1])


def _capability(path: str) -> str:
    found = re.search(r"^DeviceFileMinor: *(\d+)$", _text(path), re.MULTILINE)
    return f"{CAPABILITIES}nvidia-cap{found[1]}" if found else ""


def _rendering(root: str) -> Iterator[Gpu]:
    count = {"amd": 0, "intel": 0}
    found: list[Gpu] = []
    for number in _numbered(f"{root}/sys/class/drm", "renderD"):
        device = f"/sys/class/drm/renderD{number}/device"
        vendor = _PCI.get(_text(f"{root}{device}/vendor").strip())
        if vendor is not None:
            found.append(Gpu(vendor, count[vendor], f"/dev/dri/renderD{number}", sys=device))
            count[vendor] += 1
    yield from sorted(found, key=lambda gpu: (gpu.vendor, gpu.number))


def granted(requests: Sequence[str], root: str = "") -> tuple[GpuGrant, ...]:
    """Return the grants for these requests. Raises PolicyError for a GPU that this host does not have."""
    there = gpus(root)
    found: dict[tuple[str, str], GpuGrant] = {}
    for request in requests:
        for grant in _requested(request, there):
            key = grant.gpu.name, "" if not grant.partial else request
            found[key] = grant
    kept = [grant for key, grant in sorted(found.items()) if not key[1] or (key[0], "") not in found]
    return tuple(_with_reads(grant, root) for grant in kept)


def _requested(request: str, there: Sequence[Gpu]) -> Iterator[GpuGrant]:
    vendor, number, instance, compute = _parts(request)
    here = [gpu for gpu in there if vendor in (None, gpu.vendor)]
    if number != "all":
        here = [gpu for gpu in here if gpu.number == int(number)]
    if not here:
        names = ", ".join(gpu.name for gpu in there)
        raise PolicyError(
            f"gpu is {request!r}",
            why=f"this host has {names}" if there else "staddle finds no GPU here, or no driver for one",
            fix="name one of these" if there else "load the driver, and see `staddle doctor`",
        )
    if number != "all" and len(here) > 1:
        raise PolicyError(
            f"gpu is {request!r}",
            why=f"it could be {' or '.join(gpu.name for gpu in here)}",
            fix=f"write {here[0].name!r}",
        )
    for gpu in here:
        nodes = [gpu.node, *(f"/dev/{name}" for name in SHARED[gpu.vendor])]
        if instance is None:
            parts = dict.fromkeys(node for _, _, caps in gpu.instances for node in caps)
            yield GpuGrant(gpu, (*nodes, *parts), ())
            continue
        caps = next(
            (c for gi, ci, c in gpu.instances if (gi, ci) == (int(instance), int(compute or 0))), None
        )
        if caps is None:
            names = ", ".join(f"{gpu.name}:{gi}:{ci}" for gi, ci, _ in gpu.instances)
            raise PolicyError(
                f"gpu is {request!r}",
                why=f"{gpu.name} is divided into {names}" if names else f"{gpu.name} is not divided (MIG)",
                fix="name one of these" if names else f"write {gpu.name!r}",
            )
        yield GpuGrant(gpu, (*nodes, *caps), (), partial=True)


def _with_reads(grant: GpuGrant, root: str) -> GpuGrant:
    paths = [*_SYS[grant.gpu.vendor], grant.gpu.sys]
    if grant.gpu.vendor != "nvidia":
        number = grant.gpu.node.removeprefix("/dev/dri/renderD")
        paths.append(f"/sys/dev/char/{_DRM}:{number}")
    return grant.replace(reads=tuple(path for path in paths if path and os.path.isdir(root + path)))


def variables(grants: Sequence[GpuGrant]) -> dict[str, str]:
    """Return the variables that select the granted GPUs.

    Only these have nodes that can be opened, so the libraries number them from 0. NVIDIA's names of GPUs do
    not depend on that. CUDA finds the parts of a divided GPU by itself.
    """
    found = {}
    for vendor, names in VARIABLES.items():
        mine = [grant for grant in grants if grant.gpu.vendor == vendor]
        if not mine or any(grant.partial or grant.gpu.instances for grant in mine):
            continue
        known = all(grant.gpu.uuid for grant in mine)
        value = ",".join(grant.gpu.uuid if known else str(place) for place, grant in enumerate(mine))
        found.update(dict.fromkeys(names, value))
    return found


def refusal(mode: int, device: int, root: str = "") -> str:
    """Return why nobody can grant a file of this mode and device number; empty if one can."""
    if stat.S_ISBLK(mode):
        return "it is a block device: " + _DISK
    if not stat.S_ISCHR(mode):
        return "it is not a character device"
    major, minor = os.major(device), os.minor(device)
    for number, first, last, why in _REFUSED_NUMBERS:
        if major == number and first <= minor <= last:
            return why
    return next(
        (why for name in _kernel_names(major, minor, root) if (why := _REFUSED_NAMES.get(name, ""))), ""
    )


def _kernel_names(major: int, minor: int, root: str) -> Iterator[str]:
    """Yield the kernel's names for a device: its class, and its driver."""
    try:
        yield os.path.basename(os.readlink(f"{root}/sys/dev/char/{major}:{minor}/subsystem"))
    except OSError:
        pass  # not every driver has a class
    found = re.search(r"^DEVNAME=(.+)$", _text(f"{root}/sys/dev/char/{major}:{minor}/uevent"), re.MULTILINE)
    if found:
        yield os.path.basename(found[1]).rstrip("0123456789")
    listed, _, _ = _text(f"{root}/proc/devices").partition("Block devices:")
    for line in listed.split("\n"):
        number, _, name = line.strip().partition(" ")
        if number == str(major):
            yield name


def _numbered(directory: str, prefix: str) -> list[int]:
    found = (name.removeprefix(prefix) for name in _names(directory) if name.startswith(prefix))
    return sorted(int(number) for number in found if number.isascii() and number.isdigit())


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []  # the driver is not loaded


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
