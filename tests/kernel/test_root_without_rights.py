"""Root that cannot become another user is confined by Landlock alone, if the gap is accepted, and only then.

Root without capabilities keeps the id 0, and so does root of a user namespace that has no other id.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.containers import SOURCE
from tests.support.in_a_child import captured

pytestmark = pytest.mark.needs_root

KINDS = {
    "no capabilities": ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"],
    "one id": ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", "unshare", "-Ur"],
}

SCRIPT = """
import json, os, subprocess, sys, warnings
from staddle import LocalEnvironment, Policy, Sandbox, StaddleError, wrap
from staddle.environment import wrap_bash_command
warnings.simplefilter("ignore")
place, found = sys.argv[1], {}
outside, project = f"{place}/outside", f"{place}/project"

def refused(work):
    try:
        return str(work())
    except StaddleError as error:
        return f"{type(error).__name__}: {error}"

nested = Policy.agent(nested=True)
for name, options in {"auto": {}, "landlock": {"backend": "landlock"}}.items():
    found[name] = refused(lambda: wrap(["true"], Policy.agent(), **options))
probe = f'''
id -u; grep -E '^(CapPrm|CapEff|NoNewPrivs|Seccomp):' /proc/self/status | cut -f2
for try in 'true < {outside}/closed' 'true >> {outside}/closed' 'true >> /proc/sys/kernel/core_pattern' \\\\
    'kill -0 {os.getpid()}' 'chmod 4755 {outside}/program' 'chmod 2755 {outside}/program' \\\\
    'mkdir {outside}/new' 'true < /proc/{os.getpid()}/environ'
do (eval "$try") 2>/dev/null && echo "possible: $try"; done
'''
wrapped = wrap(["sh", "-c", probe], nested)
found["gaps"] = {gap.protection: [gap.documented, gap.why] for gap in wrapped.enforced.gaps}
found["backend"] = wrapped.backend
found["tried"] = wrapped.run(capture_output=True, text=True).stdout.splitlines()
controls = ["true < {}/closed", "true >> {}/closed", "chmod 4755 {}/program", "chmod 755 {}/program"]
done = [subprocess.run(["sh", "-c", words.format(outside)]).returncode for words in controls]
found["controls"] = done
with LocalEnvironment(project, ["build/**"], policy=nested) as env:
    done = env.exec_command("sh", ["-c", "echo new > build/new; echo x > a"])
    found["environment"] = [done.exit_code, os.listdir(f"{project}/build"), open(f"{project}/a").read()]
found["jail"] = subprocess.run(
    wrap_bash_command(["sh", "-c", "echo j > build/j; echo x > a"], project, ["build/**"]),
    env={**os.environ, "STADDLE_NESTED": "1"}, cwd=project, capture_output=True, text=True,
).returncode
found["jailed"] = [sorted(os.listdir(f"{project}/build")), open(f"{project}/a").read()]
found["crowd"] = refused(lambda: Sandbox(policy=nested.with_limits(processes=30)))
with Sandbox(project, policy=nested.with_limits(memory="200M")) as sb:
    found["limits"] = [item.limit for item in sb.enforced.limits]
    found["unheld"] = [gap.protection for gap in sb.enforced.gaps]
    sb.run("echo changed > a")
    before = open(f"{project}/a").read()
    fill = "python3 -c 'l = []\\nwhile True: l.append(bytes([1]) * (1 << 20))'"
    filled = str(sb.run(fill).reason)
    sb.commit()
found["sandbox"] = [before, open(f"{project}/a").read(), filled]
command = [sys.executable, "-m", "staddle", "run", "--nested", "--", "id", "-u"]
done = subprocess.run(command, capture_output=True, text=True)
found["command"] = [done.returncode, done.stdout, "root" in done.stderr]
print(json.dumps(found))
"""


@pytest.fixture(scope="module", params=KINDS)
def found(request: pytest.FixtureRequest) -> Iterator[Any]:
    # Not in pytest's own directory, which only root may pass.
    with TemporaryDirectory(prefix="staddle-place-") as made:
        place = Path(made)
        for name in ("outside", "project/build"):
            (place / name).mkdir(parents=True)
        (place / "outside/closed").write_text("secret")
        (place / "outside/closed").chmod(0o600)
        (place / "outside/program").write_text("#!/bin/sh\n")
        (place / "outside/program").chmod(0o755)
        (place / "project/a").write_text("as it was\n")
        if request.param == "one id":
            for path in [place, *place.rglob("*")]:
                os.chown(path, 1234, 1234)
        done = captured(
            [*KINDS[request.param], sys.executable, "-c", SCRIPT, str(place)],
            cwd=place,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "HOME": str(place / "home")},
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        yield json.loads(done.stdout.splitlines()[-1])


def test_without_nested_it_is_refused_with_the_line_that_accepts_it(found: Any) -> None:
    for name in ("auto", "landlock"):
        assert found[name].startswith("PolicyNotEnforceable"), name
        assert "keeps the user id 0" in found[name]
        assert found[name].endswith("export STADDLE_NESTED=1")


def test_the_gap_is_declared(found: Any) -> None:
    assert found["backend"] == "landlock"
    documented, why = found["gaps"]["root"]
    assert documented
    assert "keeps the user id 0" in why
    assert found["command"] == [0, "0\n", True]


def test_it_is_root_by_name_only(found: Any) -> None:
    nothing = "0000000000000000"
    assert found["controls"] == [0, 0, 0, 0], "unconfined, all of this works"
    assert found["tried"] == ["0", nothing, nothing, "1", "2"]


def test_the_write_jail_holds(found: Any) -> None:
    status, written, kept = found["environment"]
    assert status != 0
    assert (written, kept) == (["new"], "as it was\n")
    assert found["jail"] != 0
    assert found["jailed"] == [["j", "new"], "as it was\n"]


def test_a_session_works_in_a_copy_with_its_limits(found: Any) -> None:
    before, after, filled = found["sandbox"]
    assert (before, after) == ("as it was\n", "changed\n")
    assert filled == "memory"


def test_a_limit_of_processes_that_the_kernel_would_not_hold_is_not_promised(found: Any) -> None:
    assert found["crowd"].startswith("PolicyNotEnforceable")
    assert "root's processes" in found["crowd"]
    assert "processes" not in found["limits"]
    assert "limits.processes" in found["unheld"]
