"""Run the probes and the shell cases under one command line, and print what happened as JSON.

    python -m benchmarks.scorecard.session '{"peer": "bubblewrap"}'

It is started as an ordinary user in mount, process, network, IPC and host name namespaces of its own: what
gets through a peer, and what a control does without one, ends there.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.field.peers import PEERS, CannotRun, Job, Place, first_line
from tests.containment.probes import ATTACKS, NEIGHBOURS, TERMINAL
from tests.containment.session import PYTHON, Surroundings, run
from tests.containment.world import World
from tests.support.shell_cases import CASES

#: Without those that need a terminal, a second sandbox, or that end everything they can reach.
PROBES = [
    name
    for name, attack in ATTACKS.items()
    if name not in TERMINAL | NEIGHBOURS and not attack.solo and attack.control in ("plain", "contained")
]
SECONDS = 60
#: Runs each text by bash in a directory of its own, four at a time, and prints a line for each.
RUN_CASES = """
import concurrent.futures, hashlib, json, os, subprocess, sys
with open(sys.argv[1]) as file:
    cases = json.load(file)
env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb"}
def one(number, name, text):
    place = os.path.join(sys.argv[2], str(number))
    os.makedirs(place)
    try:
        done = subprocess.run(["bash", "-c", text], cwd=place, env={**env, "PWD": place},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, timeout=6)
        out = done.stdout.replace(place.encode(), b".")
        return [name, done.returncode, hashlib.sha256(out).hexdigest(), out[:80].decode("utf-8", "replace")]
    except (OSError, subprocess.SubprocessError) as error:
        return [name, -1, "", str(error)[:80]]
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for found in pool.map(one, range(len(cases)), cases, cases.values()):
        print(json.dumps(found), flush=True)
"""


def shell_texts() -> dict[str, str]:
    """The cases for which one bash is enough: nothing is typed, asked for or ended from outside."""
    return {
        name: "\n".join(str(step.text) for step in steps)
        for name, steps in CASES.items()
        if all(
            isinstance(step.text, str) and not step.options and not step.exited and not step.reason
            for step in steps
        )
        and sum(len(step.text) for step in steps) < 20_000
    }


class Lined(Surroundings):
    """Whatever a command line makes."""

    def __init__(
        self, line: Callable[[Job], list[str]], world: World, environment: dict[str, str], scratch: str
    ) -> None:
        self.gaps = []
        self._line, self._environment, self._scratch = line, environment, scratch
        facts = world.facts
        self._workspace = facts["work"]
        self._readable = (facts["readable"], facts["late"])
        self._denied = tuple(world.denies())

    def start(self, command: list[str], **streams: Any) -> subprocess.Popen[bytes]:
        job = Job(self._workspace, command, self._scratch, self._readable, self._denied)
        tempting = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        try:
            # The world's secrets are in the environment that the peer is started with.
            environment = {**os.environ, **self._environment}
            for spoils in ("LD_LIBRARY_PATH", "PERL5LIB", "NODE_OPTIONS", "DISPLAY", "DOCKER_HOST"):
                environment.pop(spoils, None)
            return subprocess.Popen(
                self._line(job), cwd=self._workspace, env=environment, pass_fds=[tempting], **streams
            )
        finally:
            os.close(tempting)


def templated(template: str) -> Callable[[Job], list[str]]:
    """A line such as `bwrap … --bind {workspace} {workspace} -- {command}`."""
    words = shlex.split(template)
    if "{command}" not in words:
        raise SystemExit(f"{template!r} has no word {{command}}: it is replaced by the words of the command")

    def line(job: Job) -> list[str]:
        made: list[str] = []
        for word in words:
            made += job.command if word == "{command}" else [word.replace("{workspace}", job.workspace)]
        return made

    return line


def of_peer(name: str, place: Place) -> Callable[[Job], list[str]]:
    function = PEERS[name].line
    assert function
    return lambda job: function(place, job)


def probed(line: Callable[[Job], list[str]], environment: dict[str, str], scratch: str) -> dict[str, Any]:
    """What each probe said, and what was seen from outside."""
    made = run(
        confining=lambda world: Lined(line, world, environment, scratch), attacks=PROBES, place=scratch
    )
    if "start" not in made["answers"]:
        raise CannotRun(first_line(made["stderr"]) or f"ended with {made['status']} and said nothing")
    return {key: made[key] for key in ("answers", "damage", "leaks")} | {"stderr": made["stderr"][-300:]}


def controls(scratch: str) -> dict[str, Any]:
    """The same probes with nothing around them, each as its control says."""
    answers: dict[str, Any] = {}
    damage: list[str] = []
    for control in ("plain", "contained"):
        made = run(control=control, attacks=PROBES, twins=None if control == "plain" else [], place=scratch)
        answers |= made["answers"]
        damage += made["damage"]
    return {"answers": answers, "damage": sorted(set(damage))}


def shell_cases(
    line: Callable[[Job], list[str]], environment: dict[str, str], scratch: str
) -> dict[str, list[Any]]:
    """The answer of bash to each case, there."""
    with tempfile.TemporaryDirectory(prefix="cases-", dir=scratch) as base:
        cases, workspace = Path(base, "given"), Path(base, "workspace")
        cases.mkdir()
        workspace.mkdir()
        (cases / "cases.json").write_text(json.dumps(shell_texts()))
        command = [PYTHON, "-I", "-c", RUN_CASES, str(cases / "cases.json"), str(workspace)]
        job = Job(str(workspace), command, scratch, (str(cases),))
        try:
            done = subprocess.run(
                line(job),
                cwd=workspace,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
            out = done.stdout
        except subprocess.TimeoutExpired as error:
            out = error.stdout or b""
        found: dict[str, list[Any]] = {}
        for text in out.splitlines():
            if text.startswith(b"["):
                name, *rest = json.loads(text)
                found[name] = rest
        return found


def main() -> None:
    asked = json.loads(sys.argv[1])
    place = Place(Path(asked["place"]))
    with tempfile.TemporaryDirectory(prefix="scorecard-", dir=os.environ["HOME"]) as scratch:
        os.chmod(scratch, 0o755)
        environment = place.environment(os.environ["HOME"])
        try:
            if asked.get("control"):
                line: Callable[[Job], list[str]] = lambda job: job.command  # noqa: E731
                made = controls(scratch)
                made["cases"] = [shell_cases(line, environment, scratch) for _ in range(2)]
            else:
                line = templated(asked["with"]) if "with" in asked else of_peer(asked["peer"], place)
                made = probed(line, environment, scratch)
                made["cases"] = shell_cases(line, environment, scratch)
        except (CannotRun, OSError, subprocess.SubprocessError) as error:
            made = {"cannot": str(error)[:200]}
        json.dump(made, sys.stdout)


if __name__ == "__main__":
    main()
