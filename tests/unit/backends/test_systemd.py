"""The systemd backend without a systemd: what it would ask for, and whom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle.backends import systemd
from staddle.ipc import systemd_spec
from staddle.ipc.exec_spec import decode
from staddle.linux.systemd_manager import Manager, Obstacle, delegated_controllers, find
from staddle.mounts.from_plan import lay_out
from staddle.policy.limits import Limits
from staddle.policy.network import Network
from staddle.policy.plan import Plan, Text, Variable
from tests.unit.mounts.plans import DictHost, guard, hidden, plan, read, scratch, write

USER = Manager("user", "/usr/bin/systemd-run", {"XDG_RUNTIME_DIR": "/run/user/1000"})
ROOT = Manager("system", "/usr/bin/systemd-run", {}, 0x70000001)
ODD = '/w/a b:c"d\\e%h$HOME\n'


def properties(made: Plan, scope: str = "user") -> set[str]:
    return set(systemd.properties(made, scope))  # type: ignore[arg-type]


# The unit.


def test_the_network_of_the_unit_is_its_own_unless_it_is_open() -> None:
    for network in (Network.deny(), Network.loopback()):
        assert "PrivateNetwork=yes" in properties(plan(network=network))
        assert "net" in systemd.namespaces(plan(network=network), "user")
    assert "PrivateNetwork=yes" not in properties(plan(network=Network.open()))
    assert "net" not in systemd.namespaces(plan(network=Network.open()), "user")


def test_a_user_manager_needs_a_user_namespace_and_root_keeps_few_rights() -> None:
    assert "PrivateUsers=yes" in properties(plan())
    assert "PrivateUsers=yes" not in properties(plan(), "system")
    (bounding,) = (item for item in properties(plan(), "system") if item.startswith("CapabilityBoundingSet="))
    assert "CAP_SYS_MODULE" not in bounding
    assert "~" not in bounding


@pytest.mark.parametrize("scope", ["user", "system"])
def test_properties_that_do_nothing_in_a_user_manager_are_not_used(scope: str) -> None:
    nothing = (
        "ProtectProc",
        "ProcSubset",
        "IPAddressDeny",
        "SocketBindDeny",
        "DevicePolicy",
        "RestrictFileSystems",
    )
    assert not [item for item in properties(plan(), scope) if item.startswith(nothing)]


def test_limits_are_properties_and_what_the_control_group_must_say() -> None:
    limits = Limits(memory="64M", cpu=0.5, processes=20)
    assert {"MemoryMax=67108864", "MemorySwapMax=0", "CPUQuota=50%", "TasksMax=22"} <= properties(
        plan(limits=limits)
    )
    asked = {(bound.file, bound.most) for bound in systemd.bounds(limits).values()}
    assert asked == {("memory.max", 64 << 20), ("cpu.max", 500), ("pids.max", 22)}
    assert systemd.bounds(Limits()) == {}


def test_the_unit_is_named_waited_for_and_collected() -> None:
    words = systemd.command_line(USER, "staddle-x", ["A=b"], ["/usr/bin/python3", "-I"])
    assert words[0] == "/usr/bin/systemd-run"
    assert {"--user", "--pipe", "--wait", "--collect", "--unit=staddle-x", "--property=A=b"} <= set(words)
    assert not {"--pty", "-t", "--scope"} & set(words)
    assert words[-3:] == ("--", "/usr/bin/python3", "-I")
    assert "--system" in systemd.command_line(ROOT, "x", [], ["y"])


def test_dollars_in_the_helpers_path_are_not_expanded_by_the_manager() -> None:
    """systemd expands `$` from the manager's environment, and nothing else: measured on 252."""
    assert systemd.escaped("/home/$USER/${x}/%h \\\"'\n") == "/home/$$USER/$${x}/%h \\\"'\n"
    assert systemd.command_line(USER, "x", [], ["/opt/$HOME/python"])[-1] == "/opt/$$HOME/python"


# The orders.


def asked(
    made: Plan, found: Manager = USER, command: tuple[str, ...] = ("true",)
) -> systemd_spec.SystemdSpec:
    return systemd.spec(made, lay_out(made, DictHost()), found, command, status=9)


def test_nothing_of_the_policy_is_on_the_command_line_of_the_unit() -> None:
    made = plan(
        grants=(write(ODD), read("/secret-place")),
        texts=(Text("/etc/secret-text", b"secret-content", "test"),),
        variables=(Variable("TOKEN", "secret-value", "test", secret=True),),
        cwd=ODD,
    )
    said = asked(made, command=("secret-program", "secret-argument"))
    everything = b"\0".join((*said.starter, *said.starter_environment))
    assert b"secret" not in everything
    assert b"TOKEN" not in everything
    assert os.fsencode(ODD) not in everything
    inner = decode(said.command)
    assert inner.argv == (b"secret-program", b"secret-argument")
    assert inner.environment == (b"TOKEN=secret-value",)
    assert inner.directory == os.fsencode(ODD)


def test_orders_survive_the_way() -> None:
    made = plan(
        grants=(write(ODD + "\udcff"),), guards=(guard(ODD + "\udcff/.git"),), scratch=(scratch("/tmp"),)
    )
    said = asked(made)
    assert systemd_spec.decode(systemd_spec.encode(said)) == said
    assert any(row[1] == os.fsencode(ODD + "\udcff") for row in said.view)


def test_the_unit_is_told_the_operations_of_the_layout_but_those_it_does_not_need() -> None:
    made = plan(grants=(write("/w"), read("/r")), guards=(guard("/w/d/.git"),), scratch=(scratch("/tmp"),))
    wanted = [op.replace(origin="") for op in lay_out(made, DictHost()).operations if op.path != "/proc/1"]
    for found in (USER, ROOT):
        assert list(asked(made, found).operations()) == wanted
        assert asked(made, found).unprivileged_uid == found.unprivileged_uid


def test_the_filter_and_the_limits_are_those_of_the_plan() -> None:
    from staddle.linux.seccomp import program

    limited = decode(asked(plan(limits=Limits(file_size=5, open_files=7), grants=(write("/w"),))).command)
    assert limited.filter == program("namespaces-nosuid")
    assert {(1, 5, 5), (7, 7, 7), (4, 1, 1)} <= set(limited.rlimits)
    assert decode(asked(plan()).command).filter == program("namespaces")


def test_a_launch_can_be_given_up() -> None:
    before = set(os.listdir("/proc/self/fd"))
    launch = systemd.launch(plan(), lay_out(plan(), DictHost()), USER, ["true"])
    assert launch.argv[4] == "systemd-client"
    assert launch.argv[5] == str(launch.pass_fds[1])
    assert launch.relays
    launch.close()
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
    monkeypatch.setattr(systemd.landlock, "abi", lambda: 5)
    assert gaps(plan(network=Network.open())) == {"sockets": True}
    monkeypatch.setattr(systemd.landlock, "abi", lambda: 6)
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
    made = plan(grants=(write("/w"),), variables=(Variable("TOKEN", "hush", "env", secret=True),))
    for found in (USER, ROOT):
        told = "\n".join(step.action for step in systemd.steps(made, lay_out(made, DictHost()), found))
        for item in systemd.properties(made, found.scope):
            assert item in told
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
