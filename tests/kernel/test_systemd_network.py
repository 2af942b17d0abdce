"""The network of a command and of a session on the systemd backend of a real systemd."""

from __future__ import annotations

import json

import pytest

from tests.support.private_systemd import SOURCE_INSIDE
from tests.support.systemd_sandbox import PROCESSES, Sandbox, wait_for

pytestmark = pytest.mark.needs_root

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
