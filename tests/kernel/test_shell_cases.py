"""A shell answers as bash does, whatever it is given, and is whole afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.shell_cases import CASES, Step
from tests.support.shell_habitats import FULLY, HABITATS, TriedShell

#: In the habitats that take longer to open, and as the second of two users: one of so many.
PART = 5


@pytest.fixture
def sandbox_shell(habitat: str) -> Iterator[TriedShell]:
    """A fresh shell in an empty directory."""
    with HABITATS[habitat]() as made:
        yield made


def tried() -> list[Any]:
    part = list(CASES)[::PART]
    marks = {name: () if name in part else pytest.mark.same_for_everyone for name in CASES}
    everywhere = [pytest.param(habitat, name, marks=marks[name]) for habitat in FULLY for name in CASES]
    others = [habitat for habitat in HABITATS if habitat not in FULLY]
    return everywhere + [(habitat, name) for habitat in others for name in part]


@pytest.mark.parametrize(("habitat", "name"), tried())
def test_case(sandbox_shell: TriedShell, name: str) -> None:
    for number, step in enumerate(CASES[name]):
        check(sandbox_shell, step, f"step {number}: {step.text[:200]!r}")
    assert b"whole\n" in sandbox_shell.run("command echo whole >&2").err


def check(shell: TriedShell, step: Step, where: str) -> None:
    out, err, outcome = shell.run(step.text, **step.options)
    for stream, wanted, got in (("out", step.out, out), ("err", step.err, err)):
        if wanted is not None:
            exact = wanted.encode() if isinstance(wanted, str) else wanted
            assert got == exact, f"{where}: {stream} (err: {err[:300]!r})"
    assert outcome.exit_code == step.code, f"{where}: {outcome} {err[:300]!r}"
    if step.exited is not None:
        assert outcome.shell_exited == step.exited, f"{where}: {outcome}"
    if step.reason is not None:
        assert outcome.reason == step.reason, where
