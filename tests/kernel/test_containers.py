"""In containers that nobody prepared, as user and as root, doctor, what runs and what is enforced agree.

`make test-hosts` tries the other kinds of containers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.containers import TREE, Container

pytestmark = pytest.mark.needs_root

USER, ROOT = Container(uid=1000), Container()
PROFILE = TREE / "src/staddle/containers/seccomp.json"

#: A day in the life of a session, without any word about the container but `nested`.
SESSION = """
import json, os, sys, warnings
from staddle import Policy, Sandbox, StaddleError
from staddle.background import wait_for_jobs
from staddle.sandbox.open.spare_agents import SPARES
told = []
warnings.showwarning = lambda message, *rest: told.append(str(message))
os.mkdir("/tmp/p"); os.mkdir("/tmp/p/sub")
for name, text in (("a", "one\\n"), ("sub/b", "two\\n")):
    with open(f"/tmp/p/{name}", "w") as file:
        file.write(text)
os.chmod("/tmp/p/a", 0o600)
found = {}
nested = Policy.agent(nested=True)
with Sandbox("/tmp/p", policy=nested) as sb:
    found["backend"] = sb.enforced.backend
    found["gaps"] = sorted({gap.protection for gap in sb.enforced.gaps})
    gaps = [gap for gap in sb.enforced.gaps if not gap.protection.startswith("limits")]
    found["documented"] = all(gap.documented for gap in gaps)
    found["id"] = int(sb.run("id -u").stdout)
    sb.run("cd sub; x=5; f() { echo f$x; }")
    found["state"] = sb.run("f; cat ../a").stdout
    found["timeout"] = str(sb.run("sleep 1000", timeout=0.5).reason)
    process = sb.start("read line; echo got $line")
    process.send_stdin("this\\n")
    found["background"] = [process.wait(), process.output()]
    before = sb.snapshot()
    sb.run("cd ..; rm -rf *; x=6")
    sb.restore(before)
    found["restored"] = sb.run("echo $x; ls ..").stdout.split()
    child, = sb.fork(1)
    found["fork"] = [child.run("cat ../a; echo more >> ../a; echo $x").stdout, sb.run("cat ../a").stdout]
    found["fork_id"] = int(child.run("id -u").stdout)
    child.close()
    found["files"] = sb.files.read("../a")
    sb.run("echo three >> ../a; rm b; echo new > c; mkdir d; ln -s c e")
    at = sb.run("cd ..; pwd").stdout.strip()
    found["diff"] = [[change.kind, change.path.removeprefix(at)] for change in sb.diff()]
    sb.discard([f"{at}/sub/b"])
    sb.commit()
    found["commands"] = {
        "kill": sb.run("kill -9 1").exit_code,
        "etc": sb.run("echo > /etc/hostname").exit_code,
        "home": sb.run(f"ls {os.path.expanduser('~')}").exit_code,
        "capabilities": sb.run("grep -E 'Cap(Eff|Prm|Bnd)' /proc/self/status").stdout.split()[1::2],
        "network": sb.run("exec 3<>/dev/tcp/127.0.0.1/1").exit_code,
    }
found["host"] = {name: open(f"/tmp/p/{name}").read() for name in ("a", "sub/b", "sub/c", "sub/e")}
names = ("a", "sub", "sub/b", "sub/c", "sub/d")
found["owners"] = sorted({os.stat(f"/tmp/p/{name}").st_uid for name in names})
limited = nested.with_limits(memory="150M", processes=30)
with Sandbox(policy=limited) as sb:
    fill = "python3 -c 'l = []\\nwhile True: l.append(bytes([1]) * (1 << 20))'"
    found["limits"] = [str(sb.run(fill).reason), str(sb.run("false").reason)]
    # A fork that fails is tried again by bash for long: a program is told at once.
    crowd = "import os, time\\nfor _ in range(60):\\n if not os.fork(): time.sleep(1000)"
    crowded = sb.run(f"python3 -c '{crowd}'")
    found["limits"].append(str(crowded.reason))
    found["crowded"] = [crowded.exit_code, "Resource temporarily unavailable" in crowded.stderr]
    found["held"] = {item.limit: item.exact for item in sb.enforced.limits}
with Sandbox(policy=nested) as sb:
    found["empty"] = sb.run("pwd > x; cat x").ok
for mode in ("readonly", "bind"):
    try:
        with Sandbox("/tmp/p", mode=mode, policy=nested) as sb:
            found[mode] = [sb.run("cat sub/c").stdout, sb.run("echo > sub/n").exit_code]
    except StaddleError as error:
        found[mode] = error.fix
found["told"] = told
wait_for_jobs()
SPARES.end()
found["left"] = [name for name in os.listdir("/tmp") if name.startswith("staddle-")]
print(json.dumps(found))
"""


@pytest.fixture(scope="module", params=["user", "root"])
def lived(request: pytest.FixtureRequest) -> tuple[Container, dict[str, Any]]:
    container = USER if request.param == "user" else ROOT
    return container, container.python(SESSION)


@pytest.mark.slow
def test_a_session_in_an_unchanged_container(lived: tuple[Container, dict[str, Any]]) -> None:
    container, found = lived
    assert found["backend"] == "landlock"
    assert found["state"] == "f5\none\n"
    assert found["timeout"] == "timeout"
    assert found["background"] == [0, "got this\n"]
    assert found["restored"] == ["5", "a", "sub"]
    assert found["fork"] == ["one\n5\n", "one\n"]
    assert found["files"] == "one\n"
    assert found["diff"] == [
        *(["modified", "/a"], ["deleted", "/sub/b"], ["added", "/sub/c"], ["added", "/sub/d"]),
        ["added", "/sub/e"],
    ]
    assert found["host"] == {"a": "one\nthree\n", "sub/b": "two\n", "sub/c": "new\n", "sub/e": "new\n"}
    assert found["owners"] == [container.uid]  # a commit gives everything to the owner of the directory
    assert found["empty"]
    assert found["left"] == []


def test_every_gap_is_listed_and_told_once(lived: tuple[Container, dict[str, Any]]) -> None:
    container, found = lived
    expected = {"metadata", "read", "processes", "tmp", "ipc", "keyring", "layers", "workspace"}
    if container.uid:  # an id that is nobody's holds these
        expected |= {"signals", "devices", "capabilities"}
    assert {gap for gap in found["gaps"] if not gap.startswith("limits.")} - {"packages"} == expected
    assert found["documented"]
    assert len(found["told"]) == 1
    assert all(gap in found["told"][0] for gap in found["gaps"])


def test_what_stays_closed(lived: tuple[Container, dict[str, Any]]) -> None:
    container, found = lived
    commands = found["commands"]
    assert all(commands[name] for name in ("kill", "etc", "home", "network"))
    none = "0" * 16
    assert commands["capabilities"][:2] == [none, none]
    if container.uid:
        assert found["id"] == container.uid
    else:
        assert commands["capabilities"][2] == none
        assert found["id"] >= 0x70000000
        assert found["fork_id"] not in (found["id"], 0)


def test_limits_are_held_and_the_reason_is_the_command_s_own(lived: tuple[Container, dict[str, Any]]) -> None:
    container, found = lived
    assert found["limits"][:2] == ["memory", "exited"]
    assert found["crowded"] == [1, True]
    if container.uid == 0:  # a user's other processes count, too, and come and go: the reason may be missed
        assert found["limits"][2] == "processes"
    assert found["held"]["memory"] is False  # measured, not counted by the kernel
    assert "limits.memory" not in found["gaps"]
    assert "limits.processes" not in found["gaps"]


def test_writing_through_as_root_is_refused_with_a_way_out(lived: tuple[Container, dict[str, Any]]) -> None:
    container, found = lived
    assert found["readonly"][0] == "new\n"
    assert found["readonly"][1] != 0
    if container.uid:
        assert found["bind"] == ["new\n", 0]
    else:
        assert "mode='overlay'" in found["bind"]
        assert "--user" in found["bind"]


CONNECTING = """
import asyncio, errno, json, multiprocessing, os, socket
found = {}
def put(shared):
    shared["x"] = 1
with multiprocessing.Manager() as manager:
    shared = manager.dict()
    process = multiprocessing.get_context("fork").Process(target=put, args=(shared,))
    process.start(); process.join()
    found["manager"] = dict(shared)
place = os.path.join(os.environ["TMPDIR"], "s")
async def echo():
    async def answer(reader, writer):
        writer.write(await reader.readline()); writer.close()
    server = await asyncio.start_unix_server(answer, place)
    reader, writer = await asyncio.open_unix_connection(place)
    writer.write(b"hello\\n")
    line = await reader.readline()
    writer.close(); server.close()
    return line.decode()
found["asyncio"] = asyncio.run(echo())
def attempt(family, kind, where, name=None):
    with socket.socket(family, kind) as made:
        try:
            if name is not None:
                made.bind(name)
            made.connect(where)
            again = "connected"
            try:
                made.connect(where)
            except OSError as error:
                again = errno.errorcode[error.errno]
            return [again, os.get_inheritable(made.fileno())]
        except OSError as error:
            return errno.errorcode[error.errno]
for kind in ("SOCK_STREAM", "SOCK_SEQPACKET"):
    with socket.socket(socket.AF_UNIX, getattr(socket, kind)) as server:
        server.bind("\\0" + kind); server.listen()
        found[kind] = attempt(socket.AF_UNIX, getattr(socket, kind), "\\0" + kind)
        found["bound " + kind] = attempt(socket.AF_UNIX, getattr(socket, kind), "\\0" + kind, "\\0me" + kind)
found["the host's"] = attempt(socket.AF_UNIX, socket.SOCK_STREAM, "/srv/host.sock")
found["the host's abstract"] = attempt(socket.AF_UNIX, socket.SOCK_STREAM, "\\0host")
with socket.socketpair()[0] as one:
    try:
        one.connect("\\0host")
    except OSError as error:
        found["a pair"] = errno.errorcode[error.errno]
print(json.dumps(found))
"""
#: As the user of the container: sockets outside the sandbox that nobody granted, and a sandbox beside them.
_BESIDE = """
import os, socket, subprocess, sys
place = "/tmp/host.sock"
servers = []
for name in (place, "\\0host"):
    server = socket.socket(socket.AF_UNIX); server.bind(name); server.listen(); servers.append(server)
os.chmod(place, 0o777)
os.makedirs("/tmp/project"); os.chmod("/tmp/project", 0o755)
with open("/tmp/project/connecting.py", "w") as file:
    file.write(sys.argv[1].replace("/srv/host.sock", place))
os.chdir("/tmp/project")
run = [sys.executable, "-m", "staddle", "run", "--nested", "--"]
sys.exit(subprocess.call([*run, "python3", "connecting.py"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("container", [USER, ROOT], ids=["user", "root"])
def test_own_sockets_can_be_connected_to_and_others_cannot(container: Container) -> None:
    """pidfd_getfd is refused here: the supervisor puts a connected socket in the caller's place."""
    found = container.python(_BESIDE, CONNECTING)
    assert found["manager"] == {"x": 1}
    assert found["asyncio"] == "hello\n"
    for kind in ("SOCK_STREAM", "SOCK_SEQPACKET"):
        assert found[kind] == ["EISCONN", False]
        assert found[f"bound {kind}"] == "EACCES"
    assert found["the host's"] == "EACCES"
    assert found["the host's abstract"] in ("EACCES", "EPERM")
    assert found["a pair"] == "EISCONN"


@pytest.mark.slow
@pytest.mark.parametrize("container", [USER, ROOT], ids=["user", "root"])
def test_the_refusal_ends_in_a_line_that_works(container: Container) -> None:
    script = 'staddle() { %s -m staddle "$@"; }; staddle run -- true || { %s; staddle run -- echo it ran; }'
    refused = container.staddle("run", "--", "echo", "it ran")
    assert refused.returncode == 125
    assert "it ran" not in refused.stdout
    line = refused.stderr.rstrip().splitlines()[-1].strip()
    done = container.run(["sh", "-c", script % (sys.executable, line)])
    assert (done.returncode, done.stdout) == (0, "it ran\n"), done.stderr


def test_doctor_says_what_is_enforced(lived: tuple[Container, dict[str, Any]]) -> None:
    container, _ = lived
    said = json.loads(container.staddle("doctor", "--json").stdout)
    usable = {name for name, backend in said["backends"].items() if backend["usable"]} - {"native"}
    assert usable == {"landlock"}
    listed = {gap["protection"] for gap in said["backends"]["landlock"]["gaps"]}
    of_sessions, of_single_commands = {"layers", "workspace"}, {"limits.disk"}
    assert listed - {"packages"} - of_single_commands == set(lived[1]["gaps"]) - of_sessions - {"packages"}
    for name in ("namespaces", "bwrap"):
        assert said["backends"][name]["why"]


_SERVED = """
import http.server, json, subprocess, sys, threading
class Served(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"served")
    def log_message(self, *_):
        pass
servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Served) for _ in range(2)]
for server in servers:
    threading.Thread(target=server.serve_forever, daemon=True).start()
allowed, other = (server.server_port for server in servers)
found = {}
def asked(url, *options):
    run = ["run", "--nested", "--allow", f"localhost:{allowed}", "--allow", f"127.0.0.1:{allowed}"]
    curl = ["curl", "-sS", "-m", "60", *options, url]
    done = subprocess.run(
        [sys.executable, "-m", "staddle", *run, "--timeout", "none", "--", *curl],
        capture_output=True, text=True, cwd="/",
    )
    return [done.returncode, done.stdout]
found["by name"] = asked(f"http://localhost:{allowed}/")
found["by address"] = asked(f"http://127.0.0.1:{allowed}/", "--noproxy", "*")
found["another port"] = asked(f"http://127.0.0.1:{other}/", "--noproxy", "*")
found["another name"] = asked("http://other.example/")
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("container", [USER, ROOT], ids=["user", "root"])
def test_an_allow_list_of_names_and_addresses(container: Container) -> None:
    found = container.python(_SERVED)
    assert found["by name"] == [0, "served"]
    assert found["by address"] == [0, "served"]
    assert found["another port"][0] == 7
    assert "no entry allows it" in found["another name"][1]


_AHEAD = """
import json, os
from staddle import Policy, Sandbox
from staddle.background import wait_for_jobs
from staddle.sandbox.open.spare_agents import SPARES
os.makedirs("/tmp/project")
open("/tmp/project/a", "w").write("1")
found = []
for _ in range(4):
    with Sandbox("/tmp/project", policy=Policy.agent(nested=True)) as sb:
        ids = sb.run("id -u; stat -c %u . a; cat a").stdout.split()
        before = sb.snapshot()
        sb.run("rm a")
        sb.restore(before)
        (fork,) = sb.fork()
        with fork:
            ids.append(fork.run("id -u").stdout.strip())
        wait_for_jobs()
        found.append([ids, sb.run("cat a").stdout])
        spare = SPARES._spare
        taken = spare and spare.opened[0]
        sb.run("echo 1 >> b")
        sb.commit()
    if len(found) > 1:
        with Sandbox("/tmp/project", policy=Policy.agent(nested=True)) as sb:
            found[-1].append(sb._now().agent is taken)
            wait_for_jobs()
print(json.dumps([found, [os.stat("/tmp/project/" + name).st_uid for name in os.listdir("/tmp/project")]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("container", [USER, ROOT], ids=["user", "root"])
def test_the_next_sandbox_of_a_directory_is_made_ahead_with_an_id_of_its_own(container: Container) -> None:
    found, owners = container.python(_AHEAD)
    seen = set()
    for (own, top, file, text, fork), again, *is_ahead in found:
        assert (own, text, again) == (top, "1", "1") == (file, "1", "1")
        assert is_ahead in ([], [True])
        seen |= {own, fork}
    assert len(seen) == (1 if container is USER else 8)
    assert set(owners) == {container.uid}


#: Asks a nameserver over TCP, as the C library does, and connects to the address that it is told.
_ASKS = r"""
import socket, sys
asking = socket.create_connection(("192.0.2.53", 53))
question = bytes.fromhex("000701000001000000000000") + b"\6served\7example" + bytes.fromhex("0000010001")
asking.sendall(len(question).to_bytes(2, "big") + question)
address = socket.inet_ntoa(asking.recv(4096)[-4:])
for seconds in (None, 30):
    with socket.create_connection((address, int(sys.argv[1])), seconds) as s:
        s.sendall(b"GET / HTTP/1.0\r\nHost: served.example\r\n\r\n")
        print(s.makefile().read().split()[-1])
"""
_BY_NAME = f"""
import http.server, json, subprocess, sys, threading
class Served(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"served")
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Served)
threading.Thread(target=server.serve_forever, daemon=True).start()
port = str(server.server_port)
with open("/etc/hosts", "a") as file:
    print("127.0.0.1 served.example", file=file)
run = ["run", "--nested", "--allow", "served.example:" + port, "--allow", "127.0.0.1:" + port]
done = subprocess.run(
    [sys.executable, "-m", "staddle", *run, "--timeout", "none", "--", "python3", "-c", {_ASKS!r}, port],
    capture_output=True, text=True, cwd="/",
)
print(json.dumps([done.stdout, done.stderr[-300:]]))
"""


@pytest.mark.slow
def test_a_program_that_knows_of_no_proxy_reaches_a_name() -> None:
    """Also where the supervisor puts another socket in the caller's place."""
    out, err = ROOT.python(_BY_NAME)
    assert out == "served\nserved\n", err


@pytest.mark.slow
@pytest.mark.parametrize("uid", [1000, 0], ids=["user", "root"])
def test_the_demo_runs_in_an_unchanged_container(uid: int) -> None:
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    container = Container(uid=uid, env={"STADDLE_NESTED": "1", "PATH": path})
    done = container.run([str(TREE / "scripts/demo")])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("`staddle doctor` shows what this host can enforce.\n")
    assert "UNEXPECTED" not in done.stdout


# With options.

#: The filter that is shipped, and a /proc without covers: the options that doctor names.
PREPARED = Container(uid=1000, profile=PROFILE, masked=False)
#: Podman without options but that: it refuses host names.
NAMELESS = Container(uid=1000, profile="podman", masked=False, marks=("run/.containerenv",))
WHOLE = """
import json
from staddle import Policy, Sandbox
with Sandbox(policy=Policy.agent(nested=True)) as sb:
    sb.run("x=1; echo one > a")
    before = sb.snapshot()
    sb.run("x=2; rm a")
    sb.restore(before)
    found = {"backend": sb.enforced.backend, "gaps": [gap.protection for gap in sb.enforced.gaps]}
    found |= {"method": before.method, "said": sb.run("cat a; echo $x; pwd").stdout}
    found["name"] = sb.run("hostname").stdout
print(json.dumps(found))
"""


@pytest.mark.slow
def test_with_the_shipped_filter_everything_is_enforced() -> None:
    found = PREPARED.python(WHOLE)
    assert (found["backend"], found["method"]) == ("namespaces", "swap")
    assert found["said"] == "one\n1\n/workspace\n"
    assert found["gaps"] == ["layers"]  # /dev/shm is small, which is told
    said = json.loads(PREPARED.staddle("doctor", "--json").stdout)
    assert said["auto"] == "namespaces"
    assert len(said["backends"]["namespaces"]["enforces"]) == 19
    assert PREPARED.staddle("run", "--", "echo", "it ran").stdout == "it ran\n"


@pytest.mark.slow
def test_a_host_name_that_is_refused_is_a_gap_and_not_the_end() -> None:
    found = NAMELESS.python(WHOLE)
    assert found["backend"] == "namespaces"
    assert found["gaps"] == ["identity", "layers"]
    assert found["name"] == "box\n"
    strict = NAMELESS.staddle("run", "--", "true")
    assert strict.returncode == 125
    assert "sethostname" in strict.stderr
    assert NAMELESS.staddle("run", "--nested", "--", "hostname").stdout == "box\n"


#: Podman without options: it covers parts of /proc as well, so that nobody can mount another.
COVERED = Container(uid=1000, profile="podman", marks=("run/.containerenv",))
#: Two sandboxes and a large process of the same user beside them.
OUTSIDE = """
import json, subprocess, sys, time, warnings
from staddle import Policy, Sandbox
warnings.simplefilter("ignore")
large = "x = bytearray(150 << 20); print(1, flush=True); import time; time.sleep(300)"
other = subprocess.Popen([sys.executable, "-c", large], env={"SECRET": "outside"}, stdout=subprocess.PIPE)
other.stdout.readline()
policy = Policy.agent(nested=True).with_limits(memory="100M", processes=40)
found = {}
look = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\\\0' '\\\\n' | grep -a SECRET"
with Sandbox(policy=policy) as sb, Sandbox(policy=policy) as neighbour:
    neighbour.start("SECRET=neighbour sleep 300")
    for user in (None, "root"):
        found[str(user)] = [
            sb.run(look, user=user).stdout,
            sb.run("for p in self [0-9]*; do readlink $p/ns/mnt; (cd $p/root && ls -A run); done | sort -u",
                   cwd="/proc", user=user).stdout,
            sb.run("for p in [0-9]*; do echo 1000 > $p/oom_score_adj && echo $p; done", cwd="/proc",
                   user=user).stdout,
            sb.run("mount -o remount,bind,rw /proc || umount -l /proc", user=user).exit_code,
        ]
    found["score"] = open(f"/proc/{other.pid}/oom_score_adj").read()
    sb.run("exec 7</proc; cd /proc/self")
    found["names"] = sb.run("ls /proc/self/fd >/dev/null; echo $?; cd").stdout
    found["memory"] = str(sb.run("python3 -c 'x = bytearray(200 << 20); import time; time.sleep(20)'").reason)
    found["processes"] = str(sb.run("for i in $(seq 100); do sleep 9 & done; wait", timeout=20).reason)
    found["timeout"] = str(sb.run("sleep 100 & sleep 100", timeout=0.5).reason)
    running = sb.start("sleep 100")
    sb.pause(), sb.resume()
    running.kill()
    found["killed"] = running.wait(20)
    found["exec"] = [sb.exec(["echo", str(number)]).stdout for number in range(3)]
    found["sudo"] = sb.run("sudo id -u").stdout
    found["usage"] = sb.usage.processes
    try:
        found["files"] = sb.files.read("/proc/self/environ")
    except Exception as error:
        found["files"] = type(error).__name__
found["other"] = other.poll()
other.kill()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_proc_with_covers_is_a_gap_and_not_the_end() -> None:
    found = COVERED.python(WHOLE)
    assert (found["backend"], found["method"]) == ("namespaces", "swap")
    assert found["gaps"] == ["identity", "processes", "layers"]
    assert found["said"] == "one\n1\n/workspace\n"
    strict = COVERED.staddle("run", "--", "true")
    assert strict.returncode == 125
    assert "covered" in strict.stderr
    said = json.loads(COVERED.staddle("doctor", "--json").stdout)
    assert said["auto"] is None
    assert "processes" not in said["backends"]["namespaces"]["enforces"]
    nested = COVERED.staddle(
        "run",
        "--nested",
        "--memory",
        "50M",
        "--",
        "python3",
        "-c",
        "x = bytearray(99 << 20); import time; time.sleep(20)",
    )
    assert nested.returncode == 137
    assert "limits.memory" in nested.stderr


@pytest.mark.slow
def test_a_proc_with_covers_opens_no_process_outside() -> None:
    found = COVERED.python(OUTSIDE)
    for user in ("None", "root"):
        secrets, links, written, mounted = found[user]
        assert secrets == ""
        assert len([word for word in links.split() if word.startswith("mnt:")]) == 1  # its own
        assert ".containerenv" not in links.split()  # which only the container has
        assert written == ""
        assert mounted != 0
    assert found["score"] == "0\n"
    assert found["names"] == "0\n"
    assert (found["memory"], found["processes"], found["timeout"]) == ("memory", "processes", "timeout")
    assert found["killed"] in (-9, 137)
    assert found["exec"] == ["0\n", "1\n", "2\n"]
    assert found["sudo"] == "0\n"
    assert found["usage"] > 10
    assert found["files"] == "PermissionError"
    assert found["other"] is None  # it is larger than the limit, and not the sandbox's


#: A single command of each kind: what it can open of the processes that it sees.
SINGLE = """
import json, os, subprocess, sys, warnings
from staddle import Network, Policy, wrap
warnings.simplefilter("ignore")
os.environ["SECRET"] = "the caller's"
look = "for p in self [0-9]*; do readlink $p/ns/mnt; cat $p/environ; (cd $p/root && ls -A run); done"
look = f"cd /proc; {look} 2>/dev/null | grep -aoE 'mnt:.*|SECRET|containerenv' | sort -u"
found = {}
for options in ([], ["--memory", "100M"], ["--allow", "example.org"]):
    words = [sys.executable, "-m", "staddle", "run", "--nested", *options, "--", "sh", "-c", look]
    done = subprocess.run(words, capture_output=True, text=True, cwd="/tmp")
    found[" ".join(["run", *options])] = done.stdout
for network in (Network.deny(), Network.allow("example.org")):
    policy = Policy.agent(nested=True).with_network(network).with_limits(memory="100M")
    done = wrap(["sh", "-c", look], policy=policy).run(capture_output=True, text=True)
    found[f"wrap {network}"] = done.stdout
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_proc_with_covers_opens_no_launcher() -> None:
    for how, found in COVERED.python(SINGLE).items():
        assert [word[:4] for word in found.split()] == ["mnt:"], f"{how}: {found}"


@pytest.mark.parametrize(
    ("container", "kind", "needs", "words"),
    [
        (USER, "docker", ["filter", "memory", "processes"], ["seccomp=staddle.json", "--user 1000"]),
        (ROOT, "docker", ["filter", "memory", "processes", "user"], ["systempaths=unconfined", "--shm-size"]),
        (NAMELESS, "podman", ["filter", "memory"], ["podman run"]),
        (Container(uid=1000, profile=PROFILE), "docker", ["memory", "processes"], ["systempaths=unconfined"]),
        (Container(uid=1000, profile=PROFILE, masked=False, shm="1g"), "docker", [], []),
    ],
    ids=["user", "root", "podman", "filter", "prepared"],
)
def test_doctor_names_the_container_and_its_options(
    container: Container, kind: str, needs: list[str], words: list[str]
) -> None:
    said = json.loads(container.staddle("doctor", "--container", "--json").stdout)
    assert kind in said["evidence"]
    assert sorted(name for name, is_needed in said["needs"].items() if is_needed) == needs
    for word in words:
        assert word in said["options"][-1]
    assert ("seccomp" in "".join(said["options"])) == ("filter" in needs)
