"""`help()` shows the options of a command by name, and each one that it shows is taken."""

from __future__ import annotations

import inspect

import pytest

from staddle import AsyncSandbox, Sandbox
from staddle.sandbox import arguments
from staddle.sandbox.aio.session import AsyncSession
from staddle.sandbox.capture import CapturedCommand
from staddle.sandbox.session import Session

METHODS = [
    *((face, name) for face in (Sandbox, AsyncSandbox) for name in ("run", "exec", "stream", "start")),
    *((AsyncSession, name) for name in ("run", "stream")),
]


@pytest.mark.parametrize(("face", "name"), METHODS, ids=lambda each: getattr(each, "__name__", each))
def test_no_option_is_hidden_behind_two_stars(face: type, name: str) -> None:
    shown = inspect.signature(getattr(face, name)).parameters
    assert all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in shown.values())
    assert {"timeout", "merge"} <= set(shown)
    assert ("cancel" in shown) == (face is Sandbox and name in {"run", "exec"})


def test_a_sandbox_shows_its_own() -> None:
    for face in (Sandbox, AsyncSandbox):
        assert {"identity", "environment", "base", "workdir", "freeze"} <= set(
            inspect.signature(face).parameters
        )


def test_what_is_shown_is_what_is_taken() -> None:
    run = inspect.signature(Session.run).parameters
    for name, (_, default) in arguments._SHOWN.items():
        assert run[name].default is default
    assert set(arguments._OF["WaitedRunOptions"]) == set(run) - {"self", "command", "unknown"}
    taken = set(inspect.signature(CapturedCommand.__init__).parameters)
    assert set(arguments._OF["StreamOptions"]) <= taken


def test_an_unknown_option_of_a_sandbox_is_still_told_where_it_belongs() -> None:
    with pytest.raises(TypeError, match="belongs to a policy"):
        Sandbox(network="open")  # type: ignore[call-arg]
