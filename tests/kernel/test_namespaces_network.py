"""The network of one command: what the policy allows, and a gateway that ends with it.

Each promise is held to for both ways to start a command, by a launcher, as `wrap` does, and by our
command line itself, in our own namespaces and in those of bubblewrap.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from staddle import LocalEnvironment, Network, Policy, new_jail, wrap
from staddle.backends import gateways
from staddle.errors import LaunchFailed, PolicyError
from staddle.events import Event
from staddle.linux.process_tree import descendants
from staddle.network.host import gateway_process
from tests.support.in_a_child import captured
from tests.support.jail_runs import agent, make_world
from tests.support.staddle_command import COMMAND, SRC, environment
from tests.support.waiting import command_line, next_line, until
from tests.support.web import serving

SECONDS = 120


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of a web server on the host's loopback."""
    with serving(lambda _: b"hello from outside\n") as port:
        yield port


class Done:
    """What a command printed, and what of its wishes was refused."""

    def __init__(self, code: int, out: str, err: str, refused: tuple[str, ...]) -> None:
        self.code, self.out, self.err, self.refused = code, out, err, refused


def by_launcher(script: str, network: Network, backend: str = "namespaces", *reading: str) -> Done:
    policy = Policy.agent().with_network(network).with_read(*reading)
    wrapped = wrap(["bash", "-c", script], policy, backend=backend)
    assert all(gap.documented for gap in wrapped.enforced.gaps)
    done = wrapped.run(capture_output=True, text=True, timeout=SECONDS)
    return Done(done.returncode, done.stdout, done.stderr, refused(wrapped.violations()))


def by_command_line(script: str, network: Network, backend: str = "auto") -> Done:
    done = captured(
        [*COMMAND, "run", "--backend", backend, *options(network), "-c", script],
        env=environment(),
        stdin=subprocess.DEVNULL,
        timeout=SECONDS,
    )
    said = [line.split()[1] for line in done.stderr.splitlines() if " was refused: " in line]
    return Done(done.returncode, done.stdout, done.stderr, tuple(said))


def by_bwrap(script: str, network: Network) -> Done:
    return by_launcher(script, network, "bwrap")


def by_command_line_and_bwrap(script: str, network: Network) -> Done:
    return by_command_line(script, network, "bwrap")


Start = Callable[[str, Network], Done]
each_way = pytest.mark.parametrize("start", [by_launcher, by_command_line, by_bwrap])
each_backend = pytest.mark.parametrize("backend", ["namespaces", "bwrap"])


def options(network: Network) -> list[str]:
    if network.mode == "loopback":
        return ["--network", f"loopback={','.join(map(str, network.ports))}"]
    return [word for rule in network.rules for word in ("--allow", str(rule))]


def refused(events: tuple[Event, ...]) -> tuple[str, ...]:
    return tuple(event.what for event in events if event.kind == "refused")


def gateways_of(starter: int) -> list[int]:
    """The gateways that this process has started."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[-3:-1] == [str(SRC / "staddle/network/gateway/__main__.py").encode(), b"%d" % starter]:
                found.append(int(name))
    return found


# What is reached.


@each_way
def test_what_is_allowed_works_and_nothing_else_does(start: Start, server: int) -> None:
    script = (
        f"curl -sS -m 10 http://127.0.0.1:{server}/; curl -sS -m 10 http://127.0.0.1:1234/; echo $?;"
        "curl -sS -m 10 http://192.0.2.8/; echo $?; getent hosts evil.example; echo $?;"
        "curl -sS -m 10 http://evil.example/; echo $?; exit 3"
    )
    done = start(script, Network.allow(f"127.0.0.1:{server}", "allowed.example:443"))
    assert done.out.split("\n") == ["hello from outside", "7", "7", "2", "6", ""], done.err
    assert done.code == 3
    assert sorted(done.refused) == ["192.0.2.8:80", "evil.example"]


def test_our_command_line_tells_of_each_refusal_once_on_bwrap_too(server: int) -> None:
    script = f"curl -sS -m 10 http://127.0.0.1:{server}/; for i in 1 2 3; do getent hosts evil.example; done"
    done = by_command_line_and_bwrap(script, Network.allow(f"127.0.0.1:{server}", "allowed.example"))
    assert done.out == "hello from outside\n"
    assert done.refused == ("evil.example",)


@each_way
def test_exactly_the_named_ports_of_the_hosts_loopback_are_there(start: Start, server: int) -> None:
    script = (
        f"curl -sS -m 10 http://127.0.0.1:{server}/; curl -sS -m 10 http://127.0.0.1:{server + 1}/; echo $?;"
        "getent hosts evil.example || echo unknown"
    )
    done = start(script, Network.loopback([server]))
    assert done.out.split("\n") == ["hello from outside", "7", "unknown", ""], done.err
    assert done.refused == ()


@pytest.mark.same_for_everyone
@each_way
def test_its_own_servers_work_beside_the_gateway(start: Start) -> None:
    script = (
        "python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 & "
        "for i in $(seq 100); do curl -s -o /dev/null http://127.0.0.1:8000/ && exit 0; sleep .1; done;"
        "exit 1"
    )
    assert start(script, Network.allow("allowed.example")).code == 0


def test_an_allowed_name_leads_to_what_the_host_finds_there(
    server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_process, "host_names", lambda: (("allowed.example", "127.0.0.1"),))
    script = (
        f"curl -sS -m 10 http://allowed.example:{server}/;"
        "curl -sS -m 10 http://allowed.example:81/; echo $?;"
        "getent ahostsv4 allowed.example | head -1"
    )
    network = Network.allow(f"allowed.example:{server}", f"127.0.0.1:{server}")
    done = by_launcher(script, network)
    lines = done.out.split("\n")
    assert lines[:2] == ["hello from outside", "7"], done.err
    assert lines[2].startswith("198.1")
    assert done.refused == ("allowed.example:81",)


@each_way
def test_it_holds_nothing_of_the_gateway(start: Start) -> None:
    script = "ls /proc/self/fd | wc -l; ls -d /proc/[0-9]* | wc -l; cat /proc/net/unix | wc -l"
    done = start(script, Network.allow("allowed.example"))
    fds, processes, sockets = map(int, done.out.split())
    assert fds == 4  # its three streams, and the directory itself
    assert processes <= 4
    assert sockets == 1  # the heading


def test_a_view_of_very_many_mounts_has_it_too(server: int, tmp_path: Path) -> None:
    directories = [tmp_path / f"directory {number}" for number in range(60)]
    for directory in directories:
        directory.mkdir()
    script = f"curl -sS -m 10 http://127.0.0.1:{server}/; ls -d '{tmp_path}'/* | wc -l"
    done = by_launcher(script, Network.loopback([server]), "bwrap", *map(str, directories))
    assert done.out == "hello from outside\n60\n", done.err


@pytest.mark.slow
@pytest.mark.same_for_everyone
@each_way
def test_a_storm_of_refusals_is_bounded_and_delays_nobody(start: Start) -> None:
    script = "for i in $(seq 300); do (echo > /dev/tcp/192.0.2.$((i % 250))/$i) 2>/dev/null; done; echo done"
    done = start(script, Network.allow("allowed.example:443"))
    assert done.out == "done\n"
    assert 10 <= len(done.refused) <= 64
    assert len(done.err) < 20_000


def test_the_tools_of_an_agent_have_it_too(server: int, tmp_path: Path) -> None:
    policy = Policy.agent().with_network(Network.allow(f"127.0.0.1:{server}", "allowed.example"))
    tools = LocalEnvironment(tmp_path, policy=policy)
    script = f"curl -sS -m 10 http://127.0.0.1:{server}/; getent hosts evil.example"
    done = tools.exec_command("bash", ["-c", script])
    assert (done.stdout, done.exit_code) == ("hello from outside\n", 2)
    assert refused(done.violations) == ("evil.example",)


def test_a_jail_has_it_too(server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(tmp_path, monkeypatch)
    script = f"curl -sS -m 10 http://127.0.0.1:{server}/ > got; curl -sS -m 10 http://127.0.0.1:1/; exit 5"
    policy = Policy.agent().with_network(Network.loopback([server]))
    opts = agent(world, script, policy=policy)
    assert new_jail("namespaces").run(opts) == 5
    assert (Path(opts.workspace.path) / "got").read_text() == "hello from outside\n"


# Its end.


@each_backend
def test_when_the_gateway_dies_nothing_goes_out_any_more(server: int, backend: str) -> None:
    policy = Policy.agent().with_network(Network.loopback([server]))
    fetch = f"curl -sS -m 10 http://127.0.0.1:{server}/"
    script = f"{fetch}; read; {fetch} 2>/dev/null; echo $?"
    with wrap(["bash", "-c", script], policy, backend=backend).popen(
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert next_line(process) == "hello from outside\n"
        (gateway,) = gateways_of(process.pid)
        os.kill(gateway, signal.SIGKILL)
        assert until(lambda: not command_line(gateway))
        # Refused, or taken by what is left of it, and dropped.
        assert process.communicate("\n", timeout=SECONDS)[0] in ("7\n", "52\n", "56\n")


@each_backend
def test_it_is_gone_when_the_command_has_ended(backend: str) -> None:
    policy = Policy.agent().with_network(Network.allow("allowed.example"))
    process = wrap(["true"], policy, backend=backend).popen()
    assert process.wait(SECONDS) == 0
    assert until(lambda: gateways_of(process.pid) == [])


@each_backend
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_goes_with_a_launcher_that_is_ended(number: signal.Signals, backend: str) -> None:
    policy = Policy.agent().with_network(Network.allow("allowed.example"))
    command = ["bash", "-c", "echo running; exec sleep 60"]
    with wrap(command, policy, backend=backend).popen(stdout=subprocess.PIPE, text=True) as process:
        assert next_line(process) == "running\n"
        assert len(gateways_of(process.pid)) == 1
        process.send_signal(number)
        process.wait(SECONDS)
    assert until(lambda: gateways_of(process.pid) == [])


@each_backend
def test_it_goes_with_a_launcher_that_was_started_by_hand(backend: str) -> None:
    policy = Policy.agent().with_network(Network.allow("allowed.example"))
    wrapped = wrap(["bash", "-c", "echo running; exec sleep 60"], policy, backend=backend)
    with subprocess.Popen(
        wrapped.argv,
        env=wrapped.env,
        cwd=wrapped.cwd,
        pass_fds=wrapped.pass_fds,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert next_line(process) == "running\n"
        assert len(gateways_of(process.pid)) == 1
        process.kill()
    assert until(lambda: gateways_of(process.pid) == [])  # although we hold both ends of its line
    wrapped.close()


@each_backend
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_goes_with_our_command_line_however_that_ends(number: signal.Signals, backend: str) -> None:
    words = [*COMMAND, "run", "--backend", backend, "--allow", "allowed.example", "-c"]
    with subprocess.Popen(
        [*words, "echo running; exec sleep 60"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert next_line(process) == "running\n"
        # Either of our command line, or of the bwrap that it has started.
        starters = (process.pid, *descendants(process.pid))
        (gateway,) = (pid for starter in starters for pid in gateways_of(starter))
        process.send_signal(number)
        code = process.wait(SECONDS)
    assert code in (-number, 128 + number)
    assert until(lambda: not command_line(gateway))


@each_backend
def test_nothing_is_left_open_of_a_command_that_is_not_started(backend: str) -> None:
    policy = Policy.agent().with_network(Network.allow("allowed.example"))
    wrap(["true"], policy, backend=backend).close()
    before = len(os.listdir("/proc/self/fd"))
    wrap(["true"], policy, backend=backend).close()
    wrap(["true"], policy, backend=backend).run()
    assert until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # others may have other numbers


# What goes wrong.


@pytest.fixture
def without_a_gateway(tmp_path: Path) -> Path:
    """An installation in which the gateway cannot be started."""
    shutil.copytree(SRC / "staddle", tmp_path / "staddle", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "staddle/network/gateway/__main__.py").unlink()
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.mark.slow
def test_without_a_gateway_there_is_no_command(without_a_gateway: Path) -> None:
    by_hand = (
        "from staddle import wrap, Policy, Network; import sys\n"
        "policy = Policy.agent().with_network(Network.allow('allowed.example'))\n"
        "wrap(['echo', 'it ran'], policy, backend=sys.argv[1]).run()\n"
    )
    run = ["-m", "staddle", "run", "--allow", "allowed.example", "--", "echo", "it ran"]
    for words in (["-c", by_hand, "namespaces"], ["-c", by_hand, "bwrap"], run):
        done = captured(
            [sys.executable, *words],
            env={**environment(), "PYTHONPATH": str(without_a_gateway)},
            cwd="/",
            timeout=SECONDS,
        )
        assert done.returncode not in (0, None)
        assert "it ran" not in done.stdout
        assert "the network gateway" in done.stderr
    assert done.returncode == 125


@each_backend
def test_a_network_that_cannot_be_made_is_no_command(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "rows", lambda _: ((b"nonsense", b"", 0, b""),))
    policy = Policy.agent().with_network(Network.allow("allowed.example"))
    wrapped = wrap(["echo", "it ran"], policy, backend=backend)
    with pytest.raises(LaunchFailed, match="nonsense"):
        wrapped.run(capture_output=True)
    mine = [pid for pid in descendants(os.getpid()) if b"network/gateway/__main__" in command_line(pid)]
    assert until(lambda: not any(command_line(pid) for pid in mine))


def test_a_list_that_is_too_long_is_an_error_before_anything_runs() -> None:
    names = [f"{'x' * 60}.{'y' * 60}.host-{number}.example" for number in range(1000)]
    with pytest.raises(PolicyError, match="too long"):
        wrap(["true"], Policy.agent().with_network(Network.allow(*names)), backend="namespaces")


def test_nothing_of_it_is_loaded_where_there_is_no_list() -> None:
    script = (
        "import sys; from staddle import wrap, Policy, Network\n"
        "for network in (Network.deny(), Network.open()):\n"
        "    wrap(['true'], Policy.agent().with_network(network), backend='namespaces').run()\n"
        "print([name for name in sys.modules if name.startswith('staddle.network')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stdout == "[]\n"
