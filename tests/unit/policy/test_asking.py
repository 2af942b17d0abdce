"""A plan in which somebody is asked."""

from __future__ import annotations

import pytest

from staddle import Network
from staddle.errors import PolicyError
from staddle.policy.compiler import asking
from staddle.policy.network import whole_seconds
from staddle.policy.plan import Text
from staddle.policy.system import RESOLV_CONF
from tests.unit.mounts.plans import plan


@pytest.mark.parametrize(("given", "taken"), [(1, 1), (0.2, 1), (5.0, 5), (1.5, 2), (3600, 3600)])
def test_a_time_is_rounded_up_to_whole_seconds(given: float, taken: int) -> None:
    assert whole_seconds(given) == taken


@pytest.mark.parametrize("given", [0, -1, 3601, float("nan"), float("inf"), True, None, "5"])
def test_any_other_time_is_an_error(given: object) -> None:
    with pytest.raises(PolicyError, match="on_connect_timeout"):
        whole_seconds(given)


def test_names_are_asked_of_our_resolver_also_where_there_is_no_list() -> None:
    texts = (Text("/etc/resolv.conf", b"", "made up"), Text("/etc/hosts", b"", "made up"))
    for network in (Network.deny(), Network.loopback([80])):
        made = asking(plan(network=network, texts=texts), 5)
        assert made.asks == 5
        assert {text.path: text.content for text in made.texts} == {
            "/etc/resolv.conf": RESOLV_CONF,
            "/etc/hosts": b"",
        }


def test_without_anybody_to_ask_it_is_the_same_plan() -> None:
    wanted = plan(network=Network.open())
    assert asking(wanted, 0) is wanted


def test_an_open_network_leaves_nothing_to_decide() -> None:
    with pytest.raises(PolicyError, match="nothing to decide"):
        asking(plan(network=Network.open()), 5)
