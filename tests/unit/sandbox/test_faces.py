"""Both faces of a sandbox have the same names, and a sandbox is decided before anything is started."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from staddle import AsyncSandbox, PolicyNotEnforceable, Sandbox
from staddle.errors import InvalidCall
from staddle.faces import BlockingFace, FilesNames, Forwarded, SandboxNames, names
from staddle.sandbox import arguments
from staddle.sandbox.aio.sandbox import AsyncFiles
from staddle.sandbox.aio.session import AsyncSession
from staddle.sandbox.capture import CapturedCommand
from staddle.sandbox.files import Files
from staddle.sandbox.open import open as opening
from staddle.sandbox.open import settings
from staddle.sandbox.session import Session


@pytest.mark.parametrize(
    "name", ["__init__", "run", "exec", "stream", "start", "terminal", "session", "fork", "from_snapshot"]
)
def test_they_take_the_same_arguments(name: str) -> None:
    sync, awaited = (inspect.signature(getattr(cls, name)).parameters for cls in (Sandbox, AsyncSandbox))
    # A task is cancelled with asyncio's own means.
    assert [(p.name, p.kind, p.default) for p in sync.values() if p.name != "cancel"] == [
        (p.name, p.kind, p.default) for p in awaited.values()
    ]


@pytest.mark.parametrize(
    ("face", "table", "local"), [(AsyncSandbox, SandboxNames, Sandbox), (AsyncFiles, FilesNames, Files)]
)
def test_a_row_of_the_table_is_the_local_method_awaited(face: type, table: type, local: type) -> None:
    for name in names(table):
        method = getattr(face, name)
        assert inspect.iscoroutinefunction(method)
        assert inspect.signature(method) == inspect.signature(getattr(local, name))
        assert method.__doc__ == getattr(local, name).__doc__


def test_a_face_that_has_a_method_of_its_own_keeps_it() -> None:
    class Face(BlockingFace, FilesNames):
        def _forward(self, row: Forwarded[..., object], args: object, options: object) -> object:
            return row.name, args, options

    class Another(Face):
        read = Face.stat

    assert Face().read("a", limit=3) == ("read", ("a",), {"limit": 3})
    assert Another().read("a") == ("stat", ("a",), {})
    assert Another().write_many({}) == ("write_many", ({},), {})


def test_an_interpreter_that_the_policy_hides_is_granted_for_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "python"
    (prefix / "bin").mkdir(parents=True)
    program = prefix / "bin/python3"
    program.write_bytes(b"")
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(sys, "base_prefix", str(prefix))
    decided = opening.decide(settings.settings(backend="bwrap"))
    assert decided.plan.shows(str(program))
    assert not decided.plan.shows(str(tmp_path / "other"))
    assert not opening.decide(settings.settings(backend="native")).plan.shows(str(program))


def test_where_there_are_no_layers_it_is_told_that_there_is_a_copy(tmp_path: Path) -> None:
    for backend in ("bwrap", "landlock", "native"):
        decided = opening.decide(settings.settings(tmp_path, backend=backend))
        assert [gap.documented for gap in decided.enforced.gaps if gap.protection == "layers"] == [True]


def test_what_is_to_be_kept_needs_layers(tmp_path: Path) -> None:
    for backend in ("bwrap", "landlock", "native", "systemd"):
        with pytest.raises(PolicyNotEnforceable) as refusal:
            opening.decide(settings.settings(tmp_path, backend=backend, keep="x"))
        assert "mode='bind'" in refusal.value.fix
        assert refusal.value.gaps


def test_the_place_of_the_workspace_is_told_where_it_is_another(tmp_path: Path) -> None:
    decided = opening.decide(settings.settings(tmp_path, backend="native", mode="bind"))
    assert decided.plan.cwd == str(tmp_path)
    assert [gap for gap in decided.enforced.gaps if gap.protection == "workspace" and gap.documented]
    decided = opening.decide(settings.settings(tmp_path, backend="bwrap", mode="bind"))
    assert decided.plan.cwd == "/workspace"
    assert {gap.protection for gap in decided.enforced.gaps} == {
        "limits.memory",
        "limits.processes",
        "limits.disk",
    }


def test_what_is_checked_needs_no_sandbox(tmp_path: Path) -> None:
    Sandbox.check(backend="native")
    with pytest.raises(InvalidCall):
        Sandbox.check(workspace=tmp_path / "nowhere")


# `help()` shows the options of a command by name, and each one that it shows is taken.


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
