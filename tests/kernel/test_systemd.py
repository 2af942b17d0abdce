"""The systemd backend on a real systemd: as an ordinary user with a user manager, and as root.

A private systemd is started for these tests (see `private_systemd`), which only root can do.
"""

# ruff: noqa: E501 - scripts read better unbroken

from __future__ import annotations

import json

import pytest

from tests.support.private_systemd import PrivateSystemd
from tests.support.systemd_sandbox import DRIVER, Sandbox, wait_for

pytestmark = pytest.mark.needs_root

#: Names in which something that parses units, paths or shell words would stumble.
ODD_NAMES = [
    "sp ace",
    "per%cent %h %%",
    "co:lon",
    'quo"te',
    "apo'strophe",
    "back\\slash",
    "new\nline",
    "dol$HOME ${HOME} $$",
    "-dash",
    "*glob?[a]",
    "\u00e9\u20ac",
    "#hash;semi",
    "\x01\x7f",
    "b\udcffytes",
]

# It runs commands.


def test_the_self_test_succeeds(sandbox: Sandbox) -> None:
    told = json.loads(sandbox.run(only="probe").stdout)
    assert told["usable"], told
    assert int(told["version"]) >= 248


@pytest.mark.parametrize(
    ("text", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_status_is_the_commands(sandbox: Sandbox, text: str, code: int) -> None:
    assert sandbox.run(["sh", "-c", text]).returncode == code


def test_the_three_streams_are_the_commands_own(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 8000
    done = sandbox.run(["sh", "-c", "cat; echo problem >&2"], input=data)
    assert (done.stdout, done.stderr, done.returncode) == (data, b"problem\n", 0)


def test_a_reader_that_goes_away_ends_the_command(sandbox: Sandbox) -> None:
    process = sandbox.popen(["sh", "-c", "yes; echo $? >&2"])
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(100)
    process.stdout.close()
    assert process.stderr.read() == b"141\n"
    assert process.wait(60) == 0


def test_arguments_and_variables_arrive_as_they_are(sandbox: Sandbox) -> None:
    """Nothing expands, splits or quotes them: not the manager, not a shell."""
    words = [*ODD_NAMES, "", "$MANAGER_SECRET", "${MANAGER_SECRET}", "%n", "a=b", "--user", "@x", "|", "-"]
    scope = ["--user"] if sandbox.user else []
    sandbox.unconfined(
        ["systemctl", *scope, "set-environment", "MANAGER_SECRET=leaked", "PYTHONPATH=/leaked"]
    )
    code = "import os,sys,json; print(json.dumps([sys.argv[1:], {k: v for k, v in os.environ.items()}]))"
    env = {f"V{number}": name for number, name in enumerate(ODD_NAMES)}
    done = sandbox.run(["python3", "-c", code, *words], env=env)
    sandbox.unconfined(["systemctl", *scope, "unset-environment", "MANAGER_SECRET", "PYTHONPATH"])
    arrived, variables = json.loads(done.stdout)
    assert arrived == words
    assert {key: variables[key] for key in env} == env
    usual = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "LC_CTYPE"}
    usual |= {"HOSTNAME", "LC_ALL", "STADDLE_SANDBOX"}
    assert variables.keys() - env.keys() <= usual, variables.keys()


# It tells the manager nothing, and does not reach it.


@pytest.mark.slow
def test_the_manager_cannot_be_asked_for_another_unit(sandbox: Sandbox) -> None:
    """With the bus in sight, `systemd-run` inside is an escape in one command."""
    scope = ["--user"] if sandbox.user else []
    runtime = f"/run/user/{sandbox.machine.uid}"
    env = {"XDG_RUNTIME_DIR": runtime, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus"}
    command = ["systemd-run", *scope, "--wait", "--collect", "--quiet", "true"]
    assert sandbox.unconfined(command).returncode == 0
    assert sandbox.run(command, env=env).returncode != 0
    assert sandbox.run(command, env=env, network="open").returncode != 0
    assert sandbox.run(["sh", "-c", "ls /run/user /run/dbus /run/systemd"]).stdout == b""


@pytest.mark.slow
def test_no_secret_is_on_a_command_line_or_in_the_unit(sandbox: Sandbox) -> None:
    process = sandbox.popen(["sleep", "30.5"], env={"TOKEN": "s3cr3t-v4lue"})
    try:
        wait_for("the command", lambda: sandbox.processes("sleep\0" + "30.5"))
        scope = ["--user"] if sandbox.user else []
        (unit,) = sandbox.units()
        shown = sandbox.unconfined(["systemctl", *scope, "show", unit]).stdout
        assert b"Description=a command confined by staddle" in shown
        assert b"s3cr3t" not in shown
        driver = {int(p) for p in sandbox.processes(DRIVER)}  # the test's own words, which name the policy
        assert set(sandbox.processes("s3cr3t-v4lue")) <= driver
        runtime = sandbox.machine.outside(f"/run/user/{sandbox.machine.uid}")
        assert not [path for path in runtime.iterdir() if "staddle" in path.name]
    finally:
        process.kill()
        process.communicate()
    wait_for("the end", lambda: not sandbox.units())


# It does not start.


def test_a_limit_that_the_manager_does_not_set_is_found_out(sandbox: Sandbox) -> None:
    """The manager ignores a limit without saying so where it has no controller for it, as here."""
    for name, most in (("memory", "64M"), ("cpu", 0.5), ("processes", 20)):
        done = sandbox.run(["echo", "ran"], limits={name: most}, despite_gaps=True)
        assert (done.returncode, done.stdout) == (125, b"")
        assert "systemd did not set the limit in /sys/fs/cgroup" in done.stderr.decode()
    wait_for("the units are gone", lambda: not sandbox.units())


def test_a_failure_is_told_on_standard_error_when_nobody_reads_the_status(sandbox: Sandbox) -> None:
    done = sandbox.run(["/usr/bin/no-such-program"], status="closed")
    assert "staddle: '/usr/bin/no-such-program' cannot be run" in done.stderr.decode()


def test_a_program_that_is_not_there_is_told(sandbox: Sandbox) -> None:
    done = sandbox.run(["/usr/bin/no-such-program"])
    assert done.returncode == 125
    assert "'/usr/bin/no-such-program' cannot be run: No such file" in done.stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "why"),
    [("exit 0", "did not move the launcher"), ("echo no >&2; exit 1", "for the launcher: no")],
)
def test_a_manager_that_makes_no_unit_is_found_out(sandbox: Sandbox, answer: str, why: str) -> None:
    words = " ".join(f"'{word}'" for word in sandbox.words(["echo", "ran"]))
    enter = (
        ""
        if not sandbox.user
        else f"setpriv --reuid={sandbox.machine.uid} --regid={sandbox.machine.gid} --clear-groups "
    )
    text = (
        f"printf '#!/bin/sh\\n{answer}\\n' > /run/fake && chmod 755 /run/fake && mount --bind /run/fake /usr/bin/busctl && "
        f"exec {enter}env XDG_RUNTIME_DIR=/run/user/{sandbox.machine.uid} {words}"
    )
    done = sandbox.machine.run(["unshare", "-m", "sh", "-c", text], user=False)
    assert (done.returncode, done.stdout) == (125, b"")
    assert why in done.stderr.decode()


def test_without_a_user_manager_the_cause_is_named(machine: PrivateSystemd) -> None:
    words = ["/usr/bin/python3", DRIVER, json.dumps({"only": "probe"})]
    done = machine.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *words], user=False)
    told = json.loads(done.stdout)
    assert not told["usable"]
    assert "no user manager runs for uid 65534" in told["why"]
    assert "enable-linger" in told["fix"]


def test_what_it_cannot_hold_is_a_gap(sandbox: Sandbox) -> None:
    controllers = sandbox.machine.outside("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    limits = {"memory": "64M", "cpu": 0.5, "processes": 20, "disk": "1G"}
    told = dict(json.loads(sandbox.run(only="gaps", limits=limits).stdout))
    assert "limits.disk" in told
    for name, controller in (("memory", "memory"), ("cpu", "cpu"), ("processes", "pids")):
        assert (f"limits.{name}" in told) == (controller not in controllers)
    assert json.loads(sandbox.run(only="gaps").stdout) == []
