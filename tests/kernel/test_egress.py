"""HTTP rules and secrets: real programs in real sandboxes, on a host with web servers of its own."""

from __future__ import annotations

import json

from staddle import Network, Policy, Sandbox
from tests.support.egress_world import ANOTHER, NAME, PLAIN, World, on_a_host


def sandbox(world: World, network: Network, **options: object) -> Sandbox:
    policy = Policy.agent().with_network(network)
    return Sandbox(world.directory / "workspace", policy, **options)  # type: ignore[arg-type]


@on_a_host
def test_only_allowed_requests_reach_an_inspected_host(world: World) -> None:
    network = Network.allow(NAME, PLAIN, http=[f"GET {NAME}/repos/**"])
    with sandbox(world, network) as sb:
        done = sb.run(f"curl -sS https://{NAME}/repos/x?y=1")
        assert json.loads(done.stdout)["path"] == "/repos/x?y=1", done
        for command in (f"curl -sSf https://{NAME}/other", f"curl -sSf -X POST -d x https://{NAME}/repos/x"):
            refused = sb.run(command)
            assert refused.exit_code != 0
            assert [event.kind for event in refused.violations] == ["refused"], refused
        assert [each["path"] for each in world.requests()] == ["/repos/x?y=1"]
        told = [(each.method, each.url, each.outcome) for each in sb.requests()]
        assert told == [
            ("GET", f"https://{NAME}/repos/x?y=1", "allowed"),
            ("GET", f"https://{NAME}/other", "refused"),
            ("POST", f"https://{NAME}/repos/x", "refused"),
        ]
        assert sb.run(f"curl -sSf https://{PLAIN}/other https://{PLAIN}/else").exit_code == 0
        assert len(sb.requests()) == 3  # the other host is not inspected
        assert sb.run(f"curl -sS http://{NAME}/repos/plain").exit_code == 0
        assert sb.run(f"curl -sS https://{ANOTHER}/").exit_code == 6
