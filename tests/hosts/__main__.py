"""Run staddle in containers of every kind, and on kernels of distributions; write the page.

    make test-hosts
    python -m tests.hosts containers "Debian 12"        some of it
    python -m tests.hosts limits                        tests of limits, with cgroups of version 2

Needs root and runc. In each container doctor, a strict run, a nested run and a session are tried, and must
agree; a row whose last column says what is expected must come out so. Kernels are started by qemu, see
kernels.py; without qemu that part is skipped. The tests of limits run in such a machine, see limits.py. The
pages are written by the run itself, part by part.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.hosts import kernels, limits, machines
from tests.support import engine_profiles
from tests.support.containers import CAPABILITIES, TREE, Container

PAGE = TREE / "docs/internals/container-hosts.md"
PROFILE = TREE / "src/staddle/containers/seccomp.json"
#: Podman's own, where its package is installed.
PODMAN = Path("/usr/share/containers/seccomp.json")
EVERY = (
    *CAPABILITIES,
    *("CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_ADMIN", "CAP_DAC_READ_SEARCH"),
    *("CAP_SYS_NICE", "CAP_LINUX_IMMUTABLE", "CAP_IPC_LOCK", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYSLOG"),
)
LANDLOCK, NAMESPACES, NOTHING = "landlock", "namespaces", "-"
_KERNELS, _CATALOGUE, _LIMITS = "## Kernels", "catalogue: ", "limits"
#: What is started, what `auto` must be (strict), and the backend of a nested session.
ROWS: tuple[tuple[str, Container, str, str], ...] = (
    ("Docker, no options, root", Container(), NOTHING, LANDLOCK),
    ("Docker, no options, user", Container(uid=1000), NOTHING, LANDLOCK),
    ("and no-new-privileges, user", Container(uid=1000, no_new_privileges=True), NOTHING, LANDLOCK),
    (
        "read-only root, tmpfs /tmp, user",
        Container(uid=1000, read_only=True, tmpfs=("/tmp",)),
        NOTHING,
        LANDLOCK,
    ),
    (
        "Kubernetes restricted, writable /tmp",
        Container(
            uid=1000, capabilities=(), no_new_privileges=True, read_only=True, tmpfs=("/tmp",), marks=()
        ),
        NOTHING,
        LANDLOCK,
    ),
    ("all capabilities dropped, root", Container(capabilities=()), NOTHING, NOTHING),
    ("seccomp=unconfined, user", Container(uid=1000, profile=None), NOTHING, NAMESPACES),
    ("seccomp=unconfined, root", Container(profile=None), NOTHING, LANDLOCK),
    (
        "seccomp and systempaths unconfined, user",
        Container(uid=1000, profile=None, masked=False),
        NAMESPACES,
        NAMESPACES,
    ),
    (
        "privileged, user",
        Container(uid=1000, profile=None, masked=False, capabilities=EVERY),
        NAMESPACES,
        NAMESPACES,
    ),
    ("privileged, root", Container(profile=None, masked=False, capabilities=EVERY), NAMESPACES, NAMESPACES),
    ("cap-add SYS_ADMIN, root", Container(capabilities=(*CAPABILITIES, "CAP_SYS_ADMIN")), NOTHING, LANDLOCK),
    (
        "Podman, no options, root",
        Container(profile="podman", marks=("run/.containerenv",)),
        NOTHING,
        LANDLOCK,
    ),
    (
        "Podman, no options, user",
        Container(uid=1000, profile="podman", marks=("run/.containerenv",)),
        NOTHING,
        NAMESPACES,
    ),
    (
        "Podman, unmask=ALL, user",
        Container(uid=1000, profile="podman", masked=False, marks=("run/.containerenv",)),
        NOTHING,
        NAMESPACES,
    ),
    ("shipped filter, user", Container(uid=1000, profile=PROFILE), NOTHING, NAMESPACES),
    (
        "shipped filter, systempaths, user",
        Container(uid=1000, profile=PROFILE, masked=False),
        NAMESPACES,
        NAMESPACES,
    ),
    (
        "shipped filter, systempaths, shm 1g, user",
        Container(uid=1000, profile=PROFILE, masked=False, shm="1g"),
        NAMESPACES,
        NAMESPACES,
    ),
)
TRIED = """
import json, os, statistics, subprocess, sys, time, warnings
warnings.simplefilter("ignore")
from staddle import Policy, Sandbox, StaddleError
def staddle(*words):
    done = subprocess.run([sys.executable, "-m", "staddle", *words], capture_output=True, text=True, cwd="/")
    return done.returncode, done.stdout, done.stderr
found = {}
said = json.loads(staddle("doctor", "--json")[1])
found["auto"] = said["auto"]
usable = [n for n, b in said["backends"].items() if b["usable"] and n != "native"]
found["usable"] = {n: len(said["backends"][n]["enforces"]) for n in usable}
found["gaps"] = {n: [g["protection"] for g in b["gaps"]] for n, b in said["backends"].items()}
found["strict"] = staddle("run", "--", "true")[0]
found["nested"] = staddle("run", "--nested", "--", "true")[0]
place = next(p for p in ("/tmp", "/home/box", "/dev/shm") if os.access(p, os.W_OK))
os.makedirs(place + "/project", exist_ok=True)
try:
    times = []
    for _ in range(6):
        began = time.perf_counter()
        sb = Sandbox(place + "/project", policy=Policy.agent(nested=True))
        times.append(time.perf_counter() - began)
        sb.close()
    found["open"] = statistics.median(times[1:])
    times = []
    for _ in range(6):
        time.sleep(0.5)  # the next one is made ahead meanwhile
        began = time.perf_counter()
        sb = Sandbox(place + "/project", policy=Policy.agent(nested=True))
        times.append(time.perf_counter() - began)
        sb.close()
    found["ready"] = statistics.median(times[1:])
    with Sandbox(place + "/project", policy=Policy.agent(nested=True)) as sb:
        sb.run("x=1; echo one > a")
        before = sb.snapshot()
        sb.run("x=2; rm a")
        sb.restore(before)
        times = []
        for _ in range(100):
            began = time.perf_counter()
            sb.run(":")
            times.append(time.perf_counter() - began)
        found["command"] = statistics.median(times)
        found["session"] = sb.enforced.backend
        found["session_gaps"] = [gap.protection for gap in sb.enforced.gaps]
        found["works"] = sb.run("cat a; echo $x").stdout == "one\\n1\\n" and len(sb.diff()) == 1
        found["snapshot"] = before.method
        sb.commit()
    found["works"] = found["works"] and open(place + "/project/a").read() == "one\\n"
except StaddleError as error:
    found["why"] = str(error)
print(json.dumps(found))
"""


def judged(found: dict[str, Any], auto: str, session: str) -> list[str]:
    """What does not agree: doctor, what runs and what is enforced; and what was expected."""
    wrong = []
    if (found["auto"] or NOTHING) != auto:
        wrong.append(f"auto is {found['auto']}")
    if (found["strict"] == 0) != (found["auto"] is not None):
        wrong.append(f"doctor says {found['auto']}, and a strict run exits with {found['strict']}")
    if (found["nested"] == 0) != bool(found["usable"]):
        wrong.append(f"doctor says {list(found['usable'])}, and a nested run exits with {found['nested']}")
    if found.get("session", NOTHING) != session:
        wrong.append(f"the session is on {found.get('session')}: {found.get('why', '')}")
    if "session" in found:
        missing = (
            set(found["gaps"][found["session"]]) - set(found["session_gaps"]) - {"packages", "limits.disk"}
        )
        if missing:
            wrong.append(f"gaps that doctor lists are not enforced's: {sorted(missing)}")
        if not found["works"]:
            wrong.append("snapshot, restore, diff or commit do not work")
    return wrong


def compared() -> list[str]:
    """System calls that the shipped filter answers differently than Docker's, but for those it is for."""
    script = (TREE / "tests/hosts/syscalls.py").read_text()
    unconfined = Container(uid=1000, profile=None).python(script)
    engine = Container(uid=1000).python(script)
    ours = Container(uid=1000, profile=PROFILE).python(script)
    needed = {*engine_profiles.PODMAN_ALLOWS, "clone", "clone3", "sethostname", "setdomainname"}
    needed -= {"keyctl", "process_madvise"}
    wrong = []
    for name, plain in unconfined.items():
        if name in needed:
            if ours[name] != plain:
                wrong.append(f"{name} is needed, and answers {ours[name]} instead of {plain}")
        elif ours[name] != engine[name]:
            wrong.append(f"{name} answers {ours[name]}, with the engine's filter {engine[name]}")
    return wrong


def main() -> int:
    chosen = sys.argv[1:] or ["containers", _LIMITS, *(kernel.name for kernel in kernels.KERNELS)]
    if os.geteuid() != 0 or ("containers" in chosen and not shutil.which("runc")):
        print("make test-hosts needs root and runc: apt-get install runc")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    passed = failed = 0
    if "containers" in chosen:
        lines, wrong = containers()
        passed, failed = len(ROWS) + 3 - wrong, wrong
        if not wrong:
            PAGE.write_text(page(lines, _rows_of(PAGE.read_text(), _KERNELS)))
    named = [kernel for kernel in kernels.KERNELS if kernel.name in chosen]
    if unknown := set(chosen) - {"containers", _LIMITS, *(kernel.name for kernel in named)}:
        print(f"there is no {min(unknown)!r}")
        return 2
    processors = [*(kernel.processor for kernel in named), *(["x86_64"] if _LIMITS in chosen else [])]
    if processors and (command := machines.missing(processors)):
        print(f"skipped: kernels of distributions need qemu and other programs: {command}")
        print(f"{passed} passed, {failed} failed, {len(processors)} skipped")
        return 1 if failed else 0
    if _LIMITS in chosen:
        wrong = limits.tried()
        passed, failed = passed + len(limits.RUNNERS) - wrong, failed + wrong
    for kernel in named:
        rows, wrong = kernels.tried(kernel)
        passed, failed = passed + (not wrong), failed + wrong
        if not wrong:
            text = PAGE.read_text()
            PAGE.write_text(page(_rows_of(text), kernels.merged(_rows_of(text, _KERNELS), kernel, rows)))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def containers() -> tuple[list[str], int]:
    """Try every container, and print a line for each: rows of the table, and how many failed."""
    lines, failed = [row("none: the machine itself, root", on_the_machine())], 0
    for name, container, auto, session in ROWS:
        began = time.monotonic()
        try:
            found = container.python(TRIED)
            wrong = judged(found, auto, session)
        except AssertionError as error:
            found, wrong = {}, [str(error)[-600:]]
        failed += bool(wrong)
        print(f"{'FAILED' if wrong else 'ok'}: {name} ({time.monotonic() - began:.0f} s)", flush=True)
        for words in wrong:
            print(f"    {words}")
        lines.append(row(name, found))
    different = compared()
    print(f"{'FAILED' if different else 'ok'}: each system call under both filters", flush=True)
    for words in different:
        print(f"    {words}")
    found = [catalogue(uid) for uid in (1000, 0)]
    for said, wrong in found:
        print(f"{'FAILED' if wrong else 'ok'}: the catalogue of attacks on landlock, {said}", flush=True)
        for words in wrong:
            print(f"    {words}")
        lines.append(f"{_CATALOGUE}{said}")
    return lines, failed + bool(different) + sum(bool(wrong) for _, wrong in found)


#: Tests of the landlock catalogue that are expected to fail in a container without options. Two run an attack
#: on everything, for which the tests need namespaces. The others are what is declared: nothing of root's
#: container is the sandbox's to own, /tmp is refused, and the container refuses keys to everybody.
_EXPECTED = {
    1000: {"kill-everything", "test_everything_ends_with_whoever_started_it", "list-keys"},
    0: {
        *("kill-everything", "test_everything_ends_with_whoever_started_it", "set-mode-in-work"),
        *("set-owner-in-work", "write-to-tmp-by-its-usual-name", "set-mode-of-git-config"),
    },
}


def catalogue(uid: int) -> tuple[str, list[str]]:
    """Run the containment catalogue of landlock in a container without options: a row, and what is wrong."""
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/containment/test_landlock.py"]
    said = Container(uid=uid).run([sys.executable, *words], cwd=str(TREE)).stdout
    failed = re.findall(r"^FAILED \S+::(?:\w+\[)?([\w-]+)\]?", said, re.MULTILINE)
    passed = re.search(r"(\d+) passed", said)
    name = "user" if uid else "root"
    wrong = [f"the attack or test {one}, as {name}" for one in failed if one not in _EXPECTED[uid]]
    if passed is None:
        wrong.append(said[-600:])
    count = int(passed.group(1)) if passed else 0
    return f"as {name} {count} of {count + len(failed)}", wrong


def _rows_of(text: str, heading: str = "") -> list[str]:
    """The rows of a table of an earlier run: the one after `heading`."""
    lines = (text.partition(heading)[2] if heading else text.partition(_KERNELS)[0]).splitlines()
    rows = [line for line in lines if line.startswith("|")][2:]
    said = re.search(r"passed there: (.*)\.", text)
    return rows if heading or said is None else [*rows, *(_CATALOGUE + one for one in said[1].split("; "))]


#: The figures of a row, and how many digits they have.
_FIGURES = (("ready", 0), ("open", 0), ("command", 2))


def on_the_machine() -> dict[str, Any]:
    """The same tried by root without a container, for comparison. Nothing stays."""
    words = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /tmp && exec "$@"', "sh"]
    done = subprocess.run(
        [*words, sys.executable, "-c", TRIED],
        env={**os.environ, "PYTHONPATH": str(TREE / "src")},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row(name: str, found: dict[str, Any]) -> str:
    usable = ", ".join(f"`{backend}` {count}" for backend, count in found.get("usable", {}).items()) or "none"
    session = f"`{found['session']}`" if "session" in found else "refused"
    figures = ""
    if "command" in found:
        figures = ", ".join(f"{found[what] * 1000:.{digits}f} ms" for what, digits in _FIGURES)
    cells = (name, usable, f"`{found.get('auto') or 'refused'}`", session, found.get("snapshot", ""), figures)
    return f"| {' | '.join(cells)} |"


def _said_of_catalogue(lines: list[str]) -> tuple[str, ...]:
    """The paragraph about the catalogue; none if it was not run."""
    said = [line.removeprefix(_CATALOGUE) for line in lines if line.startswith(_CATALOGUE)]
    if not said:
        return ()
    return (
        "Of the tests of the catalogue of attacks on `landlock`, in a container without options,",
        f"passed there: {'; '.join(said)}.",
        "The others need namespaces for the test itself, or are declared gaps.",
        "",
    )


def page(lines: list[str], kernel_rows: list[str]) -> str:
    kernel = os.uname()
    return "\n".join(
        (
            "# Tested container runtimes",
            "",
            "Written by `make test-hosts`, which starts each container with runc over the root file system",
            f"of its machine: Linux {kernel.release.split('-')[0]}, {kernel.machine},",
            f"Python {sys.version.split()[0]}. The filters are tables of what Docker and Podman refuse.",
            "See [containers](../containers.md) for the options.",
            "",
            "| container | enforced, of 19 protections | `auto` | nested session | snapshot | figures |",
            "| --- | --- | --- | --- | --- | --- |",
            *(line for line in lines if line.startswith("|")),
            "",
            *_said_of_catalogue(lines),
            "In each, `doctor`, a strict run, a nested run and a session agree. The figures are medians, on",
            "a machine that does other work: to open a sandbox half a second after the last one, when it was",
            "made ahead; to open one at once; and to run a command that does nothing.",
            "",
            _KERNELS,
            "",
            "Kernels of distributions, started by qemu over a small Debian 13 without systemd, as root and",
            "as an ordinary user.",
            "",
            "| kernel | usable backends | `auto` | session, snapshot | limits |",
            "| --- | --- | --- | --- | --- |",
            *kernel_rows,
            "",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
