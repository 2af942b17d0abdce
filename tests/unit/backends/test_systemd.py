"""The systemd backend without a systemd: what it would ask for, and whom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle.backends import namespaces, systemd
from staddle.inside.systemd_unit import LAUNCHER, WITNESS
from staddle.ipc import namespace_spec
from staddle.ipc.exec_spec import decode
from staddle.linux import landlock
from staddle.linux.seccomp import program
from staddle.linux.systemd_manager import Manager, Obstacle, delegated_controllers, find
from staddle.mounts.from_plan import lay_out
from staddle.policy.limits import Limits
from staddle.policy.network import Network
from staddle.policy.plan import Plan, Text, Variable
from tests.unit.mounts.plans import DictHost, hidden, plan, read, write

USER = Manager("user", "/usr/bin/systemd-run", {"XDG_RUNTIME_DIR": "/run/user/1000"})
ROOT = Manager("system", "/usr/bin/systemd-run", {}, 0x70000001)
ODD = '/w/a b:c"d\\e%h$HOME\n'


# The unit.


def asked(limits: Limits | None = None, found: Manager = USER) -> list[str]:
    """The words that ask for a unit."""
    return [os.fsdecode(word) for word in systemd.unit(limits or Limits(), found).starter]


def test_limits_are_properties_and_what_the_control_group_must_say() -> None:
    limits = Limits(memory="64M", cpu=0.5, processes=20)
    words = " ".join(asked(limits))
    for setting in (
        "MemoryMax t 67108864",
        "MemorySwapMax t 0",
        "CPUQuotaPerSecUSec t 500000",
        "TasksMax t 22",
    ):
        assert setting in words
    bounds = {(b"memory.max", 64 << 20), (b"cpu.max", 500), (b"pids.max", 22)}
    assert set(systemd.unit(limits, USER).bounds) == bounds
    assert systemd.bounds(Limits()) == {}


def test_the_manager_is_asked_for_a_scope_around_the_launcher() -> None:
    words = asked()
    assert words[:2] == ["/usr/bin/busctl", "--user"]
    assert asked(found=ROOT)[1] == "--system"
    at = words.index("ssa(sv)a(sa(sv))")
    name, mode, count, *rest = words[at + 1 :]
    assert name.startswith("staddle-")
    assert name.endswith(".scope")
    numbers = [os.fsdecode(LAUNCHER), os.fsdecode(WITNESS)]
    assert (mode, rest[:5], rest[-1]) == ("fail", ["PIDs", "au", "2", *numbers], "0")
    assert int(count) == 1 + len(systemd.properties(Limits()))
    assert name != asked()[at + 1], "another name for each"


def test_nothing_of_the_policy_is_in_the_message_to_the_manager() -> None:
    made = plan(
        grants=(write(ODD), read("/secret-place")),
        texts=(Text("/etc/secret-text", b"secret-content", "test"),),
        variables=(Variable("TOKEN", "secret-value", "test", secret=True),),
        cwd=ODD,
    )
    unit = systemd.unit(made.limits, USER)
    layout = lay_out(made, DictHost())
    said = namespaces.spec(made, layout, None, ("secret-program",), status=9, unit=unit)
    everything = b"\0".join((*said.starter, *said.starter_environment))
    assert said.starter == unit.starter
    assert b"secret" not in everything
    assert b"TOKEN" not in everything
    assert os.fsencode(ODD) not in everything
    assert namespace_spec.decode(namespace_spec.encode(said)) == said


def test_a_limit_on_cpu_narrows_the_processors_and_refuses_nothing() -> None:
    """`nproc` shows the limit; the unit holds it, so that a program may choose among its processors."""
    made = plan(limits=Limits(cpu=1))
    unit = systemd.unit(made.limits, USER)
    said = namespaces.spec(made, lay_out(made, DictHost()), None, ("true",), status=9, unit=unit)
    assert said.processors == 1
    assert decode(said.command).filter == program("namespaces")


def test_a_launch_can_be_given_up_and_is_never_started_here() -> None:
    before = set(os.listdir("/proc/self/fd"))
    made = plan(limits=Limits(memory="64M"))
    unit = systemd.unit(made.limits, USER)
    launch = namespaces.launch(made, lay_out(made, DictHost()), None, ["true"], unit)
    assert (launch.argv[4], launch.here, launch.limited) == ("namespaces", None, None)
    launch.close()
    assert launch.status is not None
    os.close(launch.status)
    assert set(os.listdir("/proc/self/fd")) <= before


# What is missing.


def gaps(made: Plan, found: Manager = USER) -> dict[str, bool]:
    return {gap.protection: gap.documented for gap in systemd.gaps(made, lay_out(made, DictHost()), found)}


def test_an_ordinary_plan_has_no_gap() -> None:
    assert gaps(plan(grants=(read("/usr"), write("/w")))) == {}


def test_what_it_cannot_hold_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "delegated_controllers", lambda scope: frozenset({"memory"}))
    limits = Limits(memory="1G", cpu=1, processes=5, disk="1G")
    made = plan(
        limits=limits,
        grants=(write("/w"),),
        hidden=(hidden("/w/x", "missing"),),
    )
    assert gaps(made) == {
        "deny": False,
        "limits.cpu": False,
        "limits.processes": False,
        "limits.disk": False,
    }


def test_an_open_network_needs_landlock_scopes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 5)
    assert gaps(plan(network=Network.open())) == {"sockets": True}
    monkeypatch.setattr(landlock, "abi", lambda: 6)
    assert gaps(plan(network=Network.open())) == {}


def test_controllers_are_those_of_the_managers_own_part(tmp_path: Path) -> None:
    own = tmp_path / "user.slice/user-7.slice/user@7.service"
    own.mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (own / "cgroup.controllers").write_text("memory\n")
    assert delegated_controllers("user", 7, str(tmp_path)) == {"memory"}
    assert delegated_controllers("system", 0, str(tmp_path)) == {"cpu", "memory", "pids"}
    assert delegated_controllers("user", 8, str(tmp_path)) == frozenset()


def test_the_steps_name_everything_and_no_secret() -> None:
    made = plan(
        grants=(write("/w"),),
        variables=(Variable("TOKEN", "hush", "env", secret=True),),
        limits=Limits(processes=20),
    )
    for found in (USER, ROOT):
        told = "\n".join(step.action for step in systemd.steps(made, lay_out(made, DictHost()), found))
        assert f"ask the {found.scope} manager for a transient scope" in told
        assert "unit property TasksMax=22" in told
        assert "/w" in told
        assert "hush" not in told
        assert "filter" in told
    assert "no account has" in told


def test_as_root_it_says_whose_owner_is_translated() -> None:
    made = plan(grants=(write("/srv/w"), write("/opt/w"), read("/usr"), read("/home/u")))
    for found, translated in ((USER, set()), (ROOT, {"/srv/w", "/opt/w", "/home/u"})):
        steps = systemd.steps(made, lay_out(made, DictHost()), found)
        told = {step.action.split()[1] for step in steps if "its owner shown as" in step.action}
        assert told == translated


# The manager.


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with everything; programs are root's, or ours where these tests are run by somebody else."""
    for name in ("usr/bin", "run/systemd/system", "run/user/7/systemd", "run/dbus", "proc/1"):
        (tmp_path / name).mkdir(parents=True)
    program = tmp_path / "usr/bin/systemd-run"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for name in ("run/user/7/systemd/private", "run/user/7/bus", "run/dbus/system_bus_socket"):
        (tmp_path / name).touch()
    (tmp_path / "proc/1/comm").write_text("init\n")
    return tmp_path


@pytest.fixture(autouse=True)
def _trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    from staddle.linux import programs

    monkeypatch.setattr(programs, "_problem", lambda *_: "")


def test_an_ordinary_user_gets_his_own_manager(host: Path) -> None:
    found = find(7, {}, str(host))
    assert isinstance(found, Manager)
    assert (found.scope, found.environment, found.unprivileged_uid) == (
        "user",
        {"XDG_RUNTIME_DIR": "/run/user/7"},
        -1,
    )
    given = {"XDG_RUNTIME_DIR": "/run/user/7", "DBUS_SESSION_BUS_ADDRESS": "unix:path=/x", "TOKEN": "secret"}
    found = find(7, given, str(host))
    assert isinstance(found, Manager)
    assert found.environment.keys() == {"XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"}


def test_root_gets_the_systems_manager_and_another_id(host: Path) -> None:
    found = find(0, {}, str(host))
    assert isinstance(found, Manager)
    assert found.scope == "system"
    assert found.unprivileged_uid > 0


@pytest.mark.parametrize(
    ("gone", "uid", "word"),
    [
        ("usr/bin/systemd-run", 7, "not installed"),
        ("run/systemd/system", 7, "does not run this machine: PID 1 is 'init'"),
        ("run/user/7/systemd/private", 7, "no user manager runs for uid 7"),
        ("run/user/7/bus", 7, "no message bus"),
        ("run/dbus/system_bus_socket", 0, "no message bus"),
    ],
)
def test_why_there_is_no_manager(host: Path, gone: str, uid: int, word: str) -> None:
    path = host / gone
    path.rmdir() if path.is_dir() else path.unlink()
    found = find(uid, {}, str(host))
    assert isinstance(found, Obstacle)
    assert word in found.why
    assert found.fix
