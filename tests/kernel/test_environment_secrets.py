"""Secrets of a real command: not passed on unless named, and not seen in what comes back."""

from __future__ import annotations

import asyncio
import os
import traceback
from pathlib import Path

import pytest

from staddle import LocalEnvironment, Policy
from staddle.environment import AsyncLocalEnvironment
from staddle.errors import CommandCancelled, CommandNotFound, CommandTimeout, PolicyError
from tests.support.waiting import as_soon_as

KEY = "sk-live-0123456789abcdef"
every = pytest.mark.parametrize("backend", ["bwrap", "landlock", "native"])


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", KEY)
    monkeypatch.setenv("DEPLOY_TARGET", "hidden-by-name-only")
    monkeypatch.setenv("GITHUB_TOKEN", "never passed on")


def passing(place: Path, backend: str, **kwargs: object) -> LocalEnvironment:
    policy = Policy.agent().with_pass_env("SERVICE_API_KEY", "DEPLOY_TARGET")
    return LocalEnvironment(place, policy=policy, backend=backend, **kwargs)  # type: ignore[arg-type]


@pytest.mark.same_for_everyone
@every
@pytest.mark.usefixtures("host")
def test_only_named_variables_are_passed_on(tmp_path: Path, backend: str) -> None:
    unnamed = LocalEnvironment(tmp_path, backend=backend).exec_command("env").stdout
    for secret in (KEY, "SERVICE_API_KEY", "GITHUB_TOKEN", "never passed on"):
        assert secret not in unnamed
    named = passing(tmp_path, backend).exec_command("env").stdout
    assert "SERVICE_API_KEY=(hidden)\n" in named
    assert "DEPLOY_TARGET=hidden-by-name-only\n" in named
    assert "GITHUB_TOKEN" not in named


@every
@pytest.mark.usefixtures("host")
def test_the_command_has_the_value_and_nobody_else(tmp_path: Path, backend: str) -> None:
    env = passing(tmp_path, backend, secrets=["DEPLOY_TARGET"])
    script = (
        'printf %s "$SERVICE_API_KEY" | wc -c; echo "$SERVICE_API_KEY" "$DEPLOY_TARGET" | tee /dev/stderr'
    )
    result = env.exec_command("sh", ["-c", script])
    assert result.stdout == f"{len(KEY)}\n(hidden) (hidden)\n"
    assert result.stderr == "(hidden) (hidden)\n"
    called = env.exec_command_with_limit(
        "sh", ["-c", "echo $MY_TOKEN"], env={"MY_TOKEN": "given-with-the-call"}
    )
    assert called.stdout == "(hidden)\n"


@pytest.mark.same_for_everyone
@every
@pytest.mark.usefixtures("host")
def test_it_is_found_in_pieces_and_at_the_edge_of_what_is_kept(tmp_path: Path, backend: str) -> None:
    env = passing(tmp_path, backend)
    pieces = 'for i in $(seq 1 ${#K}); do printf %s "$(expr substr "$K" $i 1)"; done'
    result = env.exec_command("sh", ["-c", f"K=$SERVICE_API_KEY; {pieces}; sleep 0.1; echo"])
    assert result.stdout == "(hidden)\n"
    for limit in (1, 5, 10, 20):
        cut = env.exec_command_with_limit("sh", ["-c", "echo x $SERVICE_API_KEY"], output_limit=limit)
        assert cut.stdout == "x (hidden)\n"[-limit:]
        assert cut.stdout_bytes_dropped == max(0, len("x (hidden)\n") - limit)


@pytest.mark.same_for_everyone
@every
@pytest.mark.usefixtures("host")
def test_errors_and_what_they_carry_do_not_show_it(tmp_path: Path, backend: str) -> None:
    env = passing(tmp_path, backend)
    with pytest.raises(CommandTimeout) as late:
        env.exec_command("sh", ["-c", "echo $SERVICE_API_KEY; exec sleep 60"], 0.7)
    assert late.value.result is not None
    assert late.value.result.stdout == "(hidden)\n"
    with pytest.raises(CommandNotFound) as missing:
        env.exec_command(KEY)
    with pytest.raises(PolicyError) as wrong:
        env.exec_command_with_limit("true", env={"OTHER_KEY": KEY.encode()})  # type: ignore[dict-item]
    for error in (late.value, missing.value, wrong.value):
        shown = "".join(traceback.format_exception_only(error)) + repr(error) + repr(vars(error))
        assert KEY not in shown


@pytest.mark.same_for_everyone
@every
@pytest.mark.usefixtures("host")
def test_events_do_not_show_it(tmp_path: Path, backend: str) -> None:
    script = 'mkdir "$SERVICE_API_KEY" && echo x > "$SERVICE_API_KEY/.bashrc"'
    result = passing(tmp_path, backend).exec_command("sh", ["-c", script])
    assert [event.what for event in result.violations] == [f"{tmp_path}/(hidden)/.bashrc"]
    assert os.listdir(tmp_path) == [KEY]


@pytest.mark.same_for_everyone
@pytest.mark.usefixtures("host")
def test_a_cancelled_command_does_not_show_it_either(tmp_path: Path) -> None:
    import threading

    cancel = threading.Event()
    as_soon_as((tmp_path / "begun").exists, cancel.set)
    with pytest.raises(CommandCancelled) as ended:
        passing(tmp_path, "auto").exec_command(
            "sh", ["-c", "echo $SERVICE_API_KEY; touch begun; exec sleep 60"], cancel=cancel
        )
    assert ended.value.result is not None
    assert ended.value.result.stdout == "(hidden)\n"


@pytest.mark.same_for_everyone
@pytest.mark.usefixtures("host")
def test_the_awaited_tools_hide_it_too(tmp_path: Path) -> None:
    env = AsyncLocalEnvironment(passing(tmp_path, "auto"))
    assert asyncio.run(env.exec_command("sh", ["-c", "echo $SERVICE_API_KEY"])).stdout == "(hidden)\n"


@pytest.mark.same_for_everyone
def test_names_of_secrets_are_names(tmp_path: Path) -> None:
    for bad in ("KEY", ["A=B"], [""], [3], {"KEY": "x"}):
        with pytest.raises(PolicyError):
            LocalEnvironment(tmp_path, secrets=bad)  # type: ignore[arg-type]
