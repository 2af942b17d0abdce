"""A command that takes over the agent of its session, where it can, does not keep the host program waiting.

On bwrap and landlock the agent has the rights of the commands that it starts, so these may trace it. The
agent has the open files that it handed to the host program: with O_NONBLOCK taken off them, a read that
relies on it would never come back.
"""

from __future__ import annotations

import platform

import pytest

from staddle import Reason, Sandbox

#: Takes O_NONBLOCK off all open files of the agent, by calls that the agent is made to do.
ATTACK = r'''
import ctypes, os, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes, libc.ptrace.restype = [ctypes.c_long] * 4, ctypes.c_long
SINGLESTEP, GETREGS, SETREGS, ATTACH, DETACH = 9, 12, 13, 16, 17
RAX, RDX, RSI, RDI, ORIG_RAX, RIP = 10, 12, 13, 14, 15, 16
FCNTL, GETFL, SETFL = 72, 3, 4

def ptrace(request, data=0):
    if libc.ptrace(request, agent, 0, data) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def call(number, *words):
    """One system call of the agent's, by the instruction that it was stopped in."""
    now = type(saved)(*saved)
    now[RAX], now[ORIG_RAX], now[RIP] = number, 2**64 - 1, saved[RIP] - 2
    now[RDI], now[RSI], now[RDX] = words
    ptrace(SETREGS, ctypes.addressof(now))
    ptrace(SINGLESTEP)
    os.waitpid(agent, 0)
    ptrace(GETREGS, ctypes.addressof(now))
    return ctypes.c_longlong(now[RAX]).value

def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])

agent = parent(os.getppid())
ptrace(ATTACH)
os.waitpid(agent, 0)
saved = (ctypes.c_ulonglong * 27)()
ptrace(GETREGS, ctypes.addressof(saved))
done = 0
for name in os.listdir(f"/proc/{agent}/fd"):
    flags = call(FCNTL, int(name), GETFL, 0)
    if flags >= 0 and flags & os.O_NONBLOCK:
        done += call(FCNTL, int(name), SETFL, flags & ~os.O_NONBLOCK) == 0
ptrace(SETREGS, ctypes.addressof(saved))
ptrace(DETACH)
print("taken off:", done > 0)
'''

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="it uses that machine's registers")


@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
def test_open_files_that_the_agent_makes_blocking_do_not_block_the_host_program(backend: str) -> None:
    with Sandbox(backend=backend, best_effort=True) as sb:
        # The job holds the pipes: a read past what is in them waits for it.
        result = sb.run("sleep 1000 & python3 -", stdin=ATTACK, timeout=30)
        assert (result.stdout, result.reason) == ("taken off: True\n", Reason.exited)
        result = sb.run("python3 -; sleep 1000", stdin=ATTACK, timeout=3)
        assert (result.stdout, result.reason) == ("taken off: True\n", Reason.timeout)
        assert sb.run("echo still here").stdout == "still here\n"


def test_on_namespaces_nothing_traces_the_agent() -> None:
    with Sandbox() as sb:
        result = sb.run("python3 -", stdin=ATTACK)
        assert result.exit_code
        assert "Operation not permitted" in result.stderr
