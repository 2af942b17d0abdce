"""macOS: the command runs under `sandbox-exec` with a profile made from the plan.

**We have run nothing in this file on macOS.** It follows the profiles of other projects. Tests compare
the text of the profile with the plan, rule by rule, and run the launcher with a stand-in for
`sandbox-exec`. On macOS, `probe` tries the real program and reports if it does not confine.

The profile is passed on the command line (`-p`). A descriptor (`-f /dev/fd/N`) would stay open in the
command, and a file could be left behind. Other users of the machine can read a command line, so the
profile contains only paths and fixed rules: no variables and no secrets.

macOS has no private mounts. The private directories of the plan (home, /tmp) become directories below one
that belongs to this run, HOME and TMPDIR point there, and the host's own are refused. There is no
fallback: without `sandbox-exec` nothing runs.
"""

from __future__ import annotations

import contextlib
import os
import sys

from ..enforcement import Gap, Probe, Step
from ..errors import BackendUnavailable, LaunchFailed
from ..launch.contract import Launch
from ..policy.identity import Identity
from ..policy.plan import Grant, Plan
from . import sbpl
from .description import identity
from .gateways import LaunchProxy, nobody_asks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: The full path: a program of that name elsewhere on the PATH must not be used.
SANDBOX_EXEC = "/usr/bin/sandbox-exec"
LAUNCHER = os.path.join(os.path.dirname(__file__), "seatbelt_launcher.py")
PROXY = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "network", "gateway", "http_proxy.py"))
#: A placeholder in `steps`: the real port is chosen at the start.
_EXAMPLE_PORT = 1
#: A command line may have one mebibyte on macOS, including the environment.
PROFILE_LIMIT = 768 * 1024

_DOCUMENTED = {
    "filter": "macOS has no system call filter for this; the profile decides operation by operation",
    "processes": "there is no process namespace; the profile refuses to list processes, unverified",
    "ipc": "named POSIX semaphores are shared with the host: multiprocessing needs them",
    "parent": "macOS has no parent-death signal; a process that leaves its session survives",
    "tmp": "/tmp is refused rather than private, and what a killed launcher had made stays in TMPDIR",
    "deny": "on a case-insensitive volume a denied name that does not exist yet can be made in another case",
    "keyring": "the keychain services cannot be looked up, unverified",
}


class Seatbelt:
    """Confines with a generated SBPL profile. macOS only; we have not run it there."""

    name = "seatbelt"

    def probe(self) -> Probe:
        """Under the real `sandbox-exec`, read a granted file and one that is not granted."""
        if sys.platform != "darwin":
            return Probe(
                self.name,
                usable=False,
                why="sandbox-exec exists only on macOS",
                fix="choose namespaces, bwrap, systemd or landlock on Linux",
            )
        if not os.access(SANDBOX_EXEC, os.X_OK):
            return Probe(self.name, usable=False, why=f"{SANDBOX_EXEC} is missing", fix="restore it")
        return _try_it()

    def gaps(self, plan: Plan) -> tuple[Gap, ...]:
        """The gaps of macOS; all are documented except those that this plan adds."""
        found = [Gap(name, why, documented=True) for name, why in _DOCUMENTED.items()]
        found += _network_gaps(plan)
        if os.geteuid() == 0:
            found.append(
                Gap("capabilities", "run by root, the command stays root", "run staddle as an ordinary user")
            )
        found += [
            Gap(f"limits.{name}", f"seatbelt cannot limit {name}", f"leave limits.{name} out")
            for name in ("memory", "cpu", "processes", "disk")
            if getattr(plan.limits, name) is not None
        ]
        if plan.devices:
            found.append(Gap("devices", "seatbelt cannot grant a device", "leave gpu and devices out"))
        return (*found, *identity("seatbelt", plan))

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """The profile, rule by rule; the name of the private directory is chosen at the start."""
        made = [Step(sbpl.write(rule), "profile") for rule in sbpl.rules(plan, _example(), _EXAMPLE_PORT)]
        where = ", ".join(scratch.path for scratch in plan.scratch)
        return (
            Step(f"private directories in place of {where or 'nothing'}", "seatbelt"),
            Step("a new session, and limits on open files and file size where asked for", "seatbelt"),
            *made,
        )

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """Our launcher, then `sandbox-exec`, then the command."""
        if sys.platform != "darwin":
            raise BackendUnavailable(
                "the seatbelt backend cannot confine anything here",
                why="sandbox-exec exists only on macOS",
                fix="choose another backend",
            )
        private = _unused_name(os.path.realpath(os.environ.get("TMPDIR") or "/tmp"))
        if any(sbpl.covers(item.path, private) for item in plan.hidden):
            raise LaunchFailed(
                "there is no place for the private directories",
                why=f"the policy denies {os.path.dirname(private)!r}",
                fix="set TMPDIR to a directory that is not denied",
            )
        return launch(plan, command, private)


def _network_gaps(plan: Plan) -> Iterator[Gap]:
    """The gaps of the network. The command never reaches more than the policy allows."""
    yield from nobody_asks("seatbelt", plan)
    if plan.network.mode not in ("loopback", "allow"):
        return
    why = "macOS has one loopback, that of the host: no server inside can be connected to from there"
    yield Gap("network", why, "use Network.deny()")
    if plan.network.mode == "allow":
        why = "hosts are reached through a proxy, by programs that heed HTTP_PROXY and HTTPS_PROXY only"
        yield Gap("network", why, "use Network.deny()")
    for rule in plan.network.rules:
        if rule.protocol == "udp" and not rule.deny:
            yield Gap("network", f"{rule} cannot be reached: a proxy carries no UDP", f"leave {rule} out")


def launch(plan: Plan, command: Sequence[str], private: str, sandbox: str = SANDBOX_EXEC) -> Launch:
    """The launch with the private directory `private`, which does not exist yet."""
    proxy = LaunchProxy(plan)
    try:
        return _launch(plan, command, private, sandbox, proxy)
    except BaseException:
        proxy.close()
        raise


def _launch(plan: Plan, command: Sequence[str], private: str, sandbox: str, proxy: LaunchProxy) -> Launch:
    text = sbpl.profile(plan, private, proxy.port)
    if len(os.fsencode(text)) > PROFILE_LIMIT:
        raise LaunchFailed(
            "the profile is too long for a command line",
            why=f"it has {len(text)} characters, and {PROFILE_LIMIT} fit",
            fix="declare directories in place of the files in them",
        )
    status, theirs = os.pipe()
    limits = plan.limits
    argv = [sys.executable, "-I", "-S", LAUNCHER, str(theirs), private, _moved(plan, private, plan.cwd)]
    argv += [str(value) if value is not None else "-" for value in (limits.file_size, limits.open_files)]
    argv += (*map(str, proxy.descriptors), PROXY) if proxy.descriptors else ("-", "-", "-")
    argv += [str(len(plan.scratch)), *(f"{scratch.mode:o}:{scratch.path}" for scratch in plan.scratch)]
    argv += [sandbox, "-p", text, "--", *command]
    env = {name: _moved(plan, private, value) for name, value in plan.environment().items()}
    env.setdefault("HOME", private)
    env.setdefault("TMPDIR", private)
    env.update(proxy.variables)

    def close() -> None:
        _close(theirs)
        proxy.close()

    return Launch(
        argv=tuple(argv),
        env=env,
        cwd="/",
        pass_fds=(theirs, *proxy.descriptors),
        status=status,
        failure=lambda said: said.decode("utf-8", "replace") or None,
        relays=True,
        close=close,
    )


def _moved(plan: Plan, private: str, value: str) -> str:
    """Replace the path of a private directory of the plan, or a path in one, with the real path."""
    return private + value if any(sbpl.covers(item.path, value) for item in plan.scratch) else value


def _unused_name(parent: str) -> str:
    return os.path.join(parent, f"staddle-{os.urandom(16).hex()}")


def _example() -> str:
    return "/private/tmp/staddle-random"


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


def _try_it() -> Probe:
    import subprocess
    import tempfile

    def run(profile: str, path: str) -> subprocess.CompletedProcess[bytes]:
        argv = [SANDBOX_EXEC, "-p", profile, "--", "/bin/cat", path]
        return subprocess.run(argv, env={}, capture_output=True, timeout=30, check=False)

    name = Seatbelt.name
    try:
        with tempfile.TemporaryDirectory() as made:
            directory = os.path.realpath(made)
            for leaf in ("granted", "other"):
                os.mkdir(os.path.join(directory, leaf))
                with open(os.path.join(directory, leaf, "file"), "w") as file:
                    file.write(leaf)
            granted = os.path.join(directory, "granted")
            grants = tuple(Grant(path, "read", True, "probe") for path in ("/bin", "/usr/bin", granted))
            profile = sbpl.profile(_bare_plan(grants), os.path.join(directory, "private"))
            benign = run(profile, os.path.join(granted, "file"))
            if benign.stdout != b"granted":
                said = benign.stderr.decode("utf-8", "replace").strip()
                return Probe(
                    name,
                    usable=False,
                    why=f"sandbox-exec did not run the command ({said or f'exit {benign.returncode}'})",
                    fix="a sandbox cannot be started inside another one: start staddle outside",
                )
            if run(profile, os.path.join(directory, "other", "file")).returncode == 0:
                return Probe(name, usable=False, why="sandbox-exec ran the command but did not confine it")
    except (OSError, subprocess.SubprocessError) as error:
        return Probe(name, usable=False, why=f"sandbox-exec could not be tried: {error}")
    return Probe(name, usable=True, why="a granted file was read and another was refused")


def _bare_plan(grants: tuple[Grant, ...]) -> Plan:
    from ..policy import Limits, Network

    return Plan(
        grants=grants,
        hidden=(),
        guards=(),
        links=(),
        texts=(),
        scratch=(),
        sockets=(),
        variables=(),
        network=Network.deny(),
        limits=Limits.none(),
        identity=Identity(),
        cwd="/",
    )
