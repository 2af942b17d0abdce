"""Runs the catalogue against one backend, or against none, and says what happened.

    python -m tests.containment.session '{"backend": "bwrap"}'        prints a report as JSON

It is a program, not only a module, because some runs need surroundings of their own: the
private systemd, a controlling terminal, or namespaces that catch what gets through when a
protection was switched off on purpose. Standard library and staddle only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import namespaces, orphans
from .probes import ATTACKS, MODULES, TERMINAL, TWINS
from .world import World

HERE = Path(__file__).parent
#: Builds the package `inside` from text, then runs the batch.
BOOT = """
import json, sys, types
with open(sys.argv[1]) as file:
    bundle = json.load(file)
package = types.ModuleType("inside")
package.__path__ = []
sys.modules["inside"] = package
for name, text in bundle["modules"]:
    module = types.ModuleType("inside." + name)
    module.__package__ = "inside"
    sys.modules["inside." + name] = module
    exec(compile(text, name, "exec"), module.__dict__)
sys.modules["inside.batch"].main(bundle)
"""
PYTHON = "/usr/bin/python3"
SECONDS = 90


def run(
    backend: str = "",
    *,
    control: str = "",
    network: str = "deny",
    attacks: list[str] | None = None,
    twins: list[str] | None = None,
    terminal: bool = False,
    switched_off: str = "",
    parent: bool = False,
    deny_below: str = "work",
    place: str = "/var/tmp",
) -> dict[str, Any]:
    """The report of one run: answers by name, damage by protection, leaks, gaps."""
    if parent:
        return {"survived": orphans.survived(backend, switched_off)}
    if attacks is None:
        attacks = [
            name for name, attack in ATTACKS.items() if not attack.solo and (name in TERMINAL) == terminal
        ]
    if network == "open":
        attacks = [name for name in attacks if ATTACKS[name].protection != "network"]
    if not backend:
        # Some attacks would be real without a sandbox: what has no harmless control is not run.
        attacks = [name for name in attacks if ATTACKS[name].control == control]
    twins = list(TWINS) if twins is None else twins
    with World([*attacks, *twins], deny_below=deny_below, place=place) as world:
        command = [PYTHON, "-I", "-c", BOOT, _bundle(world, attacks, twins)]
        if backend:
            done, gaps, held = _confined(command, world, backend, network, terminal, switched_off)
        else:
            world.appear()
            done, gaps, held = _unconfined(command, control, terminal), [], []
        answers = _answers(done.stdout)
        return {
            "answers": answers,
            "damage": world.damage(),
            "leaks": _leaks(world, answers, done),
            "gaps": gaps,
            "held": held,
            "uids": world.facts.get("uids", []),
            "typed": _typed() if terminal else "",
            "status": done.returncode,
            "stderr": done.stderr.decode("utf-8", "replace")[-4000:] if done.stderr else "",
        }


def _bundle(world: World, attacks: list[str], twins: list[str]) -> str:
    """Everything that is needed inside, in one file that the policy lets be read."""
    import staddle.linux.syscalls as table

    modules = []
    for name in MODULES:
        path = Path(table.__file__) if name == "syscalls" else HERE / "inside" / f"{name}.py"
        modules.append((name, path.read_text()))
    path = os.path.join(world.facts["readable"], "bundle.json")
    with open(path, "w") as file:
        json.dump({"modules": modules, "world": world.facts, "attacks": attacks, "twins": twins}, file)
    os.chmod(path, 0o644)
    world.remember()
    return path


def _confined(
    command: list[str], world: World, backend: str, network: str, terminal: bool, switched_off: str
) -> tuple[subprocess.CompletedProcess[bytes], list[Any], list[str]]:
    from staddle import Network, Policy, wrap

    policy = (
        Policy.agent()
        .with_read(world.facts["readable"], world.facts["late"])
        .with_write(world.facts["work"])
        .with_deny(*world.denies())
        .with_network(getattr(Network, network)())
        .with_limits(timeout=SECONDS, output="16M")
    )
    if switched_off:
        from .switches import switch_off

        switch_off(backend, switched_off)
    wrapped = wrap(command, policy, backend=backend, cwd=world.facts["work"], best_effort=bool(switched_off))
    process = wrapped.popen(
        stdin=None if terminal else subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    world.facts["uids"] = _seen_from_outside(process, command[-1])
    world.appear()
    out, err = process.communicate(timeout=SECONDS)
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    gaps = [gap.as_dict() for gap in wrapped.enforced.gaps]
    return done, gaps, list(wrapped.enforced.held)


def _seen_from_outside(process: subprocess.Popen[bytes], bundle: str) -> list[int]:
    """As whom the confined command runs, in the eyes of the host: its uids, once it has said a first word."""
    import select

    assert process.stdout is not None
    select.select([process.stdout], [], [], 30)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1][::4] == [
                PYTHON.encode(),
                bundle.encode(),
            ]:
                status = Path(f"/proc/{pid}/status").read_text()
                return [int(uid) for uid in status.split("Uid:")[1].split("\n")[0].split()]
        except (OSError, IndexError):
            continue
    return []


def _unconfined(command: list[str], control: str, terminal: bool) -> subprocess.CompletedProcess[bytes]:
    """The control: the same program with nothing around it but namespaces that catch its mounts."""
    tempting = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        return subprocess.run(
            [*namespaces.around(contained=control == "contained"), *command],
            stdin=None if terminal else subprocess.DEVNULL,
            capture_output=True,
            pass_fds=[tempting],
            timeout=SECONDS,
            check=False,
        )
    finally:
        os.close(tempting)


def _answers(output: bytes) -> dict[str, dict[str, str]]:
    answers: dict[str, dict[str, str]] = {}
    for line in output.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        answers[said.get("name", said["kind"])] = said
    return answers


def _leaks(
    world: World, answers: dict[str, dict[str, str]], done: subprocess.CompletedProcess[bytes]
) -> list[str]:
    found = [name for name, answer in answers.items() if world.canary.leaked_into(answer.get("detail", ""))]
    if world.canary.leaked_into(done.stderr or b""):
        found.append("(standard error)")
    return found


def _typed() -> str:
    """What somebody typed into our terminal while the command ran."""
    os.set_blocking(0, False)
    try:
        return os.read(0, 100).decode("utf-8", "replace")
    except BlockingIOError:
        return ""


if __name__ == "__main__":
    json.dump(run(**json.loads(sys.argv[1])), sys.stdout)
