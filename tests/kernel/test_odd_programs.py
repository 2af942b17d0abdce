"""Host programs with odd settings: SIGCHLD ignored, standard streams closed."""

from __future__ import annotations

import pytest

from tests.support.in_a_child import python

_PRELUDE = """
import signal, threading
from staddle import LocalEnvironment, Policy, Sandbox, wrap
"""
_WAYS = {
    "Sandbox": """
with Sandbox(backend=backend) as sandbox:
    told = [sandbox.run("sh -c 'exit 3'").exit_code, sandbox.exec(["sh", "-c", "exit 4"]).exit_code]
    told.append(sandbox.run("echo works").stdout)
""",
    "wrap": """
def ended(status):
    return wrap(["sh", "-c", f"exit {status}"], Policy.agent(), backend=backend).run().returncode
told = [ended(3), ended(4)]
told.append(wrap(["echo", "works"], Policy.agent(), backend=backend).run(capture_output=True).stdout.decode())
""",
}


@pytest.mark.parametrize("backend", ["namespaces", "bwrap", "landlock"])
@pytest.mark.parametrize("way", _WAYS)
def test_a_program_that_ignores_the_ends_of_its_children(way: str, backend: str) -> None:
    said = python(
        f"""{_PRELUDE}
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
backend = {backend!r}
def work():
    global told
    exec({_WAYS[way]!r}, globals())
for _ in range(2):
    work()
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(told, signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN)
with open("/proc/self/status") as file:
    ignored = next(int(line.split()[1], 16) for line in file if line.startswith("SigIgn"))
print(bool(ignored >> 16 & 1))
""",
        timeout=60,
    )
    assert said == "[3, 4, 'works\\n'] True\nTrue"


@pytest.mark.parametrize("closed", ["0", "1", "2", "0, 1", "1, 2", "0, 2", "0, 1, 2"])
@pytest.mark.parametrize("way", _WAYS)
def test_a_program_without_standard_streams(way: str, closed: str) -> None:
    said = python(
        f"""{_PRELUDE}
out, backend = os.dup(1), "auto"
for number in ({closed},):
    os.close(number)
{_WAYS[way]}
os.write(out, repr(told).encode())
""",
        timeout=60,
    )
    assert said == "[3, 4, 'works\\n']"
