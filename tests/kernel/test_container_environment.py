"""The write jail for root in an unchanged container: commands work in a copy, matching changes are kept."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.containers import Container

pytestmark = pytest.mark.needs_root

SCRIPT = """
import json, os, signal, subprocess, sys, threading, time, warnings
from staddle import LocalEnvironment, Policy, StaddleError
from staddle.environment import wrap_bash_command
warnings.simplefilter("ignore")
found = {}

def tree(place="/tmp/p"):
    files = (os.path.join(at, name) for at, _, names in os.walk(place) for name in names)
    return {os.path.relpath(path, place): open(path).read() for path in files}

def project():
    made = "rm -rf /tmp/p; mkdir -p /tmp/p/sub /tmp/p/build; cd /tmp/p; echo one > a; echo two > sub/b; "
    made += "echo old > build/old; echo secret > key; chmod 600 a; chown -R 1234:1234 build"
    subprocess.run(made, shell=True, check=True)

def ran(env, script):
    done = env.exec_command("sh", ["-c", script])
    return [done.exit_code, done.stdout, sorted(event.what for event in done.violations)]

def refused(work):
    try:
        work()
    except StaddleError as error:
        return f"{type(error).__name__}: {error}"

nested = Policy.agent(nested=True)
project()
with LocalEnvironment("/tmp/p", ["build/**", "*.md"], policy=nested.with_deny("/tmp/p/key")) as env:
    found["gaps"] = [[gap.protection, gap.documented] for gap in env.enforced.gaps]
    found["limits"] = len(env.limits())
    found["ids"] = [ran(env, "id -u")[1], ran(env, "id -u")[1]]
    found["globs"] = ran(env, "cat a; echo new > build/new; rm build/old; echo x > a; echo m > r.md; "
        "echo n > other; mkdir -p build/.git/hooks; echo e > build/.git/hooks/pre-commit; "
        "ln -s /etc/passwd build/out; cp /bin/true build/s; chmod 6755 build/s; mkfifo build/pipe")
    found["owner"] = [os.stat("/tmp/p/build/new").st_uid, os.stat("/tmp/p/r.md").st_uid]
    found["mode"] = oct(os.stat("/tmp/p/build/s").st_mode & 0o7777)
    os.unlink("/tmp/p/build/s")
    found["tree"] = tree()
    found["denied"] = ran(env, "cat key; echo forged > key; cat /tmp/p/key")[:2]
    found["key"] = open("/tmp/p/key").read()
    found["outside"] = ran(env, "for at in ../x ../../x /tmp/p/build/x /etc/x; do echo > $at && echo wrote; "
        "done 2>&- ; cat /tmp/p/a /etc/shadow 2>&-; kill -0 $PPID 2>&- && echo signalled")[:2]
    def edit():
        for name in ("a", "build/new"):
            with open(f"/tmp/p/{name}", "w") as file:
                file.write("host")
    editing = threading.Timer(0.5, edit)
    editing.start()
    found["meanwhile"] = ran(env, "sleep 1.5; echo sandbox > build/new; echo late > build/late")
    editing.join()
    found["after"] = [tree()[name] for name in ("a", "build/new", "build/late")]
    found["timeout"] = refused(lambda: env.exec_command("sh", ["-c", "echo t > build/t; sleep 60"], 1.0))
    found["timed"] = tree().get("build/t")
project()
with LocalEnvironment("/tmp/p", policy=nested) as env:
    found["whole"] = ran(env, "echo x > new; rm -r sub; mkdir -p .git/hooks; echo e > .git/hooks/pre-commit")
    found["whole tree"] = sorted(tree())
    found["wrapped"] = refused(lambda: env.wrapped(["true"]))
found["not nested"] = refused(lambda: LocalEnvironment("/tmp/p", ["build/**"]).exec_command("true"))
project()
with LocalEnvironment("/tmp/p", ["build/**"], on_unavailable="record") as env:
    found["record"] = ran(env, "echo r > build/r; echo r > r")
    found["recorded"] = sorted(tree())
project()
def wrapped(script, **options):
    argv = wrap_bash_command(["sh", "-c", script], "/tmp/p", ["build/**"])
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(argv, text=True, **streams, **options)
script, variables = "cat; echo w > w; echo o > ../o; echo $FLAVOUR; exit 7", {**os.environ, "FLAVOUR": "x"}
process = wrapped(script, cwd="/tmp/p/build", env=variables)
out, err = process.communicate("hello ")
found["wrap"] = [process.returncode, out, err]
script = "trap 'echo caught > build/caught; exit 5' TERM; echo ready; while :; do sleep 0.1; done"
process = wrapped(script, cwd="/tmp/p")
process.stdout.readline()
process.send_signal(signal.SIGTERM)
process.communicate()
found["signal"] = process.returncode
found["wrapped tree"] = sorted(tree())
found["left"] = [path for at in ("/tmp", "/var/tmp", "/dev/shm") for path in os.listdir(at) if path != "p"]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> Any:
    return Container().python(SCRIPT)


def test_only_what_the_globs_match_is_written_back(found: Any) -> None:
    status, printed, left = found["globs"]
    assert (status, printed) == (0, "one\n")
    hooks = "build/.git/hooks"
    refused = ("a", hooks, f"{hooks}/pre-commit", "build/out", "build/pipe", "other")
    assert left == [f"/tmp/p/{name}" for name in refused]
    assert found["tree"] == {
        "a": "one\n",
        "build/new": "new\n",
        "key": "secret\n",
        "r.md": "m\n",
        "sub/b": "two\n",
    }
    assert found["owner"] == [1234, 0], "as in the directory that they are in"
    assert found["mode"] == "0o755", "no set-ID bit"


def test_the_copy_is_declared_and_the_globs_are_exact(found: Any) -> None:
    assert ["workspace", True] in found["gaps"]
    assert "write" not in [protection for protection, _ in found["gaps"]]
    assert all(documented for _, documented in found["gaps"])
    assert found["limits"] == 0


def test_commands_are_strangers_to_root_and_to_each_other(found: Any) -> None:
    one, two = map(int, found["ids"])
    assert one != two
    assert min(one, two) > 0x70000000
    assert found["outside"] == [1, ""], "nothing outside of the copy is written, and no closed file read"


def test_what_is_denied_is_not_in_the_copy(found: Any) -> None:
    assert found["denied"] == [1, ""]
    assert found["key"] == "secret\n"


def test_a_file_that_the_host_changed_meanwhile_is_left_alone(found: Any) -> None:
    status, _, left = found["meanwhile"]
    assert status == 0
    assert left == ["/tmp/p/build/new"]
    assert found["after"] == ["host", "host", "late\n"]


def test_what_a_command_wrote_before_its_time_was_up_is_written_back(found: Any) -> None:
    assert "CommandTimeout" in found["timeout"]
    assert found["timed"] == "t\n"


def test_without_globs_the_whole_directory_is_written_back(found: Any) -> None:
    status, _, left = found["whole"]
    assert status == 0
    assert left == ["/tmp/p/.git/hooks", "/tmp/p/.git/hooks/pre-commit"]
    assert found["whole tree"] == ["a", "build/old", "key", "new"]
    assert "mode='overlay'" in found["wrapped"], "nobody would write back: refused, with what works"


def test_gaps_are_accepted_before_anything_runs(found: Any) -> None:
    assert found["not nested"].startswith("PolicyNotEnforceable")
    assert found["not nested"].endswith("export STADDLE_NESTED=1")
    assert found["record"] == [0, "", ["/tmp/p/r"]]
    assert found["recorded"] == ["a", "build/old", "build/r", "key", "sub/b"]


def test_a_wrapped_bash_command_writes_back_at_its_end(found: Any) -> None:
    status, out, err = found["wrap"]
    assert (status, out) == (7, "hello x\n")
    assert err == "staddle: /tmp/p/o: no glob of writable_paths names it; it was left out\n"
    assert found["signal"] == 5, "signals reach the command"
    assert found["wrapped tree"] == ["a", "build/caught", "build/old", "build/w", "key", "sub/b"]


def test_no_copy_is_left(found: Any) -> None:
    assert found["left"] == []
