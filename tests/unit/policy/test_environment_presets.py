"""Which variables a command begins with: nothing of the host's, the harmless ones, none."""

from __future__ import annotations

from pathlib import Path

import pytest

from staddle import Policy
from staddle.errors import PolicyError
from staddle.policy.compiler import compile as compile_policy
from staddle.policy.environment import is_inherited
from staddle.policy.secrets import is_secret

HOST = {
    "EDITOR": "vim",
    "LANG": "de_DE.UTF-8",
    "MY_PROJECT": "x",
    "HOME": "/home/me",
    "PATH": "/home/me/bin:/usr/bin",
    "SSH_AUTH_SOCK": "/run/agent",
    "API_TOKEN": "abc",
    "FOO": "ghp_0123456789abcdefghij",
    "LD_PRELOAD": "/x.so",
}


def variables(policy: Policy, tmp_path: Path) -> dict[str, str]:
    return compile_policy(policy, cwd=str(tmp_path), host_env=HOST, home=str(tmp_path)).environment()


def test_a_clean_linux_has_nothing_of_the_hosts(tmp_path: Path) -> None:
    found = variables(Policy().with_read(tmp_path), tmp_path)
    names = ("HOME", "HOSTNAME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")
    assert set(found) == {*names, "STADDLE_SANDBOX"}
    assert found["HOME"] == "/home/user"
    assert found["LANG"] == "C.UTF-8"


def test_what_is_inherited_looks_harmless(tmp_path: Path) -> None:
    found = variables(Policy(environment="inherit").with_read(tmp_path), tmp_path)
    assert found["EDITOR"] == "vim"
    assert found["LANG"] == "de_DE.UTF-8"
    assert found["MY_PROJECT"] == "x"
    assert found["HOME"] == "/home/user"
    assert "/home/me" not in found["PATH"]
    assert not {"SSH_AUTH_SOCK", "API_TOKEN", "FOO", "LD_PRELOAD"} & set(found)


def test_a_secret_that_is_named_is_passed(tmp_path: Path) -> None:
    policy = Policy(environment="inherit", pass_env=["API_TOKEN"]).with_read(tmp_path)
    assert variables(policy, tmp_path)["API_TOKEN"] == "abc"


def test_nothing_is_nothing_but_what_is_said(tmp_path: Path) -> None:
    policy = Policy(environment="empty", env={"A": "1"}).with_read(tmp_path)
    assert variables(policy, tmp_path) == {"A": "1"}


def test_there_is_no_other_preset() -> None:
    with pytest.raises(PolicyError, match="choose one of linux, inherit, empty"):
        Policy(environment="host")
    assert Policy().with_environment("empty").environment == "empty"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GITHUB_TOKEN", "x"),
        ("db_password", "x"),
        ("STRIPE_KEY", "x"),
        ("DATABASE_URL", "postgres://me:pw@db/x"),
        ("SENTRY_DSN", "https://public.example/1"),
        ("SLACK_WEBHOOK", "https://hooks.example/x"),
        ("AWS_SESSION_ID", "1"),
        ("ANYTHING", "sk-0123456789abcdef0123"),
        ("ANYTHING", "-----BEGIN PRIVATE KEY-----"),
        ("ANYTHING", "AKIA0123456789ABCDEF"),
        ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/x"),
        ("XDG_RUNTIME_DIR", "/run/user/1"),
        ("BASH_FUNC_ls%%", "() { rm -rf /; }"),
        ("ls", "() { rm -rf /; }"),
        ("GIT_ASKPASS", "/x"),
        ("SUDO_USER", "me"),
        ("PYTHONPATH", "/home/me/lib"),
        ("NODE_OPTIONS", "--require /x.js"),
        ("BAD", "\udcff\ud800"),
    ],
)
def test_what_is_never_inherited(name: str, value: str) -> None:
    assert not is_inherited(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("EDITOR", "vim"), ("CI", "1"), ("KEYBOARD", "us"), ("TZ", "UTC"), ("NUMBER", "sk-1"), ("LC_ALL", "C")],
)
def test_what_is(name: str, value: str) -> None:
    assert is_inherited(name, value)
    assert not is_secret(name, value)
