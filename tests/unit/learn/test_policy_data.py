"""A policy becomes a file that gives the same policy, whatever is in it, and two policies compare by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from staddle import Limits, Network, Policy
from staddle.learn import policy_data

POLICIES = {
    "the default": Policy.agent(),
    "none": Policy(),
    "paths": Policy.agent()
    .with_read("/a$b", '/q"uote', "/back\\slash", "/ünïcode")
    .with_write("/w")
    .with_deny("~/x"),
    "sockets": Policy.agent().with_sockets("/run/x.sock").with_pass_env("LANG").with_env(A="$1", B="x\ny"),
    "hosts": Policy.agent().with_network(Network.allow("a.example:443", "*.b.example", "!c.b.example")),
    "loopback": Policy.agent(toolchains=False).with_network(Network.loopback([5432])),
    "limits": Policy.agent().replace(limits=Limits(timeout=None, memory="1G", processes=9, output=None)),
    "rest": Policy.agent(nested=True).replace(sudo=False, world="writable", redact=["A_KEY"]),
    "coding agent": Policy.coding_agent("/home/ada"),
}


@pytest.mark.parametrize("name", POLICIES)
def test_the_file_gives_the_same_policy(name: str, tmp_path: Path) -> None:
    policy = POLICIES[name]
    file = tmp_path / "policy.toml"
    file.write_text(policy_data.text(policy_data.of_policy(policy), {}, {}))
    assert Policy.from_file(file) == policy


def test_a_comment_cannot_end_its_line_and_add_a_grant(tmp_path: Path) -> None:
    data = policy_data.of_policy(Policy.agent().with_read("/a"))
    text = policy_data.text(data, {("read", "/a"): 'x\n    "/etc",\r\x1b[2J "'}, {})
    file = tmp_path / "policy.toml"
    file.write_text(text)
    assert Policy.from_file(file).read == ("/a",)
    assert "\x1b" not in text


def test_a_difference_has_a_line_for_each_entry() -> None:
    before = Policy.agent().with_read("/a", "/b")
    after = Policy.agent().with_read("/b", "/c").with_network(Network.allow("x.example"))
    found = policy_data.difference(before, after)
    added = ['+ read "/c"', '+ network.mode "allow"', '+ network.allow "x.example"']
    assert found == ['- read "/a"', '- network.mode "deny"', *added]
    assert policy_data.difference(before, before) == []
