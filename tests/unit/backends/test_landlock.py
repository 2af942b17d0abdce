"""What the landlock backend decides, and what it says about itself. Nothing is confined here."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from staddle.backends import landlock
from staddle.backends.landlock import Landlock, rules
from staddle.backends.landlock.root_view import as_user, view
from staddle.backends.landlock.rules import PrivateDirs, parent_for_private
from staddle.enforcement import PROTECTIONS
from staddle.errors import BackendUnavailable, PolicyNotEnforceable
from staddle.ipc.exec_spec import ExecSpec, decode
from staddle.linux import idmaps, seccomp
from staddle.linux import landlock as kernel
from staddle.linux.idmaps import FIRST_UNUSED
from staddle.linux.landlock import EVERYTHING, RIGHTS
from staddle.policy import Limits, Network
from staddle.policy.plan import Guard, Link, Plan, Socket, Text, Variable
from tests.unit.backends.landlock_plans import found, plan
from tests.unit.mounts.plans import hidden, read, write

PASSWD = Text(
    "/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\n", "made up"
)
GROUP = Text("/etc/group", b"root:x:0:\nuser:x:1000:\n", "made up")


def made(plan: Plan, command: tuple[str, ...] = ("true",), **findings: Any) -> ExecSpec:
    """The instructions for `plan`, as the helper reads them."""
    backend = Landlock()
    backend._found = found(**findings)
    launch = backend.prepare(plan, command)
    try:
        return decode(os.pread(int(launch.argv[-1]), 1 << 24, 0))
    finally:
        launch.close()
        os.close(launch.status or -1)


# Rules.


def test_a_grant_is_one_rule() -> None:
    granted = rules.for_grants(plan(grants=(read("/usr"), write("/srv"))))
    assert [(rule.path, rule.rights, rule.optional) for rule in granted] == [
        ("/usr", kernel.READ, False),
        ("/srv", kernel.WRITE, False),
    ]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a/b/c", "a/secret/deep", "d"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("a/file", "a/b/file", "a/secret/file", "top"):
        (tmp_path / name).write_text("")
    (tmp_path / "a" / "link").symlink_to("secret")
    return tmp_path


def allowed(granted: list[rules.LandlockRule], path: Path, right: str) -> bool:
    """What the kernel would say: a rule on the path or anything above it."""
    return any(
        right in rule.rights and (str(path) + "/").startswith(rule.path.rstrip("/") + "/") for rule in granted
    )


def test_what_is_denied_below_a_read_grant_is_stepped_around(tree: Path) -> None:
    granted = rules.for_grants(plan(grants=(read(tree),), hidden=(hidden(tree / "a/secret"),)))
    for name in ("a/file", "a/b/file", "a/b/c", "top", "d"):
        assert allowed(granted, tree / name, "read_file"), name
    for name in ("a/secret", "a/secret/file", "a/secret/deep"):
        for right in kernel.READ:
            assert not allowed(granted, tree / name, right), (name, right)
    # Listing is inherited too, so nothing on the way to it can be listed.
    assert not allowed(granted, tree / "a", "read_dir")
    assert allowed(granted, tree / "a/b", "read_dir")


def test_around_a_denied_file_directories_can_be_listed(tree: Path) -> None:
    granted = rules.for_grants(plan(grants=(read(tree),), hidden=(hidden(tree / "a/file", "file"),)))
    assert allowed(granted, tree, "read_dir")
    assert allowed(granted, tree / "a", "read_dir")
    assert not allowed(granted, tree / "a/file", "read_file")
    assert allowed(granted, tree / "a/secret/file", "read_file")


def test_what_is_denied_may_be_missing_and_come_later(tree: Path) -> None:
    granted = rules.for_grants(plan(grants=(read(tree),), hidden=(hidden(tree / "a/later", "missing"),)))
    (tree / "a/later").write_text("")
    assert not allowed(granted, tree / "a/later", "read_file")
    assert allowed(granted, tree / "a/file", "read_file")


def test_no_rule_is_made_through_a_link(tree: Path) -> None:
    granted = rules.for_grants(plan(grants=(read(tree),), hidden=(hidden(tree / "a/secret"),)))
    assert not any(rule.path.endswith("link") for rule in granted)


def test_private_directories_below_a_grant_are_stepped_around_too(tree: Path) -> None:
    granted = rules.for_grants(plan(grants=(read(tree),)), [str(tree / "d")])
    assert not allowed(granted, tree / "d", "read_file")


def test_too_many_rules_are_not_made(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MOST_RULES", 3)
    crowded = plan(grants=(read(tree),), hidden=(hidden(tree / "a/secret"),))
    assert "deny" in {gap.protection for gap in landlock._gaps(crowded, found()) if not gap.documented}
    with pytest.raises(PolicyNotEnforceable, match="3 rules"):
        made(crowded)


def test_devices_are_usable_and_no_others_exist() -> None:
    granted = {rule.path: rule.rights for rule in rules.for_system(plan(), can_mount=False)}
    assert {path for path in granted if path.startswith("/dev")} == {
        *(
            f"/dev/{name}"
            for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm")
        )
    }
    assert not granted["/dev/shm"] & {"execute", "read_dir", "make_dir", "make_sock"}
    assert "ioctl_dev" not in granted["/dev/null"]
    assert granted["/proc"] == {"read_file", "read_dir"}


def test_files_of_etc_are_the_hosts_own_but_for_the_machine() -> None:
    texts = (PASSWD, Text("/etc/machine-id", b"1\n", "made up"))
    paths = [rule.path for rule in rules.for_system(plan(texts=texts), can_mount=False)]
    assert "/etc/passwd" in paths
    assert "/etc/machine-id" not in paths
    assert "/etc" not in paths


def test_an_etc_of_its_own_is_one_rule_unless_something_is_denied_in_it() -> None:
    def below_etc(of: Plan) -> set[str]:
        return {rule.path for rule in rules.for_system(of, can_mount=True) if rule.path.startswith("/etc")}

    assert below_etc(plan(texts=(PASSWD, GROUP))) == {"/etc"}
    assert below_etc(plan(texts=(PASSWD, GROUP), hidden=(hidden("/etc/ssl/private"),))) == {
        "/etc/passwd",
        "/etc/group",
    }


# Private directories.


def test_private_directories_stand_in_for_what_cannot_be_mounted() -> None:
    layout = PrivateDirs.of(plan(), "/tmp", "t0ken", but=("/dev/shm",))
    home, tmp = layout.place("/home/user"), layout.place("/tmp")
    assert home != tmp
    assert layout.directories() == ("/tmp/staddle-t0ken", home, tmp)
    assert all(path.startswith("/tmp/staddle-t0ken/") for path in (home, tmp))
    assert layout.place("/home/user/a/b") == f"{home}/a/b"
    assert layout.place("/usr/bin") == "/usr/bin"
    assert layout.place("/tmpfs") == "/tmpfs"


def test_variables_point_to_them_also_inside_lists() -> None:
    layout = PrivateDirs.of(plan(), "/tmp", "t0ken")
    assert layout.environment(plan(), can_mount=True) == {
        "HOME": layout.place("/home/user"),
        "PATH": f"{layout.place('/home/user')}/bin:/usr/bin",
        "TMPDIR": layout.place("/tmp"),
    }


def test_a_grant_below_a_private_directory_stays_where_it_is() -> None:
    inside = plan(grants=(write("/tmp/granted"),), cwd="/tmp/granted/a")
    assert PrivateDirs.of(inside, "/tmp", "t0ken").place("/tmp/granted/a") == "/tmp/granted/a"
    assert made(inside).directory == b"/tmp/granted/a"


def test_directories_that_nothing_points_to_are_not_made() -> None:
    assert "/var/tmp" not in PrivateDirs.of(plan(), "/tmp", "t0ken").moved


def test_git_is_told_about_a_configuration_that_it_may_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/etc/gitconfig")
    layout = PrivateDirs.of(plan(), "/tmp", "t0ken")
    assert layout.environment(plan(), can_mount=False)["GIT_CONFIG_NOSYSTEM"] == "1"
    own = plan(variables=(Variable("GIT_CONFIG_NOSYSTEM", "0", "env"),))
    assert layout.environment(own, can_mount=False)["GIT_CONFIG_NOSYSTEM"] == "0"
    granted = plan(grants=(read("/etc"),))
    assert "GIT_CONFIG_NOSYSTEM" not in layout.environment(granted, can_mount=False)


def test_without_a_place_for_them_nothing_starts(tmp_path: Path) -> None:
    assert parent_for_private(["", "relative", str(tmp_path / "missing"), str(tmp_path)]) == str(tmp_path)
    with pytest.raises(BackendUnavailable, match="TMPDIR"):
        parent_for_private(["/nowhere"])


# As root.


def test_root_gives_its_files_to_a_stranger(tmp_path: Path) -> None:
    seen = view(plan(grants=(read("/usr"), write(tmp_path))), 5000, "/home/user")
    assert seen.trees == ((str(tmp_path), os.getuid(), os.lstat(tmp_path).st_gid, False),)
    assert {"/tmp", "/dev/shm", "/etc"} <= {path for path, _, _ in seen.empty}
    assert "/home/user" not in {path for path, _, _ in seen.empty}  # it would have to be made on the host


def test_what_is_only_read_cannot_be_changed(tmp_path: Path) -> None:
    assert view(plan(grants=(read(tmp_path),)), 5000, "/").trees[0][3] is True


def test_a_socket_is_given_too_if_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "s").touch()
    sockets = (Socket(str(tmp_path / "s"), True, "s"), Socket(str(tmp_path / "later"), False, "s"))
    seen = view(plan(sockets=sockets), 5000, "/")
    assert [(path, read_only) for path, _, _, read_only in seen.trees] == [(str(tmp_path / "s"), True)]


def test_the_way_through_a_home_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = {"/": 0o40755, "/closed": 0o40700, "/closed/a": 0o40755, "/closed/a/here": 0o40755}

    def lstat(path: str) -> os.stat_result:
        if path not in modes:
            raise FileNotFoundError(path)
        return os.stat_result((modes[path], 0, 0, 0, 0, 0, 0, 0, 0, 0))

    monkeypatch.setattr(os, "lstat", lstat)
    assert "/closed" in {
        path for path, _, _ in view(plan(grants=(write("/closed/a/here"),)), 5000, "/").empty
    }
    # The home itself granted: its owner is the stranger, who may pass.
    whole = view(plan(grants=(read("/closed"), write("/closed/a/here"))), 5000, "/")
    assert "/closed" not in {path for path, _, _ in whole.empty}


def test_the_account_files_name_the_stranger() -> None:
    assert b"user:x:7:7::/private/home:/bin/bash" in as_user(PASSWD, plan(), 7, "/private/home")
    assert b"user:x:7:" in as_user(GROUP, plan(), 7, "/private/home")
    assert as_user(Text("/etc/hosts", b"user:x:1000:1000\n", "x"), plan(), 7, "/") == b"user:x:1000:1000\n"


def test_two_runs_are_strangers_to_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idmaps, "unused_id_here", lambda: 65000)
    assert idmaps.id_for_sandbox() == 65000  # a container has few ids
    monkeypatch.setattr(idmaps, "unused_id_here", lambda: FIRST_UNUSED + 1)
    ids = {idmaps.id_for_sandbox() for _ in range(50)}
    assert len(ids) > 45
    assert all(uid is not None and FIRST_UNUSED <= uid < 0x7FFFFFFF for uid in ids)


# ExecSpec.


def test_the_instructions_ask_for_everything_the_kernel_has() -> None:
    order = made(plan(grants=(read("/usr"),)))
    assert order.handled_fs == 0xFFFF
    assert order.handled_net == 3
    assert order.scoped == 3
    assert (order.supervise, order.brokered, order.internet) == (1, 1, 0)
    assert order.uid == order.gid == -1
    assert order.filter == seccomp.program("landlock")
    assert (b"/usr", 0b1101, 0) in order.rules


@pytest.mark.parametrize(
    ("fields", "profile"),
    [
        ({}, "landlock"),
        ({"grants": (write("/srv"),)}, "landlock-nosuid"),
        ({"network": Network.open()}, "landlock-open"),
        ({"network": Network.open(), "grants": (write("/srv"),)}, "landlock-open-nosuid"),
    ],
)
def test_the_filter_goes_with_the_plan(fields: dict[str, Any], profile: str) -> None:
    assert made(plan(**fields)).filter == seccomp.program(profile)


def test_an_open_network_is_not_confined_but_goes_through_the_supervisor() -> None:
    order = made(plan(network=Network.open()))
    assert (order.handled_net, order.internet, order.brokered) == (0, 1, 1)


def test_an_older_kernel_is_asked_for_less() -> None:
    order = made(plan(grants=(write("/srv"),)), abi=1)
    assert (order.handled_fs, order.handled_net, order.scoped) == (0x1FFF, 0, 0)
    assert all(not rights & ~0x1FFF for _, rights, _ in order.rules)


def test_core_dumps_are_stopped_and_limits_are_set() -> None:
    limits = dict.fromkeys(("file_size", "open_files"), 64)
    order = made(plan(limits=Limits(**limits)))
    assert set(order.rlimits) == {(4, 1, 1), (14, 0, 0), (13, 0, 0), (1, 64, 64), (7, 64, 64)}


def test_any_bytes_survive() -> None:
    odd = os.fsdecode(b"/srv/\xff\xfe\n")
    order = made(
        plan(grants=(read(odd),), variables=(Variable("A", os.fsdecode(b"\xff"), "env"),)), ("a\udcff", "")
    )
    assert order.argv == (b"a\xff", b"")
    assert b"A=\xff" in order.environment
    assert b"/srv/\xff\xfe\n" in {path for path, _, _ in order.rules}


def test_sockets_are_reachable_where_the_command_may_write() -> None:
    order = made(
        plan(
            grants=(read("/usr"), write("/srv")),
            hidden=(hidden("/srv/x"),),
            sockets=(Socket("/run/s.sock", False, "s"),),
        )
    )
    kinds = {(kind, path) for kind, path in order.sockets}
    assert {(b"beneath", b"/srv"), (b"never", b"/srv/x"), (b"exactly", b"/run/s.sock")} <= kinds
    private = {path for kind, path in kinds if kind == b"beneath"} - {b"/srv"}
    # Never the host's own /tmp, /run or /dev/shm.
    assert private == set(order.scratch[1:])


def test_root_becomes_somebody_else_in_a_view_of_its_own() -> None:
    etc = plan(texts=(PASSWD,), links=(Link("/etc/localtime", "/usr/share/zoneinfo/UTC", "system"),))
    order = made(etc, uid=FIRST_UNUSED, hides=True)
    assert order.uid == order.gid
    assert order.uid >= FIRST_UNUSED
    assert order.processes_hidden
    assert (b"/etc/localtime", b"/usr/share/zoneinfo/UTC") in order.links
    assert b"user:x:%d:%d:" % (order.uid, order.uid) in dict(order.texts)[b"/etc/passwd"]
    beneath = {path for kind, path in order.sockets if kind == b"beneath"}
    assert {b"/tmp", b"/dev/shm"} <= beneath


def test_what_is_denied_below_a_private_directory_of_root_stays_denied() -> None:
    """A rule on /tmp would hold for what shows through it as well."""
    below = plan(grants=(read("/tmp"),), hidden=(hidden("/tmp/granted/secret"),), cwd="/usr")
    order = made(below.replace(grants=()), uid=FIRST_UNUSED)
    assert b"/tmp" not in {path for path, _, _ in order.rules}
    assert b"/tmp" in {path for path, _, _ in order.empty}
    variables = dict(item.split(b"=", 1) for item in order.environment)
    assert variables[b"TMPDIR"] in order.scratch
    assert (variables[b"TMPDIR"], kernel.bits(kernel.WRITE, "fs"), 0) in order.rules
    assert (b"beneath", b"/tmp") not in order.sockets


def test_sockets_in_what_is_only_read_are_the_hosts() -> None:
    order = made(plan(grants=(read("/usr"), write("/usr/share"))), uid=FIRST_UNUSED)
    assert {(b"never", b"/usr"), (b"beneath", b"/usr/share"), (b"beneath", b"/tmp")} <= set(order.sockets)


def test_steps_say_what_the_instructions_do() -> None:
    backend = Landlock()
    backend._found = found(uid=FIRST_UNUSED, hides=True)
    text = "\n".join(
        step.action for step in backend.steps(plan(grants=(write("/usr/share"),), texts=(PASSWD,)))
    )
    for words in (
        "mount namespace",
        "become user",
        "allow beneath /usr/share: read, run and write",
        "filter",
    ):
        assert words in text


# Gaps.


def names(of: Plan, *, documented: bool, **findings: Any) -> set[str]:
    gaps = landlock._gaps(of, found(**findings))
    return {gap.protection for gap in gaps if gap.documented is documented}


def test_what_landlock_cannot_do_is_documented() -> None:
    assert names(plan(), documented=True) == {
        *("metadata", "processes", "signals", "tmp", "ipc", "devices", "keyring", "capabilities")
    }
    assert names(plan(), documented=False) == set()


def test_root_has_fewer_gaps() -> None:
    assert names(plan(), documented=True, uid=FIRST_UNUSED, hides=True) == {"metadata"}
    assert names(plan(), documented=True, uid=FIRST_UNUSED) == {"metadata", "processes"}


def test_made_up_files_are_not_shown_to_an_ordinary_user() -> None:
    assert "read" in names(plan(texts=(PASSWD,)), documented=True)
    assert "read" not in names(plan(texts=(PASSWD,)), documented=True, uid=FIRST_UNUSED)


def test_guards_are_a_documented_gap() -> None:
    guarded = plan(grants=(write("/srv"),), guards=(Guard("/srv/.git/config", False, "protected"),))
    assert "guard" in names(guarded, documented=True)


HELD = Limits(timeout=1, output=1, file_size=1, open_files=1, memory="1M", processes=1, cpu=1)
BELOW = {"grants": (write("/srv"),), "hidden": (hidden("/srv/secret"),)}


@pytest.mark.parametrize(
    ("fields", "findings", "lost"),
    [
        pytest.param({}, {"abi": 1}, {"write", "devices", "signals", "parent"}, id="ABI 1"),
        pytest.param({}, {"abi": 2}, {"write", "devices", "signals", "parent"}, id="ABI 2"),
        pytest.param({}, {"abi": 3}, {"devices", "signals", "parent"}, id="ABI 3"),
        pytest.param({}, {"abi": 5}, {"signals", "parent"}, id="ABI 5"),
        pytest.param({}, {"abi": 6}, set(), id="ABI 6"),
        pytest.param({}, {"abi": 8}, set(), id="ABI 8"),
        pytest.param({"network": Network.loopback()}, {}, {"network"}, id="a loopback of its own"),
        pytest.param({"network": Network.loopback([80])}, {}, {"network"}, id="ports of the loopback"),
        pytest.param({"limits": Limits(cpu=0.5)}, {}, {"limits.cpu"}, id="a part of a processor"),
        pytest.param({"limits": Limits(disk="1M")}, {}, {"limits.disk"}, id="disk"),
        pytest.param({"limits": HELD}, {}, set(), id="limits that are held"),
        pytest.param(BELOW, {}, {"deny"}, id="a deny below a writable path"),
        pytest.param({"grants": (write("/var"),)}, {}, {"tmp"}, id="a private directory below one"),
        pytest.param({"grants": (write("/var"),)}, {"uid": FIRST_UNUSED}, set(), id="the same as root"),
    ],
)
def test_what_cannot_be_held(fields: dict[str, Any], findings: dict[str, int], lost: set[str]) -> None:
    assert names(plan(**fields), documented=False, **findings) == lost


def test_names_are_reached_through_a_proxy_and_nothing_else_is() -> None:
    backend = Landlock()
    backend._found = found()
    launch = backend.prepare(plan(network=Network.allow("a.example:443")), ["true"])
    try:
        order = decode(os.pread(launch.pass_fds[-1], 1 << 20, 0))
    finally:
        launch.close()
        if launch.status is not None:
            os.close(launch.status)
        if launch.limited is not None:
            launch.limited.close()
    (row,) = order.destinations
    assert (row[0], row[1], row[3]) == (bytes((127, 0, 0, 1)), 32, 0)
    assert [port for port, _ in order.ports] == [row[2]]
    assert len(order.proxy) == 2
    variables = dict(item.split(b"=", 1) for item in order.environment)
    assert variables[b"HTTPS_PROXY"] == b"http://staddle:%s@127.0.0.1:%d" % (order.proxy_word, row[2])
    assert order.proxy_port == row[2]
    assert variables[b"RES_OPTIONS"] == b"use-vc"


def test_that_a_denied_path_exists_can_be_seen(tree: Path) -> None:
    stepped = plan(grants=(read(tree),), hidden=(hidden(tree / "a/secret"),))
    assert "deny" in names(stepped, documented=True)
    assert names(stepped, documented=False) == set()


def test_every_gap_is_about_a_promise_and_says_what_to_do() -> None:
    everything = plan(
        grants=(write("/srv"),),
        hidden=(hidden("/srv/x"),),
        guards=(Guard("/srv/.git", True, "protected"),),
        network=Network.loopback(),
        limits=Limits(memory="1M"),
    )
    for gap in landlock._gaps(everything, found(abi=1)):
        assert gap.protection in PROTECTIONS or gap.protection.startswith("limits.")
        assert gap.why
        assert gap.fix


# Networks: TCP to addresses.


LOCAL = socket.inet_aton("127.0.0.1")
CONNECT = RIGHTS["net"]["connect_tcp"][0]


def test_exactly_the_ports_of_the_hosts_loopback() -> None:
    made = plan(network=Network.loopback([80, 5432]))
    assert rules.destinations(made) == ((LOCAL, 32, 80, 0), (LOCAL, 32, 5432, 0))
    assert rules.ports(made, EVERYTHING) == (((80, CONNECT), (5432, CONNECT)), EVERYTHING)


def test_addresses_and_networks_of_a_list_with_their_refusals() -> None:
    made = plan(network=Network.allow("10.0.0.0/8:5432", "[2001:db8::1]:443", "!10.1.0.0/16", "a.com:80"))
    assert set(rules.destinations(made)) == {
        (socket.inet_aton("10.0.0.0"), 8, 5432, 0),
        (socket.inet_aton("10.1.0.0"), 16, 0, 1),
        (socket.inet_pton(socket.AF_INET6, "2001:db8::1"), 128, 443, 0),
    }
    assert rules.ports(made, EVERYTHING)[0] == ((443, CONNECT), (5432, CONNECT))


def test_every_port_of_an_address_leaves_the_kernel_nothing_to_refuse_by() -> None:
    ports, handled = rules.ports(plan(network=Network.allow("10.0.0.1")), EVERYTHING)
    assert (ports, EVERYTHING - handled) == ((), {"connect_tcp"})


@pytest.mark.parametrize("network", [Network.deny(), Network.open()])
def test_all_or_nothing_needs_no_rows_and_has_no_gap(network: Network) -> None:
    made = plan(network=network)
    assert rules.destinations(made) == ()
    assert list(rules.network_gaps(made, 7)) == []


def test_what_cannot_be_reached_is_said_entry_by_entry() -> None:
    network = Network.allow("a.com:443", "*.b.com", "udp://10.0.0.1:53", "10.0.0.2:80", "!c.com")
    own, *entries = rules.network_gaps(plan(network=network), 7)
    assert own.why == (
        "Landlock gives no loopback of its own: no program inside can listen for connections over TCP"
    )
    assert [gap.why.partition(" ")[0] for gap in entries] == ["names", "udp://10.0.0.1:53"]
    assert {gap.protection for gap in (own, *entries)} == {"network"}
    # Names are reached through a proxy; a datagram is not carried by anything.
    assert [gap.documented for gap in (own, *entries)] == [True, True, False]


def test_an_old_kernel_does_not_keep_ports() -> None:
    why = [gap.why for gap in rules.network_gaps(plan(network=Network.loopback([80])), 3)]
    assert why[1] == "this kernel has Landlock ABI 3: a command can take ports of the host before ABI 4"
