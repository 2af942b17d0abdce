"""Runs the catalogue against one backend, or against none, and says what happened.

    python -m tests.containment.session '{"backend": "bwrap"}'        prints a report as JSON

It is a program, not only a module, because some runs need surroundings of their own: the
private systemd, a controlling terminal, or namespaces that catch what gets through when a
protection was switched off on purpose. Standard library and staddle only.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import marshal
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from . import namespaces, orphans
from .probes import ATTACKS, MODULES, NEIGHBOURS, TERMINAL, TWINS
from .world import World, libc

HERE = Path(__file__).parent
#: Builds the package `inside`, from compiled code if that is for this interpreter, then runs the batch.
BOOT = """
import binascii, json, marshal, sys, types
with open(sys.argv[1]) as file:
    bundle = json.load(file)
package = types.ModuleType("inside")
package.__path__ = []
sys.modules["inside"] = package
for name, text, code in bundle["modules"]:
    module = types.ModuleType("inside." + name)
    module.__package__ = "inside"
    sys.modules["inside." + name] = module
    ready = bundle["version"] == sys.version
    made = marshal.loads(binascii.a2b_base64(code)) if ready else compile(text, name, "exec")
    exec(made, module.__dict__)
sys.modules["inside." + bundle["run"]].main(bundle)
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
    grants: dict[str, list[str]] | None = None,
    confining: Callable[[World], Surroundings] | None = None,
) -> dict[str, Any]:
    """The report of one run: answers by name, damage by protection, leaks, gaps.

    `grants` are further fields of the policy, such as its devices. `confining` makes other
    surroundings than staddle's, such as another sandbox.
    """
    if parent:
        return {"survived": orphans.survived(backend, switched_off)}
    if attacks is None:
        attacks = [
            name for name, attack in ATTACKS.items() if not attack.solo and (name in TERMINAL) == terminal
        ]
    if network == "open":
        attacks = [name for name in attacks if ATTACKS[name].protection != "network"]
    if not backend and not confining:
        # Some attacks would be real without a sandbox: what has no harmless control is not run.
        attacks = [name for name in attacks if ATTACKS[name].control == control]
    twins = list(TWINS) if twins is None else twins
    with World([*attacks, *twins], deny_below=deny_below, place=place) as world:
        if backend.startswith("session"):
            from .in_session import rights

            world.facts["rights"] = rights(backend)
        surroundings: Surroundings
        if confining:
            surroundings = confining(world)
        elif backend:
            surroundings = _Sandbox(world, backend, network, switched_off, grants or {})
        else:
            surroundings = _Open(control == "contained")
        with contextlib.ExitStack() as stack:
            if NEIGHBOURS.intersection(attacks):
                world.facts["neighbour"] = stack.enter_context(_neighbour(world, surroundings))
            asked = {"run": "batch", "world": world.facts, "attacks": attacks, "twins": twins}
            command = _command(world, asked)
            world.remember()
            done, uids = _see_through(world, surroundings, command, terminal)
        answers = _answers(done.stdout)
        return {
            "answers": answers,
            "damage": world.damage(),
            "leaks": _leaks(world, answers, done),
            "gaps": surroundings.gaps,
            "uids": uids,
            "typed": _typed() if terminal else "",
            "status": done.returncode,
            "stderr": done.stderr.decode("utf-8", "replace")[-4000:],
        }


def _command(world: World, asked: dict[str, Any]) -> list[str]:
    """The program that does what is asked; all it needs is in one file that the policy lets be read."""
    import staddle.linux.syscalls as table

    modules = []
    for name in MODULES:
        path = Path(table.__file__) if name == "syscalls" else HERE / "inside" / f"{name}.py"
        code = SourceFileLoader(name, str(path)).get_code(name)
        modules.append((name, path.read_text(), binascii.b2a_base64(marshal.dumps(code)).decode()))
    bundle = os.path.join(world.facts["readable"], f"{asked['run']}.json")
    with open(bundle, "w") as file:
        json.dump({"version": sys.version, "modules": modules, **asked}, file)
    os.chmod(bundle, 0o644)
    return [PYTHON, "-I", "-c", BOOT, bundle]


# ------------------------------------------------------------------ what stands around the program


class Surroundings:
    gaps: list[dict[str, Any]]

    def start(self, command: list[str], **streams: Any) -> Any:
        raise NotImplementedError


#: With a list, there is a gateway to attack, and nothing on it that an attack is about.
_ALLOWED = {"allow": ("allowed.example", "*.wild.example", "192.0.2.0/24:80", "udp://192.0.2.1:53")}


class _Sandbox(Surroundings):
    """The backend under test, with one policy for everything that is started in it."""

    def __init__(
        self, world: World, backend: str, network: str, switched_off: str, grants: dict[str, list[str]]
    ) -> None:
        from staddle import Network, Policy

        self.gaps = []
        self._backend, self._weakened = backend, bool(switched_off)
        self._directory = world.facts["work"]
        self._policy = (
            Policy.agent()
            .with_read(world.facts["readable"], world.facts["late"])
            .with_write(world.facts["work"])
            .with_deny(*world.denies())
            .with_network(getattr(Network, network)(*_ALLOWED.get(network, ())))
            .with_limits(timeout=SECONDS)
            .replace(**grants)
        )
        if switched_off:
            from .switches import switch_off

            switch_off(backend, switched_off)

    def start(self, command: list[str], **streams: Any) -> Any:
        if self._backend.startswith("session"):
            from .in_session import USERS, Started

            started = Started(command, self._policy, self._directory, streams, USERS[self._backend])
            self.gaps = [gap.as_dict() for gap in started.sandbox.decided.enforced.gaps]
            return started
        from staddle import wrap

        wrapped = wrap(
            command, self._policy, backend=self._backend, cwd=self._directory, best_effort=self._weakened
        )
        self.gaps = [gap.as_dict() for gap in wrapped.enforced.gaps]
        return wrapped.popen(**streams)


class _Open(Surroundings):
    """The control: nothing around it but namespaces that catch its mounts, and a descriptor to find."""

    def __init__(self, contained: bool) -> None:
        self.gaps = []
        self._around = namespaces.around(contained=contained)

    def start(self, command: list[str], **streams: Any) -> subprocess.Popen[bytes]:
        tempting = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        try:
            return subprocess.Popen([*self._around, *command], pass_fds=[tempting], **streams)
        finally:
            os.close(tempting)


def _see_through(
    world: World, surroundings: Surroundings, command: list[str], terminal: bool
) -> tuple[subprocess.CompletedProcess[bytes], list[int]]:
    """Run it to its end. Also as whom it runs in the eyes of the host: its uids, once it has begun."""
    process = surroundings.start(
        command,
        stdin=None if terminal else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    select.select([process.stdout], [], [], 30)
    uids: list[int] = []
    for pid in _running(command[-1]):
        with contextlib.suppress(OSError, IndexError):
            status = Path(f"/proc/{pid}/status").read_text()
            uids = [int(uid) for uid in status.split("Uid:")[1].split("\n")[0].split()]
    world.appear()
    out, err = process.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess(command, process.returncode, out, err), uids


@contextlib.contextmanager
def _neighbour(world: World, surroundings: Surroundings) -> Iterator[dict[str, Any]]:
    """A second program in the same surroundings; yields where it is and what it has."""
    name = world.facts["marker"].replace("victim", "neighbour")
    command = _command(world, {"run": "neighbours", "name": name, "secret": world.canary.text})
    process = surroundings.start([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    has: dict[str, Any] = {"tmp": "", "memory": 0}
    try:
        said = process.stdout.readline()
        assert said, "the neighbour did not start"
        has = {"name": name, "pid": max(_running(command[-1])), **json.loads(said)}
        yield has
        if process.poll() is not None:
            world.hurt("signals", "the neighbour was killed")
    finally:
        process.communicate(timeout=SECONDS)
        # Where it was killed, and what it had is really here, it is for us to remove.
        for path in (os.path.join(has["tmp"], "secret"), f"/dev/shm/{name}"):
            with contextlib.suppress(OSError):
                os.unlink(path)
        with contextlib.suppress(OSError):
            os.rmdir(has["tmp"])
        if has["memory"]:
            libc.shmctl(libc.shmget(has["memory"], 0, 0), 0, None)


def _running(bundle: str) -> list[int]:
    """The interpreters that run this bundle; not their launchers, who have its name on their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[0] == PYTHON.encode() and words[4:5] == [bundle.encode()]:
                found.append(int(pid))
    return found


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
    if world.canary.leaked_into(done.stderr):
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
