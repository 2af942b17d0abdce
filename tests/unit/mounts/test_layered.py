"""A directory whose changes go to a layer: on top of what the host has, below what is written directly."""

from __future__ import annotations

import pytest

from staddle import backends
from staddle.errors import PolicyNotEnforceable
from staddle.mounts.from_plan import Layout, lay_out
from staddle.mounts.operations import OVERLAY, Bind, Empty, Mask, Overlay, decode_operations
from staddle.policy.plan import Layered
from tests.unit.mounts.plans import WHY, DictHost, hidden, plan, read, scratch, write

LAYER = Layered("/p", "/up", "/work", WHY)


def of_plan(layout: Layout) -> list[object]:
    return [op for op in layout.operations if op.origin == WHY]


def test_it_lies_on_what_is_shown_and_covers_nothing_that_is_written_directly() -> None:
    asked = plan(grants=(read("/p"), write("/p/docs"), read("/p/src")), layers=(LAYER,))
    assert of_plan(lay_out(asked, DictHost())) == [
        Bind("/p", True, WHY),
        Overlay("/p", "/up", "/work", WHY),
        Bind("/p/docs", True, WHY, below=True),
    ]
    assert [asked.access(path) for path in ("/p", "/p/a/b", "/p/docs/x", "/q")] == ["write"] * 3 + ["none"]


def test_it_works_below_another_grant_and_in_a_private_directory() -> None:
    below = lay_out(plan(grants=(read("/"),), layers=(LAYER,)), DictHost())
    assert of_plan(below)[1:] == [Bind("/p", True, WHY, below=True), Overlay("/p", "/up", "/work", WHY)]
    layer = LAYER.replace(path="/tmp/a/p")
    private = lay_out(
        plan(grants=(read(layer.path),), scratch=(scratch("/tmp"),), layers=(layer,)), DictHost()
    )
    assert of_plan(private)[-2:] == [Bind("/tmp/a/p", True, WHY), Overlay("/tmp/a/p", "/up", "/work", WHY)]


def test_what_is_denied_is_hidden_in_it_and_what_is_not_there_cannot_come_out() -> None:
    denied = (hidden("/p/d"), hidden("/p/f", "file"), hidden("/p/later", "missing"))
    layout = lay_out(plan(grants=(read("/p"),), hidden=denied, layers=(LAYER,)), DictHost())
    assert layout.unheld == ()
    assert of_plan(layout)[2:] == [Empty("/p/d", 0, 4096, WHY, below=True), Mask("/p/f", WHY)]


def test_only_one_backend_has_them() -> None:
    for name in backends.NAMES:
        if name != "namespaces":
            with pytest.raises(PolicyNotEnforceable):
                backends.choose(plan(layers=(LAYER,)), name, best_effort=True)


@pytest.mark.parametrize("data", [b"", b"/up", b"/up\0work", b"up\0/work", b"/up\0/wo\0rk"])
def test_two_directories_are_needed(data: bytes) -> None:
    with pytest.raises(ValueError, match="two absolute paths"):
        decode_operations([(OVERLAY, b"/p", 0, 0, 0, data)])
