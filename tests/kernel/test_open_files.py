"""A process that may have few open files: sandboxes wait for room, or each call says that there is none."""

from __future__ import annotations

import json
import resource

import pytest

from tests.support.in_a_child import python

LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def limited(soft: int, hard: int, code: str) -> str:
    """What `code` prints in a process with these limits of open files."""
    return python(LIMIT.format(soft=soft, hard=hard) + code, timeout=110)


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_more_sandboxes_at_once_than_have_room_wait_for_each_other() -> None:
    said = limited(
        *(256, 256),
        """
import asyncio
from staddle import AsyncSandbox

async def one(number):
    async with AsyncSandbox() as sb:
        printed = [(await sb.run(f"echo {number}; sleep 0.01")).stdout for _ in range(3)]
        return printed == [f"{number}\\n"] * 3

async def main():
    return await asyncio.gather(*map(one, range(60)))

print(sum(asyncio.run(main())))
""",
    )
    assert said == "60"


@pytest.mark.slow
def test_the_soft_limit_is_raised_when_it_is_used_up_but_not_for_commands() -> None:
    assert HARD >= 1024, "this machine's hard limit of open files is too low for this test"
    said = limited(
        *(200, 1024),
        """
from staddle import Policy, Sandbox

first = Sandbox()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
sandboxes = [first, *(Sandbox() for _ in range(60))]
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
another_fork_server = Sandbox(policy=Policy.agent().replace(read=("/usr",)))
sandboxes += [another_fork_server, Sandbox(backend="landlock", best_effort=True)]
print({sb.run("ulimit -Sn").stdout.strip() for sb in sandboxes})
""",
    )
    assert said.split("\n") == ["200", "1024", "{'200'}"]


@pytest.mark.slow
def test_a_full_process_says_so_and_its_sandboxes_go_on() -> None:
    """What runs in the background keeps its files."""
    said = limited(
        *(200, 200),
        """
from staddle import Sandbox
from staddle.errors import LaunchFailed
from staddle.linux import file_room

file_room._SHORT_PATIENCE = file_room.PATIENCE = 0.2
sandboxes = []
try:
    while len(sandboxes) < 100:
        sandboxes.append(Sandbox())
        sandboxes[-1].start("sleep 1000")
except LaunchFailed as error:
    print(error)
print(len(sandboxes) > 8, {sb.run("echo $((6 * 7))").stdout for sb in sandboxes})
for sb in sandboxes[4:]:
    sb.close()
print(Sandbox().run("echo again").stdout)
""",
    )
    first, rest = said.split("\n", 1)
    assert first.startswith("there is no room for more open files: ")
    assert first.endswith(
        "this process may have 200; raise the limit (ulimit -n), or close sandboxes that are not used"
    )
    assert rest.split("\n") == ["True {'42\\n'}", "again"]


@pytest.mark.slow
def test_the_least_limit_is_enough_for_several_sandboxes() -> None:
    said = limited(
        *(80, 80),
        """
from staddle import Sandbox
sandboxes = [Sandbox() for _ in range(5)]
print({sb.run("echo $((6 * 7))").stdout for sb in sandboxes})
""",
    )
    assert said == "{'42\\n'}"


def test_too_low_a_limit_is_refused_at_once() -> None:
    said = limited(
        *(79, HARD),
        """
from staddle import Sandbox
from staddle.errors import LaunchFailed
try:
    Sandbox()
except LaunchFailed as error:
    print(error)
""",
    )
    assert said == (
        "a sandbox cannot be opened: this process may have 79 open files, and 80 are needed; "
        "raise the limit: ulimit -n 1024"
    )


# ---------------------------------------------------------------- hardly a descriptor left


#: Each is called in a sandbox with changes in several layers; what it leaves in `found` is compared.
CALLS = {
    "diff": "found = sorted(change.path for change in sandbox.diff())",
    "run": "found = sandbox.run('echo new > new').changes; found = [one.path for one in found or ()] or None",
    "snapshot": "sandbox.snapshot(); found = read(sandbox)",
    "restore": "sandbox.restore(point); found = read(sandbox)",
    "commit": "sandbox.commit(); found = on_host(directory)",
    "commit to": "sandbox.commit(to=other); found = on_host(other)",
    "discard": "sandbox.discard(['f1']); found = read(sandbox)",
    "discard all": "sandbox.discard(); found = read(sandbox)",
    "save": "point.save(f'{other}/saved'); found = True",
    "pause": "sandbox.pause(); sandbox.resume(); found = True",
    "write": "sandbox.files.write('made', 'text'); found = sandbox.files.read('made')",
    "list": "found = sorted(entry.name for entry in sandbox.files.list('.'))",
    "start": "found = sandbox.start('echo out').wait().stdout",
    "exec": "found = sandbox.exec(['echo', 'out']).stdout",
    "session": "found = sandbox.session('other').run('echo out').stdout",
    "fork": "(fork,) = sandbox.fork(); found = read(fork); fork.close()",
    "read": "found = sandbox.files.read('f7')",
    "open": "another = Sandbox(); found = another.run('echo out').stdout; another.close()",
    "open with a workspace": "another = Sandbox(directory); found = read(another); another.close()",
}

SCRIPT = """
import json, os, resource, shutil, sys, tempfile
import staddle
from staddle import Sandbox
from staddle.linux import file_room

resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
file_room._SHORT_PATIENCE = file_room.PATIENCE = 0.02

def read(sandbox):
    return sandbox.run("cat f? 2>&1").stdout

def on_host(directory):
    return sorted((name, open(f"{directory}/{name}").read()) for name in os.listdir(directory))

def made(place):
    directory, other = f"{place}/directory", f"{place}/other"
    os.mkdir(directory), os.mkdir(other)
    for number in range(4):
        with open(f"{directory}/f{number}", "w") as file:
            file.write("old")
    sandbox = Sandbox(directory)
    sandbox.run("x=fine")
    for number in range(1, 8):
        sandbox.run(f"echo {number} > f{number}; rm -f f{number - 1}; echo > ~/h{number}")
        sandbox.snapshot()
    return sandbox, sandbox.snapshot(), directory, other

def called(code, free):
    with tempfile.TemporaryDirectory() as place:
        sandbox, point, directory, other = made(place)
        held = []
        if free is not None:
            try:
                while True:
                    held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                pass
            for _ in range(free):
                os.close(held.pop())
        names = {**globals(), **locals()}
        try:
            exec(code, names)
            outcome = names["found"]
        except staddle.StaddleError as error:
            outcome = type(error).__name__
        except Exception as error:
            outcome = f"bare {error!r}"
        for fd in held:
            os.close(fd)
        sandbox.diff()
        after = sandbox.run("echo $x").stdout
        sandbox.close()
        return outcome, after

expected = called(code, None)
outcomes = {}
for free in (*range(18), 24, 40, 90):
    found = called(code, free)
    if found != expected:
        outcomes.setdefault(repr(found), []).append(free)
print(json.dumps([expected, outcomes]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_with_few_descriptors_a_call_does_all_or_says_that_it_cannot(name: str) -> None:
    said = python(f"code = {CALLS[name]!r}\n{SCRIPT}", timeout=280)
    (expected, after), outcomes = json.loads(said)
    assert expected not in (None, "TooManyOpenFiles")
    assert after == "fine\n"
    # A command has run: only its changes are not known.
    refusal = None if name == "run" else "TooManyOpenFiles"
    assert outcomes.keys() <= {repr((refusal, "fine\n"))}, outcomes


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_for_a_look_at_layers_the_soft_limit_is_raised() -> None:
    said = python("""
import resource, tempfile
from staddle import Sandbox

resource.setrlimit(resource.RLIMIT_NOFILE, (300, 1000))
with tempfile.TemporaryDirectory() as place, Sandbox(place) as sandbox:
    for number in range(20):
        sandbox.run(f"echo > f{number}")
        sandbox.snapshot()
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    print(len(sandbox.diff()), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
""")
    assert said == "20 1000"
