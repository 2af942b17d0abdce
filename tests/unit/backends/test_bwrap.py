"""Operations, rights and environment as bwrap's arguments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle.backends import bwrap
from staddle.backends.bwrap import abstract_sockets, arguments, judge, launching
from staddle.backends.bwrap.launching import Starter, failure, is_staged, steps
from staddle.backends.launching import Descriptors
from staddle.errors import LaunchFailed, PolicyNotEnforceable
from staddle.linux.userns import UsernsFacts
from staddle.mounts.from_plan import Layout, lay_out
from staddle.mounts.operations import Bind, Devices, Directory, Empty, File, Mask, ProcMount, Seal, Symlink
from staddle.policy.limits import Limits
from staddle.policy.network import Network
from staddle.policy.plan import Plan, Text, Variable
from tests.unit.mounts.plans import WHY, DictHost, guard, hidden, plan, read, write


def words(*operations: object, by_descriptor: bool = False) -> list[str]:
    give = Descriptors()
    try:
        return list(arguments.filesystem(operations, give, by_descriptor=by_descriptor))  # type: ignore[arg-type]
    finally:
        give.close()


def test_every_namespace_is_asked_for_and_none_may_be_made_inside() -> None:
    flags = arguments.confinement(plan())
    for flag in ("--unshare-all", "--unshare-user", "--disable-userns", "--new-session", "--die-with-parent"):
        assert flag in flags
    assert flags[flags.index("--cap-drop") + 1] == "ALL"
    assert "--share-net" not in flags


@pytest.mark.parametrize(
    ("network", "shared"),
    [
        (Network.deny(), False),
        (Network.loopback(), False),
        # What bwrap is started in is the sandbox's own by then: see inside.bwrap_prelude.
        (Network.loopback([80]), True),
        (Network.allow("example.com"), True),
        (Network.open(), True),
    ],
)
def test_the_network_that_it_is_started_in_is_shared_when_something_can_be_reached(
    network: Network, shared: bool
) -> None:
    assert ("--share-net" in arguments.confinement(plan(network=network))) is shared


def test_the_environment_begins_empty() -> None:
    wanted = plan(variables=(Variable("A", "--bind", WHY), Variable("B", "", WHY)))
    assert list(arguments.environment(wanted)) == [
        *("--clearenv", "--setenv", "A", "--bind"),
        *("--setenv", "B", ""),
    ]


def test_operations_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    at = str(tmp_path)
    made = words(
        Empty("/", 0o755, 9, WHY),
        Devices("/dev", WHY),
        Symlink("/etc/a/l", "x", WHY),
        ProcMount("/proc", WHY),
        Empty("/proc/1", 0, 4096, WHY),
        Bind(at, True, WHY),
        Empty(at, 0, 0, WHY, below=True),
        Mask(f"{at}/f", WHY),
        Seal("/", WHY),
    )
    above = [
        word
        for directory in Path(at).parents[-2::-1]
        for word in ("--perms", "0755", "--dir", str(directory))
    ]
    assert made == [
        *("--perms", "0755", "--size", "9", "--tmpfs", "/", "--dev", "/dev"),
        *("--perms", "0755", "--dir", "/etc", "--perms", "0755", "--dir", "/etc/a"),
        *("--symlink", "x", "/etc/a/l", "--proc", "/proc"),
        *("--perms", "0000", "--size", "4096", "--tmpfs", "/proc/1"),
        *above,
        *("--bind", at, at, "--perms", "0000", "--tmpfs", at),
        *("--ro-bind", "/dev/null", f"{at}/f", "--remount-ro", "/"),
    ]


def test_a_directory_on_the_way_is_made_once_with_its_mode() -> None:
    made = words(
        Empty("/tmp", 0o1777, 9, WHY),
        Directory("/tmp/a", 0o555, WHY),
        Directory("/tmp/a/b", 0o555, WHY),
        Symlink("/tmp/a/b/l", "x", WHY),
    )
    assert made == [
        *("--perms", "1777", "--size", "9", "--tmpfs", "/tmp"),
        *("--perms", "0555", "--dir", "/tmp/a", "--perms", "0555", "--dir", "/tmp/a/b"),
        *("--symlink", "x", "/tmp/a/b/l"),
    ]


def test_what_is_shown_is_handed_over_by_descriptor(tmp_path: Path) -> None:
    give = Descriptors()
    made = list(
        arguments.filesystem(
            [Bind(str(tmp_path), False, WHY, below=True), File("/t", b"content", WHY)],
            give,
            by_descriptor=True,
        )
    )
    shown, text = give.all()
    assert made == [
        *("--ro-bind-fd", str(shown), str(tmp_path)),
        *("--perms", "0444", "--file", str(text), "/t"),
    ]
    assert os.path.samestat(os.fstat(shown), tmp_path.stat())
    assert os.read(text, 99) == b"content"
    assert not os.get_inheritable(shown)
    give.close()
    give.close()


def test_what_is_gone_or_has_become_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/usr")
    (tmp_path / "file").touch()
    for operation, why in (
        (Bind(f"{tmp_path}/gone", False, WHY), "no such file"),
        (Bind(f"{tmp_path}/link", False, WHY), "there is a link"),
        (Bind(f"{tmp_path}/link/bin", False, WHY), "there is a link"),
        (Empty(f"{tmp_path}/link/bin", 0, 0, WHY, below=True), "there is a link"),
        (Empty(f"{tmp_path}/file", 0, 0, WHY, below=True), "no longer a directory"),
        (Mask(str(tmp_path), WHY), "no longer a file"),
        (File(f"{tmp_path}/gone", b"", WHY, below=True), "no such file"),
    ):
        with pytest.raises(LaunchFailed, match=why):
            words(operation)
    assert "--ro-bind" not in words(Bind(f"{tmp_path}/gone", False, WHY, optional=True))


def test_arguments_are_separated_by_nul_and_may_be_anything_else() -> None:
    assert arguments.packed(["a b", "\udcff", "new\nline"]) == b"a b\0\xff\0new\nline\0"
    with pytest.raises(PolicyNotEnforceable, match="NUL"):
        arguments.packed(["a\0--bind"])
    with pytest.raises(PolicyNotEnforceable, match="too many"):
        arguments.packed(["x"] * 9001)


def test_no_limit_is_above_what_we_have() -> None:
    endless = (1 << 64) - 1
    assert "--core=1:1" in arguments.rlimits_outside(lambda _: endless)
    assert "--core=0:0" in arguments.rlimits_outside(lambda _: 0)
    assert arguments.rlimits_inside(Limits(), lambda _: endless) == ()
    limits = Limits(file_size="1K", open_files=20)
    assert arguments.rlimits_inside(limits, lambda _: endless) == ("--fsize=1024:1024", "--nofile=20:20")
    assert arguments.rlimits_inside(limits, lambda name: 5) == ("--fsize=5:5", "--nofile=5:5")


@pytest.mark.parametrize(
    ("said", "started"),
    [
        (b'{ "child-pid": 12 }\n{ "exit-code": 0 }\n', True),
        (b'{ "child-pid": 12 }\n{ "exit-code": 255 }\n', True),
        (b'{ "child-pid": 12, "mnt-namespace": 4 }\n', False),
        (b"", False),
    ],
)
def test_the_launchers_word_on_whether_the_command_ran(said: bytes, started: bool) -> None:
    assert (failure(said) is None) is started


# What is printed, and what cannot be held.


STARTER = Starter("/usr/bin/bwrap", (), True, "/usr/bin/prlimit", "/usr/bin/nsenter", "/usr/bin/setpriv")
AS_ROOT = STARTER.replace(unprivileged_uid=1_900_000_000)


def laid_out(wanted: Plan) -> Layout:
    return lay_out(wanted, DictHost())


def printed(wanted: Plan, starter: Starter = STARTER) -> list[str]:
    return [step.action for step in steps(wanted, laid_out(wanted), starter)]


def test_every_operation_is_a_line_with_its_origin_in_its_order() -> None:
    wanted = plan(
        grants=(write("/w"), read("/usr")),
        guards=(guard("/w/.git/hooks"),),
        hidden=(hidden("/w/s"), hidden("/w/f", "file")),
        texts=(Text("/etc/hosts", b"abc", "made up"),),
    )
    made = list(steps(wanted, laid_out(wanted), STARTER))
    operations = laid_out(wanted).operations
    lines = [(str(operation), operation.origin) for operation in operations]
    assert [(s.action, s.origin) for s in made if (s.action, s.origin) in lines] == lines
    actions = [step.action for step in made]
    assert "show /w (read and write)" in actions
    assert "pin /w/.git so that it cannot be moved or replaced" in actions
    assert "protect /w/.git/hooks (read-only)" in actions
    assert "hide the directory /w/s" in actions
    assert "hide the file /w/f" in actions
    assert "file /etc/hosts (3 bytes)" in actions
    assert any("--disable-userns" in action for action in actions)
    assert any("namespaces-nosuid" in action for action in actions)


def test_a_secret_is_not_printed_and_nothing_moves_the_cursor() -> None:
    wanted = plan(
        grants=(read("/a\x1b[2Jb"),),
        variables=(Variable("TOKEN", "s3cret", WHY, secret=True), Variable("A", "x\ny", WHY)),
    )
    text = "\n".join(printed(wanted))
    assert "s3cret" not in text
    assert "TOKEN=(secret)" in text
    assert "\x1b" not in text
    assert "A=x\\ny" in text


def test_as_root_it_says_who_the_sandbox_becomes() -> None:
    wanted = plan(grants=(read("/usr"), read("/srv/x"), write("/opt/w")))
    actions = printed(wanted, AS_ROOT)
    assert any("uid and gid 1900000000" in action for action in actions)
    assert "show /usr (read-only)" in actions
    assert "show /srv/x (read-only), its owner as the sandbox's user" in actions
    assert "show /opt/w (read and write), its owner as the sandbox's user" in actions


def test_limits_of_the_policy_are_printed() -> None:
    assert "resource limit nofile=32" in printed(plan(limits=Limits(open_files=32)))


def test_when_the_view_is_built_by_us() -> None:
    few = plan(grants=(read("/usr"), read("/etc/x"), read("/data")))
    many = plan(grants=tuple(read(f"/data/{n}") for n in range(60)))
    assert not is_staged(laid_out(few), None)
    assert is_staged(laid_out(few), 1_900_000_000)
    assert not is_staged(laid_out(plan(grants=(read("/usr"),))), 1_900_000_000)
    assert is_staged(laid_out(plan(grants=(write("/usr/local/x"),))), 1_900_000_000)
    assert is_staged(laid_out(many), None)


def gaps(**fields: object) -> list[tuple[str, bool]]:
    wanted = plan(**{"grants": (read("/usr"),), **fields})
    return [(gap.protection, gap.documented) for gap in launching.gaps(wanted, laid_out(wanted), STARTER)]


def test_an_ordinary_plan_has_no_gap() -> None:
    assert gaps(limits=Limits(timeout=1, output=1, file_size=1, open_files=1)) == []
    assert gaps(network=Network.loopback()) == []
    assert gaps(network=Network.loopback([80])) == []
    assert gaps(network=Network.allow("example.com:443")) == []
    assert gaps(hidden=(hidden("/usr/x"),)) == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"limits": Limits(memory="1M")}, [("limits.memory", False)]),
        ({"limits": Limits(cpu=1, processes=1)}, [("limits.cpu", False), ("limits.processes", False)]),
        ({"limits": Limits(disk="1M")}, [("limits.disk", False)]),
        ({"grants": (write("/w"),), "hidden": (hidden("/w/.env", "missing"),)}, [("deny", False)]),
        ({"grants": (), "limits": Limits(file_size=1)}, [("limits.file_size", False)]),
    ],
)
def test_what_it_cannot_hold(fields: dict[str, object], expected: list[tuple[str, bool]]) -> None:
    assert gaps(**fields) == expected


def test_abstract_sockets_are_a_documented_gap_where_the_kernel_cannot_keep_them_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(abstract_sockets, "prefix", lambda: ())
    assert gaps(network=Network.open()) == [("sockets", True)]
    assert gaps(network=Network.deny()) == []
    monkeypatch.setattr(abstract_sockets, "prefix", lambda: ("python",))
    assert gaps(network=Network.open()) == []


def test_root_becomes_another_without_nsenter_unless_there_are_mounts_to_enter() -> None:
    """From util-linux 2.41 on nsenter refuses to run without a namespace."""
    give = Descriptors()
    assert launching._entering(STARTER, None, give).before == ()
    words = ("/usr/bin/setpriv", "--reuid=1900000000", "--regid=1900000000", "--clear-groups", "--")
    assert launching._entering(AS_ROOT, None, give).before == words


# Why a bwrap that is there does not confine.


@pytest.mark.parametrize(
    ("problem", "message", "facts", "why"),
    [
        (
            "no system call filter",
            "",
            UsernsFacts("namespace", 1),
            "without confining it: no system call filter",
        ),
        (
            "the command did not run",
            "bwrap: No permissions",
            UsernsFacts("namespace", 1, seccomp=True),
            "seccomp",
        ),
        ("the command did not run", "", UsernsFacts(""), "without a word"),
        ("the command did not run", "warning\nbwrap: odd", UsernsFacts(""), "bwrap: odd"),
    ],
)
def test_the_cause_is_the_true_one(problem: str, message: str, facts: UsernsFacts, why: str) -> None:
    found, fix = judge("/usr/bin/bwrap", problem, message, facts)
    assert why in found
    assert fix


# Which bwrap is there, as its own file tells.


def made(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_version_and_abilities_are_read_from_the_file(tmp_path: Path) -> None:
    path = made(tmp_path / "bwrap", "\0bubblewrap is\0bubblewrap 0.11.2\0--ro-bind-fd\0")
    assert bwrap.describe(path) == bwrap.Bubblewrap("0.11.2", True)


def test_a_script_is_asked(tmp_path: Path) -> None:
    text = '#!/bin/sh\ntest "$1" = --help && echo "--ro-bind-fd FD" || echo bubblewrap "0.9.0"\n'
    assert bwrap.describe(made(tmp_path / "bwrap", text)) == bwrap.Bubblewrap("0.9.0", True)
    assert bwrap.describe(made(tmp_path / "bwrap", "#!/bin/sh\nexit 1\n")).version == ""


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("0.8.0", False),
        ("0.8", True),
        ("0.12.0", False),
        ("1.0", False),
        ("0.7.9", True),
        ("", True),
        ("x.y", True),
    ],
)
def test_versions(version: str, old: bool) -> None:
    assert bwrap.is_old(version) is old
