"""Other people's persistent shells beside ours: SWE-ReX and LangChain, in an environment of their own.

python benchmarks/peers.py        installs them from PyPI into a temporary directory
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap

_PROGRAMS = {
    "swe-rex": (
        ["swe-rex"],
        """
        import asyncio, statistics, time
        from swerex.deployment.local import LocalDeployment
        from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
        async def main():
            deployment = LocalDeployment()
            await deployment.start()
            await deployment.runtime.create_session(CreateBashSessionRequest())
            times = []
            for _ in range(20):
                began = time.perf_counter()
                await deployment.runtime.run_in_session(BashAction(command="true"))
                times.append(time.perf_counter() - began)
            print("median", statistics.median(times), flush=True)
            await deployment.stop()
        asyncio.run(main())
        """,
    ),
    "langchain": (
        ["langchain"],
        """
        import statistics, tempfile, time
        from pathlib import Path
        from langchain.agents.middleware.shell_tool import HostExecutionPolicy, ShellSession
        with tempfile.TemporaryDirectory() as place:
            session = ShellSession(Path(place), HostExecutionPolicy(), ("/bin/bash",), {})
            session.start()
            times = []
            for _ in range(20):
                began = time.perf_counter()
                session.execute("true", timeout=10)
                times.append(time.perf_counter() - began)
            print("median", statistics.median(times), flush=True)
            session.stop(timeout=5)
        """,
    ),
}


def main() -> int:
    from staddle import Sandbox

    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as home:
        environment = {"PATH": os.environ["PATH"], "HOME": home}
        for name, (packages, program) in _PROGRAMS.items():
            python = f"{place}/{name}/bin/python"
            try:
                subprocess.run([sys.executable, "-m", "venv", f"{place}/{name}"], check=True)
                subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True, timeout=300)
                done = subprocess.run(
                    [python, "-c", textwrap.dedent(program)],
                    env=environment,
                    capture_output=True,
                    timeout=120,
                    check=True,
                )
                said = done.stdout.split()
                median = float(said[said.index(b"median") + 1])
                print(f"{name}: `true` in a session, median {median * 1000:.2f} ms")
            except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
                why = getattr(error, "stderr", b"") or b""
                print(f"{name}: not measured: {error} {why.decode('utf-8', 'replace')[-300:]}")
    with Sandbox() as sandbox:
        times = []
        for _ in range(200):
            times.append(sandbox.run("true").duration)
        print(f"staddle: `true` in a session, median {sorted(times)[100] * 1000:.3f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
