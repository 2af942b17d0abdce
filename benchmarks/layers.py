"""What layers cost: work in them, points to come back to, forks, the change list, taking it all over."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from measure import Claim, interleaved, ms, timed
from staddle import Policy, Sandbox

MANY = 10_000
_MAKE = f"""
import os
for directory in range(100):
    os.makedirs(f"d{{directory}}", exist_ok=True)
    for number in range({MANY // 100}):
        with open(f"d{{directory}}/f{{number}}", "w") as file:
            file.write(f"{{directory}} {{number}}\\n" * 20)
"""
_FILES = """
import os, shutil
for directory in range(40):
    os.makedirs(f"t/{directory}")
    for number in range(100):
        with open(f"t/{directory}/{number}", "w") as file:
            file.write("some text\\n" * 10)
for directory in range(40):
    for number in range(100):
        with open(f"t/{directory}/{number}") as file:
            assert len(file.read()) == 100
        os.unlink(f"t/{directory}/{number}")
shutil.rmtree("t")
"""
_TESTS = """
import json, os, pytest, subprocess, tempfile

@pytest.mark.parametrize("number", range(20))
def test_one(number, tmp_path):
    (tmp_path / "x").write_text(json.dumps(list(range(number * 100))))
    assert len(json.loads((tmp_path / "x").read_text())) == number * 100
"""


@contextmanager
def _place() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="staddle-layers")
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _python(sandbox: Sandbox, program: str) -> None:
    sandbox.run("python3 -", stdin=program, timeout=120).check()


def points() -> list[Claim]:
    """Snapshots and restores, each after one changed file and after ten thousand."""
    snapshots: dict[str, list[float]] = {"one": [], "many": []}
    restores: dict[str, list[float]] = {"one": [], "many": []}
    with _place() as place, Sandbox(place) as small, Sandbox(place) as large:
        both = {"one": (small, "open('one', 'w').write('1')", small.snapshot())}
        both["many"] = (large, _MAKE, large.snapshot())
        for number in range(16):
            for name, (sandbox, program, start) in both.items():
                _python(sandbox, program)
                time.sleep(0.1)  # what follows a command by itself is over
                began = time.perf_counter()
                taken = sandbox.snapshot()
                between = time.perf_counter()
                if taken.method != "swap":
                    raise RuntimeError("something ran in the sandbox")
                _python(sandbox, program)
                time.sleep(0.1)
                again = time.perf_counter()
                sandbox.restore(start)
                if number:
                    snapshots[name].append(between - began)
                    restores[name].append(time.perf_counter() - again)
                taken.close()
    claims = []
    for what, times in (("snapshot", snapshots), ("restore", restores)):
        one, many = statistics.median(times["one"]), statistics.median(times["many"])
        detail = f"{ms(many)} against {ms(one)}"
        claims += [
            Claim(f"{what} after {MANY:,} changed files / after one", many / one, 1.5, detail),
            Claim(f"{what} after {MANY:,} changed files, ms", many * 1000, 2, ""),
        ]
    return claims


def forks() -> list[Claim]:
    """With time for the next one to be made ready, as for a new sandbox."""
    made: list[float] = []
    forked: list[float] = []
    with _place() as place, Sandbox(place) as sandbox:
        _python(sandbox, _MAKE)
        sandbox.run("x=1; f() { echo f; }")
        for number in range(31):
            time.sleep(0.06)
            began = time.perf_counter()
            with Sandbox(place):
                between = time.perf_counter()
            time.sleep(0.06)
            again = time.perf_counter()
            (fork,) = sandbox.fork()
            end = time.perf_counter()
            fork.close()
            if number:
                made.append(between - began)
                forked.append(end - again)
    one, other = statistics.median(made), statistics.median(forked)
    return [Claim("fork / Sandbox()", other / one, 3, f"{ms(other)} against {ms(one)}")]


def frozen_forks() -> list[Claim]:
    """The first fork copies the workspace; the next ones walk it. Beside forks that do neither."""
    claims = []
    for count, most in ((10, 2), (100, 4), (900, 12)):
        taken: dict[str, list[float]] = {"first": [], "next": [], "live": []}
        with _place() as place:
            for number in range(count):
                os.makedirs(f"{place}/{number // 20}", exist_ok=True)
                with open(f"{place}/{number // 20}/{number}", "wb") as file:
                    file.write(b"x" * 3000)
            for _ in range(12):
                with Sandbox(place) as sandbox:
                    sandbox.run("echo 1 > mine")
                    for kind, freeze in (("live", False), ("first", None), ("next", None)):
                        time.sleep(0.06)
                        began = time.perf_counter()
                        (fork,) = sandbox.fork(freeze=freeze)
                        taken[kind].append(time.perf_counter() - began)
                        fork.close()
        first, following, live = (statistics.median(taken[kind]) for kind in ("first", "next", "live"))
        told = f"{ms(first)} against {ms(live)}"
        claims.append(
            Claim(f"the first fork, which copies {count} files / a live one", first / live, most, told)
        )
        told = f"{ms(following)} against {ms(live)}"
        claims.append(Claim(f"the next fork over {count} files / a live one", following / live, 3, told))
    return claims


def changes() -> list[Claim]:
    """The list of all changes, and taking them over, beside what copies them alone."""
    listed: list[float] = []
    committed: list[float] = []
    copied: list[float] = []
    for _ in range(5):
        with _place() as place:
            os.mkdir(f"{place}/work")
            with Sandbox(f"{place}/work") as sandbox:
                _python(sandbox, _MAKE)
                listed.append(timed(sandbox.diff))
                committed.append(timed(sandbox.commit))
            copied.append(timed(partial(subprocess.run, ["cp", "-a", "work", "copy"], cwd=place, check=True)))
    list_, commit, copy = (statistics.median(times) for times in (listed, committed, copied))
    return [
        Claim(f"diff of {MANY:,} changes, ms", list_ * 1000, 500, ""),
        Claim(f"commit of {MANY:,} files / cp -a", commit / copy, 2.5, f"{ms(commit)} against {ms(copy)}"),
    ]


def long_lines() -> list[Claim]:
    """A hundred snapshots one after the other, fifty forks of forks: the last beside the first."""
    with _place() as place, Sandbox(place) as sandbox:
        times = []
        taken = []
        for number in range(100):
            sandbox.run(f"echo {number} > n")
            time.sleep(0.02)
            times.append(timed(lambda: taken.append(sandbox.snapshot())))
        chain = statistics.median(times[-20:]) / statistics.median(times[:20])
        detail = f"{ms(statistics.median(times[-20:]))} against {ms(statistics.median(times[:20]))}"
        reads = [timed(lambda: sandbox.run("cat n; ls")) for _ in range(30)]
        with Sandbox(place) as fresh:
            fresh.run("echo x > n")
            plain = [timed(lambda: fresh.run("cat n; ls")) for _ in range(30)]
        work = statistics.median(reads) / statistics.median(plain)
        line, times = [sandbox], []
        for number in range(50):
            line[-1].run(f"echo {number} > n")
            time.sleep(0.06)
            times.append(timed(lambda: line.extend(line[-1].fork())))
        forked = statistics.median(times[-10:]) / statistics.median(times[:10])
        told = f"{ms(statistics.median(times[-10:]))} against {ms(statistics.median(times[:10]))}"
        for fork in line[1:]:
            fork.close()
    return [
        Claim("the last of 100 snapshots in a chain / the first", chain, 2, detail),
        Claim("a command after 100 snapshots / in a new sandbox", work, 2, ""),
        Claim("the last of 50 forks of forks / the first", forked, 2, told),
    ]


def work() -> list[Claim]:
    """Jobs that live on files: inside, in layers, against outside, in the directory itself."""
    python = sys.executable
    policy = Policy.agent().with_read(sys.prefix, os.path.realpath(sys.base_prefix))
    claims = []
    with _place() as place:
        _fill(place)
        jobs = {
            "create, read, delete 4,000 files": f"{python} -c '{_FILES}'",
            # Overlayfs shows a link to a file of the host with another inode, and git minds that.
            "git clone of 3,000 files": "git clone -q --no-hardlinks repository clone && rm -rf clone",
            "pytest, 1,000 tests": f"cd tests && {python} -m pytest -q -p no:randomly >/dev/null",
        }
        with Sandbox(place, policy) as sandbox:
            for name, job in jobs.items():
                each = interleaved({"inside": _inside(sandbox, job), "outside": _outside(place, job)}, 7)
                detail = f"{ms(each['inside'])} against {ms(each['outside'])}"
                claims.append(
                    Claim(f"{name}: inside / outside", each["inside"] / each["outside"], 1.15, detail)
                )
    return claims


def _inside(sandbox: Sandbox, job: str) -> Callable[[], object]:
    return lambda: sandbox.run(f"({job})", timeout=120).check()


def _outside(place: str, job: str) -> Callable[[], object]:
    return lambda: subprocess.run(["bash", "-c", job], cwd=place, check=True)


def _fill(place: str) -> None:
    """A repository of thousands of files, and a thousand tests."""
    os.makedirs(f"{place}/repository")
    os.makedirs(f"{place}/tests")
    git = ["git", "-C", f"{place}/repository", "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for directory in range(30):
        os.makedirs(f"{place}/repository/{directory}")
        for number in range(100):
            with open(f"{place}/repository/{directory}/{number}", "w") as file:
                file.write(f"{directory} {number}\n" * 30)
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"], ["gc", "-q"]):
        subprocess.run([*git, *words], check=True)
    for number in range(50):
        with open(f"{place}/tests/test_{number}.py", "w") as file:
            file.write(_TESTS)


CLAIMS = (points, forks, frozen_forks, changes, long_lines, work)
