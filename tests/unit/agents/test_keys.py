"""Which keys of a coding agent stay outside, and what its files have instead."""

from __future__ import annotations

import os
import sys

import pytest

from staddle import Network, Policy, Sandbox
from staddle.agents.keys import KeyCopies, outside_keys
from staddle.errors import PolicyError
from staddle.jail.agents import AGENTS
from staddle.network.host.inspector_process import PREWARMED

KEY = "sk-ant-api03-" + "k" * 80
HELD = "sk-ant-api03-" + "0" * 40


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {key.name for agent in AGENTS.values() for key in agent.keys}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


@pytest.mark.parametrize(
    ("address", "hosts"),
    [
        ("", ("api.anthropic.com",)),
        ("https://models.example.com/v1", ("models.example.com",)),
        ("https://models.example.com:8443", ("models.example.com:8443",)),
        *((text, ()) for text in ("http://models.example.com", "https://10.0.0.1", "https://localhost:8443")),
        *((text, ()) for text in ("https://[::1]:8443", "https://h:x", "models.example.com", "https://")),
    ],
)
def test_a_key_goes_to_the_address_of_the_model(address: str, hosts: tuple[str, ...]) -> None:
    found = outside_keys(AGENTS["claude"], {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": address})
    assert [secret.hosts for secret in found.secrets] == ([hosts] if hosts else [])
    assert bool(found.inside) is not bool(hosts)


def test_each_key_is_one_of_the_variables_that_its_agent_needs() -> None:
    for agent in AGENTS.values():
        assert {key.name for key in agent.keys} <= {*agent.logins}
        assert all(not key.address or key.address in agent.logins for key in agent.keys)


def test_without_the_extra_the_key_is_inside_and_a_policy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy.agent().with_network(Network.allow(http=["GET h.example/**"]))
    Sandbox.check(policy=policy)  # the control
    monkeypatch.setitem(sys.modules, "h2", None)
    found = outside_keys(AGENTS["claude"], os.environ)
    assert found.told() == [
        "your ANTHROPIC_API_KEY is inside: pip install 'staddle[egress]' to keep it outside"
    ]
    with pytest.raises(PolicyError, match="h2 is not installed"):
        Sandbox.check(policy=policy.with_http("GET other.example/**"))  # the plan of the control is cached


def test_a_key_that_no_header_can_have_is_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "short")
    assert [name for name, _ in outside_keys(AGENTS["claude"], os.environ).inside] == ["ANTHROPIC_API_KEY"]


def test_files_have_placeholders_that_never_become_keys() -> None:
    copies = KeyCopies({"K": KEY}, {"K": HELD})
    assert copies.replaced({"a": KEY, "b": [f"…{KEY[-20:]}"]}) == {"a": HELD, "b": [f"…{HELD[-20:]}"]}
    assert copies.restored({"a": HELD, "b": [HELD[-20:]], "c": 1}) == {"b": [KEY[-20:]], "c": 1}


def test_a_prewarmed_inspector_that_nobody_takes_is_ended() -> None:
    files = {*os.listdir("/proc/self/fd")}  # some of earlier tests may be closed meanwhile
    PREWARMED.make()
    assert PREWARMED._waiting is not None
    pid = PREWARMED._waiting[1]
    assert os.path.exists(f"/proc/{pid}")  # the control
    PREWARMED.close()
    assert not os.path.exists(f"/proc/{pid}")
    assert {*os.listdir("/proc/self/fd")} <= files
    PREWARMED.make()
    assert PREWARMED._waiting is not None
    os.kill(PREWARMED._waiting[1], 9)
    os.waitid(os.P_PID, PREWARMED._waiting[1], os.WEXITED | os.WNOWAIT)
    assert PREWARMED.take() is None, "a killed one is not taken"
