"""`staddle agent NAME --check`: drive the real agent with a scripted model, and see where its commands run.

The command is a canary: it reads a file that exists only outside. A shell on the host prints its content; in
a sandbox the file does not exist.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile

from ..errors import StaddleError, UsageError
from .install import RECORD, home_of
from .launch import program_of, run_with_mcp, run_with_shell, server_words
from .scripted_model import ScriptedModel
from .table import MCP, SHELL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..sandbox.sandbox import Sandbox
    from .table import CodingAgent

#: Seconds that an agent gets for one command; some look for updates first.
_PATIENCE = 180


def check(agent: CodingAgent, way: str, open_sandbox: Callable[[str], Sandbox]) -> int:
    """Print where the agent's commands run; return 0 if that is a sandbox, else 1."""
    if agent.check is None or way not in (SHELL, MCP):
        raise UsageError(
            f"{agent.title} cannot be driven by a scripted model", fix="check a command of it yourself"
        )
    program = program_of(agent)
    installed = os.path.exists(f"{home_of(agent.name)}/{RECORD}")
    token = secrets.token_hex(16)
    workspace = tempfile.mkdtemp(prefix="staddle-check-", dir="/var/tmp")
    outside = tempfile.mkdtemp(prefix="staddle-canary-", dir="/var/tmp")
    try:
        with open(f"{outside}/canary", "w") as file:
            file.write(token)
        command = f"cat {outside}/canary || echo sandbox=$STADDLE_SANDBOX"
        with ScriptedModel([command]) as model:
            words, variables = agent.check(model.url)
            variables |= {"PWD": workspace}
            # By default Claude Code loads the servers' tools late and does not wait for them.
            variables |= {"MCP_CONNECTION_NONBLOCKING": "0", "ENABLE_TOOL_SEARCH": "false"}
            before = os.getcwd()
            os.chdir(workspace)
            try:
                if installed:
                    subprocess.run(
                        [program, *words],
                        env={**os.environ, **variables},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        timeout=_PATIENCE,
                        check=False,
                    )
                elif way == SHELL:
                    run_with_shell(agent, open_sandbox(workspace), words, variables=variables)
                else:
                    run_with_mcp(agent, server_words(workspace), words, variables=variables)
            finally:
                os.chdir(before)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
        shutil.rmtree(outside, ignore_errors=True)
    how = "as installed" if installed else f"as `staddle agent {agent.name} --way {way}` starts it"
    return _verdict(agent, how, token, model)


def _verdict(agent: CodingAgent, how: str, token: str, model: ScriptedModel) -> int:
    if not model.results:
        offered = ", ".join(model.offers) or "none"
        raise StaddleError(
            f"{agent.title} ran no command",
            why=f"it offered its model these tools: {offered}",
            fix="see what it prints without --check",
        )
    said = model.results[0]
    if token in said:
        print(f"{agent.name}: NOT confined: its command, {how}, ran on the host")
        return 1
    if "sandbox=1" in said:
        print(f"{agent.name}: confined: its command, {how}, ran in a sandbox")
        return 0
    print(f"{agent.name}: closed: its command, {how}, was not run: {said.strip()[:200]}")
    return 1
