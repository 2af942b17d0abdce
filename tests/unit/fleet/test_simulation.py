"""Placement and retries hold in a simulation with nodes that die: `make test-fleet` runs it at full size."""

from __future__ import annotations

import pytest

from tests.support.fleet_simulation import simulate

pytestmark = pytest.mark.same_for_everyone


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("retries", [0, 3])
def test_every_task_has_one_outcome_and_no_more_starts_than_allowed(seed: int, retries: int) -> None:
    found = simulate(
        nodes=40, per_node=4, tasks=4000, retries=retries, deaths=30, seed=seed, ordered=bool(seed % 2)
    )
    assert found.problems == []
    assert found.finished == 4000
    assert found.deaths > 10
    assert found.most_starts == 1 if retries == 0 else found.most_starts <= retries + 1
    assert found.lost > 0 if retries == 0 else found.retried > 0


def test_the_same_seed_is_the_same_run() -> None:
    first, second = (simulate(nodes=10, per_node=2, tasks=500, retries=1, deaths=5, seed=7) for _ in range(2))
    assert (first.lost, first.retried, first.deaths) == (second.lost, second.retried, second.deaths)
