"""What one confined command costs, against a bare interpreter and a bare bwrap."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from measure import Claim, interleaved, ms, spawn, timed
from staddle import Policy, wrap
from staddle.ipc.exec_spec import ExecSpec
from staddle.launch.contract import helper_launch
from staddle.launch.running import start
from staddle.linux.landlock import FILES, READ, bits
from staddle.linux.seccomp import program
from staddle.policy.compiler import compile

BARE = [sys.executable, "-I", "-S", "-c", "pass"]
BWRAP = [
    *("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    *("--tmpfs", "/tmp", "true"),
]


def one_command() -> list[Claim]:
    staddle = str(Path(sys.executable).parent / "staddle")
    # Prepared ahead: what is measured is the launcher, from its start to the end of the command.
    supervised = [wrap(["true"], Policy.agent(), backend="landlock") for _ in range(31)]
    plain = [helper_launch(_plain_instructions()) for _ in range(31)]
    times = interleaved(
        {
            "python -I -S -c pass": lambda: spawn(BARE),
            "staddle run -- true": lambda: spawn([staddle, "run", "--", "true"]),
            "jail-exec true": lambda: start(plain.pop()).wait(),
            "jail-exec true, supervised, with the agent's policy": lambda: supervised.pop().popen().wait(),
            "bwrap by hand": lambda: spawn(BWRAP),
        }
    )
    bare = times["python -I -S -c pass"]
    for name, seconds in times.items():
        print(f"      {name}: {ms(seconds)}, {seconds / bare:.2f} bare interpreters")
    return [
        Claim(f"{name} / bare interpreter", times[name] / bare, most, ms(times[name]))
        for name, most in (("staddle run -- true", 5), ("jail-exec true", 2))
    ]


def _plain_instructions() -> ExecSpec:
    """Landlock and the filter on one process, then exec: the smallest confinement there is."""
    fs = bits(FILES, "fs")
    return ExecSpec(
        argv=(b"/bin/true",),
        environment=(b"PATH=/usr/bin:/bin",),
        directory=b"/",
        handled_fs=fs,
        rules=((b"/", bits(READ, "fs"), 0),),
        filter=program("namespaces"),
    )


def wrapping() -> list[Claim]:
    """wrap() and its run, against starting the very same bwrap command without us."""

    def wrapped() -> None:
        wrap(["true"], Policy.agent(), backend="bwrap").popen().wait()

    ours, by_hand = [], []
    for _ in range(40):
        ready = wrap(["true"], Policy.agent(), backend="bwrap")
        by_hand.append(timed(lambda: ready.popen().wait()))  # noqa: B023 - called at once
        ours.append(timed(wrapped))
    ratio = median(ours) / median(by_hand)
    detail = f"{ms(median(ours))} against {ms(median(by_hand))}"
    return [Claim("wrap + bwrap / the same bwrap by hand", ratio, 1.3, detail)]


def running() -> list[Claim]:
    """wrap() and its run on namespaces, in one program: the second and later commands."""
    with wrap(["true"], Policy.agent(), backend="namespaces").popen() as first:
        first.wait()
    times = interleaved(
        {
            "bare": lambda: spawn(BARE),
            "popen": lambda: wrap(["true"], Policy.agent(), backend="namespaces").popen().wait(),
            "run": lambda: wrap(["true"], Policy.agent(), backend="namespaces").run(),
        }
    )
    return [
        Claim(
            f"wrap + {name} on namespaces / bare interpreter",
            times[name] / times["bare"],
            most,
            ms(times[name]),
        )
        for name, most in (("popen", 6), ("run", 3))
    ]


def importing() -> list[Claim]:
    times = interleaved(
        {
            "bare": lambda: spawn([sys.executable, "-I", "-c", "pass"]),
            "staddle": lambda: spawn([sys.executable, "-I", "-c", "import staddle"]),
            "all names": lambda: spawn([sys.executable, "-I", "-c", "from staddle import *"]),
        }
    )
    return [
        Claim(f"{name} in ms over the bare interpreter", (times[key] - times["bare"]) * 1000, 60, "")
        for name, key in (("import staddle", "staddle"), ("from staddle import *", "all names"))
    ]


def compiling() -> list[Claim]:
    with tempfile.TemporaryDirectory() as root:
        paths: dict[str, list[str]] = {"read": [], "write": [], "deny": []}
        for kind, made in paths.items():
            for number in range(1000):
                made.append(f"{root}/{kind}/{number % 10}/{number}")
                os.makedirs(made[-1])
        policy = Policy(**paths)  # type: ignore[arg-type]
        best = min(timed(lambda: compile(policy, cwd=root)) for _ in range(5))
    return [Claim("compile 1,000 read, write and deny paths, in ms", best * 1000, 50, "")]


CLAIMS = (one_command, wrapping, running, importing, compiling)
