"""The environment inside: built from nothing, in one place."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from staddle import Policy
from staddle.errors import PolicyError
from staddle.hostinfo.secrets import is_secret
from staddle.policy.compiler import compile
from staddle.policy.compiler import compile as compile_policy
from staddle.policy.environment import Environment, is_inherited

HOST = {
    "HOME": "/nowhere",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "EDITOR": "vi",
    "API_TOKEN": "t0p",
    "LD_PRELOAD": "x",
}


def test_nothing_of_the_host_leaks() -> None:
    inside = compile(Policy(), host_env=HOST).environment()
    assert inside == {
        "HOME": "/home/user",
        "HOSTNAME": "sandbox",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "LOGNAME": "user",
        "PATH": "/home/user/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "SHELL": inside["SHELL"],
        "STADDLE_SANDBOX": "1",
        "TERM": "xterm-256color",
        "TMPDIR": "/tmp",
        "USER": "user",
    }


def test_later_ones_win() -> None:
    policy = Policy(pass_env=["EDITOR", "API_TOKEN"], env={"EDITOR": "ed", "LANG": "C", "A": "policy"})
    inside = compile(policy, env={"A": "call"}, host_env=HOST).environment()
    assert (inside["EDITOR"], inside["LANG"], inside["A"], inside["API_TOKEN"]) == ("ed", "C", "call", "t0p")


def test_a_locale_that_was_asked_for_wins() -> None:
    for policy in (
        Policy(env={"LANG": "de_DE.UTF-8"}),
        Policy(pass_env=["LC_TIME"]),
        Policy(env={"LC_ALL": "C"}),
    ):
        inside = compile(policy, host_env={"LC_TIME": "de_DE.UTF-8"}).environment()
        assert inside.get("LC_ALL") == policy.env.get("LC_ALL")
    assert compile(Policy(pass_env=["LC_TIME"]), host_env={}).environment()["LC_ALL"] == "C.UTF-8"


def test_every_variable_says_where_it_comes_from() -> None:
    policy = Policy(pass_env=["EDITOR"], env={"CI": "1"})
    plan = compile(policy, env={"X": "2"}, host_env=HOST)
    origins = {variable.name: variable.origin for variable in plan.variables}
    assert (origins["HOME"], origins["EDITOR"], origins["CI"], origins["X"]) == (
        "default",
        "pass_env",
        "env",
        "call",
    )
    assert [variable.name for variable in plan.variables] == sorted(origins)


def test_a_variable_that_is_not_set_outside_is_left_out_with_a_note() -> None:
    plan = compile(Policy(pass_env=["NOT_THERE"]), host_env=HOST)
    assert "NOT_THERE" not in plan.environment()
    assert any("NOT_THERE" in note.text for note in plan.notes)


@pytest.mark.parametrize("name", ["", "A=B", "A\0B", "\ud800", 5, None])
def test_names_that_cannot_be_are_refused(name: object) -> None:
    with pytest.raises(PolicyError):
        Policy(env={name: "x"})  # type: ignore[dict-item]
    with pytest.raises(PolicyError):
        Policy(pass_env=[name])  # type: ignore[list-item]
    with pytest.raises(PolicyError):
        compile(Policy(), env={name: "x"})  # type: ignore[dict-item]


@pytest.mark.parametrize("value", ["a\0b", "\ud800", 5, None, b"x", True])
def test_values_that_cannot_be_are_refused(value: object) -> None:
    with pytest.raises(PolicyError):
        Policy(env={"A": value})  # type: ignore[dict-item]


def test_odd_names_and_values_that_can_be_are_kept() -> None:
    odd = {"a-b": "x=y\n", "\udcff": "\udcfe", "ä": "", "BASH_FUNC_x%%": "() { :; }"}
    assert compile(Policy(env=odd)).environment().items() >= odd.items()


@pytest.mark.parametrize("env", [None, [], "A=B", 5])
def test_env_is_a_mapping(env: object) -> None:
    if env is None:
        assert Policy(env=None).env == {}
        return
    with pytest.raises(PolicyError):
        Policy(env=env)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        "GITHUB_TOKEN",
        "github_token",
        "AWS_SECRET_ACCESS_KEY",
        "OPENAI_API_KEY",
        "PGPASSWORD",
        "MYSQL_PWD",
        "DB_PASS",
        "SSH_KEY",
        "npm_config__auth",
        "APIKEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GH_PAT",
        "X-API-KEY",
    ],
)
def test_secrets_are_known_by_their_names(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "PWD", "OLDPWD", "LANG", "KEYBOARD", "MONKEY", "PATTERN", "CI"]
)
def test_ordinary_names_are_no_secrets(name: str) -> None:
    assert not is_secret(name, "https://example.com/a@b")


def test_an_address_with_a_password_is_a_secret() -> None:
    assert is_secret("DATABASE_URL", "postgres://user:pw@db/x")
    assert not is_secret("DATABASE_URL", "postgres://db/x")


def test_secrets_are_marked_in_the_plan_and_not_in_a_repr() -> None:
    policy = Policy(env={"MY_TOKEN": "t0ps3cret", "CI": "1"})
    marked = {variable.name: variable.secret for variable in compile(policy).variables}
    assert marked["MY_TOKEN"]
    assert not marked["CI"]
    assert "t0ps3cret" not in repr(policy)
    assert "'CI': '1'" in repr(policy)


def test_the_variables_of_a_policy_are_frozen() -> None:
    env = Policy(env={"A": "1"}).env
    for change in (
        lambda: env.update(A="2"),
        lambda: env.__setitem__("A", "2"),
        lambda: env.pop("A"),
        env.clear,
        lambda: env.setdefault("B", "2"),
        lambda: env.__delitem__("A"),
        lambda: env.__ior__({"A": "2"}),
        env.popitem,
    ):
        with pytest.raises(TypeError, match="frozen"):
            change()
    assert env == {"A": "1"}
    assert hash(Environment({"A": "1", "B": "2"})) == hash(Environment({"B": "2", "A": "1"}))
    assert pickle.loads(pickle.dumps(env)) == env == copy.deepcopy(env)  # noqa: S301


# Presets: nothing of the host's, the harmless ones, none.


LAPTOP = {
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
    return compile_policy(policy, cwd=str(tmp_path), host_env=LAPTOP, home=str(tmp_path)).environment()


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
