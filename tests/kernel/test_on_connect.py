"""`on_connect`: somebody decides about what the policy leaves open. Anything but True in time is a no."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest

from staddle import AsyncSandbox, Event, Network, Policy, Pool, Sandbox, wrap
from staddle.errors import InvalidCall, PolicyError, PolicyNotEnforceable
from staddle.network.host import gateway_process
from tests.support.waiting import until
from tests.support.web import serving

BACKENDS = ["namespaces", "bwrap"]
SECONDS = 120


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of a web server on the host's loopback."""
    with serving(lambda _: b"outside\n") as port:
        yield port


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ("yes.example", "no.example", "odd.example", "never.example")
    monkeypatch.setattr(gateway_process, "host_names", lambda: tuple((name, "127.0.0.1") for name in known))


@pytest.fixture
def policy(server: int) -> Policy:
    """An allow list: names may have the host's loopback address at the server's port."""
    return Policy.agent().with_network(Network.allow(f"127.0.0.1:{server}", "!never.example"))


class Decider:
    """Says yes to yes.example, something else to odd.example, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Event] = []

    def __call__(self, event: Event) -> object:
        self.asked.append(event)
        return {"yes": True, "odd": "yes"}.get(event.what.partition(".")[0], False)

    def hosts(self) -> list[str]:
        return [event.what for event in self.asked]


def opened(policy: Policy, decider: object, backend: str = "namespaces", **options: object) -> Sandbox:
    return Sandbox(policy=policy, backend=backend, mode="bind", on_connect=decider, **options)  # type: ignore[arg-type]


def fetch(*urls: str) -> str:
    return "; ".join(f"curl -sS -m 10 {url} 2>/dev/null || echo refused" for url in urls)


# What is asked.


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_true_is_a_yes(policy: Policy, server: int, backend: str) -> None:
    decider = Decider()
    with opened(policy, decider, backend) as sandbox:
        assert all(gap.documented for gap in sandbox.enforced.gaps)
        urls = [f"http://{name}.example:{server}/" for name in ("yes", "no", "odd")]
        assert sandbox.run(fetch(*urls)).stdout == "outside\nrefused\nrefused\n"
        told = sandbox.events()
    first = decider.asked[0]
    assert first == Event("question", f"yes.example:{server}", "no entry allows it", f"yes.example:{server}")
    assert decider.hosts() == [f"{name}.example:{server}" for name in ("yes", "no", "odd")]
    refused = {event.what: event.allow for event in told if event.kind == "refused"}
    assert refused == {f"{name}.example:{server}": f"{name}.example:{server}" for name in ("no", "odd")}
    assert any("on_connect returned 'yes'" in event.rule for event in told)


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_no_network_at_all_everything_is_asked_about(server: int, backend: str) -> None:
    decider = Decider()
    with opened(Policy.agent(), decider, backend) as sandbox:
        result = sandbox.run(fetch("http://no.example/", "http://192.0.2.8:81/", "http://169.254.169.254/"))
        assert result.stdout == "refused\n" * 3
        assert [event.what for event in result.violations] == decider.hosts()
        # A yes is for the name, not for whatever its owner puts behind it.
        result = sandbox.run(fetch(f"http://yes.example:{server}/"))
        assert result.stdout == "refused\n"
        assert "loopback address" in result.violations[0].rule
    assert decider.hosts()[:3] == ["no.example:80", "192.0.2.8:81", "169.254.169.254:80"]
    assert "metadata" in decider.asked[2].rule


def test_nothing_that_the_policy_speaks_of_is_asked_about(policy: Policy, server: int) -> None:
    decider = Decider()
    with opened(policy, decider) as sandbox:
        result = sandbox.run(fetch(f"http://127.0.0.1:{server}/", f"http://never.example:{server}/"))
        assert result.stdout == "outside\nrefused\n"
        assert [event.rule for event in result.violations] == ["refused by !never.example"]
        assert sandbox.run(fetch("http://127.0.0.1:1/", "http://localhost:1/")).stdout == "refused\n" * 2
        sandbox.run("echo > /dev/udp/192.0.2.8/53")
    assert decider.asked == []


def test_nobody_outside_is_asked_for_a_name_before_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nameserver:
        nameserver.bind(("127.0.0.1", 0))
        nameserver.settimeout(SECONDS)
        where = nameserver.getsockname()
        monkeypatch.setattr(gateway_process, "host_names", lambda: ())
        monkeypatch.setattr(gateway_process, "host_nameservers", lambda: (where,))
        answers = iter([False, True])
        with opened(Policy.agent(), lambda _: next(answers)) as sandbox:
            assert sandbox.run("getent ahostsv4 secret.example").ok
            sandbox.run(fetch("http://secret.example/"))
            sandbox.start("curl -sS -m 10 http://other.example/")
            question = nameserver.recv(512)  # the very first that leaves
    assert b"\x05other\x07example" in question


def test_it_is_asked_once_while_the_answer_is_fresh(policy: Policy, server: int) -> None:
    decider = Decider()
    url = f"http://yes.example:{server}/"
    with opened(policy, decider) as sandbox:
        many = f"for i in 1 2 3 4 5 6; do curl -sS -m 10 {url} & done; wait"
        assert sandbox.run(many).stdout == "outside\n" * 6
        assert sandbox.run(fetch(url)).stdout == "outside\n"
        assert sandbox.run(fetch(*["http://no.example/"] * 3)).stdout == "refused\n" * 3
    assert decider.hosts() == [f"yes.example:{server}", "no.example:80"]


# What goes wrong.


def test_no_answer_in_time_is_a_no_and_is_forgotten(policy: Policy, server: int) -> None:
    go_on = threading.Event()
    answers = iter([True])

    def thinks(_: Event) -> bool:
        answer = next(answers, False)
        go_on.wait(SECONDS)
        return answer

    try:
        with opened(policy, thinks, on_connect_timeout=0.5) as sandbox:
            result = sandbox.run(fetch(f"http://yes.example:{server}/"), timeout=SECONDS)
            assert result.stdout == "refused\n"
            assert [event.what for event in result.violations] == [f"yes.example:{server}"]
            go_on.set()
            # Too late: nobody waits for it any more.
            assert sandbox.run(fetch(f"http://yes.example:{server}/")).stdout == "refused\n"
    finally:
        go_on.set()


def test_an_exception_is_a_no_and_an_event(policy: Policy, server: int) -> None:
    def fails(_: Event) -> bool:
        raise ValueError("no idea")

    with opened(policy, fails) as sandbox:
        assert sandbox.run(fetch(f"http://yes.example:{server}/")).stdout == "refused\n"
        notes = [event for event in sandbox.events() if event.kind == "note"]
    assert [(event.what, event.rule) for event in notes] == [
        (f"yes.example:{server}", "refused, because on_connect raised ValueError: no idea")
    ]


@pytest.mark.slow
def test_a_few_are_asked_at_a_time_and_the_others_are_not_kept_waiting() -> None:
    go_on, asked = threading.Event(), []

    def thinks(event: Event) -> bool:
        asked.append(event.what)
        go_on.wait(SECONDS)
        return True

    try:
        with opened(Policy.agent(), thinks, on_connect_timeout=1) as sandbox:
            many = (
                "for i in $(seq 20); do curl -sS -m 20 http://192.0.2.$i/ 2>/dev/null & done; wait; echo over"
            )
            assert sandbox.run(many, timeout=SECONDS).stdout == "over\n"
            assert 1 <= len(asked) <= 8
    finally:
        go_on.set()


def test_it_is_over_with_the_sandbox() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def thinks(_: Event) -> bool:
        asked.set()
        return go_on.wait(SECONDS)

    sandbox = opened(Policy.agent(), thinks, on_connect_timeout=60)
    sandbox.start("curl -sS http://no.example/")
    assert asked.wait(SECONDS)
    sandbox.close()  # does not wait for an answer
    go_on.set()
    assert until(lambda: not any(thread.name == "staddle-network" for thread in threading.enumerate()))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"on_connect": 5}, InvalidCall),
        ({"on_connect": bool, "on_connect_timeout": 0}, PolicyError),
        ({"on_connect": bool, "on_connect_timeout": True}, PolicyError),
        ({"on_connect": bool, "policy": Policy.agent().with_network(Network.open())}, PolicyError),
        ({"on_connect": bool, "backend": "landlock", "mode": "bind"}, PolicyNotEnforceable),
    ],
)
def test_what_cannot_be_meant_is_an_error(options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match="on_connect"):
        Sandbox(**options)  # type: ignore[arg-type]


def test_a_coroutine_function_needs_a_loop() -> None:
    async def decide(_: Event) -> bool:
        return True

    with pytest.raises(InvalidCall, match="coroutine"):
        Sandbox(on_connect=decide)


# The other doors.


def test_a_coroutine_function_is_awaited_on_the_loop(policy: Policy, server: int) -> None:
    loops: list[object] = []

    async def decide(event: Event) -> bool:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        if event.what.startswith("no."):
            await asyncio.sleep(SECONDS)
        return True

    async def run() -> str:
        async with AsyncSandbox(policy=policy, on_connect=decide, on_connect_timeout=1) as sandbox:
            done = await sandbox.run(
                fetch(f"http://yes.example:{server}/", f"http://no.example:{server}/"), timeout=SECONDS
            )
            refused = [event.what for event in done.violations]
            assert refused == [f"no.example:{server}"]
            assert set(loops) == {asyncio.get_running_loop()}
            assert {event.kind for event in await sandbox.events()} >= {"refused", "note"}
            return done.stdout

    assert asyncio.run(run()) == "outside\nrefused\n"


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_command_has_it_too(policy: Policy, server: int, backend: str) -> None:
    decider = Decider()
    script = fetch(*(f"http://{name}.example:{server}/" for name in ("yes", "no", "yes")))
    command = wrap(["bash", "-c", script], policy, backend=backend, on_connect=decider)
    done = command.run(capture_output=True, text=True, timeout=SECONDS)
    assert done.stdout == "outside\nrefused\noutside\n"
    assert decider.hosts() == [f"yes.example:{server}", f"no.example:{server}"]
    assert [(event.what, event.who) for event in command.violations()] == [(f"no.example:{server}", "bash")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_asked_while_somebody_else_reads_the_output(policy: Policy, server: int, backend: str) -> None:
    decider = Decider()
    script = fetch(*(f"http://{name}.example:{server}/" for name in ("yes", "no")))
    command = wrap(["bash", "-c", script], policy, backend=backend, on_connect=decider)
    with command.popen(stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate(timeout=SECONDS)[0] == "outside\nrefused\n"
    assert until(lambda: [event.what for event in command.violations()] == [f"no.example:{server}"])


def test_every_sandbox_of_a_pool_asks(policy: Policy, server: int) -> None:
    decider = Decider()
    with Pool(1, policy=policy, on_connect=decider) as pool:
        for _ in range(2):
            with pool.sandbox() as sandbox:
                assert sandbox.run(fetch(f"http://yes.example:{server}/")).stdout == "outside\n"
    assert decider.hosts() == [f"yes.example:{server}"] * 2


def test_what_continues_from_a_sandbox_asks_the_same(policy: Policy, server: int) -> None:
    decider = Decider()
    with Sandbox(policy=policy, on_connect=decider) as sandbox:
        (other,) = sandbox.fork(1)
        with other:
            assert other.run(fetch(f"http://yes.example:{server}/")).stdout == "outside\n"
    assert decider.hosts() == [f"yes.example:{server}"]
