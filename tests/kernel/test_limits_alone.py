"""Limits without control groups: resource limits in a user namespace, and a supervisor inside it.

Everything runs among processes of its own, as somebody who is not root, also when root tests.
"""

from __future__ import annotations

import pytest

from tests.support.in_a_child import python

pytestmark = pytest.mark.both_users

#: A first process in namespaces of its own, that starts others as a sandbox's does.
ALONE = """
import select, signal
from staddle.limits import disk, enforced, process_attributes, supervisor
from staddle.mounts import operations
from staddle.limits.cgroup_layout import CgroupFacts, decide
from staddle.linux import mounts, process, process_tree as tree, userns
from staddle.linux.syscalls import call
from staddle.linux.seccomp import program
from staddle.inside.agent.confinement import ProcessConfinement
from staddle.inside.agent.process_tree import Pause
from staddle import Limits
Limits.__name__; process.set_rlimits.__name__
MB = 1 << 20
FILTER = program('namespaces')  # while our files can still be read

def alone(first):
    '''Run first() as the first process; what it prints is what is seen.'''
    if os.geteuid() == 0:
        process.become(4321, 4321)
        process.dumpable(True)
    uid, gid = os.geteuid(), os.getegid()
    call('unshare', userns.CLONE_NEWUSER | userns.CLONE_NEWPID | userns.CLONE_NEWIPC | mounts.CLONE_NEWNS)
    userns.map_ids(uid, gid, 0, 0)
    pid = os.fork()
    if pid == 0:
        process.death_signal(9)
        mounts.mount(None, '/', flags=mounts.MS_REC | mounts.MS_PRIVATE)
        mounts.mount('proc', '/proc', 'proc')
        try:
            first()
        finally:
            import traceback
            if sys.exc_info()[0]: traceback.print_exc()
            sys.stdout.flush()
            os._exit(0 if not sys.exc_info()[0] else 1)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

def start(work, limits=Limits()):
    '''A process of the sandbox, in the inner user namespace, with its limits.'''
    pid = os.fork()
    if pid:
        return pid
    try:
        call('unshare', userns.CLONE_NEWUSER)
        process.set_rlimits({number: (most, most) for _, number, most in
                             enforced.rlimits(limits, decide(CgroupFacts(())))})
        work()
        os._exit(0)
    except BaseException as error:
        os._exit(error.errno if isinstance(error, OSError) else 77)

def supervise(supervisor, *pids, seconds=10):
    '''Turn until these have ended; how each did.'''
    end = time.monotonic() + seconds
    left, ended = set(pids), {}
    while left and time.monotonic() < end:
        time.sleep(supervisor.turn(time.monotonic()))
        for pid in list(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended[pid] = os.waitstatus_to_exitcode(status)
                left.discard(pid)
    return [ended.get(pid) for pid in pids]
"""


def alone(code: str) -> list[str]:
    lines = "\n".join(f"    {line}" for line in code.strip("\n").splitlines())
    return python(f"{ALONE}\ndef first():\n{lines}\nalone(first)\n").split()


def test_processes_that_enter_one_sandbox_count_together() -> None:
    said = alone("""
limits = tuple((number, most, most) for _, number, most in
               enforced.rlimits(Limits(processes=20), decide(CgroupFacts(()))))
confined = ProcessConfinement(1000, 1000, 0, limits, FILTER)
confined.begin(())
def enter(*argv):
    pid = os.fork()
    if pid == 0:
        try: confined.become(argv, (b'PATH=/usr/bin:/bin',), b'/')
        finally: os._exit(1)
    return pid
for _ in range(5):
    pid = enter(b'/bin/sleep', b'10')
    while open(f'/proc/{pid}/comm').read() != 'sleep\\n': time.sleep(0.01)
os.waitpid(enter(b'/usr/bin/timeout', b'5', b'/usr/bin/perl', b'-e',
                 b'for (1..40) { my $p = fork; last unless defined $p; unless ($p) { sleep 10; exit } $n++ }'
                 b'$| = 1; print "$n"; kill 9, 0'), 0)
""")
    assert said == ["13"], "20, less five that sleep, timeout and perl itself"


def test_one_process_cannot_ask_for_much_more_than_the_sandbox_may_use() -> None:
    said = alone("""
def hog():
    try:
        bytearray(300 * MB)
    except MemoryError:
        os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(start(hog, Limits(memory='50M')), 0)[1]))
""")
    assert said == ["5"]


@pytest.mark.parametrize(
    "hog",
    [
        "kept = [bytearray(MB) for _ in range(150)]; time.sleep(10)",
        "fd = os.memfd_create('x'); [os.write(fd, bytes(MB)) for _ in range(150)]; time.sleep(10)",
        "import mmap; m = mmap.mmap(-1, 150 * MB); [m.__setitem__(at, 1) for at in range(0, 150 * MB, 4096)];"
        " time.sleep(10)",
        "f = open('/mnt/x', 'wb'); [f.write(bytes(MB)) for _ in range(150)]; time.sleep(10)",
    ],
    ids=["own", "memory file", "shared", "tmpfs"],
)
def test_more_memory_than_the_limit_is_the_end_of_who_takes_it(hog: str) -> None:
    said = alone(f"""
mounts.mount('tmpfs', '/mnt', 'tmpfs', options='size=200m')
watch = supervisor.Supervisor(100 * MB, None, ['/mnt'])
def hog():
    {hog}
small = start(lambda: time.sleep(2))
shell = start(lambda: time.sleep(2))
watch._shells = lambda: (small, shell)
big = start(hog, Limits(memory=100 * MB))
how = supervise(watch, big, small, shell)
print(*how, len(watch.take_events()) > 0, len(watch.ended))
""")
    assert said == ["-9", "0", "0", "True", "0"]


@pytest.mark.slow
def test_of_several_that_take_it_together_only_as_many_go_as_must() -> None:
    said = alone("""
watch = supervisor.Supervisor(100 * MB, None, [])
def hog():
    kept = bytearray(30 * MB)
    time.sleep(2)
print(sorted(supervise(watch, *[start(hog, Limits(memory=100 * MB)) for _ in range(4)])))
""")
    assert said in (["[-9,", "0,", "0,", "0]"], ["[-9,", "-9,", "0,", "0]"])


@pytest.mark.slow
def test_memory_that_is_shared_after_a_fork_counts_once() -> None:
    said = alone("""
watch = supervisor.Supervisor(100 * MB, None, [])
def family():
    kept = bytearray(60 * MB)
    for _ in range(4):
        if os.fork() == 0:
            time.sleep(1)
            os._exit(0)
    time.sleep(1)
print(*supervise(watch, start(family, Limits(memory=100 * MB))), watch.take_events())
""")
    assert said == ["0", "[]"]


def test_system_v_memory_counts() -> None:
    said = alone("""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
print(supervisor.system_v())
shm = libc.shmget(0, ctypes.c_size_t(8 * MB), 0o1600)
where = libc.shmat(shm, None, 0)
ctypes.memset(where, 1, 8 * MB)
print(supervisor.system_v() // MB)
""")
    assert said == ["0", "8"]


def test_a_sandbox_with_all_its_processes_is_seen_to_be_full() -> None:
    said = alone("""
watch = supervisor.Supervisor(None, 5, [])
children = [start(lambda: time.sleep(10)) for _ in range(4)]
watch.turn(0.0); print(watch.full)
def threads():
    import threading
    threading.Thread(target=time.sleep, args=(10,)).start()
start(threads)
time.sleep(0.3)
watch.turn(1.0); print(watch.full)
""")
    assert said == ["False", "True"]


def test_a_pause_stops_everything_and_its_end_lets_it_go_on() -> None:
    said = alone("""
read, write = os.pipe()
os.set_blocking(read, False)
def talk():
    while True:
        os.write(write, b'.')
        time.sleep(0.002)
def drain():
    try:
        while os.read(read, 4096): pass
    except BlockingIOError: pass
def speaks(seconds):
    return bool(select.select([read], [], [], seconds)[0])
pids = [start(talk) for _ in range(3)]
asleep = start(lambda: os.kill(os.getpid(), signal.SIGSTOP))
print(speaks(5))
while b'T' not in open(f'/proc/{asleep}/stat', 'rb').read().rpartition(b')')[2].split()[:1]: time.sleep(0.01)
pause = Pause(1)
pause.begin()
drain()
print(speaks(0.1))
pause.end()
print(speaks(5))
print(open(f'/proc/{asleep}/stat').read().rpartition(')')[2].split()[0])
""")
    assert said == ["True", "False", "True", "T"], "what was stopped before stays so"


def test_a_shell_does_not_take_a_pause_for_a_stopped_job() -> None:
    said = alone("""
read, write = os.pipe()
def shell():
    os.dup2(write, 1); os.dup2(write, 2)
    os.execv('/bin/bash', ['bash', '--norc', '--noediting', '-i', '-c', 'sleep 0.6; echo over $?'])
pid = start(shell)
time.sleep(0.2)
for _ in range(5):
    pause = Pause(1)
    pause.begin()
    time.sleep(0.02)
    pause.end()
    time.sleep(0.02)
os.waitpid(pid, 0)
os.close(write)
print(os.read(read, 4096).decode().splitlines()[-1])
""")
    assert said == ["over", "0"]


def test_who_is_not_the_first_process_stops_what_is_below_it_and_nobody_else() -> None:
    said = alone("""
def state(pid):
    return open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0]
stranger = start(lambda: time.sleep(60))
while state(stranger) != 'S': time.sleep(0.01)
def work():
    child = os.fork()
    if child == 0: time.sleep(60)
    pause = Pause(os.getpid())
    pause.begin()
    while state(child) != 'T': time.sleep(0.01)
    print(state(child), state(stranger))
    pause.end()
    while state(child) != 'S': time.sleep(0.01)
    print(state(child), flush=True)
os.waitpid(start(work), 0)
""")
    assert said == ["T", "S", "S"]


def test_a_command_goes_before_what_started_it_also_when_that_cannot_be_looked_into() -> None:
    said = alone("""
process.dumpable(False)
def command():
    with open('/proc/self/oom_score_adj') as file: os.write(1, file.read().encode())
pid = os.fork()
if pid == 0:
    process_attributes.go_first()
    call('unshare', userns.CLONE_NEWUSER)
    command()
    os._exit(0)
os.waitpid(pid, 0)
print(open('/proc/self/oom_score_adj').read())
""")
    assert said == ["500", "0"]


def test_a_file_system_of_the_layer_holds_bytes_and_inodes() -> None:
    said = alone("""
mounts.mount('tmpfs', '/mnt', 'tmpfs', options=operations.tmpfs_options(8 * MB))
print(disk.full('/mnt'))
made = 0
try:
    for made in range(10000): open(f'/mnt/{made}', 'x').close()
except OSError as error:
    print(error.errno == errno.ENOSPC, made < operations.inodes(8 * MB), disk.full("/mnt"))
for at in range(made): os.unlink(f'/mnt/{at}')
with open('/mnt/sparse', 'wb') as file: file.truncate(1 << 40)
print(disk.full('/mnt'))
try:
    with open('/mnt/file', 'wb', buffering=0) as file:
        while True: file.write(bytes(MB))
except OSError as error: print(error.errno == errno.ENOSPC, disk.full('/mnt'))
""")
    assert said == ["False", "True", "True", "True", "False", "True", "True"]
