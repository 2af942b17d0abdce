"""The field: every sandbox that is measured, where it comes from, and the command line that confines with it.

Packages of PyPI and npm are installed below /var/tmp, those of Debian by `scripts/system-packages bench`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STADDLE = [sys.executable, "-m", "staddle"] if not (ROOT / ".venv/bin/staddle").exists() else [
    str(ROOT / ".venv/bin/staddle")
]  # fmt: skip
PIP = ("sandlock", "swe-rex", "langchain", "matplotlib>=3.10,<4")
NPM = ("@anthropic-ai/sandbox-runtime", "@openai/codex")
#: What the programs of other people get to see of this process.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_COUNT = itertools.count()


class CannotRun(Exception):
    """A peer cannot run here; the text is its own error, in one line."""


@dataclass(frozen=True, slots=True)
class Job:
    """A command and what it may reach."""

    workspace: str
    command: list[str]
    #: A directory for the peer's settings, which the command must not reach.
    scratch: str
    readable: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    #: ADDRESS:PORT that the command may connect to.
    host: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """The directory with the peers from PyPI and npm."""

    root: Path

    @property
    def python(self) -> str:
        return str(self.root / "python/bin/python")

    def npm(self, program: str) -> str:
        return str(self.root / "npm/node_modules/.bin" / program)

    def environment(self, home: str) -> dict[str, str]:
        """What a peer starts with; `home` is for its settings."""
        return {
            "PATH": PATH,
            "HOME": home,
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "CODEX_HOME": home,
            "XDG_RUNTIME_DIR": home,
        }


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to confine a command."""

    name: str
    #: What its makers say that it is for: a figure is read beside that.
    purpose: str
    version: Callable[[Place], list[str]]
    line: Callable[[Place, Job], list[str]] | None = None
    #: It can let one address be reached, or all of the network ("open").
    network: str = ""
    #: The works that this variant of a peer takes part in, where not in all.
    only: frozenset[str] = frozenset()
    #: Programs without which it cannot be started.
    needs: tuple[str, ...] = ()
    #: The protections of the scorecard that its command line has no rule for.
    lacks: tuple[str, ...] = ("guard",)


def _bwrap(job: Job, *, whole: bool) -> list[str]:
    words = ["bwrap"]
    if whole:
        words += ["--ro-bind", "/", "/"]
    else:
        words += [
            "--ro-bind",
            "/usr",
            "/usr",
            "--ro-bind",
            "/etc",
            "/etc",
            "--clearenv",
            "--setenv",
            "PATH",
            PATH,
        ]
        for name in ("bin", "lib", "lib64", "sbin"):
            words += ["--symlink", f"usr/{name}", f"/{name}"]
    words += ["--dev", "/dev", "--proc", "/proc"] + ([] if whole else ["--tmpfs", "/tmp"])
    for path in job.readable:
        words += ["--ro-bind", path, path]
    words += ["--bind", job.workspace, job.workspace, "--chdir", job.workspace]
    for path in filter(os.path.exists, job.denied):
        words += ["--tmpfs", path] if os.path.isdir(path) else ["--ro-bind", "/dev/null", path]
    words += ["--unshare-all", "--die-with-parent", "--new-session"]
    return [*words, *(["--share-net"] if job.host else []), "--", *job.command]


def _srt(place: Place, job: Job) -> list[str]:
    hosts = [job.host.rpartition(":")[0]] if job.host else []
    settings = {
        "network": {"allowedDomains": hosts, "deniedDomains": []},
        "filesystem": {"denyRead": list(job.denied), "allowWrite": [job.workspace], "denyWrite": []},
    }
    file = Path(job.scratch, f"srt-{_key(settings)}.json")
    if not file.exists():
        file.write_text(json.dumps(settings))
    return [place.npm("srt"), "--settings", str(file), "--", *job.command]


def _key(settings: object) -> str:
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]


def _sandlock(place: Place, job: Job, *, layer: bool = False) -> list[str]:
    options: dict[str, object] = {
        "fs_readable": [
            p for p in ("/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev") if os.path.exists(p)
        ]
        + [job.workspace, *job.readable],
        "fs_writable": [job.workspace, "/dev/null", "/tmp"],  # as in its quick start
        "cwd": job.workspace,
    }
    if job.denied:
        options["fs_denied"] = list(job.denied)
    if job.host:
        options["net_allow"] = [job.host]
    if layer:
        options["workdir"] = job.workspace
    return [place.python, "-I", "-c", _SANDLOCK, json.dumps([options, layer]), *job.command]


_SANDLOCK = """
import json, sys
from sandlock import BranchAction, Sandbox
options, layer = json.loads(sys.argv[1])
if layer:
    options |= {"on_exit": BranchAction.ABORT, "on_error": BranchAction.ABORT}
done = Sandbox(**options).run_interactive(sys.argv[2:])
sys.exit(done if isinstance(done, int) else getattr(done, "exit_code", 1))
"""


def _firejail(_: Place, job: Job) -> list[str]:
    hidden = [f"--blacklist={path}" for path in job.denied]
    net = [] if job.host else ["--net=none"]
    return [
        *("firejail", "--quiet", "--noprofile", *net, "--private-dev", "--caps.drop=all"),
        *(
            "--read-only=/",
            "--keep-var-tmp",
            f"--read-write={job.workspace}",
            f"--private-cwd={job.workspace}",
        ),
        *("--seccomp", "--nonewprivs", *hidden, "--", *job.command),
    ]


def _codex(place: Place, job: Job) -> list[str]:
    return [place.npm("codex"), "sandbox", "-c", 'sandbox_mode="workspace-write"', "--", *job.command]


def _runsc(_: Place, job: Job) -> list[str]:
    rootless = [] if os.geteuid() == 0 else ["--rootless"]
    net = "host" if job.host else "none"
    return ["runsc", *rootless, f"--network={net}", "do", f"--cwd={job.workspace}", *job.command]


def _podman(_: Place, job: Job) -> list[str]:
    volumes = [f"--volume={path}:{path}:ro" for path in job.readable]
    net = "host" if job.host else "none"
    return [
        *(
            "podman",
            "run",
            "--rm",
            "-i",
            f"--network={net}",
            f"--volume={job.workspace}:{job.workspace}",
            *volumes,
        ),
        *(f"--workdir={job.workspace}", "--rootfs", "/:O", *job.command),
    ]


def _crun(_: Place, job: Job) -> list[str]:
    """A bundle on the host's own tree, read-only: the runtime without podman around it."""
    bundle = Path(job.scratch, f"crun-{_key([job.workspace, *job.command])}")
    if not bundle.exists():
        bundle.mkdir()
        rootless = [] if os.geteuid() == 0 else ["--rootless"]
        subprocess.run(
            ["crun", "spec", *rootless, "-b", str(bundle)], check=True, capture_output=True, timeout=20
        )
        spec = json.loads((bundle / "config.json").read_text())
        spec["root"] = {"path": "/", "readonly": True}
        spec["process"] |= {"terminal": False, "args": job.command, "cwd": job.workspace, "rlimits": []}
        for path, how in [*((path, "ro") for path in job.readable), (job.workspace, "rw")]:
            options = ["rbind", how]
            spec["mounts"].append({"destination": path, "source": path, "type": "bind", "options": options})
        (bundle / "config.json").write_text(json.dumps(spec))
    name = f"staddle-bench-{os.getpid()}-{next(_COUNT)}"
    return ["crun", "--cgroup-manager=disabled", "run", "--bundle", str(bundle), name]


def _docker(_: Place, job: Job) -> list[str]:
    """With whatever image is there: nothing is downloaded."""
    images = subprocess.run(
        ["docker", "images", "-q"],
        env={"PATH": PATH},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    if images.returncode or not images.stdout:
        raise CannotRun(first_line(images.stderr) or "docker has no image")
    mount = f"{job.workspace}:{job.workspace}"
    return [
        "docker",
        "run",
        "--rm",
        "-i",
        "--network=none",
        "-v",
        mount,
        "-w",
        job.workspace,
        images.stdout.split()[0],
        *job.command,
    ]


def _staddle(_: Place, job: Job, *, layer: bool = False) -> list[str]:
    words = [*STADDLE, "run", "--workspace", job.workspace]
    words += ["--mode", "overlay"] if layer else ["--write", job.workspace]
    for option, paths in (("--read", job.readable), ("--deny", job.denied)):
        for path in paths:
            words += [option, path]
    return [*words, *(["--allow", job.host] if job.host else []), "--", *job.command]


def _plain(_: Place, job: Job) -> list[str]:
    return job.command


def _program(*words: str) -> Callable[[Place], list[str]]:
    return lambda _: list(words)


def _package(name: str) -> Callable[[Place], list[str]]:
    """The version of a package in the place's own environment."""
    return lambda place: [
        place.python,
        "-c",
        f"from importlib.metadata import version; print(version({name!r}))",
    ]


def _layered(line: Callable[..., list[str]]) -> Callable[[Place, Job], list[str]]:
    return lambda place, job: line(place, job, layer=True)


FILE_WORK = frozenset({"files", "compile"})
SESSION = frozenset({"session"})
_OURS = (
    "an agent's commands on a Linux machine: reads the system and the workspace, no network, a filter, limits"
)
PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "nothing",
            "the same command, unconfined: the floor",
            _program("uname", "-r"),
            _plain,
            network="open",
        ),
        Peer("staddle", _OURS, lambda _: [*STADDLE, "--version"], _staddle, network="one address", lacks=()),
        Peer(
            "staddle, in a layer",
            "the same, and what is written goes to a copy-on-write layer",
            lambda _: [*STADDLE, "--version"],
            _layered(_staddle),
            only=FILE_WORK,
        ),
        Peer(
            "bubblewrap",
            "a tool to build sandboxes with: confines what its line names; here /usr and /etc are readable",
            _program("bwrap", "--version"),
            lambda _, job: _bwrap(job, whole=False),
            network="open",
            needs=("bwrap",),
        ),
        Peer(
            "bubblewrap, all readable",
            "the short line of many agents: `--ro-bind / /`, everything readable and no filter",
            _program("bwrap", "--version"),
            lambda _, job: _bwrap(job, whole=True),
            only=frozenset({"scorecard"}),
            needs=("bwrap",),
        ),
        Peer(
            "sandlock",
            "Landlock and system call notification for one process tree, without namespaces; a library",
            _package("sandlock"),
            _sandlock,
            network="one address",
        ),
        Peer(
            "sandlock, copy-on-write",
            "the same, and what is written goes to a copy-on-write directory",
            _package("sandlock"),
            _layered(_sandlock),
            only=FILE_WORK,
        ),
        Peer(
            "srt",
            "Anthropic's sandbox-runtime: writes and hosts by list; by default the whole disk can be read",
            lambda place: [place.npm("srt"), "--version"],
            _srt,
            network="one address",
            needs=("node", "bwrap", "rg", "socat"),
            lacks=(),
        ),
        Peer(
            "codex",
            "the sandbox of Codex's commands: no network, writes in the workspace; the disk is readable",
            lambda place: [place.npm("codex"), "--version"],
            _codex,
            needs=("node",),
            lacks=("deny",),
        ),
        Peer(
            "firejail",
            "a set-user-id program that confines desktop applications by profiles; here without a profile",
            _program("firejail", "--version"),
            _firejail,
            network="open",
            needs=("firejail",),
        ),
        Peer(
            "crun",
            "a container runtime, on the host's own tree instead of an image",
            _program("crun", "--version"),
            _crun,
            needs=("crun",),
            lacks=("deny", "guard"),
        ),
        Peer(
            "podman",
            "containers without a daemon, on the host's own tree instead of an image",
            _program("podman", "--version"),
            _podman,
            network="open",
            needs=("podman",),
            lacks=("deny", "guard"),
        ),
        Peer(
            "docker",
            "containers with a daemon, from an image",
            _program("docker", "--version"),
            _docker,
            needs=("docker",),
            lacks=("deny", "guard"),
        ),
        Peer(
            "gVisor",
            "a kernel in user space: `runsc do`, whose writes go to an overlay in memory",
            _program("runsc", "--version"),
            _runsc,
            network="open",
            needs=("runsc",),
            lacks=("deny", "guard"),
        ),
        Peer(
            "nono",
            "Landlock rules for coding agents",
            _program("nono", "--version"),
            lambda _, job: ["nono", "run", "--allow", job.workspace, "--net-block", "--", *job.command],
            needs=("nono",),
            lacks=("deny", "guard"),
        ),
        Peer(
            "staddle, library",
            "`wrap(…).run()` in a program that has staddle loaded",
            lambda _: [*STADDLE, "--version"],
            only=frozenset({"start"}),
        ),
        Peer(
            "staddle, Sandbox()",
            "a sandbox with a shell, a copy-on-write workspace and snapshots: opened, used, closed",
            lambda _: [*STADDLE, "--version"],
            only=frozenset({"start", "rate", "memory", "many"}),
        ),
        Peer(
            "sandlock, library",
            "`Sandbox(…).run()` in a program that has sandlock loaded",
            _package("sandlock"),
            only=frozenset({"start"}),
        ),
        Peer(
            "SWE-ReX",
            "sessions of bash on this machine or in a container; its local session confines nothing",
            _package("swe-rex"),
            only=SESSION,
        ),
        Peer(
            "LangChain",
            "the shell tool of its agents; its host policy confines nothing",
            _package("langchain"),
            only=SESSION,
        ),
    )
}


def chosen(names: list[str]) -> dict[str, Peer]:
    """The peers with these names, or all."""
    unknown = sorted(set(names) - set(PEERS))
    if unknown:
        raise SystemExit(f"no peer is called {', '.join(unknown)}; there are: {', '.join(PEERS)}")
    return {name: peer for name, peer in PEERS.items() if not names or name in names}


def first_line(text: str) -> str:
    """The line of an error that says what is wrong: the last one with words, bounded."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line or "annot" in line] or lines
    return telling[-1][:200] if telling else ""


def root_in(parent: Path) -> Path:
    """The place of this user."""
    return parent / (f"staddle-peers-{os.geteuid()}" if os.geteuid() else "staddle-peers")


def install(parent: Path = Path("/var/tmp"), say: Callable[[str], object] = print) -> Place:
    """The place with everything from PyPI and npm; what an earlier run installed is used again."""
    root = root_in(parent)
    root.mkdir(mode=0o755, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise SystemExit(f"{root} is not a directory that only this user can write; remove it")
    python = ["/usr/bin/python3"] if os.path.exists("/usr/bin/python3") else [sys.executable]
    (root / "npm").mkdir(exist_ok=True)
    for name, packages, commands in (
        ("python", PIP, [[*python, "-m", "venv", str(root / "python")],
                         [str(root / "python/bin/python"), "-m", "pip", "install", "-q", "-U", *PIP]]),
        ("npm", NPM, [["npm", "install", "--no-audit", "--no-fund", "--loglevel=error",
                       "--prefix", str(root / "npm"), *NPM]]),
    ):  # fmt: skip
        stamp = root / f"{name}.stamp"
        if stamp.exists() and stamp.read_text() == "\n".join(packages):
            continue
        say(f"installing {', '.join(packages)} below {root}")
        try:
            for command in commands:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
            stamp.write_text("\n".join(packages))
        except (OSError, subprocess.SubprocessError) as error:
            why = first_line(getattr(error, "stderr", "") or "") or str(error)[:200]
            say(f"not installed: {why}")  # its peers then say that they are not there
    return Place(root)


def versions(place: Place, peers: dict[str, Peer]) -> tuple[dict[str, str], dict[str, str]]:
    """The version of each peer that is there, and why each other one is not."""
    there, missing = {}, {}
    for name, peer in peers.items():
        absent = [program for program in peer.needs if not shutil.which(program, path=PATH)]
        if absent:
            missing[name] = f"not installed: {', '.join(absent)}"
            continue
        try:
            words = peer.version(place)
            with tempfile.TemporaryDirectory() as home:
                done = subprocess.run(
                    words,
                    env=place.environment(home),
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=60,
                )
            there[name] = " ".join(done.stdout.split("\n")[0].split())[:60]
        except (OSError, subprocess.SubprocessError) as error:
            missing[name] = first_line(getattr(error, "stderr", "") or "") or str(error)[:200]
    return there, missing
