"""What a process and all below it used, and how many there were."""

from __future__ import annotations

import subprocess

from staddle.inside.agent.usage import last_pid, passed
from tests.support.in_a_child import python


def test_processes_are_counted_by_their_numbers() -> None:
    before = last_pid()
    for _ in range(3):
        subprocess.run(["true"], check=True)
    assert passed(before, last_pid(), 1 << 22) >= 3
    assert passed(100, 100, 32768) == 0
    assert passed(32760, 10, 32768) == 18


def test_what_was_waited_for_and_what_runs_are_added_up() -> None:
    said = python("""
from staddle.inside.agent.usage import Count
count = Count(own_numbers=False)
if os.fork() == 0:
    open('/dev/null', 'wb').write(bytes(1 << 20))
    while time.process_time() < 0.1: pass
    os._exit(3)
while (ended := count.reap()) is None: time.sleep(0.01)
pid, status, spent = ended
print(os.waitstatus_to_exitcode(status), spent[0] + spent[1] > 90_000, 1 << 20 <= spent[3] < 1100000)
print(spent[5])
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    open('/dev/null', 'wb').write(bytes(1 << 20))
    os.write(write, b'!')
    time.sleep(20)
os.read(read, 1)
whole = count.whole()
print(whole[0] + whole[1] > 90_000, whole[3] >= 2 << 20, count.reap())
os.kill(pid, 9)
""")
    assert said.split() == ["3", "True", "True", "-1", "True", "True", "None"]
