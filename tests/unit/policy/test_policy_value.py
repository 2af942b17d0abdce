"""Policy: a frozen value that reads nothing and does not care for order."""

from __future__ import annotations

import os
import pathlib
import pickle

import pytest

from staddle import Limits, Network, Policy
from staddle.errors import PolicyError
from staddle.hostinfo.protected import NAMES
from staddle.policy import presets


def test_the_empty_policy_grants_nothing_but_the_system() -> None:
    policy = Policy()
    assert (policy.read, policy.write, policy.deny, policy.sockets) == ((), (), (), ())
    assert policy.network == Network.deny()
    assert policy.limits == Limits()
    assert policy.env == {}
    assert policy.system


def test_order_and_repetition_do_not_matter() -> None:
    one = Policy(read=["/b", "/a", "/a/"], env={"A": "1", "B": "2"}, pass_env=["Y", "X"])
    two = Policy(read=("/a", b"/b"), env={"B": "2", "A": "1"}, pass_env={"X", "Y"})
    assert one == two
    assert hash(one) == hash(two)
    assert repr(one) == repr(two)
    assert {one: 1}[two] == 1


def test_builders_leave_the_original_alone_and_commute() -> None:
    start = Policy.agent()
    one = start.with_read("/r").with_write("/w").with_deny("/d").with_sockets("/s").with_env(A="1")
    two = start.with_env(A="1").with_sockets("/s").with_deny("/d").with_write("/w").with_read("/r")
    assert one == two
    assert start == Policy.agent()
    assert (one.read, one.write, one.deny, one.sockets) == (("/r",), ("/w",), ("/d",), ("/s",))
    assert start.with_read() == start


def test_builders_add_and_the_last_network_and_limit_stay() -> None:
    policy = (
        Policy(read=["/a"]).with_read("/b", pathlib.Path("/c")).with_limits(memory="1G").with_limits(cpu=2)
    )
    assert policy.read == ("/a", "/b", "/c")
    assert (policy.limits.memory, policy.limits.cpu, policy.limits.timeout) == (1 << 30, 2.0, 120.0)
    assert policy.with_network(Network.open()).with_network(Network.deny()).network == Network.deny()
    assert policy.with_pass_env("A").with_pass_env("B").pass_env == ("A", "B")
    assert policy.with_env(A="1").with_env(A="2").env == {"A": "2"}
    assert policy.with_unprotect(".vscode").unprotect == (".vscode",)


def test_it_is_frozen() -> None:
    with pytest.raises(AttributeError, match="frozen"):
        Policy().read = ("/",)  # type: ignore[misc]


def test_it_reads_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(os, "environ", {})
    for name in ("stat", "lstat", "getcwd", "open", "scandir", "readlink"):
        monkeypatch.setattr(os, name, lambda *_, name=name, **__: pytest.fail(f"os.{name} was called"))
    Policy.agent().with_read("~/x", "missing", "/no/such").with_write(".").with_deny("~/.ssh")
    Policy.coding_agent("~")


def test_it_survives_a_trip_between_processes() -> None:
    policy = Policy.coding_agent("/h").with_env(A="1").with_network(Network.allow("a.com", "10.0.0.0/8"))
    assert pickle.loads(pickle.dumps(policy)) == policy  # noqa: S301


@pytest.mark.parametrize(
    "wrong",
    [
        {"network": "open"},
        {"network": None},
        {"limits": {"memory": 1}},
        {"limits": None},
        {"system": 1},
        {"system": "no"},
        {"preset": "root"},
        {"preset": "coding-agent"},
        {"unprotect": [".git/nothing"]},
        {"unprotect": ".vscode"},
        {"unprotect": [5]},
        {"home": "/"},
        {"home": "/proc/x"},
        {"home": "/a:b"},
        {"home": "/a\nb"},
        {"home": 5},
    ],
)
def test_a_wrong_field_gets_a_sentence(wrong: dict[str, object]) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy(**wrong)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_an_unknown_field_is_pythons_own_error() -> None:
    with pytest.raises(TypeError):
        Policy(reed=["/a"])  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Policy().with_limits(memroy=1)


def test_presets_are_ordinary_policies() -> None:
    assert Policy.agent() == Policy(preset="agent")
    assert Policy.coding_agent("/home/a") == Policy(preset="coding-agent", home="/home/a")
    assert Policy.agent().network.mode == "deny"


def test_the_tables_of_the_presets_hold_together() -> None:
    for table in (
        presets.SECRETS,
        presets.DOORS,
        presets.AGENT_LOGINS,
        presets.AGENT_CONFIG,
        presets.AGENT_TOOLS,
    ):
        assert len(set(table)) == len(table)
        Policy(deny=table)
    # An agent's configuration is opened because it is a protected name itself.
    assert {path.removeprefix("~/") for path in presets.AGENT_CONFIG} <= set(NAMES)
    assert not set(presets.denied("coding-agent")) & {*presets.AGENT_CONFIG, *presets.AGENT_TOOLS}
    for secret in ("~/.ssh", "~/.aws", "~/.gnupg", "~/.netrc", "~/.config/gcloud", "~/.kube", "~/.docker"):
        assert secret in presets.denied("agent")
