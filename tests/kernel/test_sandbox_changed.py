"""Changes of a sandbox that is open: its network, its end; and AsyncSandbox in another loop."""

from __future__ import annotations

import pytest

from staddle import AsyncSandbox, Limits, Network, Policy, PolicyNotEnforceable, Sandbox
from staddle.errors import InvalidCall, SandboxClosed
from tests.support.waiting import until
from tests.support.web import serving


def with_network(network: Network, **options: object) -> Sandbox:
    return Sandbox(policy=Policy.agent().with_network(network), **options)  # type: ignore[arg-type]


def known(sandbox: Sandbox) -> str:
    """Which of some names have an address inside."""
    return sandbox.run(
        "for name in a b; do getent hosts $name.example >/dev/null && echo -n $name; done"
    ).stdout


@pytest.mark.slow
def test_names_follow_the_network_that_is_set() -> None:
    with with_network(Network.allow("a.example:80")) as sb:
        assert known(sb) == "a"
        sb.set_network(Network.allow("b.example:80"))
        assert known(sb) == "b"
        sb.set_network(Network.deny())
        assert known(sb) == ""
        sb.set_network(Network.allow("*.example:80"))
        assert known(sb) == "ab"
        assert sb.policy.network == Network.allow("*.example:80")
        (fork,) = sb.fork()
        with fork:
            assert known(fork) == "ab"


def test_connections_that_are_not_allowed_any_more_are_ended() -> None:
    with serving(lambda _: b"hello\n") as port:
        opened = Network.allow(f"127.0.0.1:{port}")
        with with_network(opened) as sb:
            ask = f"curl -sS -m 10 http://127.0.0.1:{port}/"
            assert sb.run(ask).stdout == "hello\n"
            sb.run(f"exec 3<>/dev/tcp/127.0.0.1/{port}", check=True)
            sb.set_network(Network.deny())
            assert sb.run("echo GET >&3; read -t 20 -r line <&3; echo $?").stdout != "0\n"
            assert not sb.run(ask).ok
            sb.set_network(opened)
            assert sb.run(ask).stdout == "hello\n"


@pytest.mark.parametrize(
    ("opened", "wanted"),
    [
        (Network.deny(), Network.allow("a.example")),
        (Network.open(), Network.deny()),
        (Network.allow("a.example:80"), Network.open()),
        (Network.allow("a.example:80"), Network.allow("a.example:443")),
        (Network.allow("192.0.2.1:80"), Network.allow("a.example:80")),
    ],
)
def test_what_cannot_be_changed_is_refused_and_nothing_has_changed(opened: Network, wanted: Network) -> None:
    with with_network(opened) as sb:
        with pytest.raises(PolicyNotEnforceable, match="cannot be changed"):
            sb.set_network(wanted)
        assert sb.policy.network == opened
        with pytest.raises(InvalidCall):
            sb.set_network("deny")  # type: ignore[arg-type]


def test_a_sandbox_with_an_end_can_have_a_later_one() -> None:
    with Sandbox(policy=Policy.agent().replace(limits=Limits(max_lifetime=1000))) as sb:
        assert 1000 < (sb.extend(500) or 0) <= 1500
        sb.set_timeout(0.3)
        assert (sb.extend(0.2) or 0) <= 0.5
        assert until(lambda: not sb.alive)
        with pytest.raises(SandboxClosed):
            sb.extend(10)
    with Sandbox() as sb:
        assert sb.extend(10) is None


def test_another_event_loop_than_asyncios_is_refused_with_a_sentence() -> None:
    running = AsyncSandbox().run("true")
    with pytest.raises(InvalidCall, match=r"needs asyncio.*trio"):
        running.send(None)
