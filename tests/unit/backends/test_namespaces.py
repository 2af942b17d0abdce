"""Our own namespaces without making any: what the helper would be told, and what is said about it."""

from __future__ import annotations

import os

import pytest

from staddle.backends import description as common
from staddle.backends import gateways, namespaces
from staddle.backends.namespaces import NAMESPACES, Namespaces
from staddle.enforcement import Probe
from staddle.ipc import namespace_spec
from staddle.ipc.exec_spec import decode
from staddle.ipc.namespace_spec import decoded
from staddle.limits import cgroup_layout, host_cgroups
from staddle.linux.landlock import RIGHTS
from staddle.linux.seccomp import program
from staddle.linux.userns import UsernsFacts
from staddle.mounts.from_plan import lay_out
from staddle.network.namespace.from_policy import network_spec
from staddle.policy.limits import Limits
from staddle.policy.network import Network
from staddle.policy.plan import Plan, Text, Variable
from tests.unit.mounts.plans import DictHost, guard, hidden, plan, read, scratch, write

UNPRIVILEGED_UID = 0x70000001
ODD = '/w/a b:c"d\\e%h$HOME\n'


def asked(
    made: Plan, unprivileged_uid: int | None = None, command: tuple[str, ...] = ("true",)
) -> namespace_spec.NamespaceSpec:
    return namespaces.spec(made, lay_out(made, DictHost()), unprivileged_uid, command, status=9)


# What the helper is told.


def test_nothing_of_the_policy_is_on_a_command_line() -> None:
    made = plan(
        grants=(read("/secret-place"),),
        texts=(Text("/etc/secret-text", b"secret-content", "test"),),
        variables=(Variable("TOKEN", "secret-value", "test", secret=True),),
    )
    launch = namespaces.launch(made, lay_out(made, DictHost()), None, ["secret-program"])
    launch.close()
    os.close(launch.status or -1)
    assert launch.argv[1:3] == ("-I", "-S")
    assert launch.argv[4:] == ("namespaces", str(launch.pass_fds[1]))
    assert set(launch.env) == {"LC_ALL", "PATH"}
    assert "secret" not in " ".join((*launch.argv, *launch.env.values()))
    assert launch.relays


def test_what_is_asked_survives_the_way() -> None:
    made = plan(
        grants=(write(ODD + "\udcff"),), guards=(guard(ODD + "\udcff/.git"),), scratch=(scratch("/tmp"),)
    )
    said = asked(made, UNPRIVILEGED_UID)
    assert namespace_spec.decode(namespace_spec.encode(said)) == said
    assert any(row[1] == os.fsencode(ODD + "\udcff") for row in said.view)
    assert said.unprivileged_uid == UNPRIVILEGED_UID
    assert asked(made).unprivileged_uid == -1


def test_the_network_is_its_own_unless_it_is_open() -> None:
    for network in (Network.deny(), Network.loopback()):
        assert asked(plan(network=network)).namespaces == sum(NAMESPACES.values())
    assert asked(plan(network=Network.open())).namespaces == sum(NAMESPACES.values()) - NAMESPACES["net"]


def test_landlock_is_used_only_where_the_hosts_abstract_sockets_are_within_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(namespaces, "scopes_sockets", lambda: True)
    assert decode(asked(plan()).command).scoped == 0
    bit = RIGHTS["scope"]["abstract_unix_socket"][0]
    assert decode(asked(plan(network=Network.open())).command).scoped == bit
    monkeypatch.setattr(namespaces, "scopes_sockets", lambda: False)
    assert decode(asked(plan(network=Network.open())).command).scoped == 0


def test_the_filter_and_the_limits_are_those_of_the_plan() -> None:
    limited = decode(asked(plan(limits=Limits(file_size=5, open_files=7), grants=(write("/w"),))).command)
    assert limited.filter == program("namespaces-nosuid")
    assert {(1, 5, 5), (7, 7, 7), (4, 1, 1)} <= set(limited.rlimits)
    assert decode(asked(plan()).command).filter == program("namespaces")


def test_the_first_process_is_not_covered_because_it_is_not_shown() -> None:
    made = plan(grants=(read("/r"),))
    wanted = [op.replace(origin="") for op in lay_out(made, DictHost()).operations if op.path != "/proc/1"]
    assert list(asked(made).operations()) == wanted


def test_a_launch_can_be_given_up() -> None:
    before = set(os.listdir("/proc/self/fd"))
    launch = namespaces.launch(plan(), lay_out(plan(), DictHost()), None, ["true"])
    launch.close()
    launch.close()
    assert launch.status is not None
    os.close(launch.status)
    with pytest.raises(ValueError, match="no command"):
        namespaces.launch(plan(), lay_out(plan(), DictHost()), None, [])
    assert set(os.listdir("/proc/self/fd")) <= before


# What is said about it.


def gaps(made: Plan) -> dict[str, bool]:
    return {gap.protection: gap.documented for gap in namespaces.gaps(made, lay_out(made, DictHost()), None)}


def test_an_ordinary_plan_has_no_gap() -> None:
    assert gaps(plan(grants=(read("/usr"), write("/w")), limits=Limits(file_size=1, open_files=9))) == {}


def test_what_it_cannot_hold_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        host_cgroups, "support", lambda: cgroup_layout.decide(cgroup_layout.CgroupFacts(()))
    )  # a host without control groups
    made = plan(
        limits=Limits(memory="1G", cpu=0.5, processes=5, disk="1G"),
        grants=(write("/w"),),
        hidden=(hidden("/w/x", "missing"),),
    )
    assert gaps(made) == dict.fromkeys(("deny", "limits.cpu", "limits.disk"), False)
    monkeypatch.setattr(common, "scopes_sockets", lambda: False)
    assert gaps(plan(network=Network.open())) == {"sockets": True}


def test_a_list_of_hosts_is_held_as_far_as_this_kernel_delivers_every_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everywhere, at_ports = Network.allow("example.com"), Network.allow("example.com:443", "10.1.2.3:5432")
    for redirects in (True, False):
        monkeypatch.setattr(gateways, "_redirects", [redirects])
        assert gaps(plan(network=everywhere)) == ({} if redirects else {"network": False})
        assert gaps(plan(network=at_ports)) == {}
        assert gaps(plan(network=Network.loopback([80]))) == {}


def test_a_gateway_is_asked_for_only_where_something_can_be_reached() -> None:
    for network in (Network.deny(), Network.open(), Network.loopback()):
        made = plan(network=network)
        launch = namespaces.launch(made, lay_out(made, DictHost()), None, ["true"])
        assert launch.gateway_log is None
        assert len(launch.pass_fds) == 2
        launch.close()
        os.close(launch.status or -1)


def test_the_network_and_both_ends_of_its_line_are_in_the_orders() -> None:
    network = Network.allow("example.com:443", "*.example.org", "udp://10.0.0.1:53", "127.0.0.1:80", "!b.com")
    said = namespaces.spec(
        plan(network=network), lay_out(plan(), DictHost()), None, ["true"], status=7, gateway=(8, 9)
    )
    assert namespace_spec.decode(namespace_spec.encode(said)) == said
    assert said.gateway == (8, 9)
    assert decoded(said.network) == network_spec(network).replace(unheld=())
    with pytest.raises(namespace_spec.Malformed):
        namespace_spec.encode(said.replace(gateway=(8,)))


def test_a_launch_with_a_gateway_can_be_given_up() -> None:
    before = set(os.listdir("/proc/self/fd"))
    made = plan(network=Network.allow("example.com"))
    launch = namespaces.launch(made, lay_out(made, DictHost()), None, ["true"])
    assert launch.gateway_log is not None
    assert len(launch.pass_fds) == 4
    launch.close()
    launch.gateway_log.finish()
    assert launch.gateway_log.events() == ()
    os.close(launch.status or -1)
    assert set(os.listdir("/proc/self/fd")) <= before


def printed(made: Plan, unprivileged_uid: int | None = None) -> list[str]:
    layout = lay_out(made, DictHost())
    return [
        step.action for step in namespaces.steps(made, layout, unprivileged_uid, namespaces._groups(made))
    ]


def test_every_step_is_a_line() -> None:
    made = plan(
        grants=(write("/w"), read("/usr")),
        guards=(guard("/w/.git"),),
        variables=(Variable("TOKEN", "s3cret", "test", secret=True),),
    )
    lines = printed(made)
    assert "show /w (read and write)" in lines
    assert "protect /w/.git (read-only)" in lines
    assert "variable TOKEN=(secret)" in lines
    assert "resource limit core=1" in lines
    assert any("namespaces-nosuid" in line for line in lines)
    assert any("network of its own" in line for line in lines)
    assert not any("network of its own" in line for line in printed(plan(network=Network.open())))
    assert not any("no account has" in line for line in lines)
    as_root = printed(made, UNPRIVILEGED_UID)
    assert "show /w (read and write), its owner shown as the sandbox's user" in as_root
    assert as_root.index("detach the old root") < next(
        at for at, line in enumerate(as_root) if str(UNPRIVILEGED_UID) in line
    )


def test_what_is_made_of_the_network_is_told() -> None:
    lines = printed(plan(network=Network.allow("example.com:443", "!b.com", "127.0.0.1:80")))
    assert any("network gateway" in line for line in lines)
    assert any("resolver at 127.0.0.53" in line for line in lines)
    assert "port 80 of its loopback forwards to port 80 of the host's" in lines
    assert "route to the gateway: example.com:443" in lines
    assert "refuse: b.com" in lines
    assert not any("gateway" in line for line in printed(plan(network=Network.loopback())))


# The self-test's verdict.


def test_a_canary_that_ran_unconfined_is_our_own_bug() -> None:
    probe = Namespaces()._judged("no system call filter", "")
    assert not probe.usable
    assert "no system call filter" in probe.why
    assert "bug" in probe.fix


def test_the_true_cause_is_named_before_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from staddle.linux import userns

    monkeypatch.setattr(userns, "observe", lambda identity: UsernsFacts("namespace", 28, maximum="0"))
    assert "max_user_namespaces" in Namespaces()._judged("the command did not run", "unshare: ...").why
    monkeypatch.setattr(userns, "observe", lambda identity: UsernsFacts(""))
    assert "unshare: ..." in Namespaces()._judged("the command did not run", "unshare: ...").why


def test_a_self_test_that_failed_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [Probe("namespaces", usable=False, why="busy"), Probe("namespaces", usable=True)]
    monkeypatch.setattr(namespaces, "_known", {})
    monkeypatch.setattr(namespaces, "_tried_again", {})
    monkeypatch.setattr(namespaces.Namespaces, "_try", lambda _: answers.pop(0))
    backend = namespaces.Namespaces()
    assert not backend.probe().usable
    assert not backend.probe().usable  # not for every caller
    monkeypatch.setattr(namespaces, "_tried_again", dict.fromkeys(namespaces._tried_again, 0.0))
    assert backend.probe().usable
    assert backend.probe().usable
    assert not answers
