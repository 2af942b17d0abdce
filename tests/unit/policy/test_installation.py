"""The policy of an installation: it refuses for everybody, and a file that is not root's refuses all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle import LocalEnvironment, Network, Policy, Sandbox, wrap
from staddle.errors import BackendUnavailable, PolicyError, PolicyNotEnforceable, UnknownBackend
from staddle.policy import installation


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "etc"
    place.mkdir(mode=0o755)
    monkeypatch.setattr(installation, "PATH", f"{place}/policy.toml")
    monkeypatch.setattr(installation, "_OWNER", os.geteuid())
    monkeypatch.chdir("/")
    return place / "policy.toml"


def write(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o644)


def test_native_can_be_forbidden(file: Path, tmp_path: Path) -> None:
    wrap(["true"], Policy.agent(), backend="native").close()
    write(file, '[refuse]\nbackends = ["native"]\n')
    for attempt in (
        lambda: wrap(["true"], Policy.agent(), backend="native"),
        lambda: Sandbox(backend="native"),
        lambda: LocalEnvironment(tmp_path, backend="native").exec_command("true"),
        lambda: LocalEnvironment(tmp_path, backend="native", on_unavailable="record").exec_command("true"),
    ):
        with pytest.raises(BackendUnavailable, match="not allowed on this host"):
            attempt()
    wrap(["true"], Policy.agent()).close()
    os.unlink(file)
    wrap(["true"], Policy.agent(), backend="native").close()


def test_auto_passes_over_what_is_refused(file: Path) -> None:
    write(file, '[refuse]\nbackends = ["namespaces", "systemd"]\n')
    chosen = wrap(["true"], Policy.agent(), best_effort=True)
    chosen.close()
    assert chosen.backend in ("bwrap", "landlock")
    assert "installation refuses it" in chosen.enforced.why


def test_networks_and_gaps_can_be_refused(file: Path) -> None:
    write(file, '[refuse]\nnetworks = ["open"]\nbest_effort = true\n')
    with pytest.raises(PolicyNotEnforceable, match="'open' is not allowed"):
        wrap(["true"], Policy.agent().with_network(Network.open()))
    with pytest.raises(PolicyNotEnforceable, match="gaps"):
        wrap(["true"], Policy.agent(), best_effort=True)
    wrap(["true"], Policy.agent()).close()


@pytest.mark.parametrize(
    "text",
    [
        "[defaults]\nnothing = 1",
        "defaults = 1",
        "refuse = 1",
        '[refuse]\nbackend = ["native"]',
        '[refuse]\nbackends = "native"',
        '[refuse]\nnetworks = ["wild"]',
        '[refuse]\nbest_effort = "yes"',
        "nonsense",
        "",
        "# [refuse]\n",
        "#" * 65_536 + '\n[refuse]\nbackends = ["native"]\n',
    ],
)
def test_a_file_that_makes_no_sense_refuses_everything(file: Path, text: str) -> None:
    write(file, text)
    with pytest.raises(PolicyError, match=r"policy\.toml"):
        wrap(["true"], Policy.agent())


def test_a_misspelt_backend_is_an_error(file: Path) -> None:
    write(file, '[refuse]\nbackends = ["nativ"]\n')
    with pytest.raises(UnknownBackend, match=r"policy\.toml") as caught:
        wrap(["true"], Policy.agent())
    assert "nativ" in caught.value.what


def test_what_is_there_and_is_no_file_refuses_everything(file: Path, tmp_path: Path) -> None:
    def refused(match: str) -> None:
        with pytest.raises(PolicyError, match=match):
            wrap(["true"], Policy.agent(), backend="native")

    file.symlink_to(tmp_path / "nowhere")
    refused("link to nothing")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)  # whoever may take the file away may undo what it refuses
    write(shared / "policy.toml", '[refuse]\nbackends = ["native"]\n')
    file.unlink()
    file.symlink_to(shared / "policy.toml")
    refused("others than root")
    shared.chmod(0o755)
    with pytest.raises(BackendUnavailable):
        wrap(["true"], Policy.agent(), backend="native")
    file.unlink()
    os.mkfifo(file, 0o644)
    refused("regular file")
    file.unlink()
    file.mkdir(0o755)
    refused("regular file|directory")
    file.rmdir()
    file.parent.rmdir()
    file.parent.symlink_to(tmp_path / "nowhere")
    refused("link to nothing")


def test_a_file_that_others_may_change_refuses_everything(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, '[refuse]\nbackends = ["native"]\n')
    for path, mode in ((file, 0o664), (file, 0o646), (file.parent, 0o777)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(PolicyError, match="others than root"):
            installation._read()
        path.chmod(before)
    monkeypatch.setattr(installation, "_OWNER", os.geteuid() + 1)
    with pytest.raises(PolicyError, match="others than root"):
        installation._read()


def test_a_policy_of_nobody_is_the_installations(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from staddle.sandbox.open import settings

    assert installation.default_policy() == Policy.agent()
    write(file, '[defaults]\nredact = false\n[defaults.network]\nallow = ["a.example"]\n')
    assert installation.default_policy() == Policy.agent().with_redact(False).with_network(
        Network.allow("a.example")
    )
    assert Policy.agent().network == Network.deny()  # who names a policy has that one
    monkeypatch.setattr(settings, "_USUAL", [])
    assert settings.settings().policy.redact is False
