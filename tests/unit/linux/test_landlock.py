"""Landlock's rights are a table, and weakening is a pure function over it. No kernel is needed."""

from __future__ import annotations

import ctypes
import errno

import landlockpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from landlockpy import _syscall as oracle

from staddle.linux import landlock

LOST = {
    0: landlock.EVERYTHING,
    1: {"refer", "truncate", "bind_tcp", "connect_tcp", "ioctl_dev", "abstract_unix_socket", "signal"},
    2: {"truncate", "bind_tcp", "connect_tcp", "ioctl_dev", "abstract_unix_socket", "signal"},
    3: {"bind_tcp", "connect_tcp", "ioctl_dev", "abstract_unix_socket", "signal"},
    4: {"ioctl_dev", "abstract_unix_socket", "signal"},
    5: {"abstract_unix_socket", "signal"},
    6: set(),
    7: set(),
    99: set(),
}


@pytest.mark.parametrize(("abi", "lost"), LOST.items())
def test_weakening_says_what_a_kernel_cannot_do(abi: int, lost: set[str]) -> None:
    kept, missing = landlock.weaken(landlock.EVERYTHING, abi)
    assert missing == lost
    assert kept == landlock.EVERYTHING - lost


@given(st.sets(st.sampled_from(sorted(landlock.SINCE))), st.integers(0, 20))
def test_weakening_loses_nothing_silently(asked: set[str], abi: int) -> None:
    kept, lost = landlock.weaken(asked, abi)
    assert kept | lost == asked
    assert not kept & lost
    assert landlock.weaken(kept, abi) == (kept, frozenset())
    assert landlock.weaken(asked, abi + 1)[0] >= kept


def test_an_unknown_right_is_a_mistake_and_not_ignored() -> None:
    with pytest.raises(KeyError):
        landlock.weaken({"teleport"}, 7)


KINDS = {"fs": landlockpy.AccessFS, "net": landlockpy.AccessNet, "scope": landlockpy.Scope}
FOR_ABI = {"fs": landlockpy.fs_for_abi, "net": landlockpy.net_for_abi, "scope": landlockpy.scope_for_abi}


@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_are_those_of_landlockpy(kind: str) -> None:
    ours = {name: row[0] for name, row in landlock.RIGHTS[kind].items()}
    theirs = {flag.name.lower(): flag.value for flag in KINDS[kind] if flag.value}
    assert ours == theirs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("abi", range(12))
def test_the_abis_are_those_of_landlockpy(kind: str, abi: int) -> None:
    kept, _ = landlock.weaken(landlock.RIGHTS[kind], abi)
    assert landlock.bits(kept, kind) == FOR_ABI[kind](abi).value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fs", "net", "scoped", "size"),
    [(1, 0, 0, 8), (1, 2, 0, 16), (0, 2, 0, 16), (1, 2, 3, 24), (0, 0, 2, 24)],
)
def test_the_attributes_are_no_longer_than_an_old_kernel_takes(
    fs: int, net: int, scoped: int, size: int
) -> None:
    ours = landlock.attributes(fs, net, scoped)
    assert len(ours) == size
    assert bytes(oracle.RulesetAttr(fs, net, scoped))[:size] == ours
    assert ctypes.sizeof(oracle.PathBeneathAttr) == 12


def test_device_nodes_can_be_made_nowhere() -> None:
    for rights in (landlock.READ, landlock.WRITE):
        assert not rights & {"make_char", "make_block", "ioctl_dev"}
    assert landlock.READ < landlock.WRITE < landlock.FILES


def test_bits_of_another_kind_do_not_mix() -> None:
    assert landlock.bits({"execute", "bind_tcp", "signal"}, "fs") == 1
    assert landlock.bits({"execute", "bind_tcp", "signal"}, "net") == 1
    assert landlock.bits({"execute", "bind_tcp", "signal"}, "scope") == 2


@pytest.mark.parametrize(
    ("number", "word"), [(errno.ENOSYS, "no Landlock"), (errno.EOPNOTSUPP, "lsm="), (errno.EPERM, "refused")]
)
def test_without_landlock_the_reason_is_known(
    number: int, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, "no")

    monkeypatch.setattr(landlock, "call", refuse)
    assert landlock.abi() == 0
    assert word in landlock.why_not()
