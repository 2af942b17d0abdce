"""The systemd backend on a real systemd: as an ordinary user with a user manager, and as root.

A command, how it ends, a session and the network. A private systemd is started for these tests (see
`private_systemd`), which only root can do.
"""

# ruff: noqa: E501 - scripts read better unbroken

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.support.private_systemd import SOURCE_INSIDE, PrivateSystemd
from tests.support.systemd_sandbox import DRIVER, PROCESSES, Sandbox, wait_for
from tests.support.waiting import next_line, unique_seconds

pytestmark = pytest.mark.needs_root

#: Names in which something that parses units, paths or shell words would stumble.
ODD_NAMES = [
    "sp ace",
    "per%cent %h %%",
    "co:lon",
    'quo"te',
    "apo'strophe",
    "back\\slash",
    "new\nline",
    "dol$HOME ${HOME} $$",
    "-dash",
    "*glob?[a]",
    "\u00e9\u20ac",
    "#hash;semi",
    "\x01\x7f",
    "b\udcffytes",
]

# It runs commands.


def test_the_self_test_succeeds(sandbox: Sandbox) -> None:
    told = json.loads(sandbox.run(only="probe").stdout)
    assert told["usable"], told
    assert int(told["version"]) >= 248


@pytest.mark.parametrize(
    ("text", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_status_is_the_commands(sandbox: Sandbox, text: str, code: int) -> None:
    assert sandbox.run(["sh", "-c", text]).returncode == code


def test_the_three_streams_are_the_commands_own(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 8000
    done = sandbox.run(["sh", "-c", "cat; echo problem >&2"], input=data)
    assert (done.stdout, done.stderr, done.returncode) == (data, b"problem\n", 0)


def test_a_reader_that_goes_away_ends_the_command(sandbox: Sandbox) -> None:
    process = sandbox.popen(["sh", "-c", "yes; echo $? >&2"])
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(100)
    process.stdout.close()
    assert process.stderr.read() == b"141\n"
    assert process.wait(60) == 0


def test_arguments_and_variables_arrive_as_they_are(sandbox: Sandbox) -> None:
    """Nothing expands, splits or quotes them: not the manager, not a shell."""
    words = [*ODD_NAMES, "", "$MANAGER_SECRET", "${MANAGER_SECRET}", "%n", "a=b", "--user", "@x", "|", "-"]
    scope = ["--user"] if sandbox.user else []
    sandbox.unconfined(
        ["systemctl", *scope, "set-environment", "MANAGER_SECRET=leaked", "PYTHONPATH=/leaked"]
    )
    code = "import os,sys,json; print(json.dumps([sys.argv[1:], {k: v for k, v in os.environ.items()}]))"
    env = {f"V{number}": name for number, name in enumerate(ODD_NAMES)}
    done = sandbox.run(["python3", "-c", code, *words], env=env)
    sandbox.unconfined(["systemctl", *scope, "unset-environment", "MANAGER_SECRET", "PYTHONPATH"])
    arrived, variables = json.loads(done.stdout)
    assert arrived == words
    assert {key: variables[key] for key in env} == env
    usual = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "LC_CTYPE"}
    usual |= {"HOSTNAME", "LC_ALL", "STADDLE_SANDBOX"}
    assert variables.keys() - env.keys() <= usual, variables.keys()


# It tells the manager nothing, and does not reach it.


@pytest.mark.slow
def test_the_manager_cannot_be_asked_for_another_unit(sandbox: Sandbox) -> None:
    """With the bus in sight, `systemd-run` inside is an escape in one command."""
    scope = ["--user"] if sandbox.user else []
    runtime = f"/run/user/{sandbox.machine.uid}"
    env = {"XDG_RUNTIME_DIR": runtime, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus"}
    command = ["systemd-run", *scope, "--wait", "--collect", "--quiet", "true"]
    assert sandbox.unconfined(command).returncode == 0
    assert sandbox.run(command, env=env).returncode != 0
    assert sandbox.run(command, env=env, network="open").returncode != 0
    assert sandbox.run(["sh", "-c", "ls /run/user /run/dbus /run/systemd"]).stdout == b""


@pytest.mark.slow
def test_no_secret_is_on_a_command_line_or_in_the_unit(sandbox: Sandbox) -> None:
    process = sandbox.popen(["sleep", "30.5"], env={"TOKEN": "s3cr3t-v4lue"})
    try:
        wait_for("the command", lambda: sandbox.processes("sleep\0" + "30.5"))
        scope = ["--user"] if sandbox.user else []
        (unit,) = sandbox.units()
        shown = sandbox.unconfined(["systemctl", *scope, "show", unit]).stdout
        assert b"Description=a command confined by staddle" in shown
        assert b"s3cr3t" not in shown
        driver = {int(p) for p in sandbox.processes(DRIVER)}  # the test's own words, which name the policy
        assert set(sandbox.processes("s3cr3t-v4lue")) <= driver
        runtime = sandbox.machine.outside(f"/run/user/{sandbox.machine.uid}")
        assert not [path for path in runtime.iterdir() if "staddle" in path.name]
    finally:
        process.kill()
        process.communicate()
    wait_for("the end", lambda: not sandbox.units())


# It does not start.


def test_a_limit_that_the_manager_does_not_set_is_found_out(sandbox: Sandbox) -> None:
    """The manager ignores a limit without saying so where it has no controller for it, as here."""
    for name, most in (("memory", "64M"), ("cpu", 0.5), ("processes", 20)):
        done = sandbox.run(["echo", "ran"], limits={name: most}, despite_gaps=True)
        assert (done.returncode, done.stdout) == (125, b"")
        assert "systemd did not set the limit in /sys/fs/cgroup" in done.stderr.decode()
    wait_for("the units are gone", lambda: not sandbox.units())


def test_a_failure_is_told_on_standard_error_when_nobody_reads_the_status(sandbox: Sandbox) -> None:
    done = sandbox.run(["/usr/bin/no-such-program"], status="closed")
    assert "staddle: '/usr/bin/no-such-program' cannot be run" in done.stderr.decode()


def test_a_program_that_is_not_there_is_told(sandbox: Sandbox) -> None:
    done = sandbox.run(["/usr/bin/no-such-program"])
    assert done.returncode == 125
    assert "'/usr/bin/no-such-program' cannot be run: No such file" in done.stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "why"),
    [("exit 0", "did not move the launcher"), ("echo no >&2; exit 1", "for the launcher: no")],
)
def test_a_manager_that_makes_no_unit_is_found_out(sandbox: Sandbox, answer: str, why: str) -> None:
    words = " ".join(f"'{word}'" for word in sandbox.words(["echo", "ran"]))
    enter = (
        ""
        if not sandbox.user
        else f"setpriv --reuid={sandbox.machine.uid} --regid={sandbox.machine.gid} --clear-groups "
    )
    text = (
        f"printf '#!/bin/sh\\n{answer}\\n' > /run/fake && chmod 755 /run/fake && mount --bind /run/fake /usr/bin/busctl && "
        f"exec {enter}env XDG_RUNTIME_DIR=/run/user/{sandbox.machine.uid} {words}"
    )
    done = sandbox.machine.run(["unshare", "-m", "sh", "-c", text], user=False)
    assert (done.returncode, done.stdout) == (125, b"")
    assert why in done.stderr.decode()


def test_without_a_user_manager_the_cause_is_named(machine: PrivateSystemd) -> None:
    words = ["/usr/bin/python3", DRIVER, json.dumps({"only": "probe"})]
    done = machine.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *words], user=False)
    told = json.loads(done.stdout)
    assert not told["usable"]
    assert "no user manager runs for uid 65534" in told["why"]
    assert "enable-linger" in told["fix"]


def test_what_it_cannot_hold_is_a_gap(sandbox: Sandbox) -> None:
    controllers = sandbox.machine.outside("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    limits = {"memory": "64M", "cpu": 0.5, "processes": 20, "disk": "1G"}
    told = dict(json.loads(sandbox.run(only="gaps", limits=limits).stdout))
    assert "limits.disk" in told
    for name, controller in (("memory", "memory"), ("cpu", "cpu"), ("processes", "pids")):
        assert (f"limits.{name}" in told) == (controller not in controllers)
    assert json.loads(sandbox.run(only="gaps").stdout) == []


# ---------------------------------------------------------------- how a command ends


@pytest.fixture
def running(sandbox: Sandbox) -> Iterator[tuple[Sandbox, subprocess.Popen[bytes], int, str]]:
    """A command with two children in other sessions, its driver, the client's pid inside the machine."""
    place = sandbox.place()
    mark = unique_seconds()
    text = f"trap 'echo got term; exit 5' TERM; trap 'echo got int; exit 6' INT; setsid sleep {mark} & sleep {mark} & echo up; wait; wait; wait"
    process = sandbox.popen(["bash", "-c", text], pid_file=f"{place}/pid", write=[place], cwd=place)
    assert next_line(process) == b"up\n"
    pid = int((sandbox.machine.outside(place) / "pid").read_text())
    yield sandbox, process, pid, mark
    process.kill()
    process.communicate()
    wait_for("every process ends", lambda: not sandbox.processes(f"sleep\0{mark}"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "word", "code"), [("TERM", b"got term\n", 5), ("INT", b"got int\n", 6)])
def test_signals_reach_the_command_and_its_answer_counts(
    running: tuple[Sandbox, subprocess.Popen[bytes], int, str], name: str, word: bytes, code: int
) -> None:
    sandbox, process, pid, mark = running
    sandbox.unconfined(["kill", f"-{name}", str(pid)])
    assert next_line(process) == word
    assert process.wait(60) == code
    assert not sandbox.processes(f"sleep\0{mark}")


@pytest.mark.slow
def test_when_its_client_is_killed_everything_ends(
    running: tuple[Sandbox, subprocess.Popen[bytes], int, str],
) -> None:
    sandbox, _, pid, mark = running
    assert len(sandbox.units()) == 1
    sandbox.unconfined(["kill", "-KILL", str(pid)])
    wait_for("every process ends", lambda: not sandbox.processes(f"sleep\0{mark}"))
    wait_for("the unit is gone", lambda: not sandbox.units())
    assert not sandbox.processes("busctl\0")


@pytest.mark.slow
def test_when_its_starter_is_killed_everything_ends(
    running: tuple[Sandbox, subprocess.Popen[bytes], int, str],
) -> None:
    sandbox, _, pid, mark = running
    status = sandbox.machine.outside(f"/proc/{pid}/status").read_text()
    parent = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))
    sandbox.unconfined(["kill", "-KILL", parent])
    wait_for("every process ends", lambda: not sandbox.processes(f"sleep\0{mark}"))
    wait_for("the unit is gone", lambda: not sandbox.units())


@pytest.mark.slow
def test_a_unit_that_is_stopped_by_hand_ends_the_command(
    running: tuple[Sandbox, subprocess.Popen[bytes], int, str],
) -> None:
    sandbox, process, _, mark = running
    scope = ["--user"] if sandbox.user else []
    sandbox.unconfined(["systemctl", *scope, "stop", *sandbox.units()])
    assert process.wait(60) == 5  # it was asked, and answered
    assert not sandbox.processes(f"sleep\0{mark}")


@pytest.mark.slow
def test_a_command_that_hears_nothing_is_ended_by_killing_its_client(sandbox: Sandbox) -> None:
    place = sandbox.place()
    mark = unique_seconds()
    text = f"trap '' TERM INT HUP; echo up; while :; do sleep {mark}; done"
    process = sandbox.popen(["bash", "-c", text], pid_file=f"{place}/pid", write=[place], cwd=place)
    assert next_line(process) == b"up\n"
    pid = (sandbox.machine.outside(place) / "pid").read_text()
    sandbox.unconfined(["kill", "-TERM", pid])
    time.sleep(0.3)
    assert sandbox.units()
    sandbox.unconfined(["kill", "-KILL", pid])
    wait_for("every process ends", lambda: not sandbox.processes(f"sleep\0{mark}"))
    assert process.wait(60) == 137
    process.communicate()
    wait_for("the unit is gone", lambda: not sandbox.units())


#: A client of the manager that kills the launcher, the parent of its parent, before it asks.
KILLER = """#!/bin/sh
kill -KILL $(cut -d" " -f4 /proc/$PPID/stat); sleep 0.2; exec /run/busctl "$@"
"""
LEFT_ALONE = f"""
import sys, time
sys.path.insert(0, {SOURCE_INSIDE!r})
from staddle import Policy
from staddle.backends.systemd import Systemd
from staddle.launch.running import start
from staddle.policy.compiler import compile
started = start(Systemd().prepare(compile(Policy.agent()), ["echo", "ran"]))
time.sleep(2)  # it stays a zombie, which the manager takes for a process to move
print(started.wait())
"""


@pytest.mark.slow
def test_a_launcher_that_is_killed_while_it_asks_leaves_no_unit(sandbox: Sandbox) -> None:
    for name, content in (("program", LEFT_ALONE), ("killer", KILLER)):
        sandbox.machine.outside(f"/run/{name}").write_text(content)
    uid = sandbox.machine.uid
    enter = f"setpriv --reuid={uid} --regid={uid} --clear-groups " if sandbox.user else ""
    text = (
        "cp /usr/bin/busctl /run/busctl && chmod 755 /run/killer && mount --bind /run/killer /usr/bin/busctl && "
        f"exec {enter}env XDG_RUNTIME_DIR=/run/user/{uid} python3 /run/program"
    )
    done = sandbox.machine.run(["unshare", "-m", "sh", "-c", text], user=False)
    assert done.stdout == b"-9\n", done.stderr
    wait_for("the unit is gone", lambda: not sandbox.units(), seconds=10)


@pytest.mark.slow
def test_what_it_leaves_in_the_background_ends_with_it(sandbox: Sandbox) -> None:
    mark, before = unique_seconds(), time.monotonic()
    done = sandbox.run(["bash", "-c", f"setsid sleep {mark} & disown; echo done"])
    assert done.stdout == b"done\n"
    assert time.monotonic() - before < 60
    assert not sandbox.processes(f"sleep\0{mark}")


@pytest.mark.slow
def test_many_at_once_in_one_directory(sandbox: Sandbox) -> None:
    place = sandbox.place()
    command = ["sh", "-c", "echo $0 > out-$0; cat out-$0"]
    started = [sandbox.popen([*command, str(n)], write=[place], cwd=place) for n in range(12)]
    told = sorted(int(process.communicate(timeout=60)[0]) for process in started)
    assert told == list(range(12))
    assert len(list(sandbox.machine.outside(place).iterdir())) == 12


# ---------------------------------------------------------------- a session


PROGRAM = f"""
import json, sys
sys.path.insert(0, {SOURCE_INSIDE!r})
from staddle import Sandbox
with Sandbox(sys.argv[1], backend="systemd", mode="bind") as sandbox:
    told = [
        sandbox.run("x=1; f() {{ echo f$x; }}; cd /tmp; pwd").stdout,
        sandbox.run("f; pwd; cat").stdout,
        sandbox.run("exit 3").exit_code,
        sandbox.run("f; id -un; ls /workspace").stdout,
        sandbox.run("sleep 60", timeout=0.5).timed_out,
        sandbox.run("echo written > /workspace/new").exit_code,
        sandbox.exec(["sh", "-c", "exit 7"]).exit_code,
        sandbox.enforced.backend,
    ]
print(json.dumps(told))
"""


@pytest.mark.slow
def test_a_session_remembers_and_survives(sandbox: Sandbox) -> None:
    place = sandbox.place()
    sandbox.unconfined(["touch", f"{place}/file"])
    done = sandbox.unconfined(["/usr/bin/python3", "-c", PROGRAM, place])
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == ["/tmp\n", "f1\n/tmp\n", 3, "f1\nuser\nfile\n", True, 0, 7, "systemd"]
    assert sandbox.unconfined(["cat", f"{place}/new"]).stdout == b"written\n"


CANCELLED = f"""
import asyncio, random, sys
sys.path.insert(0, {SOURCE_INSIDE!r})
from staddle import AsyncSandbox
random.seed(7)

async def main():
    async with AsyncSandbox(sys.argv[1], backend="systemd", mode="bind") as sb:
        for turn in range(25):
            await sb.run("sleep 1253.3 &")
            task = asyncio.create_task(sb.run("sleep 1253.4"))
            for _ in range(random.randrange(1, 4)):
                await asyncio.sleep(random.choice([0, 0, 0.001, 0.003, 0.01]))
                task.cancel()
            try:
                await task
                sys.exit("it was not cancelled")
            except asyncio.CancelledError:
                pass
            assert (await sb.run("echo fine")).stdout == "fine\\n"

asyncio.run(main())
print("whole")
"""


@pytest.mark.slow
def test_a_command_that_is_cancelled_again_and_again(sandbox: Sandbox) -> None:
    done = sandbox.unconfined(["/usr/bin/python3", "-c", CANCELLED, sandbox.place()])
    assert (done.returncode, done.stdout) == (0, b"whole\n"), done.stderr.decode()


# ---------------------------------------------------------------- the network


#: A web server on the machine's loopback, and what the tests start beside it.
BEGIN = f"""
import http.server, json, os, signal, subprocess, sys, threading
sys.path.insert(0, {SOURCE_INSIDE!r})
from staddle import Network, Policy, Sandbox, wrap

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "8")
        self.end_headers()
        self.wfile.write(b"outside\\n")
    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
threading.Thread(target=server.serve_forever, daemon=True).start()
port = server.server_address[1]
policy = Policy.agent().with_network(Network.allow(f"127.0.0.1:{{port}}", "allowed.example:443"))
fetch = "curl -sS -m 10 http://127.0.0.1:%d/" % port
elsewhere = "http://127.0.0.1:1/ http://192.0.2.8/ http://evil.example/"
others = "for url in %s; do curl -sS -m 10 $url 2>/dev/null; echo $?; done" % elsewhere
"""

COMMAND = f"""{BEGIN}
wrapped = wrap(["bash", "-c", fetch + ";" + others + "; getent ahostsv4 allowed.example; exit 3"],
               policy, backend="systemd")
done = wrapped.run(capture_output=True, text=True, timeout=30)
refused = sorted(event.what for event in wrapped.violations())
gaps = [str(gap) for gap in wrapped.enforced.gaps if not gap.documented]
print(json.dumps([gaps, done.returncode, done.stdout.split("\\n")[:5], refused]))
"""

SESSION = f"""{BEGIN}
asked = []
def on_connect(event):
    asked.append(event.what)
    return False
with Sandbox(policy=policy, backend="systemd", mode="bind", on_connect=on_connect) as sandbox:
    told = [
        sandbox.run(fetch).stdout,
        sandbox.run("curl -sS -m 10 http://evil.example/").exit_code != 0,
        [event.what for event in sandbox.refusals()],
    ]
    sandbox.start("python3 -m http.server 8000 --bind 127.0.0.1")
    sandbox.run("until curl -s -o /dev/null http://127.0.0.1:8000/; do sleep 0.05; done", timeout=30)
    with sandbox.connect(8000) as connection:
        connection.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
        told.append(connection.recv(8).decode())
    main = b"staddle/network/gateway/__main__.py"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{{pid}}/cmdline", "rb").read().split(b"\\0")
            if any(word.endswith(main) for word in words):
                os.kill(int(pid), signal.SIGKILL)
        except OSError:
            continue
    told.append(sandbox.run("until " + fetch + " -f 2>/dev/null; do sleep 0.05; done", timeout=30).stdout)
    told.append(sandbox.alive)
print(json.dumps([*told, asked]))
"""

ENDED = f"""{BEGIN}
wrapped = wrap(["bash", "-c", fetch + "; read; " + fetch + " 2>/dev/null; echo $?; exec sleep 60"],
               policy.with_limits(timeout=None), backend="systemd")
process = wrapped.popen(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert process.stdout.readline() == "outside\\n"
main = os.path.join({SOURCE_INSIDE!r}, "staddle/network/gateway/__main__.py").encode()
def gateways():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{{pid}}/cmdline", "rb").read().split(b"\\0")
        except OSError:
            continue
        if words[-3:-1] == [main, str(process.pid).encode()]:
            found.append(int(pid))
    return found
(gateway,) = gateways()
if sys.argv[1] == "gateway":
    os.kill(gateway, signal.SIGKILL)
    while open(f"/proc/{{gateway}}/stat").read().split()[2] != "Z":
        pass
    process.stdin.write("\\n")
    process.stdin.flush()
    assert process.stdout.readline() == "7\\n"
process.kill()
process.wait()
print(gateway)
"""


@pytest.mark.slow
def test_a_command_reaches_what_is_allowed_and_nothing_else(sandbox: Sandbox) -> None:
    done = sandbox.unconfined(["/usr/bin/python3", "-c", COMMAND])
    assert done.returncode == 0, done.stderr.decode()
    gaps, code, lines, refused = json.loads(done.stdout)
    assert (gaps, code) == ([], 3)
    assert lines[:4] == ["outside", "7", "7", "6"]
    assert lines[4].startswith("198.18.")
    assert refused == ["192.0.2.8:80", "evil.example"]


@pytest.mark.slow
def test_a_session_does_and_somebody_is_asked(sandbox: Sandbox) -> None:
    done = sandbox.unconfined(["/usr/bin/python3", "-c", SESSION])
    assert done.returncode == 0, done.stderr.decode()
    *told, alive, asked = json.loads(done.stdout)
    assert told == ["outside\n", True, [], "HTTP/1.0", "outside\n"]  # the last one by another gateway
    assert alive
    assert asked == ["evil.example:80"]


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["gateway", "client"])
def test_the_gateway_ends_with_the_command_and_nothing_goes_out_without_it(
    sandbox: Sandbox, whose: str
) -> None:
    done = sandbox.unconfined(["/usr/bin/python3", "-c", ENDED, whose])
    assert done.returncode == 0, done.stderr.decode()
    mark = b"staddle/network/gateway/__main__.py"

    def left() -> bytes:
        return sandbox.unconfined(["/usr/bin/python3", "-c", PROCESSES], input=mark).stdout

    wait_for("the gateway's end", lambda: done.stdout.strip() not in left().split())
