"""Cost of each adapter's command over staddle's own, which runs inside of the same call.

    python benchmarks/adapter_cost.py       # each in its environment; writes internals/adapters-tested.md
    ENVIRONMENT/bin/python benchmarks/adapter_cost.py NAME

The environments are those of `make test-adapters`. Each call is timed as a whole, and the calls of staddle
in it: what is left is the adapter's. Both are of the same moment: the load of the machine matters little.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "internals" / "adapters-tested.md"
BEGIN, END = "<!-- cost: begin -->", "<!-- cost: end -->"
CACHE = Path(os.environ.get("ADAPTERS_CACHE") or f"/var/tmp/staddle-adapters-{os.getuid()}")
ROUNDS, PATIENCE = 100, 600
#: Seconds in each of staddle's calls since it was last cleared.
_INSIDE: list[float] = []

Call = Callable[[], Awaitable[Any]]


def metered(owner: type, name: str) -> None:
    """Have the time of this method counted."""
    method = getattr(owner, name)

    async def awaited(*args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return await method(*args, **options)
        finally:
            _INSIDE.append(time.perf_counter() - began)

    def called(*args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*args, **options)
        finally:
            _INSIDE.append(time.perf_counter() - began)

    setattr(owner, name, awaited if inspect.iscoroutinefunction(method) else called)


async def call_of(name: str) -> Call:
    """The call of one adapter that runs a command; what it opened is closed by the end of this process."""
    if name == "inspect_ai":
        from staddle.adapters.inspect_ai import StaddleSandboxEnvironment

        made = (await StaddleSandboxEnvironment.sample_init("cost", None, {}))["default"]
        return lambda: made.exec(["true"])
    if name == "pydantic_ai":
        from staddle.adapters.pydantic_ai import StaddleWorkspace

        backend = StaddleWorkspace()
        return lambda: backend.run(["true"])
    if name == "openai_agents":
        from staddle.adapters.openai_agents import StaddleSandboxClient

        session = await StaddleSandboxClient().create()
        await session.start()
        return lambda: session.exec("true")
    if name == "swerex":
        from swerex.runtime.abstract import Command

        from staddle.adapters.swerex import StaddleDeployment

        deployment = StaddleDeployment()
        await deployment.start()
        return lambda: deployment.runtime.execute(Command(command=["true"]))
    if name == "google_adk":
        from staddle.adapters.google_adk import StaddleAdkEnvironment

        environment = StaddleAdkEnvironment()
        await environment.initialize()
        return lambda: environment.execute("true")
    if name == "autogen":
        from autogen_core import CancellationToken
        from autogen_core.code_executor import CodeBlock

        from staddle.adapters.autogen import StaddleCodeExecutor

        executor = StaddleCodeExecutor()
        await executor.start()
        return lambda: executor.execute_code_blocks([CodeBlock("true", "bash")], CancellationToken())
    if name == "acp":
        from staddle.adapters.acp import StaddleAcpClient

        client = StaddleAcpClient(tempfile.mkdtemp())

        async def in_a_terminal() -> None:
            made = await client.create_terminal("cost", "true", [])
            await client.wait_for_terminal_exit("cost", made.terminal_id)
            await client.release_terminal("cost", made.terminal_id)

        return in_a_terminal
    if name == "harbor":
        return await _harbor()
    return _threaded(_plain(name))


async def _harbor() -> Call:
    import logging

    from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
    from harbor.models.trial.paths import TrialPaths

    from staddle.adapters.harbor import StaddleHarborEnvironment

    top = Path(tempfile.mkdtemp())
    (top / "environment").mkdir()
    (top / "environment" / "Dockerfile").write_text("FROM scratch\n")
    environment = StaddleHarborEnvironment(
        environment_dir=top / "environment",
        environment_name="cost",
        session_id="cost__1",
        trial_paths=TrialPaths(trial_dir=top / "trial"),
        task_env_config=EnvironmentConfig(),
        logger=logging.getLogger("cost"),
        network_policy=NetworkPolicy(network_mode=NetworkMode.NO_NETWORK),
    )
    await environment.start(force_build=False)
    return lambda: environment.exec("true")


def _plain(name: str) -> Callable[[], Any]:
    """The call of an adapter that is not awaited."""
    from staddle import Sandbox

    if name == "deepagents":
        from staddle.adapters.deepagents import StaddleBackend

        backend = StaddleBackend()
        return lambda: backend.execute("true")
    if name == "mini_swe_agent":
        from staddle.adapters.mini_swe_agent import StaddleEnvironment

        environment = StaddleEnvironment()
        return lambda: environment.execute({"command": "true"})
    if name == "smolagents":
        from staddle.adapters.smolagents import StaddlePythonExecutor

        executor = StaddlePythonExecutor()
        return lambda: executor("1")
    sandbox = Sandbox()
    if name == "langchain":
        from staddle.adapters.langchain import StaddleShellTool

        tool = StaddleShellTool(sandbox=sandbox)
        return lambda: tool._run("true")
    if name == "crewai":
        from staddle.adapters.crewai import staddle_tools

        shell, *_ = staddle_tools(sandbox)
        return lambda: shell._run("true")
    if name == "llama_index":
        from staddle.adapters.llama_index import shell_tool

        function = shell_tool(sandbox)
        return lambda: function.call("true")
    sys.exit(f"{name} has no command to be measured")


def _threaded(call: Callable[[], Any]) -> Call:
    async def called() -> Any:
        return call()

    return called


async def measured(name: str) -> dict[str, float]:
    """Milliseconds of staddle, and of the adapter over it: the median, and nine of ten."""
    from staddle import AsyncSandbox, Interpreter, Sandbox

    for owner in (Sandbox, AsyncSandbox):
        for method in ("exec", "run"):
            metered(owner, method)
    if name == "smolagents":  # a cell is its command
        metered(Interpreter, "run")
    call = await call_of(name)
    for _ in range(10):
        await call()
    own, over = [], []
    for _ in range(ROUNDS):
        _INSIDE.clear()
        began = time.perf_counter()
        await call()
        whole = time.perf_counter() - began
        own.append(sum(_INSIDE) * 1000)
        over.append((whole - sum(_INSIDE)) * 1000)
    return {
        "own": statistics.median(own),
        "over": statistics.median(over),
        "most": statistics.quantiles(over, n=10)[-1],
    }


NAMES = (
    *("inspect_ai", "pydantic_ai", "deepagents", "langchain", "openai_agents", "swerex", "mini_swe_agent"),
    *("google_adk", "autogen", "crewai", "llama_index", "acp", "harbor", "smolagents"),
)


def main() -> None:
    """Measure one adapter and print it, or all of them and write the table."""
    if len(sys.argv) > 1:
        print(json.dumps(asyncio.run(measured(sys.argv[1]))), flush=True)
        return
    lines = [
        "| adapter | staddle's command | the adapter over it | nine of ten |",
        "| --- | --- | --- | --- |",
    ]
    for name in NAMES:
        python = CACHE / name / "bin" / "python"
        if not python.exists():
            print(f"{name}: not measured: run `make test-adapters ADAPTERS={name}` first", flush=True)
            continue
        words = [str(python), __file__, name]
        variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            words, env=variables, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE
        )
        found = json.loads(done.stdout.splitlines()[-1])
        row = f"{found['own']:.1f} ms | {found['over']:.2f} ms | {found['most']:.2f} ms |"
        lines.append(f"| `{name}` | {row}")
        print(lines[-1], flush=True)
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text("\n".join((before + BEGIN, *lines, END + rest.split(END)[1])))


if __name__ == "__main__":
    main()
