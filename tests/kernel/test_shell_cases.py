"""A shell answers as bash does, whatever it is given, and is whole afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernel.shell_cases import CASES, Step
from tests.kernel.shell_habitats import FULLY, HABITATS, TriedShell

#: In the habitats that take longer to open: one of so many.
PART = 5


@pytest.fixture
def sandbox_shell(habitat: str) -> Iterator[TriedShell]:
    """A fresh shell in an empty directory."""
    with HABITATS[habitat]() as made:
        yield made


def tried() -> list[tuple[str, str]]:
    everywhere = [(habitat, name) for habitat in FULLY for name in CASES]
    others = [habitat for habitat in HABITATS if habitat not in FULLY]
    return everywhere + [(habitat, name) for habitat in others for name in list(CASES)[::PART]]


@pytest.mark.parametrize(("habitat", "name"), tried())
def test_case(sandbox_shell: TriedShell, name: str) -> None:
    for number, step in enumerate(CASES[name]):
        check(sandbox_shell, step, f"step {number}: {step.text[:200]!r}")
    if name != "extdebug with a false DEBUG trap":  # which vetoes this, too
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
