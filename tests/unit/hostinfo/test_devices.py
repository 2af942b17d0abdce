"""GPUs are found in a stand-in tree of /proc and /sys; the table of devices that nobody can grant."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from staddle.errors import PolicyError
from staddle.hostinfo import devices

UUID = "GPU-12345678-9abc-def0-1234-56789abcdef0"


def write(root: Path, path: str, content: str = "") -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def nvidia(root: Path, number: int, uuid: str = "", *, address: str | None = None) -> None:
    address = address or f"0000:{number:02x}:00.0"
    facts = f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 38\nGPU UUID: \t {uuid}\nDevice Minor: \t {number}\n"
    write(root, f"/proc/driver/nvidia/gpus/{address}/information", facts)
    (root / f"sys/bus/pci/devices/{address}").mkdir(parents=True, exist_ok=True)


def divided(root: Path, number: int, instance: int, compute: int, minors: tuple[int, int]) -> None:
    top = f"/proc/driver/nvidia/capabilities/gpu{number}/mig/gi{instance}"
    for path, minor in zip((top, f"{top}/ci{compute}"), minors, strict=True):
        write(root, f"{path}/access", f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")


def render(root: Path, number: int, vendor: str) -> None:
    write(root, f"/sys/class/drm/renderD{number}/device/vendor", f"{vendor}\n")
    (root / f"sys/dev/char/226:{number}").mkdir(parents=True, exist_ok=True)


def test_a_host_without_a_gpu_has_none(tmp_path: Path) -> None:
    assert devices.gpus(str(tmp_path)) == ()
    with pytest.raises(PolicyError) as caught:
        devices.granted(("all",), str(tmp_path))
    assert "finds no GPU" in caught.value.why
    assert caught.value.fix


def test_nvidia_gpus_have_the_number_of_their_node_not_of_their_slot(tmp_path: Path) -> None:
    nvidia(tmp_path, 1, UUID, address="0000:05:00.0")
    nvidia(tmp_path, 0, "GPU-????????-????-????-????-????????????", address="0000:81:00.0")
    first, second = devices.gpus(str(tmp_path))
    assert (first.name, first.node, first.uuid) == ("nvidia:0", "/dev/nvidia0", "")
    assert (second.name, second.node, second.uuid) == ("nvidia:1", "/dev/nvidia1", UUID)
    (grant,) = devices.granted(("nvidia:1",), str(tmp_path))
    assert grant.nodes == ("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")
    assert grant.reads == ("/sys/bus/pci/devices/0000:05:00.0",)
    assert devices.variables([grant]) == {"CUDA_VISIBLE_DEVICES": UUID, "NVIDIA_VISIBLE_DEVICES": UUID}


def test_nodes_name_the_gpus_where_proc_is_hidden(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"):
        write(tmp_path, f"/dev/{name}")
    assert [gpu.node for gpu in devices.gpus(str(tmp_path))] == ["/dev/nvidia0", "/dev/nvidia12"]
    nvidia(tmp_path, 0, UUID)
    assert [gpu.node for gpu in devices.gpus(str(tmp_path))] == ["/dev/nvidia0"], "the driver knows better"


def test_gpus_without_a_known_name_are_counted_as_the_libraries_see_them(tmp_path: Path) -> None:
    for number in range(3):
        nvidia(tmp_path, number)
    grants = devices.granted(("nvidia:1", "nvidia:2"), str(tmp_path))
    assert devices.variables(grants)["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_the_number_alone_names_a_gpu_only_if_one_vendor_has_it(tmp_path: Path) -> None:
    nvidia(tmp_path, 0)
    render(tmp_path, 128, "0x8086")
    with pytest.raises(PolicyError) as caught:
        devices.granted(("0",), str(tmp_path))
    assert caught.value.why == "it could be nvidia:0 or intel:0"
    render(tmp_path, 129, "0x8086")
    assert [grant.gpu.name for grant in devices.granted(("1",), str(tmp_path))] == ["intel:1"]


@pytest.mark.parametrize("asked", [("0", "nvidia:0"), ("nvidia:0", "nvidia:all"), ("all",)])
def test_a_gpu_that_is_named_twice_is_granted_once(tmp_path: Path, asked: tuple[str, ...]) -> None:
    nvidia(tmp_path, 0)
    assert len(devices.granted(devices.checked_gpus(asked), str(tmp_path))) == 1


def test_a_gpu_that_is_not_there_is_an_error_that_names_the_others(tmp_path: Path) -> None:
    nvidia(tmp_path, 0)
    with pytest.raises(PolicyError) as caught:
        devices.granted(("nvidia:3",), str(tmp_path))
    assert caught.value.why == "this host has nvidia:0"
    with pytest.raises(PolicyError):
        devices.granted(("amd:0",), str(tmp_path))


def test_amd_and_intel_gpus_are_render_nodes(tmp_path: Path) -> None:
    for number, vendor in ((128, "0x8086"), (129, "0x1002"), (130, "0x1002"), (131, "0x10de")):
        render(tmp_path, number, vendor)
    (tmp_path / "sys/class/kfd").mkdir()
    found = {gpu.name: gpu.node for gpu in devices.gpus(str(tmp_path))}
    assert found == {
        "amd:0": "/dev/dri/renderD129",
        "amd:1": "/dev/dri/renderD130",
        "intel:0": "/dev/dri/renderD128",
    }
    (amd,) = devices.granted(("amd:1",), str(tmp_path))
    assert amd.nodes == ("/dev/dri/renderD130", "/dev/kfd")
    assert "/sys/class/kfd" in amd.reads
    assert "/sys/dev/char/226:130" in amd.reads
    assert devices.variables([amd]) == {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}
    (intel,) = devices.granted(("intel:0",), str(tmp_path))
    assert intel.nodes == ("/dev/dri/renderD128",)
    assert devices.variables([intel]) == {"ZE_AFFINITY_MASK": "0"}


def test_a_part_of_a_divided_gpu_has_the_nodes_of_its_instances(tmp_path: Path) -> None:
    nvidia(tmp_path, 0, UUID)
    divided(tmp_path, 0, 1, 0, (12, 13))
    divided(tmp_path, 0, 2, 0, (21, 22))
    (part,) = devices.granted(("nvidia:0:2:0",), str(tmp_path))
    caps = ("/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22")
    assert part.nodes == ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", *caps)
    assert devices.variables([part]) == {}, "CUDA finds the part by its nodes"
    (whole,) = devices.granted(("nvidia:0", "nvidia:0:2:0"), str(tmp_path))
    assert not whole.partial
    assert len(whole.nodes) == 7
    with pytest.raises(PolicyError) as caught:
        devices.granted(("nvidia:0:3:0",), str(tmp_path))
    assert caught.value.why == "nvidia:0 is divided into nvidia:0:1:0, nvidia:0:2:0"


@pytest.mark.parametrize(
    "name",
    [
        *("", "x", "-1", "nvidia", "nvidia:", "nvidia:x", "nvidia:0:1", "all:0", "amd:0:1:0"),
        *("nvidia:all:1:0", "0 ", "0\n", "1000", "\u0663", "../0", "nvidia:0,1", "ALL", 0, None, b"0"),
    ],
)
def test_an_odd_name_of_a_gpu_is_refused(name: object) -> None:
    with pytest.raises(PolicyError) as caught:
        devices.checked_gpus([name])
    assert caught.value.why == "it names no GPU"
    assert "nvidia:0" in caught.value.fix


def test_names_of_gpus_have_one_spelling() -> None:
    assert devices.checked_gpus(["nvidia:00", "nvidia:0", "1"]) == ("1", "nvidia:0")
    assert devices.checked_gpus(["nvidia:0", "all"]) == ("all",)


@pytest.mark.parametrize(
    ("major", "minor", "word"),
    [
        *((1, minor, "memory") for minor in (1, 2, 4, 11)),
        *((major, 0, "terminal") for major in (4, 5, 7, 136, 143)),
        (5, 2, "terminal"),
        *((13, minor, "pointer") for minor in (0, 63, 64)),
        (10, 223, "pointer"),
        (10, 229, "file system"),
        *((10, minor, "disk") for minor in (234, 236, 237)),
        (10, 235, "host"),
        (21, 0, "disk"),
        (226, 0, "screen"),
        (29, 0, "screen"),
        (189, 3, "USB"),
    ],
)
def test_devices_that_nobody_can_grant(tmp_path: Path, major: int, minor: int, word: str) -> None:
    assert word in devices.refusal(stat.S_IFCHR, os.makedev(major, minor), str(tmp_path))


@pytest.mark.parametrize(("major", "minor"), [(1, 3), (1, 7), (10, 200), (10, 232), (195, 0), (226, 128)])
def test_devices_that_a_policy_can_grant(tmp_path: Path, major: int, minor: int) -> None:
    assert not devices.refusal(stat.S_IFCHR, os.makedev(major, minor), str(tmp_path))


@pytest.mark.parametrize("kind", [stat.S_IFBLK, stat.S_IFIFO, stat.S_IFREG, stat.S_IFSOCK, stat.S_IFDIR])
def test_only_character_devices_can_be_granted(tmp_path: Path, kind: int) -> None:
    assert devices.refusal(kind, os.makedev(195, 0), str(tmp_path))


def test_devices_with_varying_numbers_are_known_by_the_names_of_the_kernel(tmp_path: Path) -> None:
    number = os.makedev(245, 0)
    assert not devices.refusal(stat.S_IFCHR, number, str(tmp_path))
    listed = "Character devices:\n  1 mem\n245 hidraw\n\nBlock devices:\n195 hidraw\n"
    write(tmp_path, "/proc/devices", listed)
    assert "key strokes" in devices.refusal(stat.S_IFCHR, number, str(tmp_path))
    assert not devices.refusal(stat.S_IFCHR, os.makedev(195, 0), str(tmp_path)), "that is a block device"
    (tmp_path / "sys/dev/char/240:0").mkdir(parents=True)
    (tmp_path / "sys/dev/char/240:0/subsystem").symlink_to("../../../../class/nvme")
    assert "disk" in devices.refusal(stat.S_IFCHR, os.makedev(240, 0), str(tmp_path))
    write(tmp_path, "/sys/dev/char/180:96/uevent", "DEVNAME=usb/hiddev0\n")
    assert "key strokes" in devices.refusal(stat.S_IFCHR, os.makedev(180, 96), str(tmp_path))
    write(tmp_path, "/sys/dev/char/10:256/uevent", "MAJOR=10\nMINOR=256\nDEVNAME=vga_arbiter\n")
    assert "screen" in devices.refusal(stat.S_IFCHR, os.makedev(10, 256), str(tmp_path))
