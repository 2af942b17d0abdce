"""A session on the systemd backend of a real systemd: the shell, its state and its results are the same."""

from __future__ import annotations

import json

import pytest

from tests.support.private_systemd import SOURCE_INSIDE
from tests.support.systemd_sandbox import Sandbox

pytestmark = pytest.mark.needs_root

PROGRAM = f"""
import json, sys
sys.path.insert(0, {SOURCE_INSIDE!r})
from staddle import Sandbox
with Sandbox(sys.argv[1], backend="systemd", mode="bind") as sandbox:
    told = [
        sandbox.run("x=1; f() {{ echo f$x; }}; cd /tmp; pwd").stdout,
        sandbox.run("f; pwd; cat").stdout,
        sandbox.run("exit 3").exit_code,
        sandbox.run("f; id -un; ls /workspace").stdout,
        sandbox.run("sleep 60", timeout=0.5).timed_out,
        sandbox.run("echo written > /workspace/new").exit_code,
        sandbox.exec(["sh", "-c", "exit 7"]).exit_code,
        sandbox.enforced.backend,
    ]
print(json.dumps(told))
"""


@pytest.mark.slow
def test_a_session_remembers_and_survives(sandbox: Sandbox) -> None:
    place = sandbox.place()
    sandbox.unconfined(["touch", f"{place}/file"])
    done = sandbox.unconfined(["/usr/bin/python3", "-c", PROGRAM, place])
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == ["/tmp\n", "f1\n/tmp\n", 3, "f1\nuser\nfile\n", True, 0, 7, "systemd"]
    assert sandbox.unconfined(["cat", f"{place}/new"]).stdout == b"written\n"


CANCELLED = f"""
import asyncio, random, sys
sys.path.insert(0, {SOURCE_INSIDE!r})
from staddle import AsyncSandbox
random.seed(7)

async def main():
    async with AsyncSandbox(sys.argv[1], backend="systemd", mode="bind") as sb:
        for turn in range(25):
            await sb.run("sleep 1253.3 &")
            task = asyncio.create_task(sb.run("sleep 1253.4"))
            for _ in range(random.randrange(1, 4)):
                await asyncio.sleep(random.choice([0, 0, 0.001, 0.003, 0.01]))
                task.cancel()
            try:
                await task
                sys.exit("it was not cancelled")
            except asyncio.CancelledError:
                pass
            assert (await sb.run("echo fine")).stdout == "fine\\n"

asyncio.run(main())
print("whole")
"""


@pytest.mark.slow
def test_a_command_that_is_cancelled_again_and_again(sandbox: Sandbox) -> None:
    done = sandbox.unconfined(["/usr/bin/python3", "-c", CANCELLED, sandbox.place()])
    assert (done.returncode, done.stdout) == (0, b"whole\n"), done.stderr.decode()
