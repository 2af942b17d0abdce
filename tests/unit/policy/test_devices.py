"""Requests for GPUs and devices: valid values, what the plan makes of them, and what wins over them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle import Policy
from staddle.cli.options import RUNNING, asked_of, parse
from staddle.errors import PolicyError
from staddle.hostinfo import devices
from staddle.mounts.from_plan import lay_out
from staddle.mounts.host import Host
from staddle.mounts.operations import DeviceNode, Devices, Seal, decode_operations, encode_operations
from staddle.policy import installation
from staddle.policy.compiler import compile
from staddle.policy.plan import Device, Plan


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with one GPU, whose nodes are devices that every host has."""
    card = devices.Gpu("nvidia", 0, "/dev/full", "GPU-12345678-9abc-def0-1234-56789abcdef0")
    monkeypatch.setattr(devices, "gpus", lambda root="": (card,))
    monkeypatch.setitem(devices.SHARED, "nvidia", ("zero",))


def plan(policy: Policy, tmp_path: Path) -> Plan:
    return compile(policy, cwd="/", home=str(tmp_path))


def nodes(made: Plan) -> list[str]:
    return [device.path for device in made.devices]


def test_no_policy_grants_a_device_by_default(tmp_path: Path) -> None:
    for policy in (Policy(), Policy.agent(), Policy.coding_agent(tmp_path)):
        assert policy.gpu == policy.devices == ()
        assert plan(policy, tmp_path).devices == ()


def test_requests_are_values_without_order_and_repetition() -> None:
    one = (
        Policy.agent()
        .with_gpu("nvidia:1", "nvidia:0")
        .with_devices("/dev/b")
        .with_devices("/dev/a", "/dev//a")
    )
    two = (
        Policy.agent().with_devices("/dev/a", "/dev/b").with_gpu("nvidia:0").with_gpu("nvidia:1", "nvidia:1")
    )
    assert one == two
    assert hash(one) == hash(two)
    assert one != Policy.agent()
    assert one.gpu == ("nvidia:0", "nvidia:1")
    assert one.devices == ("/dev/a", "/dev/b")
    assert Policy.agent().with_gpu("nvidia:0").with_gpu("all").gpu == ("all",)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/dev/nvidia*", "each device has to be named"),
        ("/dev/nvidia?", "each device has to be named"),
        ("/dev/nvidia[01]", "each device has to be named"),
        ("/dev", "not the path of a device"),
        ("/dev/", "not the path of a device"),
        ("nvidia0", "not the path of a device"),
        ("/devices/x", "not the path of a device"),
        ("/etc/passwd", "not the path of a device"),
        ("~/x", "not the path of a device"),
        ("/dev/../etc/passwd", "'..' can point to another place"),
        ("/dev/pts/0", "every sandbox has its own /dev/pts"),
        ("/dev/ptmx", "every sandbox has its own /dev/ptmx"),
        ("/dev/shm/x", "every sandbox has its own /dev/shm"),
        ("/dev/console", "every sandbox has its own /dev/console"),
        ("/dev/.staddle/x", "every sandbox has its own /dev/.staddle"),
        ("", "it is empty"),
        ("/dev/a\0b", "NUL"),
        (7, "it is not a path"),
    ],
)
def test_an_odd_path_of_a_device_is_refused(path: object, why: str) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy.agent().with_devices(path)  # type: ignore[arg-type]
    assert why in caught.value.why


def test_one_text_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(PolicyError, match="letter by letter"):
        Policy(gpu="all")
    with pytest.raises(PolicyError, match="letter by letter"):
        Policy(devices="/dev/kvm")


@pytest.mark.parametrize("name", ["", "cuda:0", "0:1", "-1"])
def test_an_odd_gpu_is_refused_when_the_policy_is_made(name: str) -> None:
    with pytest.raises(PolicyError, match="it names no GPU"):
        Policy.agent().with_gpu(name)


def test_a_gpu_where_there_is_none_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda root="": ())
    for name in ("all", "0", "nvidia:0"):
        with pytest.raises(PolicyError) as caught:
            plan(Policy.agent().with_gpu(name), tmp_path)
        assert "finds no GPU" in caught.value.why
        assert "doctor" in caught.value.fix


@pytest.mark.usefixtures("gpu")
def test_the_plan_has_the_nodes_the_variables_and_a_warning(tmp_path: Path) -> None:
    made = plan(Policy.agent().with_gpu("0"), tmp_path)
    assert made.devices == (
        Device("/dev/full", 1, 7, "gpu 'nvidia:0'"),
        Device("/dev/zero", 1, 5, "gpu 'nvidia:0'"),
    )
    assert made.environment()["CUDA_VISIBLE_DEVICES"].startswith("GPU-1234")
    notes = " ".join(note.text for note in made.notes)
    assert "driver" in notes
    assert "no limit holds for the memory" in notes
    headings = dict(made.explain())
    assert ("/dev/full (1:7)", "gpu 'nvidia:0'") in headings[
        "devices of the host, with the system calls of their drivers"
    ]


@pytest.mark.usefixtures("gpu")
def test_variables_of_the_policy_win_and_an_empty_environment_stays_empty(tmp_path: Path) -> None:
    policy = Policy.agent().with_gpu("all")
    made = plan(policy.with_env(CUDA_VISIBLE_DEVICES="7"), tmp_path)
    assert made.environment()["CUDA_VISIBLE_DEVICES"] == "7"
    assert "CUDA_VISIBLE_DEVICES" not in plan(policy.with_environment("empty"), tmp_path).environment()


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("denied", ["/dev/full", "/dev/zero", "/dev"])
def test_a_deny_of_one_node_leaves_out_the_gpu(denied: str, tmp_path: Path) -> None:
    made = plan(Policy.agent().with_gpu("all").with_deny(denied), tmp_path)
    assert made.devices == ()
    assert "CUDA_VISIBLE_DEVICES" not in made.environment()
    assert any("wins" in note.text for note in made.notes)


@pytest.mark.usefixtures("gpu")
def test_a_deny_by_a_link_and_of_the_installation_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to("/dev/full")
    policy = Policy.agent().with_gpu("all")
    assert plan(policy.with_deny(tmp_path / "link"), tmp_path).devices == ()
    monkeypatch.setattr(installation, "denied", lambda: ("/dev/full",))
    assert plan(policy, tmp_path).devices == ()


def test_devices_of_every_sandbox_need_no_grant(tmp_path: Path) -> None:
    made = plan(Policy.agent().with_devices("/dev/null", "/dev/full"), tmp_path)
    assert made.devices == ()
    assert any(note.text == "every sandbox has it" for note in made.notes)


@pytest.mark.parametrize(("path", "why"), [("/dev/tty", "terminal"), ("/dev/none", "does not exist")])
def test_what_the_compiler_refuses(path: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        plan(Policy.agent().with_devices(path), tmp_path)
    assert why in caught.value.why


@pytest.mark.usefixtures("gpu")
def test_the_layout_adds_the_nodes_before_dev_is_sealed(tmp_path: Path) -> None:
    made = plan(Policy.agent().with_gpu("all"), tmp_path)
    operations = lay_out(made, Host()).operations
    where = [place for place, each in enumerate(operations) if isinstance(each, DeviceNode)]
    made_at = next(place for place, each in enumerate(operations) if isinstance(each, Devices))
    sealed_at = next(
        place for place, each in enumerate(operations) if isinstance(each, Seal) and each.path == "/dev"
    )
    assert len(where) == 2
    assert made_at < min(where) <= max(where) < sealed_at


def test_a_device_survives_its_way_to_another_process() -> None:
    (row,) = encode_operations([DeviceNode("/dev/nvidia0", 195, 0, "gpu")])
    assert decode_operations([row]) == (DeviceNode("/dev/nvidia0", 195, 0, ""),)
    assert "195:0" in str(DeviceNode("/dev/nvidia0", 195, 0, ""))


def test_a_policy_file_names_gpus_and_devices(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('gpu = ["nvidia:0"]\ndevices = ["/dev/kvm"]\n')
    os.chmod(file, 0o644)
    policy = Policy.from_file(file)
    assert (policy.gpu, policy.devices) == (("nvidia:0",), ("/dev/kvm",))
    for wrong in ('gpu = "all"', "gpu = [0]", 'gpu = ["x"]', 'devices = ["/etc/passwd"]', "gpu = true"):
        file.write_text(wrong)
        with pytest.raises(PolicyError, match="the policy file"):
            Policy.from_file(file)


@pytest.mark.parametrize("line", ['gpu = ["all"]', 'devices = ["/dev/kvm"]'])
def test_a_file_in_the_workspace_grants_no_device(line: str, tmp_path: Path) -> None:
    file = tmp_path / "staddle.toml"
    file.write_text(line)
    os.chmod(file, 0o644)
    with pytest.raises(PolicyError, match="may narrow the policy"):
        Policy.from_file(file, workspace=tmp_path)


def test_options_of_the_command_line() -> None:
    words = ["--gpu", "0", "--gpu", "nvidia:1", "--device", "/dev/kvm"]
    policy = asked_of(Policy.agent(), parse(words, RUNNING, "run"))
    assert (policy.gpu, policy.devices) == (("0", "nvidia:1"), ("/dev/kvm",))
    with pytest.raises(PolicyError, match="names no GPU"):
        asked_of(Policy.agent(), parse(["--gpu", "cuda"], RUNNING, "run"))
