"""HTTP rules and egress secrets in a policy: what they allow, and what is refused before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from staddle import EgressSecret, HttpLimit, HttpRule, Network, Policy
from staddle.errors import PolicyError
from staddle.json_values import OF_CLIENTS, decode, encode
from staddle.policy import egress
from staddle.policy.compiler import compile, compile_directory
from staddle.policy.egress import inspected_hosts, request_rules

SECRET = EgressSecret("TOKEN", "env:MY_TOKEN", ("api.example.com",))
ALLOWED = Network.allow("api.example.com:443,80")


def test_a_rule_with_a_host_allows_the_host_at_the_ports_of_http() -> None:
    network = Network.allow(http=["GET api.example.com/**", "GET example.com:8443/**"])
    assert network.permits("api.example.com", 443)
    assert network.permits("api.example.com", 80)
    assert network.permits("example.com", 8443)
    assert not network.permits("api.example.com", 22)
    assert not network.permits("example.com", 443)


def test_a_rule_without_a_host_is_about_each_name_and_closes_their_other_ports() -> None:
    network = Network.allow("a.example", "b.example:8443", "192.0.2.1:22", http=["GET /**"])
    assert {rule.host for rule in network.http} == {"a.example", "b.example:8443"}
    assert not network.permits("a.example", 22)
    assert network.permits("b.example", 8443)
    assert network.permits("192.0.2.1", 22)


def test_a_value_and_its_text_are_one_rule() -> None:
    rule = HttpRule("GET", "/x", "a.example")
    assert Network.allow(http=[rule]) == Network.allow(http=["GET a.example/x"])


@pytest.mark.parametrize(
    "rules",
    [["!* a.example/x"], ["GET /x"], "GET a.example/x", ["GET 192.0.2.1/x"], ["get a.example/x"], [7]],
)
def test_rules_that_can_mean_nothing_are_refused(rules: object) -> None:
    with pytest.raises(PolicyError):
        Network.allow(http=rules)  # type: ignore[arg-type]


def test_more_rules_keep_the_list() -> None:
    network = Network.allow("b.example", dns=["192.0.2.53"]).with_http("GET a.example/**")
    assert network == Network.allow("b.example", dns=["192.0.2.53"], http=["GET a.example/**"])
    assert Network.deny().with_http("GET a.example/**") == Network.allow(http=["GET a.example/**"])
    with pytest.raises(PolicyError):
        Network.open().with_http("GET a.example/**")


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "A B"},
        {"source": "plain-key"},
        {"source": "file:relative"},
        {"hosts": ()},
        {"hosts": ("192.0.2.1",)},
        {"hosts": ("!a.example",)},
        {"hosts": "a.example"},
        {"header": "two words"},
        {"header": "X: none"},
        {"header": "X: {}", "query": "key"},
        {"basic": "a:b"},
        {"placeholder": "with space"},
        {"header": "X: {}\r\nY: 1"},
    ],
)
def test_a_secret_that_cannot_work_is_refused_without_its_source(fields: dict[str, object]) -> None:
    given = {"name": "TOKEN", "source": "env:TOKEN", "hosts": ("a.example",), **fields}
    with pytest.raises(PolicyError) as caught:
        EgressSecret(**given)  # type: ignore[arg-type]
    assert "plain-key" not in str(caught.value)


def test_a_secret_as_text() -> None:
    found = EgressSecret.parse("TOKEN=command:pass show me@here@a.example,b.example")
    assert (found.source, found.hosts) == ("command:pass show me@here", ("a.example", "b.example"))


def test_the_plan_has_the_source_and_never_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "the-value-of-it")
    policy = Policy.agent().with_network(ALLOWED).with_environment("inherit").replace(secrets=[SECRET])
    plan = compile(policy)
    assert "MY_TOKEN" not in plan.environment()
    assert "TOKEN" in plan.environment()
    assert "the-value-of-it" not in repr(plan) + repr(policy) + repr(policy.as_dict()) + repr(plan.explain())


def test_the_file_of_a_source_is_hidden(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("the-value-of-it")
    policy = Policy.agent().with_network(ALLOWED).with_read(tmp_path)
    assert compile(policy).shows(str(key))
    assert not compile(policy.replace(secrets=[SECRET.replace(source=f"file:{key}")])).shows(str(key))


def test_contradictions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "the-value-of-it")
    for policy in (
        Policy.agent().replace(secrets=[SECRET]),
        Policy.agent().with_network(Network.open()).replace(secrets=[SECRET]),
        Policy.agent().with_network(Network.allow("b.example")).replace(secrets=[SECRET]),
        Policy.agent().with_network(ALLOWED).with_pass_env("MY_TOKEN").replace(secrets=[SECRET]),
    ):
        with pytest.raises(PolicyError):
            compile(policy)
    with pytest.raises(PolicyError):
        Policy(secrets=[SECRET, SECRET.replace(query="x", header="")])


def test_hosts_of_secrets_are_inspected_and_may_be_asked_for_anything() -> None:
    network = Network.allow("api.example.com", http=["GET other.example/**"])
    plan = compile(Policy.agent().with_network(network).replace(secrets=[SECRET]))
    assert inspected_hosts(plan, network) == ("api.example.com:80,443", "other.example:80,443")
    assert set(request_rules(plan)) == {"GET other.example/**", "* api.example.com:80,443/**"}


def test_a_policy_file_has_rules_and_secrets(tmp_path: Path) -> None:
    text = """
    [network]
    http = ["GET api.example.com/**"]
    [[secrets]]
    name = "TOKEN"
    source = "env:MY_TOKEN"
    hosts = ["api.example.com"]
    """
    file = tmp_path / "policy.toml"
    file.write_text(text)
    policy = Policy.from_file(file)
    expected = Policy.agent().with_http("GET api.example.com/**").replace(secrets=[SECRET])
    assert policy == expected
    from staddle.learn.policy_data import of_policy
    from staddle.learn.policy_data import text as written

    file.write_text(written(of_policy(policy), {}, {}))
    assert Policy.from_file(file) == expected
    for bad in ("name = 1", 'value = "x"', 'name = "A"'):
        file.write_text(f"[network]\nallow = ['a.example']\n[[secrets]]\n{bad}\n")
        with pytest.raises(PolicyError):
            Policy.from_file(file)


def test_a_project_cannot_name_secrets_or_rules(tmp_path: Path) -> None:
    file = tmp_path / "staddle.toml"
    for text in (
        "[network]\nhttp = ['GET a.example/**']\n",
        "[[secrets]]\nname = 'A'\nsource = 'command:id'\nhosts = ['a.example']\n",
    ):
        file.write_text(text)
        with pytest.raises(PolicyError, match="could widen"):
            Policy.from_file(file, workspace=str(tmp_path))


def test_a_policy_with_rules_and_secrets_travels_as_json() -> None:
    policy = Policy.agent().with_http("GET api.example.com/**").replace(secrets=[SECRET])
    assert decode(json.loads(json.dumps(encode(policy))), only=OF_CLIENTS) == policy
    with pytest.raises(TypeError):
        encode(policy.replace(secrets=[SECRET.replace(source=str)]))


def test_limits_of_requests_survive_every_way_of_writing_them(tmp_path: Path) -> None:
    network = ALLOWED.with_http_limit("api.example.com", requests=3, bytes="1K")
    assert network.http_limits == (HttpLimit.parse("api.example.com requests=3 bytes=1K"),)
    assert network.http_limits[0].bytes == 1024
    assert network.with_http("GET other.example/**").http_limits == network.http_limits
    assert network.with_http_limit("api.example.com", rate=5).http_limits == (
        HttpLimit("api.example.com", rate=5),
    )
    assert decode(json.loads(json.dumps(encode(network))), only=OF_CLIENTS) == network
    policy = Policy().with_network(network)
    assert inspected_hosts(compile(policy), network) == ("api.example.com:80,443",)
    file = tmp_path / "policy.toml"
    file.write_text(
        '[network]\nallow = ["api.example.com:443,80"]\n'
        'http_limits = [{host = "api.example.com", requests = 3, bytes = "1K"}]\n'
    )
    assert Policy.from_file(file).network == network


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "h.example",
            "h.example requests=0",
            "h.example rate=x",
            "h.example bytes=",
            "10.0.0.0/8 rate=1",
        ),
        *("h.example rate=1 rate=2", "h.example other=1", "!h.example rate=1"),
    ],
)
def test_a_limit_that_bounds_nothing_is_refused(text: str) -> None:
    with pytest.raises(PolicyError):
        HttpLimit.parse(text)


def test_a_limit_needs_an_allowed_host() -> None:
    for network in (ALLOWED, Network.deny(), Network.open()):
        with pytest.raises(PolicyError, match="does not allow"):
            network.with_http_limit("other.example", requests=1)


def test_no_sandbox_may_write_the_packages_of_its_inspector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run outside, with the secrets: around them, at them and below them, and for a workspace."""
    packages = tmp_path / "app" / ".venv" / "lib"
    (packages / "h11").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(egress, "site_packages", lambda: (str(packages),))
    inspected = Policy().with_http("GET api.example.com/**")
    for path in (tmp_path / "app", packages, packages / "h11"):
        compile(Policy().with_write(path))  # the control: without an inspector
        with pytest.raises(PolicyError, match="inspector"):
            compile(inspected.with_write(path))
        with pytest.raises(PolicyError, match="inspector"):
            compile_directory(inspected, str(path), "write")
        compile_directory(inspected, str(path), "read")
    compile(inspected.with_write(tmp_path / "other"))
