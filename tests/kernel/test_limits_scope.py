"""A scope that systemd delegates to us: sandboxes have control groups there, and it is gone with them."""

from __future__ import annotations

import json

import pytest

from tests.support.private_systemd import SOURCE_INSIDE, PrivateSystemd

pytestmark = pytest.mark.needs_root

#: The machine's controllers are not its to give here, so that it is said that they were: what is
#: shown is who may do what where. Limits are held as without groups then.
CODE = f"""
import json, os, sys, time
sys.path.insert(0, {SOURCE_INSIDE!r})
from staddle import Policy, Sandbox
from staddle.errors import LaunchFailed
from staddle.limits import host_cgroups, scope
from staddle.limits.cgroup_layout import CgroupParent, CgroupSupport, decide
from staddle.background import wait_for_jobs
from staddle.forkserver import client
from staddle.sandbox.open.next_sandbox import NEXT

def within(true):
    end = time.monotonic() + 60
    while not true() and time.monotonic() < end: time.sleep(0.02)
    return true()

def ours():
    return [os.path.join(place, name) for place, names, _ in os.walk('/sys/fs/cgroup')
            for name in names if name.startswith(f'staddle-{{os.getpid()}}-')]

seen = {{}}
facts = host_cgroups.observe()
seen['unasked'] = decide(facts).scope
parent = CgroupParent(2, '', frozenset(), given=True)
host_cgroups._known[os.getpid(), os.geteuid()] = CgroupSupport((parent,), facts.manager)
policy = Policy.agent().with_limits(memory='256M')
with Sandbox(policy=policy) as sb:
    (place,) = ours()
    seen['place'] = place.rpartition('/')[0]
    seen['seen inside'] = sb.run('cat /proc/self/cgroup').stdout.splitlines()[-1]
    busy = sb.run("python3 -c 'import time\\nwhile time.process_time() < 0.2: pass'").usage
    seen['measured'] = busy.user + busy.system > 0.15
    group = sb._inside.enforced_limits._group
    seen['in it'] = group.at('')[1].startswith(place) and bool(group.members())
    counter = sb.start('while :; do echo; sleep 0.01; done')
    within(lambda: counter.output().stdout)
    sb.pause()
    def still():
        before = counter.output().stdout
        time.sleep(0.1)
        return counter.output().stdout == before
    seen['frozen'] = within(still) and sb._inside.enforced_limits.freeze()
    before = counter.output().stdout
    sb.resume()
    seen['goes on'] = within(lambda: counter.output().stdout != before)
    with Sandbox(policy=policy) as other:
        seen['two'] = other.run('echo two').stdout
        seen['one scope'] = len(ours())
try:
    scope.settle(os.getpid(), host_cgroups.support())
except LaunchFailed as error:
    seen['settled'] = error.what
NEXT.end()
wait_for_jobs()  # one may be in the making
NEXT.close()
for config in list(client._servers): client._servers.pop(config).close()
seen['left'] = [] if within(lambda: not ours()) else ours()
print(json.dumps(seen))
"""


@pytest.mark.slow
@pytest.mark.parametrize("user", [True, False], ids=["user", "root"])
def test_sandboxes_are_in_groups_of_a_scope_of_their_owner(machine: PrivateSystemd, user: bool) -> None:
    done = machine.run(["/usr/bin/python3", "-c", CODE], user=user)
    assert done.returncode == 0, done.stderr.decode()
    own = f"/user.slice/user-{machine.uid}.slice/user@{machine.uid}.service/app.slice"
    assert json.loads(done.stdout) == {
        "unasked": "",
        "place": f"/sys/fs/cgroup{own if user else '/system.slice'}",
        "seen inside": "0::/",
        "measured": True,
        "in it": True,
        "frozen": True,
        "goes on": True,
        "two": "two\n",
        "one scope": 1,
        "settled": "systemd gave no control group to set limits in",
        "left": [],
    }


#: A program in a unit whose group was given to it, which has moved to a part of that.
DELEGATED = f"""
import json, os, sys
sys.path.insert(0, {SOURCE_INSIDE!r})
own = '/sys/fs/cgroup' + open('/proc/self/cgroup').read().splitlines()[-1].partition('::')[2]
os.mkdir(f'{{own}}/program')
with open(f'{{own}}/program/cgroup.procs', 'w') as file: file.write('0')
from staddle import Policy, Sandbox
from staddle.limits import host_cgroups
means = host_cgroups.support()
seen = {{'scope': means.scope, 'places': [place.base.startswith(own) for place in means.places]}}
with Sandbox(policy=Policy.agent().with_limits(memory='256M')) as sb:
    group = sb._inside.enforced_limits._group
    seen['in it'] = group.at('')[1].startswith(own + '/') and bool(group.members())
    seen['ran'] = sb.run('cat /proc/self/cgroup | tail -1').stdout
    seen['frozen'] = sb._inside.enforced_limits.freeze()
host_cgroups.close()
seen['left'] = sorted(name for name in os.listdir(own) if os.path.isdir(f'{{own}}/{{name}}'))
print(json.dumps(seen))
"""


@pytest.mark.slow
@pytest.mark.parametrize("user", [True, False], ids=["user", "root"])
def test_a_group_that_was_delegated_to_the_program_is_used(machine: PrivateSystemd, user: bool) -> None:
    ask = ["systemd-run", *(["--user"] if user else []), "--pipe", "--wait", "--collect", "--quiet"]
    done = machine.run([*ask, "-p", "Delegate=yes", "/usr/bin/python3", "-c", DELEGATED], user=user)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == {
        "scope": "",
        "places": [True],
        "in it": True,
        "ran": "0::/\n",
        "frozen": True,
        "left": ["program"],
    }


#: Single commands of root: one program that ends them, and one that is killed meanwhile.
ALONE = f"""
import json, os, signal, subprocess, sys, time
sys.path.insert(0, {SOURCE_INSIDE!r})
from staddle import Policy, wrap
from staddle.limits import host_cgroups
from staddle.limits.cgroup_layout import CgroupParent, CgroupSupport

def within(true):
    end = time.monotonic() + 60
    while not true() and time.monotonic() < end: time.sleep(0.02)
    return true()

def members(pid):
    return {{place: open(place + '/cgroup.procs').read().split()
            for place, _, _ in os.walk('/sys/fs/cgroup') if f'/staddle-{{pid}}-' in place}}

def started():
    parent = CgroupParent(2, '', frozenset(), given=True)
    host_cgroups._known[os.getpid(), os.geteuid()] = CgroupSupport((parent,), 'system')
    policy = Policy.agent().with_limits(memory='256M')
    return wrap(['sleep', '60'], policy, backend='namespaces').popen()

if sys.argv[1:]:
    started()
    time.sleep(60)
process = started()
def is_in(pid):
    return any(pids and place.endswith('/1') for place, pids in members(pid).items())

seen = {{'in it': within(lambda: is_in(os.getpid()))}}
scopes = [place for place in members(os.getpid()) if place.endswith('.scope')]
seen['slice'] = [place.split('/')[-2] for place in scopes] == ['system.slice']
process.kill()
process.wait()
del process
host_cgroups.close()
seen['closed'] = within(lambda: not members(os.getpid()))
child = subprocess.Popen([sys.executable, __file__, 'child'])
seen['in it again'] = within(lambda: is_in(child.pid))
child.kill()
child.wait()
seen['killed'] = within(lambda: not members(child.pid))
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_single_commands_of_root_are_in_a_scope_that_goes_with_the_program(machine: PrivateSystemd) -> None:
    code = "import sys; open('/srv/alone.py', 'w').write(sys.argv[1])"
    assert machine.run(["/usr/bin/python3", "-c", code, ALONE], user=False).returncode == 0
    done = machine.run(["/usr/bin/python3", "/srv/alone.py"], user=False)
    assert done.returncode == 0, done.stderr.decode()
    names = ("in it", "slice", "closed", "in it again", "killed")
    assert json.loads(done.stdout) == dict.fromkeys(names, True)
