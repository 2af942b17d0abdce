"""The macOS profile says what the plan says, whatever the paths are. It is read back, never run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle.backends import sbpl, seatbelt
from staddle.backends.seatbelt import Seatbelt
from staddle.errors import BackendUnavailable, LaunchFailed, PolicyError
from staddle.launch.running import complete
from staddle.policy import Limits, Network
from staddle.policy.plan import (
    Closed,
    Device,
    Link,
    Plan,
    Scratch,
    Socket,
    Variable,
)
from tests.support.waiting import until
from tests.support.web import Asked, serving
from tests.unit.mounts.plans import guard, hidden, plan, write
from tests.unit.mounts.plans import read as grant

from .sbpl_reader import Profile, Symbol, read

PRIVATE = "/private/var/folders/zz/T/staddle-0123"
INJECTION = '/w/a")) (allow default) (allow file-read* (subpath "/'
NASTY = (
    "plain", "with space", 'quo"te', "back\\slash", "trailing\\", "par)en(s", "semi;colon", "hash#|x|#",
    "new\nline", "tab\tcr\r", "esc\x1b[2J", "del\x7f", "ünïcödé", "漢字", "z\u200bw", "\u202ertl",
    "\udcff\udcfe", "\udcc3", "..x", "trailing.", "'single'", "$(id)", "`id`", "%s{}", "\\x41", '\\"',
    "(subpath", "a,b", "#t", "-", "*", "[a-z]*", INJECTION.replace("/", "_"),
)  # fmt: skip


def profile(made: Plan) -> Profile:
    return Profile(sbpl.profile(made, PRIVATE))


class TestStrings:
    @given(st.binary())
    def test_any_bytes_survive(self, raw: bytes) -> None:
        text = sbpl.literal(raw)
        assert "\n" not in text
        assert read(f"(x {text})") == [["x", raw]]

    @pytest.mark.parametrize("symbol", ["", "a b", "a)", "(", 'a"', "a;b", "ä", "a\n"])
    def test_what_is_no_symbol_is_refused(self, symbol: str) -> None:
        with pytest.raises(ValueError, match="not a symbol"):
            sbpl.write(("allow", symbol))


class TestSpellings:
    @pytest.mark.parametrize("path", ["/tmp/x", "/private/tmp/x", "/System/Volumes/Data/private/tmp/x"])
    def test_private_aliases_are_all_named(self, path: str) -> None:
        assert {"/tmp/x", "/private/tmp/x"} <= set(sbpl.spellings(path))

    def test_only_the_aliased_directories_have_two_names(self) -> None:
        assert sbpl.spellings("/Users/me") == ("/Users/me", "/System/Volumes/Data/Users/me")
        assert sbpl.spellings("/tmpfile") == ("/tmpfile", "/System/Volumes/Data/tmpfile")
        assert sbpl.spellings("/") == ("/",)

    @pytest.mark.parametrize(("one", "other"), [("/var/a", "/private/var/a"), ("/private/etc/b", "/etc/b")])
    def test_a_grant_and_a_denial_hold_under_both_names(self, one: str, other: str) -> None:
        assert profile(plan(grants=(write(one),))).access(other) == "write"
        denied = plan(grants=(write("/"),), hidden=(hidden(one),))
        assert profile(denied).access(other) == "none"


class TestRules:
    def test_the_default_is_deny_and_hidden_paths_come_last(self) -> None:
        rules = read(sbpl.profile(plan(grants=(write("/w"),), hidden=(hidden("/w/h"),)), PRIVATE))
        assert rules[:2] == [["version", "1"], ["deny", "default"]]
        assert rules[-1][0] == "deny"
        assert ["subpath", b"/w/h"] in rules[-1]

    def test_nothing_is_granted_beyond_the_runtime(self) -> None:
        empty = profile(plan())
        for path in (
            "/Users/me/.ssh/id",
            "/etc/passwd",
            "/bin/sh",
            "/tmp/x",
            "/Library/Keychains/k",
            "/dev/disk0",
        ):
            assert empty.access(path) == "none"
            assert not empty.allows("process-exec", path)
        assert empty.allows("file-read-data", "/")
        assert empty.access("/usr/lib/dyld") == "read"

    def test_ancestors_of_a_grant_can_be_passed_but_not_listed(self) -> None:
        made = profile(plan(grants=(grant("/Users/me/project"),)))
        assert made.allows("file-read-metadata", "/Users/me")
        assert not made.allows("file-read-data", "/Users/me")
        assert not made.allows("file-read-metadata", "/Users/other")

    def test_programs_run_only_from_what_may_be_read(self) -> None:
        made = profile(plan(grants=(grant("/usr/bin"), write("/w")), hidden=(hidden("/w/h"),)))
        assert made.allows("process-exec", "/usr/bin/git")
        assert made.allows("process-exec", "/w/tool")
        assert not made.allows("process-exec", "/w/h/tool")
        assert not made.allows("process-exec", "/Users/me/bin/tool")

    def test_a_guarded_name_is_readable_and_cannot_be_changed_or_carried_away(self) -> None:
        made = profile(plan(grants=(write("/w"),), guards=(guard("/w/sub/.git/hooks"),)))
        assert made.access("/w/sub/.git/hooks/pre-commit") == "read"
        for above in ("/w/sub/.git", "/w/sub", "/w"):
            assert not made.allows("file-write-unlink", above)
        assert made.allows("file-write-unlink", "/w/sub/.git/index")

    def test_the_parents_of_a_hidden_path_cannot_be_renamed(self) -> None:
        made = profile(plan(grants=(write("/w"),), hidden=(hidden("/w/a/secret"),)))
        assert not made.allows("file-write-unlink", "/w/a")
        assert not made.allows("file-read-metadata", "/w/a/secret")

    def test_a_private_directory_covers_the_grant_above_and_not_the_one_below(self) -> None:
        made = plan(
            grants=(grant("/"), write("/tmp/shared")),
            scratch=(Scratch("/tmp", 0o1777, 1, "t"),),
        )
        assert profile(made).access("/tmp/other") == "none"
        assert profile(made).access("/tmp/shared/x") == "write"
        assert profile(made).access("/opt/x") == "read"
        assert profile(made).access(PRIVATE + "/tmp/x") == "write"

    def test_a_grant_of_the_system_is_no_grant_of_the_homes_mounted_below_it(self) -> None:
        made = profile(plan(grants=(grant("/System"), write("/Users/me/project"))))
        assert made.access("/System/Library/x") == "read"
        assert made.access("/System/Volumes/Data/Users/me/.ssh/id") == "none"
        assert made.access("/System/Volumes/Data/Users/me/project/x") == "write"

    def test_a_link_may_be_looked_at_only(self) -> None:
        made = profile(plan(grants=(grant("/real"),), links=(Link("/w/link", "/real", "test"),)))
        assert made.allows("file-read-metadata", "/w/link")
        assert not made.allows("file-read-data", "/w/link")

    def test_only_named_services_can_be_looked_up(self) -> None:
        names = {
            bytes(test[1]).decode()
            for rule in read(sbpl.profile(plan(), PRIVATE))
            if "mach-lookup" in rule
            for test in rule
            if isinstance(test, list)
        }
        assert names == set(sbpl.MACH_SERVICES)
        assert all(sbpl.MACH_SERVICES.values())  # each with its reason

    def test_signals_reach_the_same_sandbox_only(self) -> None:
        rules = [rule for rule in read(sbpl.profile(plan(), PRIVATE)) if "signal" in rule]
        assert rules == [["allow", "process-info*", "signal", ["target", "same-sandbox"]]]


class TestNetwork:
    def rules(self, network: Network, **fields: object) -> list[list[object]]:
        text = sbpl.profile(plan(network=network, **fields), PRIVATE)
        return [rule for rule in read(text) if any(str(item).startswith("network") for item in rule)]

    def addresses(self, network: Network) -> set[bytes]:
        return {
            bytes(test[2])
            for rule in self.rules(network)
            for test in rule
            if isinstance(test, list) and test[0] in ("remote", "local")
        }

    def test_denied_names_no_address_at_all(self) -> None:
        assert self.addresses(Network.deny()) == set()
        assert all(
            isinstance(item, Symbol) or item[0] in ("subpath", "literal")  # type: ignore[index]
            for rule in self.rules(Network.deny())
            for item in rule
        )

    def test_loopback_names_only_localhost_and_the_ports_that_may_be_connected_to(self) -> None:
        assert self.addresses(Network.loopback()) == {b"localhost:*"}  # to listen at
        outbound = [rule for rule in self.rules(Network.loopback([80, 5432])) if "network-outbound" in rule]
        named = {bytes(test[2]) for rule in outbound for test in rule if test[0] == "remote"}  # type: ignore[index]
        assert named == {b"localhost:80", b"localhost:5432"}
        assert not any(
            test[0] == "remote"  # type: ignore[index]
            for rule in self.rules(Network.loopback())
            for test in rule
            if isinstance(test, list)
        )

    def test_the_whole_loopback_can_be_granted(self) -> None:
        rules = self.rules(Network.loopback(range(1, 65536)))
        outbound = [rule for rule in rules if "network-outbound" in rule]
        named = [bytes(test[2]) for rule in outbound for test in rule if test[0] == "remote"]  # type: ignore[index]
        assert named == [b"localhost:*"]

    def test_a_list_of_hosts_names_the_proxy_and_nothing_else(self) -> None:
        made = plan(network=Network.allow("example.com", "10.0.0.0/8:80"))
        rules = [rule for rule in read(sbpl.profile(made, PRIVATE, 4711)) if "network-outbound" in rule]
        named = {bytes(t[2]) for rule in rules for t in rule if isinstance(t, list) and t[0] == "remote"}
        assert named == {b"localhost:4711"}
        assert b"mDNSResponder" not in sbpl.profile(made, PRIVATE, 4711).encode()
        assert self.addresses(Network.allow("example.com")) == set()  # without a proxy, nothing

    def test_a_socket_that_is_not_named_is_refused_in_a_writable_directory(self) -> None:
        closed = (Closed("/w/s", "a socket that is not named"),)
        made = profile(plan(grants=(write("/w"),), closed=closed))
        assert made.allows("network-outbound", "/w/own")
        assert not made.allows("network-outbound", "/w/s")

    def test_open_names_every_address_but_no_socket_file_beyond_the_resolver(self) -> None:
        assert self.addresses(Network.open()) == {b"*:*"}
        made = profile(plan(network=Network.open()))
        assert made.allows("network-outbound", sbpl.RESOLVER_SOCKET)
        assert not made.allows("network-outbound", "/var/run/docker.sock")

    def test_a_unix_socket_is_one_path(self) -> None:
        made = profile(plan(sockets=(Socket("/Users/me/agent.sock", True, "test"),)))
        assert made.allows("network-outbound", "/Users/me/agent.sock")
        assert not made.allows("network-outbound", "/Users/me/agent.sock2")
        assert not made.allows("network-outbound", "/Users/me/agent.sock/x")
        assert not made.allows("network-bind", "/Users/me/agent.sock")
        assert not made.allows("file-read-data", "/Users/me/agent.sock")

    def test_a_declared_socket_that_is_not_there_can_be_served(self) -> None:
        made = profile(plan(sockets=(Socket("/Users/me/own.sock", False, "test"),)))
        for operation in ("network-outbound", "network-bind", "network-inbound", "file-write-create"):
            assert made.allows(operation, "/Users/me/own.sock")
            assert not made.allows(operation, "/Users/me/other.sock")
        assert not made.allows("file-write-data", "/Users/me/own.sock")
        away = profile(plan(sockets=(Socket("/w/s", False, "test"),), hidden=(hidden("/w/s"),)))
        assert not away.allows("network-bind", "/w/s")
        assert not away.allows("file-write-create", "/w/s")

    def test_a_hidden_socket_stays_hidden(self) -> None:
        made = plan(sockets=(Socket("/w/s", True, "test"),), hidden=(hidden("/w/s"),))
        assert not profile(made).allows("network-outbound", "/w/s")


names = st.sampled_from(["a", "b", ".git", *NASTY]) | st.text(
    st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=6
).filter(lambda name: name not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=4).map(lambda parts: "/w/" + "/".join(parts))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    def several(make: object) -> tuple[object, ...]:
        return tuple(make(path) for path in draw(st.lists(paths, max_size=4)))  # type: ignore[operator]

    return plan(
        grants=several(grant) + several(write),
        hidden=several(hidden),
        guards=several(guard),
        links=several(lambda path: Link(path, "/w/a", "test")),
        sockets=several(lambda path: Socket(path, True, "test")),
        scratch=tuple(Scratch(path, 0o700, 1, "test") for path in draw(st.lists(paths, max_size=2))),
    )


def expected(made: Plan, path: str) -> str:
    """The plan's answer, but for private directories: those are elsewhere on macOS, these are refused."""

    def above(items: tuple[object, ...]) -> list[str]:
        return [item.path for item in items if (path + "/").startswith(item.path + "/")]  # type: ignore[attr-defined]

    cover = max(map(len, above(made.scratch)), default=0)
    if cover and not any(len(name) >= cover for name in above(made.grants)):
        return "none"
    return made.access(path)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(plans(), st.lists(paths, max_size=5))
def test_the_profile_answers_as_the_plan_does(made: Plan, more: list[str]) -> None:
    asked = profile(made)
    declared = [
        item.path for field in (made.grants, made.hidden, made.guards, made.scratch) for item in field
    ]
    for path in [*more, *declared, *(name + "/below" for name in declared), "/w", "/elsewhere"]:
        assert asked.access(path) == expected(made, path), path
        if made.access(path) == "none":
            assert not asked.allows("process-exec", path)


@settings(max_examples=100, deadline=None)
@given(plans())
def test_no_path_can_add_or_change_a_rule(made: Plan) -> None:
    """What is read back is what was meant, symbol by symbol and byte by byte."""
    rules = sbpl.rules(made, PRIVATE)
    written = read("".join(sbpl.write(rule) for rule in rules))

    def as_read(item: object) -> object:
        if isinstance(item, tuple):
            return [as_read(part) for part in item]
        return item

    assert written == as_read(rules)
    verbs = {str(rule[0]) for rule in written}
    assert verbs <= {"version", "allow", "deny"}
    assert ["allow", "default"] not in written


class TestBackend:
    def test_it_says_that_it_is_for_macos_only(self) -> None:
        if sys.platform == "darwin":  # pragma: no cover - not run by us
            return
        answer = Seatbelt().probe()
        assert not answer.usable
        assert answer.why == "sandbox-exec exists only on macOS"

    def test_it_never_prepares_a_plain_run_instead(self) -> None:
        if sys.platform == "darwin":  # pragma: no cover - not run by us
            return
        with pytest.raises(BackendUnavailable, match="only on macOS"):
            Seatbelt().prepare(plan(), ["true"])

    def test_a_missing_sandbox_exec_is_unusable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(seatbelt, "SANDBOX_EXEC", "/nonexistent/sandbox-exec")
        assert not Seatbelt().probe().usable

    @pytest.mark.parametrize(
        ("script", "why"),
        [
            ("exit 0", "did not run the command"),
            ('shift 3; exec "$@"', "did not confine"),
            ("echo 'sandbox_apply: Operation not permitted' >&2; exit 71", "sandbox_apply"),
        ],
        ids=["runs-nothing", "confines-nothing", "refused"],
    )
    def test_a_sandbox_exec_that_does_not_confine_is_unusable(
        self, script: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake = tmp_path / "sandbox-exec"
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(seatbelt, "SANDBOX_EXEC", str(fake))
        answer = Seatbelt().probe()
        assert not answer.usable
        assert why in answer.why

    def test_what_macos_cannot_hold_is_declared(self) -> None:
        declared = {gap.protection for gap in Seatbelt().gaps(plan(limits=Limits())) if gap.documented}
        assert declared == {"filter", "processes", "ipc", "parent", "tmp", "deny", "keyring"}

    @pytest.mark.parametrize("network", [Network.loopback(), Network.allow("example.com")])
    def test_a_network_it_cannot_hold_is_an_undocumented_gap(self, network: Network) -> None:
        assert any(
            gap.protection == "network" and not gap.documented
            for gap in Seatbelt().gaps(plan(network=network))
        )

    def test_a_limit_it_cannot_hold_is_an_undocumented_gap(self) -> None:
        gaps = Seatbelt().gaps(plan(limits=Limits(memory="1G")))
        assert [gap.documented for gap in gaps if gap.protection == "limits.memory"] == [False]

    def test_a_device_is_an_undocumented_gap(self) -> None:
        gaps = Seatbelt().gaps(plan(devices=(Device("/dev/kvm", 10, 232, "test"),)))
        assert False in [gap.documented for gap in gaps if gap.protection == "devices"]
        assert not [gap for gap in Seatbelt().gaps(plan()) if "cannot grant a device" in gap.why]

    def test_steps_are_the_rules(self) -> None:
        made = plan(grants=(grant("/w\n"),))
        printed = [step.action for step in Seatbelt().steps(made)]
        assert "(deny default)" in printed
        assert all("\n" not in line for line in printed)

    def test_no_variable_gets_on_the_command_line(self) -> None:
        made = plan(variables=(Variable("TOKEN", "s3cret-value", "test", secret=True),))
        launch = seatbelt.launch(made, ["true"], PRIVATE)
        try:
            assert "s3cret-value" not in " ".join(launch.argv)
            assert launch.env["TOKEN"] == "s3cret-value"
        finally:
            launch.close()
            os.close(launch.status or -1)

    def test_a_profile_too_long_for_a_command_line_is_refused(self) -> None:
        made = plan(hidden=tuple(hidden(f"/w/{'x' * 200}{number}") for number in range(4000)))
        with pytest.raises(LaunchFailed, match="too long"):
            seatbelt.launch(made, ["true"], PRIVATE)


@pytest.fixture
def stand_in(tmp_path: Path) -> str:
    """A program with the command line of sandbox-exec that confines nothing: only the launcher is tried."""
    path = tmp_path / "stand-in"
    path.write_text('#!/bin/sh\nshift 3\nexec "$@"\n')
    path.chmod(0o755)
    return str(path)


class TestProxy:
    """The proxy is ordinary Python, too: it can be run here, under the launcher, with a stand-in."""

    @pytest.fixture
    def server(self) -> Iterator[int]:
        def answer(asked: Asked) -> bytes:
            return f"{asked.path} {asked.headers['Host']} {asked.headers['Proxy-Authorization']}".encode()

        with serving(answer) as port:
            yield port

    def run(self, script: str, network: Network, private: Path, stand_in: str) -> str:
        made = plan(network=network, variables=(Variable("PATH", "/usr/bin:/bin", "test"),), cwd="/")
        done = complete(
            seatbelt.launch(made, ["/bin/sh", "-c", script], str(private), stand_in),
            Limits(),
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert not private.exists()
        return str(done.stdout)

    def test_allowed_hosts_are_reached_by_programs_that_heed_the_variables(
        self, server: int, tmp_path: Path, stand_in: str
    ) -> None:
        urls = (f"http://127.0.0.1:{server}/a?b", "http://127.0.0.1:1/", "http://evil.example/")
        script = ";".join(f"curl -s -m 10 '{url}'; echo" for url in urls)
        tunnels = (f"http://127.0.0.1:{server}/tunnel; echo", "http://evil.example/ || echo no")
        script += "".join(f"; curl -sp -m 10 {tunnel}" for tunnel in tunnels)
        out = self.run(script, Network.allow(f"127.0.0.1:{server}"), tmp_path / "private", stand_in)
        assert out.split("\n") == [
            f"/a?b 127.0.0.1:{server} None",
            "staddle: 127.0.0.1:1 was refused: allowed, but not at tcp port 1; 127.0.0.1:1 would allow it",
            "",
            "staddle: evil.example:80 was refused: no entry allows it; evil.example:80 would allow it",
            "",
            f"/tunnel 127.0.0.1:{server} None",
            "no",
            "",
        ]

    def test_nobody_else_may_use_it_and_it_ends_with_the_command(
        self, server: int, tmp_path: Path, stand_in: str
    ) -> None:
        fetch = f"curl -s -m 10 -w '%{{http_code}}' http://127.0.0.1:{server}/"
        script = f"echo $http_proxy; http_proxy=${{http_proxy#*@}} {fetch}"
        out = self.run(script, Network.allow(f"127.0.0.1:{server}"), tmp_path / "private", stand_in)
        address, said, *_ = out.split("\n")
        assert said == "staddle: this proxy is for one sandbox only"
        assert out.endswith("407")
        port = int(address.rpartition(":")[2])

        def gone() -> bool:
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) != 0

        assert until(gone)

    def test_what_is_no_list_has_no_proxy(self, tmp_path: Path, stand_in: str) -> None:
        assert self.run("env", Network.deny(), tmp_path / "private", stand_in).find("PROXY") == -1

    def test_a_list_that_is_too_long_is_an_error(self) -> None:
        names = [f"{'x' * 60}.host-{number}.example" for number in range(200)]
        with pytest.raises(PolicyError, match="too long"):
            seatbelt.launch(plan(network=Network.allow(*names)), ["true"], PRIVATE)


class TestLauncher:
    """The launcher is ordinary Python, so it can be run here with a stand-in for sandbox-exec."""

    def start(self, made: Plan, command: list[str], private: Path, stand_in: str) -> subprocess.Popen[bytes]:
        launch = seatbelt.launch(made, command, str(private), stand_in)
        self.status = launch.status or -1
        self.launch = launch
        started = subprocess.Popen(
            launch.argv,
            env=launch.env,
            cwd=launch.cwd,
            pass_fds=launch.pass_fds,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        launch.close()
        return started

    def failure(self) -> str | None:
        with os.fdopen(self.status, "rb") as pipe:
            return self.launch.failure(pipe.read())

    def scratch(self) -> tuple[Scratch, ...]:
        return (Scratch("/home/user", 0o700, 1, "test"), Scratch("/tmp", 0o1777, 1, "test"))

    def test_home_and_tmp_are_private_and_gone_afterwards(self, tmp_path: Path, stand_in: str) -> None:
        private = tmp_path / "private"
        made = plan(
            scratch=self.scratch(),
            variables=(Variable("HOME", "/home/user", "t"), Variable("TMPDIR", "/tmp", "t")),
            cwd="/home/user",
        )
        script = 'pwd; echo "$HOME" "$TMPDIR"; touch "$TMPDIR/x"; mkdir -p a/b; touch a/b/c; chmod 555 a/b a'
        started = self.start(made, ["/bin/sh", "-c", script], private, stand_in)
        out, _ = started.communicate(timeout=30)
        assert out.decode().split() == [f"{private}/home/user", f"{private}/home/user", f"{private}/tmp"]
        assert started.returncode == 0
        assert self.failure() is None
        assert not private.exists()

    def test_a_link_left_behind_is_removed_and_not_followed(self, tmp_path: Path, stand_in: str) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "kept").write_text("x")
        made = plan(scratch=self.scratch(), variables=(Variable("TMPDIR", "/tmp", "t"),), cwd="/tmp")
        started = self.start(made, ["/bin/ln", "-s", str(outside), "link"], tmp_path / "p", stand_in)
        started.communicate(timeout=30)
        assert started.returncode == 0
        assert (outside / "kept").read_text() == "x"
        assert not (tmp_path / "p").exists()

    def test_the_exit_status_is_the_commands(self, tmp_path: Path, stand_in: str) -> None:
        for script, expected in (("exit 7", 7), ("kill -9 $$", 137)):
            started = self.start(plan(cwd="/"), ["/bin/sh", "-c", script], tmp_path / "p", stand_in)
            started.communicate(timeout=30)
            assert started.returncode == expected
            os.close(self.status)

    def test_limits_and_session_and_descriptors(self, tmp_path: Path, stand_in: str) -> None:
        made = plan(limits=Limits(open_files=64, file_size=4096), cwd="/")
        script = "ulimit -n; ulimit -f; ulimit -c; ls /proc/self/fd | tr '\\n' ' '; cat /proc/self/stat"
        started = self.start(made, ["/bin/bash", "-c", script], tmp_path / "p", stand_in)
        out, err = started.communicate(timeout=30)
        os.close(self.status)
        files, size, core, rest = out.decode().split("\n", 3)
        assert (files, core) == ("64", "0"), err
        assert size == "4"
        assert rest.startswith("0 1 2 3 ")  # 3 is the directory that ls itself reads
        assert rest.split(")")[1].split()[4] == "0"  # no controlling terminal

    def test_an_existing_directory_is_never_taken(self, tmp_path: Path, stand_in: str) -> None:
        private = tmp_path / "p"
        private.mkdir()
        started = self.start(plan(cwd="/"), ["/bin/touch", str(tmp_path / "ran")], private, stand_in)
        started.communicate(timeout=30)
        assert started.returncode == 125
        assert "could not be made" in (self.failure() or "")
        assert private.exists()
        assert not (tmp_path / "ran").exists()

    def test_a_missing_sandbox_exec_starts_nothing(self, tmp_path: Path) -> None:
        started = self.start(
            plan(cwd="/"), ["/bin/touch", str(tmp_path / "ran")], tmp_path / "p", "/nonexistent/sandbox-exec"
        )
        started.communicate(timeout=30)
        assert started.returncode == 125
        assert "could not be started" in (self.failure() or "")
        assert not (tmp_path / "ran").exists()

    def test_a_signal_reaches_the_command_and_nothing_is_left(self, tmp_path: Path, stand_in: str) -> None:
        private = tmp_path / "p"
        started = self.start(plan(cwd="/"), ["/bin/sh", "-c", "echo $$; exec sleep 60"], private, stand_in)
        assert started.stdout is not None
        child = int(started.stdout.readline())
        started.send_signal(signal.SIGTERM)
        started.communicate(timeout=30)
        os.close(self.status)
        assert started.returncode == 128 + signal.SIGTERM
        assert not private.exists()
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)

    def test_the_command_ends_with_whoever_started_the_launcher(self, tmp_path: Path, stand_in: str) -> None:
        launch = seatbelt.launch(plan(cwd="/"), ["/bin/sleep", "60"], str(tmp_path / "p"), stand_in)
        middle = os.fork()
        if middle == 0:
            subprocess.Popen(launch.argv, env=launch.env, pass_fds=launch.pass_fds)
            time.sleep(60)
            os._exit(0)
        launch.close()
        deadline = time.monotonic() + 20
        while not (tmp_path / "p").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.2)
        os.kill(middle, signal.SIGKILL)
        os.waitpid(middle, 0)
        while (tmp_path / "p").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.close(launch.status or -1)
        assert not (tmp_path / "p").exists()
