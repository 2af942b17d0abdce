"""Placement: rooms are never overbooked, tenants have their share, those who wait are served in turn."""

from __future__ import annotations

import random

import pytest

from staddle.errors import FleetBusy, FleetLost, InvalidCall, SandboxLost
from staddle.fleet.placement import FleetLimits, Placement, Reservation

pytestmark = pytest.mark.same_for_everyone


def placement(*capacities: int, **limits: object) -> Placement:
    made = Placement(FleetLimits(**limits))  # type: ignore[arg-type]
    for number, capacity in enumerate(capacities):
        made.join(f"n{number}", capacity)
    return made


def test_the_emptiest_node_is_taken() -> None:
    nodes = [placed.result().node for placed in map(placement(2, 4).ask, [""] * 6)]
    assert sorted(nodes) == ["n0"] * 2 + ["n1"] * 4


def test_a_full_fleet_makes_wait_and_a_release_serves_the_first() -> None:
    fleet = placement(1)
    first = fleet.ask().result()
    second, third = fleet.ask(), fleet.ask()
    assert not second.done()
    assert fleet.waiting == 2
    fleet.release(first)
    assert second.result().node == "n0"
    assert not third.done()
    fleet.release(first)  # a second time does nothing
    assert not third.done()


def test_too_many_that_wait_are_refused() -> None:
    fleet = placement(1, waiting=1)
    fleet.ask()
    fleet.ask()
    with pytest.raises(FleetBusy, match="1 requests for a sandbox wait already"):
        fleet.ask()


def test_a_tenant_has_no_more_than_its_share_and_others_pass_it() -> None:
    fleet = placement(10, tenant=2, tenants={"big": 5})
    greedy = [fleet.ask("greedy") for _ in range(4)]
    assert [each.done() for each in greedy] == [True, True, False, False]
    assert all(fleet.ask("big").done() for _ in range(5))
    assert fleet.ask("other").done()
    fleet.release(greedy[0].result())
    assert greedy[2].done()
    assert fleet.of_tenants() == {"greedy": 2, "big": 5, "other": 1}


def test_tenants_take_turns() -> None:
    fleet = placement(1)
    holder = fleet.ask("x").result()
    asked = [(name, fleet.ask(name)) for name in ("a", "a", "a", "b")]
    served = []
    for _ in asked:
        fleet.release(holder)
        name, future = next((name, future) for name, future in asked if future.done())
        asked.remove((name, future))
        served.append(name)
        holder = future.result()
    assert served[:2] in (["a", "b"], ["b", "a"])


def test_a_lost_node_loses_its_grants_and_comes_back_empty() -> None:
    fleet = placement(2)
    grants = [fleet.ask().result() for _ in range(2)]
    waiting = fleet.ask()
    assert fleet.leave("n0") == grants
    assert not waiting.done()
    fleet.release(grants[0])
    assert fleet.grants == {}
    fleet.join("n0", 2)
    assert waiting.result().node == "n0"


def test_content_is_a_reason_to_be_placed_there() -> None:
    fleet = placement(10, 10)
    fleet.has_content("n1", "tree")
    assert [fleet.ask(content="tree").result().node for _ in range(3)] == ["n1"] * 3


def test_only_one_node_will_do() -> None:
    fleet = placement(1, 1)
    assert fleet.ask(only="n1").result().node == "n1"
    waiting = fleet.ask(only="n1")
    assert not waiting.done()
    assert fleet.ask().result().node == "n0"
    fleet.leave("n1")
    with pytest.raises(SandboxLost):
        waiting.result(timeout=0)


def test_what_waits_when_a_fleet_is_closed_gets_its_error() -> None:
    fleet = placement(1)
    fleet.ask()
    waiting = fleet.ask()
    fleet.close(FleetLost("the fleet is closed"))
    with pytest.raises(FleetLost):
        waiting.result()
    with pytest.raises(FleetLost):
        fleet.ask()


def test_a_request_that_was_given_up_takes_no_room() -> None:
    fleet = placement(1)
    first = fleet.ask().result()
    fleet.ask().cancel()
    last = fleet.ask()
    fleet.release(first)
    assert last.result().node == "n0"


def test_a_request_that_was_withdrawn_does_not_wait() -> None:
    fleet = placement(1, tenant=1, waiting=1)
    first = fleet.ask("a").result()
    late = fleet.ask("a")
    fleet.withdraw(late)
    assert late.cancelled()
    assert fleet.waiting == 0
    other = fleet.ask("b")  # not refused: nothing waits
    fleet.withdraw(other)
    fleet.release(first)
    assert fleet.ask("a").done()


def test_what_was_granted_is_given_back_when_it_is_withdrawn() -> None:
    fleet = placement(1)
    first = fleet.ask()
    second = fleet.ask()
    fleet.withdraw(first)
    assert second.done()
    fleet.withdraw(second)
    assert not fleet.grants
    assert fleet.nodes["n0"].used == 0


@pytest.mark.parametrize(
    "wrong", [{"per_node": 0}, {"tenant": True}, {"tenants": {"a": -1}}, {"waiting": -1}]
)
def test_limits_that_mean_nothing_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidCall):
        FleetLimits(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_ever_overbooked(seed: int) -> None:
    """A random walk of joins, losses, requests and releases."""
    dice = random.Random(seed)  # noqa: S311
    fleet = placement(tenant=7, total=40)
    held: list[Reservation] = []
    asked = []
    for _ in range(1000):
        what = dice.random()
        if what < 0.05:
            fleet.join(f"n{dice.randrange(8)}", dice.randrange(1, 6))
        elif what < 0.08 and fleet.nodes:
            for lost in fleet.leave(dice.choice(list(fleet.nodes))):
                held = [each for each in held if each is not lost]
        elif what < 0.6:
            asked.append(fleet.ask(f"t{dice.randrange(4)}"))
        elif what < 0.7 and asked:
            fleet.withdraw(asked.pop(dice.randrange(len(asked))))
        elif held:
            fleet.release(held.pop(dice.randrange(len(held))))
        for future in [each for each in asked if each.done()]:
            asked.remove(future)
            if future.result().serial in fleet.grants:
                held.append(future.result())
        assert all(0 <= room.used <= room.capacity for room in fleet.nodes.values())
        assert sum(room.used for room in fleet.nodes.values()) == len(fleet.grants) <= 40
        assert all(number <= 7 for number in fleet.of_tenants().values())
        assert fleet.waiting == len(asked)
        free = any(room.free for room in fleet.nodes.values()) and len(fleet.grants) < 40
        may = [name for name, _ in fleet._queues if fleet.of_tenants().get(name, 0) < 7]
        assert not (free and may), "room is free, and a request waits that may have it"
