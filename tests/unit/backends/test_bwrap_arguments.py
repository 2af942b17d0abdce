"""Operations, rights and environment as bwrap's arguments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle.backends.bwrap import arguments
from staddle.backends.bwrap.launching import failure
from staddle.backends.launching import Descriptors
from staddle.errors import LaunchFailed, PolicyNotEnforceable
from staddle.mounts.operations import Bind, Devices, Directory, Empty, File, Mask, ProcMount, Seal, Symlink
from staddle.policy.limits import Limits
from staddle.policy.network import Network
from staddle.policy.plan import Variable
from tests.unit.mounts.plans import WHY, plan


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
