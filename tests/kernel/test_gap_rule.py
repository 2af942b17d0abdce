"""`auto` accepts no gap that nobody accepted, whichever way a sandbox is started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from staddle import AsyncSandbox, LocalEnvironment, Policy, Pool, Sandbox, backends, wrap
from staddle.backends.namespaces import Namespaces
from staddle.enforcement import Gap
from staddle.errors import PolicyNotEnforceable, StaddleError
from staddle.policy import installation

GAP = Gap("processes", "/proc is covered here", "use another host", documented=True)

Door = Callable[[Path, Policy, str], object]


def _session(mode: str) -> Door:
    def opened(path: Path, policy: Policy, backend: str) -> object:
        with Sandbox(path, policy, mode=mode, backend=backend) as sandbox:  # type: ignore[arg-type]
            return sandbox.enforced

    return opened


def _without_workspace(_: Path, policy: Policy, backend: str) -> object:
    with Sandbox(policy=policy, backend=backend) as sandbox:  # type: ignore[arg-type]
        return sandbox.enforced


def _kept(path: Path, policy: Policy, backend: str) -> object:
    with Sandbox(path, policy, keep="one", backend=backend) as sandbox:  # type: ignore[arg-type]
        return sandbox.enforced


def _wrapped(path: Path, policy: Policy, backend: str) -> object:
    command = wrap(["true"], policy.with_read(path), backend=backend)  # type: ignore[arg-type]
    try:
        return command.enforced
    finally:
        command.close()


def _with_limits(path: Path, policy: Policy, backend: str) -> object:
    return _session("overlay")(path, policy.with_limits(memory="512M"), backend)


def _tools(path: Path, policy: Policy, backend: str) -> object:
    with LocalEnvironment(path, ["*.txt"], policy=policy, backend=backend) as tools:  # type: ignore[arg-type]
        tools.exec_command("true", [])
        return tools.enforced


def _pool(path: Path, policy: Policy, backend: str) -> object:
    with Pool(1, workspace=path, policy=policy, backend=backend) as pool, pool.acquire() as sandbox:
        return sandbox.enforced


DOORS: dict[str, Door] = {
    **{f"Sandbox {mode}": _session(mode) for mode in ("overlay", "bind", "readonly", "copy")},
    "Sandbox()": _without_workspace,
    "Sandbox with limits": _with_limits,
    "kept": _kept,
    "wrap": _wrapped,
    "LocalEnvironment": _tools,
    "Pool": _pool,
}


@pytest.fixture(autouse=True)
def host_with_a_gap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(backends, "candidates", lambda: ("namespaces",))
    monkeypatch.setattr(Namespaces, "gaps", lambda *_: (GAP,))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("STADDLE_NESTED", raising=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for up in (tmp_path, *tmp_path.parents[:2]):
        up.chmod(0o755)
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.mark.parametrize("door", DOORS)
def test_a_gap_that_nobody_accepted_is_refused(project: Path, door: str) -> None:
    with pytest.raises(PolicyNotEnforceable, match="/proc is covered"):
        DOORS[door](project, Policy.agent(), "auto")


@pytest.mark.parametrize("door", DOORS)
def test_reasons_and_gaps_do_not_contradict_each_other(project: Path, door: str) -> None:
    for policy, backend in ((Policy.agent(nested=True), "auto"), (Policy.agent(), "namespaces")):
        enforced = DOORS[door](project, policy, backend)
        assert GAP in enforced.gaps  # type: ignore[attr-defined]
        assert "leaves no gap" not in enforced.why  # type: ignore[attr-defined]
        assert enforced.nested == (backend == "auto")  # type: ignore[attr-defined]


async def _awaited(project: Path) -> None:
    async with AsyncSandbox(project):
        pass


def test_an_awaited_sandbox_refuses_it_as_well(project: Path) -> None:
    with pytest.raises(PolicyNotEnforceable):
        asyncio.run(_awaited(project))


# A copy has nothing that is denied, and without a workspace there is nothing to hide.
@pytest.mark.parametrize("door", sorted(DOORS.keys() - {"Sandbox copy", "Sandbox()"}))
def test_the_denies_of_the_installation_hold_through_every_door(
    project: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    (project / "private").write_text("x")
    defaults = installation.Installation(defaults={"deny": [str(project / "private")]})
    monkeypatch.setattr(installation, "installation", lambda: defaults)
    monkeypatch.setattr(Namespaces, "gaps", lambda *_: ())
    seen: list[bool] = []

    def looked(plan: object, *_: object, **__: object) -> object:
        seen.append(any(item.origin.startswith("/etc/staddle") for item in plan.hidden))  # type: ignore[attr-defined]
        raise StaddleError("seen")

    monkeypatch.setattr(backends, "choose", looked)
    monkeypatch.setattr("staddle.wrapping.choose", looked)
    with pytest.raises(StaddleError):
        DOORS[door](project, Policy(), "namespaces")
    assert seen
    assert all(seen)


def test_a_copy_has_nothing_that_the_installation_denies(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "private").write_text("x")
    defaults = installation.Installation(defaults={"deny": [str(project / "private")]})
    monkeypatch.setattr(installation, "installation", lambda: defaults)
    with Sandbox(project, Policy(), mode="copy", backend="namespaces") as sandbox:
        assert sandbox.run("ls -A").stdout == ""
