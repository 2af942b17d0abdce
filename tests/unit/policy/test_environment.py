"""The environment inside: built from nothing, in one place."""

from __future__ import annotations

import copy
import pickle

import pytest

from staddle import Policy
from staddle.errors import PolicyError
from staddle.policy.compiler import compile
from staddle.policy.environment import Environment
from staddle.policy.secrets import is_secret

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
