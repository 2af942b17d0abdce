"""A host program with hardly a descriptor left: each call does all of its work, or says that it cannot.

Nothing is half done or left out, as if a directory that could not be opened were gone, and the sandbox goes
on when there is room again.
"""

from __future__ import annotations

import json

import pytest

from tests.support.in_a_child import python

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
