"""Real coding agents, driven by a scripted model: `make test-agents`. They are not part of `make test`.

STADDLE_AGENTS is the directory that scripts/test-agents has installed them in. What each test found is
written to results.json there, and from there into docs/internals/agents-tested.md.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from staddle.agents.scripted_model import ScriptedModel, ToolCall
from staddle.agents.table import CODING_AGENTS

AGENTS = os.environ.get("STADDLE_AGENTS", "")
RESULTS = os.environ.get("STADDLE_AGENTS_RESULTS") or f"{AGENTS}/results.json"
collect_ignore_glob = [] if AGENTS else ["test_*.py"]
#: Seconds for one run of an agent: some look for updates first, and the machine may be busy.
PATIENCE = 240
STADDLE = [sys.executable, "-m", "staddle"]


class Found:
    """What a run of an agent has left."""

    def __init__(self, status: int, output: str, model: ScriptedModel) -> None:
        self.status, self.output = status, output
        self.results, self.offers, self.missing = model.results, model.offers, model.missing

    def __str__(self) -> str:
        return f"status {self.status}\noffers {self.offers}\nresults {self.results}\n{self.output[-3000:]}"


class Bench:
    """A home, a project and a secret beside it, and the ways to run an agent there."""

    def __init__(self, top: Path) -> None:
        self.home, self.project, self.secret = top / "home", top / "project", top / "secret"
        self.home.mkdir()
        self.project.mkdir()
        self.secret.write_text("the secret of the host")
        gemini = self.home / ".gemini"
        gemini.mkdir()
        (gemini / "settings.json").write_text('{"security": {"auth": {"selectedType": "gemini-api-key"}}}')
        path = f"{AGENTS}/node_modules/.bin:{AGENTS}/aider/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
        self.environment = {"PATH": path, "HOME": str(self.home), "PWD": str(self.project), "LANG": "C.UTF-8"}
        self.environment |= {"TERM": "dumb", "XDG_RUNTIME_DIR": str(top / "run")}
        (top / "run").mkdir(mode=0o700)

    def run(
        self,
        name: str,
        script: list[str | ToolCall],
        *,
        way: str = "",
        command: Callable[[ScriptedModel, list[str]], list[str]] | None = None,
        during: Callable[[subprocess.Popen[str]], object] | None = None,
        variables: dict[str, str] | None = None,
    ) -> Found:
        """Run it once: by `staddle agent` in a way, as `command` has it, or by itself."""
        agent = CODING_AGENTS[name]
        assert agent.check is not None
        with ScriptedModel(script) as model:
            words, more = agent.check(model.url)
            argv = [agent.program, *words]
            if way:
                inside = way == "inside"
                options = (
                    [word for item in more.items() for word in ("--env", "=".join(item))] if inside else []
                )
                # Its work on a copy is tested in test_session.py.
                own = ["--mode", "bind", "--network", f"loopback={model.url.rpartition(':')[2]}"]
                options += own if inside else []
                argv = [*STADDLE, "agent", name, "--way", way, *options, "--", *words]
            if command is not None:
                argv = command(model, argv)
            environment = {**self.environment, **more, **(variables or {})}
            with subprocess.Popen(
                argv,
                cwd=self.project,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            ) as process:
                try:
                    if during is not None:
                        during(process)
                    output = process.communicate(timeout=PATIENCE)[0]
                except BaseException:
                    os.killpg(process.pid, signal.SIGKILL)
                    raise
            return Found(process.returncode, output, model)

    def staddle(self, *words: str) -> str:
        """The output of a command of staddle in the project, which succeeds."""
        done = subprocess.run(
            [*STADDLE, *words],
            cwd=self.project,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Keep the outcome of each test with a row, for the documentation."""
    outcome: Any = yield
    report = outcome.get_result()
    row = item.get_closest_marker("row")
    if report.when != "call" or row is None:
        return
    parameters = getattr(item, "callspec", None)
    given = dict(parameters.params) if parameters is not None else {}
    agent, way, what = (str(word).format(**given) for word in row.args)
    result = {"agent": agent, "way": way, "what": what, "passed": report.passed}
    if item.user_properties:
        result["found"] = dict(item.user_properties)
    with open(RESULTS, "a") as file:
        file.write(json.dumps(result) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "row(agent, way, what): what a test shows, for docs/internals/agents-tested.md"
    )
