"""What one confined command costs, against a bare interpreter and a bare bwrap."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from measure import Claim, interleaved, ms, spawn
from staddle.policy.compiler import compile

from staddle import Policy, wrap

BARE = [sys.executable, "-I", "-S", "-c", "pass"]


def one_command() -> list[Claim]:
    staddle = str(Path(sys.executable).parent / "staddle")
    # Prepared ahead: what is measured is the launcher, from its start to the end of the command.
    helpers = [wrap(["true"], Policy.agent(), backend="landlock") for _ in range(31)]
    times = interleaved(
        {
            "python -I -S -c pass": lambda: spawn(BARE),
            "staddle run -- true": lambda: spawn([staddle, "run", "--", "true"]),
            "jail-exec true": lambda: helpers.pop().popen().wait(),
            "bwrap by hand": lambda: spawn(["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev",
                                            "--proc", "/proc", "--tmpfs", "/tmp", "true"]),
        }
    )  # fmt: skip
    bare = times["python -I -S -c pass"]
    for name, seconds in times.items():
        print(f"      {name}: {ms(seconds)}, {seconds / bare:.2f} bare interpreters")
    return [
        Claim(
            "staddle run -- true / bare interpreter",
            times["staddle run -- true"] / bare,
            5,
            ms(times["staddle run -- true"]),
        ),
        Claim(
            "jail-exec true / bare interpreter",
            times["jail-exec true"] / bare,
            2,
            ms(times["jail-exec true"]),
        ),
    ]


def wrapping() -> list[Claim]:
    """wrap() and its run, against starting the very same bwrap command without us."""

    def wrapped() -> None:
        wrap(["true"], Policy.agent(), backend="bwrap").popen().wait()

    ready = [wrap(["true"], Policy.agent(), backend="bwrap") for _ in range(31)]
    times = interleaved({"wrap": wrapped, "by hand": lambda: ready.pop().popen().wait()})
    detail = f"{ms(times['wrap'])} against {ms(times['by hand'])}"
    return [Claim("wrap + bwrap / the same bwrap by hand", times["wrap"] / times["by hand"], 1.3, detail)]


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
        best = min(_timed(lambda: compile(policy, cwd=root)) for _ in range(5))
    return [Claim("compile 1,000 read, write and deny paths, in ms", best * 1000, 50, "")]


def _timed(job: object) -> float:
    began = time.perf_counter()
    job()  # type: ignore[operator]
    return time.perf_counter() - began


CLAIMS = (one_command, wrapping, importing, compiling)
