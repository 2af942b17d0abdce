"""HTTP rules and secrets: real programs in real sandboxes, on a host with web servers of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from staddle import AsyncSandbox, EgressSecret, Network, Policy, PolicyNotEnforceable, Sandbox, wrap
from staddle.errors import PolicyError
from tests.support.egress_world import ANOTHER, NAME, PLAIN, World, on_a_host
from tests.support.network_offers import PACKAGE, WORD
from tests.support.waiting import until

VALUE = "the-value-of-the-key-0123456789"
SECRET = EgressSecret("TOKEN", "env:REAL_TOKEN", (NAME,))


def opened(world: World, network: Network, *secrets: EgressSecret, **options: Any) -> Sandbox:
    os.environ["REAL_TOKEN"] = VALUE
    policy = Policy.agent().with_network(network).replace(secrets=secrets)
    return Sandbox(world.directory / "workspace", policy, **options)


def asked(sandbox: Sandbox, command: str) -> dict[str, Any]:
    """What the server was asked for by this command."""
    done = sandbox.run(command, timeout=30)
    assert done.exit_code == 0, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@on_a_host
def test_only_allowed_requests_reach_an_inspected_host(world: World) -> None:
    network = Network.allow(NAME, PLAIN, http=[f"GET {NAME}/repos/**"])
    with opened(world, network) as sb:
        assert asked(sb, f"curl -sS https://{NAME}/repos/x?y=1")["path"] == "/repos/x?y=1"
        for command in (f"curl -sSf https://{NAME}/other", f"curl -sSf -d x https://{NAME}/repos/x"):
            refused = sb.run(command)
            assert refused.exit_code != 0
            assert [event.kind for event in refused.violations] == ["refused"], refused
            assert refused.violations[0].who == command
        assert [each["path"] for each in world.requests()] == ["/repos/x?y=1"]
        assert [(each.method, each.url, each.outcome) for each in sb.requests()] == [
            ("GET", f"https://{NAME}/repos/x?y=1", "allowed"),
            ("GET", f"https://{NAME}/other", "refused"),
            ("POST", f"https://{NAME}/repos/x", "refused"),
        ]
        assert asked(sb, f"curl -sS http://{NAME}/repos/plain")["port"] == 80
        assert sb.run(f"curl -sS https://{ANOTHER}/").exit_code == 6


@pytest.mark.slow
@on_a_host
def test_hosts_without_rules_are_not_inspected(world: World) -> None:
    """The client sees the server's own certificate, and nothing is listed. The other host is the control."""
    show = "curl -sSv https://{}/x 2>&1 | grep issuer:"
    with opened(world, Network.allow(NAME, PLAIN, http=[f"GET {NAME}/**"])) as sb:
        assert "CN=staddle sandbox" in sb.run(show.format(NAME)).stdout
        assert "CN=staddle sandbox" not in sb.run(show.format(PLAIN)).stdout
        assert {each.host for each in sb.requests()} == {NAME}
        assert not (world.directory / "certificates" / "staddle").exists()
        assert b"staddle" not in Path("/etc/ssl/certs/ca-certificates.crt").read_bytes()


@on_a_host
def test_the_server_sees_the_value_and_the_sandbox_the_placeholder(world: World) -> None:
    audit = world.directory / "audit"
    with opened(world, Network.allow(f"{NAME}:80,443", f"{ANOTHER}:443"), SECRET, audit=audit) as sb:
        placeholder = sb.run("echo $TOKEN").stdout.strip()
        assert placeholder.startswith("staddle-")
        assert VALUE not in placeholder
        send = 'curl -sS -H "Authorization: Bearer $TOKEN" https://{}/x'
        answer = sb.run(send.format(NAME))
        assert VALUE not in answer.stdout, "the server's echo came back with the value"
        assert f"Bearer {placeholder}" in answer.stdout
        seen = {name.lower(): value for name, value in world.requests()[-1]["headers"].items()}
        assert seen["authorization"] == f"Bearer {VALUE}"
        assert sb.requests()[-1].secrets == ("TOKEN",)
        before = len(world.requests())
        misplaced = f"curl -sSf -d $TOKEN https://{NAME}/x", f"curl -sSf https://{NAME}/$TOKEN"
        for command in (*misplaced, send.format(NAME).replace("https", "http").replace("-sS", "-sSf")):
            assert sb.run(command).exit_code != 0, command
        assert world.requests()[before:] == []
        assert sb.run(send.format(ANOTHER)).exit_code == 0  # not inspected: it gets the placeholder
        assert VALUE not in json.dumps(world.requests()[before:])
        look = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; "
        found = sb.run(look + "grep -r REAL_TOKEN /etc /tmp $HOME 2>/dev/null")
        assert VALUE not in found.stdout + found.stderr
        assert "REAL_TOKEN" not in found.stdout
        sb.run("echo $TOKEN > kept; set > variables")
        told = [repr(thing) for thing in (sb.plan, sb.policy, sb.events(), sb.requests(), sb.diff())]
        sb.commit()
    assert VALUE not in "".join(told)
    assert VALUE not in audit.read_text()
    kept = world.directory / "workspace"
    assert VALUE not in (kept / "variables").read_text()
    assert (kept / "kept").read_text().strip() == placeholder


@pytest.mark.slow
@on_a_host
def test_an_expired_secret_is_read_again(world: World) -> None:
    key = world.directory / "key"
    key.write_text("expired-key-0123456789\n")
    from staddle.network.host import inspector_process

    inspector_process._FRESH = 0.0
    with opened(world, Network.allow(f"{NAME}:443"), SECRET.replace(source=f"file:{key}")) as sb:
        send = f'curl -sS -o /dev/null -w "%{{http_code}}" -H "Authorization: Bearer $TOKEN" https://{NAME}/x'
        assert sb.run(send).stdout == "401"
        key.write_text(f"{VALUE}\n")
        assert until(lambda: sb.run(send).stdout == "200")


@pytest.mark.slow
@on_a_host
def test_limits_of_a_host(world: World) -> None:
    network = Network.allow(f"{NAME}:443", f"{ANOTHER}:443").with_http_limit(NAME, requests=2)
    with opened(world, network) as sb:
        for host in (NAME, NAME, ANOTHER, ANOTHER, ANOTHER):
            assert sb.run(f"curl -sSf https://{host}/x").exit_code == 0  # the control: the other host
        refused = sb.run(f"curl -sS -w '%{{http_code}}' https://{NAME}/x")
        assert refused.stdout.endswith("429")
        why = f"the limit of 2 requests to {NAME} is reached"
        assert why in refused.stdout
        assert [(event.rule, event.allow) for event in refused.violations] == [(why, "")]
    with opened(world, network.with_http_limit(NAME, bytes="1M")) as sb:
        send = f"curl -sSf -o /dev/null --data-binary @- https://{NAME}/x"
        assert sb.run(f"head -c 50000 /dev/zero | {send}").exit_code == 0
        assert sb.run(f"head -c 2000000 /dev/zero | {send}").exit_code != 0
    with opened(world, network.with_http_limit(NAME, rate=1)) as sb:
        assert sb.run(f"curl -sSf https://{NAME}/x").exit_code == 0
        assert sb.run(f"curl -sSf https://{NAME}/x").exit_code != 0
    words = [sys.executable, "-m", "staddle", "run", "--allow", f"{NAME}:443", "--request-limit"]
    ask = f"curl -sS https://{NAME}/x; curl -sS https://{NAME}/x"
    ran = subprocess.run(
        [*words, f"{NAME} requests=1", "-c", ask], capture_output=True, text=True, check=False
    )
    assert "the limit of 1 requests" in ran.stdout
    assert "the limit of 1 requests" in ran.stderr


@pytest.mark.slow
@on_a_host
def test_git_may_fetch_and_not_push(world: World) -> None:
    network = Network.git_read_only(f"{NAME}/git/**")
    with opened(world, network) as sb:
        done = sb.run(f"git clone -q https://{NAME}/git/repo.git && cd repo && cat word", timeout=60)
        assert (done.exit_code, done.stdout) == (0, WORD), done
        sb.run("git checkout -qb new && echo x > y && git add y && git commit -qm second")
        pushed = sb.run("git push -q origin new", timeout=60)
        assert pushed.exit_code != 0
        assert "git-receive-pack" in pushed.violations[0].what
    branches = ["git", "-C", str(world.directory / "www/repo.git"), "branch"]
    assert "new" not in subprocess.run(branches, capture_output=True, text=True, check=True).stdout
    with opened(world, Network.allow(f"{NAME}:443", http=["* /**"])) as sb:  # the control
        words = "cd r && git checkout -qb new && git push -q origin new"
        done = sb.run(f"git clone -q https://{NAME}/git/repo.git r && {words}", timeout=60)
        assert done.exit_code == 0, done


CLIENTS = {
    "wget": f"wget -qO- https://{NAME}/www/word",
    "python3": 'python3 -c "import urllib.request as u; '
    f"print(u.urlopen('https://{NAME}/www/word').read().decode())\"",
    "node": f"node -e \"fetch('https://{NAME}/www/word').then(r => r.text()).then(console.log)\"",
    "pip": "cd /tmp && python3 -m venv v && v/bin/pip install -q --disable-pip-version-check --index-url "
    f"https://{NAME}/www/simple {PACKAGE} && v/bin/python -c 'import hello_staddle as h; print(h.WORD)'",
    "npm": f"cd /tmp && mkdir -p n && cd n && npm install --silent https://{NAME}/www/package.tgz && "
    f"node -p \"require('{PACKAGE}')\"",
    "curl": f"curl -sS https://{NAME}/www/word",
    "java": "cd /tmp && printf 'public class A { public static void main(String[] a) throws Exception { "
    "System.out.println(new String(new java.net.URL(a[0]).openStream().readAllBytes())); } }' > A.java && "
    f"java A.java https://{NAME}/www/word",
    "go": "cd /tmp && printf 'package main\n"
    'import ("io"; "net/http"; "os")\n'
    "func main() { r, e := http.Get(os.Args[1]); if e != nil { panic(e) }; io.Copy(os.Stdout, r.Body) }' "
    f"> a.go && go run a.go https://{NAME}/www/word",
}


@pytest.mark.slow
@on_a_host
def test_clients_trust_the_inspector_without_a_setting(world: World) -> None:
    failed = {}
    with opened(world, Network.allow(http=[f"GET {NAME}/www/**"])) as sb:
        for name, script in CLIENTS.items():
            program = {"pip": "python3"}.get(name, name)
            if shutil.which(program):
                done = sb.run(f"({script})", timeout=120)
                if done.exit_code or WORD not in done.stdout:
                    failed[name] = done.exit_code, done.stdout, done.stderr[-400:]
        assert not failed, failed
        assert {each.outcome for each in sb.requests()} == {"allowed"}


@pytest.mark.slow
@on_a_host
def test_a_websocket_needs_a_rule_and_carries_the_key(world: World) -> None:
    client = (
        "import os, socket, ssl, sys\n"
        f"s = ssl.create_default_context().wrap_socket(socket.create_connection(({NAME!r}, 443)), "
        f"server_hostname={NAME!r})\n"
        f"s.sendall(('GET %s HTTP/1.1\\r\\nHost: {NAME}\\r\\n'\n"
        "  'Connection: Upgrade\\r\\nUpgrade: websocket\\r\\n'\n"
        "  'Sec-WebSocket-Key: a2V5a2V5a2V5a2V5\\r\\nSec-WebSocket-Version: 13\\r\\n'\n"
        "  'Authorization: Bearer %s\\r\\n\\r\\n' % (sys.argv[1], os.environ['TOKEN'])).encode())\n"
        "head = s.recv(4096)\n"
        "if b' 101 ' in head:\n"
        "    s.sendall(b'a frame\\n')\n"
        "    head += s.recv(4096)\n"
        "print(head)\n"
    )
    (world.directory / "workspace/client.py").write_text(client)
    with opened(world, Network.allow(http=[f"GET {NAME}/chat"]), SECRET) as sb:
        assert "a frame" in sb.run("python3 client.py /chat", timeout=30).stdout
        seen = {name.lower(): value for name, value in world.requests()[-1]["headers"].items()}
        assert seen["authorization"] == f"Bearer {VALUE}"
        assert " 403 " in sb.run("python3 client.py /other", timeout=30).stdout
        assert until(lambda: "websocket" in {each.protocol for each in sb.requests()})


@on_a_host
def test_without_its_inspector_nothing_is_reached(world: World) -> None:
    with opened(world, Network.allow(f"{PLAIN}:443", http=[f"GET {NAME}/**"])) as sb:
        assert sb.run(f"curl -sS https://{NAME}/x").exit_code == 0  # the control
        inspector = sb._inside.network.inspector
        os.kill(inspector._pid, signal.SIGKILL)
        assert until(lambda: sb.run(f"curl -sSf -m 5 https://{NAME}/x").exit_code != 0)
        before = len(world.requests())
        done = sb.run(f"curl -sSf -m 5 https://{NAME}/x")
        assert done.exit_code != 0
        assert len(world.requests()) == before
        assert any("inspector" in event.rule for event in sb.events())
        assert sb.run(f"curl -sS https://{PLAIN}/x").exit_code == 0
        sb.reset()
        assert sb.run(f"curl -sS https://{NAME}/x").exit_code == 0


@on_a_host
def test_what_is_not_http_does_not_pass(world: World) -> None:
    network = Network.allow("93.184.216.34:443", f"udp://{NAME}:443", http=[f"GET {NAME}/**"])
    with opened(world, network) as sb:
        raw = "exec 3<>/dev/tcp/{}/443; printf '\\0\\0\\0hello\\n' >&3; cat <&3 | head -c 1 | wc -c"
        assert sb.run(raw.format(NAME), timeout=20).stdout.strip() in ("", "0")
        assert any("neither TLS nor HTTP" in event.rule for event in sb.events())
        direct = sb.run(f"curl -sSk -m 5 --resolve {NAME}:443:93.184.216.34 https://{NAME}/x")
        assert direct.exit_code != 0
        assert any("reached here by an address" in event.rule for event in sb.events())
        sb.run(f"exec 3<>/dev/udp/{NAME}/443; echo x >&3; sleep 0.2")
        assert any("over TCP only" in event.rule for event in sb.events())
        assert world.requests() == []


@pytest.mark.slow
@on_a_host
def test_a_fork_keeps_the_placeholders_of_its_shells(world: World) -> None:
    with opened(world, Network.allow(f"{NAME}:443"), SECRET) as sb:
        sb.run("export COPY=$TOKEN")
        (other,) = sb.fork()
        with other:
            done = asked(other, f'curl -sS -H "Authorization: Bearer $COPY" https://{NAME}/x')
            assert done["headers"]["authorization"].startswith("Bearer staddle-")
        seen = {name.lower(): value for name, value in world.requests()[-1]["headers"].items()}
        assert seen["authorization"] == f"Bearer {VALUE}"
        assert sb.requests() == []


@pytest.mark.slow
@on_a_host
def test_rules_change_while_it_runs(world: World) -> None:
    with opened(world, Network.allow(NAME, http=[f"GET {NAME}/a/**"])) as sb:
        assert sb.run(f"curl -sSf https://{NAME}/b/x").exit_code != 0
        sb.set_network(Network.allow(NAME, http=[f"GET {NAME}/b/**"]))
        assert sb.run(f"curl -sSf https://{NAME}/b/x").exit_code == 0
        assert sb.run(f"curl -sSf https://{NAME}/a/x").exit_code != 0
    with opened(world, Network.allow(NAME)) as sb, pytest.raises(PolicyNotEnforceable, match="inspector"):
        sb.set_network(Network.allow(NAME, http=[f"GET {NAME}/b/**"]))


@pytest.mark.slow
@on_a_host
def test_a_function_decides_about_other_requests(world: World) -> None:
    questions: list[str] = []

    def on_request(event: Any) -> object:
        questions.append(event.what)
        return "always" if "/yes" in event.what else event.what.startswith("HEAD")

    network = Network.allow(http=[f"GET {NAME}/a/**", f"!* {NAME}/never/**"])
    with opened(world, network, on_request=on_request) as sb:
        for _ in range(2):
            assert sb.run(f"curl -sSf https://{NAME}/yes").exit_code == 0
        for path in ("no", "never/x"):
            assert sb.run(f"curl -sSf https://{NAME}/{path}").exit_code != 0
        assert sb.run(f"curl -sSf https://{NAME}/a/x").exit_code == 0
    assert questions == [f"GET {NAME}/yes", f"GET {NAME}/no"]
    with opened(world, network, on_request=lambda _: 1) as sb:
        assert sb.run(f"curl -sSf https://{NAME}/yes").exit_code != 0
    words = ["sh", "-c", f"curl -sSf https://{NAME}/yes; curl -sSf https://{NAME}/no"]
    for backend in ("namespaces", "bwrap"):
        made = wrap(words, Policy.agent().with_network(network), backend=backend, on_request=on_request)
        made.run(capture_output=True)
        outcomes = [(each.path, each.outcome) for each in made.requests()]
        assert outcomes == [("/yes", "allowed"), ("/no", "refused")]
    del questions[2:]

    async def awaited() -> None:
        async def decide(_: Any) -> bool:
            await asyncio.sleep(0)
            return True

        policy = Policy.agent().with_network(network)
        async with AsyncSandbox(world.directory / "workspace", policy, on_request=decide) as sb:
            assert (await sb.run(f"curl -sSf https://{NAME}/yes")).exit_code == 0
            assert [each.outcome for each in await sb.requests()] == ["allowed"]

    asyncio.run(awaited())


@pytest.mark.slow
@on_a_host
def test_clients_of_a_server_decide_about_requests(world: World) -> None:
    """So does the user of the terminal UI, by the same list as about connections."""
    from staddle.server.sandboxes import SandboxTable
    from staddle.tui.log_pane import EventFeed

    policy = Policy.agent().with_network(Network.allow(http=[f"GET {NAME}/a/**"]))
    workspace = str(world.directory / "workspace")
    entry = SandboxTable().create({"workspace": workspace, "policy": policy}, ask=True)
    answers = {
        f"GET {NAME}/once": (True, False),
        f"GET {NAME}/more": (True, True),
        f"GET {NAME}/no": (False,),
    }
    asked_for: list[str] = []

    def answer() -> None:
        for _ in range(5):
            assert until(lambda: entry.questions)
            (question,) = entry.questions.values()
            asked_for.append(question.event.what)
            entry.answer(question.id, *answers[question.event.what])
            assert until(lambda: not entry.questions)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    for path, times in (("once", 2), ("more", 3), ("no", 2)):
        for _ in range(times):
            done = entry.sandbox.run(f"curl -sSf https://{NAME}/{path}", timeout=20)
            assert (done.exit_code == 0) is (path != "no"), done
    thread.join(10)
    entry.close()
    assert [text.rpartition("/")[2] for text in asked_for] == ["once", "once", "more", "no", "no"]
    feed = EventFeed()
    with Sandbox(workspace, policy, on_request=feed.on_connect, on_connect_timeout=20) as sb:
        running = sb.stream(f"curl -sSf https://{NAME}/x")
        assert until(feed.questions)
        (question,) = feed.questions()
        assert question.event.what == f"GET {NAME}/x"
        question.answer(True)
        list(running)
        assert running.result is not None
        assert running.result.exit_code == 0


@pytest.mark.slow
@on_a_host
def test_single_commands_and_other_backends(world: World) -> None:
    os.environ["REAL_TOKEN"] = VALUE
    network = Network.allow(f"{PLAIN}:443", http=[f"GET {NAME}/a/**"])
    policy = Policy.agent().with_network(network).replace(secrets=[SECRET])
    send = f'curl -sSf -H "Authorization: Bearer $TOKEN" https://{NAME}/'
    for backend in ("namespaces", "bwrap"):
        made = wrap(["sh", "-c", f"{send}a/x; {send}b"], policy, backend=backend)
        done = made.run(capture_output=True, text=True)
        assert "Bearer staddle-" in done.stdout, (backend, done)
        assert VALUE not in done.stdout
        assert [each.outcome for each in made.requests()] == ["allowed", "refused"]
        assert f"GET https://{NAME}/b" in {event.what for event in made.violations()}
        with opened(world, network, SECRET, backend=backend, mode="bind") as sb:
            assert "Bearer staddle-" in sb.run(f"{send}a/x").stdout
            assert sb.run(f"{send}b").exit_code != 0
    process = wrap(["sh", "-c", f"{send}a/x"], policy).popen(stdout=subprocess.PIPE)
    assert b"Bearer staddle-" in process.communicate()[0]
    words = [sys.executable, "-m", "staddle", "run", "--request", f"GET {NAME}/a/**"]
    words += ["--secret", f"TOKEN=env:REAL_TOKEN@{NAME}", "-c", f"{send}a/x; {send}b"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "Bearer staddle-" in ran.stdout, ran
    assert f"GET https://{NAME}/b" in ran.stderr
    assert VALUE not in ran.stdout + ran.stderr
    assert {each["path"] for each in world.requests()} == {"/a/x"}
    for backend in ("landlock",):
        with pytest.raises(PolicyNotEnforceable, match="HTTP rules"):
            Sandbox(policy=policy, backend=backend)
        with pytest.raises(PolicyNotEnforceable, match="HTTP rules"):
            wrap(["true"], policy, backend=backend)


@pytest.mark.slow
@on_a_host
def test_it_ends_with_the_sandbox(world: World) -> None:
    with opened(world, Network.allow(http=[f"GET {NAME}/a/**"])) as sb:
        pid = sb._inside.network.inspector._pid
        assert Path(f"/proc/{pid}").exists()
        files = len(os.listdir("/proc/self/fd"))
    assert not Path(f"/proc/{pid}").exists()
    assert until(lambda: len(os.listdir("/proc/self/fd")) < files)
    with pytest.raises(PolicyError, match="has no value"):
        opened(world, Network.allow(f"{NAME}:443"), SECRET.replace(source="env:NOT_SET"))


@pytest.mark.slow
@on_a_host
def test_many_connections_at_once(world: World) -> None:
    with opened(world, Network.allow(http=[f"GET {NAME}/**"])) as sb:
        done = sb.run(f"seq 80 | xargs -P 80 -I N curl -sSf -m 50 -o /dev/null https://{NAME}/N", timeout=100)
        assert done.exit_code == 0, done
        assert {each.path for each in sb.requests()} == {f"/{number}" for number in range(1, 81)}
