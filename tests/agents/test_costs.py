"""What the shim and the server cost, as rows of agents-tested.md. Nothing is asserted about time."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

from mcp import Client

from staddle import AsyncSandbox, Policy, Sandbox
from staddle.agents.broker import ShellBroker
from staddle.mcp.sandboxes import ServerSettings
from staddle.mcp.server import make_server

from .conftest import RESULTS

ROUNDS = 100


def report(agent: str, way: str, what: str) -> None:
    with open(RESULTS, "a") as file:
        file.write(json.dumps({"agent": agent, "way": way, "what": what, "passed": True}) + "\n")


def test_a_command_through_the_shim(tmp_path: Path) -> None:
    def took(program: str) -> float:
        began = time.perf_counter()
        words = [program, "-c", "true"]
        done = subprocess.run(words, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        assert done.returncode == 0
        return (time.perf_counter() - began) * 1000

    with ShellBroker(Sandbox(None, Policy.agent().with_write(tmp_path))) as broker:
        plain, shim = [], []
        for _ in range(ROUNDS):
            plain.append(took("/bin/bash"))
            shim.append(took(f"{broker.home}/bash"))
            time.sleep(0.02)
    over, before = statistics.median(shim) - statistics.median(plain), statistics.median(plain)
    least = min(shim) - min(plain)
    text = f"`true`: {over:.1f} ms over plain bash's {before:.1f} (median of {ROUNDS}"
    report("cost", "shell", f"{text}; least {least:.1f}; load {os.getloadavg()[0]:.0f})")


def test_a_call_over_the_sandboxs_own(tmp_path: Path) -> None:
    async def task() -> tuple[list[float], list[float]]:
        own, called = [], []
        async with (
            AsyncSandbox(tmp_path) as sandbox,
            Client(make_server(ServerSettings(str(tmp_path)))) as client,
        ):
            await client.call_tool("bash", {"command": "true"})
            for _ in range(ROUNDS):
                began = time.perf_counter()
                await sandbox.run("true")
                between = time.perf_counter()
                await client.call_tool("bash", {"command": "true"})
                own.append((between - began) * 1000)
                called.append((time.perf_counter() - between) * 1000)
        return own, called

    own, called = asyncio.run(task())
    over, least = statistics.median(called) - statistics.median(own), min(called) - min(own)
    text = f"`true` in one process: {over:.1f} ms over `run` (median of {ROUNDS}"
    report("cost", "mcp", f"{text}; least {least:.1f}; load {os.getloadavg()[0]:.0f})")
