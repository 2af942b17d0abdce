"""Whoever the sandbox's user is inside, it is the same one outside, and nobody is two."""

from __future__ import annotations

import pytest

from staddle.inside.agent.confinement import _everybody
from staddle.ipc.forkserver_messages import OWNER


@pytest.mark.parametrize("number", [0, 1, 999, OWNER, 1001, 1500, 65533])
def test_the_users_number_leads_to_the_owner_of_its_files(number: int) -> None:
    found: dict[int, int] = {}
    for line in _everybody(number, OWNER).split(b"\n"):
        inside, outside, count = map(int, line.split())
        for step in range(count):
            assert inside + step not in found
            found[inside + step] = outside + step
    assert found[number] == OWNER
    assert len(set(found.values())) == len(found)
    assert all(inside == outside for inside, outside in found.items() if inside != number)
    assert set(range(65536)) - set(found) <= {OWNER}
