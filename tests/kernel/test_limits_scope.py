"""A scope that systemd delegates to us: room for groups of ours, made by its owner, gone with it."""

from __future__ import annotations

import pytest

from tests.kernel.private_systemd import SOURCE_INSIDE, PrivateSystemd

pytestmark = pytest.mark.needs_root

#: The machine's controllers are not its to give here; what is shown is who may do what where.
CODE = f"""
import os, subprocess, sys, time
sys.path.insert(0, {SOURCE_INSIDE!r})
from staddle import Limits
from staddle.backends.systemd.manager import find
from staddle.errors import LaunchFailed
from staddle.limits import host, scope
from staddle.limits.family import Family
from staddle.limits.where import Means, Place, decide

facts = host.observe()
print(facts.systemd, facts.manager, decide(facts).scope or 'unasked')
manager = find()
pipe = subprocess.PIPE
zygote = subprocess.Popen(
    [*scope.prefix(manager, f'staddle-test-{{os.getpid()}}'),
     'sh', '-c', 'echo; read go; sleep 60 & echo $!; wait'],
    stdin=pipe, stdout=pipe, env=manager.environment)
zygote.stdout.readline()
means = scope.settle(zygote.pid, Means((Place(2, '', frozenset(), given=True),), manager.scope))
(place,) = means.places
print(place.base.endswith(f'staddle-test-{{os.getpid()}}.scope'))
zygote.stdin.write(b'go\\n'); zygote.stdin.flush()
inside = int(zygote.stdout.readline())
family = Family(means)
group = family.group(Limits())
group.add(inside)
print(group.members() == {{inside}}, group.freeze())
group.thaw()
print(group.close())
try:
    scope.settle(os.getpid(), means)
    print('settled')
except LaunchFailed as error:
    print('refused')
family.close()
zygote.kill(); zygote.wait()
end = time.monotonic() + 10
while os.path.exists(place.base) and time.monotonic() < end: time.sleep(0.02)
print(os.path.exists(place.base))
"""


@pytest.mark.parametrize("user", [True, False], ids=["user", "root"])
def test_a_scope_has_room_for_groups_of_its_owner(machine: PrivateSystemd, user: bool) -> None:
    done = machine.run(["/usr/bin/python3", "-c", CODE], user=user)
    assert done.returncode == 0, done.stderr.decode()
    manager = "user" if user else "system"
    assert done.stdout.decode().split() == [
        *("True", manager, "unasked"),
        *("True", "True", "True", "True", "refused", "False"),
    ]
