"""No callback on an event loop takes long: the first fifty sandboxes of a process, and files of 200 MB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE

#: Prints the most CPU time, in ms, that one callback of the loop took, and how many threads opened
#: a sandbox before the first one was open. CPU time of the loop's own thread: other programs do not matter.
METER = """
import asyncio, gc, sys, threading, time
from asyncio import events
from staddle import AsyncSandbox, Sandbox
from staddle.adapters._common import READ_LIMIT

worst = 0.0
run = events.Handle._run
def metered(handle):
    global worst
    began = time.thread_time()
    try:
        return run(handle)
    finally:
        worst = max(worst, time.thread_time() - began)
events.Handle._run = metered

make, beside, most, first = Sandbox._of, set(), 0, threading.Event()
def counted(settings):
    global most
    beside.add(threading.get_ident())
    if not first.is_set():
        most = max(most, len(beside))
    try:
        made = make(settings)
        first.set()
        return made
    finally:
        beside.discard(threading.get_ident())
Sandbox._of = counted

kept = []  # until the end: giving back the memory of the program takes the kernel a while

async def use(sandbox):
    async with sandbox:
        assert (await sandbox.exec(["echo", "hi"])).stdout == "hi\\n"

async def main():
    # A collection is of the program's objects, and comes when it comes.
    gc.disable()
    await asyncio.gather(*(use(AsyncSandbox()) for _ in range(int(sys.argv[1]))))
    async with AsyncSandbox() as sandbox:
        data = bytes(200 << 20)
        kept.append(data)
        await sandbox.files.write("/tmp/big", data)
        kept.append(await sandbox.files.read_bytes("/tmp/big", limit=READ_LIMIT))
        assert len(kept[-1]) == len(data)

asyncio.run(main())
print(worst * 1000, most)
"""


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_no_callback_takes_long_and_the_first_sandbox_is_opened_alone(tmp_path: Path) -> None:
    program = tmp_path / "meter.py"
    program.write_text(METER)
    words = [sys.executable, str(program), "50"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=10 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    worst, most = done.stdout.split()
    assert float(worst) < 20
    assert int(most) == 1
